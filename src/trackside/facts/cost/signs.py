"""When did work end, where the fault itself bears no time: by the metrics, else by the training points."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import median

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.cost.work import Work
from trackside.query import Query, metric

SIGNS: Mapping[str, Query] = {
    "launches": metric("trackside_cuda_kernel_launches_total")
    .over("run", "increase")
    .by("node", "gpu", "rank", how="sum"),
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
}
"""What tells of work beside the log."""
WORKING = 0.1
"""Of the usual level: below it the GPUs did nothing."""
SILENT = 3.0
"""Times as long as training points are mostly apart, after which there is no more work."""
LEAST_S = 60.0
"""Shorter silences at the end are its ending."""


def last_work(evidence: Evidence, done: Work) -> Value | None:
    """The last sign of work; None where it worked to its end, or nothing tells."""
    end, sign = done.held.end.number, done.last_sign
    for name in SIGNS:
        grid = evidence.grid(name)
        last = None if grid is None else _last(grid, done.held.start.number, end)
        if last is not None:
            late = sign is not None and last.number < sign.number <= end
            told = sign if late and sign is not None else last
            return told if end - told.number > LEAST_S else None
    if sign is None or end - sign.number <= max(LEAST_S, SILENT * _apart(done)):
        return None
    return sign


def _last(grid: Grid, start: float, end: float) -> Value | None:
    """The end of the last window in which the GPUs did something."""
    part = grid.during(start, end)
    if not len(part.times):
        return None
    seen = ~np.all(np.isnan(part.values), axis=0)
    level = np.full(len(part.times), np.nan)
    level[seen] = np.nanmedian(part.values[:, seen], axis=0)
    if not np.any(level > 0):
        return None
    working = np.flatnonzero(level >= WORKING * np.nanmedian(level[level > 0]))
    return derived(min(float(part.times[working[-1]]), end), part.value("count"), unit="time")


def _apart(done: Work) -> float:
    """Seconds that training points are mostly apart; endless where too few are stamped."""
    times = [row.time for row in done.points if row.time is not None]
    gaps = [after - before for before, after in pairwise(times) if after > before]
    return median(gaps) if gaps else float("inf")
