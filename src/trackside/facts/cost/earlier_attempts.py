"""The work of the attempts before the last, and how much of it was repeated."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from trackside.evidence import Frame, Value, derived
from trackside.facts.cost.allocation import gpu_hours, hour, seconds_between, times_of_attempt
from trackside.facts.cost.training_work import SLACK_S, TrainingWork, by_run_part
from trackside.facts.cost.wasted_time import (
    EVEN_STEPS_OF_ATTEMPT,
    NOTHING_BEFORE_TRAINING,
    ONE_START,
    REPEATED_AFTER_CHECKPOINT,
    STARTED_OVER,
    CostPart,
    waste_of_range,
)
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import logged_steps, numeric_field, step_seconds
from trackside.finding import Claim, Sentence, WastedTime
from trackside.model import Attempt, Event, Run

MAX_SAVE_DELAY_LINES = 20
"""Number of lines after an attempt's last logged step within which its last checkpoint is logged."""

LOST_ATTEMPT = CostPart(
    "attempt", Sentence("an attempt that was lost: the next one started over at step {first}"), STARTED_OVER
)
LOST_TO_CHECKPOINT = CostPart(
    "attempt",
    Sentence("an attempt that was lost: the next one continued from the checkpoint at step {first}, before its steps"),
    REPEATED_AFTER_CHECKPOINT,
)
WITHOUT_STEPS = CostPart(
    "attempt", Sentence("an attempt in which no training step was recognized"), NOTHING_BEFORE_TRAINING
)
SINCE_LOADED = CostPart(
    "attempt",
    Sentence("the part of an attempt after its checkpoint at step {first}, from which the next attempt continued"),
    REPEATED_AFTER_CHECKPOINT,
)
REPEATED_STEPS = CostPart(
    "attempt", Sentence("steps {first} to {last} of an attempt, which the next attempt repeated"), EVEN_STEPS_OF_ATTEMPT
)
RESTART = CostPart("attempt", Sentence("the startup of an attempt that continued from a checkpoint"), ONE_START)
BY_ATTEMPT = Sentence(
    "{gpus} x {length:plain} s of the attempt x ({last:plain} - {first:plain}) / ({last:plain} - {start:plain}) of its "
    "steps / {hour:plain} s/h = {hours:plain} GPU-hours"
)
ATTEMPT_UNKNOWN = Sentence(
    "how much of attempt {attempt} was repeated: its steps cannot be distinguished from those of other attempts"
)
ATTEMPT_OPEN = Sentence("how much of attempt {attempt} was repeated: its record has no end time")
RESUMED_UNKNOWN = Sentence(
    "how much of attempt {attempt} was repeated: no line that shows where the next attempt continued was recognized"
)
RESTART_UNKNOWN = Sentence(
    "how long the startup of attempt {attempt} took: no line that shows when training began was recognized"
)

AttemptTimes = tuple[Value, Value]


@dataclass(frozen=True, slots=True)
class Continuation:
    """Where an attempt continued, compared with the steps of the attempt before it."""

    attempt: Value
    """Its number."""
    before: Value
    """The number of the attempt before it."""
    last: Value
    """The last logged step of the attempt before it."""
    first: Value
    """Its own first logged step."""
    loaded: Value | None
    """The step of the checkpoint that it loaded; None if no line shows one."""
    started_over: bool
    """Whether it started no later than the attempt before it, and no line shows a loaded checkpoint."""
    repeated: Value | None
    """Seconds of the attempt before it whose work it repeated; None if only its logged steps show how much."""
    between: tuple[Event, Event]
    """The logged steps between which it started."""


@dataclass(frozen=True, slots=True)
class EarlierAttempts:
    """The waste of each attempt but the last (lost work and repeated startups), or a claim that says why it is
    unknown."""

    parts: tuple[WastedTime | Claim, ...] = ()
    last_start: WastedTime | Claim | None = None
    """The startup of the last attempt, if that attempt resumed from the one before."""
    continuation: Continuation | None = None
    """Where the last attempt continued; None if that is unknown."""


@fact()
def earlier_attempts(work: TrainingWork, ending: Ending, run: Run) -> EarlierAttempts:
    """Needs the training work; empty if there was only one attempt."""
    if len(run.attempts) < 2:
        return EarlierAttempts()
    allocation = work.allocation
    by_attempt = _by_attempt(logged_steps(work.progress), work.loads.events, run.attempts)
    parts: list[WastedTime | Claim] = []
    continuation: Continuation | None = None
    was_resumed = False  # whether the next attempt went on from what this one had done
    for index, attempt in enumerate(run.attempts[:-1]):
        attempt_times = times_of_attempt(ending.jobs, attempt.start)
        ordinal = derived(attempt.number, allocation.start)
        if attempt_times is None or by_attempt is None:
            if attempt.start is not None:
                parts.append((ATTEMPT_OPEN if attempt_times is None else ATTEMPT_UNKNOWN)(attempt=ordinal))
            was_resumed, continuation = False, None
            continue
        following = derived(run.attempts[index + 1].number, allocation.start)
        part, thrown_away, continuation = _waste(
            work, attempt_times, by_attempt[index], by_attempt[index + 1], ordinal, following
        )
        parts.append(part)
        if was_resumed and not thrown_away:
            parts.append(_restart(work, attempt_times, by_attempt[index], ordinal))
        was_resumed = not thrown_away
    if not was_resumed or by_attempt is None or not by_attempt[-1]:
        return EarlierAttempts(tuple(parts), continuation=continuation)
    ordinal = derived(run.attempts[-1].number, allocation.start)
    last_start = _restart(work, (allocation.start, allocation.end), by_attempt[-1], ordinal)
    return EarlierAttempts(tuple(parts), last_start, continuation)


def _by_attempt(
    points: Sequence[Event], loads: Sequence[Event], attempts: Sequence[Attempt]
) -> list[list[Event]] | None:
    """The logged steps of each attempt: by their times, else by where steps go back or a checkpoint was loaded. None
    if neither separates the attempts."""
    if points and all(row.time is not None for row in points):
        return [_points_during(points, attempt) for attempt in attempts]
    for parts in (by_run_part(points), _by_loads(points, loads)):
        if len(parts) == len(attempts):
            return parts
    return None


def _points_during(points: Sequence[Event], attempt: Attempt) -> list[Event]:
    """The stamped points of one attempt."""
    start, end = (attempt.start or 0.0) - SLACK_S, (1e12 if attempt.end is None else attempt.end) + SLACK_S
    return [row for row in points if start <= (row.time or 0.0) <= end]


def _by_loads(points: Sequence[Event], loads: Sequence[Event]) -> list[list[Event]]:
    """The points of one log, split at the lines that load a checkpoint."""
    if len({row.at.path for row in (*points, *loads)}) != 1:
        return []
    load_lines = [row.at.line for row in loads]
    parts: list[list[Event]] = [[] for _ in range(len(load_lines) + 1)]
    for row in points:
        parts[bisect(load_lines, row.at.line)].append(row)
    return [part for part in parts if part]


def _waste(
    work: TrainingWork,
    attempt_times: AttemptTimes,
    points: Sequence[Event],
    next_points: Sequence[Event],
    attempt: Value,
    next_attempt: Value,
) -> tuple[WastedTime | Claim, bool, Continuation | None]:
    """(the work of this attempt that the next one repeated, or a claim that it is unknown; whether all of it was
    lost; where the next one continued, if that is known)"""
    steps, following = (
        [row for row in rows if numeric_field(row, "step") is not None] for rows in (points, next_points)
    )
    allocation, frame = work.allocation, work.progress
    if not points:
        return waste_of_range(WITHOUT_STEPS, allocation.during(*attempt_times), *attempt_times), True, None
    if not steps or not following:
        return ATTEMPT_UNKNOWN(attempt=attempt), False, None
    first_step, last_step, resumed_step = (frame.value(row, "step") for row in (steps[0], steps[-1], following[0]))
    loaded_step = _loaded_step(work.loads, steps[-1], following[0])
    seconds = seconds_between(*attempt_times)

    def continuation(repeated: Value | None = None, started_over: bool = False) -> Continuation:
        return Continuation(
            next_attempt,
            attempt,
            last=last_step,
            first=resumed_step,
            loaded=loaded_step,
            started_over=started_over,
            repeated=repeated,
            between=(steps[-1], following[0]),
        )

    if resumed_step.number <= first_step.number:
        is_resume = loaded_step is not None and loaded_step.number > 0
        part, first = (LOST_TO_CHECKPOINT, loaded_step) if is_resume and loaded_step else (LOST_ATTEMPT, resumed_step)
        waste = waste_of_range(part, allocation.during(*attempt_times), *attempt_times, first=first)
        return waste, True, continuation(seconds) if is_resume else continuation(started_over=True)
    if loaded_step is not None and (saved_time := _time_of_step(work, steps, loaded_step)) is not None:
        waste = waste_of_range(
            SINCE_LOADED, allocation.during(*attempt_times), saved_time, attempt_times[1], first=loaded_step
        )
        return waste, False, continuation(seconds_between(saved_time, attempt_times[1]))
    where = continuation()
    resumed_step = loaded_step or resumed_step
    if loaded_step is None and resumed_step.number > last_step.number:  # it resumed somewhere between two points
        return RESUMED_UNKNOWN(attempt=attempt), False, None
    share = (
        max(0.0, last_step.number - resumed_step.number) / (last_step.number - first_step.number)
        if last_step.number > first_step.number
        else 0.0
    )
    redone_s = derived(round(share * seconds.number, 1), seconds, first_step, last_step, resumed_step, unit="s")
    hours = gpu_hours(allocation.gpus, redone_s)
    formula = BY_ATTEMPT(
        gpus=allocation.gpus,
        length=seconds,
        start=first_step,
        first=resumed_step,
        last=last_step,
        hour=hour(seconds),
        hours=hours,
    )
    return REPEATED_STEPS.wasted(hours, formula, first=resumed_step, last=last_step), False, where


def _loaded_step(loads: Frame, last: Event, first: Event) -> Value | None:
    """The step of the checkpoint loaded between the last point of one attempt and the first point of the next."""
    for row in reversed(loads.events):
        step = numeric_field(row, "step")
        within = (row.at.path == first.at.path and row.at.line < first.at.line) and (
            row.at.path != last.at.path or row.at.line > last.at.line
        )
        if within and step is not None and step <= (numeric_field(first, "step") or 0.0):
            return loads.value(row, "step")
    return None


def _time_of_step(work: TrainingWork, points: Sequence[Event], step: Value) -> Value | None:
    """When an attempt reached a step: the time of its checkpoint, else of the logged step."""
    for frame, rows in ((work.saves, work.saves.events), (work.progress, points)):
        for row in rows:
            is_inside = points[0].at.path != row.at.path or row.at.line <= points[-1].at.line + MAX_SAVE_DELAY_LINES
            if numeric_field(row, "step") == step.number and row.time is not None and is_inside:
                return frame.value(row, "time", "time")
    return None


def _restart(
    work: TrainingWork, attempt_times: AttemptTimes, points: Sequence[Event], attempt: Value
) -> WastedTime | Claim:
    """The startup of an attempt that resumed from a checkpoint."""
    first, start = next((row for row in points if row.time is not None), None), attempt_times[0]
    training_start = None if first is None else _training_start(work, start.number, first, points)
    if training_start is None:
        return RESTART_UNKNOWN(attempt=attempt)
    return waste_of_range(RESTART, work.allocation.during(*attempt_times), start, training_start)


def _training_start(work: TrainingWork, start: float, first: Event, points: Sequence[Event]) -> Value | None:
    """When an attempt's training began: by its log line, else by its first stamped point and the loaded step."""
    start_rows = [
        row for row in work.starts.events if row.time is not None and start <= row.time <= (first.time or 0.0)
    ]
    if start_rows:
        return work.starts.value(start_rows[-1], "time", "time")
    step, pace = numeric_field(first, "step"), step_seconds(points, work.progress)
    loads = [n for row in work.loads.events if (n := numeric_field(row, "step")) is not None and n <= (step or 0.0)]
    if (first.time or 0.0) < start or step is None or pace is None or not loads:
        return None
    time = work.progress.value(first, "time", "time")
    return derived(max(start, time.number - (step - loads[-1]) * pace.number), time, pace, unit="time")
