"""How a foreign sample becomes one of ours: the same for readers of files, the receiver and remote stores.

A series is translated once (:class:`ForeignSeries`). Of its raw values, blanks and impossible times are left out
(:func:`sifted`), a unit that no name tells is settled by the largest (:class:`UnitBySize`), and a value that its metric
cannot have is left out (:func:`scaled`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import BLANK_RANGES, EARLIEST_MS, LATEST_MS, Guess, Translated
from trackside.catalog.metrics import METRICS
from trackside.model import Position, Series

Labels = tuple[tuple[str, str], ...]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.signedinteger]

MAX_UNSETTLED = 1 << 18
"""Values of one foreign name, at most, that wait for a larger one before the largest of them settles its unit."""
_INT64_BLANK = 9.2233720368547e18
_ROW = np.dtype([("ours", "i4"), ("unit", "i4"), ("scale", "f8"), ("low", "f8"), ("high", "f8"), ("diverges", "?")])


class ForeignSeries:
    """Foreign series by number, and ours that they are parts of: ``series``, one list that only grows.

    ``units``: (name, guess) of the foreign names whose unit only the size of their values tells.
    """

    def __init__(self) -> None:
        self.series: list[Series] = []
        self.units: list[tuple[str, Guess]] = []
        self._factors: list[float] = []
        self._unit_of: dict[str, int] = {}
        self._ours: dict[tuple[str, Labels], int] = {}
        self._pairs: dict[tuple[str, str], tuple[str, str]] = {}
        self._rows = np.empty(64, dtype=_ROW)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> NDArray[np.void]:
        """Of each foreign series: the number of ours, its place in ``units`` (-1: the unit is known), the factor to our
        unit, the least and the largest plausible value, and whether it can diverge."""
        return self._rows[: self._size]

    def add(self, name: str, known: Translated, at: Position) -> int:
        """The number of a new foreign series. ``at``: where one of ours that is new with it begins."""
        if self._size == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        unit, scale = -1, known.scale
        if known.guess:
            unit = self._unit_of.setdefault(name, len(self.units))
            if unit == len(self.units):
                self.units.append((name, known.guess))
                self._factors.append(1.0)
            scale *= self._factors[unit]
        metric = METRICS[known.metric]
        self._rows[self._size] = self._number(known, at), unit, scale, metric.low, metric.high, metric.diverges
        self._size += 1
        return self._size - 1

    def _number(self, known: Translated, at: Position) -> int:
        labels = tuple(self._pairs.setdefault(pair, pair) for pair in known.labels)
        number = self._ours.setdefault((known.metric, labels), len(self.series))
        if number == len(self.series):
            self.series.append(Series(known.metric, labels, at))
        return number

    def settle(self, unit: int, factor: float) -> None:
        """Multiply the factors of a name's series, those that are yet to come too."""
        self._factors[unit] = factor
        rows = self.rows
        rows["scale"][rows["unit"] == unit] *= factor


class Sifted(NamedTuple):
    """Values that were measured: their foreign series, times in ms, and themselves as they stood."""

    places: Numbers
    times_ms: Times
    raw: Values


def sifted(
    rows: NDArray[np.void], places: Numbers, times_ms: Times, raw: Values, left_out: Counter[str],
    nan_is_blank: bool = False, oldest_ms: int | None = None,
) -> Sifted:  # fmt: skip
    """Values without blanks and without times outside 2000 to 2100; ``left_out`` counts the others by reason.

    ``nan_is_blank``: see :func:`measured`. ``oldest_ms``: samples up to then can't be taken any more.
    """
    diverges = False if np.isfinite(raw).all() else rows["diverges"][places]
    raw, blank = measured(raw, diverges, nan_is_blank)
    bad = (times_ms < EARLIEST_MS) | (times_ms > LATEST_MS)
    old = None if oldest_ms is None else ~(blank | bad) & (times_ms <= oldest_ms)
    out = blank | bad if old is None else blank | bad | old
    if not out.any():
        return Sifted(places, times_ms, raw)
    left_out["blank"] += int(blank.sum())
    left_out["untimely"] += int((bad & ~blank).sum())
    left_out["too_old"] += 0 if old is None else int(old.sum())
    return Sifted(places[~out], times_ms[~out], raw[~out])


def measured(raw: Values, diverges: Flags | bool, nan_is_blank: bool = False) -> tuple[Values, Flags]:
    """Raw values, of which those that diverged are inf, and which of them are blank.

    ``diverges``: whether their metric can. ``nan_is_blank``: NaN may stand for no value, as in a table of many metrics;
    otherwise it was measured.
    """
    if not (finite := np.isfinite(raw)).all():
        raw = np.where(diverges & (np.isinf(raw) if nan_is_blank else ~finite), np.inf, raw)
    return raw, is_blank(raw)


def scaled(raw: Values, scale: Values | float, low: Values | float, high: Values | float) -> tuple[Values, Flags]:
    """Raw values in our unit, and which of them their metric can have."""
    with np.errstate(over="ignore"):  # inf is what its metric can't have
        values = raw * scale
    return values, (values >= low) & (values <= high)


# -- units


@dataclass(slots=True)
class UnitBySize:
    """The unit of a foreign name that only the size of its values tells: ``count`` of them so far, the largest ``peak``."""

    guess: Guess
    peak: float = 0.0
    count: int = 0

    def look(self, raw: Values) -> None:
        """Take values as they stand."""
        self.peak = max(self.peak, float(raw[np.isfinite(raw)].max(initial=0.0)))
        self.count += len(raw)

    @property
    def factor(self) -> float:
        """The factor to our unit, as far as the values so far tell."""
        return scale_of(self.guess, self.peak)

    @property
    def is_settled(self) -> bool:
        """Whether a value tells the unit for certain, or there were enough of them."""
        return self.count >= MAX_UNSETTLED or self.factor != scale_of(self.guess, 0.0)


def scale_of(guess: Guess, peak: float) -> float:
    """The factor for a unit that is told by size only: the largest value that a source gives for a metric."""
    if guess == "ratio":
        return 0.01 if peak > 1.5 else 1.0
    if guess == "bytes":
        return 1.0 if peak > 1e7 else float(1 << 20)
    return 1.0


# -- blanks


def is_blank(values: Values) -> Flags:
    """Which raw values stand for none: NaN, and those that DCGM and NVML write for "not there".

    DCGM marks blank, not found, not supported and not permitted by four successive numbers at the end of each
    type's range (dcgm_structs.h); a 64-bit one is near 2**63 once it is a float. NVML writes all bits set. Infinities
    are none of these: the catalogue's bounds leave them to the metrics that can be infinite.
    """
    if values.size and values.max() < BLANK_RANGES[0][0]:  # False where any is NaN
        return np.zeros(values.shape, dtype=np.bool_)
    blank: Flags = np.isnan(values) | (values >= _INT64_BLANK) & np.isfinite(values)
    for first, last in BLANK_RANGES:
        blank |= (values == first) if first == last else (values >= first) & (values < last + 1)
    return blank


def may_hide_blanks(low: Values, high: Values) -> Flags:
    """Whether, of values of which only the least and the largest are known, any may be in ``BLANK_RANGES``."""
    hidden: Flags = low != low  # none
    for first, last in BLANK_RANGES:
        hidden |= (low <= last) & (high >= first)
    return hidden
