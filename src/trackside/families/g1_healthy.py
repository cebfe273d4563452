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
The job itself calls its end aborted: that is said, and health can't be verified.
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

from trackside.evidence import Evidence, Value, derived
from trackside.facts import maths
from trackside.facts.gpu.compute import COMPUTE, COMPUTE_GOING, COMPUTE_SAYS, Limits, Work, examined
from trackside.facts.gpu.signals import STANDSTILL
from trackside.facts.logs.ending import (
    BAD_STATES,
    ENDING,
    OWN_END_SAYS,
    abnormal_end,
    completed,
    disposition,
    ending,
    own_end,
    still_running,
)
from trackside.facts.logs.exceptions import unhandled
from trackside.facts.training.learning import (
    LEARNING,
    Curve,
    curve,
    number,
    steps_done,
    steps_planned,
    training_points,
)
from trackside.facts.training.loss_curve import GAUGES, points_of
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Run
from trackside.query import events

NOBODY: Culprit = "none"
COLLECT = (
    "the job's whole output, so that its end and its loss can be read",
    "sacct for the final state",
    "GPU activity and error counters of the run",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Completed, or at least unharmed as far as the log goes; then what the GPUs and the loss say."""
    bad = abnormal_end(evidence)
    said_done = [row for row in evidence["ends"].events if row.get("status") == "success"]
    if bad is not None and (disposition(evidence) is not None or not said_done or evidence["notices"]):
        return absent(claim("ended_badly", how=bad))
    if run.disposition in BAD_STATES and bad is None:
        return unknown(["records that agree on how it ended"], COLLECT)
    exceptions = evidence["exceptions"]
    raised = [row for row in exceptions.events if row.get("about") not in ("signal", "wrapper")]
    good = completed(evidence)
    open_ = unhandled(raised, evidence["progress"].events)
    if open_ and (good is None or not evidence["jobs"]):
        return absent(claim("raised", type=exceptions.value(open_[0], "type")))
    work = examined(evidence, run, limits, good is not None)
    if work.against is not None:
        return absent(work.against)
    line = curve(points_of(evidence))
    scored = _evaluated(evidence)
    if not line.points and not scored and good is None:
        return unknown(["both an end and readable progress"], COLLECT)
    shows = [claim("completed", how=good)] if good is not None else []
    closing = own_end(evidence)
    aborted = good is None and closing is not None and ending(evidence).aborted_itself
    if aborted and closing is not None:
        shows.append(closing)
    if bad is not None:
        shows += [claim("said_done", line=evidence["ends"].value(said_done[-1], "text")), claim("teardown", how=bad)]
    done = steps_done(evidence["progress"], evidence["ends"])
    planned = steps_planned(evidence["progress"], evidence["plans"])
    if done is not None:
        shows.append(claim("done", steps=done))
    shows += [*work.shows, *([work.unused] if work.unused is not None else [])]
    if line.finite or (evidence.has("progress") and not scored):
        shows += _learning(line)
    shows += [*scored, *work.clean, *work.unclean]
    learned = len(line.finite) > 1 or any(each.key == "evaluated" for each in scored)
    variant = "unverifiable" if not learned or aborted else "slow" if work.slow else "healthy"
    unsure = _unsure(work, good if not aborted else closing, done, planned, learned)
    unsure += [claim("why_aborted")] if aborted else []
    sound = good is not None and (line.fell or any(each.key == "evaluated" for each in scored))
    implied = (
        "called_aborted"
        if aborted
        else "no_fault"
        if not sound
        else variant
        if work.complete or variant == "slow"
        else "unmeasured"
    )
    implies = [claim("unclean" if work.unclean and implied == "unmeasured" else implied)]
    actions = [action("print_loss")] if not learned else [action("speed" if variant == "slow" else "nothing")]
    if good is None and not evidence.has("progress"):
        actions = [action("tell_end")]
    if work.unclean:
        actions = [*(each for each in actions if each.key != "nothing"), action("test_gpu")]
    if work.unused is not None:
        implies.append(claim("wasted"))
        actions = [*(each for each in actions if each.key != "nothing"), action("fewer")]
    return found(
        _certainty(evidence, line, good, bad, work),
        NOBODY,
        shows,
        implies=implies,
        cannot_decide=unsure,
        actions=actions,
        variant=variant,
    )


def _certainty(evidence: Evidence, line: Curve, good: Value | None, bad: Value | None, work: Work) -> Certainty:
    """Not only COMPLETED: both the end and the learning must be shown for more than a hint; and for all certainty the
    work of the GPUs and that nothing failed on them."""
    if good is not None:
        whole = line.fell and len(line.finite) >= 5
        return Certainty.ESTABLISHED if whole and work.complete else Certainty.SUPPORTED
    if line.fell and evidence.has("progress") and not still_running(evidence) and bad is None:
        return Certainty.SUPPORTED  # curves alone don't say that it was not killed
    return Certainty.POSSIBLE


def _unsure(
    work: Work, end: Value | Claim | None, done: Value | None, planned: Value | None, learned: bool
) -> list[Claim]:
    """What was not measured or not seen."""
    unsure: list[Claim] = [] if learned else [claim("unverifiable")]
    unsure += [] if end is not None else [claim("no_end")]
    unsure += work.unsure if work.measured else [claim("hardware")]
    if not isinstance(end, Value) and planned is not None and _short(done, planned):
        unsure.append(claim("planned", planned=planned))
    return unsure


def _short(done: Value | None, planned: Value) -> bool:
    """Whether the steps that were seen are fewer than planned, as far as both are told."""
    told = [value.value for value in (done, planned) if value is not None and isinstance(value.value, (int, float))]
    return len(told) < 2 or told[0] < told[1]


def _evaluated(evidence: Evidence) -> list[Claim]:
    """What the evaluations' loss says, where there are two or more in one log: that of the training points, else the
    one with most."""
    frame = evidence["evaluations"]
    trained = {row.at.path for row in evidence["progress"].events}
    logs: dict[str, list[tuple[Event, float]]] = {}
    for row in frame.events:
        if (loss := number(row, "loss")) is not None and math.isfinite(loss):
            logs.setdefault(row.at.path, []).append((row, loss))
    told = max(logs.items(), key=lambda log: (log[0] in trained, len(log[1])), default=("", []))[1]
    if len(told) < 2:
        return []
    key = "evaluated" if maths.falling([loss for _, loss in told]) else "evaluated_level"
    return [claim(key, first=frame.value(told[0][0], "loss"), last=frame.value(told[-1][0], "loss"))]


def _learning(line: Curve) -> list[Claim]:
    """What the loss says; of a run that began anew, that this is its last life alone."""
    if not line.finite:
        points: Value = line.frame.reduce("count", unit="points")
        return [claim("no_loss", points=points)]
    at = [place for place, loss in enumerate(line.losses) if math.isfinite(loss)]
    first, last = line.loss(at[0]), line.loss(at[-1])
    key = "fell" if line.fell else "rose" if line.rose and line.level_has_meaning else "level"
    told = line.frame.reduce("count", "loss", unit="points")
    begun = training_points(line.frame)[0]
    if begun is line.points[0] or begun.get("loss") is None:
        return [claim(key, first=first, last=last, points=told)]
    own = derived(len(line.finite), told, unit="points")
    before = line.frame.value(begun, "loss")
    return [claim(key, first=first, last=last, points=own), claim("anew", place=line.place(at[0]), before=before)]


FAMILY = Family(
    code="G1",
    role="health",
    id="healthy",
    title="Healthy: no fault, and progress where it can be read",
    pictured=("healthy", "busy-wait"),
    asks={
        **LEARNING,
        **ENDING,
        **STANDSTILL,
        **GAUGES,
        **COMPUTE,
        "exceptions": events("exception"),
        "evaluations": events("evaluation"),
    },
    needs=(("progress", "jobs", "gauge_loss"),),
    says={
        **COMPUTE_SAYS,
        "completed": "the run came to its own end: {how}",
        "said_done": "the job said that its training was over: {line}",
        "teardown": "it did not leave cleanly after that: {how}",
        "done": "it did {steps}",
        "fell": "the loss fell from {first} to {last} over {points}",
        "level": "the loss went from {first} to {last} over {points}, no clear fall and no rise",
        "rose": "the loss went up from {first} to {last} over {points}",
        "anew": "that is the run's last life, which began again at {place}; its first one began with {before}",
        "evaluated": "the evaluation loss fell from {first} to {last}",
        "evaluated_level": "the evaluation loss went from {first} to {last}",
        "no_loss": "no loss could be read: {points} of progress",
        "healthy": "this is a healthy run, on evidence of its end, its learning, its work and clean hardware",
        "unmeasured": "by its end and its learning this is a healthy run; that its GPUs worked and stayed clean was "
        "not measured",
        "unclean": "by its end and its learning this is a healthy run; a GPU under it did not stay clean",
        "wasted": "the GPUs that did nothing were held for nothing",
        **OWN_END_SAYS,
        "called_aborted": "no fault was read, but the job itself doesn't call this end a success",
        "why_aborted": "why the job called its end aborted: its target may not have been reached",
        "no_fault": "nothing that was read speaks of a fault",
        "no_end": "how the run ended: the log does not show its end",
        "planned": "whether it reached the {planned} that were planned",
        "hardware": "GPU activity and error counters were not given",
        "slow": "this is a healthy run that used its GPUs little: slow, not broken",
        "speed": "look at the warnings for what holds it back, if it has to be faster",
        "unverifiable": "whether the model learned: training correctness is unverifiable from this output",
        "print_loss": "print the training loss at steps, so that learning can be verified",
        "fewer": "ask for as many GPUs as the job uses, or start a process for each of them",
        "test_gpu": "run the vendor's diagnostics on the GPU that is named before it gets another long job",
        "tell_end": "give what the job printed, and sacct: curves alone don't tell how it ended",
        "nothing": "nothing to do for this run",
        "ended_badly": "it did not end well: {how}",
        "raised": "it raised {type} and nothing shows that it went on",
    },
    going={
        **COMPUTE_GOING,
        "done": "it has done {steps} so far",
        "fell": "the loss fell from {first} to {last} over {points} so far",
        "level": "the loss went from {first} to {last} over {points} so far, no clear fall and no rise",
        "rose": "the loss went up from {first} to {last} over {points} so far",
        "evaluated": "the evaluation loss fell from {first} to {last} so far",
        "no_loss": "no loss could be read so far: {points} of progress",
        "no_fault": "nothing that was read so far speaks of a fault",
        "slow": "so far this is a healthy run that uses its GPUs little: slow, not broken",
        "no_end": "how the run will end: it goes on",
        "planned": "whether it will reach the {planned} that are planned",
        "unverifiable": "whether the model learns: training correctness is unverifiable from this output",
        "nothing": "nothing to do so far",
        "raised": "it raised {type} and nothing shows that it went on from there",
    },
    judge=judge,
    loses="nothing",
    limits=Limits(),
    rivals=("E1",),
    collect=COLLECT,
)
