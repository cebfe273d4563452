"""A failing log store: received lines count, missing lines do not count as silence of the run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.logs import diagnose_with_logs, from_page, loki
from tests.faults.proxy import Fault, proxied
from tests.faults.rewriting import LOGIN
from tests.faults.runs import JOB, ServedRun, assert_missing_lines_prove_nothing, assert_same
from tests.stores.logs.servers import Answer, running

pytestmark = [pytest.mark.service, pytest.mark.slow]
RUNS = pytest.mark.parametrize("run", ["healthy", "slow", "hung"], indirect=True)
SPOILED_ANSWERS: dict[str, Callable[[Answer], Answer]] = {
    "cut": lambda answer: Answer(200, answer.body, answer.type, cut=len(answer.body) // 2),
    "refused": lambda answer: Answer(500, b"out of memory", "text/plain"),
    "a login page": lambda answer: Answer(200, LOGIN, "text/html"),
}


@RUNS
def test_logs_from_the_store_and_from_files_give_the_same_verdict(run: ServedRun, tmp_path: Path) -> None:
    with running(loki(run.full.verdict.run, run.rest)) as server:
        result = diagnose_with_logs(run, server.url, tmp_path)
    assert result.doc.primary.family == run.full.doc.primary.family
    assert result.ruled_out_families == run.full.ruled_out_families


def test_a_transient_fault_does_not_change_the_verdict(slow: ServedRun, tmp_path: Path) -> None:
    with running(loki(slow.full.verdict.run, slow.rest)) as server:
        complete = diagnose_with_logs(slow, server.url, tmp_path)
        with proxied(int(server.url.rpartition(":")[2])) as proxy:
            proxy.set_fault(Fault(cut=300, times=1))
            assert_same(diagnose_with_logs(slow, proxy.url, tmp_path), complete)
            assert proxy.hits == 1


@pytest.mark.parametrize(
    ("run", "records", "page", "spoil"),
    [
        ("healthy", True, 1, "cut"),
        ("healthy", False, 4, "cut"),
        ("slow", True, 2, "refused"),
        ("slow", False, 6, "cut"),
        ("hung", True, 4, "a login page"),
        ("hung", False, 2, "cut"),
    ],
    indirect=["run"],
)
def test_lines_before_a_broken_page_are_used(
    run: ServedRun, records: bool, page: int, spoil: str, tmp_path: Path
) -> None:
    """``records``: with Slurm's records; ``page``: the first page that is spoiled."""
    with running(loki(run.full.verdict.run, run.rest)) as server:
        complete = diagnose_with_logs(run, server.url, tmp_path, records)
        server.spoil = from_page(page, SPOILED_ANSWERS[spoil])
        result = diagnose_with_logs(run, server.url, tmp_path, records)
    assert f"Loki {server.url} gave no complete answer, so the verdict lacks its data: {server.url}" in result.preflight
    assert result.notes(f"job-{JOB}").startswith("unreadable: " if page == 1 else "partial: ")
    assert result.doc.primary.family == complete.doc.primary.family
    assert_missing_lines_prove_nothing(result, complete)


@RUNS
def test_an_unreachable_store_is_reported_and_rules_nothing_out(run: ServedRun, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    result = diagnose_with_logs(run, url, tmp_path)
    assert f"Loki {url} did not answer" in result.preflight
    assert not result.ruled_out_by("log")
    assert result.ruled_out_families <= run.full.ruled_out_families
    assert result.found_families <= run.full.found_families | {"U0"}
    assert "no output of the job was given" not in result.preflight
