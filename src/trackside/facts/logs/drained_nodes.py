"""Drained nodes: which of the scheduler's node records concern a run.

They are records of its nodes, during its time or soon after. A record without a time of its reason, or of a run without
times, cannot be dated; the family decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import numeric_field
from trackside.model import Record, Run
from trackside.query import events, record


@dataclass(frozen=True)
class Limits:
    """How long after a run's end a node may be drained for what happened in it."""

    max_drain_delay_s: float = 180.0
    """A node that was drained up to this long after the run's end was drained for it. Slurm waits half a minute for
    processes to end and another minute before it gives up on them; health checks follow the job's epilog."""
    max_drain_delay_after_stop_s: float = 30.0
    """The same bound if the scheduler ended the run for its own reason: a node drained during the shutdown
    (KillWait)."""


@dataclass(frozen=True, eq=False)
class DrainedNodes:
    """Nodes of the run that the scheduler drained or lost, during the run or soon after."""

    frame: Frame
    rows: tuple[Record, ...]
    """The run's records."""
    margin_s: float
    """How long after the run's end a node may be declared lost during the run. The controller may not know yet if a run
    failed by itself. If it ended the run for a lost node, it knew. What happens to a node after a cancellation, a time
    limit or a preemption does not explain these."""
    states: Frame
    """What the scheduler's log reports about any node."""


@fact({"nodes": record("node"), "states": events("node_state")}, limits=Limits())
def drained_nodes(evidence: Evidence, ending: Ending, run: Run, limits: Limits) -> DrainedNodes:
    """Needs no particular input; empty without node records."""
    frame, job = evidence["nodes"], ending.job
    end = run.end if run.end is not None or job is None else numeric_field(job, "end")
    margin_s = (
        limits.max_drain_delay_s if job is None or job.get("state") == "FAILED" else limits.max_drain_delay_after_stop_s
    )
    own_rows = [row for row in frame.records if not run.nodes or row.get("name") in run.nodes]
    if never_placed(job, run):
        own_rows = []
    rows = (row for row in own_rows if _is_in_time(row, frame.records, _start(run), end, limits))
    return DrainedNodes(frame, tuple(rows), margin_s, evidence["states"])


def never_placed(job: Record | None, run: Run) -> bool:
    """Whether the scheduler's record shows that the job never had a node: it names none and has no start."""
    if run.nodes or any(attempt.nodes for attempt in run.attempts) or job is None:
        return False
    return job.get("start") is None and run.start is None


def _is_in_time(row: Record, rows: tuple[Record, ...], start: float | None, end: float | None, limits: Limits) -> bool:
    time = numeric_field(row, "reason_time")
    if time is None:
        return True
    if start is not None and time < start:
        return False
    if end is None or time <= end:
        return True
    if time > end + limits.max_drain_delay_s:
        return False
    # A node that returned to service after the run was healthy; a later reason concerns another job.
    same_node = (other_row for other_row in rows if other_row.get("name") == row.get("name"))
    return not any(
        (returned := numeric_field(other_row, "reason_end")) is not None and end <= returned <= time
        for other_row in same_node
    )


def _start(run: Run) -> float | None:
    """When the first attempt began."""
    starts = [start for start in (run.start, *(attempt.start for attempt in run.attempts)) if start is not None]
    return min(starts, default=None)
