"""What the scheduler's rows and the log show of the end: drained nodes, cancellations, stop signals, requeues."""

from __future__ import annotations

import pytest

from tests.facts.logs.test_deaths import fact_of
from tests.families.rows import END, START, event, exception, job, notice, root
from trackside.facts.logs.cancellation import Cancellation
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.facts.logs.pending_job import PendingJob
from trackside.facts.logs.requeues import Requeues
from trackside.facts.logs.stop_signals import StopSignals
from trackside.model import Position, Record, Run

RUN = Run(id="7", start=START, end=END, nodes=("n1", "n2"))


def node(name: str, time: float | None, line: int = 1, **fields: float) -> Record:
    """A record of a node that was taken out at a time."""
    return Record("node", Position("sinfo.txt", line), "scheduler", {"name": name, "reason_time": time, **fields})


@pytest.mark.parametrize(
    ("name", "time", "of_the_run"),
    [
        ("n1", END - 10, True),
        ("n1", END + 170, True),
        ("n1", END + 190, False),
        ("n1", START - 1, False),
        ("n3", END - 10, False),
        ("n1", None, True),
    ],
)
def test_drained_nodes_are_those_of_the_run_and_its_time(name: str, time: float | None, of_the_run: bool) -> None:
    assert bool(fact_of(DrainedNodes, node(name, time), job("FAILED"), run=RUN).rows) is of_the_run


def test_a_node_that_was_in_service_again_is_drained_for_another() -> None:
    back, later = node("n1", END - 10, reason_end=END + 20), node("n1", END + 100, 2)
    assert [row.at.line for row in fact_of(DrainedNodes, back, later, job("FAILED"), run=RUN).rows] == [1]


def test_the_margin_after_the_end_is_shorter_if_the_scheduler_ended_the_run() -> None:
    assert (
        fact_of(DrainedNodes, job("FAILED"), run=RUN).margin_s > fact_of(DrainedNodes, job("TIMEOUT"), run=RUN).margin_s
    )


def test_a_notice_of_a_step_is_no_cancellation_of_a_job_that_failed() -> None:
    step = notice("cancelled", text="STEP 7.0 ON n1 CANCELLED AT 2026-01-01")
    assert fact_of(Cancellation, step).of_the_job(step)
    assert not fact_of(Cancellation, step, root("process_exit", 50, exit_code=1)).of_the_job(step)
    assert not fact_of(Cancellation, step, exception("ValueError", "no")).of_the_job(step)


def test_who_cancelled_a_job_is_told_from_its_owner() -> None:
    own = fact_of(Cancellation, job("CANCELLED", cancelled_by="1000", uid="1000")).sender
    other = fact_of(Cancellation, job("CANCELLED", cancelled_by="0", uid="1000")).sender
    assert (len(own), len(other)) == (1, 2)
    assert not fact_of(Cancellation, job("FAILED", cancelled_by="0", uid="1000")).sender


def test_a_stop_signal_after_a_failure_is_teardown() -> None:
    stop = event("signal_received", 60, signal=15)
    assert fact_of(StopSignals, stop).accounted is None
    assert fact_of(StopSignals, stop, root("process_exit", 50, exit_code=3)).accounted is not None
    escalated = event("process_exit", 70, signal=9)
    assert fact_of(StopSignals, stop, escalated).accounted is None
    assert fact_of(StopSignals, event("signal_received", 60, signal=10)).sign is None


def test_requeues_date_from_the_first() -> None:
    rows = (job("PREEMPTED", end=1500.0), job("REQUEUED", 3, start=1600.0, end=1700.0), notice("requeue", time=1501.0))
    found = fact_of(Requeues, *rows)
    assert (found.first_time, found.preempted, found.by_scheduler) == (1500.0, True, True)
    assert not fact_of(Requeues, job("COMPLETED"), event("requeue_requested", 5)).by_scheduler


def test_a_pending_job_takes_what_one_record_leaves_out_from_others() -> None:
    rows = (job("PENDING", start=9e9, reason="Priority"), job("PENDING", 3, reason="None", dependency="afterok:6"))
    waits = fact_of(PendingJob, *rows)
    assert waits.reason is not None
    assert waits.dependency is not None
    assert (waits.reason.value, waits.dependency.value) == ("Priority", "afterok:6")
