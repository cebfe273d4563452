"""Drained nodes: which of the scheduler's node records concern a run.

They are records of its nodes, during its time or soon after. A record without a time of its reason, or of a run without
times, cannot be dated; the family decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.facts.training.learning import numeric_field
from trackside.model import Event, Record, Run
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
    logged: tuple[Event, ...] = ()
    """The log's reports that a node of the run was drained or set down, at the same times."""

    @property
    def reports(self) -> list[tuple[Frame, Record | Event, Value, Value | None]]:
        """Every such report, the records first: its frame and row, the node's name and the reason, if it gives one.
        ``sinfo -R`` cuts reasons: one that another report of the node has in full is left out."""
        sources = ((self.frame, self.rows, "name"), (self.states, self.logged, "node"))
        reports = [
            (frame, row, frame.value(row, name), frame.value(row, "reason") if row.get("reason") else None)
            for frame, rows, name in sources
            for row in rows
        ]
        reasons = [(str(node.value), str(reason.value)) for _, _, node, reason in reports if reason is not None]

        def is_cut(node: Value, reason: Value | None) -> bool:
            names = [other for other_node, other in reasons if other_node == str(node.value)]
            text = "" if reason is None else str(reason.value)
            return bool(text) and any(other != text and other.startswith(text) for other in names)

        return [report for report in reports if not is_cut(report[2], report[3])]

    def returned(self, node: str, time: float | None) -> bool:
        """Whether a node was back in service after ``time`` (POSIX seconds)."""
        ends = (numeric_field(row, "reason_end") for row in self.frame.records if row.get("name") == node)
        ups = (row.time for row in self.states.events if row.node == node and row.get("state") == "up")
        return any(end is not None and (time is None or end >= time) for end in (*ends, *ups))


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
    states = evidence["states"]
    logged = tuple(
        row for row in states.events if row.node in run.nodes and _is_logged_in_time(row, run, end, margin_s)
    )
    return DrainedNodes(frame, tuple(rows), margin_s, states, logged)


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


def _is_logged_in_time(row: Event, run: Run, end: float | None, margin_s: float) -> bool:
    """Whether the scheduler's log reports a node drained or down during the run or soon after."""
    start = _start(run)
    if row.get("state") not in ("drain", "down") or row.time is None or (start is not None and row.time < start):
        return False
    return end is None or row.time <= end + margin_s


def _start(run: Run) -> float | None:
    """When the first attempt began."""
    starts = [start for start in (run.start, *(attempt.start for attempt in run.attempts)) if start is not None]
    return min(starts, default=None)
