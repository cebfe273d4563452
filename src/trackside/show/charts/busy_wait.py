"""Busy versus working: engine activity also counts kernels that only wait, SM activity hardly does. The gap between
them is waiting."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Flags, gpus_of, nan_median
from trackside.finding import Verdict
from trackside.model import TimeRange
from trackside.query import metric
from trackside.show.charts import curves, reduce
from trackside.show.charts.chart import NARROW_AXIS_LEFT, Chart, Drawing
from trackside.show.charts.curves import CurveStyle
from trackside.show.charts.phases import (
    attempt_shown,
    culprits,
    finding_onset,
    over_window,
    phases,
    plottable_samples,
    run_window,
    split_culprits,
)
from trackside.show.charts.time_axis import Json, label, signal
from trackside.wording import moment, percent, word

SM = metric("gpu_sm_active_ratio").over("run", "avg")
BUSY = {
    "engine active": metric("gpu_engine_active_ratio").over("run", "avg"),
    "utilization": metric("gpu_utilization_ratio").over("run", "avg"),
}
"""Metrics that count a waiting kernel as busy; the more precise one first."""
HEIGHT = 190
"""Pixels of the plot."""
TOP_RATIO = 1.03
"""Ratio at the top edge; above 1, so that a dot at 1 is not clipped."""
MIN_LABELED_GAP = 0.4
"""Minimum gap that is labeled in the chart."""
_WHILE = {
    "training": "During training", "GPUs at work": "While the job computed", "GPUs busy": "While the GPUs were busy",
}  # fmt: skip


def draw(verdict: Verdict, facts: Facts) -> Drawing | None:
    """The chart; None if neither metric was sampled."""
    sm, window = plottable_samples(facts, SM), run_window(facts)
    busy_grids = [(name, grid) for name, query in BUSY.items() if (grid := plottable_samples(facts, query)) is not None]
    name, busy = busy_grids[0] if busy_grids else ("", None)
    grid = sm or busy
    if window is None or grid is None:
        return None
    split = {key: split_culprits(verdict, part) for key, part in (("sm", sm), ("busy", busy)) if part is not None}
    culprit_values = split["sm"][0] if sm is not None else {}
    bands = {key: reduce.band_of(others) for key, (_, others) in split.items()}
    lines = [CurveStyle("busy", name, "second", (6, 2))] if busy is not None else []
    lines += [CurveStyle("sm", "SM active", "accent")] if sm is not None else []
    columns = curves.columns(grid, bands, culprit_values.values())
    background = []
    if len(bands) == 2:
        columns["under"] = np.fmin(columns["sm"], columns["busy"])
        background = [curves.between("under", "busy", "warn", 0.3), *_gap_label(columns)]
    return Drawing(
        curves.figure_of(
            "share of time",
            [*lines, *curves.culprit_styles(culprit_values)],
            columns,
            facts,
            window=window,
            height=HEIGHT,
            top=TOP_RATIO,
            step=grid.step,
            form=".0%",
            background=background,
            moment=finding_onset(verdict, facts),
        ),
        _caption(verdict, {"busy": busy, "sm": sm}, name, len(culprit_values), _working_windows(facts, grid))
        + attempt_shown(verdict.run),
        (
            "phase",
            "from",
            "to",
            *(column for column, samples in (("SM active, median", sm), (f"{name}, median", busy)) if samples),
        ),
        _rows(facts, window, [samples for samples in (sm, busy) if samples is not None]),
        narrow_left=NARROW_AXIS_LEFT,
    )


def _working_windows(facts: Facts, grid: Grid) -> tuple[str, Flags]:
    """(phrase for the time, (T,) the windows of training or work); the whole run if its phases are unknown."""
    flags, words = np.zeros(len(grid.times), dtype=bool), "Over the whole run"
    for phase in phases(facts):
        if phase.training:
            flags |= over_window(grid, (phase.start, phase.end))
            words = _WHILE.get(phase.name, words)
    return (words, flags) if flags.any() else ("Over the whole run", ~flags)


def _caption(
    verdict: Verdict, grids: Mapping[str, Grid | None], name: str, n_culprits: int, working: tuple[str, Flags]
) -> str:
    """The caption: the medians during the working windows, of the GPUs that the verdict names and of the others."""
    when, flags = working
    medians = {key: _medians(verdict, grid, flags) for key, grid in grids.items() if grid is not None}
    count = max(len(grid) for grid in grids.values() if grid is not None)
    others = "the other GPUs" if n_culprits else f"{count:,} GPUs"
    who = f"Lines: median of {others}; bands: their minimum to maximum." if count > 1 else "One GPU."
    gpus = "they" if "GPUs" in when else "the GPUs"
    median = medians.get("busy", "")
    busy = f"the busy share of time was {median}" if " on " in median else f"{gpus} were busy {median} of the time"
    if len(medians) == 2:
        return (
            f"{when}, {busy} ({name}), and SM activity was {medians['sm']} (medians). Shaded: a "
            f"kernel was resident but the SMs were idle. {who}"
        )
    if "sm" in medians:
        return f"{when}, SM activity was {medians['sm']} (median). {who}"
    return (
        f"{when}, {busy} ({name}, median). SM activity was not measured, so "
        f"working and waiting cannot be distinguished. {who}"
    )


def _medians(verdict: Verdict, grid: Grid, flags: Flags) -> str:
    """The median of all GPUs, or those of the GPUs that the verdict names and of the others."""
    gpus = gpus_of(grid, verdict.run)
    named = culprits(verdict, gpus)
    is_named = np.array([gpu in named for gpu in gpus])
    parts = [grid.values[rows][:, flags] for rows in ((is_named, ~is_named) if named else (~is_named,))]
    shares = [word(float(nan_median(part)), "share") if not np.isnan(part).all() else "not sampled" for part in parts]
    return f"{shares[0]} on {word(named)} and {shares[1]} on the others" if named else shares[0]


def _rows(facts: Facts, window: TimeRange, grids: list[Grid]) -> list[tuple[str, ...]]:
    rows, zoned = [], facts.run.has_time_zone
    spans = [(phase.name, phase.start, phase.end) for phase in phases(facts)] or [("whole run", *window)]
    for phase, start, end in spans[:50]:
        parts = [grid.values[:, over_window(grid, (start, end))] for grid in grids]
        medians = [percent(float(nan_median(part))) if not np.isnan(part).all() else "not sampled" for part in parts]
        rows.append((phase, moment(start, zoned), moment(end, zoned), *medians))
    return rows


def _gap_label(columns: curves.CurveColumns) -> list[Json]:
    """The label of the gap, in its middle; none if the gap is narrow."""
    gap = np.nan_to_num(columns["busy"] - columns["under"])
    wide = np.flatnonzero(gap > max(MIN_LABELED_GAP, 0.75 * float(gap.max())))
    if 8 * len(wide) < len(gap):
        return []
    index = int(wide[len(wide) // 2])
    levels = [float(values[index]) for key, values in columns.items() if key in ("busy", "under") or key[:3] == "own"]
    edges = sorted(level for level in levels if not np.isnan(level))  # a GPU at fault may have stopped
    low, high = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    level = (low + high) / 2
    x = f"scale('x', {float(columns['t'][index])!r})"
    return [
        label(
            "busy, not working",
            signal(x),
            HEIGHT * (1 - level / TOP_RATIO),
            baseline="middle",
            align="center",
            fontStyle="italic",
        )
    ]


CHART = Chart("busy-wait", "Busy versus working", 30, draw, (SM, *BUSY.values()))
