"""Prometheus text exposition and OpenMetrics: one scrape or many in a file, as written by exporters and promtool.

If lines have no times, the time of a scrape is that of a comment or a bare line before it (such as the output of
``date``). Without one, the file is assumed to hold one scrape, taken when the file was last written.

Scrapes repeat the same series, so lines are processed in blocks: the bounds of series, value and time are computed for
all lines at once, series are looked up by their bytes, and numbers are parsed together. A file of a billion lines takes
minutes. The full grammar is used only for new series and for lines with unusual spacing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trackside.catalog.dialect import BLANK, translate
from trackside.catalog.exposition import HELP, line_of, series_of
from trackside.read.blocks import MAX_LINE_BYTES, Block, Blocks
from trackside.read.decimals import Flags, Floats, Offsets, decimals
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.keys import Keys
from trackside.read.measurements import MAX_NAMES, MAX_SERIES, UNKNOWN, Measurements, milliseconds
from trackside.read.scrape_times import iso_time, stamp

_MAX_SNIFFED_LINES = 400
MIN_SHARE = 0.9
"""Minimum share of exposition lines in the head."""
IRREGULAR = -4
"""Not a series: the full grammar decides what the line is."""


def _sniff(source: InputSource) -> Match | None:
    lines = source.head.split(b"\n")
    if len(source.head) == len(source.head.rstrip(b"\n")) and len(lines) > 1:
        lines.pop()  # cut off by the end of the head
    exposition = other = labeled = described = known = 0
    for text in lines[:_MAX_SNIFFED_LINES]:
        text = text.strip()
        if not text:
            continue
        if text.startswith(b"#"):
            described += text[2:7] in (b"HELP ", b"TYPE ")
            continue
        line = line_of(text) if len(text) < 1 << 14 else None
        parsed = None if line is None else series_of(line.series.decode("utf-8", "replace"))
        if parsed is not None:
            exposition += 1
            labeled += bool(parsed[1])
            known += translate(*parsed) is not None
        elif stamp(text.decode("utf-8", "replace")) is None:
            other += 1
    if not exposition or exposition < MIN_SHARE * (exposition + other) or not (labeled or described or known):
        return None
    return Match(0.9 if described or known else 0.7, "OpenMetrics" if b"\n# EOF" in source.head else "Prometheus text")


def _read(source: InputSource, sink: Sink) -> Result:
    reading, blocks, cut = _TextReader(source, sink), Blocks(source.stream), False
    for block in blocks:
        if block.cut:  # part of the last value may be missing, which would go unnoticed
            cut = not block.data.lstrip().startswith(b"#")
        else:
            reading.take(block)
    return reading.finish(blocks, cut)


# -- lines as columns


@dataclass(slots=True)
class _Lines:
    """Byte bounds of each line's series, value and time in a block. ``irregular``: lines that need the full grammar."""

    start: Offsets
    series_end: Offsets
    value_end: Offsets
    last: Offsets
    """Index of the last blank."""
    end: Offsets
    timed: Flags
    comment: Flags
    irregular: Flags
    plain: Flags
    """Lines that are neither blank, comment nor irregular."""


def _lines(data: bytes) -> _Lines:
    """Split a block: value and time follow the last blanks; the series ends with its brace or at the first blank."""
    codes = np.frombuffer(data, dtype=np.uint8)
    blanks = np.flatnonzero(codes <= 32)
    is_end = codes[blanks] == 10
    stops = end = blanks[is_end]
    if b"\r" in data:
        end = stops - (codes[np.maximum(stops - 1, 0)] == 13)
        returns = (codes[blanks] == 13) & np.append(is_end[1:], False) & (np.diff(blanks, append=-1) == 1)
        blanks, is_end = blanks[~returns], is_end[~returns]
    start = np.concatenate([[0], stops[:-1] + 1])
    blank_index = np.flatnonzero(is_end)
    last_blank, blank_before = (
        np.where(blank_index >= distance, blanks[np.maximum(blank_index - distance, 0)], -1) for distance in (1, 2)
    )
    has_one, has_two = last_blank >= start, blank_before >= start
    ends_with_brace = has_one & (codes[np.maximum(last_blank - 1, 0)] == ord("}"))
    timed = has_two & (codes[np.maximum(blank_before - 1, 0)] == ord("}")) & ~ends_with_brace
    plain = ends_with_brace | timed
    if not plain.all():
        third = np.where(blank_index >= 3, blanks[np.maximum(blank_index - 3, 0)], -1)
        is_bare = has_one & ~plain & (third < start)
        plain |= is_bare
        timed |= is_bare & has_two
    comment = codes[start] == ord("#")
    has_content = (end > start) & ~comment
    irregular = has_content & ~plain
    plain &= has_content
    series_end = np.where(timed, blank_before, last_blank)
    return _Lines(
        start, series_end, np.where(timed, last_blank, end), last_blank, end, timed, comment, irregular, plain
    )


class _Rows(NamedTuple):
    """Measurements of a block as columns: line index, series number, raw value, time or NaN."""

    lane: Offsets
    series: Offsets
    value: Floats
    time: Floats

    def merged_with(self, other: _Rows) -> _Rows:
        """The rows of both, in line order."""
        columns = [np.concatenate(columns) for columns in zip(self, other, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return _Rows(*(column[order] for column in columns))


Stamps = list[tuple[int, int]]
"""(line index in the block, time in ms) of each line that contains only a time."""


# -- one file


class _TextReader:
    """Reads one file block by block; keeps the series by key, and the time for lines without one."""

    def __init__(self, source: InputSource, sink: Sink) -> None:
        self._measurements = Measurements(source.path, sink, nan_is_blank=False)
        self._modified = source.modified
        self._keys = Keys()
        self._unknown_names: set[bytes] = set()
        self._scrape_time_ms: int | None = None
        """The last time found between scrapes."""
        self._latest_ms = 0
        """The latest of the lines' own times."""
        self._last_untimed = np.empty(0)
        """The last value without any time, by series."""
        self._untimed = 0
        self._malformed = self._first_malformed = 0

    def _series(self, block: Block, lines: _Lines, lanes: Offsets) -> Offsets:
        """The series number of each line, or UNKNOWN, FULL or IRREGULAR."""
        starts, ends = lines.start[lanes], lines.series_end[lanes]

        def learn(index: int) -> int:
            return self._learn(block.data[starts[index] : ends[index]], block, lines, int(lanes[index]))

        return self._keys.numbers(block.data, starts, ends, learn)

    def _learn(self, key: bytes, block: Block, lines: _Lines, lane: int) -> int:
        """The series number for a key; IRREGULAR if the bytes are not a series."""
        number = self._keys.get(key)
        if number is not None:
            return number
        name = key.partition(b"{")[0]
        if name in self._unknown_names:
            number = UNKNOWN
        elif len(self._measurements) >= MAX_SERIES:
            return self._measurements.count_rejected()
        elif (parsed := series_of(key.decode("utf-8", "replace"))) is None:
            return IRREGULAR
        else:
            start, end = int(lines.start[lane]), int(lines.end[lane])
            number = self._measurements.series(*parsed, block.line + lane, block.offset + start, end - start)
            if number == UNKNOWN and name and len(self._unknown_names) < MAX_NAMES:
                self._unknown_names.add(name)
        if number >= 0 or len(self._keys) < MAX_SERIES:
            self._keys.add(key, number)
        return number

    def take(self, block: Block) -> None:
        lines = _lines(block.data)
        lanes = np.flatnonzero(lines.plain)
        series = self._series(block, lines, lanes)
        values, is_parsed = decimals(block.data, lines.series_end[lanes] + 1, lines.value_end[lanes])
        timed = lines.timed[lanes]
        time_bounds = (np.where(timed, bounds[lanes], 0) for bounds in (lines.last + 1, lines.end))
        times, time_parsed = decimals(block.data, *time_bounds)
        times[~timed] = np.nan
        is_parsed &= time_parsed | ~timed
        usable = is_parsed & (series >= 0)
        rows = _Rows(lanes[usable], series[usable], values[usable], times[usable])
        stamps = self._comments(block, lines)
        irregular = np.concatenate(
            [lanes[~is_parsed & (series >= 0) | (series == IRREGULAR)], np.flatnonzero(lines.irregular)]
        )
        if len(irregular):
            rows = rows.merged_with(self._parse_irregular(block, lines, np.sort(irregular), stamps))
        self._assign_times(rows, sorted(stamps))

    def _comments(self, block: Block, lines: _Lines) -> Stamps:
        """The comments that contain a time."""
        stamps = []
        for lane in np.flatnonzero(lines.comment).tolist():
            start, end = int(lines.start[lane]), int(lines.end[lane])
            if block.data[start + 2 : start + 4] in HELP:
                continue
            time = stamp(block.data[start:end].decode("utf-8", "replace"))
            if time is not None:
                stamps.append((lane, round(time * 1000)))
        return stamps

    def _parse_irregular(self, block: Block, lines: _Lines, irregular: Offsets, stamps: Stamps) -> _Rows:
        """Parse these lines with the full grammar: returns the measurements, appends lines with only a time to
        ``stamps``."""
        rows: list[tuple[int, int, float, float]] = []
        for lane in irregular.tolist():
            text = block.data[lines.start[lane] : lines.end[lane]].strip()
            if not text or text.startswith(b"#"):
                continue
            line = line_of(text)
            number = IRREGULAR if line is None else self._learn(line.series, block, lines, lane)
            if line is not None and number >= 0:
                rows.append((lane, number, line.value, np.nan if line.time is None else line.time))
            elif number != IRREGULAR:
                continue
            elif (time := stamp(text.decode("utf-8", "replace"))) is not None:
                stamps.append((lane, round(time * 1000)))
            else:
                self._malformed += 1
                self._first_malformed = self._first_malformed or block.line + lane
        lane, series, value, time_ = zip(*rows, strict=True) if rows else ((), (), (), ())
        return _Rows(np.array(lane, np.intp), np.array(series, np.intp), np.array(value, float), np.array(time_, float))

    def _assign_times(self, rows: _Rows, stamps: Stamps) -> None:
        """Assign each value its line's own time or that of its scrape; keep values without either."""
        lanes, series, values, times = rows
        times_ms, _ = milliseconds(times)
        self._latest_ms = max(self._latest_ms, int(times_ms.max(initial=0)))
        untimed = np.isnan(times)
        if untimed.any():
            marks = np.array([self._scrape_time_ms or 0, *(time for _, time in stamps)], dtype=np.int64)
            after = np.searchsorted(np.array([lane for lane, _ in stamps], dtype=np.intp), lanes)
            times_ms = np.where(untimed, marks[after], times_ms)
            unplaced = untimed & (times_ms == 0)
            self._store_untimed(series[unplaced], values[unplaced])
            series, values, times_ms = series[~unplaced], values[~unplaced], times_ms[~unplaced]
        if stamps:
            self._scrape_time_ms = stamps[-1][1]
        self._measurements.add(series, times_ms, values)

    def _store_untimed(self, series: Offsets, values: Floats) -> None:
        """Store the last value of each series without any time."""
        self._untimed += len(series)
        self._last_untimed = np.concatenate(
            [self._last_untimed, np.full(len(self._measurements) - len(self._last_untimed), BLANK)]
        )
        self._last_untimed[series] = values

    def finish(self, blocks: Blocks, cut: bool) -> Result:
        """Place the values without a time; the result for the file."""
        note, kept_all = self._place_untimed()
        notes = [
            note,
            _count_note(self._malformed, "malformed line", self._first_malformed),
            _count_note(blocks.too_long, f"line longer than {MAX_LINE_BYTES >> 20} MiB", blocks.first_too_long),
            "truncated within its last line" if cut else "",
        ]
        return self._measurements.result(notes, lost=bool(self._malformed or blocks.too_long or cut or not kept_all))

    def _place_untimed(self) -> tuple[str, bool]:
        """Assign the file's time to values without one, if no other is known. Returns the note, and whether all were
        kept."""
        if not self._untimed:
            return "", True
        if self._scrape_time_ms is not None:
            return f"{self._untimed:,} samples before the first time, dropped", False
        time = self._latest_ms / 1000 if self._latest_ms else self._modified
        if time is None:
            return f"{self._untimed:,} samples without a time, and the file has no mtime: dropped", False
        series_with_value = np.flatnonzero(self._last_untimed != BLANK)
        self._measurements.add(
            series_with_value,
            np.full(len(series_with_value), round(time * 1000)),
            self._last_untimed[series_with_value],
        )
        origin = "the latest time in it" if self._latest_ms else "when the file was last written"
        if self._untimed > len(series_with_value):
            return (
                f"scrapes without times: the last is assumed to be of {iso_time(time)}, {origin}; others dropped",
                False,
            )
        return f"a scrape without times: assumed to be of {iso_time(time)}, {origin}", True


def _count_note(count: int, noun: str, first_line: int) -> str:
    if not count:
        return ""
    return f"{count:,} {noun}{'s' if count > 1 else ''} (first: line {first_line:,})"


FORMAT = Format("prometheus-text", "Prometheus text exposition and OpenMetrics", "metric", _sniff, _read)
