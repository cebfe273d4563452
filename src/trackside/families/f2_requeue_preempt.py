"""Preempted or requeued by the scheduler.

Meaning
-------
A job of higher priority evicted this one, or the scheduler, an operator or the job itself requeued it. It is an
event in the run's history even if the job completed later.

What it looks like
------------------
PREEMPTED or REQUEUED in the accounting, several rows under one id, Restarts above zero, "DUE TO PREEMPTION" or
"DUE TO JOB REQUEUE" in the output, SIGTERM to all tasks and the launcher's teardown traceback after it.

Not this family when
--------------------
- A user or an operator canceled the job.
- The launcher restarted its workers within one attempt.
- A node failed and the job was requeued for that: the node is the cause.

Impact
------
Low if the job ran again and completed: the work since the last checkpoint. Otherwise the run is lost until it
is resubmitted.

Do next
-------
Nothing to debug. Save a checkpoint on SIGTERM, use --requeue, or use a partition without preemption.

What it cannot decide
---------------------
Which job took the nodes.

References
----------
- [Slurm: preemption](https://slurm.schedmd.com/preempt.html)
- [Slurm: sbatch --requeue](https://slurm.schedmd.com/sbatch.html#OPT_requeue)
"""

from __future__ import annotations

from trackside.evidence import Missing
from trackside.facts.logs.ending import Ending
from trackside.family import Family
from trackside.finding import Certainty, Finding, Sentence, absent, action, present
from trackside.remedies import RESUBMIT_REQUEUABLE

PREEMPTED = Sentence("preempted by the scheduler")
PREEMPTED_RERUN = Sentence("preempted by the scheduler; the job ran again and completed")
REQUEUED = Sentence("the job was requeued")
REQUEUED_ITSELF = Sentence("the job requeued itself")
ATTEMPT_STATE = Sentence("the scheduler recorded {state} for an attempt")
SCHEDULER_NOTICE = Sentence("the scheduler's notice: {line}")
CONTROLLER_STATE = Sentence("the controller logged the job as {state}")
RESTARTS = Sentence("restarts of the job: {restarts}")
REQUESTED_BY_APPLICATION = Sentence("the application requested the requeue itself: {line}")
LAST_ATTEMPT = Sentence("the last attempt is recorded as {state}")
NEXT_ATTEMPT_COMPLETED = Sentence("the scheduler ended an attempt; the last one completed")
SCHEDULER_ENDED_RUN = Sentence("the scheduler ended the run; the job is not at fault")
OWN_REQUEUE_WORKED = Sentence("the application's own requeue worked as intended")
OTHER_JOB_UNKNOWN = Sentence("which job took the nodes")
NOTHING_TO_DEBUG = Sentence("nothing to debug; make sure that checkpoints are saved often enough")
RESUBMIT = Sentence(
    "resubmit it with the same options, from the last checkpoint if there is one, and allow Slurm to requeue it"
)
RESUBMIT_TO_OTHER = Sentence("resubmit it with the same options, from the last checkpoint if there is one")
ONE_ATTEMPT = Sentence("one attempt was recorded ({state}), with no requeue or preemption")


def judge(ending: Ending) -> Finding | Missing:
    """Judge by the attempts and the notices, else by the controller's log; name the number of restarts and how the last
    attempt ended."""
    if ending.missing_end is not None:
        return ending.missing_end
    jobs, state = ending.jobs, ending.state
    attempts = [row for row in jobs.records if row.get("state") in ("PREEMPTED", "REQUEUED", "SPECIAL_EXIT")]
    notices = [row for row in ending.notices.events if row.get("reason") in ("preemption", "requeue")]
    shows = [ATTEMPT_STATE(state=jobs.value(row, "state")) for row in attempts[:1]]
    shows += [SCHEDULER_NOTICE(line=ending.notices.value(row, "text")) for row in notices[:1]]
    if not shows:
        changes = [row for row in ending.changes.events if row.get("state") in ("requeued", "preempted")]
        shows += [CONTROLLER_STATE(state=ending.changes.value(row, "state")) for row in changes[:1]]
    again = [row for row in jobs.records if isinstance(row.get("restarts"), int) and row.get("restarts")]
    shows += [RESTARTS(restarts=jobs.value(row, "restarts")) for row in again[-1:]]
    # The application's own request counts only if the requeue happened.
    if shows or state is None or state.value in ("REQUEUED", "PENDING"):
        shows += [
            REQUESTED_BY_APPLICATION(line=ending.requests.value(row, "text")) for row in ending.requests.events[-1:]
        ]
    if not shows and state is not None:
        return absent(ONE_ATTEMPT(state=state))
    if not shows:
        return Missing("no scheduler record of the job was given") if ending.own_end is None else absent(ending.own_end)
    over = state is not None and state.value == "COMPLETED"
    if state is not None and (over or ending.job not in attempts):
        shows.append(LAST_ATTEMPT(state=state))
    preempted = any(row.get("state") == "PREEMPTED" for row in attempts)
    preempted |= any(row.get("reason") == "preemption" for row in notices)
    times = [*(row.get("end") for row in attempts), *(row.time for row in notices)]
    return present(
        Certainty.ESTABLISHED if attempts or notices else Certainty.SUPPORTED,
        "scheduler",
        shows,
        headline=(
            PREEMPTED_RERUN
            if preempted and over
            else PREEMPTED
            if preempted
            else REQUEUED_ITSELF
            if ending.requests
            else REQUEUED
        )(),
        implies=[
            NEXT_ATTEMPT_COMPLETED() if over else SCHEDULER_ENDED_RUN(),
            *([OWN_REQUEUE_WORKED()] if ending.requests and not preempted else []),
        ],
        cannot_decide=[OTHER_JOB_UNKNOWN()] if preempted else [],
        actions=[
            action(NOTHING_TO_DEBUG)
            if over
            else action(RESUBMIT, *RESUBMIT_REQUEUABLE)
            if ending.by_slurm
            else action(RESUBMIT_TO_OTHER)
        ],
        since=min((float(time) for time in times if isinstance(time, (int, float))), default=None),
        at=notices[0].at if notices else None,
        variant="preempted" if preempted else "requeued",
    )


FAMILY = Family(
    code="F2",
    id="requeue-preempt",
    title="Preempted or requeued by the scheduler",
    example=("preempted", "timeline"),
    judge=judge,
    cost_kind="repeated",
    explains=("H3", "A2", "H1", "C2"),
    rivals=("F1", "H1"),
    collect=("sacct -D of the job: every attempt, with Restarts",),
)
