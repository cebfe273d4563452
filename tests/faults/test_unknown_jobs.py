"""A job that one source knows and another does not: each says so, and missing evidence rules nothing out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.logs import LABELS, loki
from tests.faults.runs import JOB, QUICK, ServedRun, diagnose, loki_at, metrics_at, site
from tests.faults.slurm import commands, only_output, slurm_at
from tests.services import Victoria
from tests.stores.logs.servers import LokiServer, running
from trackside.errors import NothingReadable

pytestmark = [pytest.mark.service, pytest.mark.slow]


def test_a_job_that_only_slurm_knows(slow: ServedRun, victoria: Victoria, tmp_path: Path) -> None:
    """The log store does not know it either."""
    commands(tmp_path / "bin", slow.rest)
    with running(LokiServer()) as logs:
        sections = metrics_at(victoria.url), loki_at(logs.url, LABELS)
        result = diagnose(site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin")), job=JOB)
    assert result.doc.run.disposition == "COMPLETED"
    assert f"holds no stream of job {JOB}" in result.notes("Loki")
    assert result.notes("prometheus").startswith("empty: 0 metrics of the run")
    assert not result.ruled_out_by("metric")
    assert not result.ruled_out_by("log")
    for family in slow.full.ruled_out_by("metric") - result.ruled_out_families - result.found_families:
        assert family in result.unknown_families
    assert "holds no metric of the run" in result.unknown_families["B3"]


def test_a_job_that_only_metrics_know(slow: ServedRun, tmp_path: Path) -> None:
    """Only the label in the metrics names the job: its GPUs are judged, its end is not known."""
    commands(tmp_path / "bin", None)
    result = diagnose(
        site(tmp_path, metrics_at(slow.url, "timeout_s = 20\n"), slurm=slurm_at(tmp_path / "bin")), job=JOB
    )
    assert "no such job" in result.notes("accounting")
    assert set(result.doc.run.gpus) <= set(slow.full.doc.run.gpus)
    assert result.doc.run.gpus_by == "label"
    assert result.found_families <= slow.full.found_families | {"U0", "G1"}
    assert result.ruled_out_families <= slow.full.ruled_out_families
    assert "No scheduler record of the job was given" in result.preflight


def test_a_job_that_output_and_metrics_know_but_slurm_does_not(slow: ServedRun, tmp_path: Path) -> None:
    commands(tmp_path / "bin", None)
    rest = only_output(slow, tmp_path / "run")
    site_ = site(tmp_path, metrics_at(slow.url, "timeout_s = 20\n"), slurm=slurm_at(tmp_path / "bin"))
    result = diagnose(site_, [rest], JOB)
    assert result.doc.primary.family == "D2"
    assert result.ruled_out_families <= slow.full.ruled_out_families
    assert result.doc.run.disposition is None


def test_a_job_that_only_the_log_store_does_not_know(slow: ServedRun, tmp_path: Path) -> None:
    other_lines = [entry for entry in loki(slow.full.verdict.run, slow.rest).entries if "job_id" not in entry.labels]
    commands(tmp_path / "bin", slow.rest)
    with running(LokiServer(*other_lines)) as logs:
        sections = metrics_at(slow.url, "timeout_s = 20\n"), loki_at(logs.url, LABELS)
        result = diagnose(site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin")), job=JOB)
    assert f"holds no stream of job {JOB}" in result.notes("Loki")
    assert result.doc.primary.family == "D2"
    assert result.ruled_out_families <= slow.full.ruled_out_families
    assert not result.ruled_out_by("log")
    assert f"slurm-{JOB}.out was not read: it is not on this machine" in result.preflight


def test_a_job_that_no_source_knows(victoria: Victoria, tmp_path: Path) -> None:
    """Exit 3; the message names each source."""
    commands(tmp_path / "bin", None)
    with running(LokiServer()) as logs:
        sections = metrics_at(victoria.url), loki_at(logs.url, QUICK)
        site_ = site(tmp_path, *sections, slurm=slurm_at(tmp_path / "bin"))
        with pytest.raises(NothingReadable) as caught:
            diagnose(site_, job="99")
        command = [sys.executable, "-m", "trackside", "diagnose", "--job", "99", "--config"]
        process = subprocess.run(
            [*command, str(tmp_path / "trackside.toml")], capture_output=True, text=True, timeout=60, check=False
        )
    for source in ("job 99", "accounting", "controller", "Loki", "prometheus"):
        assert source in str(caught.value), str(caught.value)
        assert source in process.stderr
    assert process.returncode == 3
    assert process.stdout == ""
    assert "Traceback" not in process.stderr
