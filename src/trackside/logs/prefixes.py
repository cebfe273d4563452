"""Prefixes that every line of a log has because of the way it came: a collector, a container, a remote shell, an editor.

Each kind of prefix is a row of :data:`PREFIXES`. The beginning of a file shows which it has, the outermost first; they
are not part of its lines. A rank label is: it says who wrote the line, and is read with it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MAX_LAYERS = 5
"""Prefixes of one file."""
MAX_LINES = 400
"""Lines at the beginning of a file in which its prefixes are looked for."""
MIN_SHARE = 0.9
"""Share of the lines that have a prefix: some programs write past the collector."""
MIN_LINES_OF_WRITER = 3
"""Lines of each writer (mean): a name that changes from line to line is part of the text."""
MIN_WORDS = 12
"""Different words in what follows: a table has fewer."""
ANSI = re.compile(rb"\x1b\[[0-9;?]{0,64}[ -/]{0,16}[@-~]|\x1b\][^\x07\n]{0,512}\x07|\x1b[()][AB0]")
_UNLOGGED = re.compile(
    rb"\s{2,}\S|\s*$|Traceback \(most recent|\[?20\d\d-\d\d-\d\d[T _]\d\d:|\[rank|\[default\d|\{\"|[#=*-]{8}|[ \d]{1,4}%\|"
)
"""What programs print at a line's start, but loggers not behind their own prefix."""
_WORD = re.compile(rb"[A-Za-z]{2,40}")
_LEVELS = rb"(?i:debug|info|warn(?:ing)?|error|critical|fatal|notice|trace)"
_LOGGED = re.compile(rb"[\[|<( -]{0,3}" + _LEVELS + rb"\b|[|-] ")
_COUNTER = rb"(?i:[a-z]{0,40}(?:epoch|step|iter|batch|rank|cuda|device|fold|task|run|round|trial|loss|level|layer|block|gpu(?=_?\d?\d:))_?\d{0,9}:)"
_SYSLOG = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-3]\d \d\d:\d\d:\d\d(?:\.\d{1,9})?"
_ZONE = rb"(?:Z|[+-]\d\d:?\d\d)"
_ISO = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_DATE = rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_CLOCK = rb"\d\d:\d\d:\d\d(?:\.\d{1,9})?"
_NAME = rb"[A-Za-z][A-Za-z_-]{0,40}\d[\w-]{0,60}(?:\.[\w-]{1,60}){0,5}|(?:\d{1,3}\.){3}\d{1,3}"


@dataclass(frozen=True, slots=True)
class Prefix:
    """One kind of prefix."""

    name: str
    regex: re.Pattern[bytes]
    """Matches it at the line's start. Groups: ``writer`` differs between the writers of interleaved lines, ``rank`` is
    a global rank, ``number`` counts the lines."""
    min_lines: int = 1
    """Lines that must have it: more where a program could print the same."""
    varied: bool = False
    """Whether what follows must be varied, because tables and labels of a program have the same form."""
    always: bool = False
    """Whether every line must have it."""
    unlogged: bool = False
    """Whether something must follow that loggers do not print, because they use the same form."""


_FIGURES = re.compile(rb"[\d\s.,+-]+")
MIN_LINES_OF_SHAPE = 4
"""Lines for each shape of line, from which on numbers before them are taken for the program's own."""


def _prefix(name: str, regex: bytes, min_lines: int = 1, **conditions: bool) -> Prefix:
    return Prefix(name, re.compile(regex), min_lines, **conditions)


COLLECTOR = _prefix("container runtime", _ISO + _ZONE + rb" std(?:out|err) [FP] ")
PREFIXES = (
    COLLECTOR,
    _prefix("journal", rb"(?:" + _SYSLOG + rb"|" + _ISO + _ZONE + rb"?) (?P<writer>[\w.-]{1,255} [\w./@-]{1,80}\[\d{1,10}\]): ?"),
    _prefix("container log with times", _ISO + _ZONE + rb"(?: \d\d[OE][+ ]?)?(?: |$)", 2),
    _prefix("pod", rb"\[(?P<writer>pod/[\w./-]{1,300})\] ?"),
    _prefix("service", rb"(?:\d\d:\d\d:\d\d )?(?!" + _LEVELS + rb"\b)(?P<writer>[A-Za-z][\w.-]{0,80}) {2,40}\|(?: |$)", 3),
    _prefix("MPI program", rb"\[\d{1,9},mpirank:(?P<rank>\d{1,6}),(?P<writer>[\w.-]{1,80})\]<std(?:out|err)>: ?"),
    _prefix("host", rb"(?!" + _COUNTER + rb")(?P<writer>" + _NAME + rb"):(?: |$)", 3, varied=True),
    _prefix("time", _SYSLOG + rb"(?: |$)", 3),
    _prefix("time as loggers print it", rb"(?:\[" + _DATE + rb"\]|" + _DATE + rb"|\[" + _CLOCK + rb"\]|" + _CLOCK + rb")(?: |$)", 3, unlogged=True),
    _prefix("line number", rb" {0,9}(?P<number>\d{1,9})(?:\t|[:-] ?|  |$)", 4, varied=True),
    _prefix("quotation", rb">(?: |$)", 2),
    _prefix("indentation", rb"(?: {4}|\t)", 4, always=True),
)  # fmt: skip
"""Tried in this order: the more specific first."""


def prefixes_of(head: bytes) -> tuple[Prefix, ...]:
    """The prefixes of a text's lines, the outermost first."""
    lines = _written_lines(head)
    layers: list[Prefix] = []
    while len(layers) < MAX_LAYERS:
        layer = next((prefix for prefix in PREFIXES if _have_prefix(lines, prefix)), None)
        if layer is None:
            break
        layers.append(layer)
        lines = [text for line in lines if (text := peel(line, (layer,)).text).strip()]
    return tuple(layers)


def has_several_writers(head: bytes, layers: Sequence[Prefix]) -> bool:
    """Whether the prefixes show lines of more than one writer."""
    if not any("writer" in layer.regex.groupindex for layer in layers):
        return False
    return len({peel(line, layers).writer for line in _written_lines(head)}) > 1


def _written_lines(head: bytes) -> list[bytes]:
    """The first lines that are not blank, without colors."""
    lines = head.split(b"\n")[:MAX_LINES]
    return [(ANSI.sub(b"", line) if b"\x1b" in line else line).rstrip(b"\r") for line in lines if line.strip()]


def _have_prefix(lines: Sequence[bytes], prefix: Prefix) -> bool:
    """Whether nearly all lines have the prefix, and what follows it shows that it is not part of the text."""
    misses = int((0.0 if prefix.always else 1 - MIN_SHARE) * len(lines))
    matches: list[re.Match[bytes]] = []
    for line in lines:
        match = prefix.regex.match(line)
        if match is not None:
            matches.append(match)
        elif misses:
            misses -= 1
        else:
            return False
    if len(matches) < prefix.min_lines:
        return False
    groups = prefix.regex.groupindex
    if "writer" in groups and MIN_LINES_OF_WRITER * len({match["writer"] for match in matches}) > max(
        MIN_LINES_OF_WRITER, len(matches)
    ):
        return False
    if "number" in groups and any(int(a["number"]) >= int(b["number"]) for a, b in pairwise(matches)):
        return False
    behind = [match.string[match.end() :] for match in matches]
    by_program = "number" in groups and all(match[0].endswith(b": ") for match in matches)
    if by_program and MIN_LINES_OF_SHAPE * len({_FIGURES.sub(b"#", text) for text in behind}) <= len(behind):
        return False  # the steps of a program that prints one kind of line; cat and grep put no blank behind a number
    unlogged = sum(_UNLOGGED.match(text) is not None for text in behind)
    if prefix.unlogged:
        return unlogged >= 2 and not any(_LOGGED.match(text) for text in behind)
    words = {word for text in behind for word in _WORD.findall(text)}
    return not prefix.varied or unlogged > 0 or len(words) >= MIN_WORDS


class PeeledLine(NamedTuple):
    """A line without its prefixes."""

    prefix: bytes
    text: bytes
    writer: bytes = b""
    rank: int | None = None


def peel(line: bytes, layers: Sequence[Prefix]) -> PeeledLine:
    """Take the prefixes off a line, as far as it has them; colors are gone already."""
    position, writer, rank = 0, b"", None
    for layer in layers:
        match = layer.regex.match(line, position)
        if match is None:
            break
        groups = match.groupdict()
        writer = groups.get("writer") or writer
        rank = int(groups["rank"]) if groups.get("rank") else rank
        position = match.end()
    return PeeledLine(line[:position], line[position:], writer, rank)
