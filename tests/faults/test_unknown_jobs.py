"""A job that one plane knows and another doesn't: each says so, and what it doesn't know is no absence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.logs import LABELS, loki
from tests.faults.runs import JOB, QUICK, Held, ask, loki_at, metrics_at, site
from tests.faults.slurm import commands, only_output, slurm_at
from tests.services import Victoria
from tests.stores.logs.servers import LokiServer, running
from trackside.errors import NothingReadable

pytestmark = [pytest.mark.service, pytest.mark.slow]


def test_slurm_knows_it_and_metrics_do_not(slow: Held, victoria: Victoria, tmp_path: Path) -> None:
    """Nor does the log store."""
    commands(tmp_path / "bin", slow.rest)
    with running(LokiServer()) as logs:
        sections = metrics_at(victoria.url), loki_at(logs.url, LABELS)
        answer = ask(site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin")), job=JOB)
    assert answer.doc.run.disposition == "COMPLETED"
    assert f"holds no stream of job {JOB}" in answer.notes("Loki")
    assert answer.notes("prometheus").startswith("empty: 0 metrics of the run")
    assert not answer.by("metric")
    assert not answer.by("log")
    for family in slow.full.by("metric") - answer.absent - answer.found:
        assert family in answer.unknown
    assert "holds no metric of the run" in answer.unknown["B3"]


def test_metrics_know_it_and_slurm_does_not(slow: Held, tmp_path: Path) -> None:
    """Nothing but the job's label in the metrics: its GPUs are judged, its end is not known."""
    commands(tmp_path / "bin", None)
    answer = ask(site(tmp_path, metrics_at(slow.url, "timeout_s = 20\n"), slurm=slurm_at(tmp_path / "bin")), job=JOB)
    assert "no such job" in answer.notes("accounting")
    assert set(answer.doc.run.gpus) <= set(slow.full.doc.run.gpus)
    assert answer.doc.run.gpus_by == "label"
    assert answer.found <= slow.full.found | {"U0", "G1"}
    assert answer.absent <= slow.full.absent
    assert "No scheduler record was given" in answer.preflight


def test_output_and_metrics_know_it_and_slurm_does_not(slow: Held, tmp_path: Path) -> None:
    commands(tmp_path / "bin", None)
    rest = only_output(slow, tmp_path / "run")
    where = site(tmp_path, metrics_at(slow.url, "timeout_s = 20\n"), slurm=slurm_at(tmp_path / "bin"))
    answer = ask(where, [rest], JOB)
    assert answer.doc.primary.family == "D2"
    assert answer.absent <= slow.full.absent
    assert answer.doc.run.disposition is None


def test_logs_do_not_have_it(slow: Held, tmp_path: Path) -> None:
    others = [entry for entry in loki(slow.full.verdict.run, slow.rest).entries if "job_id" not in entry.labels]
    commands(tmp_path / "bin", slow.rest)
    with running(LokiServer(*others)) as logs:
        sections = metrics_at(slow.url, "timeout_s = 20\n"), loki_at(logs.url, LABELS)
        answer = ask(site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin")), job=JOB)
    assert f"holds no stream of job {JOB}" in answer.notes("Loki")
    assert answer.doc.primary.family == "D2"
    assert answer.absent <= slow.full.absent
    assert not answer.by("log")
    assert f"slurm-{JOB}.out gave no complete answer" in answer.preflight


def test_nobody_has_it(victoria: Victoria, tmp_path: Path) -> None:
    """Exit 3, and each is named."""
    commands(tmp_path / "bin", None)
    with running(LokiServer()) as logs:
        sections = metrics_at(victoria.url), loki_at(logs.url, QUICK)
        where = site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin"))
        with pytest.raises(NothingReadable) as caught:
            ask(where, job="99")
        command = [sys.executable, "-m", "trackside", "diagnose", "--job", "99", "--config"]
        done = subprocess.run(
            [*command, str(tmp_path / "trackside.toml")], capture_output=True, text=True, timeout=60, check=False
        )
    for named in ("job 99", "accounting", "controller", "Loki", "prometheus"):
        assert named in str(caught.value), str(caught.value)
        assert named in done.stderr
    assert done.returncode == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
