"""How much longer a slow run took than at the pace of its own good phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trackside.evidence import Grid, Missing, Value, derived
from trackside.facts.cost.allocation import gpu_hours, hour, seconds_between
from trackside.facts.cost.training_work import TrainingWork
from trackside.facts.cost.wasted_time import CostPart
from trackside.facts.fact import Facts
from trackside.facts.pace.pace import Pace, StepPace
from trackside.finding import Claim, Finding, Sentence, WastedTime
from trackside.model import Event

WORKING_RATIO = 0.5
"""Fraction of the good phase's usual level; below it, work has not started yet."""
MIN_SLOWDOWN = 1.1
"""Two phases count as equally fast if their ratio is smaller: paces vary by a few percent."""

EXTRA_TIME = CostPart(
    "slow",
    Sentence("the extra time that the same work took since it slowed down"),
    Sentence("assumes that all work could have been as fast as in the good phase"),
)
BY_PACE = Sentence(
    "{gpus} x {longer:plain} s longer / {hour:plain} s/h = {hours:plain} GPU-hours, where {longer:plain} s of "
    "the {seconds:plain} s, {since} to {until}, are extra: {seconds:plain} s x ({one:plain} - "
    "{fast:plain} / {slow:plain}), medians of {measure}: {fast:plain} from {good_since} to {since}, {slow:plain} after"
)
BY_RATE = Sentence(
    "{gpus} x {longer:plain} s longer / {hour:plain} s/h = {hours:plain} GPU-hours, where {longer:plain} s of "
    "the {seconds:plain} s, {since} to {until}, are extra: {seconds:plain} s x ({one:plain} - "
    "{slow:plain} / {fast:plain}), medians of {measure}: {fast:plain} from {good_since} to {since}, {slow:plain} after"
)
NO_GOOD_PHASE = Sentence(
    "the slowdown: the run has no good phase to compare with; compare it with a good run (trackside compare)"
)
NOT_SLOWER = Sentence(
    "the slowdown: the run was as slow from its start; compare it with a good run (trackside compare)"
)
MEASURES: Mapping[str, str] = {
    "step": "seconds per step", "throughput": "throughput", "launches": "kernel launches in {window:g} s",
    "work": "SM activity",
}  # fmt: skip
"""The measure of pace; ``window``: seconds in which launches were counted."""


def slowdown(
    facts: Facts, work: TrainingWork, finding: Finding, since: Value | None, until: Value
) -> WastedTime | Claim:
    """The cost of a finding's slowdown from ``since`` on, relative to the pace before it."""
    paces = facts.get(StepPace)
    if since is None or until.number <= since.number or isinstance(paces, Missing):
        return NO_GOOD_PHASE()
    work_start = _good_phase_start(finding, since.number)
    if work_start is None:
        work_start = _work_start(paces, work.allocation.start.number, since.number, work.points)
    if work_start is None:
        return NO_GOOD_PHASE()
    pace = paces.compare((work_start, since.number), (since.number, until.number))
    if pace is None:
        return NO_GOOD_PHASE()
    if pace.slowdown < MIN_SLOWDOWN:
        return NOT_SLOWER()
    launches = paces.grids.get("launches")
    measure = MEASURES[pace.kind].format(window=0.0 if launches is None else launches.step)
    return _extra_time(work, (derived(work_start, pace.before, unit="time"), since, until), pace, measure)


def _extra_time(work: TrainingWork, times: tuple[Value, Value, Value], pace: Pace, measure: str) -> WastedTime:
    """``times``: when work started, when it slowed down, and until when it was slow."""
    good_since, since, until = times
    gpus, seconds = work.allocation.gpus, seconds_between(since, until)
    longer = derived(round(seconds.number * (1 - 1 / pace.slowdown)), seconds, pace.before, pace.during, unit="s")
    hours = gpu_hours(gpus, longer)
    formula = (BY_PACE if pace.kind == "step" else BY_RATE)(
        gpus=gpus, seconds=seconds, since=since, until=until, longer=longer, one=derived(1, longer), hour=hour(longer),
        hours=hours, slow=pace.during, fast=pace.before, measure=derived(measure, pace.before), good_since=good_since,
    )  # fmt: skip
    return EXTRA_TIME.wasted(hours, formula)


def _good_phase_start(finding: Finding, since: float) -> float | None:
    """The start of the good phase that the finding itself compares with, so that both show the same figure; None if its
    evidence cites none."""
    values = (value for claim in finding.shows for name, value in claim.values.items() if name == "before")
    windows = (cite.window for value in values for cite in value.cites)
    return next((window[0] for window in windows if window is not None and window[1] == since), None)


def _work_start(paces: StepPace, start: float, since: float, points: Sequence[Event]) -> float | None:
    """When work started: at the first logged step, else when the GPUs first reached the level that they mostly had
    before the fault. None if that was not before the fault."""
    stamped = [row.time for row in points if row.time is not None]
    if stamped:
        return stamped[0] if stamped[0] < since else None
    grids = (paces.grids.get(name) for name in ("launches", "step_seconds", "tokens", "samples", "sm"))
    return next(
        (first_work for grid in grids if grid and (first_work := _first_work(grid, start, since)) is not None), None
    )


def _first_work(grid: Grid, start: float, since: float) -> float | None:
    part = grid.during(start, since)
    if not len(part.times):
        return None
    level = np.array([np.nanmedian(column) if np.any(~np.isnan(column)) else np.nan for column in part.values.T])
    if not np.any(level > 0):
        return None
    working = level >= WORKING_RATIO * np.nanmedian(level[level > 0])
    return float(part.times[np.argmax(working)]) - part.step
