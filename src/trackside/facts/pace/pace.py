"""The run's pace: how fast it was in one time span and in another, by the best available signal.

The signals, best first: the log's seconds per step, the training loop's metrics, kernel launches, SM activity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from trackside.evidence import Evidence, Frame, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import ACTIVITY
from trackside.facts.training.learning import logged_steps, numeric_field
from trackside.model import Event, TimeRange
from trackside.query import Query, events, metric

PACE: Mapping[str, Query] = {
    "progress": events("progress"),
    "step_seconds": metric("training_step_seconds").over("run", "avg"),
    "sm": ACTIVITY["sm"],
    "tokens": metric("training_tokens_per_second").over("run", "avg"),
    "samples": metric("training_samples_per_second").over("run", "avg"),
    "launches": ACTIVITY["launches"],
}
"""The queries behind :class:`StepPace`."""
KINDS: Mapping[str, str] = {
    "step_seconds": "step", "tokens": "throughput", "samples": "throughput", "launches": "launches"
}  # fmt: skip
"""What these signals compare, the best first."""
MIN_POINTS = 3
"""Minimum number of points or windows on either side."""
MAX_SHARE = 0.9
"""SM activity fell if it is below this share of its earlier level: it varies by a few percent."""


@dataclass(frozen=True, slots=True)
class Pace:
    """``slowdown``: how many times longer the same work took in the second time range."""

    kind: str
    """What was compared: step, throughput, launches or work (SM activity)."""
    before: Value
    during: Value
    slowdown: float
    window: Value | None = None
    """Seconds in which launches were counted; None for another kind."""


@dataclass(frozen=True, eq=False)
class StepPace:
    """Signals of the run's pace over time."""

    progress: Frame
    grids: Mapping[str, Grid]
    """The series of :data:`PACE` that were sampled."""

    def compare(self, before: TimeRange, during: TimeRange) -> Pace | None:
        """The paces of two time ranges (start, end]; None if no signal covers both."""
        pace = _by_log(self.progress, before, during)
        for name, kind in KINDS.items():
            pace = pace or _by_metric(self.grids.get(name), kind, before, during)
        return pace or _by_sm(self.grids.get("sm"), before, during)


@fact(PACE)
def step_pace(evidence: Evidence) -> StepPace:
    """Needs no particular input; unknown without any of the signals."""
    grids = {name: grid for name in PACE if name != "progress" and (grid := evidence.grid(name)) is not None}
    return StepPace(evidence["progress"], grids)


def _by_sm(grid: Grid | None, before: TimeRange, during: TimeRange) -> Pace | None:
    """SM activity of all GPUs, if it fell: GPUs that wait for a slow one do less. A single GPU is not conclusive."""
    pace = _by_metric(grid, "work", before, during) if grid is not None and len(grid) > 1 else None
    return pace if pace is not None and pace.slowdown > 1 / MAX_SHARE else None


def _by_log(frame: Frame, before: TimeRange, during: TimeRange) -> Pace | None:
    points = [point for point in logged_steps(frame) if point.time is not None]
    first, second = (
        _step_time(frame, [point for point in points if start < (point.time or 0.0) <= end])
        for start, end in (before, during)
    )
    if first is None or second is None or first.number <= 0:
        return None
    return Pace("step", first, second, second.number / first.number)


def _step_time(frame: Frame, points: Sequence[Event]) -> Value | None:
    """Seconds per step: the median of the printed ones, else of the intervals between points."""
    printed = [(seconds, row) for row in points if (seconds := numeric_field(row, "step_time_s")) is not None]
    if len(printed) >= MIN_POINTS:
        printed.sort(key=lambda pair: pair[0])
        return frame.value(printed[len(printed) // 2][1], "step_time_s", "s")
    paces = [pace for before, after in pairwise(points) if (pace := _step_seconds(before, after)) is not None]
    if len(paces) < MIN_POINTS:
        return None
    first, last = points[0], points[-1]
    sources = [frame.value(row, field) for row in (first, last) for field in ("time", "step")]
    return derived(median(paces), *sources, unit="s")


def _step_seconds(before: Event, after: Event) -> float | None:
    steps = (numeric_field(after, "step") or 0.0) - (numeric_field(before, "step") or 0.0)
    if before.time is None or after.time is None or steps <= 0 or after.time <= before.time:
        return None
    return (after.time - before.time) / steps


def _by_metric(grid: Grid | None, kind: str, before: TimeRange, during: TimeRange) -> Pace | None:
    if grid is None:
        return None
    parts = [grid.during(*span) for span in (before, during)]
    values = [part.value("median") for part in parts]
    if any(part.value("count").number < MIN_POINTS for part in parts) or any(value.value is None for value in values):
        return None
    first, second = values[0].number, values[1].number
    if first <= 0 or second <= 0:
        return None
    window = derived(grid.step, values[0], unit="s") if kind == "launches" else None
    return Pace(kind, values[0], values[1], second / first if kind == "step" else first / second, window)
