"""Which of many equals stands out from the others, how far and for how long. Pure, on arrays.

Ranks of synchronous training do the same work, so that in each window each is compared with the median of all. Stages
of a pipeline, experts and the first rank of each node differ by design: whoever stands out must do so from the GPUs of
its own node and from those at the same place of other nodes as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.facts.gpu.activity import Flags, Matrix, middle


@dataclass(frozen=True)
class Limits:
    """What counts as standing out."""

    ratio: float = 1.3
    """To the median of the others. Ranks of healthy jobs differ by a few per cent."""
    sustained: float = 0.7
    """Share of the windows of a stretch in which it must stand out so far."""
    windows: int = 10
    """Windows of the stretch."""
    most_share: float = 0.25
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
    found = []
    for row in np.flatnonzero(late.sum(axis=1) >= limits.windows * limits.sustained):
        stretch = _stretch(late[row], known[row], limits)
        if stretch is None:
            continue
        part = ratios[row, stretch[0] : stretch[1]]
        found.append(Outlier(int(row), *stretch, float(np.nanmedian(part))))
    found = [each for each in found if each.ratio >= least]
    if not found or (count == 2 and len(found) > 1):
        return []
    return sorted(_few(values, names, found, count, limits), key=lambda each: -each.ratio)


def _ratios(values: Matrix, known: NDArray[np.bool_], count: int, limits: Limits) -> tuple[Matrix, float]:
    with np.errstate(invalid="ignore", divide="ignore"):
        if count == 2:
            others = np.fmin.reduce(values, axis=0)
            others = np.where(known.sum(axis=0) == 2, others, np.nan)
            return values / np.where(others > 0, others, np.nan), limits.pair_ratio
        enough = known.sum(axis=0) >= max(3, count / 2)
        others = np.where(enough, middle(values, axis=0), np.nan)
        return values / np.where(others > 0, others, np.nan), limits.ratio


def _stretch(late: Flags, known: Flags, limits: Limits) -> tuple[int, int] | None:
    """The stretch in which it is late most surely: where lateness less the share asked for adds up to most."""
    score = np.concatenate([[0.0], np.cumsum(np.where(known, late - limits.sustained, 0.0))])
    lowest = np.minimum.accumulate(score)
    stop = int(np.argmax(score - lowest))
    start = int(np.argmin(score[: stop + 1]))
    if int(known[start:stop].sum()) < limits.windows:
        return None
    return start, stop


def _few(values: Matrix, names: Sequence[str], found: list[Outlier], count: int, limits: Limits) -> list[Outlier]:
    """Those that are few, and do not stand out by their place alone."""
    nodes = [name.rpartition(":")[0] for name in names]
    places = [name.rpartition(":")[2] for name in names]
    known: Flags = np.any(~np.isnan(values), axis=1)
    rows = {each.row for each in found}
    if len(found) > max(1, limits.most_share * count):
        return []
    kept = []
    for each in found:
        level = _level(values, each.row, each)
        for group in (nodes, places):
            mates = {row for row in range(len(names)) if known[row] and group[row] == group[each.row]} - {each.row}
            if len(mates) >= 2 and level < limits.ratio * float(
                np.median([_level(values, row, each) for row in mates])
            ):
                break
            if len(mates) == 1 and mates <= rows and group is places:  # both of their place: two nodes alike
                break
        else:
            kept.append(each)
    return kept


def _level(values: Matrix, row: int, each: Outlier) -> float:
    part = values[row, each.start : each.stop]
    part = part[~np.isnan(part)]
    return float(np.median(part)) if len(part) else np.nan
