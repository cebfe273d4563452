"""Phases of the run: startup, training, gaps without a step, the time after the last step.

By the logged steps, else by GPU work. For display only, so answers are used unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median

import numpy as np

from trackside.evidence import Evidence, Missing
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import Flags, GpuActivity, window_ranges
from trackside.facts.training.learning import Trajectory, logged_steps
from trackside.facts.training.loss_curve import GAUGES, LossCurve
from trackside.model import Run, TimeRange
from trackside.query import events

MIN_PAUSE_RATIO, MIN_PAUSE_SHARE = 10.0, 0.04
"""A gap between two logged steps is shown from this multiple of the usual gap, and this share of the run."""
_GPU_SIGNALS = ("sm", "engine", "utilization", "power")


@dataclass(frozen=True, slots=True)
class RunPhase:
    """A phase of a run, POSIX seconds. ``training``: whether it counts as productive time."""

    name: str
    start: float
    end: float
    training: bool = False


@dataclass(frozen=True, eq=False)
class RunPhases:
    """Phases of the run: startup, training, gaps without a step, the time after the last step."""

    window: TimeRange | None
    """Start and end of the last attempt, by the scheduler, else by its logs, else by its metrics; None if unknown."""
    steps: Sequence[float]
    """Times of the logged steps in the window, POSIX seconds, sorted."""
    activity: Maybe[GpuActivity]

    @cached_property
    def phases(self) -> tuple[RunPhase, ...]:
        """The phases by logged steps, else by GPU work; empty if neither is available."""
        if self.window is None:
            return ()
        if len(self.steps) > 1:
            return tuple(_phases_by_steps(self.steps, self.window))
        return () if isinstance(self.activity, Missing) else tuple(_phases_by_gpus(self.activity, self.window))


@fact({"logs": events("log_activity"), "gauge_loss": GAUGES["gauge_loss"]})
def run_phases(
    evidence: Evidence, trajectory: Maybe[Trajectory], loss: Maybe[LossCurve], activity: Maybe[GpuActivity], run: Run
) -> RunPhases:
    """Needs no particular input; empty if nothing has a time."""
    times = [
        float(time)
        for row in evidence["logs"].events
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    if not isinstance(trajectory, Missing):
        times += [row.time for row in trajectory.progress.events if row.time is not None]
    sampled = {} if isinstance(activity, Missing) else activity.grids
    grids = [grid for grid in (*map(sampled.get, _GPU_SIGNALS), evidence.grid("gauge_loss")) if grid is not None]
    edges = [edge for grid in grids for edge in (float(grid.times[0]) - grid.step, float(grid.times[-1]))]
    start = run.start if run.start is not None else min(times or edges, default=None)
    end = run.end if run.end is not None else max(times or edges, default=None)
    if start is None or end is None or end <= start:
        return RunPhases(None, (), activity)
    rows = () if isinstance(loss, Missing) else logged_steps(loss.curve.frame)
    steps = sorted(row.time for row in rows if row.time is not None and start <= row.time <= end)
    return RunPhases((start, end), steps, activity)


def _phases_by_steps(times: Sequence[float], window: TimeRange) -> Iterator[RunPhase]:
    gaps = [after - before for before, after in pairwise(times)]
    min_gap_s = max(MIN_PAUSE_RATIO * median(gaps), MIN_PAUSE_SHARE * (window[1] - window[0]))
    if times[0] > window[0]:
        yield RunPhase("startup", window[0], times[0])
    phase_start = times[0]
    for before, after in pairwise(times):
        if after - before > min_gap_s:
            if before > phase_start:
                yield RunPhase("training", phase_start, before, True)
            yield RunPhase("no step", before, after)
            phase_start = after
    yield RunPhase("training", phase_start, times[-1], True)
    if window[1] > times[-1]:
        yield RunPhase("after the last step", times[-1], window[1])


def _phases_by_gpus(activity: GpuActivity, window: TimeRange) -> Iterator[RunPhase]:
    """The phases by sampled time ranges; nothing is reported where samples are missing for long."""
    min_gap_s = MIN_PAUSE_SHARE * (window[1] - window[0])
    work = _merge_ranges(_ranges_in_window(activity, activity.active, window), min_gap_s)
    name = "GPUs busy" if activity.basis == "utilization" else "GPUs at work"  # utilization does not prove work
    sampled: Flags = np.logical_or.reduce(activity.known, axis=0)
    for start, end in _merge_ranges(_ranges_in_window(activity, sampled, window), max(min_gap_s, activity.step)):
        edge = start
        for work_start, work_end in work:
            if work_end <= edge or work_start >= end:
                continue
            if work_start > edge:
                yield RunPhase("no work", edge, work_start)
            yield RunPhase(name, max(work_start, edge), min(work_end, end), True)
            edge = min(work_end, end)
        if edge < end:
            yield RunPhase("no work", edge, end)


def _ranges_in_window(activity: GpuActivity, flags: Flags, window: TimeRange) -> list[TimeRange]:
    """The ranges of set windows, clipped to the run's window."""
    times = activity.times.tolist()
    ranges = [(times[start] - activity.step, times[stop - 1]) for start, stop in window_ranges(flags)]
    first, last = window
    return [(max(start, first), min(end, last)) for start, end in ranges if end > first and start < last]


def _merge_ranges(ranges: Sequence[TimeRange], max_gap_s: float) -> list[TimeRange]:
    """Time ranges merged where the gap between them is at most ``max_gap_s``."""
    joined: list[TimeRange] = []
    for start, end in ranges:
        if joined and start - joined[-1][1] <= max_gap_s:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined
