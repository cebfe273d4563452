"""Turns the output of GPU tools into measurements: readings of one GPU at one time, each a field and its value.

Such tools print no node (the file's path may name it), often no time, and sometimes not even the GPU. Missing values
stay missing, or are inferred from the rest of the file; :meth:`Readings.result` then says so.
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
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource, Result, Sink
from trackside.read.measurements import Measurements
from trackside.read.scrape_times import stamp

BATCH_VALUES = 1 << 16
"""Values without a known time that are handed on at once."""
MAX_GPUS = 1 << 17
"""Maximum number of distinct GPUs, GPU instances and processes of one file."""
MAX_UNTIMED_VALUES = 1 << 24
"""Maximum number of values buffered until their time is known: two days of eight GPUs with ten columns, about
350 MB."""
_EPOCH_S = 1e9, 1e11
"""Range of a bare number that is read as POSIX seconds; a thousand times as much is milliseconds."""
_DAY_S = 86400.0
INTERVAL_S = 1.0
"""Default interval between samples of a tool that prints no times."""
_CLOCK = re.compile(r"(\d{1,2}):(\d\d):(\d\d)")
_DATE = re.compile(r"(20\d\d)[-/]?(\d\d)[-/]?(\d\d)")
_ZONE = re.compile(r"\d(?:Z|\s?[+-]\d\d:?\d\d)\s*$|\b(?:UTC|GMT)\b")

_LABELS = ("index", "uuid", "pci_bus_id", "gpu_model", "gpu_i_id", "pid")
GpuReading = tuple[str, float, str]
"""(foreign field, number, its unit as printed) of one GPU at one time. An empty unit means the dialect's."""
SeriesValues = list[tuple[int, float]]
"""(series number, raw value) pairs of one GPU at one time."""
RelativeTime = tuple[float, bool]
"""A time in seconds, and whether it is a POSIX time; if not, it is relative to a start that is not known yet."""


class TextLine(NamedTuple):
    """A line and its position: 1-based number, byte offset, text without line end."""

    number: int
    offset: int
    text: str


def head_lines(source: InputSource) -> Iterator[TextLine]:
    """The non-blank lines of a file's head, without a line cut off by the end of the head."""
    lines = source.text.splitlines()
    if len(source.head) >= HEAD_BYTES:
        lines.pop()
    return (TextLine(number, 0, text) for number, text in enumerate(lines, 1) if text.strip())


class GpuIdentity(NamedTuple):
    """The identity of a GPU, as far as the tool prints it; empty fields are unknown. ``number``: its index. ``mig``: id
    of the GPU instance."""

    number: str = ""
    uuid: str = ""
    pci: str = ""
    model: str = ""
    mig: str = ""
    pid: str = ""
    """The process that the reading belongs to."""

    def labels(self) -> dict[str, str]:
        """The identity as labels, under names that all GPU dialects know."""
        pairs = zip(_LABELS, self, strict=True)
        return {name: value for name, value in pairs if value}


class Readings:
    """The readings of one file. ``now``: the last time printed in the file, POSIX seconds; None before the first."""

    def __init__(self, source: InputSource, sink: Sink) -> None:
        self.path = source.path
        self.modified = source.modified
        self.now: float | None = None
        self.lost_lines = 0
        """Number of lines that should be readings but could not be read."""
        self.event = sink.event
        self._measurements = Measurements(source.path, sink)
        self._series_numbers: dict[GpuIdentity, dict[str, int]] = {}
        """GPU -> field -> series number"""
        self._factors: dict[tuple[str, str], float] = {}
        self.naive = False
        """Whether a local time without a zone was read."""
        self._odd_units = 0
        self._notes: dict[str, int] = {}
        self._partial = False
        self._index_by_name: dict[str, str] = {}

    @classmethod
    def for_sniffing(cls, source: InputSource) -> Self:
        """Readings of a file's head for format detection; they are discarded."""
        return cls(InputSource("", b"", source.stream), CollectingSink())

    # -- times and GPUs

    def time(self, text: str) -> float | None:
        """A printed time as POSIX seconds; sets ``now``. Local times without a zone are read as UTC."""
        time = _epoch(text)
        if time is None and (time := find_time(text) or stamp(text)) is not None:
            self.naive = self.naive or _ZONE.search(text) is None
        if time is not None:
            self.now = time
        return time

    def learn(self, gpu: GpuIdentity) -> None:
        """Remember the index that belongs to a UUID and PCI address, for later output that prints only these."""
        if gpu.number and len(self._index_by_name) < MAX_GPUS:
            for name in (gpu.uuid, gpu.pci):
                if name.strip("GPU-0:."):  # masked UUIDs are all zeros
                    self._index_by_name[name] = gpu.number

    def with_index(self, gpu: GpuIdentity) -> GpuIdentity:
        """The GPU with its index, if earlier output gave the index."""
        if gpu.number:
            return gpu
        index = self._index_by_name.get(gpu.uuid) or self._index_by_name.get(gpu.pci) or ""
        return gpu._replace(number=index) if index else gpu

    # -- values

    def pairs(self, line: TextLine, gpu: GpuIdentity, values: Iterable[GpuReading]) -> SeriesValues:
        """The values of foreign fields as series numbers and raw values in the dialect's units. Fields without a metric
        and values in a unit that does not fit their field are dropped."""
        numbers, factors = self._series_numbers.get(gpu), self._factors
        if numbers is None:
            if len(self._series_numbers) >= MAX_GPUS:
                self.note(
                    f"more than {MAX_GPUS:,} GPUs, instances and processes: {{}} readings of further ones dropped"
                )
                return []
            numbers = self._series_numbers[gpu] = {}
        pairs = []
        for name, value, unit in values:
            series = numbers.get(name)
            if series is None:
                series = self._measurements.series(name, gpu.labels(), line.number, line.offset, len(line.text))
                numbers[name] = series
            if series < 0:
                continue
            if unit:
                factor = factors.get((name, unit))
                if factor is None:
                    factor = factors[name, unit] = _factor(name, unit)
                if not factor:
                    self._odd_units += 1
                    continue
                value *= factor
            pairs.append((series, value))
        return pairs

    def first_pairs(
        self,
        line: TextLine,
        gpu: GpuIdentity,
        fields: Mapping[str, Sequence[str]],
        value_of: Callable[[str], tuple[float, str] | None],
    ) -> SeriesValues:
        """For each field, the pair of its first path that has a usable value, for tools with several names for a
        figure."""
        pairs_found: SeriesValues = []
        for name, paths in fields.items():
            for path in paths:
                value = value_of(path)
                if value is not None and (pairs := self.pairs(line, gpu, [(name, *value)])):
                    pairs_found += pairs
                    break
        return pairs_found

    def add(self, time: float, pairs: SeriesValues) -> None:
        """Add the values of one time, POSIX seconds."""
        self._measurements.row(time, pairs)

    def add_untimed(self, columns: tuple[array[int], array[float], array[float]], start: float) -> None:
        """Add columns of series numbers, times and values. Times are seconds relative to ``start``, POSIX seconds."""
        series, times, values = (np.frombuffer(column, column.typecode) for column in columns)
        for start_row in range(0, len(series), BATCH_VALUES):
            batch = slice(start_row, start_row + BATCH_VALUES)
            times_ms = np.rint((times[batch] + start) * 1000).astype(np.int64)
            self._measurements.add(series[batch], times_ms, values[batch])

    def add_unknown(self, name: str) -> None:
        """Count a foreign field that holds a figure but maps to no metric."""
        self._measurements.add_unknown(name)

    # -- the end

    def note(self, text: str, count: int = 1, lost: bool = True) -> None:
        """Add a note on the file; ``{}`` in it becomes the count. ``lost``: data was lost, so the status is partial."""
        self._notes[text] = self._notes.get(text, 0) + count
        self._partial = self._partial or lost

    def result(self, empty: str) -> Result:
        """The result for the file. ``empty``: the note for an intact file without readings."""
        notes = [
            "local times without a zone, read as UTC" if self.naive else "",
            f"{self._odd_units:,} values in a unit that does not fit their metric" if self._odd_units else "",
            f"{self.lost_lines:,} lines could not be read" if self.lost_lines else "",
            *(text.format(f"{count:,}") for text, count in self._notes.items()),
        ]
        notes = [note for note in notes if note]
        lost = self._partial or bool(self.lost_lines or self._odd_units)
        if not self._measurements.has_names:
            return Result(0, "partial" if lost else "empty", "; ".join(notes or [empty]))
        return self._measurements.result(notes, lost)


class RowClock:
    """Determines when rows were printed, from their date and time columns and from repeating GPUs.

    Rows without a time or without a date are buffered until :meth:`settle` places them. ``remedy``: how to make the
    tool print times.
    """

    def __init__(self, readings: Readings, remedy: str) -> None:
        self._readings, self._remedy = readings, remedy
        self._untimed = array("i"), array("d"), array("d")
        """Series number, time relative to an unknown start, value."""
        self._latest_s = 0.0
        """The largest relative time, seconds."""
        self._start_time = readings.now
        self._sample_index = 0
        self._gpus_of_sample: set[str] = set()
        self._days = 0
        self._last = 0.0
        self._timed = False

    def now(self, cells: Mapping[str, str], gpu: str) -> RelativeTime | None:
        """When a row was printed; None if its date or time is invalid. ``gpu`` identifies the row within one sample."""
        date, clock = cells.get("date"), cells.get("time")
        if date is not None:
            return self._of_date(date, clock)
        if clock is not None:
            return self._of_day(clock)
        if gpu in self._gpus_of_sample:
            self._gpus_of_sample.clear()
            self._sample_index += 1
        self._gpus_of_sample.add(gpu)
        return self._sample_index * INTERVAL_S, False

    def _of_date(self, date: str, clock: str | None) -> RelativeTime | None:
        match = _DATE.fullmatch(date)
        if match is None or clock is None:
            return None
        time = self._readings.time(f"{match[1]}-{match[2]}-{match[3]} {clock}")
        return None if time is None else (time, True)

    def _of_day(self, clock: str) -> RelativeTime | None:
        match = _CLOCK.fullmatch(clock)
        if match is None:
            return None
        time = int(match[1]) * 3600 + int(match[2]) * 60 + float(match[3])
        if time < self._last - _DAY_S / 2:
            self._days += 1
        self._last, self._timed = time, True
        return self._days * _DAY_S + time, False

    def add(self, when: RelativeTime, pairs: SeriesValues) -> None:
        """Add the values of a row."""
        time, is_posix = when
        series, times, values = self._untimed
        if is_posix:
            self._readings.add(time, pairs)
        elif len(series) >= MAX_UNTIMED_VALUES:
            self._readings.note(
                f"more than {MAX_UNTIMED_VALUES:,} values without a full time: {{}} more samples dropped"
            )
        else:
            series.extend([number for number, _ in pairs])
            times.extend([time] * len(pairs))
            values.extend([value for _, value in pairs])
            self._latest_s = max(self._latest_s, time)

    def settle(self) -> None:
        """Place rows without a full time: after the last known time of the file, else so that they end at its mtime."""
        if not self._untimed[0]:
            return
        readings, modified, latest_s = self._readings, self._readings.modified, self._latest_s
        if self._timed and modified is not None:
            days = round((modified - latest_s) / _DAY_S)  # the date that puts the last row nearest to the file's mtime
            self._place_untimed(days * _DAY_S)
            readings.naive = True
            readings.note("times without a date: took the date of the file", lost=False)
        elif self._timed:
            readings.note(f"times without a date ({self._remedy}): skipped")
        elif self._start_time is not None:
            if latest_s > 0:
                text = f"samples without a time ({self._remedy}): assumed one per second from the time before them"
                readings.note(text, lost=False)
            self._place_untimed(self._start_time)
            readings.now = self._start_time + latest_s
        elif modified is not None:
            self._place_untimed(modified - latest_s)
            assumption = "assumed one sample per second, ending when the file was last written"
            readings.note(f"no times ({self._remedy}): {assumption}")
        else:
            readings.note(f"no times ({self._remedy}): skipped")

    def _place_untimed(self, start: float) -> None:
        """Hand on the buffered rows; relative time 0 is ``start``, POSIX seconds."""
        self._readings.add_untimed(self._untimed, start)
        self._untimed = array("i"), array("d"), array("d")


def _factor(name: str, unit: str) -> float:
    """The factor from a printed unit to the dialect's unit for bare numbers; 0 for a unit that does not fit the
    field."""
    translation = translate(name, {})
    try:
        return 0.0 if translation is None else factor(unit, METRICS[translation.metric].unit) / translation.scale
    except ValueError:
        return 0.0


def _epoch(text: str) -> float | None:
    """A bare number as POSIX seconds; milliseconds are recognized by their size. None if it is neither."""
    try:
        value = float(text)
    except ValueError:
        return None
    low, high = _EPOCH_S
    if low <= value < high:
        return value
    return value / 1000 if low <= value / 1000 < high else None
