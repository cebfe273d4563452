"""How full the memory of GPUs and of nodes was: asks, and answers as cited values. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.gpus import name_of, of_gpu
from trackside.model import Run
from trackside.query import Query, metric

GPU_MEMORY: Mapping[str, Query] = {
    "used": metric("gpu_memory_used_bytes").over("around", "max"),
    "used_low": metric("gpu_memory_used_bytes").over("around", "min"),
    "free_low": metric("gpu_memory_free_bytes").over("around", "min"),
    "capacity": metric("gpu_memory_total_bytes").over("around", "max"),
}
"""What tells how full GPUs were."""
HOST_MEMORY: Mapping[str, Query] = {
    "host_low": metric("host_memory_available_bytes").over("around", "min"),
    "host_total": metric("host_memory_total_bytes").over("around", "max"),
    "oom_count": metric("host_oom_kills_total").over("around", "last"),
    "job_memory": metric("host_cgroup_memory_bytes").where(kind="anon").over("run", "max"),
}
"""What tells how full nodes were, whether their kernels killed for it, and what of it was the job's own."""
BEFORE_WINDOWS = 3
"""Windows before the run that are looked at: what was held earlier was another job's."""
STEADY = 0.05
"""Share by which memory that nobody touches may seem to differ: contexts come and go."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a GPU, or the least that a node had left: ``share`` of the capacity, None where that is unknown."""

    name: str
    value: Value
    capacity: Value | None
    at: float
    """End of the window in which it first was within a hundredth of it, POSIX seconds."""

    @property
    def share(self) -> float | None:
        """Of the capacity."""
        if self.capacity is None or not self.capacity.number > 0:
            return None
        return self.value.number / self.capacity.number


def fullest(evidence: Evidence, run: Run, gpus: Sequence[str] = ()) -> Peak | None:
    """The GPU, of these or of all, that held the most while the run was there."""
    grid = evidence.grid("used")
    if grid is None:
        return None
    import numpy as np

    grid = during(grid, run)
    most = np.fmax.reduce(grid.values, axis=1, initial=-1.0)
    wanted = set(gpus)
    rows = [row for row, each in enumerate(grid.series) if not wanted or name_of(each) in wanted]
    row = max(rows, key=lambda row: most[row], default=None)
    if row is None or most[row] < 0:
        return None
    at = float(grid.times[np.flatnonzero(grid.values[row] >= 0.99 * most[row])[0]])
    name = name_of(grid.series[row])
    return Peak(name, grid.one(row).value("max"), capacity_of(evidence, run, name), at)


def capacity_of(evidence: Evidence, run: Run, gpu: str) -> Value | None:
    """Bytes of a GPU's memory: as measured, else the most used and the least free at that time together."""
    total, used, free = (evidence.grid(name) for name in ("capacity", "used", "free_low"))
    if total is not None and (value := of_gpu(total, gpu).value("max")).value is not None:
        return value
    if used is None or free is None:
        return None
    most, least = of_gpu(during(used, run), gpu).value("max"), of_gpu(during(free, run), gpu).value("min")
    if most.value is None or least.value is None:
        return None
    return derived(most.number + least.number, most, least, unit="bytes")


def taken_before(evidence: Evidence, run: Run) -> dict[str, Value]:
    """GPU -> bytes that were in use before the run began, while it was there and after it: another process held them.

    Without samples from before: what one GPU held from the run's first window on, when most of the others held
    nothing.
    """
    grid = evidence.grid("used_low")
    if grid is None or run.start is None:
        return {}
    import numpy as np

    inside = during(grid, run)
    early = grid.during(float(grid.times[0]) - grid.step, _floor(grid, run.start))
    late = grid.during(float(inside.times[-1]), float(grid.times[-1]))
    low, before, after = (
        np.fmin.reduce(values, axis=1, initial=np.inf)
        for values in (inside.values, early.values[:, -BEFORE_WINDOWS:], late.values)
    )
    found = {}
    for row in np.flatnonzero(np.isfinite(low) & (low > 0)):
        name = name_of(grid.series[int(row)])
        if after[row] < (1 - STEADY) * low[row]:
            continue
        if np.isfinite(before[row]):
            if before[row] > 0 and abs(low[row] - before[row]) <= STEADY * before[row]:
                found[name] = early.during(*_last(early, BEFORE_WINDOWS)).one(int(row)).value("min")
        elif len(grid) > 2 and np.median(low[np.isfinite(low)]) < STEADY * low[row]:
            found[name] = inside.one(int(row)).value("min")
    return found


def during(grid: Grid, run: Run) -> Grid:
    """The windows of a grid that lie in the run."""
    first, last = float(grid.times[0]) - grid.step, float(grid.times[-1])
    start = first if run.start is None else max(first, _floor(grid, run.start))
    end = last if run.end is None else min(last, _floor(grid, run.end) + grid.step)
    return grid.during(start, max(end, start + grid.step))


def _floor(grid: Grid, time: float) -> float:
    return time // grid.step * grid.step


def _last(grid: Grid, windows: int) -> tuple[float, float]:
    return float(grid.times[-min(windows, len(grid.times))]) - grid.step, float(grid.times[-1])


def scarcest(evidence: Evidence, run: Run, nodes: Sequence[str] = ()) -> Peak | None:
    """The node, of these or of all, that had the least memory left while the run was there."""
    grid = evidence.grid("host_low")
    if grid is None:
        return None
    import numpy as np

    grid = during(grid, run)
    total = evidence.grid("host_total")
    least = np.fmin.reduce(grid.values, axis=1, initial=np.inf)
    rows = [row for row, each in enumerate(grid.series) if not nodes or each.get("node") in nodes]
    row = min(rows, key=lambda row: least[row], default=None)
    if row is None or not np.isfinite(least[row]):
        return None
    name = grid.series[row].get("node") or ""
    capacity = total.where(node=name).value("max") if total is not None else None
    at = float(grid.times[int(np.nanargmin(grid.values[row]))])
    return Peak(name, grid.one(row).value("min"), capacity if capacity and capacity.value else None, at)


def drawn(evidence: Evidence, run: Run, low: Peak) -> Value | None:
    """Bytes by which the memory left on a node fell, from the first samples of the run to its lowest."""
    grid = evidence.grid("host_low")
    if grid is None:
        return None
    own = during(grid.where(node=low.name), run)
    first = own.during(float(own.times[0]) - own.step, float(own.times[min(2, len(own.times) - 1)])).value("max")
    if first.value is None:
        return None
    return derived(max(0.0, first.number - low.value.number), first, low.value, unit="bytes")
