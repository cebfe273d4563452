"""Unknown: no family fits what was seen.

Meaning
-------
The run ended, or was left, in a way that none of the other families explains with the evidence given.
It is an answer, not a failure: naming a cause that the evidence does not carry would be worse.
A job that has not begun is no failure at all: there is nothing to explain but what it waits for.

What it looks like
------------------
Logs without an exception, a signal or a scheduler's word; or only signs that belong to teardown. A job in PENDING, with
Slurm's reason for it.

Not this when
-------------
Any other family is found.

Impact
------
Somebody has to look by hand; the verdict lists what was seen and what would settle it.

Do next
-------
Collect what the families named as unknown ask for, and diagnose again. Of a job that waits: what its reason asks for.

What it cannot tell
-------------------
Everything but what was seen. When a job that waits will begin.

References
----------
Slurm documentation, squeue and job reason codes.
"""

from __future__ import annotations

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.last_line import LastLine
from trackside.facts.logs.pending_job import PendingJob
from trackside.family import Family
from trackside.finding import Certainty, Finding, Sentence, action, found

PENDING = "Pending: the job has not begun"

WAITS = Sentence("the job has not begun: it is {state}, for the reason {reason}")
NO_REASON = Sentence("the job has not begun: it is {state}, and Slurm gives no reason yet")
MEANS = Sentence("that means that {meaning}")
WAITS_FOR = Sentence("it waits for other jobs: {dependency}")
SINCE = Sentence("it has waited since {time}")
NO_FAILURE = Sentence("nothing has failed: no node is taken and nothing has run")
WHEN = Sentence("when it will begin: Slurm's forecast changes with every job that is submitted or ends")
DO = {
    "wait": Sentence("wait; ask for its priority and for when Slurm expects to start it"),
    "mend": Sentence("change what it asks for, or submit it anew: as it is, it will not start"),
    "release": Sentence("release it once it may run"),
    "ask": Sentence("ask the cluster's operators: it will not start by itself"),
}
LOOK = Sentence("squeue --start -j {id}; scontrol show job -d {id}")
LAST_LINE = Sentence("the log's last line is: {line}")
STATE = Sentence("the scheduler recorded {state}", running="the scheduler has it as {state}")
NOTHING_FITS = Sentence("nothing that was seen names a cause", running="nothing that was seen so far names a fault")
COLLECT = Sentence("collect what the open families below ask for, and diagnose again")


def judge(pending: Maybe[PendingJob], last: LastLine, ending: Ending) -> Finding | Missing:
    """Say what was seen last, so that the reader has a place to start."""
    if not isinstance(pending, Missing):
        return _waiting(pending)
    jobs = ending.jobs
    shows = [] if last.line is None else [LAST_LINE(line=last.line)]
    shows += [STATE(state=jobs.value(job, "state")) for job in jobs.records[-1:]]
    if not shows:
        return Missing("any log or record of the run")
    return found(Certainty.POSSIBLE, "unknown", shows, implies=[NOTHING_FITS()], actions=[action(COLLECT)])


def _waiting(pending: PendingJob) -> Finding:
    """Why it waits, since when, and what Slurm's reason means."""
    shows = [NO_REASON(state=pending.state)]
    if pending.reason is not None:
        shows = [WAITS(state=pending.state, reason=pending.reason)]
        if pending.known is not None:
            shows.append(MEANS(meaning=derived(pending.known.meaning, pending.reason)))
    if pending.dependency is not None:
        shows.append(WAITS_FOR(dependency=pending.dependency))
    if pending.submitted is not None:
        shows.append(SINCE(time=pending.submitted))
    remedy = "wait" if pending.known is None else pending.known.remedy
    return found(
        Certainty.ESTABLISHED,
        "none",
        shows,
        implies=[NO_FAILURE()],
        cannot_decide=[WHEN()],
        actions=[action(DO[remedy], LOOK, id=pending.id)],
        variant="pending",
        title=PENDING,
    )


FAMILY = Family(
    code="U0",
    id="unknown",
    title="Unknown: no family fits",
    judge=judge,
    collect=(
        "the job's whole output (slurm-<id>.out, every rank's log)",
        "sacct -P -j <id> --format=ALL and scontrol show job <id>",
        "dmesg -T of the job's nodes",
    ),
)
