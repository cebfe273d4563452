"""What the fault cost: the allocated GPU-hours that were lost, in parts that do not overlap.

Each part is a time range of the run, or a number of its steps, times its GPUs, with a formula and an assumption.
A family declares what its fault costs (:data:`trackside.family.CostKind`); the finding, the logged steps, the
checkpoints and the attempts determine where it lies in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from trackside.evidence import Missing, Value, derived
from trackside.facts.cost.allocation import Allocation, gpu_hours, hour, seconds_between
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.cost.last_work import LastWork
from trackside.facts.cost.training_work import SLACK_S, TrainingWork
from trackside.facts.cost.wasted_time import (
    ALL_WASTED,
    ALL_WORK_SHOWN,
    CHECKPOINT_COMPLETE,
    CHECKPOINT_COMPLETE_EVEN_STEPS,
    EVEN_STEPS,
    EVEN_STEPS_OF_ATTEMPT,
    LAST_CHECKPOINT_COMPLETE,
    NOTHING_BEFORE_TRAINING,
    UNSAVED,
    USABLE_BEFORE_FAULT,
    USELESS_AFTER_FAULT,
    CostPart,
    waste_of_range,
    waste_of_steps,
)
from trackside.facts.fact import Facts
from trackside.facts.logs.ending import BAD_STATES
from trackside.facts.training.learning import numeric_field
from trackside.family import CostKind
from trackside.finding import Certainty, Claim, Cost, Finding, Outcome, Sentence, WastedTime
from trackside.model import Run
from trackside.verdict.arbiter import RankedFindings
from trackside.verdict.slowdown import slowdown

START_SLACK_S = 2.0
"""A fault may precede the start by this much: clocks differ."""
MIN_HOURS = 0.0005
"""Fewer GPU-hours than this are not listed."""

STARTUP = CostPart(
    "startup",
    Sentence("the whole allocation, because no training step was recognized in the log"),
    NOTHING_BEFORE_TRAINING,
)
WHOLE_RUN = CostPart("all", Sentence("the whole allocation, because the run hardly trained"), ALL_WASTED)
BEFORE_FIRST_STEP = CostPart(
    "startup", Sentence("from the start until it hung, before its first training step"), NOTHING_BEFORE_TRAINING
)
NEVER_SAVED = CostPart("work", Sentence("the work from the start to the end"), UNSAVED, at_most=True)
UNSAVED_UNTIL_IDLE = CostPart("work", Sentence("the work from the start to its last sign"), UNSAVED, at_most=True)
UNSAVED_BEFORE = CostPart(
    "work",
    Sentence("the work from the start to the fault"),
    UNSAVED,
    at_most=True,
)
UNSAVED_STEPS = CostPart(
    "work",
    Sentence("the work up to the fault at step {last}"),
    UNSAVED,
    at_most=True,
)
SINCE_SAVE = CostPart("work", Sentence("the work since the last checkpoint"), LAST_CHECKPOINT_COMPLETE)
SINCE_STEP = CostPart(
    "work",
    Sentence("the work since the last checkpoint, from step {first} to step {last}"),
    CHECKPOINT_COMPLETE_EVEN_STEPS,
)
HUNG = CostPart("stopped", Sentence("the time that the run hung while its GPUs were allocated"), ALL_WORK_SHOWN)
IDLE_AFTER_FAULT = CostPart(
    "stopped", Sentence("the time that the GPUs stayed allocated after the fault"), ALL_WORK_SHOWN
)
IDLE_AFTER_TRAINING = CostPart(
    "stopped", Sentence("the time that the GPUs stayed allocated after training was done"), ALL_WORK_SHOWN
)
PAUSED = CostPart("paused", Sentence("a pause in which training stalled"), ALL_WORK_SHOWN)
SPOILT = CostPart("spoilt", Sentence("the work from the fault to the end"), USELESS_AFTER_FAULT)
SPOILT_UNDATED = CostPart("spoilt", SPOILT.what, USABLE_BEFORE_FAULT)
SPOILT_SINCE_SAVE = CostPart(
    "spoilt", Sentence("the work from the last checkpoint before the fault to the end"), CHECKPOINT_COMPLETE
)
SPOILT_STEPS = CostPart("spoilt", Sentence("the work from the fault at step {first} to step {last}"), EVEN_STEPS)
SPOILT_SHARE = CostPart("spoilt", SPOILT_STEPS.what, EVEN_STEPS_OF_ATTEMPT)
REPEATED = CostPart(
    "repeated", Sentence("steps {first} to {last}, which the previous run had already done"), EVEN_STEPS
)
REPEATED_SHARE = CostPart("repeated", REPEATED.what, EVEN_STEPS_OF_ATTEMPT)
BY_SHARE = Sentence(
    "{gpus} x {length:plain} s x ({last:plain} - {first:plain}) / {last:plain} steps / {hour:plain} s/h = "
    "{hours:plain} GPU-hours"
)
BY_SHARE_OF = Sentence(
    "{gpus} x {length:plain} s x {first:plain} / {last:plain} steps / {hour:plain} s/h = {hours:plain} GPU-hours"
)

CAUSE_UNKNOWN = Sentence("how much was lost: no cause was found")
LOST_WORK_UNKNOWN = Sentence("the lost work: no log with steps and checkpoints was given")
LOST_WORK_UNDATED = Sentence("the work since the last checkpoint: neither its time nor its step is known")
ONSET_UNKNOWN = Sentence("the work since the fault began: neither its time nor its step is known")
PARENT_PROGRESS_UNKNOWN = Sentence("the repeated work: how far the previous run had come is unknown")
STILL_RUNNING = Sentence("the final cost: the GPUs are still allocated")


@dataclass(frozen=True, slots=True)
class _Fault:
    """The primary finding, placed in the last attempt's time."""

    run: Run
    primary: Finding
    allocation: Allocation
    work: TrainingWork
    cost_kind: CostKind
    work_end: Value
    """When work ended: at the fault, or at the last sign of work if that is later; else at the run's end."""

    @property
    def failed(self) -> bool:
        """Whether the run ended such that its unsaved work is lost."""
        if self.work.finished is not None or self.allocation.running:
            return False
        bad_state = self.run.disposition in BAD_STATES
        return bad_state or (self.primary.outcome is Outcome.FOUND and self.cost_kind in ("work", "stopped", "all"))

    @property
    def since(self) -> Value | None:
        """When the fault began."""
        return onset_of(self.primary, self.allocation)


def cost(facts: Facts, ranked: RankedFindings, cost_kinds: Mapping[str, CostKind]) -> Cost:
    """The GPU-hours that were allocated, and how many of them its fault wasted. ``cost_kinds``: by family code."""
    allocation, work, earlier = facts.get(Allocation), facts.get(TrainingWork), facts.get(EarlierAttempts)
    if isinstance(allocation, Missing):
        return Cost(missing=allocation.reason)
    if isinstance(work, Missing) or isinstance(earlier, Missing):
        reason = next(fact.reason for fact in (work, earlier) if isinstance(fact, Missing))
        return Cost(
            allocation.hours,
            allocation.formula,
            allocation.assumption,
            missing=reason,
            at_least=allocation.at_least,
        )
    fault = _fault(facts, ranked, allocation, work, cost_kinds)
    parts = [*earlier.parts]
    saved = not fault.failed or work.saved(fault.work_end.number) is not None  # else all of the last attempt is wasted
    if earlier.last_start is not None and saved and fault.cost_kind != "all":
        parts.append(earlier.last_start)
    pauses = [finding for finding in (ranked.primary, *ranked.warnings) if cost_kinds.get(finding.family) == "paused"]
    parts += [part for finding in pauses for part in _pause(finding, allocation)]
    parts += (_as_far_as_found(part, ranked.primary) for part in _parts(facts, fault))
    return Cost(
        allocation.hours,
        allocation.formula,
        allocation.assumption,
        tuple(part for part in parts if isinstance(part, WastedTime) and part.gpu_hours.number > MIN_HOURS),
        tuple(part for part in parts if isinstance(part, Claim)),
        at_least=allocation.at_least,
    )


def _as_far_as_found(part: WastedTime | Claim, primary: Finding) -> WastedTime | Claim:
    """The part; at most that much is lost if the fault itself is only possible."""
    if isinstance(part, Claim) or primary.certainty is not Certainty.POSSIBLE:
        return part
    return replace(part, at_most=True)


def onset_of(finding: Finding, allocation: Allocation) -> Value | None:
    """When a fault began, with its citations; None if the time is unknown, or before the attempt."""
    since = finding.since
    cites = [cite for claim in finding.shows for cite in claim.cites]
    if (
        since is None
        or not cites
        or not allocation.start.number - START_SLACK_S <= since <= allocation.end.number + SLACK_S
    ):
        return None
    exact = [cite for cite in cites if cite.window is not None and cite.window[0] <= since <= cite.window[1]]
    within = min(max(since, allocation.start.number), allocation.end.number)
    return Value(within, tuple(dict.fromkeys(exact or cites[:2]))[:3], "time")


# -- when work ended


def _fault(
    facts: Facts, ranked: RankedFindings, allocation: Allocation, work: TrainingWork, cost_kinds: Mapping[str, CostKind]
) -> _Fault:
    primary, cost_kind = ranked.primary, cost_kinds.get(ranked.primary.family, "work")
    work_end = _work_end(primary, allocation, work, cost_kind)
    if (
        work_end is allocation.end
        and work.finished is None
        and cost_kind == "work"
        and primary.outcome is Outcome.FOUND
    ):
        hangs = [finding for finding in ranked.consequences if cost_kinds.get(finding.family) == "stopped"]
        hung = next((since for finding in hangs if (since := onset_of(finding, allocation)) is not None), work_end)
        last = facts.get(LastWork)
        work_end = hung if isinstance(last, Missing) or last.time is None else last.time
    return _Fault(facts.run, primary, allocation, work, cost_kind, work_end)


def _work_end(primary: Finding, allocation: Allocation, work: TrainingWork, cost_kind: CostKind) -> Value:
    """When work ended: at the fault, or at the last sign of work if that is later; else at the run's end."""
    since, sign, finished = onset_of(primary, allocation), work.last_sign, work.finished
    if finished is not None and cost_kind != "stopped":
        return allocation.end if finished.time is None else work.ends.value(finished, "time", "time")
    if cost_kind in ("slow", "spoilt"):
        return allocation.end
    if since is not None and primary.outcome is Outcome.FOUND:
        sign_is_later = sign is not None and since.number < sign.number <= allocation.end.number
        return sign if sign_is_later and sign is not None else since
    if cost_kind == "stopped":
        if sign is not None and sign.number <= allocation.end.number:
            return sign
        if work.logged and not work.has_training:
            return allocation.start
    return allocation.end


# -- the parts


def _parts(facts: Facts, fault: _Fault) -> Iterator[WastedTime | Claim]:
    """The parts of the last attempt, without its pauses."""
    allocation, cost_kind = fault.allocation, fault.cost_kind
    no_cause = fault.primary.outcome is not Outcome.FOUND or cost_kind == "unknown"
    if no_cause and not fault.failed:
        if fault.run.disposition != "COMPLETED":
            yield CAUSE_UNKNOWN()
    elif cost_kind == "all":
        yield waste_of_range(WHOLE_RUN, allocation, allocation.start, allocation.end)
    elif cost_kind != "nothing":
        yield from _wasted_work(fault)
        if cost_kind == "slow":
            until = _slow_until(fault)
            if until is not None:  # else all the work was wasted, and counts as wasted work
                yield slowdown(facts, fault.work, fault.primary, fault.since, until)
        elif allocation.running:
            yield STILL_RUNNING()


def _pause(finding: Finding, allocation: Allocation) -> Iterator[WastedTime]:
    since = onset_of(finding, allocation)
    if since is not None and finding.until is not None:
        until = Value(min(finding.until, allocation.end.number), since.cites, "time")
        yield waste_of_range(PAUSED, allocation, since, until)


def _wasted_work(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """The wasted work, and the time after it; the two do not overlap."""
    allocation, work, hung = fault.allocation, fault.work, fault.cost_kind == "stopped"
    if fault.cost_kind == "spoilt" and not fault.failed:
        yield from _spoilt_time(fault)
        return
    if fault.cost_kind == "repeated":
        yield from _repeated_steps(fault)
    if fault.failed and work.logged and not work.has_training and not hung:
        part = NEVER_SAVED if fault.primary.variant == "work" else STARTUP
        yield waste_of_range(part, allocation, allocation.start, allocation.end)
        return
    if fault.failed:
        yield _unsaved_work(fault)
    finished = work.finished is not None and fault.run.disposition in BAD_STATES
    if fault.failed or hung or finished:
        yield waste_of_range(
            HUNG if hung else IDLE_AFTER_TRAINING if finished else IDLE_AFTER_FAULT,
            allocation,
            fault.work_end,
            allocation.end,
        )


def _unsaved_work(fault: _Fault) -> WastedTime | Claim:
    """From the last checkpoint, or from the start, to the end of work."""
    allocation, work = fault.allocation, fault.work
    if not work.logged:
        return LOST_WORK_UNKNOWN()
    saved = work.saved(fault.work_end.number)
    if saved is None:
        part = _unsaved_part(fault) if work.has_training else BEFORE_FIRST_STEP
        return waste_of_range(part, allocation, allocation.start, fault.work_end)
    if saved.time is not None:
        return waste_of_range(SINCE_SAVE, allocation, saved.time, fault.work_end)
    last, pace = work.last_step, work.pace
    if saved.step is None or last is None or pace is None or last.number < saved.step.number:
        return LOST_WORK_UNDATED()
    return waste_of_steps(SINCE_STEP, allocation, saved.step, last, pace)


def _unsaved_part(fault: _Fault) -> CostPart:
    """The work of a run without a checkpoint, by what ended it."""
    if fault.work_end.number >= fault.allocation.end.number:
        return NEVER_SAVED
    since = fault.since
    return UNSAVED_BEFORE if since is not None and since.number == fault.work_end.number else UNSAVED_UNTIL_IDLE


def _spoilt_time(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """From the last checkpoint before the fault, or from the fault, to the end."""
    allocation, work, since = fault.allocation, fault.work, fault.since
    if since is None:
        yield from _spoilt_steps(fault)
        return
    saved = work.saved(since.number)
    if saved is not None and saved.time is not None:
        yield waste_of_range(SPOILT_SINCE_SAVE, allocation, saved.time, allocation.end)
    elif saved is not None:
        yield waste_of_range(SPOILT_UNDATED, allocation, since, allocation.end)
    else:
        yield waste_of_range(UNSAVED_BEFORE, allocation, allocation.start, since)
        yield waste_of_range(SPOILT, allocation, since, allocation.end)


def _spoilt_steps(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """The work that a fault without a time spoilt, by the step at which it appears."""
    allocation, work, position = fault.allocation, fault.work, fault.primary.at
    point = work.before(position) if position is not None else None
    last, pace = work.last_step, work.pace
    if point is None or point.get("step") is None or last is None:
        yield ONSET_UNKNOWN()
        return
    first, saved = work.step(point), work.saved(allocation.end.number)
    if pace is not None:
        if saved is None:
            yield waste_of_steps(UNSAVED_STEPS, allocation, derived(0, first), first, pace)
        yield waste_of_steps(SPOILT_STEPS, allocation, first, last, pace)
    else:
        if saved is None:
            yield _share_to(UNSAVED_STEPS, allocation, first, last, last=first)
        yield _share_from(SPOILT_SHARE, allocation, first, last)


def _repeated_steps(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """Steps that the previous run had done already."""
    work = fault.work
    parent_points = [row for row in work.parents.events if numeric_field(row, "step") is not None]
    points = [row for row in work.points if numeric_field(row, "step") is not None]
    if not parent_points or len(points) < 2:
        if fault.primary.variant == "silent" and work.has_training:
            yield PARENT_PROGRESS_UNKNOWN()
        return
    parent_last, first, last = (
        work.parents.value(parent_points[-1], "step"),
        work.step(points[0]),
        work.step(points[-1]),
    )
    until = parent_last if parent_last.number < last.number else last
    if until.number <= first.number:
        return
    start = derived(0, first)
    if work.pace is not None:
        yield waste_of_steps(REPEATED, fault.allocation, start, until, work.pace)
    else:
        yield _share_to(REPEATED_SHARE, fault.allocation, until, last, first=derived(0, until), last=until)


def _share_from(part: CostPart, allocation: Allocation, first: Value, last: Value) -> WastedTime:
    """The steps after ``first`` as a share of the run's time, if the time per step is unknown."""
    length = seconds_between(allocation.start, allocation.end)
    share = max(0.0, last.number - first.number) / last.number if last.number > 0 else 0.0
    hours = gpu_hours(allocation.gpus, derived(round(share * length.number), length, first, last, unit="s"))
    formula = BY_SHARE(gpus=allocation.gpus, length=length, first=first, last=last, hour=hour(length), hours=hours)
    return part.wasted(hours, formula, first=first, last=last)


def _share_to(part: CostPart, allocation: Allocation, until: Value, end: Value, **values: Value) -> WastedTime:
    """The steps up to ``until`` out of those up to ``end``, as a share of the run's time."""
    length = seconds_between(allocation.start, allocation.end)
    share = min(1.0, until.number / end.number)
    hours = gpu_hours(allocation.gpus, derived(round(share * length.number), length, until, end, unit="s"))
    formula = BY_SHARE_OF(gpus=allocation.gpus, length=length, first=until, last=end, hour=hour(length), hours=hours)
    return part.wasted(hours, formula, **values)


def _slow_until(fault: _Fault) -> Value | None:
    """The time until which a slow run counts as slow: wasted work after it counts as wasted. None: all of it is."""
    if not fault.failed:
        return fault.allocation.end if fault.work.last_sign is None else fault.work.last_sign
    saved = fault.work.saved(fault.work_end.number)
    return None if saved is None else saved.time
