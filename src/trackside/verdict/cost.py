"""What the fault cost: the GPU-hours that the run held and got nothing for, as parts that do not overlap.

Each part is a stretch of the run's time, or so many of its steps, times its GPUs; each names its formula and what it
takes for granted. What a family's fault costs is declared by the family (:data:`trackside.family.Loses`); where it lies
in time is told by the finding, the training points, the checkpoints and the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.cost.allocation import Allocation, gpu_hours, hour, length
from trackside.facts.cost.earlier_attempts import EarlierAttempts
from trackside.facts.cost.last_work import LastWork
from trackside.facts.cost.training_work import SLACK_S, TrainingWork
from trackside.facts.cost.wasted_time import (
    ALL_WASTED,
    EVEN_STEPS,
    EVEN_TIME,
    GONE_WRONG,
    GOOD_BEFORE,
    GOOD_SAVE,
    IDLE,
    SAVED,
    SAVED_AND_EVEN,
    UNSAVED,
    Part,
    span,
    steps,
)
from trackside.facts.fact import Facts
from trackside.facts.logs.ending import BAD_STATES
from trackside.facts.training.learning import number
from trackside.family import Loses
from trackside.finding import Claim, Cost, Finding, Outcome, Sentence, WastedTime
from trackside.model import Run
from trackside.verdict.arbiter import Ranked
from trackside.verdict.slowdown import slowdown

START_S = 2.0
"""By so much a fault may come before the start: clocks differ."""
MIN_HOURS = 0.0005
"""GPU-hours that are shown as none."""

STARTUP = Part("startup", Sentence("the run failed before its first training step: the whole allocation"), ALL_WASTED)
ALL = Part("all", Sentence("the run trained almost nothing: the whole allocation"), ALL_WASTED)
UNBEGUN = Part("startup", Sentence("from the start until it hung, before its first training step"), ALL_WASTED)
NEVER_SAVED = Part(
    "work", Sentence("the work from the start to the end, because no checkpoint was seen"), UNSAVED, at_most=True
)
UNSAVED_BEFORE = Part(
    "work",
    Sentence("the work from the start to the fault, because no checkpoint was seen"),
    UNSAVED,
    at_most=True,
)
UNSAVED_STEPS = Part(
    "work",
    Sentence("the work up to the fault at step {last}, because no checkpoint was seen"),
    UNSAVED,
    at_most=True,
)
SINCE_SAVE = Part("work", Sentence("the work since the last checkpoint"), SAVED)
SINCE_STEP = Part(
    "work", Sentence("the work since the last checkpoint, from step {first} to step {last}"), SAVED_AND_EVEN
)
HUNG = Part("stopped", Sentence("the time that the run hung with its GPUs allocated"), IDLE)
STOPPED = Part("stopped", Sentence("the time that its GPUs stayed allocated after the fault"), IDLE)
FINISHED = Part("stopped", Sentence("the time that its GPUs stayed allocated after training was done"), IDLE)
PAUSED = Part("paused", Sentence("a pause in which training stalled"), IDLE)
SPOILT = Part("spoilt", Sentence("the work from the fault to the end"), GONE_WRONG)
SPOILT_UNDATED = Part("spoilt", SPOILT.what, GOOD_BEFORE)
SPOILT_SINCE_SAVE = Part("spoilt", Sentence("the work from the last checkpoint before the fault to the end"), GOOD_SAVE)
SPOILT_STEPS = Part("spoilt", Sentence("the work from the fault at step {first} to step {last}"), EVEN_STEPS)
SPOILT_SHARE = Part("spoilt", SPOILT_STEPS.what, EVEN_TIME)
REPEATED = Part("repeated", Sentence("steps {first} to {last}, which the previous run had already done"), EVEN_STEPS)
REPEATED_SHARE = Part("repeated", REPEATED.what, EVEN_TIME)
BY_SHARE = Sentence(
    "{gpus} x {lasted:plain} s x ({last:plain} - {first:plain}) / {last:plain} steps / {hour:plain} s an hour = "
    "{hours:plain} GPU-hours"
)
BY_SHARE_OF = Sentence(
    "{gpus} x {lasted:plain} s x {first:plain} / {last:plain} steps / {hour:plain} s an hour = {hours:plain} GPU-hours"
)

UNDECIDED = Sentence("what the fault cost: the fault is unknown")
NO_LOG = Sentence("the lost work: no log with steps and checkpoints was given")
UNDATED = Sentence("the work since the last checkpoint: neither its time nor its step is known")
NO_ONSET = Sentence("when the fault began: neither its time nor its step is known")
NO_PARENT = Sentence("the repeated work: how far the previous run had come is unknown")
STILL_GOING = Sentence("the final cost: the run still holds its GPUs")


@dataclass(frozen=True, slots=True)
class _Fault:
    """The primary finding on the last attempt's time."""

    run: Run
    primary: Finding
    held: Allocation
    work: TrainingWork
    loses: Loses
    stopped: Value
    """When its work ended: at the fault, or at its last sign of life if that came later; else its end."""

    @property
    def failed(self) -> bool:
        """Whether it ended so that what it had not saved is gone."""
        if self.work.finished is not None or self.held.running:
            return False
        bad = self.run.disposition in BAD_STATES
        return bad or (self.primary.outcome is Outcome.FOUND and self.loses in ("work", "standstill", "all"))

    @property
    def since(self) -> Value | None:
        """When it began."""
        return onset(self.primary, self.held)


def cost(facts: Facts, ranked: Ranked, loses: Mapping[str, Loses]) -> Cost:
    """What the run held, and what its fault cost of it. ``loses``: what the fault of a family costs, by its code."""
    held, work, earlier = facts.get(Allocation), facts.get(TrainingWork), facts.get(EarlierAttempts)
    if isinstance(held, Missing):
        return Cost(missing=held.reason)
    if isinstance(work, Missing) or isinstance(earlier, Missing):
        reason = next(fact.reason for fact in (work, earlier) if isinstance(fact, Missing))
        return Cost(held.hours, held.formula, held.assumption, missing=reason)
    fault = _fault(facts, ranked, held, work, loses)
    parts = [*earlier.parts]
    saved = not fault.failed or work.saved(fault.stopped.number) is not None  # else all of the last attempt is lost
    if earlier.last_start is not None and saved and fault.loses != "all":
        parts.append(earlier.last_start)
    pauses = [finding for finding in (ranked.primary, *ranked.warnings) if loses.get(finding.family) == "pause"]
    parts += [part for finding in pauses for part in _pause(finding, held)]
    parts += _parts(facts, fault)
    return Cost(
        held.hours,
        held.formula,
        held.assumption,
        tuple(part for part in parts if isinstance(part, WastedTime) and part.gpu_hours.number > MIN_HOURS),
        tuple(part for part in parts if isinstance(part, Claim)),
    )


def onset(finding: Finding, held: Allocation) -> Value | None:
    """When a fault began, with what shows it; None where that isn't told, or was before the attempt."""
    since = finding.since
    cites = [cite for claim in finding.shows for cite in claim.cites]
    if since is None or not cites or not held.start.number - START_S <= since <= held.end.number + SLACK_S:
        return None
    exact = [cite for cite in cites if cite.window is not None and cite.window[0] <= since <= cite.window[1]]
    within = min(max(since, held.start.number), held.end.number)
    return Value(within, tuple(dict.fromkeys(exact or cites[:2]))[:3], "time")


# -- when work ended


def _fault(facts: Facts, ranked: Ranked, held: Allocation, work: TrainingWork, costs: Mapping[str, Loses]) -> _Fault:
    primary, loses = ranked.primary, costs.get(ranked.primary.family, "work")
    stopped = _stopped(primary, held, work, loses)
    if stopped is held.end and work.finished is None and loses == "work" and primary.outcome is Outcome.FOUND:
        hangs = [finding for finding in ranked.consequences if costs.get(finding.family) == "standstill"]
        hung = next((since for finding in hangs if (since := onset(finding, held)) is not None), stopped)
        last = facts.get(LastWork)
        stopped = hung if isinstance(last, Missing) or last.time is None else last.time
    return _Fault(facts.run, primary, held, work, loses, stopped)


def _stopped(primary: Finding, held: Allocation, work: TrainingWork, loses: Loses) -> Value:
    """When the work ended: at the fault, or at the last sign of work where that came later; else at the run's end."""
    since, sign, finished = onset(primary, held), work.last_sign, work.finished
    if finished is not None and loses != "standstill":
        return held.end if finished.time is None else work.ends.value(finished, "time", "time")
    if loses in ("pace", "result"):
        return held.end
    if since is not None and primary.outcome is Outcome.FOUND:
        late = sign is not None and since.number < sign.number <= held.end.number
        return sign if late and sign is not None else since
    if loses == "standstill":
        if sign is not None and sign.number <= held.end.number:
            return sign
        if work.logged and not work.has_training:
            return held.start
    return held.end


# -- the parts


def _parts(facts: Facts, fault: _Fault) -> Iterator[WastedTime | Claim]:
    """Of the last attempt, its pauses left out."""
    held, loses = fault.held, fault.loses
    if fault.primary.outcome is not Outcome.FOUND and not fault.failed:
        if fault.run.disposition != "COMPLETED":
            yield UNDECIDED()
    elif loses == "all":
        yield span(ALL, held, held.start, held.end)
    elif loses != "nothing":
        yield from _lost(fault)
        if loses == "pace":
            until = _slow_until(fault)
            if until is not None:  # else all of it was thrown away, and counts as that
                yield slowdown(facts, fault.work, fault.since, until)
        elif held.running:
            yield STILL_GOING()


def _pause(finding: Finding, held: Allocation) -> Iterator[WastedTime]:
    since = onset(finding, held)
    if since is not None and finding.until is not None:
        until = Value(min(finding.until, held.end.number), since.cites, "time")
        yield span(PAUSED, held, since, until)


def _lost(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """The work that is gone, and the time after it: neither begins before the other ends."""
    held, work, hung = fault.held, fault.work, fault.loses == "standstill"
    if fault.loses == "result" and not fault.failed:
        yield from _spoilt(fault)
        return
    if fault.loses == "repeat":
        yield from _repeated(fault)
    if fault.failed and work.logged and not work.has_training and not hung:
        yield span(STARTUP, held, held.start, held.end)
        return
    if fault.failed:
        yield _unsaved(fault)
    finished = work.finished is not None and fault.run.disposition in BAD_STATES
    if fault.failed or hung or finished:
        yield span(HUNG if hung else FINISHED if finished else STOPPED, held, fault.stopped, held.end)


def _unsaved(fault: _Fault) -> WastedTime | Claim:
    """From the last checkpoint, or from the start, to where the work ended."""
    held, work = fault.held, fault.work
    if not work.logged:
        return NO_LOG()
    saved = work.saved(fault.stopped.number)
    if saved is None:
        return span(NEVER_SAVED if work.has_training else UNBEGUN, held, held.start, fault.stopped)
    if saved.time is not None:
        return span(SINCE_SAVE, held, saved.time, fault.stopped)
    last, pace = work.last_step, work.pace
    if saved.step is None or last is None or pace is None or last.number < saved.step.number:
        return UNDATED()
    return steps(SINCE_STEP, held, saved.step, last, pace)


def _spoilt(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """From the last checkpoint before the fault, or from the fault, to the end."""
    held, work, since = fault.held, fault.work, fault.since
    if since is None:
        yield from _spoilt_steps(fault)
        return
    saved = work.saved(since.number)
    if saved is not None and saved.time is not None:
        yield span(SPOILT_SINCE_SAVE, held, saved.time, held.end)
    elif saved is not None:
        yield span(SPOILT_UNDATED, held, since, held.end)
    else:
        yield span(UNSAVED_BEFORE, held, held.start, since)
        yield span(SPOILT, held, since, held.end)


def _spoilt_steps(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """The same where the fault has no time, by the step at which it stands."""
    held, work, at = fault.held, fault.work, fault.primary.at
    point = work.before(at) if at is not None else None
    last, pace = work.last_step, work.pace
    if point is None or point.get("step") is None or last is None:
        yield NO_ONSET()
        return
    first, saved = work.step(point), work.saved(held.end.number)
    if pace is not None:
        if saved is None:
            yield steps(UNSAVED_STEPS, held, derived(0, first), first, pace)
        yield steps(SPOILT_STEPS, held, first, last, pace)
    else:
        if saved is None:
            yield _share_to(UNSAVED_STEPS, held, first, last, last=first)
        yield _share_from(SPOILT_SHARE, held, first, last)


def _repeated(fault: _Fault) -> Iterator[WastedTime | Claim]:
    """Steps that the run before this one had done already."""
    work = fault.work
    counted = [row for row in work.parents.events if number(row, "step") is not None]
    own = [row for row in work.points if number(row, "step") is not None]
    if not counted or len(own) < 2:
        if fault.primary.variant == "silent" and work.has_training:
            yield NO_PARENT()
        return
    reached, first, last = work.parents.value(counted[-1], "step"), work.step(own[0]), work.step(own[-1])
    until = reached if reached.number < last.number else last
    if until.number <= first.number:
        return
    start = derived(0, first)
    if work.pace is not None:
        yield steps(REPEATED, fault.held, start, until, work.pace)
    else:
        yield _share_to(REPEATED_SHARE, fault.held, until, last, first=derived(0, until), last=until)


def _share_from(part: Part, held: Allocation, first: Value, last: Value) -> WastedTime:
    """The steps from one on, as a share of the run's time: where nothing tells how long a step took."""
    lasted = length(held.start, held.end)
    share = max(0.0, last.number - first.number) / last.number if last.number > 0 else 0.0
    hours = gpu_hours(held.gpus, derived(round(share * lasted.number), lasted, first, last, unit="s"))
    formula = BY_SHARE(gpus=held.gpus, lasted=lasted, first=first, last=last, hour=hour(lasted), hours=hours)
    return part.wasted(hours, formula, first=first, last=last)


def _share_to(part: Part, held: Allocation, until: Value, end: Value, **values: Value) -> WastedTime:
    """The steps up to one, of those up to the end, as a share of the run's time."""
    lasted = length(held.start, held.end)
    share = min(1.0, until.number / end.number)
    hours = gpu_hours(held.gpus, derived(round(share * lasted.number), lasted, until, end, unit="s"))
    formula = BY_SHARE_OF(gpus=held.gpus, lasted=lasted, first=until, last=end, hour=hour(lasted), hours=hours)
    return part.wasted(hours, formula, **values)


def _slow_until(fault: _Fault) -> Value | None:
    """Up to when a slow run's time counts as slow: what is thrown away counts as that. None: all of it is."""
    if not fault.failed:
        return fault.held.end if fault.work.last_sign is None else fault.work.last_sign
    saved = fault.work.saved(fault.stopped.number)
    return None if saved is None else saved.time
