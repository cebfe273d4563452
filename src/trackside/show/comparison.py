"""Two runs beside each other, as published (``trackside.comparison/1``) and on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from trackside.compare.compare import Comparison
from trackside.compare.setup import sizes, unlike
from trackside.compare.side import Row
from trackside.compare.slowdown import Slowdown, pace
from trackside.compare.training import TIME_HELD
from trackside.evidence import Value
from trackside.settings.price import NO_PRICE, Price
from trackside.show import heading
from trackside.show.document import CiteDoc, Cites, FindingDoc, Json, RunDoc, VerdictDoc, document, plain
from trackside.show.sanitize import encodable
from trackside.show.text import section, trimmed
from trackside.show.wording import duration, word

SCHEMA = "trackside.comparison/1"
TOPICS = {
    "outcome": "How they ended",
    "place": "Where they ran",
    "setup": "How they were set up",
    "alone": "Printed by one log only",
    "start": "How they started",
    "training": "How they trained",
    "checkpoints": "Checkpoints",
    "metrics": "What their GPUs did",
}
"""Topic of a row -> its heading."""
SHOWN = 5
"""Partings, and values of one cell, that are shown."""
WIDEST, SHORT = 60, 24
"""Characters of a value in the first lines; of a setting there."""
LABELS = 0.4
"""Of the width of a table, at most."""
SAME_INPUT = "A and B are the same input: it is compared with itself."


class SideDoc(msgspec.Struct, frozen=True):
    """One of the two runs."""

    paths: list[str]
    run: RunDoc
    primary: FindingDoc


class RowDoc(msgspec.Struct, frozen=True):
    """One thing of both runs. ``differs`` is null where they can't be compared, and ``why`` says why."""

    topic: str
    label: str
    a: Json
    b: Json
    unit: str
    differs: bool | None
    rule: str
    why: str
    cites_a: list[str]
    cites_b: list[str]
    step: float | None = None
    seconds: float | None = None
    """Since the start of the run: from where on they differ."""
    place: str = ""
    """The same, where an epoch tells it."""
    text_a: str = ""
    text_b: str = ""
    """The values in words."""
    name: str = ""
    """Of what has a course: the label without where the difference begins, or up to where they go together."""
    follows: str = ""
    """What was set up differently and may bring the difference along."""


class SlowdownDoc(msgspec.Struct, frozen=True):
    """What the slower run took longer for the same steps. Money is GPU-hours times the price, or null."""

    slower: str
    """a or b"""
    gpu_hours: float
    formula: str
    assumption: str
    cites_a: list[str]
    cites_b: list[str]
    cost: float | None = None
    currency: str | None = None
    cost_formula: str = ""


class ComparisonDoc(msgspec.Struct, frozen=True):
    """Two runs beside each other. Ids of citations begin with a or b, as the run that they are of."""

    schema: str
    answer: list[str]
    """What differs, where they part, and what was set up differently: a sentence each."""
    a: SideDoc
    b: SideDoc
    rows: list[RowDoc]
    partings: list[RowDoc]
    """Where they part, the earliest first."""
    cites: dict[str, CiteDoc]
    version: str
    following: list[RowDoc] = []
    """Where they part as they were set up differently, the earliest first."""
    slowdown: SlowdownDoc | None = None


def comparison(
    found: Comparison, paths: tuple[Sequence[str], Sequence[str]] = ((), ()), price: Price = NO_PRICE,
    same: bool = False,
) -> ComparisonDoc:  # fmt: skip
    """A comparison in its published form; ``paths``: the inputs of each run as the user gave them, ``same``: whether
    these are one and the same."""
    cites = Cites()
    docs = [document(side.verdict) for side in (found.a, found.b)]
    rows = [_row(row, cites) for row in found.rows]
    partings = [_row(row, cites) for row in found.partings]
    along = [_row(row, cites) for row in found.following]
    slowdown = _slowdown(found.slowdown, cites, price)
    sides = [
        SideDoc([encodable(path) for path in given], doc.run, doc.primary)
        for doc, given in zip(docs, paths, strict=True)
    ]
    return ComparisonDoc(
        schema=SCHEMA,
        answer=[*([SAME_INPUT] if same else []), *answer(found, docs, slowdown)],
        a=sides[0],
        b=sides[1],
        rows=rows,
        partings=partings,
        cites=cites.docs(),
        version=found.a.verdict.version,
        following=along,
        slowdown=slowdown,
    )


def _slowdown(found: Slowdown | None, cites: Cites, price: Price) -> SlowdownDoc | None:
    if found is None:
        return None
    mine, others = [found.gpus, found.steps, found.slow], [found.fast]
    a, b = (mine, others) if found.letter == "A" else (others, mine)
    figures = [word(each.number) for each in (found.steps, found.slow, found.fast)]
    held = (
        " The time of a step is the time held over the steps done: stops and the start-up count." if found.held else ""
    )
    return SlowdownDoc(
        slower=found.letter.lower(),
        gpu_hours=found.hours,
        formula=f"{word(found.gpus.value, found.gpus.unit)} x {figures[0]} steps x ({figures[1]} s - {figures[2]} s) / "
        f"3,600 s an hour = {found.hours:,.10g} GPU-hours",
        assumption="A step of one is as much work as a step of the other." + held,
        cites_a=[name for value in a for name in cites.ids(value.cites, "a")],
        cites_b=[name for value in b for name in cites.ids(value.cites, "b")],
        cost=price.of(found.hours),
        currency=price.currency if price.price_per_gpu_hour else None,
        cost_formula=price.formula(found.hours),
    )


def answer(found: Comparison, docs: Sequence[VerdictDoc], slowdown: SlowdownDoc | None = None) -> list[str]:
    """What a reader wants first."""
    compared = [row for row in found.rows if row.differs is not None]
    if not found.differing:
        untold = len(found.rows) - len(compared)
        open_ = f"; {untold} could not be compared" if untold else ""
        return [f"No difference found in {len(compared)} things that were compared{open_}."]
    told = [*_unlike(found), _ended(docs), *_pace(found, slowdown is None), *_price(slowdown)]
    if first := found.first:
        told.append(f"They part {_where(first[0])}: {'; '.join(map(_both, first[:3]))}.")
    elif not found.following:
        told.append(_together(found))
    told += _following(found.following)
    if found.setup:
        rows = [_in_figures(row) for row in found.setup]
        more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        told.append(f"Set up differently: {', '.join(rows[:SHOWN])}{more}.")
    elif any(row.topic == "setup" and row.label != "framework" and row.differs is False for row in found.rows):
        told.append("No difference was found in what logs and records tell of how they were set up.")
    return told


def _ended(docs: Sequence[VerdictDoc]) -> str:
    words = []
    for doc in docs:
        where = heading.where(doc.primary)
        words.append(f"{heading.family(doc.primary)}" + (f", {where}" if where else ""))
    if words[0] == words[1]:
        return f"Both: {words[0]}."
    return f"A: {words[0]}. B: {words[1]}."


def _unlike(found: Comparison) -> list[str]:
    """That they don't look comparable, and why."""
    rows = unlike(found.rows)
    if not rows:
        return []
    why = ", ".join(map(_in_figures, rows[:SHOWN]))
    return [f"These two don't look comparable: they differ in {why}. What follows may be for that alone."]


def _following(rows: Sequence[Row]) -> list[str]:
    """What parts as the runs were set up differently, by what it follows from."""
    causes: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        causes.setdefault(tuple(map(_in_figures, row.follows)), []).append(row)
    return [
        f"They differ in {', '.join(why)}, which may be why these part: "
        + "; ".join(f"{row.name or row.label} {_where(row)}" for row in together[:SHOWN])
        + "."
        for why, together in causes.items()
    ]


def _in_figures(row: Row) -> str:
    """``steps planned (548 / 574)``: a unit that the label names is not said again."""
    told = [_brief(value if value is None or value.unit not in row.label else replace(value, unit=""), SHORT)
            for value in (row.a, row.b)]  # fmt: skip
    return f"{row.label} ({' / '.join(told)})"


def _price(doc: SlowdownDoc | None) -> list[str]:
    """What the slower one's longer steps came to."""
    if doc is None:
        return []
    money = "" if doc.cost is None else f" ({doc.cost:,.2f} {doc.currency})"
    other = "A" if doc.slower == "b" else "B"
    return [f"That is {doc.gpu_hours:g} GPU-hours{money} more than at {other}'s pace: {doc.formula}. {doc.assumption}"]


def _together(found: Comparison) -> str:
    """That they don't part, as far as both tell."""
    alike = [row.name for row in found.rows if row.differs is False and row.name]
    if not alike:
        return "Where they part is not told: too few steps and times are told by both."
    return f"Where they part is not told; at equal steps they go together, up to {', '.join(alike)}."


def _pace(found: Comparison, alone: bool) -> list[str]:
    """How many times as long one took for the same; ``alone``: no further sentence says how that is counted."""
    row = pace(found.rows)
    if row is None or row.a is None or row.b is None or not row.differs:
        return []
    slow, ratio = ("B", row.b.number / row.a.number) if row.b.number > row.a.number else (
        "A", row.a.number / row.b.number)  # fmt: skip
    told = f"{slow} took {ratio:.2f} times as long a step: {_word(row.a)} in A, {_word(row.b)} in B"
    if alone and row.label == TIME_HELD:
        told += ", by the time held over the steps done, so that stops count"
    differing = sizes(found.rows)
    if not differing:
        return [f"{told}."]
    why = ", ".join(map(_in_figures, differing[:3]))
    return [f"{told}; but a step of one is not a step of the other, as they differ in {why}."]


def _where(row: Row) -> str:
    """Where a difference begins."""
    after = "" if row.seconds is None else f"{duration(row.seconds)} after the start"
    if row.step is None:
        return after or f"at {row.place}"
    return f"at step {row.step:,.0f}" + (f", {after}" if after else "")


def _both(row: Row) -> str:
    if row.a is None or row.b is None:
        return row.label
    return f"{row.name or row.label} {_brief(row.a)} in A, {_brief(row.b)} in B"


def _brief(value: Value | None, most: int = WIDEST) -> str:
    told = _word(value)
    return told if len(told) <= most else told[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _word(value: Value | None) -> str:
    return "" if value is None else word(value.value, value.unit)


def _row(row: Row, cites: Cites) -> RowDoc:
    unit = next((value.unit for value in (row.a, row.b) if value is not None), "")
    return RowDoc(
        topic=row.topic, label=row.label, a=plain(row.a.value if row.a else None),
        b=plain(row.b.value if row.b else None), unit=unit, differs=row.differs,
        rule=row.rule, why=row.why, cites_a=cites.ids(row.a.cites if row.a else (), "a"),
        cites_b=cites.ids(row.b.cites if row.b else (), "b"), step=row.step,
        seconds=row.seconds, place=row.place, text_a=_word(row.a), text_b=_word(row.b),
        name=row.name, follows=", ".join(map(_in_figures, row.follows)),
    )  # fmt: skip


# -- on a terminal


def render(doc: ComparisonDoc, console: Console, verbose: bool = False) -> None:
    """Print a comparison: what differs; with ``verbose`` what doesn't as well, every rule and citation."""
    most = None if verbose else SHOWN
    with trimmed(console):
        for place, line in enumerate(doc.answer):
            console.print(Text(line, style="bold" if place == 0 else ""))
        for letter, side in (("A", doc.a), ("B", doc.b)):
            console.print(Text(f"{letter}  {' '.join(side.paths)}  {_run(side.run)}", style="dim"))
        section(console, "Where they part, the earliest first", _partings(doc.partings[:most]))
        section(console, "What may follow from how they were set up", _partings(doc.following[:most]))
        for topic, title in TOPICS.items():
            rows = [row for row in doc.rows if row.topic == topic and (verbose or row.differs)]
            if not verbose:  # said above
                rows = [row for row in rows if row.seconds is None or row.topic != "metrics"]
            section(console, title, _table(rows, doc.cites, verbose, console.width))
        if not verbose:
            _rest(doc, console)


def _run(run: RunDoc) -> str:
    lasted = f", {duration(run.end - run.start)}" if run.start is not None and run.end is not None else ""
    size = f", {len(run.nodes)} nodes" if len(run.nodes) > 1 else ""
    return f"run {run.id or ''} {run.disposition or ''}{size}{lasted}".replace("  ", " ").strip()


def _partings(rows: Iterable[RowDoc]) -> list[RenderableType]:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    for row in rows:
        told = [f"step {row.step:,.0f}"] if row.step is not None else []
        told += [f"{duration(row.seconds)} after the start"] if row.seconds is not None else []
        told += [row.place] if row.place else []
        values = f": {row.text_a} in A, {row.text_b} in B" if row.cites_a and row.cites_b else ""
        text = Text((row.name or row.label) + values).append(_ids(row), style="dim")
        grid.add_row(Text("  " + ", ".join(told)), text)
    return [grid] if grid.rows else []


def _table(rows: Iterable[RowDoc], cites: dict[str, CiteDoc], verbose: bool, width: int) -> list[RenderableType]:
    """The labels as wide as they are, up to a share of the terminal; the values share the rest."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(max_width=max(16, int(LABELS * width)), overflow="fold")
    for title in "AB":
        grid.add_column(title, ratio=1, overflow="fold")
    grid.add_row("", Text("A", style="dim"), Text("B", style="dim"))
    for row in rows:
        style = "yellow" if row.differs else "dim" if row.differs is None else ""
        cells = [Text(row.text_a or "-", style=style), Text(row.text_b or "-", style=style)]
        for cell, ids in zip(cells, (row.cites_a, row.cites_b), strict=True):
            cell.append(_places(ids, cites, verbose), style="dim")
        mark = "" if not verbose else " (differs)" if row.differs else " (same)" if row.differs is False else ""
        grid.add_row(Text(f"  {row.label}{mark}"), *cells)
        if note := "; ".join(filter(None, (row.why, row.rule if verbose or row.topic in ("setup", "place") else ""))):
            grid.add_row("", Text(note, style="dim italic"), "")
    return [grid] if len(grid.rows) > 1 else []


def _places(ids: Sequence[str], cites: dict[str, CiteDoc], verbose: bool) -> str:
    if not ids:
        return ""
    if not verbose:
        return f" [{ids[0]}]" if len(ids) == 1 else f" [{ids[0]}-{ids[-1]}]"
    return "".join(f"\n[{name}] {cites[name].where}\n  {cites[name].query or cites[name].text}" for name in ids)


def _ids(row: RowDoc) -> str:
    ids = [*row.cites_a[:1], *row.cites_b[:1]]
    return f" [{', '.join(ids)}]" if ids else ""


def _rest(doc: ComparisonDoc, console: Console) -> None:
    """What is alike, and what could not be compared, in a line each."""
    alike = [row.label for row in doc.rows if row.differs is False]
    reasons: dict[str, list[str]] = {}
    for row in doc.rows:
        if row.differs is None:
            reasons.setdefault(row.why, []).append(row.label)
    untold = [f"{', '.join(labels)}{f' ({why})' if why else ''}" for why, labels in reasons.items()]
    for title, told in (("The same", alike), ("Not compared", untold)):
        if told:
            console.print()
            console.print(Text(f"{title}: ", style="bold").append("; ".join(told) + ".", style="not bold dim"))
