"""When work ended: by GPU metrics, else by logged steps. Used for faults that have no time of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.cost.training_work import TrainingWork
from trackside.facts.fact import fact
from trackside.query import Query, metric

LAST_WORK: Mapping[str, Query] = {
    "launches": metric("trackside_cuda_kernel_launches_total")
    .over("run", "increase")
    .by("node", "gpu", "rank", how="sum"),
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
}
"""The queries behind :class:`LastWork`, the best first."""


@dataclass(frozen=True)
class Limits:
    """Thresholds for the end of work."""

    working_share: float = 0.1
    """GPUs below this share of their usual level were idle."""
    silent_intervals: float = 3.0
    """Multiple of the typical interval between logged steps after which work has ended."""
    min_pause_s: float = 60.0
    """Shorter gaps at the end count as the run's shutdown."""


@dataclass(frozen=True, slots=True)
class LastWork:
    """The last sign of work before the run went idle."""

    time: Value | None
    """None if it worked to its end, or if nothing shows when work ended."""


@fact(LAST_WORK, limits=Limits())
def last_work(evidence: Evidence, work: TrainingWork, limits: Limits) -> LastWork:
    """Needs the training work; empty if neither metrics nor the log show when work ended."""
    end, sign = work.allocation.end.number, work.last_sign
    for name in LAST_WORK:
        grid = evidence.grid(name)
        last = None if grid is None else _last_active_time(grid, work.allocation.start.number, end, limits)
        if last is not None:
            log_is_later = sign is not None and last.number < sign.number <= end
            time = sign if log_is_later and sign is not None else last
            return LastWork(time if end - time.number > limits.min_pause_s else None)
    if sign is None or end - sign.number <= max(
        limits.min_pause_s, limits.silent_intervals * _typical_interval_s(work)
    ):
        return LastWork(None)
    return LastWork(sign)


def _last_active_time(grid: Grid, start: float, end: float, limits: Limits) -> Value | None:
    """The end of the last window in which the GPUs worked."""
    part = grid.during(start, end)
    if not len(part.times):
        return None
    sampled = ~np.all(np.isnan(part.values), axis=0)
    level = np.full(len(part.times), np.nan)
    level[sampled] = np.nanmedian(part.values[:, sampled], axis=0)
    if not np.any(level > 0):
        return None
    working = np.flatnonzero(level >= limits.working_share * np.nanmedian(level[level > 0]))
    return derived(min(float(part.times[working[-1]]), end), part.value("count"), unit="time")


def _typical_interval_s(work: TrainingWork) -> float:
    """Median seconds between logged steps; infinity if too few carry a time."""
    times = [row.time for row in work.points if row.time is not None]
    gaps = [after - before for before, after in pairwise(times) if after > before]
    return median(gaps) if gaps else float("inf")
