"""Converts foreign samples into Trackside's, in the same way for file readers, the receiver and remote stores.

A series is translated once (:class:`ForeignSeries`). Blanks and invalid times are dropped (:func:`usable_samples`), a
unit that the name leaves open is decided by the largest value (:class:`UnitBySize`), and values outside the range of
their metric are marked (:func:`scaled`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK_RANGES, EARLIEST_MS, LATEST_MS, Guess, Translation
from trackside.catalog.metrics import METRICS
from trackside.model import Position, Series

Labels = tuple[tuple[str, str], ...]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.signedinteger]

MAX_UNDECIDED_VALUES = 1 << 18
"""After this many values of one foreign name, the largest of them decides its unit."""
_INT64_BLANK = 9.2233720368547e18
_ROW = np.dtype([("ours", "i4"), ("unit", "i4"), ("scale", "f8"), ("low", "f8"), ("high", "f8"), ("diverges", "?")])


class ForeignSeries:
    """Foreign series by number, and ``series``, the translated series that they map to: one list that only grows.

    ``units``: (name, guess) of the foreign names whose unit is decided by the size of their values.
    """

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.units: list[tuple[str, Guess]] = []
        self._factors: list[float] = []
        self._unit_of: dict[str, int] = {}
        self._index_by_series: dict[tuple[str, Labels], int] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._rows = np.empty(64, dtype=_ROW)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> NDArray[np.void]:
        """One row per foreign series: index in ``series``, index in ``units`` (-1: the unit is known), factor to the
        catalog's unit, smallest and largest plausible value, and whether it can diverge."""
        return self._rows[: self._size]

    def add(self, name: str, translation: Translation, position: Position) -> int:
        """The number of a new foreign series. ``position``: where its translated series begins, if that is new too."""
        if self._size == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        unit, scale = -1, translation.scale
        if translation.guess:
            unit = self._unit_of.setdefault(name, len(self.units))
            if unit == len(self.units):
                self.units.append((name, translation.guess))
                self._factors.append(1.0)
            scale *= self._factors[unit]
        metric = METRICS[translation.metric]
        self._rows[self._size] = (
            self._number(translation, position),
            unit,
            scale,
            metric.low,
            metric.high,
            metric.diverges,
        )
        self._size += 1
        return self._size - 1

    def _number(self, translation: Translation, position: Position) -> int:
        labels = tuple(self._pairs.setdefault(pair, pair) for pair in translation.labels)
        number = self._index_by_series.setdefault((translation.metric, labels), len(self.series))
        if number == len(self.series):
            self.series.append(Series(translation.metric, labels, position))
        return number

    def settle(self, unit: int, factor: float) -> None:
        """Multiply the factors of all series of a unit, including those added later."""
        self._factors[unit] = factor
        rows = self.rows
        rows["scale"][rows["unit"] == unit] *= factor


class UsableBlock(NamedTuple):
    """Measured values: their foreign series numbers, times in ms, and raw values."""

    indices: Numbers
    times_ms: Times
    raw: Values


def usable_samples(
    rows: NDArray[np.void], indices: Numbers, times_ms: Times, raw: Values, dropped: Counter[str],
    nan_is_blank: bool = False, oldest_ms: int | None = None,
) -> UsableBlock:  # fmt: skip
    """The values without blanks and without times outside 2000 to 2100; ``dropped`` counts the others by reason.

    ``nan_is_blank``: see :func:`measured`. ``oldest_ms``: samples at or before this time are dropped as too old.
    """
    diverges = False if np.isfinite(raw).all() else rows["diverges"][indices]
    raw, blank = measured(raw, diverges, nan_is_blank)
    untimely = (times_ms < EARLIEST_MS) | (times_ms > LATEST_MS)
    too_old = None if oldest_ms is None else ~(blank | untimely) & (times_ms <= oldest_ms)
    unusable = blank | untimely if too_old is None else blank | untimely | too_old
    if not unusable.any():
        return UsableBlock(indices, times_ms, raw)
    dropped["blank"] += int(blank.sum())
    dropped["untimely"] += int((untimely & ~blank).sum())
    dropped["too_old"] += 0 if too_old is None else int(too_old.sum())
    return UsableBlock(indices[~unusable], times_ms[~unusable], raw[~unusable])


def measured(raw: Values, diverges: Flags | bool, nan_is_blank: bool = False) -> tuple[Values, Flags]:
    """Raw values with diverged ones set to inf, and which of them are blank.

    ``diverges``: whether their metric can diverge. ``nan_is_blank``: NaN may mean no value, as in a table of many
    metrics; otherwise NaN was measured.
    """
    if not (finite := np.isfinite(raw)).all():
        raw = np.where(diverges & (np.isinf(raw) if nan_is_blank else ~finite), np.inf, raw)
    return raw, is_blank(raw)


def scaled(raw: Values, scale: Values | float, low: Values | float, high: Values | float) -> tuple[Values, Flags]:
    """Raw values in the catalog's unit, and which of them are within the range of their metric."""
    with np.errstate(over="ignore"):  # inf is outside the range
        values = raw * scale
    return values, (values >= low) & (values <= high)


# -- units


@dataclass(slots=True)
class UnitBySize:
    """Decides the unit of a foreign name by the size of its values. ``count``: values so far; ``peak``: the largest."""

    guess: Guess
    peak: float = 0.0
    count: int = 0

    def observe(self, raw: Values) -> None:
        """Add raw values."""
        self.peak = max(self.peak, float(raw[np.isfinite(raw)].max(initial=0.0)))
        self.count += len(raw)

    @property
    def factor(self) -> float:
        """The factor to the catalog's unit, judged by the values so far."""
        return scale_of(self.guess, self.peak)

    @property
    def is_settled(self) -> bool:
        """Whether a value was large enough to be certain, or there were enough values."""
        return self.count >= MAX_UNDECIDED_VALUES or self.factor != scale_of(self.guess, 0.0)


def scale_of(guess: Guess, peak: float) -> float:
    """The factor for a unit decided by size. ``peak``: the largest value that a source has for the metric."""
    if guess == "ratio":
        return 0.01 if peak > 1.5 else 1.0
    if guess == "bytes":
        return 1.0 if peak > 1e7 else float(1 << 20)
    return 1.0


# -- blanks


def is_blank(values: Values) -> Flags:
    """Which raw values mean "no value": NaN, and the blank markers of DCGM and NVML.

    DCGM marks blank, not found, not supported and not permitted by four successive numbers at the end of each
    type's range (dcgm_structs.h); the 64-bit markers are near 2**63 as floats. NVML sets all bits. Infinities are not
    blank: the catalog's bounds reject them for metrics that cannot be infinite.
    """
    if values.size and values.max() < BLANK_RANGES[0][0]:  # False if any value is NaN
        return np.zeros(values.shape, dtype=np.bool_)
    blank: Flags = np.isnan(values) | (values >= _INT64_BLANK) & np.isfinite(values)
    for first, last in BLANK_RANGES:
        blank |= (values == first) if first == last else (values >= first) & (values < last + 1)
    return blank


def may_hide_blanks(low: Values, high: Values) -> Flags:
    """Whether values between ``low`` and ``high`` may be in ``BLANK_RANGES``."""
    hidden: Flags = low != low  # all False
    for first, last in BLANK_RANGES:
        hidden |= (low <= last) & (high >= first)
    return hidden
