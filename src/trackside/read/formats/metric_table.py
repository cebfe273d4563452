"""Tables of metrics as CSV with a heading: one column per metric, or one row per value, with names of any dialect.

The heading and the first rows must contain times and a known metric; other CSV is left to other formats. Rows are read
in blocks: cells are split, numbers parsed and series looked up for all rows at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK
from trackside.logs.stamp import find_time
from trackside.model import Position
from trackside.read.blocks import MAX_LINE_BYTES, Block, Blocks
from trackside.read.decimals import Floats, Offsets, decimals
from trackside.read.format import Format, InputSource, Match, Result, Sink, csv_cells
from trackside.read.measurements import MAX_SERIES, Measurements
from trackside.read.table_columns import TableColumns, columns_of, series_numbers, translate_heading

DELIMITERS = ",;\t"
_SEPARATOR = "\x1f"
"""Separates the cells of rows whose quotes were removed."""
MAX_CACHED_TIMES = 100_000
"""Maximum number of cached texts of times; consecutive rows often have the same time."""
SNIFF_ROWS = 50
"""Rows of the head that are checked during detection."""
_EPOCH_S = 946_684_800, 4_102_444_800
"""2000 to 2100."""
_BLANK_CELLS = frozenset({"", "n/a", "na", "null", "none", "-", "[n/a]"})


@dataclass(frozen=True, slots=True)
class MetricTable:
    """How to read the rows of a file."""

    delimiter: str
    width: int
    columns: TableColumns

    @classmethod
    def of(cls, heading: str) -> MetricTable | None:
        """The table of a heading line; None if it is not a heading of metrics."""
        delimiter = max(DELIMITERS, key=heading.count)
        names = cells_of(heading, delimiter)
        columns = columns_of(names)
        return None if columns is None else cls(delimiter, len(names), columns)


def cells_of(line: str, delimiter: str) -> list[str]:
    """The cells of a row; empty if its quotes are malformed."""
    return csv_cells(line, delimiter=delimiter, strict=True) if '"' in line else line.split(delimiter)


def number_of(text: str) -> float:
    """A cell as a number; BLANK for an empty cell, ``n/a`` and the like. Raises ValueError for other text."""
    try:
        return float(text)
    except ValueError:
        if text.strip().lower() in _BLANK_CELLS:
            return BLANK
        raise


def milliseconds_of(text: str) -> tuple[int, bool] | None:
    """A time in ms, and whether it has a zone. Formats: seconds or milliseconds (decided by size), ISO 8601, log
    stamps.

    Without a zone it is read as UTC. A number in neither unit is returned as is and rejected later; None if not a time.
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
        stamp = find_time(text)
        return None if stamp is None else (round(stamp * 1000), False)
    has_zone = moment.tzinfo is not None
    return round((moment if has_zone else moment.replace(tzinfo=UTC)).timestamp() * 1000), has_zone


@dataclass(slots=True)
class CellBounds:
    """Byte bounds of the cells of a block, each of shape (rows, width). ``lane``: line index of each row in the
    block."""

    data: bytes
    lane: Offsets
    starts: Offsets
    ends: Offsets
    broken: Offsets
    """Indices of lines with the wrong number of cells."""

    @classmethod
    def of(cls, data: bytes, delimiter: str, width: int) -> CellBounds:
        """Find the cells of lines with as many cells as the heading."""
        if b'"' in data:
            data = _without_quotes(data, delimiter)
            delimiter = _SEPARATOR
        codes = np.frombuffer(data, dtype=np.uint8)
        marks = np.flatnonzero((codes == ord(delimiter)) | (codes == 10))
        line_ends = np.flatnonzero(codes[marks] == 10)
        counts = np.diff(line_ends, prepend=-1)
        is_complete = counts == width
        lane = np.flatnonzero(is_complete)
        ends = marks[(line_ends[is_complete] - width + 1)[:, None] + np.arange(width)]
        starts = np.empty_like(ends)
        starts[:, 1:] = ends[:, :-1] + 1
        line_starts = np.concatenate([[0], marks[line_ends][:-1] + 1])
        starts[:, 0] = line_starts[lane]
        ends[:, -1] -= (codes[np.maximum(ends[:, -1] - 1, 0)] == 13) & (ends[:, -1] > starts[:, -1])
        starts += (codes[starts] == 32) & (starts < ends)
        blank = (marks[line_ends] == line_starts) | (codes[line_starts] == 13)
        return cls(data, lane, starts, ends, np.flatnonzero(~is_complete & ~blank))

    def select(self, rows: NDArray[np.bool_]) -> CellBounds:
        """The selected rows."""
        return CellBounds(self.data, self.lane[rows], self.starts[rows], self.ends[rows], self.broken)

    def texts(self, column: int) -> list[bytes]:
        """The raw cells of a column."""
        bounds = zip(self.starts[:, column].tolist(), self.ends[:, column].tolist(), strict=True)
        return [self.data[start:end] for start, end in bounds]

    def row(self, row_index: int) -> list[str]:
        """The cells of a row as text."""
        bounds = zip(self.starts[row_index].tolist(), self.ends[row_index].tolist(), strict=True)
        return [self.data[start:end].decode("utf-8", "replace").strip() for start, end in bounds]


def _without_quotes(data: bytes, delimiter: str) -> bytes:
    """The lines without quotes, with cells separated by a byte that occurs in no cell."""
    rows = []
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        line = line.rstrip("\r").replace(_SEPARATOR, " ")
        rows.append(_SEPARATOR.join(cells_of(line, delimiter)) or line.strip()[:1])
    return "\n".join(rows).encode("utf-8", "surrogateescape")


class _TableReader:
    """Reads one table block by block."""

    def __init__(self, path: str, table: MetricTable, measurements: Measurements) -> None:
        self._path, self._table, self._measurements = path, table, measurements
        self._time_cache: dict[bytes, int | None] = {}
        self._series_by_cells: dict[tuple[bytes, ...], tuple[int, ...]] = {}
        """identifying cells -> series numbers"""
        self._broken = self._first_broken = self._no_number = 0
        self._naive = False

    def take(self, block: Block) -> None:
        cells = CellBounds.of(block.data, self._table.delimiter, self._table.width)
        times, has_time = self._times(cells)
        broken = np.sort(np.concatenate([cells.broken, cells.lane[~has_time]]))
        broken = broken[broken + block.line > 1]  # the heading
        if len(broken):
            self._broken += len(broken)
            self._first_broken = self._first_broken or block.line + int(broken[0])
        cells, times = cells.select(has_time), times[has_time]
        if not len(times):
            return
        series = self._series(block, cells)
        columns = self._table.columns
        value_columns = [column for column, _, _ in columns.metrics] if columns.value is None else [columns.value]
        for metric, column in enumerate(value_columns):
            self._measurements.add(series[:, metric], times, self._numbers(cells, column))

    def _times(self, cells: CellBounds) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The time of each row in ms, and which rows have one. Numbers in an unknown unit are kept and rejected
        later."""
        cache = self._time_cache
        times = []
        for text in cells.texts(self._table.columns.time):
            if text not in cache:
                if len(cache) >= MAX_CACHED_TIMES:
                    cache.clear()
                parsed = milliseconds_of(text.decode("utf-8", "replace"))
                cache[text] = None if parsed is None else parsed[0]
                self._naive = self._naive or (parsed is not None and not parsed[1])
            times.append(cache[text])
        has_time = np.array([time is not None for time in times], dtype=np.bool_)
        return np.array([time or 0 for time in times], dtype=np.int64), has_time

    def _series(self, block: Block, cells: CellBounds) -> NDArray[np.intp]:
        """The series numbers of each row, in the order of the metrics; shape (rows, metrics)."""
        columns = self._table.columns.identifying_columns
        keys = list(zip(*(cells.texts(column) for column in columns), strict=True)) or [()] * len(cells.lane)
        rows = []
        ends: Offsets | None = None
        for row_index, key in enumerate(keys):
            numbers = self._series_by_cells.get(key)
            if numbers is None:
                if ends is None:
                    ends = np.flatnonzero(np.frombuffer(block.data, dtype=np.uint8) == 10)
                lane = int(cells.lane[row_index])
                start = int(ends[lane - 1]) + 1 if lane else 0
                position = Position(self._path, block.line + lane, block.offset + start, int(ends[lane]) - start)
                numbers = series_numbers(self._measurements, self._table.columns, cells.row(row_index), position)
                if max(numbers) >= 0 or len(self._series_by_cells) < MAX_SERIES:
                    self._series_by_cells[key] = numbers
            rows.append(numbers)
        return np.array(rows, dtype=np.intp)

    def _numbers(self, cells: CellBounds, column: int) -> Floats:
        values, is_parsed = decimals(cells.data, cells.starts[:, column], cells.ends[:, column])
        for row_index in np.flatnonzero(~is_parsed).tolist():
            text = cells.data[cells.starts[row_index, column] : cells.ends[row_index, column]].decode(
                "utf-8", "replace"
            )
            try:
                values[row_index] = number_of(text)
            except ValueError:
                self._no_number += 1
                values[row_index] = BLANK
        return values

    def finish(self, blocks: Blocks, is_truncated: bool) -> Result:
        lost = [
            f"{self._broken:,} rows have no time or the wrong number of cells (first: line {self._first_broken:,})"
            if self._broken
            else "",
            f"{self._no_number:,} cells without a number" if self._no_number else "",
            f"{blocks.too_long:,} lines are longer than {MAX_LINE_BYTES >> 20} MiB" if blocks.too_long else "",
            "truncated within its last row" if is_truncated else "",
        ]
        naive = "times without a zone, read as UTC" if self._naive else ""
        return self._measurements.result([naive, *lost], lost=any(lost))


def _read(source: InputSource, sink: Sink) -> Result:
    table = MetricTable.of(_lines(source)[0])
    if table is None:
        raise ValueError("its heading is truncated")
    measurements = Measurements(source.path, sink, nan_is_blank=table.columns.value is None)
    for name in table.columns.others:
        measurements.add_unknown(name)
    reading, blocks, is_truncated = _TableReader(source.path, table, measurements), Blocks(source.stream), False
    for block in blocks:
        if block.cut:  # part of the last number may be missing, which would go unnoticed
            is_truncated = block.line > 1
        else:
            reading.take(block)
    return reading.finish(blocks, is_truncated)


def _lines(source: InputSource) -> list[str]:
    return [line.rstrip("\r") for line in source.text.split("\n", SNIFF_ROWS + 1)[: SNIFF_ROWS + 1]]


def _sniff(source: InputSource) -> Match | None:
    heading, *lines = _lines(source)
    table = MetricTable.of(heading)
    if table is None:
        return None
    columns = table.columns
    rows = [row for line in lines if len(row := cells_of(line, table.delimiter)) == table.width]
    timed_rows = [row for row in rows if _plausible(milliseconds_of(row[columns.time]))]
    if columns.name is None:
        fits = timed_rows or not any(lines)
        return Match(0.6, f"a table of {len(columns.metrics)} known metrics") if fits else None
    fits = any(translate_heading(row[columns.name].strip(), {}) is not None for row in timed_rows)
    return Match(0.6, "a table of metrics, one row per value") if fits else None


def _plausible(time: tuple[int, bool] | None) -> bool:
    return time is not None and _EPOCH_S[0] * 1000 <= time[0] <= _EPOCH_S[1] * 1000


FORMAT = Format(
    "metric-table",
    "metrics as CSV: a time column, and one column per metric or one row per value",
    "metric",
    _sniff,
    _read,
)
