"""Nodes taken out of service: which of the scheduler's records of nodes speak of a run.

They are records of its nodes, in its time or soon after. A record without a time of its reason, and one of a run
without times, can't be placed: the family has to.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import number
from trackside.model import Record, Run
from trackside.query import events, record


@dataclass(frozen=True)
class Limits:
    """How long after a run's end a node may be taken out for what happened in it."""

    noticed_s: float = 180.0
    """Slurm waits half a minute for processes to end and a minute more before it gives them up, and health checks
    follow the job's epilog."""
    torn_down_s: float = 30.0
    """The same where the scheduler ended the run itself, for a reason of its own: while it was torn down (KillWait)."""


@dataclass(frozen=True, eq=False)
class DrainedNodes:
    """The scheduler's records of the run's nodes."""

    frame: Frame
    rows: tuple[Record, ...]
    """Those of the run."""
    margin_s: float
    """How long after the run's end a node may be given up for having been lost in it. Of a run that failed by itself
    the controller may not know yet; one that it ended for a lost node ended when it knew, and what befalls a node after
    a cancellation, a time limit or a preemption explains none of these."""
    states: Frame
    """What the scheduler's log says of nodes, of any."""


@fact({"nodes": record("node"), "states": events("node_state")}, limits=Limits())
def drained_nodes(evidence: Evidence, ending: Ending, run: Run, limits: Limits) -> DrainedNodes:
    """Of the records of nodes; nothing is needed."""
    frame, job = evidence["nodes"], ending.job
    end = run.end if run.end is not None or job is None else number(job, "end")
    margin_s = limits.noticed_s if job is None or job.get("state") == "FAILED" else limits.torn_down_s
    own_rows = [row for row in frame.records if not run.nodes or row.get("name") in run.nodes]
    if never_placed(job, run):
        own_rows = []
    rows = (row for row in own_rows if _in_time(row, frame.records, _start(run), end, limits))
    return DrainedNodes(frame, tuple(rows), margin_s, evidence["states"])


def never_placed(job: Record | None, run: Run) -> bool:
    """Whether the scheduler's record shows that the job never had a node: none is named, and it never began."""
    if run.nodes or any(attempt.nodes for attempt in run.attempts) or job is None:
        return False
    return job.get("start") is None and run.start is None


def _in_time(row: Record, rows: tuple[Record, ...], start: float | None, end: float | None, limits: Limits) -> bool:
    time = number(row, "reason_time")
    if time is None:
        return True
    if start is not None and time < start:
        return False
    if end is None or time <= end:
        return True
    if time > end + limits.noticed_s:
        return False
    # A node that was in service again after the run was well after it: a later reason is another's.
    same_node = (other for other in rows if other.get("name") == row.get("name"))
    return not any((back := number(other, "reason_end")) is not None and end <= back <= time for other in same_node)


def _start(run: Run) -> float | None:
    """When the first attempt began."""
    starts = [start for start in (run.start, *(attempt.start for attempt in run.attempts)) if start is not None]
    return min(starts, default=None)
