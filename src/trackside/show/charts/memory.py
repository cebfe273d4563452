"""GPU memory over time, with what the card holds and where it ran out."""

from __future__ import annotations

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import gpus_of, nan_median
from trackside.finding import Finding, Verdict
from trackside.query import events, metric
from trackside.show.charts import curves, reduce
from trackside.show.charts.chart import Chart, Drawn
from trackside.show.charts.curves import Curve
from trackside.show.charts.phases import apart, events_of, finding, run_window, sampled, titled
from trackside.show.charts.time_axis import Json, Span, mark, signal
from trackside.show.wording import size, word

USED = metric("gpu_memory_used_bytes").over("run", "max")
TOTAL = metric("gpu_memory_total_bytes").over("run", "max")
FREE = metric("gpu_memory_free_bytes").over("run", "max")
OOMS = events("cuda_oom")
HEIGHT = 170
"""Pixels of the plot."""
GIB = 2.0**30
SLACK = 60.0
"""Seconds before and after the run in which an error may be logged."""


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where memory was not sampled."""
    used, window = sampled(facts, USED), run_window(facts)
    if window is None or used is None:
        return None
    capacity, moments = _capacity(facts, used), _moments(verdict, facts, window)
    own, others = apart(verdict, used)
    columns = curves.columns(used, {"used": reduce.across(others / GIB)}, [each / GIB for each in own.values()])
    lines = [Curve("used", "median" if len(used) > 1 else "used", "accent")]
    lines += [Curve("used_high", "highest", "second", (6, 2))] if len(used) > 1 else []
    return Drawn(
        curves.drawn(
            "memory used, GiB",
            [*lines, *curves.of_culprits(own)],
            columns,
            facts,
            window=window,
            height=HEIGHT,
            top=(top := max(float(np.nanmax(used.values)), capacity or 0.0) / GIB * 1.04 or 1.0),
            step=used.step,
            form=".1f",
            unit=" GiB",
            behind=[_full(capacity / GIB / top)] if capacity else [],
            ends=[(f"capacity {size(capacity)}", capacity / GIB, "ink")] if capacity else [],
            moment=(moments[0], "out of memory") if moments else None,
        ),
        _caption(used, capacity, moments, bool(own), _ran_out(verdict) is not None),
        ("GPU", "highest", "median over time", "of capacity at most"),
        _rows(verdict, used, capacity),
    )


def _full(share: float) -> Json:
    """A line where the card is full, that is so high in the plot."""
    look = {"stroke": signal("ink"), "strokeDash": {"value": [8, 3]}, "strokeWidth": 1}
    return mark("rule", {"x": 0, "x2": signal("width"), "y": HEIGHT * (1 - share), **look})


def _capacity(facts: Facts, used: Grid) -> float | None:
    """Bytes of the largest card: as sampled, else used and free together, else as an out-of-memory error printed it."""
    total, free = facts.answer(TOTAL), facts.answer(FREE)
    if isinstance(total, Grid):
        return float(np.nanmax(total.values))
    if isinstance(free, Grid) and free.values.shape == used.values.shape:
        both = used.values + free.values
        return None if np.isnan(both).all() else float(np.nanmedian(both))
    printed = [row.get("total_bytes") for row in events_of(facts, OOMS)]
    return max((float(each) for each in printed if isinstance(each, (int, float))), default=None)


def _moments(verdict: Verdict, facts: Facts, window: Span) -> list[float]:
    """When memory ran out: as logged, else as the finding says."""
    logged = [row.time for row in events_of(facts, OOMS) if row.time is not None]
    times = [time for time in logged if window[0] - SLACK <= time <= window[1] + SLACK]
    found = _ran_out(verdict)
    if not times and found is not None and found.since is not None:
        times = [found.since]
    return sorted(times)


def _ran_out(verdict: Verdict) -> Finding | None:
    """The finding of the family that this chart shows best."""
    return finding(verdict, lambda family: family.pictured is not None and family.pictured[1] == CHART.slug)


def _caption(used: Grid, capacity: float | None, moments: list[float], own: bool, ran_out: bool) -> str:
    most, count = float(np.nanmax(used.values)), len(used)
    who = f"{count:,} GPUs" if count > 1 else "one GPU"
    told = f"Memory of {who}: at most {size(most)}"
    told += f" of {size(capacity)}, {word(most / capacity, 'share')}" if capacity else ", capacity not measured"
    others = "the others" if own else "them"
    told += f". The pale band reaches from the lowest of {others} to the highest." if count > 1 else "."
    if moments:
        told += f" It ran out at {word(moments[0], 'time')}."
    elif ran_out:
        told += " It ran out, at a time that the log doesn't tell."
    return told


def _rows(verdict: Verdict, used: Grid, capacity: float | None) -> list[tuple[str, ...]]:
    """The fullest GPUs."""
    gpus = gpus_of(used, verdict.run)
    most = np.fmax.reduce(used.values, axis=1)
    middles = nan_median(used.values, axis=1)
    rows: list[tuple[str, ...]] = []
    for place in np.argsort(-np.nan_to_num(most), kind="stable")[:50]:
        gpu = gpus[place] or str(used.series[place].get("gpu_uuid") or "")
        share = word(float(most[place]) / capacity, "share") if capacity else "not known"
        rows.append((titled(gpu), size(float(most[place])), size(float(middles[place])), share))
    return rows


CHART = Chart("memory", "GPU memory", 40, draw, (USED, TOTAL, FREE, OOMS))
