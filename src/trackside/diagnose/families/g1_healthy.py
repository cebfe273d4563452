"""Healthy: the run completed, did its steps, and the loss fell.

Meaning
-------
Positive evidence of health, not the mere absence of errors: the run came to its own end, steps were done, the GPUs
did real work, their error counters stayed clean, and the loss trended down.

What it looks like
------------------
COMPLETED with exit code zero, or the framework's own word that training is over; training points to the end
and a loss whose tail lies under its head; SM activity above its floor, or kernels launched, and counters of
uncorrectable errors that did not rise. Only all of these together establish it: without the GPUs' work or without
counters it is supported at most. An excerpt without an end can be healthy as far as it goes.

Not this when
-------------
Any fault family is found: then the run is not healthy whatever its exit code. A warning (a latent hardware
counter, a spike that recovered, data wait) is listed beside it and changes nothing. Progress that cannot be
read is "unverifiable", never healthy by guess.

Impact
------
None.

Do next
-------
Nothing; look at the warnings, if any.

What it cannot tell
-------------------
What was not measured: without metrics, whether the GPUs did the work and their counters stayed clean; and
whether the model is any good at its task.

References
----------
The catalogue of failure families, G1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.diagnose import maths
from trackside.diagnose.ending import ENDING, abnormal_end, completed, disposition, still_running
from trackside.diagnose.exceptions import unhandled
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.health import CLEAN, CLEAN_SAYS, clean
from trackside.diagnose.learning import LEARNING, Curve, curve, number, steps_done, steps_planned
from trackside.diagnose.sampled import GAUGES, points_of
from trackside.diagnose.signals import ACTIVITY, STANDSTILL, STILL_SAYS, watched
from trackside.diagnose.signals import Limits as Rest
from trackside.model import Certainty, Claim, Culprit, Finding, Run, Value
from trackside.query import derived, events

if TYPE_CHECKING:
    from trackside.diagnose.activity import Activity

NOBODY: Culprit = "none"
COLLECT = (
    "the job's whole output, so that its end and its loss can be read",
    "sacct for the final state",
    "GPU activity and error counters of the run",
)


@dataclass(frozen=True)
class Limits:
    """What counts as slow."""

    slow_duty: float = 0.6
    """Mean engine activity under which the GPUs idle noticeably."""
    slow_sm: float = 0.2
    """Mean SM activity under which they hardly work."""
    windows: int = 5
    """Windows of GPU activity below which a mean is chance."""


@dataclass(frozen=True)
class Work:
    """What the GPUs show of the run: work, and clean hardware."""

    measured: bool = False
    shows: tuple[Claim, ...] = ()
    """Work that was done."""
    slow: bool = False
    against: Claim | None = None
    """Why it can't be called healthy: no work, or a standstill."""
    clean: tuple[Claim, ...] = ()
    part: Claim | None = None
    """Which part of the run's GPUs this is, where it isn't all of them, or not to the end."""
    stand_in: Claim | None = None
    """What stands in for SM activity."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Completed, or at least unharmed as far as the log goes; then what the GPUs and the loss say."""
    bad = abnormal_end(evidence)
    said_done = [row for row in evidence["ends"].events if row.get("status") == "success"]
    if bad is not None and (disposition(evidence) is not None or not said_done or evidence["notices"]):
        return absent(claim("ended_badly", how=bad))
    exceptions = evidence["exceptions"]
    raised = [row for row in exceptions.events if row.get("about") not in ("signal", "wrapper")]
    good = completed(evidence)
    open_ = unhandled(raised, evidence["progress"].events)
    if open_ and (good is None or not evidence["jobs"]):
        return absent(claim("raised", type=exceptions.value(open_[0], "type")))
    work = _work(evidence, run, limits, good is not None)
    if work.against is not None:
        return absent(work.against)
    line = curve(points_of(evidence))
    scored = _evaluated(evidence)
    if not line.points and not scored and good is None:
        return unknown(["both an end and readable progress"], COLLECT)
    shows = [claim("completed", how=good)] if good is not None else []
    if bad is not None:
        shows += [claim("said_done", line=evidence["ends"].value(said_done[-1], "text")), claim("teardown", how=bad)]
    done = steps_done(evidence["progress"], evidence["ends"])
    planned = steps_planned(evidence["progress"], evidence["plans"])
    if done is not None:
        shows.append(claim("done", steps=done))
    shows += work.shows
    if line.finite or (evidence.has("progress") and not scored):
        shows.append(_learning(line))
    shows += [*scored, *work.clean]
    learned = len(line.finite) > 1 or any(each.key == "evaluated" for each in scored)
    variant = "unverifiable" if not learned else "slow" if work.slow else "healthy"
    unsure = _unsure(work, good, done, planned, learned)
    sound = good is not None and (line.fell or any(each.key == "evaluated" for each in scored))
    measured = bool(work.shows and work.clean and work.part is None)
    return found(
        _certainty(evidence, line, good, bad, work),
        NOBODY,
        shows,
        implies=[claim("no_fault" if not sound else variant if measured or variant == "slow" else "unmeasured")],
        cannot_decide=unsure,
        actions=[action("print_loss")] if not learned else [action("speed" if variant == "slow" else "nothing")],
        variant=variant,
    )


def _certainty(evidence: Evidence, line: Curve, good: Value | None, bad: Value | None, work: Work) -> Certainty:
    """Not only COMPLETED: both the end and the learning must be shown for more than a hint; and for all certainty the
    work of the GPUs and that nothing failed on them."""
    if good is not None:
        whole = line.fell and len(line.finite) >= 5
        measured = work.shows and work.clean and work.part is None
        return Certainty.ESTABLISHED if whole and measured else Certainty.SUPPORTED
    if line.fell and not still_running(evidence) and bad is None:
        return Certainty.SUPPORTED
    return Certainty.POSSIBLE


def _unsure(work: Work, good: Value | None, done: Value | None, planned: Value | None, learned: bool) -> list[Claim]:
    """What was not measured or not seen."""
    unsure: list[Claim] = [] if learned else [claim("unverifiable")]
    unsure += [] if good is not None else [claim("no_end")]
    if not work.measured:
        unsure.append(claim("hardware"))
    else:
        unsure += [] if work.shows else [claim("no_activity")]
        unsure += [each for each in (work.stand_in, work.part) if each is not None]
        unsure += [] if work.clean else [claim("no_counters")]
    if good is None and planned is not None and _short(done, planned):
        unsure.append(claim("planned", planned=planned))
    return unsure


def _work(evidence: Evidence, run: Run, limits: Limits, ended_well: bool) -> Work:
    """Real compute by SM activity, or what stands in for it; no work at all, or a standstill, speaks against health."""
    healthy = tuple(clean(evidence))
    seen = watched(evidence, run)
    if seen is None:
        return Work(bool(healthy), clean=healthy)
    from trackside.diagnose.duty import duty
    from trackside.diagnose.idle import all_along
    from trackside.diagnose.standstill import at_end

    idle = all_along(evidence, run, seen, Rest())
    if idle is not None:
        return Work(True, against=idle.shows[0])
    still = at_end(evidence, run, seen, Rest()) if not ended_well else None
    if still is not None and still.sure:
        return Work(True, against=still.shows()[0])
    spent = duty(evidence, seen, limits.windows)
    shows: list[Claim] = []
    stand_in: Claim | None = None
    if spent is not None and spent.sm is not None and seen.users.any():
        shows.append(claim("worked", sm=spent.sm))
        shows += [claim("launched", count=_level(evidence, seen, "launches"))] if seen.launches is not None else []
    elif seen.users.any() and seen.basis in ("launches", "collectives", "power"):
        level = _level(evidence, seen, seen.basis)
        shows.append(claim(f"stood_in_{seen.basis}", level=level))
        stand_in = claim("no_sm", what=derived(seen.basis, level))
    elif spent is not None and spent.busy is not None:
        stand_in = claim("only_busy", busy=spent.busy)
    slow = spent is not None and (
        (spent.busy is not None and spent.busy.number < limits.slow_duty)
        or (spent.sm is not None and spent.sm.number < limits.slow_sm)
    )
    return Work(True, tuple(shows), slow, None, healthy, _part(evidence, run, seen), stand_in)


def _part(evidence: Evidence, run: Run, seen: Activity) -> Claim | None:
    """GPUs of the run that were not measured, or not up to its end; None where all were."""
    from trackside.diagnose.coverage import STALE_S, sampled_within

    end, span = float(seen.times[-1]), max(STALE_S, 3 * seen.step)
    late = seen.watched[:, seen.times > end - span]
    measured = set(seen.named(row for row, sampled in enumerate(late) if sampled.any()))
    for counters in (evidence.grid(name) for name in CLEAN):
        if counters is not None:
            measured &= sampled_within(counters, end - span, end)
            break
    count = len(measured)
    held = run.n_gpus or 0
    grid = next(grid for name in ACTIVITY if (grid := evidence.grid(name)) is not None)
    if any(mig for (mig,) in grid.labels("mig")):
        held = 0  # instances are counted, not GPUs
    if count >= max(held, len(seen.gpus)):
        return None
    samples = grid.value("count")
    whole = derived(max(held, len(seen.gpus)), samples, unit="GPUs")
    return claim("part", seen=derived(count, samples), held=whole)


def _level(evidence: Evidence, seen: Activity, name: str) -> Value:
    """How much was launched or completed in all; the power drawn by the GPUs in use while they worked."""
    from trackside.diagnose.activity import middle

    grid = evidence.grid(name)
    assert grid is not None
    if name != "power" or seen.power is None:
        return grid.value("sum", unit="")
    level = float(middle(seen.power[seen.working & seen.users[:, None]]))
    return derived(round(level, 1), grid.value("median"), unit=grid.unit)


def _short(done: Value | None, planned: Value) -> bool:
    """Whether the steps that were seen are fewer than planned, as far as both are told."""
    told = [value.value for value in (done, planned) if value is not None and isinstance(value.value, (int, float))]
    return len(told) < 2 or told[0] < told[1]


def _evaluated(evidence: Evidence) -> list[Claim]:
    """What the evaluations' loss says, where there are two or more."""
    frame = evidence["evaluations"]
    told = [(row, loss) for row in frame.events if (loss := number(row, "loss")) is not None and math.isfinite(loss)]
    if len(told) < 2:
        return []
    key = "evaluated" if maths.falling([loss for _, loss in told]) else "evaluated_level"
    return [claim(key, first=frame.value(told[0][0], "loss"), last=frame.value(told[-1][0], "loss"))]


def _learning(line: Curve) -> Claim:
    """What the loss says."""
    if not line.finite:
        points: Value = line.frame.reduce("count", unit="points")
        return claim("no_loss", points=points)
    at = [place for place, loss in enumerate(line.losses) if math.isfinite(loss)]
    first, last = line.loss(at[0]), line.loss(at[-1])
    key = "fell" if line.fell else "rose" if line.rose and line.level_has_meaning else "level"
    return claim(key, first=first, last=last, points=line.frame.reduce("count", "loss", unit="points"))


FAMILY = Family(
    code="G1",
    id="healthy",
    title="Healthy: no fault, and progress where it can be read",
    asks={
        **LEARNING,
        **ENDING,
        **STANDSTILL,
        **GAUGES,
        **CLEAN,
        "exceptions": events("exception"),
        "evaluations": events("evaluation"),
    },
    needs=(("progress", "jobs", "gauge_loss"),),
    says={
        **STILL_SAYS,
        **CLEAN_SAYS,
        "worked": "the GPUs worked: SM activity {sm} (mean)",
        "launched": "{count} kernels were launched",
        "stood_in_launches": "the GPUs worked: {level} kernels were launched",
        "stood_in_collectives": "the GPUs worked: {level} collectives were completed",
        "stood_in_power": "the GPUs drew the power of work: {level} (median)",
        "completed": "the run came to its own end: {how}",
        "said_done": "the job said that its training was over: {line}",
        "teardown": "it did not leave cleanly after that: {how}",
        "done": "it did {steps}",
        "fell": "the loss fell from {first} to {last} over {points}",
        "level": "the loss went from {first} to {last} over {points}, no clear fall and no rise",
        "rose": "the loss went up from {first} to {last} over {points}",
        "evaluated": "the evaluation loss fell from {first} to {last}",
        "evaluated_level": "the evaluation loss went from {first} to {last}",
        "no_loss": "no loss could be read: {points} of progress",
        "healthy": "this is a healthy run, on evidence of its end, its learning, its work and clean hardware",
        "unmeasured": "by its end and its learning this is a healthy run; that its GPUs worked and stayed clean was "
        "not measured",
        "no_fault": "nothing that was read speaks of a fault",
        "no_end": "how the run ended: the log does not show its end",
        "planned": "whether it reached the {planned} that were planned",
        "hardware": "GPU activity and error counters were not given",
        "no_activity": "whether the GPUs did the work: nothing that was measured tells work from waiting",
        "no_sm": "how well the GPUs were used: SM activity was not measured, {what} stand in for it",
        "only_busy": "whether the GPUs worked or waited: they were busy {busy} of the time (mean), which proves "
        "no work",
        "no_counters": "whether the hardware stayed clean: no error counters were given",
        "part": "what all GPUs did: {seen} of {held} were measured up to the run's end",
        "slow": "this is a healthy run that used its GPUs little: slow, not broken",
        "speed": "look at the warnings for what holds it back, if it has to be faster",
        "unverifiable": "whether the model learned: training correctness is unverifiable from this output",
        "print_loss": "print the training loss at steps, so that learning can be verified",
        "nothing": "nothing to do",
        "ended_badly": "it did not end well: {how}",
        "raised": "it raised {type} and nothing shows that it went on",
    },
    judge=judge,
    limits=Limits(),
    rivals=("E1",),
    collect=COLLECT,
)
