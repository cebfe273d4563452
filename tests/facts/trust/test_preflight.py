"""Preflight claims about missing and partial inputs."""

from __future__ import annotations

import pytest

from tests.families.rows import (
    activity,
    event,
    job,
    sentence_name,
    xid_number,
)
from trackside.facts.trust.preflight import Preflight
from trackside.facts.trust.telemetry import trusted_facts
from trackside.finding import Claim, claim_sentence
from trackside.model import Run
from trackside.stores.memory import MemoryStore


def limits(store: MemoryStore, run: Run) -> tuple[Claim, ...]:
    """The claims about limits of the verdict."""
    preflight = trusted_facts(store, run).get(Preflight)
    assert isinstance(preflight, Preflight)
    return preflight.claims


def test_preflight_names_missing_inputs() -> None:
    names = [sentence_name(claim) for claim in limits(MemoryStore(), Run())]
    assert names == ["no_log", "no_scheduler", "no_kernel", "no_gpu_metrics"]


def test_preflight_counts_a_kernel_log_without_matches() -> None:
    kernel_logs = [
        xid_number(79, node="n1"),
        event("kernel_log", 3, plane="kernel", path="kernel/n2.log", node="n2", lines=3),
    ]
    for nodes, silent in ((("n1", "n2"), None), (("n1", "n2", "n3"), ("n3",))):
        claims = limits(MemoryStore(kernel_logs, [job("FAILED", nodes=nodes)]), Run(nodes=nodes))
        lacking = [claim.values["nodes"].value for claim in claims if sentence_name(claim) == "no_kernel_of"]
        assert lacking == ([silent] if silent else [])
        assert "no_kernel" not in [sentence_name(claim) for claim in claims]


@pytest.mark.parametrize(
    "last_line",
    [
        "loss=5.2: : 45% 45/100 [01:09<01:25, 1.55s/it]",
        " 99%|####| 99/100 [00:01<00:01]",
        "^C",
        "slurmstepd: error: *** x",
    ],
)
def test_a_last_line_that_lacks_a_newline_in_complete_logs_is_no_cut(last_line: str) -> None:
    def claims_about(line: str) -> list[str]:
        log = activity(9, truncated=True, last_line=line)
        return [sentence_name(claim) for claim in limits(MemoryStore([log], []), Run())]

    assert "cut_off" not in claims_about(last_line)
    assert "cut_off" in claims_about("loss 3.2, st")


def test_preflight_names_limits_of_the_logs() -> None:
    logs = [activity(9, path=f"{rank}.log", rank=rank, truncated=rank == 1) for rank in (0, 1)]
    store = MemoryStore([*logs, xid_number(79)], [job("RUNNING", nodes=("n1", "n2"))])
    claims = limits(store, Run(nodes=("n1", "n2"), n_ranks=4, clock_offset_s=3600.0))
    names = ["no_kernel_of", "still_running", "cut_off", "logs_of_some_ranks", "log_clock_shifted", "no_gpu_metrics"]
    assert [sentence_name(claim) for claim in claims] == names
    for claim in claims:
        assert "{" not in claim_sentence(claim)
