"""SM clocks and throttle reasons of the run's GPUs: the windows of work in which a severe reason lowered the clocks.

Throttle reasons and counters of throttled time show it. Without them, a hot GPU counts whose clock is below its own
best level, below the other GPUs, or far below its maximum, and that is not at its power limit. A software power cap and
idleness are normal and do not count. Arrays are (GPUs, windows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from trackside.catalog.throttle import REASONS, mask
from trackside.evidence import Evidence, Grid, Missing
from trackside.facts.fact import Maybe, fact, or_none
from trackside.facts.gpu.activity import Flags, GpuActivity, Matrix
from trackside.facts.gpu.power_limits import rated_values
from trackside.facts.gpus import align, all_names, gpu_name
from trackside.model import Run
from trackside.query import Query, metric

ClockBasis = Literal["reasons", "counters", "heat"]

CLOCKS: Mapping[str, Query] = {
    "reasons": metric("gpu_throttle_reasons").over("run", "last"),
    "counters": metric("gpu_throttle_seconds_total").over("run", "increase"),
    "clocks": metric("gpu_sm_clock_hertz").over("run", "avg"),
    "highest": metric("gpu_sm_clock_max_hertz").over("run", "max"),
    "temperature": metric("gpu_temperature_celsius").over("run", "max"),
    "power_limit": metric("gpu_power_limit_watts").over("run", "max"),
}
"""The queries behind :class:`Clocks`. The last reasons of a window, not their maximum: single samples must not fill the
window."""
SEVERE = mask("hard", "thermal")
NOT_MEASURED = Missing("neither clocks with throttle reasons nor clocks with temperatures of the run's GPUs were given")


@dataclass(frozen=True)
class Limits:
    """When clocks are lowered."""

    min_windows: int = 3
    """Windows of two samples each: NVML sets hardware slowdown briefly at every change of performance state."""
    counted_share: float = 0.1
    """Share of a window, by counters of throttled time; less is oscillation around a limit."""
    min_drop: float = 0.1
    """Relative drop of the SM clock. Clocks of a loaded GPU vary by a few percent with temperature and power."""
    min_drop_from_highest: float = 0.3
    """As ``min_drop``, if only the GPU's maximum clock is known: power limits alone cost up to a quarter of it."""
    hot_c: float = 80.0
    """Used without reasons: slowdown begins at 83 to 90 C on data-center GPUs; monitors alert from 80 C."""
    at_limit_share: float = 0.97
    """If a GPU draws at least this share of its power limit, the limit lowers the clocks, not heat."""
    far_from_limit_share: float = 0.8
    """If a GPU draws less than this share of its power limit, the limit does not explain clocks far below the
    maximum."""
    busy_activity: float = 0.2
    """With at least this engine activity or utilization, low clocks are not those of an idle GPU."""


@dataclass(frozen=True, eq=False)
class Clocks:
    """The sampled clocks of the run's GPUs."""

    grids: Mapping[str, Grid]
    """The answers to :data:`CLOCKS` that were sampled."""
    activity: GpuActivity | None
    gpus: tuple[str, ...]
    """``node:index``; those of :attr:`Run.gpus` first, in its order."""
    times: Matrix
    """Ends of the windows, POSIX seconds."""
    step: float
    readings: float
    """Samples per GPU."""
    basis: ClockBasis
    """The kind of evidence."""
    severe: Flags
    """Whether a severe reason lowered the clock."""
    working: Flags
    """Whether the GPU worked, or appeared to, and the reason for its clock is known."""
    limits: Limits

    @property
    def has_reasons(self) -> bool:
        """Whether reasons or counters of throttled time were sampled."""
        return "reasons" in self.grids or "counters" in self.grids

    @cached_property
    def at_height(self) -> bool:
        """Whether every GPU's clock stayed near its maximum while it worked: then nothing lowered it."""
        clocks, highest, activity = self.grids.get("clocks"), self.grids.get("highest"), self.activity
        if clocks is None or highest is None or activity is None:
            return False
        clock, top = (align(grid, activity.gpus, activity.times) for grid in (clocks, highest))
        busy = activity.working & ~np.isnan(clock) & ~np.isnan(top)
        is_low = busy & (np.nan_to_num(clock) < (1 - self.limits.min_drop_from_highest) * np.nan_to_num(top))
        return bool(busy.any() and np.all(is_low.sum(axis=1) < self.limits.min_windows))


@fact(CLOCKS, needs=(("reasons", "counters", "clocks"),), limits=Limits())
def clocks(evidence: Evidence, activity: Maybe[GpuActivity], run: Run, limits: Limits) -> Maybe[Clocks]:
    """Needs throttle reasons, counters of throttled time, or clocks with temperatures; otherwise missing."""
    grids = {name: grid for name in CLOCKS if (grid := evidence.grid(name)) is not None}
    main = next((grids[name] for name in ("reasons", "counters", "clocks") if name in grids), None)
    if main is None:
        return NOT_MEASURED
    times, measured = main.times, or_none(activity)
    names = all_names(*(grids.get(name) for name in ("reasons", "counters", "clocks")))
    gpus = tuple(dict.fromkeys([*(name for name in run.gpus if name in names), *names]))
    clock, flags = (align(grids.get(name), gpus, times) for name in ("clocks", "reasons"))
    busy = _is_busy(measured, gpus, times, clock, flags, limits)
    counted = _throttled_share(grids.get("counters"), gpus, times, main.step)
    thermal = "clocks" in grids and "temperature" in grids
    if "reasons" in grids or not np.isnan(counted).all():
        basis: ClockBasis = "reasons" if "reasons" in grids else "counters"
        sampled = ~np.isnan(flags) | ~np.isnan(counted)
        severe = _is_severe(flags) | (np.nan_to_num(counted) >= limits.counted_share)
        if basis == "counters" and thermal:
            # DCGM's violation times are said to be in microseconds and come in nanoseconds: that they grow is sure.
            severe |= (np.nan_to_num(counted) > 0) & _is_hot_and_low(grids, measured, gpus, times, clock, busy, limits)
    elif thermal:
        basis, sampled = "heat", ~np.isnan(clock)
        severe = _is_hot_and_low(grids, measured, gpus, times, clock, busy, limits)
    else:
        return NOT_MEASURED
    readings = main.samples / max(1, len(main))
    return Clocks(grids, measured, gpus, times, main.step, readings, basis, severe, sampled & busy, limits)


def _is_severe(flags: Matrix) -> Flags:
    severe: Flags = np.nan_to_num(flags).astype(np.int64) & SEVERE != 0
    return severe


def _is_busy(
    activity: GpuActivity | None, gpus: tuple[str, ...], times: Matrix, clock: Matrix, flags: Matrix, limits: Limits
) -> Flags:
    """Whether each GPU worked, or appeared to: only idle clocks are excluded."""
    busy = align(None if activity is None else activity.grid("engine") or activity.grid("utilization"), gpus, times)
    with np.errstate(invalid="ignore"):
        sure, idle = busy >= limits.busy_activity, busy < limits.busy_activity
    if activity is not None and len(activity.times) == len(times):
        row_of = {name: row for row, name in enumerate(activity.gpus)}
        rows = [row_of.get(name, -1) for name in gpus]
        sampled = np.array([row >= 0 for row in rows])[:, None]
        sure |= sampled & activity.working[rows]
        idle |= sampled & activity.known[rows] & ~activity.working[rows] & np.isnan(busy)
    idle |= np.nan_to_num(flags).astype(np.int64) & REASONS["gpu_idle"].bit != 0
    with np.errstate(invalid="ignore"):
        awake = ~(clock < 0.5 * np.fmax.reduce(clock, axis=1, initial=-np.inf)[:, None])
    at_work: Flags = sure | (~idle & (awake | _is_severe(flags)))
    return at_work


def _throttled_share(grid: Grid | None, gpus: tuple[str, ...], times: Matrix, step: float) -> Matrix:
    """The largest share of a window, over the counters of severe reasons; NaN if there are none."""
    out = np.full((len(gpus), len(times)), np.nan)
    if grid is None or len(grid.times) != len(times):
        return out
    row_of = {name: row for row, name in enumerate(gpus)}
    for row, series in enumerate(grid.series):
        reason = REASONS.get(series.get("reason") or "")
        if reason is not None and reason.severity != "benign":
            row_index = row_of[gpu_name(series)]
            out[row_index] = np.fmax(out[row_index], grid.values[row] / step)
    return out


def _is_hot_and_low(
    grids: Mapping[str, Grid], activity: GpuActivity | None, gpus: tuple[str, ...], times: Matrix, clock: Matrix,
    busy: Flags, limits: Limits,
) -> Flags:  # fmt: skip
    """Hot GPUs with a clock below their own best level or the others', or far below their maximum, that are not at the
    power limit."""
    working = np.where(busy, clock, np.nan)
    sampled = ~np.isnan(working)
    best = np.full((len(gpus), 1), np.nan)
    rows = sampled.any(axis=1)
    best[rows, 0] = np.nanquantile(working[rows], 0.9, axis=1) if rows.any() else np.nan
    others = np.full((1, len(times)), np.nan)
    columns = sampled.any(axis=0)
    if len(gpus) > 1 and columns.any():
        others[0, columns] = np.nanmedian(working[:, columns], axis=0)
    drawn = None if activity is None else activity.grid("power")
    power = align(drawn, gpus, times)
    limit = rated_values(grids.get("power_limit"), drawn, "power_watts", gpus, times)
    top = rated_values(grids.get("highest"), grids.get("clocks"), "sm_clock_hertz", gpus, times)
    with np.errstate(invalid="ignore"):
        is_low = working < (1 - limits.min_drop) * np.fmax(best, others)
        is_low |= (working < (1 - limits.min_drop_from_highest) * top) & (power < limits.far_from_limit_share * limit)
        is_hot = align(grids.get("temperature"), gpus, times) >= limits.hot_c
        capped = power >= limits.at_limit_share * limit
    severe: Flags = is_low & is_hot & ~capped
    return severe
