"""The comparison of two runs, as published (``trackside.comparison/1``) and as terminal text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trackside.compare.compare import Comparison
from trackside.compare.setup import size_differences, workload_differences
from trackside.compare.side import ComparedRow
from trackside.compare.slowdown import Slowdown, pace
from trackside.compare.training import ELAPSED_PER_STEP, LOOP_PER_STEP
from trackside.evidence import Value
from trackside.settings.price import NO_PRICE, Price
from trackside.show import heading
from trackside.show.document import CiteDoc, Cites, FindingDoc, JsonScalar, RunDoc, VerdictDoc, document, plain
from trackside.show.sanitize import make_encodable
from trackside.show.text import section, trim_trailing_spaces
from trackside.wording import duration, word

SCHEMA = "trackside.comparison/1"
TOPICS = {
    "outcome": "Outcome",
    "place": "Hardware",
    "setup": "Setup",
    "alone": "Settings printed by one log only",
    "start": "Startup",
    "training": "Training",
    "checkpoints": "Checkpoints",
    "metrics": "GPU metrics",
}
"""Topic of a row -> its heading."""
MAX_SHOWN = 5
"""Maximum number of divergences, and of settings in a sentence, without --verbose."""
MAX_VALUE_CHARS, MAX_SETTING_CHARS = 60, 24
"""Maximum characters of a value in the answer, and of a setting there."""
MAX_LABEL_RATIO = 0.4
"""Maximum width of the label column, as a share of the table."""
STEP_TIME_NOTES = {
    LOOP_PER_STEP: " The step time is the time from the first to the last logged step divided by the steps between "
    "them, so pauses count.",
    ELAPSED_PER_STEP: " The step time is the elapsed time divided by the steps done, so startup and pauses count.",
}
STEP_TIME_HINTS = {
    LOOP_PER_STEP: " (from the first to the last logged step, so pauses count)",
    ELAPSED_PER_STEP: " (time up to the fault, else to the end, divided by steps done, so startup and pauses count)",
}
"""Label of the row about the step time -> how it was measured."""
SAME_INPUT = "A and B are the same input: the run is compared with itself."


class SideDoc(msgspec.Struct, frozen=True):
    """One of the two runs."""

    paths: list[str]
    """The inputs as the user gave them."""
    run: RunDoc
    """The run."""
    primary: FindingDoc
    """The primary finding of its verdict."""


class ComparedRowDoc(msgspec.Struct, frozen=True):
    """One compared quantity of both runs."""

    topic: str
    """outcome, place (nodes and GPUs), setup, alone (settings that only one run prints), start, training, checkpoints
    or metrics."""
    label: str
    """What is compared."""
    a: JsonScalar
    """Value in run A; null if it has none."""
    b: JsonScalar
    """Value in run B; null if it has none."""
    unit: str
    """Unit of both values; empty if they have none."""
    differs: bool | None
    """Whether they differ; null if they cannot be compared."""
    rule: str
    """When two values count as different."""
    why: str
    """Why they cannot be compared, or what qualifies the result; empty if nothing."""
    cites_a: list[str]
    """Keys of the document's ``cites`` for ``a``."""
    cites_b: list[str]
    """Keys of the document's ``cites`` for ``b``."""
    step: float | None = None
    """Training step from which they differ; null if it does not apply."""
    seconds: float | None = None
    """Seconds from the start of the run to the point from which they differ; null if it does not apply."""
    place: str = ""
    """The epoch from which they differ, if neither step nor time is known; else empty."""
    text_a: str = ""
    """Value in run A as text."""
    text_b: str = ""
    """Value in run B as text."""
    name: str = ""
    """For a series over steps or time: the label without the point of divergence; else empty."""
    follows: str = ""
    """The differences in setup that may explain this difference; empty if none."""
    clock: str = ""
    """The run, a or b, from whose start ``seconds`` count, for a step that the other run reaches at another time; else
    empty."""


class SlowdownDoc(msgspec.Struct, frozen=True):
    """Extra GPU-hours of the slower run for the same steps. Money is GPU-hours times the price, or null."""

    slower: str
    """The slower run: a or b."""
    gpu_hours: float
    """Extra GPU-hours of the slower run."""
    formula: str
    """How the figure is computed, with its numbers."""
    assumption: str
    """What the figure assumes, as a sentence."""
    cites_a: list[str]
    """Keys of the document's ``cites`` for run A."""
    cites_b: list[str]
    """Keys of the document's ``cites`` for run B."""
    cost: float | None = None
    """GPU-hours times the price; null without a price."""
    currency: str | None = None
    """Currency of the price; null without a price."""
    cost_formula: str = ""
    """How ``cost`` is computed; empty without a price."""


class ComparisonDoc(msgspec.Struct, frozen=True):
    """The comparison of two runs. Ids of citations begin with a or b, the letter of their run."""

    schema: str
    """Name and version of this format: trackside.comparison/1."""
    answer: list[str]
    """The differences, where the runs diverge, and what was set up differently: a sentence each."""
    a: SideDoc
    """Run A."""
    b: SideDoc
    """Run B."""
    rows: list[ComparedRowDoc]
    """Every compared quantity."""
    partings: list[ComparedRowDoc]
    """Where the runs diverge, the earliest first."""
    cites: dict[str, CiteDoc]
    """Citations by key; a key begins with a or b, the letter of its run."""
    version: str
    """Version of Trackside."""
    following: list[ComparedRowDoc] = []
    """Divergences that a different setup may explain, the earliest first."""
    slowdown: SlowdownDoc | None = None
    """Extra cost of the slower run; null if the steps of the runs cannot be compared."""


def comparison(
    result: Comparison, paths: tuple[Sequence[str], Sequence[str]] = ((), ()), price: Price = NO_PRICE,
    same: bool = False,
) -> ComparisonDoc:  # fmt: skip
    """A comparison in its published form. ``paths``: the inputs of each run as the user gave them; ``same``: whether
    both runs are the same input."""
    cites = Cites()
    docs = [document(side.verdict) for side in (result.a, result.b)]
    rows = [_row(row, cites) for row in result.rows]
    partings = [_row(row, cites) for row in result.divergences]
    following = [_row(row, cites) for row in result.following]
    slowdown = _slowdown(result.slowdown, cites, price)
    sides = [
        SideDoc([make_encodable(path) for path in input_paths], doc.run, doc.primary)
        for doc, input_paths in zip(docs, paths, strict=True)
    ]
    return ComparisonDoc(
        schema=SCHEMA,
        answer=[*([SAME_INPUT] if same else []), *answer(result, docs, slowdown)],
        a=sides[0],
        b=sides[1],
        rows=rows,
        partings=partings,
        cites=cites.docs(),
        version=result.a.verdict.version,
        following=following,
        slowdown=slowdown,
    )


def _slowdown(slowdown: Slowdown | None, cites: Cites, price: Price) -> SlowdownDoc | None:
    if slowdown is None:
        return None
    slower_values, faster_values = [slowdown.gpus, slowdown.steps, slowdown.slow], [slowdown.fast]
    a, b = (slower_values, faster_values) if slowdown.letter == "A" else (faster_values, slower_values)
    figures = [word(value.number) for value in (slowdown.steps, slowdown.slow, slowdown.fast)]
    return SlowdownDoc(
        slower=slowdown.letter.lower(),
        gpu_hours=slowdown.hours,
        formula=f"{word(slowdown.gpus.value, slowdown.gpus.unit)} x {figures[0]} steps x "
        f"({figures[1]} s - {figures[2]} s) / 3,600 s/h = {slowdown.hours:,.10g} GPU-hours",
        assumption="Assumes that a step is the same amount of work in both runs."
        + STEP_TIME_NOTES.get(slowdown.measure, ""),
        cites_a=[name for value in a for name in cites.ids(value.cites, "a")],
        cites_b=[name for value in b for name in cites.ids(value.cites, "b")],
        cost=price.of(slowdown.hours),
        currency=price.currency if price.price_per_gpu_hour else None,
        cost_formula=price.formula(slowdown.hours),
    )


def answer(result: Comparison, docs: Sequence[VerdictDoc], slowdown: SlowdownDoc | None = None) -> list[str]:
    """The summary: a sentence each."""
    compared = [row for row in result.rows if row.differs is not None]
    if not result.differing:
        n_unknown = len(result.rows) - len(compared)
        unknown_text = f"; {n_unknown} could not be compared" if n_unknown else ""
        values = f"{len(compared)} compared value{'' if len(compared) == 1 else 's'}"
        return [f"No difference found in {values}{unknown_text}."]
    sentences = [*_unlike(result), _verdict_sentence(docs), *_pace(result, slowdown is None), *_cost_sentence(slowdown)]
    if first := result.first:
        sentences.append(_onset_sentence(first[:3], [row for row in result.divergences if row not in first]))
    elif not result.following:
        sentences.append(_agreement_sentence(result))
    sentences += _explained_sentences(result.following)
    if result.setup:
        rows = [_in_figures(row) for row in result.setup]
        more = f" and {len(rows) - MAX_SHOWN} more" if len(rows) > MAX_SHOWN else ""
        sentences.append(f"Set up differently: {', '.join(rows[:MAX_SHOWN])}{more}.")
    elif any(row.topic == "setup" and row.label != "framework" and row.differs is False for row in result.rows):
        sentences.append("No difference was found in the setup that logs and records show.")
    return sentences


def _verdict_sentence(docs: Sequence[VerdictDoc]) -> str:
    words = []
    for doc in docs:
        where = heading.where(doc.primary)
        words.append(heading.answer(doc.primary) + (f", {where}" if where else "") + f" ({doc.primary.family})")
    if words[0] == words[1]:
        return f"Both: {words[0]}."
    return f"A: {words[0]}. B: {words[1]}."


def _unlike(result: Comparison) -> list[str]:
    """A warning that the runs do not look comparable, and why; empty otherwise."""
    rows = workload_differences(result.rows)
    if not rows:
        return []
    differences = ", ".join(map(_in_figures, rows[:MAX_SHOWN]))
    return [
        f"These runs do not look comparable: they differ in {differences}."
        " That alone may explain the differences below."
    ]


def _explained_sentences(rows: Sequence[ComparedRow]) -> list[str]:
    """The divergences that a different setup may explain, grouped by the settings."""
    causes: dict[tuple[str, ...], list[ComparedRow]] = {}
    for row in rows:
        causes.setdefault(tuple(map(_in_figures, row.follows)), []).append(row)
    return [
        f"The different {', '.join(settings)} may explain these divergences: "
        + "; ".join(f"{row.name or row.label} {_onset_text(row)}" for row in effects[:MAX_SHOWN])
        + "."
        for settings, effects in causes.items()
    ]


def _in_figures(row: ComparedRow) -> str:
    """``planned steps (548 / 574)``; a unit that the label contains is not repeated."""
    values = [
        _brief(value if value is None or value.unit not in row.label else replace(value, unit=""), MAX_SETTING_CHARS)
        for value in (row.a, row.b)
    ]
    return f"{row.label} ({' / '.join(values)})"


def _cost_sentence(doc: SlowdownDoc | None) -> list[str]:
    """The extra GPU-hours of the slower run; empty if unknown."""
    if doc is None:
        return []
    money = "" if doc.cost is None else f" ({doc.cost:,.2f} {doc.currency})"
    faster_run = "A" if doc.slower == "b" else "B"
    return [
        f"That is {word(doc.gpu_hours, 'GPU-hours')}{money} more than at the pace of {faster_run}: "
        f"{doc.formula.rpartition(' = ')[0]}."
        f" {doc.assumption}"
    ]


def _agreement_sentence(result: Comparison) -> str:
    """How far the runs agree, if no divergence was found."""
    equal = [row.name for row in result.rows if row.differs is False and row.name]
    if not equal:
        return "Where the runs diverge is not known: they share too few steps and times."
    return f"No point of divergence was found; at equal steps the runs agree up to {', '.join(equal)}."


def _pace(result: Comparison, explain: bool) -> list[str]:
    """How many times longer the steps of the slower run are. ``explain``: also say how the step time is computed."""
    row = pace(result.rows)
    if row is None or row.a is None or row.b is None or not row.differs:
        return []
    slow, ratio = ("B", row.b.number / row.a.number) if row.b.number > row.a.number else (
        "A", row.a.number / row.b.number)  # fmt: skip
    text = f"A step takes {ratio:.2f} times as long in {slow}: {_word(row.a)} in A, {_word(row.b)} in B"
    if explain:
        text += STEP_TIME_HINTS.get(row.label, "")
    differing = size_differences(result.rows)
    if not differing:
        return [f"{text}."]
    differences = ", ".join(map(_in_figures, differing[:3]))
    return [f"{text}; but the steps are not the same amount of work: the runs differ in {differences}."]


def _onset_sentence(rows: Sequence[ComparedRow], others: Sequence[ComparedRow]) -> str:
    """Where the runs diverge: the first differences, then those that begin a little later. ``others``: the rest of the
    divergences; if one begins earlier, the first ones are those that show a fault."""
    begin = _onset_text(rows[0])
    at_once = [row for row in rows if _onset_text(row) == begin]
    earlier = next((row for row in others if _begins_before(row, rows[0])), None)
    before = "" if earlier is None else f" {_onset_text(earlier)} in {earlier.name or earlier.label}, and by a fault"
    text = f"The runs diverge{before} {begin}: {'; '.join(map(_value_pair, at_once))}"
    later = [row for row in rows if row not in at_once]
    if not later:
        return f"{text}."
    delays = [row.seconds - rows[0].seconds for row in later if row.seconds is not None and rows[0].seconds is not None]
    within = f"within the next {duration(max(delays))}" if delays and max(delays) >= 1 else "at about the same time"
    return f"{text}; {within}: {'; '.join(map(_value_pair, later))}."


def _begins_before(row: ComparedRow, other: ComparedRow) -> bool:
    """Whether a difference begins earlier, by the time or else the step of both."""
    if row.seconds is not None and other.seconds is not None:
        return row.clock == other.clock and row.seconds < other.seconds
    return row.step is not None and other.step is not None and row.step < other.step


def _since_start(seconds: float, clock: str) -> str:
    """Up to two hours to the second, so that onsets a minute apart are not rounded to more; ``clock``: the run whose
    start it is, empty for both."""
    minutes, rest = divmod(round(seconds), 60)
    text = f"{minutes} min {rest} s" if rest and 10 <= minutes < 120 else duration(seconds)
    return f"{text} after the start" + (f" of {clock.upper()}" if clock else "")


def _onset_text(row: ComparedRow) -> str:
    """Where a difference begins: its step, its time or its epoch."""
    after = "" if row.seconds is None else _since_start(row.seconds, row.clock)
    if row.step is None:
        return after or f"at {row.epoch}"
    return f"at step {row.step:,.0f}" + (f", {after}" if after else "")


def _value_pair(row: ComparedRow) -> str:
    if row.a is None or row.b is None:
        return row.label
    name = row.label if row.topic == "metrics" else row.name or row.label  # the label names the time of the figures
    return f"{name} {_brief(row.a)} in A, {_brief(row.b)} in B"


def _brief(value: Value | None, max_chars: int = MAX_VALUE_CHARS) -> str:
    text = _word(value)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _word(value: Value | None) -> str:
    return "" if value is None else word(value.value, value.unit)


def _row(row: ComparedRow, cites: Cites) -> ComparedRowDoc:
    unit = next((value.unit for value in (row.a, row.b) if value is not None), "")
    return ComparedRowDoc(
        topic=row.topic, label=row.label, a=plain(row.a.value if row.a else None),
        b=plain(row.b.value if row.b else None), unit=unit, differs=row.differs,
        rule=row.rule, why=row.why, cites_a=cites.ids(row.a.cites if row.a else (), "a"),
        cites_b=cites.ids(row.b.cites if row.b else (), "b"), step=row.step,
        seconds=row.seconds, place=row.epoch, text_a=_word(row.a), text_b=_word(row.b),
        name=row.name, follows=", ".join(map(_in_figures, row.follows)), clock=row.clock.lower(),
    )  # fmt: skip


# -- on a terminal


def render(doc: ComparisonDoc, console: Console, verbose: bool = False) -> None:
    """Print the differences; with ``verbose`` also equal values, every rule and every citation."""
    max_rows = None if verbose else MAX_SHOWN
    with trim_trailing_spaces(console):
        for index, line in enumerate(doc.answer):
            console.print(Text(line, style="bold" if index == 0 else ""))
        for letter, side in (("A", doc.a), ("B", doc.b)):
            console.print(Text(f"{letter}  {' '.join(side.paths)}  {_run(side.run)}", style="dim"))
        section(console, "Divergences, earliest first", _divergences(doc.partings[:max_rows]))
        section(console, "Divergences that the setup may explain", _divergences(doc.following[:max_rows]))
        for topic, title in TOPICS.items():
            rows = [row for row in doc.rows if row.topic == topic and (verbose or row.differs)]
            if not verbose:  # metrics with a time are listed as divergences
                rows = [row for row in rows if row.seconds is None or row.topic != "metrics"]
            section(console, title, _table(rows, doc.cites, verbose, console.width))
        if not verbose:
            _print_equal_and_unknown(doc, console)


def _run(run: RunDoc) -> str:
    elapsed = f", {duration(run.end - run.start)}" if run.start is not None and run.end is not None else ""
    size = f", {len(run.nodes)} nodes" if len(run.nodes) > 1 else ""
    job = f"run {run.id}" if run.id else ""
    return (" ".join(filter(None, (job, run.disposition))) + size + elapsed).removeprefix(", ")


def _divergences(rows: Iterable[ComparedRowDoc]) -> list[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for row in rows:
        position = [f"step {row.step:,.0f}"] if row.step is not None else []
        position += [_since_start(row.seconds, row.clock)] if row.seconds is not None else []
        position += [row.place] if row.place else []
        values = f": {row.text_a} in A, {row.text_b} in B" if row.cites_a and row.cites_b else ""
        text = Text((row.name or row.label) + values).append(_ids(row), style="dim")
        grid.add_row(Text("  " + ", ".join(position)), text)
    return [grid] if grid.rows else []


def _table(
    rows: Iterable[ComparedRowDoc], cites: dict[str, CiteDoc], verbose: bool, width: int
) -> list[RenderableType]:
    """A table of values. Labels are as wide as needed, up to ``MAX_LABEL_RATIO``; the values share the rest."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(max_width=max(16, int(MAX_LABEL_RATIO * width)), overflow="fold")
    for title in "AB":
        grid.add_column(title, ratio=1, overflow="fold")
    grid.add_row("", Text("A", style="dim"), Text("B", style="dim"))
    for row in rows:
        style = "yellow" if row.differs else "dim" if row.differs is None else ""
        cells = [Text(row.text_a or "-", style=style), Text(row.text_b or "-", style=style)]
        for cell, ids in zip(cells, (row.cites_a, row.cites_b), strict=True):
            cell.append(_citations(ids, cites, verbose), style="dim")
        mark = "" if not verbose else " (differs)" if row.differs else " (same)" if row.differs is False else ""
        grid.add_row(Text(f"  {row.label}{mark}"), *cells)
        if note := "; ".join(filter(None, (row.why, row.rule if verbose or row.topic in ("setup", "place") else ""))):
            grid.add_row("", Text(note, style="dim italic"), "")
    return [grid] if len(grid.rows) > 1 else []


def _citations(ids: Sequence[str], cites: dict[str, CiteDoc], verbose: bool) -> str:
    if not ids:
        return ""
    if not verbose:
        return f" [{ids[0]}]" if len(ids) == 1 else f" [{ids[0]}-{ids[-1]}]"
    return "".join(f"\n[{name}] {cites[name].where}\n  {cites[name].query or cites[name].text}" for name in ids)


def _ids(row: ComparedRowDoc) -> str:
    ids = [*row.cites_a[:1], *row.cites_b[:1]]
    return f" [{', '.join(ids)}]" if ids else ""


def _print_equal_and_unknown(doc: ComparisonDoc, console: Console) -> None:
    """Print the equal values, and those that could not be compared, in a line each."""
    equal = [row.label for row in doc.rows if row.differs is False]
    reasons: dict[str, list[str]] = {}
    for row in doc.rows:
        if row.differs is None:
            reasons.setdefault(row.why, []).append(row.label)
    unknown = [f"{', '.join(labels)}{f' ({reason})' if reason else ''}" for reason, labels in reasons.items()]
    for title, items in (("Same in both", equal), ("Not compared", unknown)):
        if items:
            console.print()
            console.print(Text(f"{title}: ", style="bold").append("; ".join(items) + ".", style="not bold dim"))
