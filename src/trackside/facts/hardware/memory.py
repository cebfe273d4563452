"""GPU memory: how full the GPUs were, what was in use before the job started, and failed allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import gpu_name, grid_of_gpu, value_or_none
from trackside.facts.hardware.counters import Change, rises
from trackside.model import Run
from trackside.query import metric

CONTEXT_SHARE = 0.03
"""Share of a GPU's memory that a CUDA context with its libraries needs: 300 to 700 MiB of 24 to 80 GiB, under 2% of a
large GPU's."""


@dataclass(frozen=True)
class Limits:
    """Time windows and tolerances for memory that was in use before the run."""

    before_windows: int = 3
    """Windows before the run that are checked: earlier use belonged to another job."""
    steady_share: float = 0.05
    """Variation of memory that nobody touches: contexts come and go."""
    late_s: float = 600.0
    """Time before the run's end: a series that peaked earlier was a cache, which fills up and stays full."""
    climb_ratio: float = 0.9
    """A GPU used clearly less in the middle of its run if it was below this share of its peak."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The maximum that a GPU used, or the minimum that a node had left."""

    name: str
    value: Value
    capacity: Value | None
    at: float
    """End of the first window within one percent of it, POSIX seconds."""

    @property
    def share(self) -> float | None:
        """Share of the capacity; None if that is unknown."""
        if self.capacity is None or not self.capacity.number > 0:
            return None
        return self.value.number / self.capacity.number


@dataclass(frozen=True, eq=False)
class GpuMemory:
    """The sampled memory of the run's GPUs."""

    used: Grid | None
    used_low: Grid | None
    free_low: Grid | None
    total: Grid | None
    failures: Grid | None
    """The framework's count of failed allocations."""
    run: Run
    limits: Limits

    def fullest(self, gpus: Sequence[str] = ()) -> Peak | None:
        """The GPU, of these or of all, with the highest use during the run."""
        if self.used is None:
            return None
        grid = during(self.used, self.run)
        peaks = np.fmax.reduce(grid.values, axis=1, initial=-1.0)
        selected = set(gpus)
        rows = [row for row, series in enumerate(grid.series) if not selected or gpu_name(series) in selected]
        row = max(rows, key=lambda row: peaks[row], default=None)
        if row is None or peaks[row] < 0:
            return None
        time = float(grid.times[np.flatnonzero(grid.values[row] >= 0.99 * peaks[row])[0]])
        name = gpu_name(grid.series[row])
        return Peak(name, grid.one(row).value("max"), self.capacity(name), time)

    def capacity(self, gpu: str) -> Value | None:
        """Bytes of a GPU's memory: as measured, else the maximum used plus the minimum free."""
        if self.total is not None and (value := value_or_none(grid_of_gpu(self.total, gpu), "max")) is not None:
            return value
        if self.used is None or self.free_low is None:
            return None
        used = grid_of_gpu(during(self.used, self.run), gpu).value("max")
        free = grid_of_gpu(during(self.free_low, self.run), gpu).value("min")
        if used.value is None or free.value is None:
            return None
        return derived(used.number + free.number, used, free, unit="bytes")

    @cached_property
    def used_before(self) -> Mapping[str, Value]:
        """GPU -> bytes in use before, during and after the run: another process's.

        Without samples from before the run: what one GPU had in use from the run's first window on while most of the
        others had nothing in use.
        """
        grid, start, limits = self.used_low, self.run.start, self.limits
        if grid is None or start is None:
            return {}
        inside = during(grid, self.run)
        early = grid.during(float(grid.times[0]) - grid.step, _floor(grid, start))
        late = grid.during(float(inside.times[-1]), float(grid.times[-1]))
        low, before, after = (
            np.fmin.reduce(values, axis=1, initial=np.inf)
            for values in (inside.values, early.values[:, -limits.before_windows :], late.values)
        )
        used = {}
        for row in np.flatnonzero(np.isfinite(low) & (low > 0)):
            name = gpu_name(grid.series[int(row)])
            if after[row] < (1 - limits.steady_share) * low[row]:
                continue
            if np.isfinite(before[row]):
                if before[row] > 0 and abs(low[row] - before[row]) <= limits.steady_share * before[row]:
                    used[name] = _last(early, limits.before_windows).one(int(row)).value("min")
            elif len(grid) > 2 and np.median(low[np.isfinite(low)]) < limits.steady_share * low[row]:
                used[name] = inside.one(int(row)).value("min")
        return used

    @cached_property
    def late_failure(self) -> Change | None:
        """The rise of the framework's count of failed allocations, if it was shortly before the run's end."""
        end = self.run.end
        late_changes = [change for change in rises(self.failures) if end and change.until >= end - self.limits.late_s]
        return late_changes[-1] if late_changes else None

    def climbed_late(self, peak: Peak) -> bool:
        """Whether a GPU peaked late in the run, unlike a cache, which fills up early."""
        start, end, late_s = self.run.start, self.run.end, self.limits.late_s
        if end is None or peak.at < end - late_s:
            return False
        if self.used is None or start is None or end - start <= 2 * late_s:
            return True
        middle = grid_of_gpu(during(self.used, self.run), peak.name).value("median").value
        return isinstance(middle, (int, float)) and middle < self.limits.climb_ratio * peak.value.number


@fact(
    {
        "used": metric("gpu_memory_used_bytes").over("around", "max"),
        "used_low": metric("gpu_memory_used_bytes").over("around", "min"),
        "free_low": metric("gpu_memory_free_bytes").over("around", "min"),
        "capacity": metric("gpu_memory_total_bytes").over("around", "max"),
        "failed": metric("training_memory_ooms_total").over("around", "last"),
    },
    needs=(("used", "failed"),),
    limits=Limits(),
)
def gpu_memory(evidence: Evidence, run: Run, limits: Limits) -> GpuMemory:
    """Needs samples of memory in use or of failed allocations; otherwise missing."""
    used, used_low, free_low = (evidence.grid(name) for name in ("used", "used_low", "free_low"))
    return GpuMemory(used, used_low, free_low, evidence.grid("capacity"), evidence.grid("failed"), run, limits)


def during(grid: Grid, run: Run) -> Grid:
    """The windows of a grid during the run."""
    first, last = float(grid.times[0]) - grid.step, float(grid.times[-1])
    start = first if run.start is None else max(first, _floor(grid, run.start))
    end = last if run.end is None else min(last, _floor(grid, run.end) + grid.step)
    return grid.during(start, max(end, start + grid.step))


def _floor(grid: Grid, time: float) -> float:
    return time // grid.step * grid.step


def _last(grid: Grid, windows: int) -> Grid:
    return grid.during(float(grid.times[-min(windows, len(grid.times))]) - grid.step, float(grid.times[-1]))
