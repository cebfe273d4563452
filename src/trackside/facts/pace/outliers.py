"""Which of many equals stands out from the others, how far and for how long.

Ranks of synchronous training do the same work, so that in each window each is compared with the median of all. Stages
of a pipeline, experts and the first rank of each node differ by design: whoever stands out must do so from the GPUs of
its own node and from those at the same index of other nodes as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.facts.gpu.activity import Flags, Matrix, nan_median


@dataclass(frozen=True)
class Limits:
    """What counts as standing out."""

    ratio: float = 1.3
    """To the median of the others. Ranks of healthy jobs differ by a few per cent."""
    sustained: float = 0.7
    """Share of the windows of a stretch in which it must stand out so far."""
    windows: int = 10
    """Windows of the stretch."""
    max_share: float = 0.25
    """Of all that may stand out: more is a division of the work, not a few that lag."""
    pair_ratio: float = 2.0
    """With two of them there is no median: then this, to the other."""


@dataclass(frozen=True)
class Outlier:
    """One row that stands out in windows [start, stop)."""

    row: int
    start: int
    stop: int
    ratio: float
    """Median over the stretch of its value over that of the others."""


def outliers(values: Matrix, names: Sequence[str], limits: Limits) -> list[Outlier]:
    """The rows (of ``node:index`` names) that lie above the others for a sustained stretch, the furthest first.

    ``values``: (rows, windows), NaN where nothing is to be compared. Empty where too many stand out, or by design.
    """
    known = ~np.isnan(values)
    count = int(known.any(axis=1).sum())
    if count < 2 or values.shape[1] < limits.windows:
        return []
    ratios, least = _ratios(values, known, count, limits)
    with np.errstate(invalid="ignore"):
        late = ratios >= least
    late_rows = []
    for row in np.flatnonzero(late.sum(axis=1) >= limits.windows * limits.sustained):
        stretch = _stretch(late[row], known[row], limits)
        if stretch is None:
            continue
        part = ratios[row, stretch[0] : stretch[1]]
        late_rows.append(Outlier(int(row), *stretch, float(np.nanmedian(part))))
    late_rows = [outlier for outlier in late_rows if outlier.ratio >= least]
    if not late_rows or (count == 2 and len(late_rows) > 1):
        return []
    return sorted(_few(values, names, late_rows, count, limits), key=lambda outlier: -outlier.ratio)


def _ratios(values: Matrix, known: NDArray[np.bool_], count: int, limits: Limits) -> tuple[Matrix, float]:
    if count == 2:
        others, enough, least = np.fmin.reduce(values, axis=0), known.sum(axis=0) == 2, limits.pair_ratio
    else:
        others, enough, least = nan_median(values, axis=0), known.sum(axis=0) >= max(3, count / 2), limits.ratio
    with np.errstate(invalid="ignore"):
        return values / np.where(enough & (others > 0), others, np.nan), least


def _stretch(late: Flags, known: Flags, limits: Limits) -> tuple[int, int] | None:
    """The stretch in which it is late most surely: where lateness less the share asked for adds up to most."""
    score = np.concatenate([[0.0], np.cumsum(np.where(known, late - limits.sustained, 0.0))])
    lowest = np.minimum.accumulate(score)
    stop = int(np.argmax(score - lowest))
    start = int(np.argmin(score[: stop + 1]))
    if int(known[start:stop].sum()) < limits.windows:
        return None
    return start, stop


def _few(values: Matrix, names: Sequence[str], late: list[Outlier], count: int, limits: Limits) -> list[Outlier]:
    """Those that are few, and do not stand out by their place alone."""
    if len(late) > max(1, limits.max_share * count):
        return []
    nodes = [name.rpartition(":")[0] for name in names]
    indices = [name.rpartition(":")[2] for name in names]
    known: Flags = np.any(~np.isnan(values), axis=1)
    rows = {outlier.row for outlier in late}
    few = []
    for outlier in late:
        level = _level(values, outlier.row, outlier)
        for group in (nodes, indices):
            mates = {row for row in np.flatnonzero(known).tolist() if group[row] == group[outlier.row]} - {outlier.row}
            usual = float(np.median([_level(values, row, outlier) for row in mates])) if len(mates) >= 2 else 0.0
            if len(mates) >= 2 and level < limits.ratio * usual:
                break
            if len(mates) == 1 and mates <= rows and group is indices:  # both of their index: two nodes alike
                break
        else:
            few.append(outlier)
    return few


def _level(values: Matrix, row: int, outlier: Outlier) -> float:
    return float(nan_median(values[row, outlier.start : outlier.stop]))
