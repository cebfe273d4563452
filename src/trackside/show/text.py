"""The verdict on a terminal: width-aware, colours only where they can be shown, readable without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackside.show.document import CiteDoc, ClaimDoc, FindingDoc, InputDoc, SecondaryDoc, VerdictDoc
from trackside.show.plot import curves
from trackside.show.wording import duration, measured, moment, ranges, span, word

CITES_SHOWN = 2
"""Citations under a claim unless --verbose."""
TIMES = ("submit", "eligible", "start", "end")
QUOTED = 80
"""Characters by which a quotation in a claim is recognised."""
_CULPRIT_STYLE = {"job": "bold yellow", "infrastructure": "bold red", "scheduler": "bold cyan", "none": "bold green"}


def render(doc: VerdictDoc, console: Console, verbose: bool = False) -> None:
    """Print a verdict."""
    with trimmed(console):
        _render(doc, console, verbose)


def _render(doc: VerdictDoc, console: Console, verbose: bool) -> None:
    console.print(_headline(doc.primary))
    console.print(Text(_run_line(doc), style="dim"))
    _section(console, "What limits this verdict", _limits(doc, verbose))
    _section(console, "What the data shows", [_claim(c, doc.cites, verbose) for c in doc.shows])
    _section(console, "How it went", curves(doc.curves, console.encoding, console.width))
    implies: list[RenderableType] = [_bullet(claim.text) for claim in doc.implies]
    for action in doc.actions:
        implies.append(_bullet(action.text, "\N{RIGHTWARDS ARROW}", "bold"))
        if action.command is not None:
            implies.append(Padding.indent(Text(f"$ {action.command}", style="cyan"), 6))
    _section(console, "What it implies, and what to do", implies)
    _section(console, "What it cannot decide", [_bullet(claim.text) for claim in doc.cannot_decide])
    _section(console, "Consequences", [_secondary(f, doc.cites, verbose) for f in doc.consequences])
    _section(console, "Warnings", [_secondary(f, doc.cites, verbose) for f in doc.warnings])
    _section(console, "Every other family", [_families(doc, verbose)])
    _section(console, "Inputs", _inputs(doc.inputs, verbose))


def _limits(doc: VerdictDoc, verbose: bool) -> list[RenderableType]:
    """What preflight says: each with its citation, and in one line what was not given."""
    limits = [_claim(claim, doc.cites, verbose) for claim in doc.preflight if claim.cites]
    absent = [claim.text for claim in doc.preflight if not claim.cites]
    return [*limits, *([_bullet(" ".join(map(_stop, absent)))] if absent else [])]


def _headline(primary: FindingDoc) -> Text:
    text = Text()
    what = f"{primary.family} {primary.id}" + (
        f" ({primary.variant})" if primary.variant not in (None, primary.id) else ""
    )
    text.append(what, style="bold")
    if primary.fault_class:
        text.append(f", fault class {primary.fault_class}")
    text.append("  culprit: ")
    text.append(primary.culprit, style=_CULPRIT_STYLE.get(primary.culprit, "bold"))
    confidence = "" if primary.confidence is None else f"{primary.confidence:.2f}"
    text.append(f"  confidence: {confidence} ({primary.certainty or primary.outcome})")
    where = []
    if primary.ranks:
        where.append(f"rank{'s' if len(primary.ranks) > 1 else ''} {ranges(primary.ranks)}")
    if primary.nodes:
        where.append(f"node{'s' if len(primary.nodes) > 1 else ''} {word(tuple(primary.nodes))}")
    if primary.gpus:
        where.append(f"GPU {word(tuple(gpu.removeprefix(':') for gpu in primary.gpus))}")
    text.append(f"\n{primary.title}" + (f" \N{EM DASH} {'; '.join(where)}" if where else ""))
    return text


def _run_line(doc: VerdictDoc) -> str:
    run = doc.run
    parts = [" ".join(part for part in (f"run {run.id}" if run.id else "run", run.name) if part)]
    if run.disposition:
        ended = f", exit {run.exit_code}" if run.exit_code else ""
        parts.append(run.disposition + ended + (f", signal {run.signal}" if run.signal else ""))
    if run.nodes:
        parts.append(f"{len(run.nodes)} node{'s' if len(run.nodes) > 1 else ''}")
    if run.n_ranks:
        parts.append(f"{run.n_ranks} rank{'s' if run.n_ranks > 1 else ''}")
    if run.start is not None and run.end is not None and run.end >= run.start:
        parts.append(f"{moment(run.start)}, {duration(run.end - run.start)}")
    if run.framework:
        parts.append(run.framework)
    if doc.progress is not None:
        first, last = doc.progress.first, doc.progress.last
        told = ["not printed" if point.loss is None else str(point.loss) for point in (first, last)]
        losses = f", loss {told[0]} \N{RIGHTWARDS ARROW} {told[1]}" if first.loss is not None else ""
        count = doc.progress.points
        parts.append(f"{count} training point{'' if count == 1 else 's'}{losses if count > 1 else ''}")
    if doc.waste is not None:
        parts.append(f"{doc.waste.gpu_hours:g} GPU-hours")
    return " \N{MIDDLE DOT} ".join(parts)


def _section(console: Console, title: str, body: Sequence[RenderableType]) -> None:
    if body:
        console.print()
        console.print(Text(title.upper(), style="bold"))
        console.print(Group(*body))


def _bullet(text: str, mark: str = "\N{MIDDLE DOT}", style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(ratio=1)
    grid.add_row(Text(mark, style=style), Text(_stop(text)))
    return grid


def _claim(claim: ClaimDoc, cites: dict[str, CiteDoc], verbose: bool) -> RenderableType:
    parts: list[RenderableType] = [_bullet(claim.text)]
    if verbose:
        parts += [Padding.indent(_cite([name], cites[name], True), 4) for name in claim.cites]
        return Group(*parts)
    places: dict[tuple[str, str], list[str]] = {}
    for name in claim.cites:
        cite = cites[name]
        places.setdefault((cite.where, cite.query if _is_measured(cite) else cite.text), []).append(name)
    shown = list(places.values())[:CITES_SHOWN]
    parts += [Padding.indent(_cite(names, cites[names[0]], False, claim.text), 4) for names in shown]
    if hidden := len(claim.cites) - sum(map(len, shown)):
        parts.append(Padding.indent(Text(f"and {hidden} more (--verbose)", style="dim"), 4))
    return Group(*parts)


def _cite(names: Sequence[str], cite: CiteDoc, verbose: bool, claim: str = "") -> Text:
    """Where to look, and what stands there: the line of a log, the field of a record. The line is left out where
    the claim above quotes it already."""
    if _is_measured(cite):
        return _measured(names, cite, verbose)
    text = Text(f"[{', '.join(names)}] {cite.where}", style="dim")
    line = " ".join(cite.text.split())
    if verbose:
        text.append(f"  {line or cite.value}", style="not dim")
        return text.append(f"\n     {cite.query}")
    if not line or (cite.plane == "scheduler" and " ".join(str(cite.value).split()) != line):
        return text.append(f" = {_field(cite)}", style="not dim")
    return text if line[:QUOTED] in claim else text.append(f"  {line[:160]}", style="not dim")


def _is_measured(cite: CiteDoc) -> bool:
    """Of what a server of metrics failed to say an event tells, in the same plane."""
    return cite.query.startswith("metric(")


def _measured(names: Sequence[str], cite: CiteDoc, verbose: bool) -> Text:
    """A measurement: what was measured of whom and when, how it was reduced, and the value."""
    what, unit = measured(cite.query)
    text = Text(f"[{', '.join(names)}] {what}", style="dim")
    if cite.window is not None:
        text.append(f", {span(cite.window)}")
    text.append(f" = {word(cite.value, unit and (cite.unit or unit))}", style="not dim")
    return text.append(f"\n     {cite.where}\n     {cite.query}") if verbose else text


def _field(cite: CiteDoc) -> str:
    """A record's value, its times and durations readable; other values stand as they were read."""
    field = cite.where.rpartition(" ")[2]
    if isinstance(cite.value, float) and (field in TIMES or field.endswith("_time")):
        return moment(cite.value)
    if isinstance(cite.value, float) and field.endswith("_s"):
        return duration(cite.value)
    return f"{cite.value} {cite.unit}".rstrip()


def _secondary(finding: SecondaryDoc, cites: dict[str, CiteDoc], verbose: bool) -> RenderableType:
    claims = "; ".join(claim.text for claim in finding.shows)
    names = list(dict.fromkeys(name for claim in finding.shows for name in claim.cites))
    head = _bullet(f"{finding.family} {finding.id} ({finding.certainty}): {claims} [{', '.join(names[:4])}]")
    if not verbose:
        return head
    return Group(head, *(Padding.indent(_cite([name], cites[name], True), 4) for name in names))


def _families(doc: VerdictDoc, verbose: bool) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(min_width=24, no_wrap=True)
    grid.add_column(ratio=1)
    rows = [(f.family, f.id, "ruled out: " + f.because, "green") for f in doc.ruled_out]
    for open_ in doc.unknown:
        missing = "; ".join(open_.missing)
        collect = f" \N{RIGHTWARDS ARROW} collect {'; '.join(open_.collect)}" if verbose and open_.collect else ""
        rows.append((open_.family, open_.id, f"unknown: {missing}{collect}", "yellow"))
    for code, slug, why, style in sorted(rows):
        grid.add_row(Text(code, style=style), Text(slug), Text(why, style="dim"))
    return grid


def _inputs(inputs: Iterable[InputDoc], verbose: bool) -> list[RenderableType]:
    rows = list(inputs)
    well = [row for row in rows if row.status == "read"]
    shown = rows if verbose else [row for row in rows if row.status != "read"]
    body: list[RenderableType] = [_bullet(f"{len(well)} of {len(rows)} files read")]
    body += [_bullet(f"{row.path}: {row.status}, {row.format or 'no format'}; {row.note}") for row in shown[:200]]
    return body


def _stop(text: str) -> str:
    """A sentence with its full stop; a line that was cut short ends as it is."""
    return text if text.endswith((".", "!", "?", ":", "\N{HORIZONTAL ELLIPSIS}")) else text + "."


def inputs_table(inputs: Iterable[InputDoc], console: Console) -> None:
    """``trackside inputs``: what each file was taken for, and why."""
    table = Table(box=None, pad_edge=False)
    for title in ("file", "format", "status", "rows", "why"):
        table.add_column(title, justify="right" if title == "rows" else "left", overflow="fold")
    for row in inputs:
        style = "" if row.status == "read" else "yellow"
        table.add_row(
            Text(row.path), Text(row.format or "-"), Text(row.status, style=style), f"{row.rows:,}", Text(row.note)
        )
    with trimmed(console):
        console.print(table)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """Where no terminal shows it, without the blanks that fill up each line."""
    if console.is_terminal:
        yield
        return
    with console.capture() as told:
        yield
    console.file.write("\n".join(line.rstrip() for line in told.get().split("\n")))
