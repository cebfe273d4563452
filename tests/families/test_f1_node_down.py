"""F1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.families.grids import (
    Cluster,
)
from tests.families.rows import (
    ABSENT,
    END,
    ESTABLISHED,
    FALLING,
    FOUND,
    START,
    SUPPORTED,
    curve,
    event,
    job,
    judge_store,
    keys,
    notice,
    outcome,
    points,
    primary,
    short_job,
    store,
)
from trackside.families import families
from trackside.finding import Certainty, Finding
from trackside.model import EventRole, Position, Record, Run
from trackside.verdict import engine
from trackside.verdict.arbiter import arbitrate


def test_f1_names_the_node() -> None:
    failure = notice("node_failure", node="n3", text="srun: error: Node failure on n3")
    rows = store(curve(FALLING), failure, short_job("NODE_FAIL"))
    finding = primary(rows, Run(nodes=("n2", "n3"), start=1000.0, end=2000.0))
    assert (finding.family, finding.nodes, finding.culprit) == ("F1", ("n3",), "infrastructure")


@pytest.mark.parametrize(("complained", "first"), [(1750.0, "F1"), (1250.0, "C2")])
def test_f1_explains_a_peer_lost_shortly_before_the_notice(complained: float, first: str) -> None:
    """Peers fail at once, the controller gives up on a node after SlurmdTimeout; an earlier hang is separate."""
    trained = curve(FALLING, time=lambda i: complained - 300 + 10 * i)
    lost = event("peer_lost", 700, EventRole.CASCADE, time=complained, text="Connection closed by peer", rank=0)
    failure = notice("node_failure", time=2000.0, node="n3", text="srun: error: Node failure on n3")
    rows = store(trained, lost, failure, short_job("NODE_FAIL"))
    both = [family for family in families() if family.code in ("C2", "F1")]
    findings = engine.judge_all(rows, Run(nodes=("n2", "n3"), start=900.0, end=2000.0, n_ranks=2), both)
    assert [finding.outcome for finding in findings] == [FOUND, FOUND]
    assert arbitrate(findings, both).primary.family == first


def node(state: str, when: float) -> Record:
    fields: dict[str, Any] = {"name": "n3", "state": state, "reason": "Not responding", "reason_time": when}
    return Record("node", Position("nodes.txt", 1), "scheduler", fields)


def test_f1_needs_a_node_that_failed_at_the_end_of_the_run() -> None:
    run = Run(nodes=("n3",), start=1000.0, end=2000.0)
    assert judge_store("F1", store(node("down", 2010.0), short_job("FAILED")), run).outcome is FOUND
    assert judge_store("F1", store(node("down", 9000.0), short_job("FAILED")), run).outcome is ABSENT
    assert judge_store("F1", store(node("down", 2010.0), short_job("COMPLETED")), run).outcome is ABSENT
    assert (
        judge_store("F1", store(node("down", 2010.0), short_job("FAILED")), Run(nodes=("n1",), end=2000.0)).outcome
        is ABSENT
    )


@pytest.mark.parametrize(("state", "after", "expected"), [
    ("FAILED", 150, True), ("FAILED", 287, False), ("NODE_FAIL", 73, False), ("CANCELLED", 144, False),
    ("CANCELLED", 20, True),
])  # fmt: skip
def test_a_node_down_after_the_run_counts_within_a_margin(state: str, after: float, expected: bool) -> None:
    fields: dict[str, Any] = {"name": "n2", "reason": "Not responding", "reason_time": END + after, "state": "down"}
    run = Run("7", nodes=("n1", "n2"), start=START, end=END)
    row = Record("node", Position("node.txt", 1), "scheduler", fields)
    finding = Cluster().judge("F1", row, job(state, nodes=("n1", "n2")), run=run)
    assert ("n2" in finding.nodes) is expected


LATER = 5600.0


def nodes(at: float = 4700, gpu: bool = True, up: bool = False, count: int = 4, **shape: Any) -> Cluster:
    """The last node is sampled until ``at`` only; monitoring continues after the end of the run."""
    cluster = Cluster(start=400, end=LATER, nodes=count, **shape)
    last = cluster.nodes[-1]
    cluster.per_node("host_load1", 3.0, {last: cluster.until(at, 3.0)})
    left = cluster.until(at, 6e10) if gpu else 6e10
    cluster.per_gpu("gpu_memory_used_bytes", 6e10, {f"{last}:{i}": left for i in range(8)})
    if up:
        cluster.per_node("scrape_up", 1, {last: cluster.after(at, 0, 1)}, target="node")
    return cluster


def judged(cluster: Cluster, *rows: Any, **more: Any) -> Finding:
    run = Cluster(nodes=len(cluster.nodes)).run()
    return cluster.judge("F1", points(40, 1060, 90), *rows, run=run, **more)


@pytest.mark.parametrize(
    ("shape", "state", "certainty"),
    [
        ({}, "NODE_FAIL", ESTABLISHED),
        ({}, "FAILED", SUPPORTED),
        ({"up": True}, "FAILED", SUPPORTED),
        ({"up": True, "count": 1}, "FAILED", SUPPORTED),
        ({"interval": 60.0}, "FAILED", SUPPORTED),
    ],
)
def test_a_node_whose_samples_stop_is_down(shape: dict[str, Any], state: str, certainty: Certainty) -> None:
    finding = judged(nodes(**shape), job(state))
    assert outcome(finding) == (FOUND, certainty, False)
    assert finding.nodes == (f"n{shape.get('count', 4)}",)
    assert finding.since == pytest.approx(4700, abs=120)


def test_a_silent_node_that_the_scheduler_reports_down_is_established() -> None:
    lost = event("node_state", plane="scheduler", node="n4", state="down", time=4990.0, path="slurmctld.log")
    finding = judged(nodes(), lost, job("FAILED"))
    assert (finding.certainty, set(finding.planes)) == (ESTABLISHED, {"scheduler", "metric", "log"})


SILENCES: dict[str, tuple[dict[str, Any], str, str]] = {
    "one exporter only": ({"gpu": False}, "FAILED", "sampled_to_end"),
    "after the run's end": ({"at": 5200}, "FAILED", "sampled_to_end"),
    "never": ({"at": 9e9}, "FAILED", "sampled_to_end"),
    "training went on": ({"at": 2000}, "FAILED", "not_sampled_but_up"),
    "it ended well": ({"at": 4700}, "COMPLETED", "not_sampled_but_up"),
}


@pytest.mark.parametrize("case", SILENCES)
def test_rivals_are_no_node_failure(case: str) -> None:
    shape, state, reason = SILENCES[case]
    finding = judged(nodes(**shape), job(state))
    assert (finding.outcome, keys(finding)) == (ABSENT, ["other_state", reason])


def test_a_node_silent_at_the_end_of_the_log_is_down() -> None:
    """No scheduler record has the end; the last log line is from when the node went down."""

    def judged_at(last: float, cluster: Cluster) -> Finding:
        log = event("log_activity", 1, first_time=1000.0, last_time=last, time=last)
        run = Run(id="7", start=START, nodes=cluster.nodes)
        return cluster.judge("F1", points(40, 1060, 90), log, run=run, planes=("log",))

    finding = judged_at(4710.0, nodes())
    assert (outcome(finding), finding.nodes) == ((FOUND, SUPPORTED, False), ("n4",))
    assert judged_at(2000.0, nodes()).outcome is ABSENT  # long after it
    assert keys(judged_at(4710.0, nodes(9e9))) == ["sampled_to_end"]


def test_silence_of_all_nodes_is_an_end_of_monitoring() -> None:
    cluster = Cluster(nodes=4)
    cluster.per_node("host_load1", cluster.until(4000, 3.0))
    assert judged(cluster, job("FAILED")).outcome is ABSENT


def test_a_rebooted_node_is_a_node_failure() -> None:
    def booted(at: float) -> Cluster:
        cluster = nodes(9e9)
        return cluster.per_node("host_boot_time_seconds", 100.0, {"n2": cluster.after(at + 120, at, 100.5)})

    finding = judged(booted(4850), job("FAILED"))
    assert (outcome(finding), finding.nodes) == ((FOUND, ESTABLISHED, False), ("n2",))
    assert judged(booted(END + 200), job("FAILED")).outcome is ABSENT


def test_a_gpu_health_flag_is_no_node_state() -> None:
    cluster = nodes(9e9).per_gpu("gpu_health", 0, {"n4:0": 20})
    assert judged(cluster, job("FAILED")).outcome is ABSENT
