"""C1 on rows and curves built by hand: positives, rivals that must not be found, and blind cases."""

from __future__ import annotations

import pytest

from tests.families.grids import (
    DISTRIBUTED_INIT,
    NO_LOG,
    Cluster,
    cold,
    hung,
    judged,
)
from tests.families.rows import (
    ABSENT,
    COMPLETED,
    END,
    ESTABLISHED,
    FOUND,
    GIB,
    POSSIBLE,
    SUPPORTED,
    TIMEOUT,
    UNKNOWN,
    decision,
    event,
    job,
    judge,
    keys,
    log_points,
    points,
    root,
    text_of,
)
from trackside.finding import Certainty, clause
from trackside.model import Run


def test_a_failed_dns_lookup_blames_infrastructure() -> None:
    failure = root("rendezvous_failure", reason="dns", address="head:29500", retry=True)
    last = root("rendezvous_failure", 60, reason="timeout", address="head:29500")
    finding = judge("C1", failure, last, job("FAILED", exit_code=1))
    assert (finding.outcome, finding.culprit, keys(finding)[0]) == (FOUND, "infrastructure", "failures_dns")


def test_an_unexpanded_host_list_as_address_blames_the_job() -> None:
    failure = root("rendezvous_failure", reason="dns", address="node[01,05]:53394", retry=True)
    assert judge("C1", failure, job("TIMEOUT")).culprit == "job"


@pytest.mark.parametrize(
    ("nodes", "claim"), [(("n1", "n2"), "failures_peer_loopback"), (("n1",), "failures_peer_refused")]
)
def test_a_loopback_address_of_a_rank_is_wrong_on_several_nodes_only(nodes: tuple[str, ...], claim: str) -> None:
    failure = root("rendezvous_failure", reason="peer_refused", address="[127.0.0.1]:33018")
    finding = judge("C1", failure, job("FAILED", exit_code=1), run=Run(nodes=nodes))
    assert (finding.outcome, finding.culprit, keys(finding)[0]) == (FOUND, "job", claim)


def test_a_rendezvous_that_succeeded_is_no_failure() -> None:
    retry = root("rendezvous_failure", 5, reason="refused", retry=True)
    assert judge("C1", retry, event("distributed_ready", 9, world_size=4)).outcome is ABSENT
    assert keys(judge("C1", log_points(), root("rendezvous_failure", reason="timeout"))) == ["training_ran"]


def test_a_silent_start_of_several_ranks_is_supported() -> None:
    init = event("distributed_init", world_size=2, time=1005.0, rank=0)
    finding = judge("C1", init, job("TIMEOUT"), run=Run(nodes=("n1", "n2")))
    assert (finding.outcome, finding.certainty, finding.culprit) == (FOUND, Certainty.SUPPORTED, "job")
    assert judge("C1", init, job("FAILED", exit_code=1)).outcome is ABSENT


def test_the_wording_of_the_rendezvous_hang_example() -> None:
    finding = judged(cold(), "C1", DISTRIBUTED_INIT, TIMEOUT)
    assert decision(finding) == (FOUND, ESTABLISHED)
    text = text_of(finding)
    assert "16 GPUs on 2 nodes did no work for 67 min" in text
    assert "saw neither a kernel launch nor a collective" in text
    assert (finding.nodes, finding.ranks, finding.culprit) == (("n1", "n2"), tuple(range(16)), "unknown")


def test_a_running_job_is_not_reported_as_ended() -> None:
    finding = judged(cold(), "C1", DISTRIBUTED_INIT, job("RUNNING", end=None))
    assert finding.outcome is FOUND
    assert ("listed_as" in keys(finding), "run_ended" in keys(finding)) == (True, False)


def test_a_rendezvous_hang_is_found_without_a_log() -> None:
    """Several idle nodes are a possible hang; contexts that hold memory show that the job started: supported."""
    assert decision(judged(cold(), "C1", TIMEOUT, planes=NO_LOG)) == (FOUND, POSSIBLE)
    loaded = Cluster().per_gpu("gpu_sm_active_ratio", 0.0).per_gpu("gpu_engine_active_ratio", 0.0)
    loaded.per_gpu("gpu_memory_used_bytes", 9.0 * GIB).per_gpu("gpu_memory_total_bytes", 80.0 * GIB)
    assert decision(judged(loaded, "C1", TIMEOUT, planes=NO_LOG)) == (FOUND, SUPPORTED)


def test_rivals_are_no_rendezvous_hang() -> None:
    assert keys(judged(hung(), "C1", TIMEOUT, planes=NO_LOG)) == ["gpu_work_sm"]
    assert judged(cold(nodes=1, gpus=1), "C1", TIMEOUT, planes=NO_LOG).outcome is UNKNOWN
    assert "training_ran" in keys(judged(cold(), "C1", points(), TIMEOUT))
    assert "ended_well" in keys(judged(cold(), "C1", COMPLETED))


def test_a_short_idle_period_is_no_hang() -> None:
    brief = cold(start=END - 400)
    assert judged(brief, "C1", TIMEOUT, planes=NO_LOG).outcome is not FOUND


def test_a_port_in_use_before_a_collective_is_another_launch() -> None:
    port = root("rendezvous_failure", 5, reason="port_in_use", address="29500", text="cannot bind 29500")
    timeout = event("collective_timeout", 90, seq=1, op="ALLREDUCE", rank=0, elapsed_s=1801.5)
    finding = judge("C1", port, timeout, job("FAILED", exit_code=1))
    assert finding.headline is not None
    assert clause(finding.headline) == "the ranks' first collective timed out after 30 min"
    assert "another launch in this log could not bind its port" in text_of(finding).lower()
    alone = judge("C1", port, job("FAILED", exit_code=1)).headline
    assert alone is not None
    assert "29500 is in use" in clause(alone)
