"""GPU memory over time, with the capacity of the GPU and the time of an out-of-memory error."""

from __future__ import annotations

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import gpus_of, nan_median
from trackside.finding import Finding, Verdict
from trackside.model import TimeRange
from trackside.query import events, metric
from trackside.show.charts import curves, reduce
from trackside.show.charts.chart import NARROW_AXIS_LEFT, Chart, Drawing
from trackside.show.charts.curves import CurveStyle
from trackside.show.charts.phases import (
    attempt_shown,
    display_name,
    events_of,
    finding,
    plottable_samples,
    run_window,
    split_culprits,
)
from trackside.show.charts.time_axis import Json, mark, signal
from trackside.wording import moment, size, word

USED = metric("gpu_memory_used_bytes").over("run", "max")
TOTAL = metric("gpu_memory_total_bytes").over("run", "max")
FREE = metric("gpu_memory_free_bytes").over("run", "max")
OOM_EVENTS = events("cuda_oom")
CAPACITY = (TOTAL, FREE, OOM_EVENTS)
"""The queries of :func:`capacity_bytes`."""
HEIGHT = 190
"""Pixels of the plot."""
HEADROOM_RATIO = 1.15
"""Top of the scale relative to the capacity or the peak; leaves space for a label above the line."""
GIB = 2.0**30
SLACK_S = 60.0
"""Seconds before and after the run in which a logged error still counts."""


def draw(verdict: Verdict, facts: Facts) -> Drawing | None:
    """The chart; None if memory was not sampled."""
    used, window = plottable_samples(facts, USED), run_window(facts)
    if window is None or used is None:
        return None
    capacity, moments = capacity_bytes(facts, used), _moments(verdict, facts, window)
    culprit_values, others = split_culprits(verdict, used)
    columns = curves.columns(
        used, {"used": reduce.band_of(others / GIB)}, [values / GIB for values in culprit_values.values()]
    )
    lines = [CurveStyle("used", "median" if len(used) > 1 else "used", "accent")]
    lines += [CurveStyle("used_high", "maximum", "second", (6, 2))] if len(used) > 1 else []
    return Drawing(
        curves.figure_of(
            "memory used, GiB",
            [*lines, *curves.culprit_styles(culprit_values)],
            columns,
            facts,
            window=window,
            height=HEIGHT,
            top=(top := max(float(np.nanmax(used.values)), capacity or 0.0) / GIB * HEADROOM_RATIO or 1.0),
            step=used.step,
            form=".1f",
            unit=" GiB",
            background=[_capacity_line(capacity / GIB / top)] if capacity else [],
            ends=[(f"capacity {size(capacity)}", capacity / GIB, "ink")] if capacity else [],
            moment=(moments[0], "out of memory") if moments else None,
        ),
        _caption(
            used, capacity, moments, bool(culprit_values), _oom_finding(verdict) is not None, facts.run.has_time_zone
        )
        + attempt_shown(verdict.run),
        ("GPU", "maximum", "median over time", "maximum share of capacity"),
        _rows(verdict, used, capacity),
        narrow_left=NARROW_AXIS_LEFT,
    )


def _capacity_line(share: float) -> Json:
    """A line at the capacity of the GPU; ``share``: its height as a share of the plot."""
    style = {"stroke": signal("ink"), "strokeDash": {"value": [8, 3]}, "strokeWidth": 1}
    return mark("rule", {"x": 0, "x2": signal("width"), "y": HEIGHT * (1 - share), **style})


def capacity_bytes(facts: Facts, used: Grid) -> float | None:
    """Capacity of a GPU, bytes: the largest that was sampled; otherwise the median of used plus free; otherwise the
    largest printed by an out-of-memory error."""
    total_grid, free = facts.answer(TOTAL), facts.answer(FREE)
    if isinstance(total_grid, Grid):
        return float(np.nanmax(total_grid.values))
    if isinstance(free, Grid) and free.values.shape == used.values.shape:
        both = used.values + free.values
        return None if np.isnan(both).all() else float(np.nanmedian(both))
    printed = [row.get("total_bytes") for row in events_of(facts, OOM_EVENTS)]
    return max((float(size_bytes) for size_bytes in printed if isinstance(size_bytes, (int, float))), default=None)


def _moments(verdict: Verdict, facts: Facts, window: TimeRange) -> list[float]:
    """The times of out-of-memory errors: as logged, otherwise that of the finding."""
    logged = [row.time for row in events_of(facts, OOM_EVENTS) if row.time is not None]
    times = [time for time in logged if window[0] - SLACK_S <= time <= window[1] + SLACK_S]
    oom = _oom_finding(verdict)
    if not times and oom is not None and oom.since is not None:
        times = [oom.since]
    return sorted(times)


def _oom_finding(verdict: Verdict) -> Finding | None:
    """The finding of the family whose example shows this chart."""
    return finding(verdict, lambda family: family.example is not None and family.example[1] == CHART.slug)


def _caption(
    used: Grid, capacity: float | None, moments: list[float], has_culprits: bool, ran_out: bool, zoned: bool
) -> str:
    peak, count = float(np.nanmax(used.values)), len(used)
    who = f"{count:,} GPUs" if count > 1 else "one GPU"
    text = f"Memory used on {who}: at most {size(peak)}"
    text += f" of {size(capacity)}, {word(peak / capacity, 'share')}" if capacity else ", capacity not measured"
    others = "the other GPUs" if has_culprits else "all GPUs"
    text += f". Band: minimum to maximum of {others}." if count > 1 else "."
    if moments:
        text += f" Out of memory at {moment(moments[0], zoned)}."
    elif ran_out:
        text += " It ran out of memory; the message has no timestamp."
    return text


def _rows(verdict: Verdict, used: Grid, capacity: float | None) -> list[tuple[str, ...]]:
    """A row per GPU, those with the highest peak first."""
    gpus = gpus_of(used, verdict.run)
    peaks = np.fmax.reduce(used.values, axis=1)
    middles = nan_median(used.values, axis=1)
    rows: list[tuple[str, ...]] = []
    for index in np.argsort(-np.nan_to_num(peaks), kind="stable")[:50]:
        gpu = gpus[index] or str(used.series[index].get("gpu_uuid") or "")
        share = word(float(peaks[index]) / capacity, "share") if capacity else "not known"
        rows.append((display_name(gpu), size(float(peaks[index])), size(float(middles[index])), share))
    return rows


CHART = Chart("memory", "GPU memory", 40, draw, (USED, *CAPACITY))
