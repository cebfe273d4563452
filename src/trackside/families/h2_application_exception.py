"""Application exception in mid-training: the job's own code raised after steps had been done.

Meaning
-------
Training was under way, then a Python exception that the job did not handle ended a rank, and with it the run.

What it looks like
------------------
A traceback of the job's own after at least one completed step, no training point after it, a non-zero exit.
Other ranks then lose their peer and complain louder; the launcher sums it up as a failed child.

Not this when
-------------
Steps were printed after it: it was handled. No step had been done and the GPUs had not worked: that is a startup
crash. The exception is about GPU memory, a collective, a rendezvous, a checkpoint load, storage or an interrupt:
those have families of their own. The exception says that the loss is not finite: then the divergence is the cause.

Impact
------
What came after the last checkpoint.

Do next
-------
Read the frame that is named; mend the data, the configuration or the code, and resume.

What it cannot tell
-------------------
Whether the same input would fail again at the same step.

References
----------
The catalogue of failure families, A1.
"""

from __future__ import annotations

from collections.abc import Sequence

from trackside.evidence import Evidence, Value
from trackside.facts.gpu.signals import ACTIVITY
from trackside.facts.gpu.startup import worked_s
from trackside.facts.logs.ending import ENDING, abnormal_end, completed
from trackside.facts.logs.exceptions import type_and_message, unhandled
from trackside.facts.logs.fault_class import classify
from trackside.facts.logs.order import points_before
from trackside.facts.logs.restarts import RESTART_SAYS, RESTARTS, lived_on
from trackside.facts.training.learning import curve, training_points
from trackside.family import Family
from trackside.finding import Certainty, Finding, absent, action, claim, found
from trackside.model import Event, Role, Run
from trackside.query import events

OWN = ("application", "cuda", "dataloader", None)
"""What an exception of this family speaks of."""
TRAINING_S = 180.0
"""Of GPU work without a readable training point; what is shorter may be start-up (the same in that family)."""
OF_EITHER = ("unspecified launch failure", "unknown error")
"""CUDA errors that a card that is lost gives as well as a kernel that went astray (CUDA runtime, cudaError)."""
COLLECT = ("every rank's output with its tracebacks",)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """The earliest unhandled exception of the job's own, if a step was done before it."""
    exceptions, progress = evidence["exceptions"], evidence["progress"]
    points = training_points(progress)
    crashed = abnormal_end(evidence) is not None
    own = [row for row in unhandled(exceptions.events, progress.events, crashed=crashed) if row.get("about") in OWN]
    good = completed(evidence)
    if (lived := _survived(evidence, points)) is not None and (good is not None or not own):
        return lived
    if good is not None and evidence["jobs"]:
        return absent(claim("completed", how=good))
    if not own:
        return absent(claim("none", count=exceptions.reduce("count")))
    row = own[0]
    before = points_before(points, row)
    worked = None if before else _worked(evidence, run)
    if not before and worked is None and not _steps_summed(evidence):
        return absent(claim("no_step", type=exceptions.value(row, "type"), count=progress.reduce("count")))
    shows = [claim("raised", **type_and_message(exceptions, row))]
    line = curve(progress)
    if before and line.rows:
        shows.append(claim("after", place=line.place(-1), loss=line.loss(-1)))
    elif before:
        shows.append(claim("after_point", line=progress.value(before[-1], "text")))
    elif worked is not None:
        shows.append(claim("worked", seconds=worked))
    ranks = tuple(sorted({each.rank for each in own if each.rank is not None and _same(each, row)}))
    frame = row.get("user_frame") or row.get("frame")
    if frame is not None:
        shows.append(claim("frame", frame=exceptions.value(row, "user_frame" if row.get("user_frame") else "frame")))
    kind = classify(row).fault
    # A CUDA error may be the card's: without the kernel's word it stays open.
    open_ = row.get("about") == "cuda" and "kernel" not in evidence["xids"].covered
    either = open_ and any(text in str(row.get("message")) for text in OF_EITHER)
    return found(
        Certainty.SUPPORTED if open_ else Certainty.ESTABLISHED,
        "unknown" if either else "job",
        shows,
        implies=[] if either else [claim("own_code")],
        cannot_decide=[claim("card_or_code")] if either else [],
        actions=[action(f"mend_{kind}" if kind in ("data", "config", "env", "asset") else "mend")],
        since=row.time,
        at=row.at,
        ranks=ranks,
        nodes=(row.node,) if row.node else (),
        fault_class=kind,
        exception=(str(row.get("type")), str(row.get("message") or "")[:500]),
    )


def _survived(evidence: Evidence, points: Sequence[Event]) -> Finding | None:
    """An exception after which the launcher started the workers again: no cause, but it may come again."""
    exceptions = evidence["exceptions"]
    own = [row for row in exceptions.events if row.role is Role.ROOT and row.get("about") in OWN]
    for row in own:
        told = [] if row.get("logged") else lived_on(evidence, row, points)
        if told:
            return found(
                Certainty.SUPPORTED,
                "job",
                [claim("raised", **type_and_message(exceptions, row)), *told],
                implies=[claim("again")],
                actions=[action("mend")],
                since=row.time,
                at=row.at,
                ranks=() if row.rank is None else (row.rank,),
                exception=(str(row.get("type")), str(row.get("message") or "")[:500]),
                latent=True,
            )
    return None


def _steps_summed(evidence: Evidence) -> bool:
    """Whether a checkpoint or an evaluation shows that steps were done, though no point was printed."""
    return any(row.get("step") for name in ("saves", "evaluations") for row in evidence[name].events)


def _worked(evidence: Evidence, run: Run) -> Value | None:
    """For how long the GPUs had worked, where that was long enough to be training, whatever the log printed."""
    worked = worked_s(evidence, run)
    return worked if worked is not None and worked.number >= TRAINING_S else None


def _same(one: Event, other: Event) -> bool:
    return one.get("type") == other.get("type")


FAMILY = Family(
    code="H2",
    id="application-exception",
    title="Application exception in mid-training",
    pictured=("app-exception", "timeline"),
    asks={
        **ENDING,
        "xids": events("xid"),
        "exceptions": events("exception"),
        "progress": events("progress"),
        **RESTARTS,
        "saves": events("checkpoint_saved"),
        "evaluations": events("evaluation"),
        **ACTIVITY,
    },
    needs=("exceptions",),
    says={
        **RESTART_SAYS,
        "raised": "the job raised {type}: {message}",
        "after": "steps had been done: the last point is {place} with a loss of {loss}",
        "worked": "the GPUs had worked for {seconds} before it, though no training point could be read",
        "after_point": "training was under way: {line}",
        "frame": "it was raised at {frame}",
        "own_code": "the job's own code, data or configuration ended the run, not the cluster",
        "card_or_code": "whether the card or a kernel of the job failed: no kernel log of the node was given",
        "mend": "read the frame that is named, mend it and resume from the last checkpoint",
        "mend_data": "find the input that this step read, mend or drop it, and resume from the last checkpoint",
        "mend_config": "mend the setting that is named and resume from the last checkpoint",
        "mend_env": "mend the environment that is named and resume from the last checkpoint",
        "mend_asset": "make the file or repository that is named available and resume from the last checkpoint",
        "completed": "the run completed all the same: {how}",
        "none": "of {count:exceptions} in the log none is an unhandled one of the job's own",
        "no_step": "{type} came before any completed step; training points: {count}",
    },
    judge=judge,
    explains=("C1", "C2", "F3", "H1", "H3"),
    rivals=("A1", "E1"),
    collect=COLLECT,
)
