"""What GPU tools print, on its way into measurements: which GPU, when, and in which unit.

Such tools name no node (the file's path may), often no time, and sometimes not even the GPU. What they leave out is
left out here too, or placed by what else the file says; :meth:`Readings.result` then says so.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import translate, unit_factor
from trackside.logs.stamp import find_time
from trackside.read.format import Result, Sink, Source
from trackside.read.measurements import Measurements
from trackside.read.scrape_times import stamp

BATCH = 1 << 16
"""Values handed on at once."""
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
Pairs = list[tuple[int, float]]
"""(number of the series, raw value) of one GPU at one time."""


class Line(NamedTuple):
    """A line and its place: 1-based number, byte offset, text without its end."""

    number: int
    offset: int
    text: str


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
        self._beyond: dict[str, int] = {}
        """Those of all GPUs for which there is no room."""
        self._factors: dict[tuple[str, str], float | None] = {}
        self._batch = array("i"), array("q"), array("d")
        self.naive = False
        """Whether a time was local, without its zone."""
        self._odd_units = 0
        self._notes: dict[str, int] = {}
        self._partial = False
        self._numbers: dict[str, str] = {}

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

    def pair(self, line: Line, gpu: Gpu, name: str, value: float, unit: str = "") -> tuple[int, float] | None:
        """A value of a foreign field as its series' number and its raw value in the dialect's unit; None where nothing
        asks for the field, or where the unit is none of its own."""
        return self.pair_of(self.places(gpu), line, gpu, name, value, unit)

    def places(self, gpu: Gpu) -> dict[str, int]:
        """The series of one GPU so far, by field: for :meth:`pair_of`, where a row has many fields."""
        found = self._places.get(gpu)
        if found is None:
            if len(self._places) >= MOST_GPUS:
                self.note(f"more than {MOST_GPUS:,} GPUs, instances and processes: {{}} readings of others not kept")
                return self._beyond
            found = self._places[gpu] = {}
        return found

    def pair_of(
        self, places: dict[str, int], line: Line, gpu: Gpu, name: str, value: float, unit: str
    ) -> tuple[int, float] | None:
        """See :meth:`pair`."""
        if places is self._beyond:
            return None
        place = places.get(name)
        if place is None:
            place = self._measurements.series(name, gpu.labels(), line.number, line.offset, len(line.text))
            places[name] = place
        if place < 0:
            return None
        factor = self._factor(name, unit) if unit else 1.0
        if factor is None:
            self._odd_units += 1
            return None
        return place, value * factor

    def _factor(self, name: str, unit: str) -> float | None:
        """From a written unit to the one that the dialect takes the field's bare numbers for."""
        if (name, unit) not in self._factors:
            known = translate(name, {})
            try:
                found = None if known is None else unit_factor(unit, known.metric) / known.scale
            except ValueError:
                found = None
            self._factors[name, unit] = found
        return self._factors[name, unit]

    def add(self, time: float, pairs: Pairs) -> None:
        """Take the values of one time."""
        places, times, values = self._batch
        places.extend([place for place, _ in pairs])
        times.extend([round(time * 1000)] * len(pairs))
        values.extend([value for _, value in pairs])
        if len(places) >= BATCH:
            self._hand_on()

    def _hand_on(self) -> None:
        places, times, values = self._batch
        self._batch = array("i"), array("q"), array("d")
        self.block(np.frombuffer(places, np.int32), np.frombuffer(times, np.int64), np.frombuffer(values, np.float64))

    def block(self, places: NDArray[np.int32], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Take many values at once: columns of equal length."""
        self._measurements.add(places, times_ms, values)

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
        if self._batch[0]:
            self._hand_on()
        notes = [
            "its times are local and name no zone: read as UTC" if self.naive else "",
            f"{self._odd_units:,} values in a unit that is none of their metric's" if self._odd_units else "",
            f"{self.lost:,} lines could not be read" if self.lost else "",
            *(text.format(f"{count:,}") for text, count in self._notes.items()),
        ]
        said = [note for note in notes if note]
        lost = self._partial or bool(self.lost or self._odd_units)
        if not self._measurements.named:
            return Result(0, "partial" if lost else "empty", "; ".join(said or [empty]))
        return self._measurements.result(said, lost)


class Late:
    """Values whose times are only known relative to each other, until the end of the output tells where they lie."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._places, self._times, self._values = array("i"), array("d"), array("d")
        self.last = 0.0
        """The largest relative time, seconds."""

    def __len__(self) -> int:
        return len(self._places)

    def add(self, time: float, pairs: Iterable[tuple[int, float]]) -> None:
        """Hold values of a time relative to an unknown one, seconds."""
        if len(self) >= MOST_LATE:
            self._readings.note(f"more than {MOST_LATE:,} values without a full time: {{}} samples after them not kept")
            return
        for place, value in pairs:
            self._places.append(place)
            self._times.append(time)
            self._values.append(value)
        self.last = max(self.last, time)

    def settle(self, start: float) -> None:
        """Let go of all: relative time 0 is ``start``, POSIX seconds."""
        places, values = np.frombuffer(self._places, np.int32), np.frombuffer(self._values, np.float64)
        times = np.frombuffer(self._times, np.float64)
        for begin in range(0, len(self), BATCH):
            some = slice(begin, begin + BATCH)
            self._readings.block(places[some], np.rint((times[some] + start) * 1000).astype(np.int64), values[some])
        self._places, self._times, self._values = array("i"), array("d"), array("d")


class Clock:
    """When rows were printed, from what they say of it and from GPUs that come round again.

    Rows that give no time, or no date, are held until the end, when :meth:`settle` finds where they lie. ``remedy``:
    how the tool is made to print times.
    """

    def __init__(self, readings: Readings, remedy: str) -> None:
        self._readings, self._remedy = readings, remedy
        self._late = Late(readings)
        self._began = readings.now
        self._ticks = 0
        self._round: set[str] = set()
        self._days = 0
        self._last = 0.0
        self._timed = False

    def now(self, cells: Mapping[str, str], gpu: str) -> tuple[float, bool] | None:
        """(time, whether it is a POSIX time) of a row; None where its date or time is none. ``gpu`` stands for the row
        among those of one sample."""
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

    def _of_date(self, date: str, clock: str | None) -> tuple[float, bool] | None:
        found = _DATE.fullmatch(date)
        if found is None or clock is None:
            return None
        time = self._readings.time(f"{found[1]}-{found[2]}-{found[3]} {clock}")
        return None if time is None else (time, True)

    def _of_day(self, clock: str) -> tuple[float, bool] | None:
        found = _CLOCK.fullmatch(clock)
        if found is None:
            return None
        time = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3])
        if time < self._last - _DAY_S / 2:
            self._days += 1
        self._last, self._timed = time, True
        return self._days * _DAY_S + time, False

    def add(self, time: float, known: bool, pairs: list[tuple[int, float]]) -> None:
        """Take the values of a row."""
        if known:
            self._readings.add(time, pairs)
        else:
            self._late.add(time, pairs)

    def settle(self) -> None:
        """Place what has no full time: after what the file said before, else so that it ends when the file did."""
        if not len(self._late):
            return
        written, last = self._readings.written, self._late.last
        if self._timed and written is not None:
            days = round((written - last) / _DAY_S)  # the date at which the last of them is nearest to the file's
            self._late.settle(days * _DAY_S)
            self._readings.naive = True
            self._readings.note("it gives times without a date: the date is that of the file", lost=False)
        elif self._timed:
            self._readings.note(f"it gives times without a date ({self._remedy}): not placed")
        elif self._began is not None:
            if last > 0:
                said = f"samples without a time ({self._remedy}): taken as one a second after the time before them"
                self._readings.note(said, lost=False)
            self._late.settle(self._began)
            self._readings.now = self._began + last
        elif written is not None:
            self._late.settle(written - last)
            placed = "taken as one sample a second, up to when the file was last written"
            self._readings.note(f"it gives no times ({self._remedy}): {placed}")
        else:
            self._readings.note(f"it gives no times ({self._remedy}): not placed")


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
