"""How much longer a slow run took than its own good phase would have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trackside.evidence import Grid, Missing, Value, derived
from trackside.facts.cost.allocation import gpu_hours, hour, length
from trackside.facts.cost.training_work import TrainingWork
from trackside.facts.cost.wasted_time import Part
from trackside.facts.fact import Facts
from trackside.facts.pace.pace import Pace, StepPace
from trackside.finding import Claim, Sentence, WastedTime
from trackside.model import Event

WORKING = 0.5
"""Of the usual level of the good phase: below it the run has not begun yet."""
MIN_SLOWDOWN = 1.1
"""Times as long, below which the two phases are the same: paces vary by a few hundredths."""

SLOW = Part(
    "slow",
    Sentence("the extra time that the same work took after the slow-down"),
    Sentence("all work would have been as fast as in the good phase"),
)
BY_PACE = Sentence(
    "{gpus} x {longer:plain} s longer / {hour:plain} s an hour = {hours:plain} GPU-hours, where {longer:plain} s of "
    "the {seconds:plain} s, {since} to {until}, are what it took longer: {seconds:plain} s x ({one:plain} - "
    "{fast:plain} / {slow:plain}), medians of {measure} before and after"
)
BY_RATE = Sentence(
    "{gpus} x {longer:plain} s longer / {hour:plain} s an hour = {hours:plain} GPU-hours, where {longer:plain} s of "
    "the {seconds:plain} s, {since} to {until}, are what it took longer: {seconds:plain} s x ({one:plain} - "
    "{slow:plain} / {fast:plain}), medians of {measure} after and before"
)
NO_GOOD_PHASE = Sentence(
    "the slow-down: the run has no good phase to compare with; compare it with a good run (trackside compare)"
)
NOT_SLOWER = Sentence(
    "the slow-down: the run was not faster before the fault; compare it with a good run (trackside compare)"
)
MEASURES: Mapping[str, str] = {
    "step": "seconds a step", "throughput": "throughput", "launches": "kernel launches in {window:g} s",
    "work": "SM activity",
}  # fmt: skip
"""What was compared; ``window``: seconds in which launches were counted."""


def slowdown(facts: Facts, work: TrainingWork, since: Value | None, until: Value) -> WastedTime | Claim:
    """The slow-down from a moment on, by the pace before it."""
    paces = facts.get(StepPace)
    if since is None or until.number <= since.number or isinstance(paces, Missing):
        return NO_GOOD_PHASE()
    begun = _begun(paces, work.allocation.start.number, since.number, work.points)
    pace = None if begun is None else paces.compare((begun, since.number), (since.number, until.number))
    if pace is None:
        return NO_GOOD_PHASE()
    if pace.slowdown < MIN_SLOWDOWN:
        return NOT_SLOWER()
    launches = paces.grids.get("launches")
    measure = MEASURES[pace.kind].format(window=0.0 if launches is None else launches.step)
    return _slower(work, since, until, pace, measure)


def _slower(work: TrainingWork, since: Value, until: Value, pace: Pace, measure: str) -> WastedTime:
    gpus, seconds = work.allocation.gpus, length(since, until)
    longer = derived(round(seconds.number * (1 - 1 / pace.slowdown)), seconds, pace.before, pace.during, unit="s")
    hours = gpu_hours(gpus, longer)
    formula = (BY_PACE if pace.kind == "step" else BY_RATE)(
        gpus=gpus, seconds=seconds, since=since, until=until, longer=longer, one=derived(1, longer), hour=hour(longer),
        hours=hours, slow=pace.during, fast=pace.before, measure=derived(measure, pace.before),
    )  # fmt: skip
    return SLOW.wasted(hours, formula)


def _begun(paces: StepPace, start: float, since: float, points: Sequence[Event]) -> float | None:
    """When work began: at the first training point, else when the GPUs first did what they mostly did before the
    fault. None where that was not before it."""
    stamped = [row.time for row in points if row.time is not None]
    if stamped:
        return stamped[0] if stamped[0] < since else None
    grids = (paces.grids.get(name) for name in ("launches", "step_seconds", "tokens", "samples", "sm"))
    return next((begun for grid in grids if grid and (begun := _first(grid, start, since)) is not None), None)


def _first(grid: Grid, start: float, since: float) -> float | None:
    part = grid.during(start, since)
    if not len(part.times):
        return None
    level = np.array([np.nanmedian(column) if np.any(~np.isnan(column)) else np.nan for column in part.values.T])
    if not np.any(level > 0):
        return None
    working = level >= WORKING * np.nanmedian(level[level > 0])
    return float(part.times[np.argmax(working)]) - part.step
