"""GPU memory over time, with what the card holds and where it ran out."""

from __future__ import annotations

import numpy as np

from trackside.evidence import Frame, Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import gpus_of, middle
from trackside.finding import Finding, Verdict
from trackside.query import events, metric
from trackside.show.charts import reduce
from trackside.show.charts.chart import Chart, Drawn
from trackside.show.charts.phases import apart, finding, run_window, shaded, timed, titled
from trackside.show.charts.time_axis import (
    PHASES,
    TOP,
    Json,
    Span,
    area,
    at_cursor,
    at_ends,
    bands,
    dots,
    dragged,
    figure,
    heading,
    line,
    mark,
    named_moment,
    panel,
    readout,
    signal,
    table,
    y_axis,
    y_scale,
)
from trackside.show.wording import size, word

USED = metric("gpu_memory_used_bytes").over("run", "max")
TOTAL = metric("gpu_memory_total_bytes").over("run", "max")
FREE = metric("gpu_memory_free_bytes").over("run", "max")
OOMS = events("cuda_oom")
HEIGHT = 170
HEAD = 22 + PHASES
"""Pixels of the plot, and where its heading stands above it."""
GIB = 2.0**30
Matrix = reduce.Matrix


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where memory was not sampled."""
    used, window = facts.answer(USED), run_window(facts)
    if window is None or not isinstance(used, Grid) or not len(used.times):
        return None
    capacity = _capacity(facts, used)
    own, others = apart(verdict, used)
    found = reduce.across(others / GIB)
    fewer = reduce.level(found)
    columns: dict[str, Matrix] = {
        "t": np.round(reduce.times_of(used.times - used.step / 2) * 1000),
        "median": fewer.middle, "low": fewer.low, "high": fewer.high,
    }  # fmt: skip
    columns |= {f"own{place}": reduce.line(values / GIB) for place, values in enumerate(own.values())}
    columns["alone"] = reduce.alone(columns["median"])
    moments = _moments(verdict, facts, window)
    return Drawn(
        _spec(window, columns, verdict, facts, list(own), capacity, moments, used),
        _caption(used, capacity, moments, bool(own), _ran_out(verdict) is not None),
        ("GPU", "highest", "median over time", "of capacity at most"),
        _rows(verdict, used, capacity),
    )


def _capacity(facts: Facts, used: Grid) -> float | None:
    """Bytes of the largest card: as sampled, else used and free together, else as an out-of-memory error printed it."""
    total, free = facts.answer(TOTAL), facts.answer(FREE)
    if isinstance(total, Grid):
        return float(np.nanmax(total.values))
    if isinstance(free, Grid) and free.values.shape == used.values.shape:
        both = used.values + free.values
        return None if np.isnan(both).all() else float(np.nanmedian(both))
    ooms = facts.answer(OOMS)
    printed = [row.get("total_bytes") for row in ooms.events] if isinstance(ooms, Frame) else []
    return max((float(each) for each in printed if isinstance(each, (int, float))), default=None)


def _moments(verdict: Verdict, facts: Facts, window: Span) -> list[float]:
    """When memory ran out: as logged, else as the finding says."""
    ooms, found = facts.answer(OOMS), _ran_out(verdict)
    rows = timed(ooms.events, window, 60.0) if isinstance(ooms, Frame) else []
    times = [row.time for row in rows if row.time is not None]
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
    middles = middle(used.values, axis=1)
    rows: list[tuple[str, ...]] = []
    for place in np.argsort(-np.nan_to_num(most), kind="stable")[:50]:
        gpu = gpus[place] or str(used.series[place].get("gpu_uuid") or "")
        share = word(float(most[place]) / capacity, "share") if capacity else "not known"
        rows.append((titled(gpu), size(float(most[place])), size(float(middles[place])), share))
    return rows


def _spec(
    window: Span,
    columns: dict[str, Matrix],
    verdict: Verdict,
    facts: Facts,
    own: list[str],
    capacity: float | None,
    moments: list[float],
    used: Grid,
) -> Json:
    top = max(float(np.nanmax(used.values)), capacity or 0.0) / GIB * 1.04 or 1.0
    several = len(used) > 1
    marks: list[Json] = []
    ends: list[tuple[str, float, str]] = []
    lines: list[tuple[str, str, str, tuple[int, ...]]] = [("median", "median" if several else "used", "accent", ())]
    if several:
        marks.append(area("curve", "low", "high", "y", "accent", 0.15))
        lines.append(("high", "highest", "second", (6, 2)))
    lines += [(f"own{place}", titled(gpu), "bad", (1, 2)) for place, gpu in enumerate(own)]
    for key, title, colour, dash in lines:
        marks += [line("curve", key, "y", colour, dash=dash, wide=2), dots("curve", key, "y", colour, "alone")]
        ends.append((title, HEIGHT * (1 - reduce.settled(columns[key]) / top), colour))
    if capacity:
        level = HEIGHT * (1 - capacity / GIB / top)
        look = {"stroke": signal("ink"), "strokeDash": {"value": [8, 3]}, "strokeWidth": 1}
        marks.append(mark("rule", {"x": 0, "x2": signal("width"), "y": level, **look}))
        ends.append((f"capacity {size(capacity)}", level, "ink"))
    told = at_cursor("curve", columns["t"], used.step, [(key, title) for key, title, _, _ in lines], ".1f")
    return figure(
        HEIGHT,
        window,
        [
            *bands(shaded(facts), HEIGHT),
            heading("memory used, GiB", -HEAD),
            panel(0, HEIGHT, marks, scales=[y_scale("y", 0, top, HEIGHT, nice=False)], axes=[y_axis("y")]),
            *at_ends(ends, HEIGHT),
            *(named_moment(moments[0], "out of memory", HEIGHT, "bad", y=-5 - PHASES) if moments else []),
            readout(f"{told} + ' GiB'", -HEAD),
            dragged(HEIGHT),
        ],
        data=[table("curve", columns, 4)],
        top=TOP + PHASES,
    )


CHART = Chart("memory", "GPU memory", 40, draw, (USED, TOTAL, FREE, OOMS))
