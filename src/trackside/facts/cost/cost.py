"""What did the fault cost: the GPU-hours that the run held and got nothing for, as parts that do not overlap.

Each part is a stretch of the run's time, or so many of its steps, times its GPUs; each names its formula and what it
takes for granted. What a family's fault costs is declared by the family (:data:`trackside.families.family.Loses`);
where it lies in time is told by the finding, the training points, the checkpoints and the attempts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Store, Value, derived
from trackside.facts.cost import held as holding
from trackside.facts.cost.asked import Asked
from trackside.facts.cost.earlier import EARLIER_SAYS, earlier
from trackside.facts.cost.held import HOLDING, Held, hour, hours, length
from trackside.facts.cost.parts import PARTS_SAYS, span, steps
from trackside.facts.cost.signs import SIGNS, last_work
from trackside.facts.cost.slower import PACE_SAYS, slower
from trackside.facts.cost.work import WORK, Work, moment, work
from trackside.facts.logs.ending import BAD_STATES
from trackside.facts.trust.trust import Trust
from trackside.families import families
from trackside.family import Loses
from trackside.finding import Claim, Cost, Finding, Loss, Outcome, claim
from trackside.model import Run

SAYS: Mapping[str, str] = {
    **holding.SAYS,
    **PARTS_SAYS,
    **PACE_SAYS,
    **EARLIER_SAYS,
    "undecided": "what the fault cost: which it was is not known",
    "no_log": "the work that was thrown away: no log was given that could tell of steps and checkpoints",
    "undated": "the work since the last checkpoint: neither its time nor its step can be told",
    "no_onset": "when it began: no time and no step of it is told",
    "no_parent": "the work that was done again: how far the run before it had come is not told",
    "still_going": "what else it will cost: the run still holds its GPUs",
}
"""Sentences of all that is said here."""
LEAST_H = 0.0005
"""GPU-hours that are shown as none."""


@dataclass(frozen=True, slots=True)
class Told:
    """What the parts are worked out from."""

    run: Run
    primary: Finding
    held: Held
    work: Work
    loses: Loses
    stopped: Value
    """When its work ended: at the fault, or at its last sign of life if that came later; else its end."""

    @property
    def failed(self) -> bool:
        """Whether it ended so that what it had not saved is gone."""
        if self.work.finished is not None or self.held.going:
            return False
        bad = self.run.disposition in BAD_STATES
        return bad or (self.primary.outcome is Outcome.FOUND and self.loses in ("work", "standstill", "all"))


def cost(
    store: Store, run: Run, primary: Finding, warnings: Sequence[Finding], trust: Trust,
    consequences: Sequence[Finding] = (),
) -> Cost:  # fmt: skip
    """What the run held, and what its fault cost of it."""
    evidence = Evidence(Asked(store, trust, {**HOLDING, **WORK, **SIGNS}))
    held = holding.held(evidence, run)
    if isinstance(held, Claim):
        return Cost(unknown=(held,))
    done = work(evidence, run, held)
    told = _told(evidence, run, primary, consequences, held, done)
    own = not told.failed or done.saved(told.stopped.number) is not None  # else all of the last attempt is lost
    parts = [*earlier(evidence, run, held, own and told.loses != "all"), *_parts(store, told, warnings, trust)]
    return Cost(
        held.hours,
        held.formula,
        held.assumption,
        tuple(each for each in parts if isinstance(each, Loss) and each.gpu_hours.number > LEAST_H),
        tuple(each for each in parts if isinstance(each, Claim)),
    )


def _told(
    evidence: Evidence, run: Run, primary: Finding, consequences: Sequence[Finding], held: Held, done: Work
) -> Told:
    nature = _nature()
    loses = nature.get(primary.family, "work")
    hung = [moment(finding, held) for finding in consequences if nature.get(finding.family) == "standstill"]
    stopped = _stopped(primary, held, done, loses)
    if stopped is held.end and done.finished is None and loses == "work" and primary.outcome is Outcome.FOUND:
        stopped = last_work(evidence, done) or next((since for since in hung if since is not None), stopped)
    return Told(run, primary, held, done, loses, stopped)


def _nature() -> Mapping[str, Loses]:
    """Family -> what its fault costs."""
    return {family.code: family.loses for family in families()}


def _parts(store: Store, told: Told, warnings: Sequence[Finding], trust: Trust) -> Iterator[Loss | Claim]:
    """Of the last attempt."""
    nature = _nature()
    run, primary, held, done, loses = told.run, told.primary, told.held, told.work, told.loses
    for finding in (primary, *warnings):
        if nature.get(finding.family) == "pause":
            yield from _pause(finding, held)
    if primary.outcome is not Outcome.FOUND and not told.failed:
        if run.disposition != "COMPLETED":
            yield claim("undecided")
        return
    if loses == "nothing":
        return
    if loses == "all":
        yield span("all", held, held.start, held.end)
        return
    yield from _lost(told)
    if loses == "pace":
        yield from slower(store, trust, held, moment(primary, held), _until(told), done.points)
    if held.going and loses != "pace":
        yield claim("still_going")


def _lost(told: Told) -> Iterator[Loss | Claim]:
    """The work that is gone, and the time after it: neither begins before the other ends."""
    held, done = told.held, told.work
    if told.loses == "result" and not told.failed:
        yield from _spoilt(told)
        return
    if told.loses == "repeat":
        yield from _repeated(told)
    if told.failed and done.told and not done.begun and told.loses != "standstill":
        yield span("startup", held, held.start, held.end)
        return
    if told.failed:
        yield from _unsaved(told)
    over = done.finished is not None and told.run.disposition in BAD_STATES
    if told.failed or told.loses == "standstill" or over:
        key = "hung" if told.loses == "standstill" else "finished" if over else "stopped"
        yield span(key, held, told.stopped, held.end)


def _stopped(primary: Finding, held: Held, done: Work, loses: Loses) -> Value:
    """When the work ended: at the fault, or at the last sign of work where that came later; else at the run's end."""
    since, sign = moment(primary, held), done.last_sign
    finished = done.finished
    if finished is not None and loses != "standstill":
        return held.end if finished.time is None else done.evidence["ends"].value(finished, "time", "time")
    if loses in ("pace", "result"):
        return held.end
    if since is not None and primary.outcome is Outcome.FOUND:
        late = sign is not None and since.number < sign.number <= held.end.number
        return sign if late and sign is not None else since
    if loses == "standstill":
        if sign is not None and sign.number <= held.end.number:
            return sign
        if done.told and not done.begun:
            return held.start
    return held.end


def _unsaved(told: Told) -> Iterator[Loss | Claim]:
    """From the last checkpoint, or from the start, to where the work ended."""
    held, done = told.held, told.work
    if not done.told:
        yield claim("no_log")
        return
    saved = done.saved(told.stopped.number)
    if saved is None:
        yield span("unsaved" if done.begun else "unbegun", held, held.start, told.stopped)
    elif saved.time is not None:
        yield span("since_save", held, saved.time, told.stopped)
    elif saved.step is not None and (lost := _steps_since(told, saved.step)) is not None:
        yield lost
    else:
        yield claim("undated")


def _steps_since(told: Told, saved: Value) -> Loss | None:
    last, pace = told.work.last_step, told.work.pace
    if last is None or pace is None or last.number < saved.number:
        return None
    return steps("since_step", told.held, saved, last, pace)


def _spoilt(told: Told) -> Iterator[Loss | Claim]:
    """From the last checkpoint before the fault, or from the fault, to the end."""
    held, done, since = told.held, told.work, moment(told.primary, told.held)
    at = told.primary.at
    if since is not None:
        saved = done.saved(since.number)
        if saved is not None and saved.time is not None:
            yield span("spoilt_since_save", held, saved.time, held.end)
        elif saved is not None:
            yield span("spoilt_undated", held, since, held.end)
        else:
            yield span("unsaved_before", held, held.start, since)
            yield span("spoilt", held, since, held.end)
        return
    point = done.before(at) if at is not None else None
    last, pace = done.last_step, done.pace
    if point is None or point.get("step") is None or last is None:
        yield claim("no_onset")
    elif pace is not None:
        first = done.step(point)
        if done.saved(held.end.number) is None:
            yield steps("unsaved_steps", held, derived(0, first), first, pace)
        yield steps("spoilt_steps", held, first, last, pace)
    else:
        first = done.step(point)
        if done.saved(held.end.number) is None:
            yield _share_before(told, first, last)
        yield _share(told, first, last)


def _share(told: Told, first: Value, last: Value) -> Loss:
    """So many of the run's steps, as a share of its time: where nothing tells how long a step took."""
    held = told.held
    lasted = length(held.start, held.end)
    part = max(0.0, last.number - first.number) / last.number if last.number > 0 else 0.0
    seconds = derived(round(part * lasted.number), lasted, first, last, unit="s")
    lost = hours(held.gpus, seconds)
    values = {"gpus": held.gpus, "lasted": lasted, "first": first, "last": last, "hour": hour(lasted), "hours": lost}
    return Loss("spoilt", lost, claim("spoilt_share", first=first, last=last), claim("by_share", **values),
                claim("assume_even"))  # fmt: skip


def _repeated(told: Told) -> Iterator[Loss | Claim]:
    """Steps that the run before this one had done already."""
    done = told.work
    parents = done.evidence["parents"]
    counted = [row for row in parents.events if isinstance(row.get("step"), (int, float))]
    own = [row for row in done.points if isinstance(row.get("step"), (int, float))]
    if not counted or len(own) < 2:
        if told.primary.variant == "silent" and done.begun:
            yield claim("no_parent")
        return
    reached, first, last = parents.value(counted[-1], "step"), done.step(own[0]), done.step(own[-1])
    until = reached if reached.number < last.number else last
    if until.number <= first.number:
        return
    pace = done.pace
    if pace is None:
        yield _share_repeated(told, until, last)
    else:
        yield steps("repeated", told.held, derived(0, first), until, pace)


def _share_before(told: Told, until: Value, last: Value) -> Loss:
    lost, formula = _share_to(told, until, last)
    return Loss("work", lost, claim("unsaved_steps", last=until), formula, claim("assume_unsaved"))


def _share_repeated(told: Told, until: Value, last: Value) -> Loss:
    lost, formula = _share_to(told, until, last)
    what = claim("repeated", first=derived(0, until), last=until)
    return Loss("repeated", lost, what, formula, claim("assume_even"))


def _share_to(told: Told, until: Value, last: Value) -> tuple[Value, Claim]:
    """The steps up to one, as a share of the run's time."""
    held = told.held
    lasted = length(held.start, held.end)
    seconds = derived(round(min(1.0, until.number / last.number) * lasted.number), lasted, until, last, unit="s")
    lost = hours(held.gpus, seconds)
    values = {"gpus": held.gpus, "lasted": lasted, "first": until, "last": last, "hour": hour(lasted), "hours": lost}
    return lost, claim("by_share_of", **values)


def _until(told: Told) -> Value | None:
    """Up to when a slow run's time counts as slow: what is thrown away counts as that. None: all of it is."""
    if not told.failed:
        return told.held.end if told.work.last_sign is None else told.work.last_sign
    saved = told.work.saved(told.stopped.number)
    return None if saved is None else saved.time


def _pause(finding: Finding, held: Held) -> Iterator[Loss]:
    since = moment(finding, held)
    if since is not None and finding.until is not None:
        until = Value(min(finding.until, held.end.number), since.cites, "time")
        yield span("paused", held, since, until)
