"""Tables that Slurm's commands print: separated by a character, by blanks, or in columns under dashes.

Nothing in them is escaped, so a name with the separator or a line break in it breaks its row. Such a row is
joined and its fields are aligned with the columns: those with a known shape (ids, times, states) hold their
place, and the free ones take what is left over.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trackside.catalog.slurm.columns import COMMA_FREE, FREE, LIKELY_FREE, SHAPES
from trackside.model import Position
from trackside.read.format import Result, csv_cells

MAX_EXTRA = 32
"""Separators inside names of one row; a row with more is given up."""
MAX_JOINED = 40
"""Lines that one row may be broken into."""

_SEPARATORS = ("|", "\x1f", "\t", ",", ";", "^", "~")


@dataclass(frozen=True, slots=True)
class Row:
    """Where it starts, its text (a block's first line), and its values by column in lower case, or by key."""

    line: int
    offset: int
    text: str
    values: Mapping[str, str]

    @property
    def length(self) -> int:
        """Bytes of the text."""
        return len(self.text.encode())

    def at(self, path: str) -> Position:
        """Its place in the input of this path."""
        return Position(path, self.line, self.offset, self.length)

    def get(self, *names: str) -> str | None:
        """The first of these values that is there and isn't empty."""
        return next((value for name in names if (value := self.values.get(name))), None)


@dataclass(slots=True)
class Table:
    """A header understood. ``separator`` None: blanks, or the ``spans`` that dashes mark."""

    columns: tuple[str, ...]
    separator: str | None = None
    spans: tuple[tuple[int, int], ...] = ()
    header: str = ""
    places: tuple[tuple[int, int], ...] = ()
    """Where each header word stands, for tables of blanks."""
    lost: int = field(default=0)
    """Lines that fitted no row."""

    def rows(self, lines: Iterable[tuple[int, int, str]]) -> Iterator[Row]:
        """The rows below the header; repeated headers and dashes are passed over."""
        pending: list[tuple[int, int, str]] = []
        after = itertools.dropwhile(lambda each: each[2].rstrip() != self.header.rstrip(), lines)
        for number, offset, text in after:
            if not text.strip() or text.rstrip() == self.header.rstrip() or not text.strip(" -"):
                continue
            if self.separator is None:
                yield from self._emit((number, offset, text), self._columns(text))
                continue
            alone = self._split(text)
            if pending and (self._fits(alone) or len(pending) >= MAX_JOINED):
                self.lost += len(pending)
                pending = []
            pending.append((number, offset, text))
            joined = "\n".join(part[2] for part in pending)
            fields = alone if len(pending) == 1 else self._split(joined)
            if len(fields) >= len(self.columns):
                aligned = self._align(fields)
                if len(pending) > 1 and aligned is not None and not self._fits(aligned):
                    aligned = None
                yield from self._emit((*pending[0][:2], joined), aligned)
                pending = []
        self.lost += len(pending)

    def covers(self, text: str) -> bool:
        """Whether most of a file's first lines are rows of this table: a log may only begin with one."""
        lines = ((number, 0, line) for number, line in enumerate(text.split("\n")[:80]))
        rows = sum(1 for _ in self.rows(lines))
        lost, self.lost = self.lost, 0
        return lost <= max(1, rows)

    def result(self, count: int, none: str, cause: str = "") -> Result:
        """What came of reading: ``none`` is the note without a row, ``cause`` of lines that fit none."""
        if self.lost:
            return Result(count, "partial", f"{self.lost} lines fit no row{cause}")
        return Result(count) if count else Result(0, "empty", none)

    def _emit(self, at: tuple[int, int, str], fields: list[str] | None) -> Iterator[Row]:
        values = {name: value.strip() for name, value in zip(self.columns, fields or (), strict=False) if name}
        if not values or not self._sound(values):
            self.lost += 1
            return
        yield Row(*at, values)

    def _sound(self, values: Mapping[str, str]) -> bool:
        """Whether the columns that identify a row look as they should."""
        shown = ((SHAPES[name], values[name]) for name in ("jobid", "jobidraw", "stepid") if name in values)
        return all(shape.match(value) for shape, value in shown)

    def _split(self, text: str) -> list[str]:
        if self.separator == "," and '"' in text:
            return csv_cells(text) or text.split(",")
        return text.split(self.separator)

    def _fits(self, fields: list[str]) -> bool:
        return len(fields) == len(self.columns) and not any(
            _misfit(column, value.strip()) for column, value in zip(self.columns, fields, strict=True)
        )

    def _align(self, fields: list[str]) -> list[str] | None:
        if len(fields) == len(self.columns):
            return fields
        free = FREE | COMMA_FREE if self.separator == "," else FREE
        return align(fields, self.columns, free, self.separator or " ")

    def _columns(self, text: str) -> list[str] | None:
        """Fields of a row without a separator."""
        if self.spans:
            return [text[start:stop].strip() for start, stop in self.spans]
        words = [(found.start(), found.end()) for found in re.finditer(r"\S+", text)]
        if len(words) == len(self.columns):
            return [text[start:stop] for start, stop in words]
        if len(words) > len(self.columns):
            return align(text.split(), self.columns, FREE, " ")
        return self._by_place(text, words)

    def _by_place(self, text: str, words: list[tuple[int, int]]) -> list[str]:
        """Some columns are blank: each word goes under the nearest header word."""
        fields = [""] * len(self.columns)
        for start, stop in words:
            gaps = [max(start - right, left - stop, 0) for left, right in self.places]
            nearest = min(range(len(gaps)), key=gaps.__getitem__)
            fields[nearest] = f"{fields[nearest]} {text[start:stop]}".strip()
        return fields


def _misfit(column: str, value: str) -> bool:
    shape = SHAPES.get(column)
    return shape is not None and shape.match(value) is None


def align(fields: list[str], columns: tuple[str, ...], free: frozenset[str], separator: str) -> list[str] | None:
    """Join the surplus fields into free columns so that the fewest values look wrong; None if too many."""
    surplus = len(fields) - len(columns)
    if not 0 <= surplus <= MAX_EXTRA:
        return None
    # best[extra] = (cost, fields taken by each column so far): the columns up to here ate ``extra`` surplus fields
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for index, column in enumerate(columns):
        step: dict[int, tuple[float, tuple[int, ...]]] = {}
        for eaten, (cost, taken) in best.items():
            for more in range(surplus - eaten + 1 if column in free else 1):
                wrong = more == 0 and _misfit(column, fields[index + eaten].strip())
                joined = (0.5 if column in LIKELY_FREE else 1.0) if more else 0.0
                total = cost + (4.0 if wrong else 0.0) + joined
                if total < step.get(eaten + more, (float("inf"), ()))[0]:
                    step[eaten + more] = (total, (*taken, 1 + more))
        best = step
    if surplus not in best:
        return None
    aligned, position = [], 0
    for count in best[surplus][1]:
        aligned.append(separator.join(fields[position : position + count]))
        position += count
    return aligned


def header_of(lines: Sequence[str], known: frozenset[str]) -> Table | None:
    """The table that the first of these lines heads, if all its words are known columns; the second may be dashes."""
    line, under = (*lines, "", "")[:2]
    stripped = line.strip().lstrip("\ufeff")
    found = re.match(r'"?[A-Za-z_]+"?([^A-Za-z_"\s]{1,3})"?[A-Za-z]', stripped)
    separators = [each for each in _SEPARATORS if each in stripped]
    if found and found[1] not in separators:
        separators.insert(0, found[1])
    for separator in sorted(separators, key=len, reverse=True):
        names = [word.strip().strip('"').lower() for word in stripped.split(separator)]
        if all(name in known or not name for name in names) and len(set(names) & known) >= 2:
            return Table(_numbered(names), separator, header=line)
    words = [(found.start(), found.end(), found[0].lower()) for found in re.finditer(r"\S+", line)]
    if len(words) < 2 or any(name not in known for *_, name in words):
        return None
    names = [name for *_, name in words]
    if under.strip() and not under.strip(" -"):
        spans = tuple((found.start(), found.end()) for found in re.finditer(r"-+", under))
        return Table(_numbered(names), None, spans, line) if len(spans) == len(words) else None
    return Table(_numbered(names), None, header=line, places=tuple((start, stop) for start, stop, _ in words))


def _numbered(names: list[str]) -> tuple[str, ...]:
    """A column that comes twice is told apart: ``jobid``, ``jobid#2``."""
    return tuple(name if name not in names[:index] else f"{name}#2" for index, name in enumerate(names))


def first_lines(text: str, count: int = 6) -> list[str]:
    """The first lines with something in them, shell prompts, comments and ``set -x`` echoes passed over."""
    lines = (line for line in text.split("\n") if line.strip() and not re.match(r"[$#+%>] ?\w", line))
    return [line for line, _ in zip(lines, range(count), strict=False)]
