"""How much of its time a GPU did something while the run made progress. Pure, on arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.diagnose.activity import Activity, Flags, Matrix, mean, middle, spells
from trackside.diagnose.family import Evidence
from trackside.diagnose.learning import training_points
from trackside.model import Value
from trackside.query import derived

WARM_UP = 0.1
"""Share of the time of work left out at its start: compilation and first batches."""
RESTING = 0.1
"""Engine activity of a window in which the GPUs did nothing."""


@dataclass(frozen=True)
class Duty:
    """The time in which the run worked, its warm-up left out: (start, end], and what the GPUs did in it."""

    start: float
    end: float
    windows: Flags
    """(T,) which windows that is."""
    rows: Flags
    """(G,) the GPUs in use; all of them where none was seen to work."""
    busy: Value | None
    """Mean engine activity (else utilisation) of the GPUs in use."""
    sm: Value | None
    stalls: int
    """Stretches of windows in which hardly any GPU did anything."""
    stalled: float
    """Share of the time that these take."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def duty(evidence: Evidence, seen: Activity, least: int) -> Duty | None:
    """None where fewer than ``least`` windows were watched, or neither engine nor SM activity nor utilisation."""
    bounds = _bounds(evidence, seen)
    if bounds is None or (seen.busy is None and seen.sm is None):
        return None
    windows = (seen.times > bounds[0]) & (seen.times <= bounds[1]) & seen.seen
    if int(windows.sum()) < least:
        return None
    rows = seen.users if seen.users.any() else np.ones(len(seen.gpus), dtype=bool)
    stalls, stalled = 0, 0.0
    if seen.busy is not None:
        crowd = middle(seen.busy[rows][:, windows], axis=0)
        still = crowd <= RESTING
        stalls, stalled = len(spells(still)), float(still.mean())
    return Duty(
        *bounds, windows, rows, _figure(evidence, seen.busy_by or "", seen.busy, rows, windows, bounds),
        _figure(evidence, "sm", seen.sm, rows, windows, bounds), stalls, stalled,
    )  # fmt: skip


def _bounds(evidence: Evidence, seen: Activity) -> tuple[float, float] | None:
    """From the first work to the last: of the GPUs, else of the log's points."""
    active = np.flatnonzero(seen.active)
    points = [row.time for row in training_points(evidence["progress"]) if row.time is not None]
    first = [float(seen.times[active[0]]) - seen.step] if len(active) else []
    last = [float(seen.times[active[-1]])] if len(active) else []
    if points:  # weights are loaded and kernels compiled before the first step
        first, last = [*first, points[0]], [*last, points[-1]]
    if not first:
        return None
    start, end = max(first), max(last)
    start += WARM_UP * (end - start)
    return start, end


def _figure(
    evidence: Evidence, name: str, values: Matrix | None, rows: Flags, windows: Flags, bounds: tuple[float, float]
) -> Value | None:
    grid = evidence.grid(name) if name else None
    if grid is None or values is None:
        return None
    level = middle(mean(values[rows][:, windows]))
    if np.isnan(level):
        return None
    return derived(round(float(level), 4), grid.during(*bounds).value("avg", unit=""))
