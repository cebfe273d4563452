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

from trackside.catalog.job_states import WAITING
from trackside.catalog.pending_reasons import pending_reason
from trackside.evidence import Evidence, Frame, derived
from trackside.facts.logs.ending import last_job
from trackside.family import Family
from trackside.finding import Certainty, Finding, action, claim, found, unknown
from trackside.model import Record, Run
from trackside.query import events, record

FIELDS = ("reason", "dependency", "submit")
COLLECT = (
    "the job's whole output (slurm-<id>.out, every rank's log)",
    "sacct -P -j <id> --format=ALL and scontrol show job <id>",
    "dmesg -T of the job's nodes",
)


PENDING = "Pending: the job has not begun"


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """Say what was seen last, so that the reader has a place to start."""
    logs, jobs = evidence["logs"], evidence["jobs"]
    last = last_job(jobs)
    if last is not None and last.get("state") in WAITING:
        return _waiting(jobs, last)
    shows = [claim("last_line", line=logs.value(row, "last_line")) for row in logs.events[-1:]]
    shows += [claim("state", state=jobs.value(job, "state")) for job in jobs.records[-1:]]
    if not shows:
        return unknown(["any log or record of the run"], COLLECT)
    return found(Certainty.POSSIBLE, "unknown", shows, implies=[claim("nothing_fits")], actions=[action("collect")])


def _waiting(jobs: Frame, last: Record) -> Finding:
    """Why it waits, since when, and what Slurm's reason means, in the words of the records that have some."""
    told = {name: row for row in (*jobs.records, last) for name in FIELDS if row.get(name) is not None}
    known = None
    if (row := told.get("reason")) is None:
        shows = [claim("no_reason", state=jobs.value(last, "state"))]
    else:
        reason = jobs.value(row, "reason")
        known = pending_reason(str(reason.value))
        shows = [claim("waits", state=jobs.value(last, "state"), reason=reason)]
        if known is not None:
            shows.append(claim("means", meaning=derived(known.meaning, reason)))
    if (row := told.get("dependency")) is not None:
        shows.append(claim("waits_for", dependency=jobs.value(row, "dependency")))
    if (row := told.get("submit")) is not None:
        shows.append(claim("since", time=jobs.value(row, "submit", "time")))
    return found(
        Certainty.ESTABLISHED,
        "none",
        shows,
        implies=[claim("no_failure")],
        cannot_decide=[claim("when")],
        actions=[action(f"do_{known.remedy}" if known is not None else "do_wait", "look", id=jobs.value(last, "id"))],
        variant="pending",
        title=PENDING,
    )


FAMILY = Family(
    code="U0",
    role="last_resort",
    id="unknown",
    title="Unknown: no family fits",
    asks={"logs": events("log_activity"), "jobs": record("job")},
    needs=(),
    says={
        "waits": "the job has not begun: it is {state}, for the reason {reason}",
        "no_reason": "the job has not begun: it is {state}, and Slurm gives no reason yet",
        "means": "that means that {meaning}",
        "waits_for": "it waits for other jobs: {dependency}",
        "since": "it has waited since {time}",
        "no_failure": "nothing has failed: no node is taken and nothing has run",
        "when": "when it will begin: Slurm's forecast changes with every job that is submitted or ends",
        "do_wait": "wait; ask for its priority and for when Slurm expects to start it",
        "do_mend": "change what it asks for, or submit it anew: as it is, it will not start",
        "do_release": "release it once it may run",
        "do_ask": "ask the cluster's operators: it will not start by itself",
        "look": "squeue --start -j {id}; scontrol show job -d {id}",
        "last_line": "the log's last line is: {line}",
        "state": "the scheduler recorded {state}",
        "nothing_fits": "nothing that was seen names a cause",
        "collect": "collect what the open families below ask for, and diagnose again",
    },
    going={
        "state": "the scheduler has it as {state}",
        "nothing_fits": "nothing that was seen so far names a fault",
    },
    judge=judge,
    collect=COLLECT,
)
