"""Logs that a store broke off giving, of runs in which the silence after them looks like another fault."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from tests.contract.test_verdicts import CASES
from tests.faults.logs import LABELS, from_page, loki, without_logs
from tests.faults.runs import Told, ask, assert_nothing_is_made_of_silence, loki_at, site
from tests.stores.logs.servers import Answer, LokiServer, running

pytestmark = pytest.mark.slow

JUDGED = {
    "a1/sim-env-one-gpu": 1,
    "c1/sim-silent-to-the-limit": 1,
    "d2/sim-save-storm-two-nodes": 2,
    "e1/sim-plateau": 4,
    "f3/sim-working-to-the-wall": 2,
    "g1/sim-megatron-three-nodes": 2,
    "h1/sim-scancel-in-good-training": 2,
}
"""And the page of lines from which on they are lost."""


@pytest.mark.parametrize(("name", "page"), JUDGED.items(), ids=JUDGED)
def test_silence_of_the_store_is_none_of_the_run(name: str, page: int, tmp_path: Path) -> None:
    with CASES[name].inputs() as files:
        run = trackside.diagnose(files).run
        rest = without_logs(files, tmp_path / "rest")
        server = loki(run, files)
    with running(server):
        whole = judged(server, rest, run.id)
        server.spoil = from_page(page, lambda got: Answer(got.status, got.body, got.type, cut=len(got.body) // 2))
        findings = judged(server, rest, run.id)
    assert "gave no complete answer" in findings.preflight
    assert_nothing_is_made_of_silence(findings, whole)
    assert findings.doc.primary.certainty != "established" or findings.doc.primary.family in whole.found - {"G1"}


def judged(server: LokiServer, rest: Path, job: str | None) -> Told:
    """Slurm's records out of files, and logs from the store."""
    return ask(site(rest.parent, loki_at(server.url, LABELS)), [rest], job)
