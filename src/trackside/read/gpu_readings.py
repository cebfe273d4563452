"""What GPU tools print, on its way into measurements: readings of one GPU at one time, each a field and its value.

Such tools name no node (the file's path may), often no time, and sometimes not even the GPU. What they leave out is
left out here too, or placed by what else the file says; :meth:`Readings.result` then says so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np

from trackside.catalog.dialect import translate
from trackside.catalog.metrics import METRICS
from trackside.catalog.units import factor
from trackside.logs.stamp import find_time
from trackside.read.format import HEAD, Collected, Result, Sink, Source
from trackside.read.measurements import Measurements
from trackside.read.scrape_times import stamp

BATCH = 1 << 16
"""Values that waited for their time and are handed on at once."""
MOST_GPUS = 1 << 17
"""GPUs, their instances and their processes that are told apart in one file."""
MOST_LATE = 1 << 24
"""Values that wait for their time to be known: two days of eight GPUs with ten columns, in some 350 MB."""
_EPOCH_S = 1e9, 1e11
"""What a bare number must lie between to be POSIX seconds; a thousand times as much is milliseconds."""
_DAY_S = 86400.0
INTERVAL_S = 1.0
"""What lies between the samples of a tool that prints no times, unless it's told otherwise."""
_CLOCK = re.compile(r"(\d{1,2}):(\d\d):(\d\d)")
_DATE = re.compile(r"(20\d\d)[-/]?(\d\d)[-/]?(\d\d)")
_ZONE = re.compile(r"\d(?:Z|\s?[+-]\d\d:?\d\d)\s*$|\b(?:UTC|GMT)\b")

_LABELS = ("index", "uuid", "pci_bus_id", "gpu_model", "gpu_i_id", "pid")
Reading = tuple[str, float, str]
"""(foreign field, number, its unit as written) of one GPU at one time; no unit: that of the dialect."""
Pairs = list[tuple[int, float]]
"""(number of the series, raw value) of one GPU at one time."""
When = tuple[float, bool]
"""A time, and whether it is a POSIX time; else it is relative to one that isn't known yet."""


class Line(NamedTuple):
    """A line and its place: 1-based number, byte offset, text without its end."""

    number: int
    offset: int
    text: str


def head_lines(source: Source) -> Iterator[Line]:
    """The lines of a file's head that hold anything, without one that the head's end cuts."""
    lines = source.text.splitlines()
    if len(source.head) >= HEAD:
        lines.pop()
    return (Line(number, 0, text) for number, text in enumerate(lines, 1) if text.strip())


class Gpu(NamedTuple):
    """Which GPU, as far as a tool says it; empty where it doesn't. ``number``: its index. ``mig``: an instance's id."""

    number: str = ""
    uuid: str = ""
    pci: str = ""
    model: str = ""
    mig: str = ""
    pid: str = ""
    """Of the process that a reading is of."""

    def labels(self) -> dict[str, str]:
        """By the names that all dialects of GPUs know them by."""
        named = zip(_LABELS, self, strict=True)
        return {name: value for name, value in named if value}


class Readings:
    """The readings of one file. ``now`` is the last time that the file gave, POSIX seconds, None before the first."""

    def __init__(self, source: Source, sink: Sink) -> None:
        self.path = source.path
        self.written = source.modified
        self.now: float | None = None
        self.lost = 0
        """Lines that should have been readings and could not be read."""
        self.event = sink.event
        self._measurements = Measurements(source.path, sink)
        self._places: dict[Gpu, dict[str, int]] = {}
        """GPU -> field -> number of the series"""
        self._factors: dict[tuple[str, str], float] = {}
        self.naive = False
        """Whether a time was local, without its zone."""
        self._odd_units = 0
        self._notes: dict[str, int] = {}
        self._partial = False
        self._numbers: dict[str, str] = {}

    @classmethod
    def discarded(cls, source: Source) -> Self:
        """Those of a file's head, which are only looked at."""
        return cls(Source("", b"", source.stream), Collected())

    # -- times and GPUs

    def time(self, text: str) -> float | None:
        """A printed time, as POSIX seconds; it becomes ``now``. Local times without a zone are read as UTC."""
        found = _epoch(text)
        if found is None and (found := find_time(text) or stamp(text)) is not None:
            self.naive = self.naive or _ZONE.search(text) is None
        if found is not None:
            self.now = found
        return found

    def learn(self, gpu: Gpu) -> None:
        """Remember which index a UUID and an address belong to, for output that gives only these."""
        if gpu.number and len(self._numbers) < MOST_GPUS:
            for name in (gpu.uuid, gpu.pci):
                if name.strip("GPU-0:."):  # a masked UUID is all zeros
                    self._numbers[name] = gpu.number

    def named(self, gpu: Gpu) -> Gpu:
        """The GPU with its index, where something before told it."""
        if gpu.number:
            return gpu
        index = self._numbers.get(gpu.uuid) or self._numbers.get(gpu.pci) or ""
        return gpu._replace(number=index) if index else gpu

    # -- values

    def pairs(self, line: Line, gpu: Gpu, values: Iterable[Reading]) -> Pairs:
        """The values of foreign fields as numbers of series and raw values in the dialect's units. Left out is what
        nothing asks for, and what is in a unit that is none of its field's."""
        places, factors = self._places.get(gpu), self._factors
        if places is None:
            if len(self._places) >= MOST_GPUS:
                self.note(f"more than {MOST_GPUS:,} GPUs, instances and processes: {{}} readings of others not kept")
                return []
            places = self._places[gpu] = {}
        pairs = []
        for name, number, unit in values:
            place = places.get(name)
            if place is None:
                place = self._measurements.series(name, gpu.labels(), line.number, line.offset, len(line.text))
                places[name] = place
            if place < 0:
                continue
            if unit:
                factor = factors.get((name, unit))
                if factor is None:
                    factor = factors[name, unit] = _factor(name, unit)
                if not factor:
                    self._odd_units += 1
                    continue
                number *= factor
            pairs.append((place, number))
        return pairs

    def first_pairs(
        self,
        line: Line,
        gpu: Gpu,
        fields: Mapping[str, Sequence[str]],
        value_at: Callable[[str], tuple[float, str] | None],
    ) -> Pairs:
        """Of each field the first of its places that holds a value that is taken: for tools that name one figure in
        several ways."""
        found: Pairs = []
        for name, places in fields.items():
            for place in places:
                value = value_at(place)
                if value is not None and (pairs := self.pairs(line, gpu, [(name, *value)])):
                    found += pairs
                    break
        return found

    def add(self, time: float, pairs: Pairs) -> None:
        """Take the values of one time."""
        self._measurements.row(time, pairs)

    def late(self, columns: tuple[array[int], array[float], array[float]], start: float) -> None:
        """Take series, times and values; times are relative to ``start``, POSIX seconds, which is known by now."""
        places, times, values = (np.frombuffer(column, column.typecode) for column in columns)
        for begin in range(0, len(places), BATCH):
            some = slice(begin, begin + BATCH)
            times_ms = np.rint((times[some] + start) * 1000).astype(np.int64)
            self._measurements.add(places[some], times_ms, values[some])

    def unasked(self, name: str) -> None:
        """A foreign field that holds a figure and that no metric of ours is for."""
        self._measurements.unasked(name)

    # -- the end

    def note(self, text: str, count: int = 1, lost: bool = True) -> None:
        """Something to be said of the file; ``{}`` in it becomes how often. ``lost``: there was more to be had."""
        self._notes[text] = self._notes.get(text, 0) + count
        self._partial = self._partial or lost

    def result(self, empty: str) -> Result:
        """What came of the file. ``empty``: what to say of one that is whole and holds no reading."""
        notes = [
            "its times are local and name no zone: read as UTC" if self.naive else "",
            f"{self._odd_units:,} values in a unit that is none of their metric's" if self._odd_units else "",
            f"{self.lost:,} lines could not be read" if self.lost else "",
            *(text.format(f"{count:,}") for text, count in self._notes.items()),
        ]
        notes = [note for note in notes if note]
        lost = self._partial or bool(self.lost or self._odd_units)
        if not self._measurements.named:
            return Result(0, "partial" if lost else "empty", "; ".join(notes or [empty]))
        return self._measurements.result(notes, lost)


class Clock:
    """When rows were printed, from what they say of it and from GPUs that come round again.

    Rows that give no time, or no date, are held until the end, when :meth:`settle` finds where they lie. ``remedy``:
    how the tool is made to print times.
    """

    def __init__(self, readings: Readings, remedy: str) -> None:
        self._readings, self._remedy = readings, remedy
        self._late = array("i"), array("d"), array("d")
        """Number of the series, time relative to an unknown one, value."""
        self._latest = 0.0
        """The largest relative time, seconds."""
        self._began = readings.now
        self._ticks = 0
        self._round: set[str] = set()
        self._days = 0
        self._last = 0.0
        self._timed = False

    def now(self, cells: Mapping[str, str], gpu: str) -> When | None:
        """When a row was printed; None where its date or time is none. ``gpu`` stands for the row among those of one
        sample."""
        date, clock = cells.get("date"), cells.get("time")
        if date is not None:
            return self._of_date(date, clock)
        if clock is not None:
            return self._of_day(clock)
        if gpu in self._round:
            self._round.clear()
            self._ticks += 1
        self._round.add(gpu)
        return self._ticks * INTERVAL_S, False

    def _of_date(self, date: str, clock: str | None) -> When | None:
        found = _DATE.fullmatch(date)
        if found is None or clock is None:
            return None
        time = self._readings.time(f"{found[1]}-{found[2]}-{found[3]} {clock}")
        return None if time is None else (time, True)

    def _of_day(self, clock: str) -> When | None:
        found = _CLOCK.fullmatch(clock)
        if found is None:
            return None
        time = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        if time < self._last - _DAY_S / 2:
            self._days += 1
        self._last, self._timed = time, True
        return self._days * _DAY_S + time, False

    def add(self, when: When, pairs: Pairs) -> None:
        """Take the values of a row."""
        time, is_posix = when
        places, times, values = self._late
        if is_posix:
            self._readings.add(time, pairs)
        elif len(places) >= MOST_LATE:
            self._readings.note(f"more than {MOST_LATE:,} values without a full time: {{}} samples after them not kept")
        else:
            places.extend([place for place, _ in pairs])
            times.extend([time] * len(pairs))
            values.extend([value for _, value in pairs])
            self._latest = max(self._latest, time)

    def settle(self) -> None:
        """Place what has no full time: after what the file said before, else so that it ends when the file did."""
        if not self._late[0]:
            return
        readings, written, latest = self._readings, self._readings.written, self._latest
        if self._timed and written is not None:
            days = round((written - latest) / _DAY_S)  # the date at which the last of them is nearest to the file's
            self._place(days * _DAY_S)
            readings.naive = True
            readings.note("it gives times without a date: the date is that of the file", lost=False)
        elif self._timed:
            readings.note(f"it gives times without a date ({self._remedy}): not placed")
        elif self._began is not None:
            if latest > 0:
                text = f"samples without a time ({self._remedy}): taken as one a second after the time before them"
                readings.note(text, lost=False)
            self._place(self._began)
            readings.now = self._began + latest
        elif written is not None:
            self._place(written - latest)
            placed = "taken as one sample a second, up to when the file was last written"
            readings.note(f"it gives no times ({self._remedy}): {placed}")
        else:
            readings.note(f"it gives no times ({self._remedy}): not placed")

    def _place(self, start: float) -> None:
        """Let go of what waits: relative time 0 is ``start``, POSIX seconds."""
        self._readings.late(self._late, start)
        self._late = array("i"), array("d"), array("d")


def _factor(name: str, unit: str) -> float:
    """From a written unit to the one that the dialect takes a field's bare numbers for; 0 for a unit that is none of
    the field's."""
    known = translate(name, {})
    try:
        return 0.0 if known is None else factor(unit, METRICS[known.metric].unit) / known.scale
    except ValueError:
        return 0.0


def _epoch(text: str) -> float | None:
    """A bare number as POSIX seconds, told from milliseconds by its size."""
    try:
        value = float(text)
    except ValueError:
        return None
    low, high = _EPOCH_S
    if low <= value < high:
        return value
    return value / 1000 if low <= value / 1000 < high else None
