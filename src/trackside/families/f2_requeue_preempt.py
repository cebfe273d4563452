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

from trackside.evidence import Missing
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.requeues import Requeues
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, Sentence, absent, action, found

STATE = Sentence("the scheduler recorded {state} for an attempt")
NOTICE = Sentence("the notice reads: {line}")
CHANGE = Sentence("the controller logged the job as {state}")
RESTARTS = Sentence("restarts of the job: {restarts}")
OWN = Sentence("the application asked for the requeue itself: {line}")
FINAL = Sentence("the last attempt is recorded as {state}")
RECOVERED = Sentence(
    "the scheduler ended an attempt, not a fault; the rerun made up for it, and what was done twice is the cost"
)
GONE = Sentence("the scheduler ended the run, not a fault of the job")
BY_ITSELF = Sentence("the application's own requeue worked as it was meant to")
WHO = Sentence("which job took the nodes")
NOTHING = Sentence("nothing to debug; make sure that checkpoints are recent enough")
RESUBMIT = Sentence("submit it again from its last checkpoint, with requeueing allowed")
ONE_ATTEMPT = Sentence("one attempt was recorded, as {state}, with no requeue or preemption")


def judge(requeues: Requeues, ending: Ending) -> Finding | Missing:
    """Attempts, states and notices; and whether the last attempt made up for it."""
    if ending.unrecorded is not None:
        return ending.unrecorded
    state = ending.state
    # The application's own request counts only if it did not come to nothing.
    waits = state is None or state.value in ("REQUEUED", "PENDING")
    request = requeues.request if requeues.by_scheduler or waits else None
    shows = _shows(requeues, ending)
    shows += [] if request is None else [OWN(line=request)]
    if not shows and state is not None:
        return absent(ONE_ATTEMPT(state=state))
    if not shows:
        return Missing("no scheduler record of the job was given") if ending.own_end is None else absent(ending.own_end)
    over = state is not None and state.value == "COMPLETED"
    if state is not None and (over or ending.job not in requeues.attempts):
        shows.append(FINAL(state=state))
    by_itself = requeues.request is not None and not requeues.preempted
    return found(
        Certainty.ESTABLISHED if requeues.attempts or requeues.notices else Certainty.SUPPORTED,
        "scheduler",
        shows,
        implies=[RECOVERED() if over else GONE(), *([BY_ITSELF()] if by_itself else [])],
        cannot_decide=[WHO()] if requeues.preempted else [],
        actions=[action(NOTHING if over else RESUBMIT)],
        since=requeues.first_time,
        at=requeues.notices[0].at if requeues.notices else None,
        variant="preempted" if requeues.preempted else "requeued",
    )


def _shows(requeues: Requeues, ending: Ending) -> list[Claim]:
    """What the scheduler says: accounting, notices, else the controller's log; and how often it restarted the job."""
    shows = [STATE(state=ending.jobs.value(row, "state")) for row in requeues.attempts[:1]]
    shows += [NOTICE(line=ending.notices.value(row, "text")) for row in requeues.notices[:1]]
    if not shows and requeues.change is not None:
        shows.append(CHANGE(state=requeues.change))
    return shows if requeues.restarts is None else [*shows, RESTARTS(restarts=requeues.restarts)]


FAMILY = Family(
    code="F2",
    id="requeue-preempt",
    title="Requeued or preempted by the scheduler",
    pictured=("preempted", "timeline"),
    judge=judge,
    loses="repeat",
    explains=("H3", "A2", "H1", "C2"),
    rivals=("F1", "H1"),
    collect=("sacct -D of the job: every attempt, with Restarts",),
)
