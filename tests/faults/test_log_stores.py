"""A log store that fails: what came counts, what did not come is no silence of the run."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.logs import from_page, judged, loki
from tests.faults.proxy import Fault, proxied
from tests.faults.rewriting import LOGIN
from tests.faults.runs import JOB, Held, assert_nothing_is_made_of_silence, assert_same
from tests.stores.logs.servers import Answer, running

pytestmark = [pytest.mark.service, pytest.mark.slow]
RUNS = pytest.mark.parametrize("run", ["healthy", "slow", "hung"], indirect=True)
CUT: dict[str, Callable[[Answer], Answer]] = {
    "cut": lambda got: Answer(200, got.body, got.type, cut=len(got.body) // 2),
    "refused": lambda got: Answer(500, b"out of memory", "text/plain"),
    "a login page": lambda got: Answer(200, LOGIN, "text/html"),
}


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Held:
    """The run of a test, by its fixture's name."""
    found: Held = request.getfixturevalue(getattr(request, "param", "slow"))
    return found


@RUNS
def test_logs_from_the_store_tell_what_files_tell(run: Held, tmp_path: Path) -> None:
    with running(loki(run.full.verdict.run, run.rest)) as server:
        findings = judged(run, server.url, tmp_path)
    assert findings.doc.primary.family == run.full.doc.primary.family
    assert findings.absent == run.full.absent


def test_what_passes_changes_nothing(slow: Held, tmp_path: Path) -> None:
    with running(loki(slow.full.verdict.run, slow.rest)) as server:
        whole = judged(slow, server.url, tmp_path)
        with proxied(int(server.url.rpartition(":")[2])) as proxy:
            proxy.become(Fault(cut=300, times=1))
            assert_same(judged(slow, proxy.url, tmp_path), whole)
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
def test_what_breaks_off_is_used_as_far_as_it_came(
    run: Held, records: bool, page: int, spoil: str, tmp_path: Path
) -> None:
    """``records``: whether Slurm's are there too; ``page``: the first that is spoilt."""
    with running(loki(run.full.verdict.run, run.rest)) as server:
        whole = judged(run, server.url, tmp_path, records)
        server.spoil = from_page(page, CUT[spoil])
        findings = judged(run, server.url, tmp_path, records)
    assert f"Loki {server.url} gave no complete answer ({server.url}" in findings.preflight
    assert findings.notes(f"job-{JOB}").startswith("unreadable: " if page == 1 else "partial: ")
    assert findings.doc.primary.family == whole.doc.primary.family
    assert_nothing_is_made_of_silence(findings, whole)


@RUNS
def test_a_store_that_is_gone(run: Held, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    findings = judged(run, url, tmp_path)
    assert f"Loki {url} gave no complete answer" in findings.preflight
    assert not findings.by("log")
    assert findings.absent <= run.full.absent
    assert findings.found <= run.full.found | {"U0"}
    assert "no output of the job was given" not in findings.preflight
