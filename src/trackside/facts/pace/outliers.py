r"""Which of many equal workers is an outlier, by how much and for how long.

Ranks of synchronous training do the same work, so each is compared with the median of all in each window. Pipeline
stages, experts and the first rank of each node differ by design: an outlier must also differ from the other GPUs of its
node and from those with the same index on other nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.facts.gpu.activity import Flags, Matrix, nan_median


@dataclass(frozen=True)
class Limits:
    """Thresholds for an outlier."""

    min_ratio: float = 1.3
    """Ratio to the median of the others. Ranks of healthy jobs differ by a few percent."""
    min_sustained_share: float = 0.7
    """Minimum share of windows in which it must exceed the ratio."""
    min_windows: int = 10
    """Minimum number of windows of an outlier."""
    max_share: float = 0.25
    """Maximum share of outliers: more is a division of the work, not stragglers."""
    pair_ratio: float = 2.0
    """Ratio to the other one if there are only two, which have no median."""


@dataclass(frozen=True)
class Outlier:
    """A row that is an outlier in windows [start, stop)."""

    row: int
    start: int
    stop: int
    ratio: float
    """Median ratio of its value to that of the others."""


def outliers(values: Matrix, names: Sequence[str], limits: Limits) -> list[Outlier]:
    r"""The rows (of ``node:index`` names) that stay above the others, the largest ratio first.

    ``values``: (rows, windows), NaN where there is nothing to compare. Empty if there are too many, or if they differ
    by design.
    """
    sampled = ~np.isnan(values)
    count = int(sampled.any(axis=1).sum())
    if count < 2 or values.shape[1] < limits.min_windows:
        return []
    ratios, min_ratio = _ratios(values, sampled, count, limits)
    with np.errstate(invalid="ignore"):
        exceeds = ratios >= min_ratio
    candidates = []
    for row in np.flatnonzero(exceeds.sum(axis=1) >= limits.min_windows * limits.min_sustained_share):
        period = _period_above(exceeds[row], sampled[row], limits)
        if period is None:
            continue
        part = ratios[row, period[0] : period[1]]
        candidates.append(Outlier(int(row), *period, float(np.nanmedian(part))))
    candidates = [outlier for outlier in candidates if outlier.ratio >= min_ratio]
    if not candidates or (count == 2 and len(candidates) > 1):
        return []
    return sorted(_drop_by_position(values, names, candidates, count, limits), key=lambda outlier: -outlier.ratio)


def _ratios(values: Matrix, sampled: NDArray[np.bool_], count: int, limits: Limits) -> tuple[Matrix, float]:
    if count == 2:
        others, comparable, min_ratio = np.fmin.reduce(values, axis=0), sampled.sum(axis=0) == 2, limits.pair_ratio
    else:
        others, comparable, min_ratio = (
            nan_median(values, axis=0),
            sampled.sum(axis=0) >= max(3, count / 2),
            limits.min_ratio,
        )
    with np.errstate(invalid="ignore"):
        return values / np.where(comparable & (others > 0), others, np.nan), min_ratio


def _period_above(exceeds: Flags, sampled: Flags, limits: Limits) -> tuple[int, int] | None:
    """The range of windows in which it is above the others most reliably: where the share of windows above them, minus
    the required share, sums to the maximum."""
    score = np.concatenate([[0.0], np.cumsum(np.where(sampled, exceeds - limits.min_sustained_share, 0.0))])
    lowest = np.minimum.accumulate(score)
    stop = int(np.argmax(score - lowest))
    start = int(np.argmin(score[: stop + 1]))
    if int(sampled[start:stop].sum()) < limits.min_windows:
        return None
    return start, stop


def _drop_by_position(
    values: Matrix, names: Sequence[str], candidates: list[Outlier], count: int, limits: Limits
) -> list[Outlier]:
    """The candidates that do not differ by their position alone; empty if there are too many."""
    if len(candidates) > max(1, limits.max_share * count):
        return []
    nodes = [name.rpartition(":")[0] for name in names]
    indices = [name.rpartition(":")[2] for name in names]
    sampled: Flags = np.any(~np.isnan(values), axis=1)
    rows = {outlier.row for outlier in candidates}
    own_outliers = []
    for outlier in candidates:
        level = _median_of(values, outlier.row, outlier)
        for group in (nodes, indices):
            mates = {row for row in np.flatnonzero(sampled).tolist() if group[row] == group[outlier.row]} - {
                outlier.row
            }
            usual = float(np.median([_median_of(values, row, outlier) for row in mates])) if len(mates) >= 2 else 0.0
            if len(mates) >= 2 and level < limits.min_ratio * usual:
                break
            if len(mates) == 1 and mates <= rows and group is indices:  # both of their index: two nodes alike
                break
        else:
            own_outliers.append(outlier)
    return own_outliers


def _median_of(values: Matrix, row: int, outlier: Outlier) -> float:
    return float(nan_median(values[row, outlier.start : outlier.stop]))
