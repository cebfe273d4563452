"""Everything of a verdict as terminal text (``--verbose``), wrapped to the console's width. Readable without color."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trackside.read.detect import formats
from trackside.show import citations, heading
from trackside.show.document import CiteDoc, ClaimDoc, FindingDoc, InputDoc, SecondaryDoc, VerdictDoc
from trackside.show.plot import curves
from trackside.show.waste import in_lines
from trackside.wording import ranges, with_stop, word

MAX_INPUTS = 200
MAX_TABLE_WIDTH = 4_000
"""Columns of a table that is not printed to a terminal."""
MAX_LINES_OF_FILE = 4
"""Lines of one file that a claim cites one by one; of more, the first is quoted and the others are listed by number."""
_FIELD = re.compile(r"(?<=\d) \w+\Z")
"""The field of a record, at the end of a location."""
_SHELL_PART = re.compile(r"""(?:#.*|(?:[^\s'"\\]|\\.|'[^']*(?:'|\Z)|"(?:[^"\\]|\\.)*(?:"|\Z))+|\\)""", re.DOTALL)
"""A part of a shell command without a space outside quotes, or a comment."""


def render(doc: VerdictDoc, console: Console) -> None:
    """Print a verdict with its citations, each at the first claim that it supports."""
    cited = _CitationPrinter(doc.cites)
    with trim_trailing_spaces(console):
        console.print(Text(heading.headline(doc.primary, doc.run), style="bold"))
        console.print(classification(doc.primary, heading.confidence(doc.primary)))
        if run_line := heading.run(doc):
            console.print(Text(run_line, style="dim"))
        if unsettled := heading.unsettled(doc):
            console.print(Text(unsettled, style="yellow"))
        section(console, heading.EVIDENCE.title, _claims(doc.shows, cited))
        section(console, "Metrics over time", curves(doc.curves, console.encoding, console.width))
        with_citations = [claim for claim in doc.preflight if claim.cites]
        cautions = [*_claims(with_citations, cited), *_missing_inputs(doc)]
        section(console, heading.CAUTIONS.title, cautions)
        section(console, heading.MEANING.title, [_bullet(claim.text) for claim in doc.implies])
        section(console, heading.ACTIONS.title, _actions(doc, console.width))
        section(console, heading.CONSEQUENCES.title, [_secondary(finding, doc, cited) for finding in doc.consequences])
        warnings = [line for finding in doc.warnings for line in _warning(finding, doc, cited, console.width)]
        section(console, heading.WARNINGS.title, warnings)
        earlier = heading.earlier_runs(doc)
        section(console, heading.EARLIER.title, [_bullet(text) for text in earlier])
        section(console, heading.COST.title, [_bullet(text) for text in in_lines(doc.waste, doc.waste_unknown)])
        section(console, heading.UNDECIDED.title, [_bullet(claim.text) for claim in doc.cannot_decide])
        section(console, heading.FAMILIES.title, [_reasons(doc)])
        section(console, "Inputs", _inputs(doc.inputs))


def _missing_inputs(doc: VerdictDoc) -> list[RenderableType]:
    """One line about missing inputs: the cautions without citations."""
    texts = [claim.text for claim in doc.preflight if not claim.cites]
    return [_bullet(" ".join(map(with_stop, texts)))] if texts else []


def classification(finding: FindingDoc, certainty: str) -> Text:
    """Who has to act, the family, how sure it is, in one line."""
    owner = heading.owner(finding)
    text = Text("owner: ").append(owner, style=heading.STYLES.get(finding.culprit, "bold"))
    return text.append("".join(heading.SEPARATOR + part for part in (heading.kind(finding), certainty) if part))


def section(console: Console, title: str, body: Sequence[RenderableType]) -> None:
    """Print a section under its title; nothing if it is empty."""
    if body:
        console.print()
        console.print(Text(title.upper(), style="bold"))
        console.print(Group(*body), crop=False)  # a command may be wider than the console


def _bullet(text: str | Text, mark: str = "\N{MIDDLE DOT}", style: str = "") -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(ratio=1)
    grid.add_row(Text(mark, style=style), Text(with_stop(text)) if isinstance(text, str) else text)
    return grid


def _claims(claims: Sequence[ClaimDoc], cited: _CitationPrinter) -> list[RenderableType]:
    return [Group(_bullet(claim.text), *cited(claim.cites)) for claim in claims]


class _CitationPrinter:
    """Gives the citations of claims as text: each in full once, later only its number."""

    def __init__(self, cites: Mapping[str, CiteDoc]) -> None:
        self._cites = cites
        self._printed: set[str] = set()

    def __call__(self, names: Sequence[str]) -> list[RenderableType]:
        """The citations of one claim: a line of an input once, however many of its values are cited."""
        new = [name for name in dict.fromkeys(names) if name not in self._printed]
        repeated = [name for name in dict.fromkeys(names) if name in self._printed]
        self._printed.update(new)
        by_file: dict[str, dict[str, list[str]]] = {}
        for name in new:
            cite = self._cites[name]
            has_line = not citations.is_measured(cite) and not citations.is_count(cite)
            place = _FIELD.sub("", cite.where) if has_line else name
            by_file.setdefault(place.rpartition(":")[0] or place, {}).setdefault(place, []).append(name)
        texts: list[Text] = []
        for file, lines in by_file.items():
            shown = list(lines.values())
            if len(shown) > MAX_LINES_OF_FILE:
                others = [place.rpartition(":")[2] for place in lines][1:]
                shown, folded = shown[:1], [name for names in shown[1:] for name in names]
                where = ranges(list(map(int, others))) if all(map(str.isdecimal, others)) else ", ".join(others)
                texts += [*map(self._line, shown), Text(f"{_numbers(folded)} {file}: lines {where}", style="dim")]
            else:
                texts += map(self._line, shown)
        if repeated:
            texts.append(Text(f"{_numbers(repeated)} see above", style="dim"))
        return [Padding.indent(text, 4) for text in texts]

    def _line(self, names: Sequence[str]) -> Text:
        """Citations of one line or measurement: the location, the line or value found there, and the queries."""
        cite = self._cites[names[0]]
        location = citations.location(cite) if len(names) == 1 else _FIELD.sub("", cite.where)
        text = Text(f"{_numbers(names)} {location}", style="dim")
        if citations.is_measured(cite):
            window = citations.window(cite)
            text.append(f", {window}" if window else "").append(f" = {citations.figure(cite)}", style="not dim")
            return text.append(f"\n     {cite.where}\n     {cite.query}")
        line = " ".join(cite.text.split())
        text.append(f"  {line or citations.figure(cite)}", style="not dim")
        for value in citations.values_not_in_line(line, [self._cites[name] for name in names]) if line else ():
            text.append(f"\n     = {value}", style="not dim")
        return text.append("".join(f"\n     {self._cites[name].query}" for name in names))


def _numbers(names: Iterable[str]) -> str:
    return f"[{ranges([int(citations.number(name)) for name in names])}]"


def _actions(doc: VerdictDoc, width: int) -> list[RenderableType]:
    body: list[RenderableType] = []
    for action in doc.actions:
        body.append(_bullet(action.text, "\N{RIGHTWARDS ARROW}", "bold"))
        if action.command is not None:
            body += command_lines(action.command, 6, width)
    return body + [_bullet(text, "\N{RIGHTWARDS ARROW}", "bold") for text in heading.collect_actions(doc)]


def command_lines(command: str, indent: int, width: int) -> list[Text]:
    """A command that can be pasted: lines of ``width`` columns that the shell reads as one. A part without a space
    outside quotes is never broken; print with ``crop=False``."""
    lines: list[str] = []
    free = max(20, width - indent - len("$  \\"))
    for part in _SHELL_PART.findall(command) or [command]:
        if lines and len(lines[-1]) + 1 + len(part) <= free:
            lines[-1] += f" {part}"
        else:
            lines.append(part)
    marks = ["$ ", *["    "] * (len(lines) - 1)]
    ends = [" \\"] * (len(lines) - 1) + [""]
    return [
        Text(f"{' ' * indent}{mark}{line}{end}", style="cyan", no_wrap=True, overflow="ignore")
        for mark, line, end in zip(marks, lines, ends, strict=True)
    ]


def _secondary(finding: SecondaryDoc, doc: VerdictDoc, cited: _CitationPrinter) -> RenderableType:
    text = f"{heading.headline(finding, doc.run)} ({finding.family} {finding.id}, {finding.certainty})"
    claims = [Padding.indent(claim, 3) for claim in _claims(heading.own_evidence(finding, doc), cited)]
    return Group(_bullet(text), *claims)


def _warning(finding: SecondaryDoc, doc: VerdictDoc, cited: _CitationPrinter, width: int) -> list[RenderableType]:
    """A warning with its actions; a consequence needs none, because it ends with the fault."""
    body: list[RenderableType] = [_secondary(finding, doc, cited)]
    for action in finding.actions:
        body.append(Padding.indent(_bullet(action.text, "\N{RIGHTWARDS ARROW}"), 3))
        body += [] if action.command is None else command_lines(action.command, 9, width)
    return body


def _reasons(doc: VerdictDoc) -> RenderableType:
    """Each other family with the reason why it is ruled out, or undecided and what to collect to decide it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=3, justify="right")
    grid.add_column(min_width=24, no_wrap=True)
    grid.add_column(ratio=1)
    rows = [(f.family, f.id, "ruled out: " + f.because, "green") for f in doc.ruled_out]
    for unknown in doc.unknown:
        collect = f" \N{RIGHTWARDS ARROW} collect {'; '.join(unknown.collect)}" if unknown.collect else ""
        rows.append((unknown.family, unknown.id, f"undecided: {'; '.join(unknown.missing)}{collect}", "yellow"))
    for code, slug, reason, style in sorted(rows):
        grid.add_row(Text(code, style=style), Text(slug), Text(reason, style="dim"))
    return grid


def _inputs(rows: Sequence[InputDoc]) -> list[RenderableType]:
    titles = {format_.id: format_.title for format_ in formats()}
    body: list[RenderableType] = [_bullet(heading.inputs_read(rows))]
    for row in rows[:MAX_INPUTS]:
        title = titles.get(row.format or "", row.format) or "unknown format"
        state = word(row.rows, "lines" if row.format == "job-log" else "rows")
        if row.status != "read":
            size = f"{state}, " if row.status == "partial" else ""
            state = f"{size}{heading.input_status(row.status)}: {row.note}"
        body.append(
            _bullet(f"{row.path}: {title}; {state}" if row.format or row.status == "read" else f"{row.path}: {state}")
        )
    if len(rows) > MAX_INPUTS:
        body.append(_bullet(f"and {len(rows) - MAX_INPUTS} more (list all with 'trackside inputs')"))
    return body


def inputs_table(inputs: Iterable[InputDoc], console: Console) -> None:
    """Print the table of ``trackside inputs``: the detected format of each file, and the reason."""
    rows = [
        (row.path, row.format or "-",
         Text(heading.input_status(row.status), style="" if row.status == "read" else "yellow"),
         f"{row.rows:,}", row.note)
        for row in inputs
    ]  # fmt: skip
    print_table(("file", "format", "status", "rows", "reason"), rows, console, right=("rows",))


def print_table(
    titles: Sequence[str], rows: Iterable[Sequence[str | Text]], console: Console, right: Sequence[str]
) -> None:
    """Print a table. ``right``: the titles of right-aligned columns. Off a terminal, a row is one line, so that its
    path can be copied."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, justify="right" if title in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    if not console.is_terminal:
        console.width = MAX_TABLE_WIDTH
    with trim_trailing_spaces(console):
        console.print(table)


@contextmanager
def trim_trailing_spaces(console: Console) -> Iterator[None]:
    """Strip the trailing spaces that rich pads lines with, unless the console is a terminal."""
    if console.is_terminal:
        yield
        return
    with console.capture() as capture:
        yield
    console.file.write("\n".join(line.rstrip() for line in capture.get().split("\n")))
