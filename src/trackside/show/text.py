"""The verdict on a terminal: one screen, as wide as it is; colours only where they can be shown, readable without."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackside.show import citations, heading
from trackside.show.document import CiteDoc, ClaimDoc, FindingDoc, InputDoc, SecondaryDoc, VerdictDoc
from trackside.show.plot import curves
from trackside.show.waste import in_lines
from trackside.show.wording import with_stop

CLAIMS, PLACES, INPUTS = 6, 2, 3
"""Claims of the primary finding, places of one claim, and inputs that were not read: more with --verbose."""
_CULPRIT_STYLE = {"job": "bold yellow", "infrastructure": "bold red", "scheduler": "bold cyan", "none": "bold green"}


def render(doc: VerdictDoc, console: Console, verbose: bool = False) -> None:
    """Print a verdict."""
    claims = _claims_in_full if verbose else _claims
    course = curves(doc.curves, console.encoding, console.width)
    costs = in_lines(doc.waste, doc.waste_unknown) if verbose or doc.priced else []
    with trimmed(console):
        console.print(_headline(doc.primary))
        console.print(Text(heading.run(doc), style="dim"))
        section(console, "What limits this verdict", [*claims(_cited(doc.preflight), doc.cites), *_absent(doc)])
        section(console, "What the data shows", [*claims(doc.shows, doc.cites), *([] if verbose else course)])
        section(console, "How it went", course if verbose else [])
        section(console, "What it implies, and what to do", _implied(doc))
        section(console, "What it cannot decide", [_bullet(claim.text) for claim in doc.cannot_decide])
        section(console, "Consequences", [_secondary(f, doc.cites, verbose) for f in doc.consequences])
        section(console, "Warnings", [_secondary(f, doc.cites, verbose) for f in doc.warnings])
        section(console, "What it cost", [_bullet(text) for text in costs])
        section(console, "All families", [_reasons(doc) if verbose else _matrix(doc)])
        section(console, "Inputs", _inputs(doc.inputs, verbose))


def _cited(claims: Iterable[ClaimDoc]) -> list[ClaimDoc]:
    return [claim for claim in claims if claim.cites]


def _absent(doc: VerdictDoc) -> list[RenderableType]:
    """In one line what was not given."""
    absent = [claim.text for claim in doc.preflight if not claim.cites]
    return [_bullet(" ".join(map(with_stop, absent)))] if absent else []


def _headline(primary: FindingDoc) -> Text:
    text = Text()
    text.append(heading.family(primary), style="bold")
    if primary.fault_class:
        text.append(f", fault class {primary.fault_class}")
    text.append("  culprit: ")
    text.append(primary.culprit, style=_CULPRIT_STYLE.get(primary.culprit, "bold"))
    text.append(f"  confidence: {heading.confidence(primary)}")
    return text.append(f"\n{heading.headline(primary)}")


def section(console: Console, title: str, body: Sequence[RenderableType]) -> None:
    """Print a part under its title, if there is anything in it."""
    if body:
        console.print()
        console.print(Text(title.upper(), style="bold"))
        console.print(Group(*body))


def _bullet(text: str | Text, mark: str = "\N{MIDDLE DOT}", style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(ratio=1)
    grid.add_row(Text(mark, style=style), Text(with_stop(text)) if isinstance(text, str) else text)
    return grid


def _claims(claims: Sequence[ClaimDoc], cites: dict[str, CiteDoc]) -> list[RenderableType]:
    """A sentence each with where to look; a line that is cited and not quoted beneath it."""
    body = [_claim(claim, cites) for claim in claims[:CLAIMS]]
    if len(claims) > CLAIMS:
        body.append(Padding.indent(Text(f"and {len(claims) - CLAIMS} more (--verbose)", style="dim"), 4))
    return body


def _claim(claim: ClaimDoc, cites: dict[str, CiteDoc]) -> RenderableType:
    text = Text(with_stop(claim.text)).append(_places(claim.cites, cites))
    if not (quoted := citations.unquoted(claim, cites)):
        return _bullet(text)
    return Group(_bullet(text), Padding.indent(Text(quoted, style="dim", no_wrap=True, overflow="ellipsis"), 6))


def _places(names: Sequence[str], cites: dict[str, CiteDoc]) -> Text:
    places = citations.by_place(names, cites)
    told = [f"[{numbers}] {where}" for numbers, where in places[:PLACES]]
    if len(places) > PLACES:
        told.append(f"and {len(places) - PLACES} more")
    return Text("".join(f" {each}" for each in told), style="dim")


def _claims_in_full(claims: Sequence[ClaimDoc], cites: dict[str, CiteDoc]) -> list[RenderableType]:
    return [
        Group(_bullet(claim.text), *(Padding.indent(_cite(name, cites[name]), 4) for name in claim.cites))
        for claim in claims
    ]


def _cite(name: str, cite: CiteDoc) -> Text:
    """One citation in full: where to look, what stands there, and the query that gives it again."""
    text = Text(f"[{citations.number(name)}] {citations.place(cite)}", style="dim")
    if citations.is_measured(cite):
        over = citations.window(cite)
        text.append(f", {over}" if over else "").append(f" = {citations.figure(cite)}", style="not dim")
        return text.append(f"\n     {cite.where}\n     {cite.query}")
    line = " ".join(cite.text.split())
    return text.append(f"  {line or cite.value}", style="not dim").append(f"\n     {cite.query}")


def _implied(doc: VerdictDoc) -> list[RenderableType]:
    body: list[RenderableType] = [_bullet(claim.text) for claim in doc.implies]
    for action in doc.actions:
        body.append(_bullet(action.text, "\N{RIGHTWARDS ARROW}", "bold"))
        if action.command is not None:
            body.append(Padding.indent(Text(f"$ {action.command}", style="cyan"), 6))
    return body


def _secondary(finding: SecondaryDoc, cites: dict[str, CiteDoc], verbose: bool) -> RenderableType:
    names = list(dict.fromkeys(name for claim in finding.shows for name in claim.cites))
    text = Text(f"{finding.family} {finding.id} ({finding.certainty}): ")
    text.append("; ".join(claim.text for claim in finding.shows[: None if verbose else 1]))
    if not verbose:
        return _bullet(text.append(_places(names, cites)))
    return Group(_bullet(text), *(Padding.indent(_cite(name, cites[name]), 4) for name in names))


def _matrix(doc: VerdictDoc) -> RenderableType:
    """Every family by what became of it."""
    found: list[FindingDoc] = [doc.primary, *doc.consequences, *doc.warnings]
    rows = (
        ("found", [(f.family, f.id) for f in found if f.outcome == "found"], "bold"),
        ("unknown", [(f.family, f.id) for f in doc.unknown], "yellow"),
        ("ruled out", [(f.family, f.id) for f in doc.ruled_out], "green"),
    )
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=11, justify="right", no_wrap=True)
    grid.add_column(ratio=1)
    for title, families, style in rows:
        if families:
            told = [Text(f"{code} {slug}", no_wrap=True) for code, slug in sorted(set(families))]
            grid.add_row(Text(title, style=style), Columns(told, padding=(0, 2)))
    return grid


def _reasons(doc: VerdictDoc) -> RenderableType:
    """Why each other family is not it, or can't be told and what would settle it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(min_width=24, no_wrap=True)
    grid.add_column(ratio=1)
    rows = [(f.family, f.id, "ruled out: " + f.because, "green") for f in doc.ruled_out]
    for open_ in doc.unknown:
        collect = f" \N{RIGHTWARDS ARROW} collect {'; '.join(open_.collect)}" if open_.collect else ""
        rows.append((open_.family, open_.id, f"unknown: {'; '.join(open_.missing)}{collect}", "yellow"))
    for code, slug, why, style in sorted(rows):
        grid.add_row(Text(code, style=style), Text(slug), Text(why, style="dim"))
    return grid


def _inputs(inputs: Iterable[InputDoc], verbose: bool) -> list[RenderableType]:
    rows = list(inputs)
    well = [row for row in rows if row.status == "read"]
    others = rows if verbose else [row for row in rows if row.status != "read"]
    shown = others[: 200 if verbose else INPUTS]
    body: list[RenderableType] = [_bullet(f"{len(well)} of {len(rows)} file{'' if len(rows) == 1 else 's'} read")]
    body += [_bullet(f"{row.path}: {row.status}, {row.format or 'no format'}; {row.note}") for row in shown]
    if len(others) > len(shown):
        body.append(_bullet(f"and {len(others) - len(shown)} more ('trackside inputs' lists all)"))
    return body


def inputs_table(inputs: Iterable[InputDoc], console: Console) -> None:
    """``trackside inputs``: what each file was taken for, and why."""
    rows = [
        (row.path, row.format or "-", Text(row.status, style="" if row.status == "read" else "yellow"),
         f"{row.rows:,}", row.note)
        for row in inputs
    ]  # fmt: skip
    print_table(("file", "format", "status", "rows", "why"), rows, console, right=("rows",))


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str | Text]], console: Console, right: Sequence[str]
) -> None:
    """Print rows of text under their titles; ``right``: the titles of columns of figures."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
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
