"""Healthy: the run completed, did its steps, and the loss fell.

Meaning
-------
Positive evidence of health, not the mere absence of errors: the run came to its own end, steps were done, and
the loss trended down.

What it looks like
------------------
COMPLETED with exit code zero, or the framework's own word that training is over; training points to the end
and a loss whose tail lies under its head. An excerpt without an end can be healthy as far as it goes.

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

from trackside.diagnose import maths
from trackside.diagnose.ending import ENDING, abnormal_end, completed, disposition, still_running
from trackside.diagnose.exceptions import unhandled
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import LEARNING, Curve, curve, number, steps_done, steps_planned
from trackside.model import Certainty, Claim, Culprit, Finding, Run, Value
from trackside.query import events, metric

NOBODY: Culprit = "none"
COLLECT = (
    "the job's whole output, so that its end and its loss can be read",
    "sacct for the final state",
    "GPU activity and error counters of the run",
)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """Completed, or at least unharmed as far as the log goes; then what the loss says."""
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
    line = curve(evidence["progress"])
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
    if line.finite or not scored:
        shows.append(_learning(line))
    shows += scored
    variant = "healthy" if len(line.finite) > 1 or any(each.key == "evaluated" for each in scored) else "unverifiable"
    # Not only COMPLETED: both the end and the learning must be shown for more than a hint.
    certainty = Certainty.POSSIBLE
    if good is not None:
        certainty = Certainty.ESTABLISHED if line.fell and len(line.finite) >= 5 else Certainty.SUPPORTED
    elif line.fell and not still_running(evidence) and bad is None:
        certainty = Certainty.SUPPORTED
    unsure: list[Claim] = [claim("hardware")] if not evidence.has("sm") else []
    if good is None:
        unsure.insert(0, claim("no_end"))
        unsure += [claim("planned", planned=planned)] if planned is not None and _short(done, planned) else []
    if variant == "unverifiable":
        unsure.insert(0, claim("unverifiable"))
    return found(
        certainty,
        NOBODY,
        shows,
        implies=[claim("healthy" if good is not None and variant == "healthy" else "no_fault")],
        cannot_decide=unsure,
        actions=[action("print_loss")] if variant == "unverifiable" else [action("nothing")],
        variant=variant,
    )


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
        "exceptions": events("exception"),
        "evaluations": events("evaluation"),
        "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    },
    needs=(("progress", "jobs"),),
    says={
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
        "healthy": "this is a healthy run, on evidence of its end and of its learning",
        "no_fault": "nothing that was read speaks of a fault",
        "no_end": "how the run ended: the log does not show its end",
        "planned": "whether it reached the {planned} that were planned",
        "hardware": "GPU activity and error counters were not given",
        "unverifiable": "whether the model learned: training correctness is unverifiable from this output",
        "print_loss": "print the training loss at steps, so that learning can be verified",
        "nothing": "nothing to do",
        "ended_badly": "it did not end well: {how}",
        "raised": "it raised {type} and nothing shows that it went on",
    },
    judge=judge,
    rivals=("E1",),
    collect=COLLECT,
)
