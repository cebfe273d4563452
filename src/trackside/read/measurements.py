"""Foreign measurements in, our samples out: names translated once, units settled, blanks and impossible values dropped.

Every reader of metrics gives each foreign series to :meth:`Measurements.series` once, and its raw values to
:meth:`Measurements.add` in blocks; what nothing asks for goes to :meth:`Measurements.unasked`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import (
    EARLIEST_MS,
    LATEST_MS,
    Guess,
    Translated,
    is_blank,
    scale_of,
    translate,
    unneeded,
)
from trackside.catalog.metrics import METRICS
from trackside.model import Position, Samples, Series
from trackside.read.format import Result, Sink

Labels = tuple[tuple[str, str], ...]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
Places = NDArray[np.intp]

UNKNOWN = -1
"""A series that no dialect knows."""
FULL = -2
"""A series beyond :data:`MOST_SERIES`."""
MOST_SERIES = 1 << 19
"""Distinct series kept of one input: 4,096 GPUs with 100 metrics each and their hosts, in about 500 MB."""
MOST_NAMES = 100_000
"""Distinct foreign names counted for the note."""
NAMED = 3
"""Of names that nothing asks for, those that the note gives."""
LOOK = 1 << 18
"""Values of one foreign name that are looked at, at most, before its unit is told by the largest of them."""
FEW = 64
"""Values of a series up to which they wait for those of others."""
BATCH = 1 << 15
"""Values handed on at once, at least, but for the last ones."""


def milliseconds(times: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """POSIX times in seconds or milliseconds, told by size, as milliseconds; and which lie between 2000 and 2100."""
    seconds = (times >= EARLIEST_MS / 1000) & (times <= LATEST_MS / 1000)
    whole = times * np.where(seconds, 1000.0, 1.0)
    good = (whole >= EARLIEST_MS) & (whole <= LATEST_MS)
    return np.rint(np.where(good, whole, 0)).astype(np.int64), good


_FOREIGN = np.dtype(
    [("curve", "i4"), ("name", "i4"), ("scale", "f8"), ("low", "f8"), ("high", "f8"), ("diverges", "?")]
)
"""Of each foreign series: our curve, its name's number, the factor to our unit, least and largest plausible value, and
whether it can diverge."""


@dataclass(slots=True)
class _Unsettled:
    """A foreign name whose unit is told by size only: its values so far wait here for a large one."""

    guess: Guess
    blocks: list[tuple[Places, Times, Values]] = field(default_factory=list)
    count: int = 0
    peak: float = 0.0


class Measurements:
    """The measurements of one input on their way to its sink. ``holes``: NaN may mean that there is no value, as in a
    table of many metrics; without, it was measured, and what holds no value is :data:`trackside.catalog.dialect.BLANK`.
    """

    def __init__(self, path: str, sink: Sink, holes: bool = True) -> None:
        self._path, self._sink, self._holes = path, sink, holes
        self.rows = 0
        self._series: list[Series] = []
        self._curves: dict[tuple[str, Labels], int] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._names: dict[str, int] = {}
        """foreign name -> its number, UNKNOWN for one that no dialect knows"""
        self._unsettled: dict[int, _Unsettled] = {}
        self._factors: dict[int, float] = {}
        """name's number -> the factor that the size of its values told"""
        self._foreign = np.empty(64, dtype=_FOREIGN)
        self._size = 0
        self._ready: list[tuple[NDArray[np.int32], Times, Values]] = []
        self._count = 0
        self._single = array("q"), array("d"), array("d")
        self._blank = self._implausible = self._untimely = self._beyond = 0
        self._diverging = False
        """Whether any series can."""

    # -- series

    def series(self, name: str, labels: Mapping[str, str], line: int, offset: int = 0, length: int = 0) -> int:
        """The number of a foreign series that stands at this place first, or UNKNOWN or FULL.

        Ask once for each: asking again gives another number to the same curve.
        """
        if self._names.get(name) == UNKNOWN:
            return UNKNOWN
        known = translate(name, labels)
        if known is None:
            return self.unasked(name)
        return self.enter(name, known, Position(self._path, line, offset, length))

    def unasked(self, name: str) -> int:
        """Count a foreign name that no metric of ours is for: UNKNOWN."""
        if len(self._names) < MOST_NAMES:
            self._names.setdefault(name, UNKNOWN)
        return UNKNOWN

    def enter(self, name: str, known: Translated, at: Position) -> int:
        """The number of a series that the reader itself knows the meaning of, or FULL."""
        if self._size >= MOST_SERIES:
            return self.refuse()
        if self._size == len(self._foreign):
            self._foreign = np.concatenate([self._foreign, np.empty_like(self._foreign)])
        number = self._names.setdefault(name, len(self._names))
        if known.guess and number not in self._factors:
            self._unsettled.setdefault(number, _Unsettled(known.guess))
        metric = METRICS[known.metric]
        scale = known.scale * self._factors.get(number, 1.0)
        curve = self._curve(known, at)
        self._foreign[self._size] = curve, number, scale, metric.low, metric.high, metric.diverges
        self._diverging = self._diverging or metric.diverges
        self._size += 1
        return self._size - 1

    def _curve(self, known: Translated, at: Position) -> int:
        labels = tuple(self._pairs.setdefault(pair, pair) for pair in known.labels)
        found = self._curves.get((known.metric, labels))
        if found is None:
            found = self._curves[known.metric, labels] = len(self._series)
            self._series.append(Series(known.metric, labels, at))
        return found

    def refuse(self) -> int:
        """Count a series for which there is no room: FULL."""
        self._beyond += 1
        return FULL

    def __len__(self) -> int:
        """How many foreign series have a number."""
        return self._size

    @property
    def named(self) -> bool:
        """Whether there was any name, known or not."""
        return bool(self._names)

    # -- values

    def add(self, foreign: NDArray[np.signedinteger], times_ms: Times, raw: Values) -> None:
        """Take a block: for each value the number of its series (none below 0), its time, and itself as it stands."""
        if not len(raw):
            return
        here = foreign >= 0
        places = foreign.astype(np.intp, copy=False)
        if not here.all():
            places, times_ms, raw = places[here], times_ms[here], raw[here]
        times_ms, raw, places = self._sifted(times_ms, raw, places)
        for number in list(self._unsettled):
            here = self._foreign["name"][places] == number
            if here.any():
                self._wait(number, places[here], times_ms[here], raw[here])
                places, times_ms, raw = places[~here], times_ms[~here], raw[~here]
        self._give(places, times_ms, raw)

    def points(self, foreign: int, times: Sequence[float], raw: Sequence[float]) -> None:
        """Take values of one series. Times are in seconds or milliseconds, told by size."""
        if len(raw) <= FEW:  # an array for each would take ten times as long as the values
            self._wait_for_more([foreign] * len(raw), times, raw)
            return
        times_ms, _ = milliseconds(np.array(times, dtype=np.float64))
        self.add(np.full(len(raw), foreign), times_ms, np.array(raw, dtype=np.float64))

    def value(self, foreign: int, time: float, raw: float) -> None:
        """Take one value, at POSIX seconds; for files of thousands, not of millions."""
        self._wait_for_more((foreign,), (time,), (raw,))

    def _wait_for_more(self, foreign: Sequence[int], times: Sequence[float], raw: Sequence[float]) -> None:
        self._single[0].extend(foreign)
        self._single[1].extend(times)
        self._single[2].extend(raw)
        if len(self._single[0]) >= BATCH:
            self._take_single()

    def _take_single(self) -> None:
        foreign, times, raw = (np.array(column) for column in self._single)
        self._single = array("q"), array("d"), array("d")
        self.add(foreign, milliseconds(times)[0], raw)

    def _sifted(self, times_ms: Times, raw: Values, places: Places) -> tuple[Times, Values, Places]:
        """Without blanks, and without times that no measurement has. What diverged is inf, whatever it is called."""
        if self._diverging and not (finite := np.isfinite(raw)).all():
            beyond = np.isinf(raw) if self._holes else ~finite
            raw = np.where(self._foreign["diverges"][places] & beyond, np.inf, raw)
        blank = is_blank(raw)
        untimely = (times_ms < EARLIEST_MS) | (times_ms > LATEST_MS)
        left_out = blank | untimely
        if not left_out.any():
            return times_ms, raw, places
        self._blank += int(blank.sum())
        self._untimely += int((untimely & ~blank).sum())
        return times_ms[~left_out], raw[~left_out], places[~left_out]

    def _wait(self, number: int, places: Places, times_ms: Times, raw: Values) -> None:
        waiting = self._unsettled[number]
        waiting.blocks.append((places, times_ms, raw))
        waiting.count += len(raw)
        waiting.peak = max(waiting.peak, float(raw[np.isfinite(raw)].max(initial=0.0)))
        if waiting.count >= LOOK or scale_of(waiting.guess, waiting.peak) != scale_of(waiting.guess, 0.0):
            self._settle(number)

    def _settle(self, number: int) -> None:
        """Fix a name's unit by the largest value seen, and let its values go."""
        waiting = self._unsettled.pop(number)
        factor = self._factors[number] = scale_of(waiting.guess, waiting.peak)
        known = self._foreign[: self._size]
        known["scale"][known["name"] == number] *= factor
        for block in waiting.blocks:
            self._give(*block)

    def _give(self, places: Places, times_ms: Times, raw: Values) -> None:
        known = self._foreign
        with np.errstate(over="ignore"):  # inf is what its metric can't have
            values = raw * known["scale"][places]
        good = (values >= known["low"][places]) & (values <= known["high"][places])
        if not good.all():
            self._implausible += int((~good).sum())
            places, times_ms, values = places[good], times_ms[good], values[good]
        if not len(values):
            return
        self._ready.append((known["curve"][places], times_ms, values))
        self._count += len(values)
        if self._count >= BATCH:
            self._flush()

    def _flush(self) -> None:
        """Hand on what is ready. The list of series is one and the same all along and only grows: a store that
        remembers what it made of it goes through each series once."""
        if not self._count:
            return
        index, times_ms, values = (np.concatenate(column) for column in zip(*self._ready, strict=True))
        self._sink.samples(Samples(self._series, index, times_ms, values))
        self.rows += self._count
        self._ready, self._count = [], 0

    # -- the end

    def result(self, notes: Sequence[str] = (), lost: bool = False) -> Result:
        """Let go what still waits, and say what came of the input. ``lost``: some of it could not be read."""
        self._take_single()
        for number in list(self._unsettled):
            self._settle(number)
        self._flush()
        known = sum(number != UNKNOWN for number in self._names.values())
        names = len(self._names)
        said = [
            self._unknown(known),
            f"{self._blank:,} blank values" if self._blank else "",
            f"{self._implausible:,} values that their metric can't have, not kept" if self._implausible else "",
            f"{self._untimely:,} samples with times outside 2000 to 2100, not kept" if self._untimely else "",
            f"more than {MOST_SERIES:,} series: others not kept" if self._beyond else "",
            *notes,
        ]
        lost = lost or bool(self._untimely or self._beyond)
        note = "; ".join(each for each in said if each)
        if not known and names and all(map(unneeded, self._names)):
            return Result(0, "read", "; ".join(filter(None, (note, "what it measures says nothing of a run"))))
        if not known:
            return Result(0, "unrecognised" if names else "empty", note or "no measurement in it")
        return Result(self.rows, "partial" if lost else "read", note)

    def _unknown(self, known: int) -> str:
        """How many of the names are known, and the first of those that aren't."""
        others = [name for name, number in self._names.items() if number == UNKNOWN and not unneeded(name)]
        if not others:
            return ""
        names = known + len(others)
        more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        first = ", ".join(name[:80] or "one without a name" for name in others[:NAMED]) + more
        if known:
            return f"{known:,} of {names:,} metrics are known, not read: {first}"
        return f"none of its {names:,} metrics is known: {first}" if names > 1 else f"its metric is not known: {first}"
