"""Unknown: no family fits what was seen.

Meaning
-------
The run ended, or was left, in a way that none of the other families explains with the evidence given.
It is an answer, not a failure: naming a cause that the evidence does not carry would be worse.

What it looks like
------------------
Logs without an exception, a signal or a scheduler's word; or only signs that belong to teardown.

Not this when
-------------
Any other family is found.

Impact
------
Somebody has to look by hand; the verdict lists what was seen and what would settle it.

Do next
-------
Collect what the families named as unknown ask for, and diagnose again.

What it cannot tell
-------------------
Everything but what was seen.

References
----------
None.
"""

from __future__ import annotations

from trackside.diagnose.family import Evidence, Family, action, claim, found, unknown
from trackside.model import Certainty, Finding, Run
from trackside.query import events, record

COLLECT = (
    "the job's whole output (slurm-<id>.out, every rank's log)",
    "sacct -P -j <id> --format=ALL and scontrol show job <id>",
    "dmesg -T of the job's nodes",
)


def judge(evidence: Evidence, run: Run, limits: None) -> Finding:
    """Say what was seen last, so that the reader has a place to start."""
    logs, jobs = evidence["logs"], evidence["jobs"]
    shows = [claim("last_line", line=logs.value(row, "last_line")) for row in logs.events[-1:]]
    shows += [claim("state", state=jobs.value(job, "state")) for job in jobs.records[-1:]]
    if not shows:
        return unknown(["any log or record of the run"], COLLECT)
    return found(Certainty.POSSIBLE, "unknown", shows, implies=[claim("nothing_fits")], actions=[action("collect")])


FAMILY = Family(
    code="U0",
    id="unknown",
    title="Unknown: no family fits",
    asks={"logs": events("log_activity"), "jobs": record("job")},
    needs=(),
    says={
        "last_line": "the log's last line is: {line}",
        "state": "the scheduler recorded {state}",
        "nothing_fits": "nothing that was seen names a cause",
        "collect": "collect what the open families below ask for, and diagnose again",
    },
    judge=judge,
    collect=COLLECT,
)
