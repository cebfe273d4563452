"""Facts about the end of a run from scheduler records and the log: drained nodes, stop signals."""

from __future__ import annotations

import pytest

from tests.facts.logs.test_deaths import fact_of
from tests.families.rows import END, START, event, job, root
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.facts.logs.stop_request import StopRequest
from trackside.model import Position, Record, Run

RUN = Run(id="7", start=START, end=END, nodes=("n1", "n2"))


def node(name: str, time: float | None, line: int = 1, **fields: float) -> Record:
    """The record of a node that was drained at ``time``."""
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
def test_drained_nodes_must_be_of_the_run_and_in_its_time(name: str, time: float | None, of_the_run: bool) -> None:
    assert bool(fact_of(DrainedNodes, node(name, time), job("FAILED"), run=RUN).rows) is of_the_run


def test_a_node_back_in_service_is_drained_for_another_job() -> None:
    back, later = node("n1", END - 10, reason_end=END + 20), node("n1", END + 100, 2)
    assert [row.at.line for row in fact_of(DrainedNodes, back, later, job("FAILED"), run=RUN).rows] == [1]


def test_the_margin_after_the_end_is_shorter_if_the_scheduler_ended_the_run() -> None:
    assert (
        fact_of(DrainedNodes, job("FAILED"), run=RUN).margin_s > fact_of(DrainedNodes, job("TIMEOUT"), run=RUN).margin_s
    )


def test_a_stop_signal_after_a_failure_is_teardown() -> None:
    stop = event("signal_received", 60, signal=15)
    assert fact_of(StopRequest, stop).accounted is None
    assert fact_of(StopRequest, stop, root("process_exit", 50, exit_code=3)).accounted is not None
    escalated = event("process_exit", 70, signal=9)
    assert fact_of(StopRequest, stop, escalated).accounted is None
    assert fact_of(StopRequest, event("signal_received", 60, signal=10)).sign is None
