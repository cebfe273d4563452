"""How much of its time a GPU was busy while the run made progress.

The time of work runs from the first work of the GPUs (and the log's first step) to the last, without its start. A
utilization reading covers the last second. If the gaps between kernels are shorter than a second, every reading lies
between 0% and 100%; idle times of seconds leave readings of zero about as often as the GPUs idle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trackside.evidence import Evidence, Grid, Missing, Value, derived
from trackside.facts.fact import Maybe, fact, or_none
from trackside.facts.gpu.activity import Flags, GpuActivity, Matrix, level, nan_mean, nan_median, window_ranges
from trackside.facts.gpus import grid_of_gpu
from trackside.facts.training.learning import Trajectory
from trackside.model import TimeRange
from trackside.query import metric

IDLE_LEVEL = 0.1
"""Engine activity of a window, or a utilization reading, of idle GPUs."""


@dataclass(frozen=True)
class Limits:
    """What belongs to the time of work."""

    warm_up_share: float = 0.1
    """Share of the time of work dropped at its start: compilation and first batches."""
    started_share: float = 0.5
    """The GPUs are training if their activity is at least this share of its peak."""


MIN_READINGS = 10
"""Minimum number of samples per GPU for a reliable mean."""


@dataclass(frozen=True)
class IdleReadings:
    """The share of windows with a utilization reading of an idle GPU."""

    share: Value
    window: Value
    """Seconds per window."""
    lowest: Value
    """The lowest reading of a window, in the median."""
    expected: float
    """The share expected at random reading times if every idle period were longer than a reading."""


@dataclass(frozen=True, eq=False)
class DutyCycle:
    """The time in which the run worked, without its warm-up: (start, end], and what the GPUs did in it."""

    start: float
    end: float
    windows: Flags
    """(T,) The windows of that time."""
    rows: Flags
    """(G,) The GPUs in use; all of them if none worked."""
    readings: float
    """Samples per GPU in that time."""
    busy: Value | None
    """Mean of ``busy_by`` of the median GPU of those in use."""
    busy_by: Literal["engine", "utilization"]
    """Engine activity, else utilization."""
    sm: Value | None
    typical_busy: Matrix | None
    """(windows,) Median engine activity (else utilization) of the GPUs in that time."""
    step: float
    """Seconds per window."""
    step_seconds: Value | None
    """Seconds per training step, from the log."""
    lowest: Grid | None
    """The lowest utilization reading in each window of the run."""
    gpu_means: Matrix | None
    """(GPUs in use,) Mean engine activity (else utilization) of each in that time."""

    @property
    def sampled(self) -> bool:
        """Whether there are enough samples for a reliable mean."""
        return self.readings >= MIN_READINGS

    @property
    def seconds(self) -> float:
        """Duration of the time of work."""
        return self.end - self.start

    @cached_property
    def stalls(self) -> int:
        """Number of periods in which hardly any GPU was busy."""
        return 0 if self.typical_busy is None else len(window_ranges(self.typical_busy <= IDLE_LEVEL))

    @cached_property
    def stalled_share(self) -> float:
        """Share of the time that these periods take."""
        return 0.0 if self.typical_busy is None else float((self.typical_busy <= IDLE_LEVEL).mean())

    @cached_property
    def idle(self) -> Value | None:
        """Idle seconds per step, without long pauses; None if the step time is unknown.

        The median over periods of at least two steps, so that occasional evaluations and saves do not count.
        """
        step_s = self.step_seconds
        if self.typical_busy is None or step_s is None or self.busy is None or not step_s.number > 0:
            return None
        width = max(1, math.ceil(2 * step_s.number / self.step))
        if width > len(self.typical_busy):
            return None
        usual = float(np.median(np.convolve(self.typical_busy, np.full(width, 1 / width), "valid")))
        return derived(round((1 - min(usual, 1.0)) * step_s.number, 2), self.busy, step_s, unit="s")

    @cached_property
    def idle_readings(self) -> IdleReadings | None:
        """How often readings find the GPUs idle; None if utilization was not sampled in that time."""
        grid = self.lowest
        if grid is None or self.busy is None:
            return None
        part = grid.during(self.start, self.end)
        lowest = part.value("median")
        sampled, total = int((part.values >= 0).sum()), int((grid.values >= 0).sum())
        if lowest.value is None or not sampled:
            return None
        share = derived(round(float((part.values <= IDLE_LEVEL).sum() / sampled), 3), lowest, unit="share")
        expected = 1 - self.busy.number ** (grid.samples / total)  # any one of a window's readings
        return IdleReadings(share, derived(grid.step, lowest, unit="s"), lowest, expected)


NO_WORK = Missing("no metric shows when the GPUs worked")
TOO_FEW_SAMPLES = Missing("too little was sampled while the GPUs worked")


@fact({"lowest": metric("gpu_utilization_ratio").over("run", "min")}, limits=Limits())
def duty_cycle(
    evidence: Evidence, activity: GpuActivity, trajectory: Maybe[Trajectory], limits: Limits
) -> Maybe[DutyCycle]:
    """Needs metrics of activity that show work; otherwise missing. A tracer alone gives times, but no activity
    levels."""
    training = or_none(trajectory)
    bounds = _bounds(activity, training, limits)
    signals = (activity.busy, activity.sm, activity.launches, activity.collectives)
    if bounds is None or all(signal is None for signal in signals):
        return NO_WORK
    windows = (activity.times > bounds[0]) & (activity.times <= bounds[1]) & activity.observed
    if int(windows.sum()) < 2:
        return TOO_FEW_SAMPLES
    rows = activity.in_use
    busy = _mean_of(activity, activity.busy_by, rows, windows, bounds)
    sm = _mean_of(activity, "sm", rows, windows, bounds)
    typical_busy = None if activity.busy is None else nan_median(activity.busy[rows][:, windows], axis=0)
    gpu_means = None if activity.busy is None else nan_mean(activity.busy[rows][:, windows])
    step_seconds = None if training is None else training.step_seconds
    return DutyCycle(
        *bounds, windows, rows, _readings(activity, windows), busy,
        activity.busy_by or "engine", sm, typical_busy, activity.step, step_seconds,
        evidence.grid("lowest"), gpu_means,
    )  # fmt: skip


def _readings(activity: GpuActivity, windows: Flags) -> float:
    names = (activity.busy_by or "sm", "launches", "collectives")
    grid = next(grid for name in names if (grid := activity.grid(name)) is not None)
    cells = int((~np.isnan(grid.values)).sum())
    return float(windows.sum()) * grid.samples / cells if cells else 0.0


def _bounds(activity: GpuActivity, training: Trajectory | None, limits: Limits) -> tuple[float, float] | None:
    """From the first work to the last: by the GPUs, else by the log's points. GPUs whose work is too small to detect
    count as working all the time if the log counts steps."""
    points = () if training is None else training.points
    active = np.flatnonzero(activity.active)
    if not len(active) and len(points) > 1:
        active = np.flatnonzero(activity.observed)
    active = active[active >= _first_training_window(activity, limits)]
    times = [row.time for row in points if row.time is not None]
    spans = [(times[0], times[-1])] if times else []  # weights are loaded and kernels compiled before the first step
    if len(active):
        spans.append((float(activity.times[active[0]]) - activity.step, float(activity.times[active[-1]])))
    if not spans:
        return None
    start, end = (max(edges) for edges in zip(*spans, strict=True))
    return start + limits.warm_up_share * (end - start), end


def _first_training_window(activity: GpuActivity, limits: Limits) -> int:
    """The first window with half of the GPUs' peak activity: during compilation they are less busy."""
    values = activity.busy if activity.busy is not None else activity.sm
    if values is None or not activity.working_gpus.any():
        return 0
    typical = nan_median(values[activity.working_gpus], axis=0)[None, :]
    with np.errstate(invalid="ignore"):
        return int((typical[0] >= limits.started_share * level(typical)[0]).argmax())


def _mean_of(activity: GpuActivity, name: str | None, rows: Flags, windows: Flags, bounds: TimeRange) -> Value | None:
    """The mean of a signal for the median GPU, cited by its own samples."""
    grid, values = activity.grid(name), activity.signal(name)
    if grid is None or values is None:
        return None
    means = np.where(rows, nan_mean(values[:, windows]), np.nan)
    measured = np.flatnonzero(~np.isnan(means))
    if not len(measured):
        return None
    median_row = measured[np.argsort(means[measured], kind="stable")[(len(measured) - 1) // 2]]
    mean = grid_of_gpu(grid.during(*bounds), activity.gpus[median_row]).value("avg")
    if mean.value is None:  # a series without the name of its GPU
        mean = grid.during(*bounds).value("avg")
    return derived(round(mean.number, 4), mean, unit="ratio")
