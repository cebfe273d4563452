"""Converts the foreign measurements of one input into samples, by :mod:`trackside.catalog.settling`.

Every metrics reader passes each foreign series to :meth:`Measurements.series` once, and its raw values to
:meth:`Measurements.add` in blocks. Names that map to no metric go to :meth:`Measurements.add_unknown`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import EARLIEST_MS, LATEST_MS, Translation, is_unneeded, translate
from trackside.catalog.settling import ForeignSeries, Times, UnitBySize, UsableBlock, Values, scaled, usable_samples
from trackside.model import Position, Samples
from trackside.read.format import Result, Sink

UNKNOWN = -1
"""Number of a series that no dialect knows."""
FULL = -2
"""Number of a series beyond :data:`MAX_SERIES`."""
MAX_SERIES = 1 << 19
"""Maximum number of series of one input: 4,096 GPUs with 100 metrics each and their hosts, about 500 MB."""
MAX_NAMES = 100_000
"""Maximum number of distinct foreign names counted for the note."""
MAX_NOTED_NAMES = 3
"""Unknown names that the note lists."""
MAX_BUFFERED_VALUES = 64
"""Blocks of up to this many values are buffered and handed on together with others."""
BATCH_VALUES = 1 << 15
"""Fewest values handed on at once, except at the end."""


def milliseconds(times: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """POSIX times in seconds or milliseconds (decided by size) as milliseconds; and which lie between 2000 and 2100."""
    seconds = (times >= EARLIEST_MS / 1000) & (times <= LATEST_MS / 1000)
    times_ms = times * np.where(seconds, 1000.0, 1.0)
    is_valid = (times_ms >= EARLIEST_MS) & (times_ms <= LATEST_MS)
    return np.rint(np.where(is_valid, times_ms, 0)).astype(np.int64), is_valid


@dataclass(slots=True)
class _PendingUnit(UnitBySize):
    """A foreign name whose unit is decided by the size of its values: buffers values until a large one decides."""

    blocks: list[UsableBlock] = field(default_factory=list)


class Measurements:
    """The measurements of one input. ``nan_is_blank``: NaN may mean that there is no value, as in a table of many
    metrics; otherwise NaN was measured, and a missing value is :data:`trackside.catalog.dialect.BLANK`.
    """

    def __init__(self, path: str, sink: Sink, nan_is_blank: bool = True) -> None:
        self._path, self._sink, self._nan_is_blank = path, sink, nan_is_blank
        self.rows = 0
        self._names: dict[str, bool] = {}
        """foreign name -> whether a dialect knows it"""
        self._foreign = ForeignSeries()
        self._pending_units: dict[int, _PendingUnit] = {}
        """index in the units of ``_foreign`` -> buffered values"""
        self._ready: list[tuple[NDArray[np.int32], Times, Values]] = []
        self._count = 0
        self._buffered = array("q"), array("d"), array("d")
        self._dropped: Counter[str] = Counter()
        self._rejected = 0

    # -- series

    def series(self, name: str, labels: Mapping[str, str], line: int, offset: int = 0, length: int = 0) -> int:
        """The number of a foreign series first seen at this position, or UNKNOWN or FULL.

        Call once per series: a second call gives the same series another number.
        """
        if self._names.get(name) is False:
            return UNKNOWN
        translation = translate(name, labels)
        if translation is None:
            return self.add_unknown(name)
        return self.add_translated(name, translation, Position(self._path, line, offset, length))

    def add_unknown(self, name: str) -> int:
        """Count a foreign name that maps to no metric; returns UNKNOWN."""
        if len(self._names) < MAX_NAMES:
            self._names.setdefault(name, False)
        return UNKNOWN

    def add_translated(self, name: str, translation: Translation, position: Position) -> int:
        """The number of a series that the reader has translated itself, or FULL."""
        if len(self) >= MAX_SERIES:
            return self.count_rejected()
        self._names.setdefault(name, True)
        units = len(self._foreign.units)
        number = self._foreign.add(name, translation, position)
        if len(self._foreign.units) > units:
            self._pending_units[units] = _PendingUnit(translation.guess)
        return number

    def count_rejected(self) -> int:
        """Count a series beyond the limit; returns FULL."""
        self._rejected += 1
        return FULL

    def __len__(self) -> int:
        """Number of foreign series added."""
        return len(self._foreign)

    @property
    def has_names(self) -> bool:
        """Whether any name was seen, known or not."""
        return bool(self._names)

    # -- values

    def add(self, foreign: NDArray[np.signedinteger], times_ms: Times, raw: Values) -> None:
        """Add a block: for each value its series number (below 0: skip), its time, and the raw value."""
        if not len(raw):
            return
        selected = foreign >= 0
        indices = foreign.astype(np.intp, copy=False)
        if not selected.all():
            indices, times_ms, raw = indices[selected], times_ms[selected], raw[selected]
        rows = self._foreign.rows
        block = usable_samples(rows, indices, times_ms, raw, self._dropped, nan_is_blank=self._nan_is_blank)
        for unit in list(self._pending_units):
            selected = rows["unit"][block.indices] == unit
            if selected.any():
                self._hold_back(unit, UsableBlock(*(column[selected] for column in block)))
                block = UsableBlock(*(column[~selected] for column in block))
        self._convert(block)

    def points(self, foreign: int, times: Sequence[float], raw: Sequence[float]) -> None:
        """Add values of one series. Times are in seconds or milliseconds, decided by size."""
        if len(raw) <= MAX_BUFFERED_VALUES:  # an array for each would take ten times as long as the values
            self._buffer([foreign] * len(raw), times, raw)
            return
        times_ms, _ = milliseconds(np.array(times, dtype=np.float64))
        self.add(np.full(len(raw), foreign), times_ms, np.array(raw, dtype=np.float64))

    def value(self, foreign: int, time: float, raw: float) -> None:
        """Add one value at a time in POSIX seconds; for files with thousands of values, not millions."""
        self.row(time, ((foreign, raw),))

    def row(self, time: float, pairs: Sequence[tuple[int, float]]) -> None:
        """Add (series number, raw value) pairs at one time, POSIX seconds."""
        self._buffer([number for number, _ in pairs], [time] * len(pairs), [value for _, value in pairs])

    def _buffer(self, foreign: Sequence[int], times: Sequence[float], raw: Sequence[float]) -> None:
        self._buffered[0].extend(foreign)
        self._buffered[1].extend(times)
        self._buffered[2].extend(raw)
        if len(self._buffered[0]) >= BATCH_VALUES:
            self._flush_buffered()

    def _flush_buffered(self) -> None:
        foreign, times, raw = (np.array(column) for column in self._buffered)
        self._buffered = array("q"), array("d"), array("d")
        self.add(foreign, milliseconds(times)[0], raw)

    def _hold_back(self, unit: int, block: UsableBlock) -> None:
        pending = self._pending_units[unit]
        pending.blocks.append(block)
        pending.observe(block.raw)
        if pending.is_settled:
            self._settle(unit)

    def _settle(self, unit: int) -> None:
        """Decide a name's unit by its largest value so far, and hand on the buffered values."""
        pending = self._pending_units.pop(unit)
        self._foreign.settle(unit, pending.factor)
        for block in pending.blocks:
            self._convert(block)

    def _convert(self, block: UsableBlock) -> None:
        indices, times_ms, raw = block
        rows = self._foreign.rows
        values, is_plausible = scaled(raw, rows["scale"][indices], rows["low"][indices], rows["high"][indices])
        if not is_plausible.all():
            self._dropped["implausible"] += int((~is_plausible).sum())
            indices, times_ms, values = indices[is_plausible], times_ms[is_plausible], values[is_plausible]
        if not len(values):
            return
        self._ready.append((rows["ours"][indices], times_ms, values))
        self._count += len(values)
        if self._count >= BATCH_VALUES:
            self._flush()

    def _flush(self) -> None:
        """Hand on the finished values. Every block has the same list of series, which only grows, so that a store can
        remember its mapping and handle each series once."""
        if not self._count:
            return
        index, times_ms, values = (np.concatenate(column) for column in zip(*self._ready, strict=True))
        self._sink.samples(Samples(self._foreign.series, index, times_ms, values))
        self.rows += self._count
        self._ready, self._count = [], 0

    # -- the end

    def result(self, notes: Sequence[str] = (), lost: bool = False) -> Result:
        """Hand on all buffered values; the result for the input. ``lost``: part of it could not be read."""
        self._flush_buffered()
        for unit in list(self._pending_units):
            self._settle(unit)
        self._flush()
        known_count = sum(self._names.values())
        names = len(self._names)
        dropped = self._dropped
        parts = [
            self._unknown_names_note(known_count),
            f"{dropped['blank']:,} blank values" if dropped["blank"] else "",
            f"{dropped['implausible']:,} values outside the range of their metric, dropped"
            if dropped["implausible"]
            else "",
            f"{dropped['untimely']:,} samples with times outside 2000 to 2100, dropped" if dropped["untimely"] else "",
            f"more than {MAX_SERIES:,} series: the rest dropped" if self._rejected else "",
            *notes,
        ]
        lost = lost or bool(dropped["untimely"] or self._rejected)
        note = "; ".join(filter(None, parts))
        if not known_count and names and all(map(is_unneeded, self._names)):
            return Result(0, "read", "; ".join(filter(None, (note, "no metric of it is relevant to a run"))))
        if not known_count:
            return Result(0, "unrecognised" if names else "empty", note or "no measurements")
        return Result(self.rows, "partial" if lost else "read", note)

    def _unknown_names_note(self, known_count: int) -> str:
        """The note on unknown names: how many are known, and the first unknown ones."""
        unknown = [name for name, is_known in self._names.items() if not is_known and not is_unneeded(name)]
        if not unknown:
            return ""
        names = known_count + len(unknown)
        more_text = f" and {len(unknown) - MAX_NOTED_NAMES:,} more" if len(unknown) > MAX_NOTED_NAMES else ""
        first = ", ".join(name[:80] or "an unnamed one" for name in unknown[:MAX_NOTED_NAMES]) + more_text
        if known_count:
            return f"{known_count:,} of {names:,} metrics are known; unknown: {first}"
        return f"none of its {names:,} metrics is known: {first}" if names > 1 else f"its metric is not known: {first}"
