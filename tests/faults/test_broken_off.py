"""Log stores that fail midway, for runs in which the missing lines look like another fault."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from tests.contract.test_verdicts import CASES
from tests.faults.logs import LABELS, from_page, loki, without_logs
from tests.faults.runs import TimedVerdict, assert_missing_lines_prove_nothing, diagnose, loki_at, site
from tests.stores.logs.servers import Answer, LokiServer, running

pytestmark = pytest.mark.slow

FIRST_LOST_PAGES = {
    "a1/sim-env-one-gpu": 1,
    "c1/sim-silent-to-the-limit": 1,
    "d2/sim-save-storm-two-nodes": 2,
    "e1/sim-plateau": 4,
    "f3/sim-working-to-the-wall": 2,
    "g1/sim-megatron-three-nodes": 2,
    "h1/sim-scancel-in-good-training": 2,
}
"""Case -> the first page of lines that is lost."""


@pytest.mark.parametrize(("name", "page"), FIRST_LOST_PAGES.items(), ids=FIRST_LOST_PAGES)
def test_a_truncated_log_does_not_count_as_silence_of_the_run(name: str, page: int, tmp_path: Path) -> None:
    with CASES[name].inputs() as files:
        run = trackside.diagnose(files).run
        rest = without_logs(files, tmp_path / "rest")
        server = loki(run, files)
    with running(server):
        complete = diagnose_with_logs(server, rest, run.id)
        server.spoil = from_page(
            page, lambda answer: Answer(answer.status, answer.body, answer.type, cut=len(answer.body) // 2)
        )
        result = diagnose_with_logs(server, rest, run.id)
    assert "gave no complete answer" in result.preflight
    assert_missing_lines_prove_nothing(result, complete)
    assert result.doc.primary.certainty != "established" or result.doc.primary.family in complete.found_families - {
        "G1"
    }


def diagnose_with_logs(server: LokiServer, rest: Path, job: str | None) -> TimedVerdict:
    """The verdict with Slurm's records from files and logs from the store."""
    return diagnose(site(rest.parent, loki_at(server.url, LABELS)), [rest], job)
