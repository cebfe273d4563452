"""How much of its time a GPU did something while the run made progress. Pure, on arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.activity import Flags, GpuActivity, Matrix, level, mean, middle, spells
from trackside.facts.training.learning import step_seconds, training_points

WARM_UP = 0.1
"""Share of the time of work left out at its start: compilation and first batches."""
BEGUN = 0.5
"""Share of the most that GPUs are busy, from which they train."""
TITLES = {"engine": "engine activity", "utilisation": "utilisation", "sm": "SM activity"}
"""Ask -> what its signal is called."""
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
    idle: Value | None = None
    """Seconds of each step in which the GPUs did nothing, long pauses left out; None where no step's time is told."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end - self.start


def duty(evidence: Evidence, seen: GpuActivity, least: int) -> Duty | None:
    """None where fewer than ``least`` readings were taken, or nothing tells work. A tracer alone gives times, but no
    figures of activity."""
    bounds = _bounds(evidence, seen)
    if bounds is None or all(each is None for each in (seen.busy, seen.sm, seen.launches, seen.collectives)):
        return None
    windows = (seen.times > bounds[0]) & (seen.times <= bounds[1]) & seen.seen
    if int(windows.sum()) < 2 or _readings(evidence, seen, windows) < least:
        return None
    rows = seen.users if seen.users.any() else np.ones(len(seen.gpus), dtype=bool)
    busy = _figure(evidence, seen.busy_by or "", seen.busy, rows, windows, bounds)
    stalls, stalled, idle = 0, 0.0, None
    if seen.busy is not None:
        crowd = middle(seen.busy[rows][:, windows], axis=0)
        still = crowd <= RESTING
        stalls, stalled = len(spells(still)), float(still.mean())
        idle = _idle(evidence, crowd, seen.step, busy)
    sm = _figure(evidence, "sm", seen.sm, rows, windows, bounds)
    return Duty(*bounds, windows, rows, busy, sm, stalls, stalled, idle)


def _readings(evidence: Evidence, seen: GpuActivity, windows: Flags) -> float:
    """How many samples of a GPU these windows hold."""
    names = (seen.busy_by or "sm", "launches", "collectives")
    grid = next((grid for name in names if (grid := evidence.grid(name)) is not None), None)
    cells = int((~np.isnan(grid.values)).sum()) if grid is not None else 0
    return float(windows.sum()) * grid.samples / cells if grid is not None and cells else 0.0


def _idle(evidence: Evidence, crowd: Matrix, step: float, busy: Value | None) -> Value | None:
    """The median over stretches of two steps and more, so that evaluations and saves now and then don't count."""
    progress = evidence["progress"]
    each = step_seconds(training_points(progress), progress)
    if each is None or busy is None or not each.number > 0:
        return None
    width = max(1, math.ceil(2 * each.number / step))
    if width > len(crowd):
        return None
    usual = float(np.median(np.convolve(crowd, np.full(width, 1 / width), "valid")))
    return derived(round((1 - min(usual, 1.0)) * each.number, 2), busy, each, unit="s")


def _bounds(evidence: Evidence, seen: GpuActivity) -> tuple[float, float] | None:
    """From the first work to the last: of the GPUs, else of the log's points. GPUs that work less than can be told from
    rest did some all the while if the log counts steps."""
    active = np.flatnonzero(seen.active)
    if not len(active) and len(training_points(evidence["progress"])) > 1:
        active = np.flatnonzero(seen.seen)
    active = active[active >= _begun(seen)]
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


def _begun(seen: GpuActivity) -> int:
    """The first window in which the GPUs are as busy as half of what they come to: compilation keeps them less so."""
    values = seen.busy if seen.busy is not None else seen.sm
    if values is None or not seen.users.any():
        return 0
    crowd = middle(values[seen.users], axis=0)[None, :]
    with np.errstate(invalid="ignore"):
        return int((crowd[0] >= BEGUN * level(crowd)[0]).argmax())


def _figure(
    evidence: Evidence, name: str, values: Matrix | None, rows: Flags, windows: Flags, bounds: tuple[float, float]
) -> Value | None:
    grid = evidence.grid(name) if name else None
    if grid is None or values is None:
        return None
    whole = middle(mean(values[rows][:, windows]))
    if np.isnan(whole):
        return None
    return derived(round(float(whole), 4), grid.during(*bounds).value("avg"), unit="ratio")
