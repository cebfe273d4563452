"""Tables of metrics with a heading, as CSV: a column a metric, or a row a value; in any dialect's names.

The heading and the first rows must tell times and a metric that is known: any other CSV is left to others. Rows are
read in blocks: cells found, numbers read and series looked up for all rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK
from trackside.logs.stamp import find_time
from trackside.model import Position
from trackside.read.blocks import LONGEST, Block, Blocks
from trackside.read.decimals import Floats, Places, decimals
from trackside.read.format import Format, Match, Result, Sink, Source, csv_cells
from trackside.read.measurements import MOST_SERIES, Measurements
from trackside.read.table_columns import Columns, columns_of, numbers_of, translated

DELIMITERS = ",;\t"
_SEPARATOR = "\x1f"
"""Between the cells of rows whose quotes were taken off."""
_MEMO = 100_000
"""Times whose texts are remembered: rows of one moment follow each other."""
LOOK = 50
"""Rows of the head that may show that the table is one of metrics."""
_EPOCH_S = 946_684_800, 4_102_444_800
"""2000 to 2100."""
_NONE = frozenset({"", "n/a", "na", "null", "none", "-", "[n/a]"})


@dataclass(frozen=True, slots=True)
class Table:
    """How a file's rows are to be read."""

    delimiter: str
    width: int
    columns: Columns

    @classmethod
    def of(cls, heading: str) -> Table | None:
        """What a first line says; None if it is no heading of metrics."""
        delimiter = max(DELIMITERS, key=heading.count)
        names = cells_of(heading, delimiter)
        columns = columns_of(names)
        return None if columns is None else cls(delimiter, len(names), columns)


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of a row; none where quotes are amiss."""
    return csv_cells(line, delimiter=delimiter, strict=True) if '"' in line else line.split(delimiter)


def number_of(text: str) -> float:
    """A cell as a number; BLANK for one that says there is none. Raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        if text.strip().lower() in _NONE:
            return BLANK
        raise


def milliseconds_of(text: str) -> tuple[int, bool] | None:
    """A time in ms, and whether it names its zone: seconds or milliseconds told by size, ISO 8601, or as in logs.

    Without a zone it is read as UTC. A number in neither unit is given as it stands, to be refused; None for no time.
    """
    text = text.strip()
    try:
        number = float(text)
    except ValueError:
        pass
    else:
        if not abs(number) < 9e18:
            return None
        return round(number * 1000) if _EPOCH_S[0] <= number <= _EPOCH_S[1] else round(number), True
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        found = find_time(text)
        return None if found is None else (round(found * 1000), False)
    aware = moment.tzinfo is not None
    return round((moment if aware else moment.replace(tzinfo=UTC)).timestamp() * 1000), aware


@dataclass(slots=True)
class Cells:
    """Where the cells of a block's rows lie, each of shape (rows, width); ``lane``: which line each row is."""

    data: bytes
    lane: Places
    starts: Places
    ends: Places
    broken: Places
    """Lines with another number of cells."""

    @classmethod
    def of(cls, data: bytes, delimiter: str, width: int) -> Cells:
        """Find the cells of lines that hold just as many as the heading."""
        if b'"' in data:
            data = _unquoted(data, delimiter)
            delimiter = _SEPARATOR
        codes = np.frombuffer(data, dtype=np.uint8)
        marks = np.flatnonzero((codes == ord(delimiter)) | (codes == 10))
        last = np.flatnonzero(codes[marks] == 10)
        counts = np.diff(last, prepend=-1)
        whole = counts == width
        lane = np.flatnonzero(whole)
        ends = marks[(last[whole] - width + 1)[:, None] + np.arange(width)]
        starts = np.empty_like(ends)
        starts[:, 1:] = ends[:, :-1] + 1
        line_starts = np.concatenate([[0], marks[last][:-1] + 1])
        starts[:, 0] = line_starts[lane]
        ends[:, -1] -= (codes[np.maximum(ends[:, -1] - 1, 0)] == 13) & (ends[:, -1] > starts[:, -1])
        starts += (codes[starts] == 32) & (starts < ends)
        blank = (marks[last] == line_starts) | (codes[line_starts] == 13)
        return cls(data, lane, starts, ends, np.flatnonzero(~whole & ~blank))

    def only(self, rows: NDArray[np.bool_]) -> Cells:
        """Some of the rows."""
        return Cells(self.data, self.lane[rows], self.starts[rows], self.ends[rows], self.broken)

    def texts(self, place: int) -> list[bytes]:
        """A column."""
        bounds = zip(self.starts[:, place].tolist(), self.ends[:, place].tolist(), strict=True)
        return [self.data[start:end] for start, end in bounds]

    def row(self, at: int) -> list[str]:
        """A row as text."""
        bounds = zip(self.starts[at].tolist(), self.ends[at].tolist(), strict=True)
        return [self.data[start:end].decode("utf-8", "replace").strip() for start, end in bounds]


def _unquoted(data: bytes, delimiter: str) -> bytes:
    """The same lines with their quotes taken off, and cells apart by a byte that stands in no cell."""
    rows = []
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        line = line.rstrip("\r").replace(_SEPARATOR, " ")
        rows.append(_SEPARATOR.join(cells_of(line, delimiter)) or line.strip()[:1])
    return "\n".join(rows).encode("utf-8", "surrogateescape")


class _Reading:
    """One table on its way through."""

    def __init__(self, path: str, table: Table, found: Measurements) -> None:
        self._path, self._table, self._found = path, table, found
        self._times: dict[bytes, int | None] = {}
        self._groups: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        """cells that name series -> the number of each"""
        self._broken = self._first_broken = self._no_number = 0
        self._naive = False

    def take(self, block: Block) -> None:
        cells = Cells.of(block.data, self._table.delimiter, self._table.width)
        times, timed = self._taken_times(cells)
        broken = np.sort(np.concatenate([cells.broken, cells.lane[~timed]]))
        broken = broken[broken + block.line > 1]  # the heading
        if len(broken):
            self._broken += len(broken)
            self._first_broken = self._first_broken or block.line + int(broken[0])
        cells, times = cells.only(timed), times[timed]
        if not len(times):
            return
        series = self._series(block, cells)
        columns = self._table.columns
        places = [place for place, _, _ in columns.metrics] if columns.value is None else [columns.value]
        for metric, place in enumerate(places):
            self._found.add(series[:, metric], times, self._numbers(cells, place))

    def _taken_times(self, cells: Cells) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The time of each row, and which have one; those in no unit that is read stay as they are, to be refused."""
        memo = self._times
        times = []
        for text in cells.texts(self._table.columns.time):
            if text not in memo:
                if len(memo) >= _MEMO:
                    memo.clear()
                found = milliseconds_of(text.decode("utf-8", "replace"))
                memo[text] = None if found is None else found[0]
                self._naive = self._naive or (found is not None and not found[1])
            times.append(memo[text])
        timed = np.array([time is not None for time in times], dtype=np.bool_)
        return np.array([time or 0 for time in times], dtype=np.int64), timed

    def _series(self, block: Block, cells: Cells) -> NDArray[np.intp]:
        """The numbers of each row's series, in the order of the metrics; shape (rows, metrics)."""
        telling = self._table.columns.telling
        keys = list(zip(*(cells.texts(place) for place in telling), strict=True)) or [()] * len(cells.lane)
        found = []
        ends: Places | None = None
        for at, key in enumerate(keys):
            numbers = self._groups.get(key)
            if numbers is None:
                if ends is None:
                    ends = np.flatnonzero(np.frombuffer(block.data, dtype=np.uint8) == 10)
                lane = int(cells.lane[at])
                start = int(ends[lane - 1]) + 1 if lane else 0
                where = Position(self._path, block.line + lane, block.offset + start, int(ends[lane]) - start)
                numbers = numbers_of(self._found, self._table.columns, cells.row(at), where)
                if max(numbers) >= 0 or len(self._groups) < MOST_SERIES:
                    self._groups[key] = numbers
            found.append(numbers)
        return np.array(found, dtype=np.intp)

    def _numbers(self, cells: Cells, place: int) -> Floats:
        values, good = decimals(cells.data, cells.starts[:, place], cells.ends[:, place])
        for at in np.flatnonzero(~good).tolist():
            text = cells.data[cells.starts[at, place] : cells.ends[at, place]].decode("utf-8", "replace")
            try:
                values[at] = number_of(text)
            except ValueError:
                self._no_number += 1
                values[at] = BLANK
        return values

    def finish(self, blocks: Blocks, cut: bool) -> Result:
        lost = [
            f"{self._broken:,} rows have no time or another number of cells (first: line {self._first_broken:,})"
            if self._broken
            else "",
            f"{self._no_number:,} cells hold no number" if self._no_number else "",
            f"{blocks.too_long:,} lines are longer than {LONGEST >> 20} MiB" if blocks.too_long else "",
            "cut off within its last row" if cut else "",
        ]
        naive = "its times name no zone: read as UTC" if self._naive else ""
        return self._found.result([naive, *lost], lost=any(lost))


def _read(source: Source, sink: Sink) -> Result:
    table = Table.of(_lines(source)[0])
    if table is None:
        raise ValueError("its heading is cut off")
    found = Measurements(source.path, sink, holes=table.columns.value is None)
    for name in table.columns.others:
        found.unasked(name)
    reading, blocks, cut = _Reading(source.path, table, found), Blocks(source.stream), False
    for block in blocks:
        if block.cut:  # the rest of a number may be missing, and nobody would see it
            cut = block.line > 1
        else:
            reading.take(block)
    return reading.finish(blocks, cut)


def _lines(source: Source) -> list[str]:
    return [line.rstrip("\r") for line in source.text.split("\n", LOOK + 1)[: LOOK + 1]]


def _sniff(source: Source) -> Match | None:
    heading, *lines = _lines(source)
    table = Table.of(heading)
    if table is None:
        return None
    columns = table.columns
    rows = [row for line in lines if len(row := cells_of(line, table.delimiter)) == table.width]
    timed = [row for row in rows if _plausible(milliseconds_of(row[columns.time]))]
    if columns.name is None:
        fits = timed or not any(lines)
        return Match(0.6, f"a table of {len(columns.metrics)} known metrics") if fits else None
    fits = any(translated(row[columns.name].strip(), {}) is not None for row in timed)
    return Match(0.6, "a table of metrics, a row a value") if fits else None


def _plausible(time: tuple[int, bool] | None) -> bool:
    return time is not None and _EPOCH_S[0] * 1000 <= time[0] <= _EPOCH_S[1] * 1000


FORMAT = Format(
    "metric-table", "CSV of metrics: times, and a column a metric or a row a value", "metric", _sniff, _read
)
