"""Which of the scheduler's records of nodes speak of a run: of its nodes, in its time or soon after. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.evidence import Evidence
from trackside.facts.logs.ending import last_job
from trackside.model import Record, Run

NOTICED_S = 180.0
"""How long after a run's end a node may be taken out for what happened in it: Slurm waits half a minute for processes
to end and a minute more before it gives them up, and health checks follow the job's epilog."""
TORN_DOWN_S = 30.0
"""The same where the scheduler ended the run itself, for a reason of its own: while it was torn down (KillWait)."""


def never_placed(evidence: Evidence, run: Run) -> bool:
    """Whether the scheduler's record shows that the job never had a node: none is named, and it never began."""
    job = last_job(evidence["jobs"])
    if run.nodes or any(attempt.nodes for attempt in run.attempts) or job is None:
        return False
    return job.get("start") is None and run.start is None


def of_the_run(evidence: Evidence, run: Run) -> Iterator[Record]:
    """The records of its nodes, those of another time and of a job without nodes left out.

    A record without a time of its reason, and one of a run without times, can't be placed: the caller has to.
    """
    if never_placed(evidence, run):
        return
    rows = evidence["nodes"].records
    for row in rows:
        if (not run.nodes or row.get("name") in run.nodes) and _in_time(row, rows, evidence, run):
            yield row


def _in_time(row: Record, rows: tuple[Record, ...], evidence: Evidence, run: Run) -> bool:
    time, start, end = _number(row, "reason_time"), _start(run), _end(evidence, run)
    if time is None:
        return True
    if start is not None and time < start:
        return False
    if end is None or time <= end:
        return True
    if time > end + NOTICED_S:
        return False
    # A node that was in service again after the run was well after it: a later reason is another's.
    mine = (other for other in rows if other.get("name") == row.get("name"))
    return not any((back := _number(other, "reason_end")) is not None and end <= back <= time for other in mine)


def _start(run: Run) -> float | None:
    """When the first attempt began."""
    starts = [start for start in (run.start, *(each.start for each in run.attempts)) if start is not None]
    return min(starts, default=None)


def _end(evidence: Evidence, run: Run) -> float | None:
    job = last_job(evidence["jobs"])
    return run.end if run.end is not None or job is None else _number(job, "end")


def _number(row: Record, field: str) -> float | None:
    value = row.get(field)
    return float(value) if isinstance(value, (int, float)) else None
