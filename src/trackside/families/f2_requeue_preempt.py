"""Requeue or preemption: the scheduler took the nodes back or sent the job to the queue again.

Meaning
-------
A job of higher priority evicted this one, or the scheduler, an operator or the job itself put it back into the
queue. It is an event in the run's history even where the job completed later.

What it looks like
------------------
PREEMPTED or REQUEUED in the accounting, several rows under one id, Restarts above zero, "DUE TO PREEMPTION" or
"DUE TO JOB REQUEUE" in the output, SIGTERM to all tasks and the launcher's teardown trace after it.

Not this when
-------------
Somebody cancelled the job. The launcher restarted its workers within one attempt. A node failed and the job
was requeued for that: the node is the cause.

Impact
------
Low where the job ran again and completed: the work since the last checkpoint. Otherwise the run is lost until
it is submitted again.

Do next
-------
Nothing to debug. Save a checkpoint on SIGTERM, ask for --requeue, or use a partition that is not preempted.

What it cannot tell
-------------------
Which job took the nodes.

References
----------
Slurm documentation, preemption and the requeue options of sbatch.
"""

from __future__ import annotations

from trackside.evidence import Evidence
from trackside.facts.logs.ending import ENDING, OWN_END_SAYS, last_job, own_end
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Run
from trackside.query import events

COLLECT = ("sacct -D of the job: every attempt, with Restarts",)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """Attempts, states and notices; and whether the last attempt made up for it."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    shows: list[Claim] = []
    taken = [row for row in jobs.records if row.get("state") in ("PREEMPTED", "REQUEUED", "SPECIAL_EXIT")]
    told = [row for row in notices.events if row.get("reason") in ("preemption", "requeue")]
    changes = [row for row in evidence["changes"].events if row.get("state") in ("requeued", "preempted")]
    own = evidence["own"].events
    shows += [claim("state", state=jobs.value(row, "state")) for row in taken[:1]]
    shows += [claim("notice", line=notices.value(row, "text")) for row in told[:1]]
    if not told and not taken:
        shows += [claim("change", state=evidence["changes"].value(row, "state")) for row in changes[:1]]
    last = last_job(jobs)
    again = [row for row in jobs.records if isinstance(row.get("restarts"), int) and row.get("restarts")]
    shows += [claim("restarts", restarts=jobs.value(row, "restarts")) for row in again[-1:]]
    # The application's own request counts only if it did not come to nothing.
    requeued = bool(taken or told or changes or again)
    if own and (requeued or last is None or last.get("state") in ("REQUEUED", "PENDING")):
        shows.append(claim("own", line=evidence["own"].value(own[-1], "text")))
    if not shows:
        if last is not None:
            return absent(claim("one_attempt", state=jobs.value(last, "state")))
        closing = own_end(evidence)
        if closing is not None:
            return absent(closing)
        return unknown(["no scheduler record of the job was given"], COLLECT)
    preempted = any(row.get("state") == "PREEMPTED" for row in taken) or any(
        row.get("reason") == "preemption" for row in told
    )
    over = last is not None and last.get("state") == "COMPLETED"
    if last is not None and (over or last not in taken):
        shows.append(claim("final", state=jobs.value(last, "state")))
    times = [row.get("end") for row in taken] + [row.time for row in told]
    known = [float(time) for time in times if isinstance(time, (int, float))]
    self_made = bool(own) and not preempted
    return found(
        Certainty.ESTABLISHED if taken or told else Certainty.SUPPORTED,
        "scheduler",
        shows,
        implies=[claim("recovered" if over else "gone"), *([claim("by_itself")] if self_made else [])],
        cannot_decide=[claim("who")] if preempted else [],
        actions=[action("nothing" if over else "resubmit")],
        since=min(known) if known else None,
        at=told[0].at if told else None,
        variant="preempted" if preempted else "requeued",
    )


FAMILY = Family(
    code="F2",
    id="requeue-preempt",
    title="Requeued or preempted by the scheduler",
    pictured=("preempted", "timeline"),
    asks={**ENDING, "changes": events("job_state"), "own": events("requeue_requested")},
    needs=(("jobs", "notices"),),
    says={
        "state": "the scheduler recorded {state} for an attempt",
        "notice": "the notice reads: {line}",
        "change": "the controller logged the job as {state}",
        "restarts": "restarts of the job: {restarts}",
        "own": "the application asked for the requeue itself: {line}",
        "final": "the last attempt is recorded as {state}",
        "recovered": "the scheduler ended an attempt, not a fault; the rerun made up for it, and what was done "
        "twice is the cost",
        "gone": "the scheduler ended the run, not a fault of the job",
        "by_itself": "the application's own requeue worked as it was meant to",
        "who": "which job took the nodes",
        "nothing": "nothing to debug; make sure that checkpoints are recent enough",
        "resubmit": "submit it again from its last checkpoint, with requeueing allowed",
        "one_attempt": "one attempt was recorded, as {state}, with no requeue or preemption",
        **OWN_END_SAYS,
    },
    judge=judge,
    loses="repeat",
    explains=("H3", "A2", "H1", "C2"),
    rivals=("F1", "H1"),
    collect=COLLECT,
)
