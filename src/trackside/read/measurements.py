"""Foreign measurements in, our samples out: what a file holds on its way through :mod:`trackside.catalog.settling`.

Every reader of metrics gives each foreign series to :meth:`Measurements.series` once, and its raw values to
:meth:`Measurements.add` in blocks; what nothing asks for goes to :meth:`Measurements.unasked`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import EARLIEST_MS, LATEST_MS, Translated, translate, unneeded
from trackside.catalog.settling import ForeignSeries, Sifted, Times, UnitBySize, Values, scaled, sifted
from trackside.model import Position, Samples
from trackside.read.format import Result, Sink

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


@dataclass(slots=True)
class _Unsettled(UnitBySize):
    """A foreign name whose unit only size tells: its values so far wait for a large one."""

    blocks: list[Sifted] = field(default_factory=list)


class Measurements:
    """The measurements of one input on their way to its sink. ``holes``: NaN may mean that there is no value, as in a
    table of many metrics; without, it was measured, and what holds no value is :data:`trackside.catalog.dialect.BLANK`.
    """

    def __init__(self, path: str, sink: Sink, holes: bool = True) -> None:
        self._path, self._sink, self._holes = path, sink, holes
        self.rows = 0
        self._names: dict[str, bool] = {}
        """foreign name -> whether a dialect knows it"""
        self._foreign = ForeignSeries()
        self._unsettled: dict[int, _Unsettled] = {}
        """place in the units of ``_foreign`` -> values that wait"""
        self._ready: list[tuple[NDArray[np.int32], Times, Values]] = []
        self._count = 0
        self._single = array("q"), array("d"), array("d")
        self._left_out: Counter[str] = Counter()
        self._beyond = 0

    # -- series

    def series(self, name: str, labels: Mapping[str, str], line: int, offset: int = 0, length: int = 0) -> int:
        """The number of a foreign series that stands at this place first, or UNKNOWN or FULL.

        Ask once for each: asking again gives another number to the same curve.
        """
        if self._names.get(name) is False:
            return UNKNOWN
        known = translate(name, labels)
        if known is None:
            return self.unasked(name)
        return self.enter(name, known, Position(self._path, line, offset, length))

    def unasked(self, name: str) -> int:
        """Count a foreign name that no metric of ours is for: UNKNOWN."""
        if len(self._names) < MOST_NAMES:
            self._names.setdefault(name, False)
        return UNKNOWN

    def enter(self, name: str, known: Translated, at: Position) -> int:
        """The number of a series that the reader itself knows the meaning of, or FULL."""
        if len(self) >= MOST_SERIES:
            return self.refuse()
        self._names.setdefault(name, True)
        units = len(self._foreign.units)
        number = self._foreign.add(name, known, at)
        if len(self._foreign.units) > units:
            self._unsettled[units] = _Unsettled(known.guess)
        return number

    def refuse(self) -> int:
        """Count a series for which there is no room: FULL."""
        self._beyond += 1
        return FULL

    def __len__(self) -> int:
        """How many foreign series have a number."""
        return len(self._foreign)

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
        rows = self._foreign.rows
        block = sifted(rows, places, times_ms, raw, self._left_out, nan_is_blank=self._holes)
        for unit in list(self._unsettled):
            here = rows["unit"][block.places] == unit
            if here.any():
                self._wait(unit, Sifted(*(column[here] for column in block)))
                block = Sifted(*(column[~here] for column in block))
        self._give(block)

    def points(self, foreign: int, times: Sequence[float], raw: Sequence[float]) -> None:
        """Take values of one series. Times are in seconds or milliseconds, told by size."""
        if len(raw) <= FEW:  # an array for each would take ten times as long as the values
            self._wait_for_more([foreign] * len(raw), times, raw)
            return
        times_ms, _ = milliseconds(np.array(times, dtype=np.float64))
        self.add(np.full(len(raw), foreign), times_ms, np.array(raw, dtype=np.float64))

    def value(self, foreign: int, time: float, raw: float) -> None:
        """Take one value, at POSIX seconds; for files of thousands, not of millions."""
        self.row(time, ((foreign, raw),))

    def row(self, time: float, pairs: Sequence[tuple[int, float]]) -> None:
        """Take values of several series at one time, POSIX seconds: (number of the series, value as it stands)."""
        self._wait_for_more([number for number, _ in pairs], [time] * len(pairs), [value for _, value in pairs])

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

    def _wait(self, unit: int, block: Sifted) -> None:
        waiting = self._unsettled[unit]
        waiting.blocks.append(block)
        waiting.look(block.raw)
        if waiting.is_settled:
            self._settle(unit)

    def _settle(self, unit: int) -> None:
        """Fix a name's unit by the largest value so far, and let its values go."""
        waiting = self._unsettled.pop(unit)
        self._foreign.settle(unit, waiting.factor)
        for block in waiting.blocks:
            self._give(block)

    def _give(self, block: Sifted) -> None:
        places, times_ms, raw = block
        rows = self._foreign.rows
        values, good = scaled(raw, rows["scale"][places], rows["low"][places], rows["high"][places])
        if not good.all():
            self._left_out["implausible"] += int((~good).sum())
            places, times_ms, values = places[good], times_ms[good], values[good]
        if not len(values):
            return
        self._ready.append((rows["ours"][places], times_ms, values))
        self._count += len(values)
        if self._count >= BATCH:
            self._flush()

    def _flush(self) -> None:
        """Hand on what is ready. The list of series is one and the same all along and only grows: a store that
        remembers what it made of it goes through each series once."""
        if not self._count:
            return
        index, times_ms, values = (np.concatenate(column) for column in zip(*self._ready, strict=True))
        self._sink.samples(Samples(self._foreign.series, index, times_ms, values))
        self.rows += self._count
        self._ready, self._count = [], 0

    # -- the end

    def result(self, notes: Sequence[str] = (), lost: bool = False) -> Result:
        """Let go what still waits, and say what came of the input. ``lost``: some of it could not be read."""
        self._take_single()
        for unit in list(self._unsettled):
            self._settle(unit)
        self._flush()
        known = sum(self._names.values())
        names = len(self._names)
        out = self._left_out
        parts = [
            self._unknown(known),
            f"{out['blank']:,} blank values" if out["blank"] else "",
            f"{out['implausible']:,} values that their metric can't have, not kept" if out["implausible"] else "",
            f"{out['untimely']:,} samples with times outside 2000 to 2100, not kept" if out["untimely"] else "",
            f"more than {MOST_SERIES:,} series: others not kept" if self._beyond else "",
            *notes,
        ]
        lost = lost or bool(out["untimely"] or self._beyond)
        note = "; ".join(filter(None, parts))
        if not known and names and all(map(unneeded, self._names)):
            return Result(0, "read", "; ".join(filter(None, (note, "what it measures says nothing of a run"))))
        if not known:
            return Result(0, "unrecognised" if names else "empty", note or "no measurement in it")
        return Result(self.rows, "partial" if lost else "read", note)

    def _unknown(self, known: int) -> str:
        """How many of the names are known, and the first of those that aren't."""
        others = [name for name, is_known in self._names.items() if not is_known and not unneeded(name)]
        if not others:
            return ""
        names = known + len(others)
        more = f" and {len(others) - NAMED:,} more" if len(others) > NAMED else ""
        first = ", ".join(name[:80] or "one without a name" for name in others[:NAMED]) + more
        if known:
            return f"{known:,} of {names:,} metrics are known, not read: {first}"
        return f"none of its {names:,} metrics is known: {first}" if names > 1 else f"its metric is not known: {first}"
