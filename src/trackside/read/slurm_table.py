"""Tables that Slurm's commands print: separated by a character, by blanks, or in fixed columns under dashes.

Nothing in them is escaped, so a name that contains the separator or a line break splits its row. Such a row is joined
and its fields are aligned with the columns: columns with a known pattern (ids, times, states) anchor the alignment, and
free-text columns take the surplus fields.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from trackside.catalog.slurm.columns import COMMA_FREE, FREE, LIKELY_FREE, SHAPES
from trackside.model import Position
from trackside.read.format import Result, csv_cells

MAX_SURPLUS_FIELDS = 32
"""Maximum number of separators inside the names of one row; a row with more is dropped."""
MAX_ROW_LINES = 40
"""Maximum number of lines that one row may be split into."""

_SEPARATORS = ("|", "\x1f", "\t", ",", ";", "^", "~")


@dataclass(frozen=True, slots=True)
class SlurmRow:
    """A row or block: its position, its text (a block's first line), and its values by lower-case column or by key."""

    line: int
    offset: int
    text: str
    values: Mapping[str, str]

    @property
    def length(self) -> int:
        """Length of the text, bytes."""
        return len(self.text.encode())

    def at(self, path: str) -> Position:
        """Its position in the input at ``path``."""
        return Position(path, self.line, self.offset, self.length)

    def get(self, *names: str) -> str | None:
        """The first of these values that exists and isn't empty; None if none does."""
        return next((value for name in names if (value := self.values.get(name))), None)


@dataclass(slots=True)
class SlurmTable:
    """A parsed header. ``separator`` None: columns are separated by blanks, or given by ``spans`` under dashes."""

    columns: tuple[str, ...]
    separator: str | None = None
    spans: tuple[tuple[int, int], ...] = ()
    header: str = ""
    word_spans: tuple[tuple[int, int], ...] = ()
    """(start, end) of each header word, for tables separated by blanks."""
    lost_lines: int = field(default=0)
    """Number of lines that fit no row."""

    def rows(self, lines: Iterable[tuple[int, int, str]]) -> Iterator[SlurmRow]:
        """Yield the rows below the header; repeated headers and dashes are skipped."""
        pending: list[tuple[int, int, str]] = []
        lines_from_header = itertools.dropwhile(lambda line: line[2].rstrip() != self.header.rstrip(), lines)
        for number, offset, text in lines_from_header:
            if not text.strip() or text.rstrip() == self.header.rstrip() or not text.strip(" -"):
                continue
            if self.separator is None:
                yield from self._emit((number, offset, text), self._columns(text))
                continue
            own_fields = self._split(text)
            if pending and (self._fits(own_fields) or len(pending) >= MAX_ROW_LINES):
                self.lost_lines += len(pending)
                pending = []
            pending.append((number, offset, text))
            joined = "\n".join(part[2] for part in pending)
            fields = own_fields if len(pending) == 1 else self._split(joined)
            if len(fields) >= len(self.columns):
                aligned = self._align(fields)
                if len(pending) > 1 and aligned is not None and not self._fits(aligned):
                    aligned = None
                yield from self._emit((*pending[0][:2], joined), aligned)
                pending = []
        self.lost_lines += len(pending)

    def covers(self, text: str) -> bool:
        """Whether most of a file's first lines are rows of this table; a log may merely begin with one."""
        lines = ((number, 0, line) for number, line in enumerate(text.split("\n")[:80]))
        rows = sum(1 for _ in self.rows(lines))
        lost_count, self.lost_lines = self.lost_lines, 0
        return lost_count <= max(1, rows)

    def result(self, count: int, none: str, cause: str = "") -> Result:
        """The result of reading. ``none``: the note if there is no row; ``cause``: why lines may fit no row."""
        if self.lost_lines:
            return Result(count, "partial", f"{self.lost_lines} lines fit no row{cause}")
        return Result(count) if count else Result(0, "empty", none)

    def _emit(self, location: tuple[int, int, str], fields: list[str] | None) -> Iterator[SlurmRow]:
        values = {name: value.strip() for name, value in zip(self.columns, fields or (), strict=False) if name}
        if not values or not self._has_valid_ids(values):
            self.lost_lines += 1
            return
        yield SlurmRow(*location, values)

    def _has_valid_ids(self, values: Mapping[str, str]) -> bool:
        """Whether the columns that identify a row match their patterns."""
        pairs = ((SHAPES[name], values[name]) for name in ("jobid", "jobidraw", "stepid") if name in values)
        return all(pattern.match(value) for pattern, value in pairs)

    def _split(self, text: str) -> list[str]:
        if self.separator == "," and '"' in text:
            return csv_cells(text) or text.split(",")
        return text.split(self.separator)

    def _fits(self, fields: list[str]) -> bool:
        return len(fields) == len(self.columns) and not any(
            _mismatches(column, value.strip()) for column, value in zip(self.columns, fields, strict=True)
        )

    def _align(self, fields: list[str]) -> list[str] | None:
        if len(fields) == len(self.columns):
            return fields
        free = FREE | COMMA_FREE if self.separator == "," else FREE
        return align(fields, self.columns, free, self.separator or " ")

    def _columns(self, text: str) -> list[str] | None:
        """The fields of a row without a separator character."""
        if self.spans:
            return [text[start:stop].strip() for start, stop in self.spans]
        words = [(match.start(), match.end()) for match in re.finditer(r"\S+", text)]
        if len(words) == len(self.columns):
            return [text[start:stop] for start, stop in words]
        if len(words) > len(self.columns):
            return align(text.split(), self.columns, FREE, " ")
        return self._by_position(text, words)

    def _by_position(self, text: str, words: list[tuple[int, int]]) -> list[str]:
        """The fields of a row with blank columns: each word goes to the column with the nearest header word."""
        fields = [""] * len(self.columns)
        for start, stop in words:
            gaps = [max(start - column_end, column_start - stop, 0) for column_start, column_end in self.word_spans]
            nearest = min(range(len(gaps)), key=gaps.__getitem__)
            fields[nearest] = f"{fields[nearest]} {text[start:stop]}".strip()
        return fields


def _mismatches(column: str, value: str) -> bool:
    shape = SHAPES.get(column)
    return shape is not None and shape.match(value) is None


def align(fields: list[str], columns: tuple[str, ...], free: frozenset[str], separator: str) -> list[str] | None:
    """Join surplus fields into free-text columns so that the fewest values mismatch; None if there are too many."""
    surplus = len(fields) - len(columns)
    if not 0 <= surplus <= MAX_SURPLUS_FIELDS:
        return None
    # best[extra] = (cost, number of fields of each column so far), with ``extra`` surplus fields used so far
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for index, column in enumerate(columns):
        next_best: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (cost, counts) in best.items():
            for extra in range(surplus - used + 1 if column in free else 1):
                mismatch = extra == 0 and _mismatches(column, fields[index + used].strip())
                join_cost = (0.5 if column in LIKELY_FREE else 1.0) if extra else 0.0
                total = cost + (4.0 if mismatch else 0.0) + join_cost
                if total < next_best.get(used + extra, (float("inf"), ()))[0]:
                    next_best[used + extra] = (total, (*counts, 1 + extra))
        best = next_best
    if surplus not in best:
        return None
    aligned, position = [], 0
    for count in best[surplus][1]:
        aligned.append(separator.join(fields[position : position + count]))
        position += count
    return aligned


def header_of(lines: Sequence[str], column_names: frozenset[str]) -> SlurmTable | None:
    """The table whose header is the first line, if all its words are known columns; the second line may be dashes."""
    line, second_line = (*lines, "", "")[:2]
    stripped = line.strip().lstrip("\ufeff")
    match = re.match(r'"?[A-Za-z_]+"?([^A-Za-z_"\s]{1,3})"?[A-Za-z]', stripped)
    separators = [character for character in _SEPARATORS if character in stripped]
    if match and match[1] not in separators:
        separators.insert(0, match[1])
    for separator in sorted(separators, key=len, reverse=True):
        names = [word.strip().strip('"').lower() for word in stripped.split(separator)]
        if all(name in column_names or not name for name in names) and len(set(names) & column_names) >= 2:
            return SlurmTable(_unique(names), separator, header=line)
    words = [(match.start(), match.end(), match[0].lower()) for match in re.finditer(r"\S+", line)]
    if len(words) < 2 or any(name not in column_names for *_, name in words):
        return None
    names = [name for *_, name in words]
    if second_line.strip() and not second_line.strip(" -"):
        spans = tuple((match.start(), match.end()) for match in re.finditer(r"-+", second_line))
        return SlurmTable(_unique(names), None, spans, line) if len(spans) == len(words) else None
    return SlurmTable(_unique(names), None, header=line, word_spans=tuple((start, stop) for start, stop, _ in words))


def _unique(names: list[str]) -> tuple[str, ...]:
    """Column names made unique: ``jobid``, ``jobid#2``."""
    return tuple(name if name not in names[:index] else f"{name}#2" for index, name in enumerate(names))


def first_lines(text: str, count: int = 6) -> list[str]:
    """The first non-blank lines, without shell prompts, comments and ``set -x`` output."""
    lines = (line for line in text.split("\n") if line.strip() and not re.match(r"[$#+%>] ?\w", line))
    return [line for line, _ in zip(lines, range(count), strict=False)]
