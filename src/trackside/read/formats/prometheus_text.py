"""Prometheus text exposition and OpenMetrics: one scrape or a million in a file, as exporters and promtool write them.

Where lines carry no times, the time of a scrape is what a comment or a bare line before it says (the output of
``date``, say). Without that too, the file holds one scrape, taken when the file was last written.

Scrapes repeat the same series again and again, so a block of lines is taken as a whole: where each line's series, value
and time lie is worked out for all lines at once, the series' bytes are looked up, and the numbers are read together.
That makes a file of a billion lines a matter of minutes. The grammar is asked only for a series not seen before and for
a line that is spaced in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trackside.catalog.dialect import BLANK, translate
from trackside.catalog.exposition import HELP, line_of, series_of
from trackside.read.blocks import LONGEST, Block, Blocks
from trackside.read.decimals import Flags, Floats, Places, decimals
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.keys import Keys
from trackside.read.measurements import MOST_NAMES, MOST_SERIES, UNKNOWN, Measurements, milliseconds
from trackside.read.scrape_times import shown, stamp

_HEAD_LINES = 400
_ENOUGH = 0.9
"""Share of the head's lines that must be exposition."""
ODD = -4
"""Bytes that are no series: the grammar is asked what the line is."""


def _sniff(source: Source) -> Match | None:
    lines = source.head.split(b"\n")
    if len(source.head) == len(source.head.rstrip(b"\n")) and len(lines) > 1:
        lines.pop()  # the head's end cuts it
    good = bad = labelled = described = known = 0
    for text in lines[:_HEAD_LINES]:
        text = text.strip()
        if not text:
            continue
        if text.startswith(b"#"):
            described += text[2:7] in (b"HELP ", b"TYPE ")
            continue
        line = line_of(text) if len(text) < 1 << 14 else None
        parsed = None if line is None else series_of(line.series.decode("utf-8", "replace"))
        if parsed is not None:
            good += 1
            labelled += bool(parsed[1])
            known += translate(*parsed) is not None
        elif stamp(text.decode("utf-8", "replace")) is None:
            bad += 1
    if not good or good < _ENOUGH * (good + bad) or not (labelled or described or known):
        return None
    return Match(0.9 if described or known else 0.7, "OpenMetrics" if b"\n# EOF" in source.head else "Prometheus text")


def _read(source: Source, sink: Sink) -> Result:
    reading, blocks, cut = _Reading(source, sink), Blocks(source.stream), False
    for block in blocks:
        if block.cut:  # the rest of a value may be missing, and nobody would see it
            cut = not block.data.lstrip().startswith(b"#")
        else:
            reading.take(block)
    return reading.finish(blocks, cut)


# -- lines as columns


@dataclass(slots=True)
class _Lines:
    """Where in a block each line's series, value and time lie. ``odd``: lines that this can't tell of."""

    start: Places
    series_end: Places
    value_end: Places
    last: Places
    """The last blank."""
    end: Places
    timed: Flags
    comment: Flags
    odd: Flags
    plain: Flags
    """Neither blank nor comment nor odd."""


def _lines(data: bytes) -> _Lines:
    """Split a block: value and time follow the last blanks, the series ends with its brace or at the first blank."""
    codes = np.frombuffer(data, dtype=np.uint8)
    gaps = np.flatnonzero(codes <= 32)
    is_end = codes[gaps] == 10
    stops = end = gaps[is_end]
    if b"\r" in data:
        end = stops - (codes[np.maximum(stops - 1, 0)] == 13)
        returns = (codes[gaps] == 13) & np.append(is_end[1:], False) & (np.diff(gaps, append=-1) == 1)
        gaps, is_end = gaps[~returns], is_end[~returns]
    start = np.concatenate([[0], stops[:-1] + 1])
    place = np.flatnonzero(is_end)
    last, before = (np.where(place >= back, gaps[np.maximum(place - back, 0)], -1) for back in (1, 2))
    one, two = last >= start, before >= start
    closed = one & (codes[np.maximum(last - 1, 0)] == ord("}"))
    timed = two & (codes[np.maximum(before - 1, 0)] == ord("}")) & ~closed
    plain = closed | timed
    if not plain.all():
        third = np.where(place >= 3, gaps[np.maximum(place - 3, 0)], -1)
        bare = one & ~plain & (third < start)
        plain |= bare
        timed |= bare & two
    comment = codes[start] == ord("#")
    written = (end > start) & ~comment
    odd = written & ~plain
    plain &= written
    series_end = np.where(timed, before, last)
    return _Lines(start, series_end, np.where(timed, last, end), last, end, timed, comment, odd, plain)


class _Rows(NamedTuple):
    """Measurements of a block as columns: the line, the series' number, the value as it stands, the time or NaN."""

    lane: Places
    series: Places
    value: Floats
    time: Floats

    def joined(self, other: _Rows) -> _Rows:
        """Both, in the order of their lines."""
        both = [np.concatenate(columns) for columns in zip(self, other, strict=True)]
        order = np.argsort(both[0], kind="stable")
        return _Rows(*(column[order] for column in both))


Stamps = list[tuple[int, int]]
"""(line of the block, time in ms) of each line that holds nothing but a time."""


# -- one file


class _Reading:
    """One file on its way through: which series its keys are, and what time it is where lines don't say."""

    def __init__(self, source: Source, sink: Sink) -> None:
        self._found = Measurements(source.path, sink, holes=False)
        self._modified = source.modified
        self._known = Keys()
        self._unknown_names: set[bytes] = set()
        self._now_ms: int | None = None
        """The last time that stood between scrapes."""
        self._latest_ms = 0
        """Of the lines' own times."""
        self._last = np.empty(0)
        """Of each series the last value without any time."""
        self._untimed = 0
        self._malformed = self._first_malformed = 0

    def _series(self, block: Block, lines: _Lines, lanes: Places) -> Places:
        """The number of each line's series, or UNKNOWN, FULL or ODD."""
        starts, ends = lines.start[lanes], lines.series_end[lanes]

        def learn(place: int) -> int:
            return self._learn(block.data[starts[place] : ends[place]], block, lines, int(lanes[place]))

        return self._known.numbers(block.data, starts, ends, learn)

    def _learn(self, key: bytes, block: Block, lines: _Lines, lane: int) -> int:
        """The number of the series that a line names; ODD where these bytes are no name of one."""
        number = self._known.get(key)
        if number is not None:
            return number
        name = key.partition(b"{")[0]
        if name in self._unknown_names:
            number = UNKNOWN
        elif len(self._found) >= MOST_SERIES:
            return self._found.refuse()
        elif (parsed := series_of(key.decode("utf-8", "replace"))) is None:
            return ODD
        else:
            start, end = int(lines.start[lane]), int(lines.end[lane])
            number = self._found.series(*parsed, block.line + lane, block.offset + start, end - start)
            if number == UNKNOWN and name and len(self._unknown_names) < MOST_NAMES:
                self._unknown_names.add(name)
        if number >= 0 or len(self._known) < MOST_SERIES:
            self._known.add(key, number)
        return number

    def take(self, block: Block) -> None:
        lines = _lines(block.data)
        lanes = np.flatnonzero(lines.plain)
        series = self._series(block, lines, lanes)
        values, good = decimals(block.data, lines.series_end[lanes] + 1, lines.value_end[lanes])
        timed = lines.timed[lanes]
        places = (np.where(timed, place[lanes], 0) for place in (lines.last + 1, lines.end))
        times, read = decimals(block.data, *places)
        times[~timed] = np.nan
        good &= read | ~timed
        wanted = good & (series >= 0)
        rows = _Rows(lanes[wanted], series[wanted], values[wanted], times[wanted])
        stamps = self._comments(block, lines)
        odd = np.concatenate([lanes[~good & (series >= 0) | (series == ODD)], np.flatnonzero(lines.odd)])
        if len(odd):
            rows = rows.joined(self._one_by_one(block, lines, np.sort(odd), stamps))
        self._place(rows, sorted(stamps))

    def _comments(self, block: Block, lines: _Lines) -> Stamps:
        """The comments that hold a time."""
        stamps = []
        for lane in np.flatnonzero(lines.comment).tolist():
            start, end = int(lines.start[lane]), int(lines.end[lane])
            if block.data[start + 2 : start + 4] in HELP:
                continue
            time = stamp(block.data[start:end].decode("utf-8", "replace"))
            if time is not None:
                stamps.append((lane, round(time * 1000)))
        return stamps

    def _one_by_one(self, block: Block, lines: _Lines, odd: Places, stamps: Stamps) -> _Rows:
        """Those of these lines that are measurements; a time alone is one more stamp."""
        rows: list[tuple[int, int, float, float]] = []
        for lane in odd.tolist():
            text = block.data[lines.start[lane] : lines.end[lane]].strip()
            if not text or text.startswith(b"#"):
                continue
            line = line_of(text)
            number = ODD if line is None else self._learn(line.series, block, lines, lane)
            if line is not None and number >= 0:
                rows.append((lane, number, line.value, np.nan if line.time is None else line.time))
            elif number != ODD:
                continue
            elif (time := stamp(text.decode("utf-8", "replace"))) is not None:
                stamps.append((lane, round(time * 1000)))
            else:
                self._malformed += 1
                self._first_malformed = self._first_malformed or block.line + lane
        lane, series, value, time_ = zip(*rows, strict=True) if rows else ((), (), (), ())
        return _Rows(np.array(lane, np.intp), np.array(series, np.intp), np.array(value, float), np.array(time_, float))

    def _place(self, rows: _Rows, stamps: Stamps) -> None:
        """Give each value its time: its line's own, or that of the scrape it stands in, or none yet."""
        lanes, series, values, times = rows
        times_ms, _ = milliseconds(times)
        self._latest_ms = max(self._latest_ms, int(times_ms.max(initial=0)))
        untimed = np.isnan(times)
        if untimed.any():
            marks = np.array([self._now_ms or 0, *(time for _, time in stamps)], dtype=np.int64)
            after = np.searchsorted(np.array([lane for lane, _ in stamps], dtype=np.intp), lanes)
            times_ms = np.where(untimed, marks[after], times_ms)
            waiting = untimed & (times_ms == 0)
            self._keep(series[waiting], values[waiting])
            series, values, times_ms = series[~waiting], values[~waiting], times_ms[~waiting]
        if stamps:
            self._now_ms = stamps[-1][1]
        self._found.add(series, times_ms, values)

    def _keep(self, series: Places, values: Floats) -> None:
        """Remember the last value of each series that has no time at all."""
        self._untimed += len(series)
        self._last = np.concatenate([self._last, np.full(len(self._found) - len(self._last), BLANK)])
        self._last[series] = values

    def finish(self, blocks: Blocks, cut: bool) -> Result:
        """Place what has no time, and say what was lost."""
        note, placed = self._untimed_placed()
        notes = [
            note,
            _counted(self._malformed, "malformed line", self._first_malformed),
            _counted(blocks.too_long, f"line longer than {LONGEST >> 20} MiB", blocks.first_too_long),
            "cut off within its last line" if cut else "",
        ]
        return self._found.result(notes, lost=bool(self._malformed or blocks.too_long or cut or not placed))

    def _untimed_placed(self) -> tuple[str, bool]:
        """Give values without a time that of the file, if it holds no other; what to say, and whether all were kept."""
        if not self._untimed:
            return "", True
        if self._now_ms is not None:
            return f"{self._untimed:,} samples stand before the first time, not kept", False
        time = self._latest_ms / 1000 if self._latest_ms else self._modified
        if time is None:
            return f"{self._untimed:,} samples have no time, and the file has none: not kept", False
        known = np.flatnonzero(self._last != BLANK)
        self._found.add(known, np.full(len(known), round(time * 1000)), self._last[known])
        origin = "the latest time in it" if self._latest_ms else "when the file was last written"
        if self._untimed > len(known):
            return f"scrapes without times: the last is taken to be of {shown(time)}, {origin}; others not kept", False
        return f"a scrape without times: taken to be of {shown(time)}, {origin}", True


def _counted(count: int, what: str, first: int) -> str:
    if not count:
        return ""
    return f"{count:,} {what}{'s' if count > 1 else ''} (first: line {first:,})"


FORMAT = Format("prometheus-text", "Prometheus text exposition and OpenMetrics", "metric", _sniff, _read)
