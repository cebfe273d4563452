"""Compares the metrics of two runs, aligned by the time since the start of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trackside.compare.divergence import MIN_POINTS, first_divergence, rule
from trackside.compare.side import MEASURED, ComparedRow, Side, compare_values
from trackside.evidence import Grid, Value, derived
from trackside.facts import maths
from trackside.facts.gpu.activity import Matrix

TOPIC = "metrics"
MIN_WINDOW_S = 30.0
"""Minimum length of a window: shorter ones hold at most one scrape."""
TIMED_METRICS = ("gpu_sm_active_ratio", "gpu_sm_clock_hertz", "gpu_utilization_ratio", "gpu_power_watts")
"""Metrics for which the start of the difference is determined."""
ACTIVITY_METRICS = ("gpu_sm_active_ratio", "gpu_utilization_ratio")
"""Metrics that are zero on an idle GPU."""
EXTREMES = {
    "gpu_sm_active_ratio": "SM activity of the least active GPU",
    "gpu_engine_active_ratio": "engine activity of the least busy GPU",
    "gpu_utilization_ratio": "utilization of the least utilized GPU",
    "gpu_sm_clock_hertz": "SM clock of the slowest GPU",
    "gpu_power_watts": "power of the GPU that draws the least",
    "gpu_temperature_celsius": "temperature of the hottest GPU",
    "gpu_memory_used_bytes": "memory of the fullest GPU",
    "training_step_seconds": "measured step time of the slowest rank",
}
"""Metric -> the label of its most extreme GPU or rank, by the median over the run."""
OPPOSITE_EXTREMES = {
    "gpu_sm_active_ratio": "SM activity of the most active GPU",
    "gpu_engine_active_ratio": "engine activity of the busiest GPU",
    "gpu_utilization_ratio": "utilization of the most utilized GPU",
    "gpu_sm_clock_hertz": "SM clock of the fastest GPU",
    "gpu_power_watts": "power of the GPU that draws the most",
    "gpu_temperature_celsius": "temperature of the coolest GPU",
    "gpu_memory_used_bytes": "memory of the emptiest GPU",
}
"""The same at the other end, where the GPUs of a run form two groups, which no median describes."""
VALUE_WINDOWS = 3
"""Windows after the start of a difference over which its value is taken."""
IDLE_LEVEL = 0.05
"""Activity below which a GPU computes nothing: two idle runs do not diverge."""
EDGE_WINDOWS = 2
"""Windows ignored at the end of the shorter run, because they may include its shutdown."""


def rows(a: Side, b: Side) -> Iterator[ComparedRow]:
    """The median of each metric, the median of its most extreme GPU or rank, and from when on they differ."""
    for name, (label, extreme, share) in MEASURED.items():
        grid_a, grid_b = a.grid(name), b.grid(name)
        if grid_a is None and grid_b is None:
            continue
        has_groups = name in OPPOSITE_EXTREMES and any(_form_groups(grid) for grid in (grid_a, grid_b))
        if has_groups:
            extreme = extreme or "lowest"
            value_a, value_b = (_extreme_series(grid, _OPPOSITE[extreme]) for grid in (grid_a, grid_b))
            yield compare_values(TOPIC, f"median {OPPOSITE_EXTREMES[name]}", value_a, value_b, share)
        else:
            yield compare_values(TOPIC, f"median {label}", _median(grid_a), _median(grid_b), share)
        if extreme and grid_a is not None and grid_b is not None and len(grid_a) > 1 and len(grid_b) > 1:
            yield compare_values(
                TOPIC,
                f"median {EXTREMES[name]}",
                _extreme_series(grid_a, extreme),
                _extreme_series(grid_b, extreme),
                share,
            )
        if name in TIMED_METRICS:
            yield from _onset(a, b, name, (label, extreme, share))


_OPPOSITE = {"lowest": "highest", "highest": "lowest"}


def _form_groups(grid: Grid | None) -> bool:
    """Whether the medians of the GPUs form two groups."""
    return grid is not None and maths.split_level([maths.median(row.tolist()) for row in grid.values]) is not None


def _median(grid: Grid | None) -> Value | None:
    if grid is None:
        return None
    value = grid.value("median")
    return None if value.value is None else value


def _extreme_series(grid: Grid | None, which: str) -> Value | None:
    """The lowest or highest median of a single series, cited with the labels of that series."""
    if grid is None:
        return None
    with np.errstate(invalid="ignore"):
        levels = np.array([np.nanmedian(row) if np.any(~np.isnan(row)) else np.nan for row in grid.values])
    if np.all(np.isnan(levels)):
        return None
    return grid.one(int(np.nanargmin(levels) if which == "lowest" else np.nanargmax(levels))).value("median")


def _onset(a: Side, b: Side, metric: str, spec: tuple[str, str, float]) -> Iterator[ComparedRow]:
    """The time since the start from which a metric differs. ``spec``: its entry in :data:`MEASURED`."""
    grid_a, grid_b, (label, extreme, share) = a.grid(metric), b.grid(metric), spec
    if grid_a is None or grid_b is None or a.run.start is None or b.run.start is None:
        return
    step = max(grid_a.step, grid_b.step, MIN_WINDOW_S)
    series = [_window_levels(grid, side.run.start or 0.0, step, extreme) for grid, side in ((grid_a, a), (grid_b, b))]
    length = max(0, min(map(len, series)) - EDGE_WINDOWS)
    first, second = (curve[:length] for curve in series)
    sampled = np.flatnonzero(~np.isnan(first) & ~np.isnan(second))
    if metric in ACTIVITY_METRICS:  # leave out the windows in which both are idle
        sampled = sampled[np.maximum(first[sampled], second[sampled]) >= IDLE_LEVEL]
    if len(sampled) < MIN_POINTS:
        return
    share = max(share, 0.05)
    index = first_divergence(first[sampled].tolist(), second[sampled].tolist(), share)
    if index is None:
        return
    since_s = float(sampled[index]) * step
    value_a, value_b = (
        _value_after(grid, (side.run.start or 0.0) + since_s, step, extreme)
        for grid, side in ((grid_a, a), (grid_b, b))
    )
    if value_a is None or value_b is None:
        return
    name = EXTREMES[metric] if extreme else label
    row_label = f"{name} (median of the next {VALUE_WINDOWS * step:g} s)"
    rule_text = rule(share, f"windows of {step:g} s")
    yield ComparedRow(TOPIC, row_label, value_a, value_b, True, rule_text, seconds=since_s, name=name, quantity=metric)


def _window_levels(grid: Grid, start: float, step: float, extreme: str) -> Matrix:
    """(T,) The median, lowest or highest of all series in each window since the start; NaN if none was sampled."""
    inside = grid.times > start
    indices = np.floor((grid.times[inside] - start - 1e-6) / step).astype(int)
    levels_by_window = np.full(int(indices.max(initial=-1)) + 1, np.nan)
    values = grid.values[:, inside]
    for index in np.unique(indices):
        part = values[:, indices == index]
        series_means = [np.mean(row[~np.isnan(row)]) for row in part if np.any(~np.isnan(row))]
        if series_means:
            levels_by_window[index] = {"lowest": np.min, "highest": np.max}.get(extreme, np.median)(series_means)
    return levels_by_window


def _value_after(grid: Grid, since: float, step: float, extreme: str) -> Value | None:
    """The value over the first windows after a time."""
    part = grid.during(since, since + VALUE_WINDOWS * step)
    value = (_extreme_series(part, extreme) if extreme else _median(part)) if len(part.times) else None
    return None if value is None or value.value is None else derived(value.value, value, unit=value.unit)
