"""Did waiting for data grow during a run, and did the run slow down with it? Pure, on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.activity import Matrix, middle
from trackside.facts.pace.pace import Pace, pace

SIDE = 5
"""Windows on either side of the moment at which it grew."""
SLOWER = 1.1
"""Times longer that a step takes for the wait alone, below which its growth costs little."""
OF_IT = 0.5
"""Of the slowdown that the wait alone makes, what was measured at least: other waits shift as well, and gauges of the
wait and of throughput are means over different times."""


@dataclass(frozen=True, slots=True)
class Growth:
    """Share of the step that is data wait, before and after ``since``, and the pace of both."""

    before: Value
    after: Value
    pace: Pace
    since: float


def grown(evidence: Evidence) -> Growth | None:
    """Whether the gauge of data wait rose to another level, and steps or throughput slowed in step with it.

    Compute that takes the same time as before is a smaller share of a longer step: the wait alone makes a step
    (1 - before) / (1 - after) times as long. None where it did not rise so far, or no pace was measured, or it held.
    """
    grid = evidence.grid("loading")
    if grid is None:
        return None
    crowd = middle(grid.values, axis=0)
    at = _split(crowd)
    if at is None:
        return None
    first, last = float(grid.times[0]) - grid.step, float(grid.times[-1])
    since = float(grid.times[at]) - grid.step
    before, after = (grid.during(*span).value("median", unit="share") for span in ((first, since), (since, last)))
    alone = (1 - before.number) / max(1 - after.number, 0.01)
    if alone < SLOWER:
        return None
    told = pace(evidence, (first, since), (since, last))
    if told is None or told.kind not in ("step", "throughput", "launches") or told.slowdown < 1 + OF_IT * (alone - 1):
        return None
    return Growth(before, after, told, since)


def _split(values: Matrix) -> int | None:
    """The place that parts the values best into two levels, the later one higher; None where it isn't."""
    places = np.flatnonzero(~np.isnan(values))
    known = values[places]
    count = len(known)
    if count < 2 * SIDE:
        return None
    sizes = np.arange(1, count)
    sums = np.cumsum(known)
    left, right = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (count - sizes)
    between = np.where(right > left, sizes * (count - sizes) * (right - left) ** 2, 0.0)[SIDE - 1 : count - SIDE]
    best = int(np.argmax(between))
    return int(places[best + SIDE]) if between[best] > 0 else None
