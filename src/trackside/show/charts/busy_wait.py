"""Busy against at work: the engine counts a kernel that only waits, the SMs hardly do; the gap is the wait."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from trackside.evidence import Grid
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Flags, nan_median
from trackside.finding import Verdict
from trackside.query import metric
from trackside.show.charts import curves, reduce
from trackside.show.charts.chart import Chart, Drawn
from trackside.show.charts.curves import Curve
from trackside.show.charts.phases import apart, first_cause, over_window, phases, run_window, sampled
from trackside.show.charts.time_axis import Json, Span, label, signal
from trackside.show.wording import ratio, word

SM = metric("gpu_sm_active_ratio").over("run", "avg")
BUSY = {
    "engine active": metric("gpu_engine_active_ratio").over("run", "avg"),
    "utilisation": metric("gpu_utilization_ratio").over("run", "avg"),
}
"""What counts a kernel that waits; the better one first."""
HEIGHT = 190
"""Pixels of the plot."""
FULL = 1.03
"""Share of time at the top edge: a dot at 1 is whole."""
GAP = 0.4
"""A gap wide enough to be named in the picture."""
_WHILE = {
    "training": "While it trained", "GPUs at work": "While its GPUs worked", "GPUs busy": "While its GPUs were busy",
}  # fmt: skip
Levels = dict[str, reduce.Level]


def draw(verdict: Verdict, facts: Facts) -> Drawn | None:
    """None where neither was sampled."""
    sm, window = sampled(facts, SM), run_window(facts)
    told = [(name, grid) for name, query in BUSY.items() if (grid := sampled(facts, query)) is not None]
    name, busy = told[0] if told else ("", None)
    grid = sm or busy
    if window is None or grid is None:
        return None
    split = {key: apart(verdict, each) for key, each in (("sm", sm), ("busy", busy)) if each is not None}
    own = split["sm"][0] if sm is not None else {}
    levels = {key: reduce.across(others) for key, (_, others) in split.items()}
    lines = [Curve("busy", name, "second", (6, 2))] if busy is not None else []
    lines += [Curve("sm", "SM active", "accent")] if sm is not None else []
    columns = curves.columns(grid, levels, own.values())
    behind = []
    if len(levels) == 2:
        columns["under"] = np.fmin(columns["sm"], columns["busy"])
        behind = [curves.between("under", "busy", "warn", 0.3), *_named_gap(columns)]
    return Drawn(
        curves.drawn(
            "share of time",
            [*lines, *curves.of_culprits(own)],
            columns,
            facts,
            window=window,
            height=HEIGHT,
            top=FULL,
            step=grid.step,
            form=".2f",
            behind=behind,
            moment=first_cause(verdict, facts),
        ),
        _caption(levels, name, len(grid), len(own), _worked(facts, grid)),
        (
            "phase",
            "from",
            "to",
            *(each for each, held in (("SM active, median", sm), (f"{name}, median", busy)) if held),
        ),
        _rows(facts, window, [each for each in (sm, busy) if each is not None]),
    )


def _worked(facts: Facts, grid: Grid) -> tuple[str, Flags]:
    """(T,) The windows in which it did what a run is for, and in words when that was; all where that isn't known."""
    flags, words = np.zeros(len(grid.times), dtype=bool), "Over the whole run"
    for each in phases(facts):
        if each.training:
            flags |= over_window(grid, (each.start, each.end))
            words = _WHILE.get(each.name, words)
    return (words, flags) if flags.any() else ("Over the whole run", ~flags)


def _caption(levels: Levels, name: str, count: int, own: int, worked: tuple[str, Flags]) -> str:
    """What it was while it worked."""
    when, flags = worked
    shares = {key: float(nan_median(each.middle[flags])) for key, each in levels.items()}
    told = {key: "not sampled" if np.isnan(share) else word(share, "share") for key, share in shares.items()}
    others = "the others" if own else f"{count:,} GPUs"
    who = f"Median of {others}; pale: from their lowest to their highest." if count > 1 else "One GPU."
    if len(told) == 2:
        return (
            f"{when}, a kernel was resident {told['busy']} of the time ({name}) and SM activity was {told['sm']}: "
            f"shaded is the time in which a kernel was resident and the SMs had nothing to do. {who}"
        )
    if "sm" in told:
        return f"{when}, SM activity was {told['sm']}. {who}"
    return (
        f"{when}, a kernel was resident {told['busy']} of the time ({name}). SM activity was not measured: work can't "
        f"be told from a wait. {who}"
    )


def _rows(facts: Facts, window: Span, grids: list[Grid]) -> list[tuple[str, ...]]:
    rows = []
    spans = [(each.name, each.start, each.end) for each in phases(facts)] or [("whole run", *window)]
    for phase, start, end in spans[:50]:
        parts = [grid.values[:, over_window(grid, (start, end))] for grid in grids]
        told = [ratio(float(nan_median(part))) if not np.isnan(part).all() else "not sampled" for part in parts]
        rows.append((phase, word(start, "time"), word(end, "time"), *told))
    return rows


def _named_gap(columns: curves.Columns) -> list[Json]:
    """The words for the gap, in the middle of it where it is wide."""
    gap = np.nan_to_num(columns["busy"] - columns["under"])
    wide = np.flatnonzero(gap > max(GAP, 0.75 * float(gap.max())))
    if 8 * len(wide) < len(gap):
        return []
    place = int(wide[len(wide) // 2])
    edges = sorted(
        float(values[place]) for key, values in columns.items() if key in ("busy", "under") or key[:3] == "own"
    )
    low, high = max(pairwise(edges), key=lambda pair: pair[1] - pair[0])
    level = (low + high) / 2
    at = f"scale('x', {float(columns['t'][place])!r})"
    return [
        label(
            "busy, not working",
            signal(at),
            HEIGHT * (1 - level / FULL),
            baseline="middle",
            align="center",
            fontStyle="italic",
        )
    ]


CHART = Chart("busy-wait", "Busy against at work", 30, draw, (SM, *BUSY.values()))
