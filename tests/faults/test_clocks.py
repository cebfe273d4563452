"""A metrics server with a wrong clock: the verdict gives the error, or uses none of the samples."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from tests.contract.test_verdicts import CASES
from tests.faults.runs import SLOW, TimedVerdict, assert_same, diagnose, run_in_victoria, shifted
from tests.faults.slurm import slurm_of

pytestmark = [pytest.mark.service, pytest.mark.slow]
HOUR = 3600.0


def files_shifted(name: str, folder: Path, seconds: float) -> TimedVerdict:
    """The verdict on the run's files, with the metrics moved in time."""
    with CASES[name].inputs() as files:
        for path in (path for path in files.rglob("*") if path.is_file()):
            target = folder / path.relative_to(files)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text("utf-8")
            target.write_text(shifted(text, seconds) if path.suffix == ".prom" else text)
    return TimedVerdict(trackside.diagnose(folder))


@pytest.mark.parametrize("seconds", [-47.0, 7.25, HOUR, 3 * HOUR, -5.5 * HOUR])
def test_server_and_files_with_the_same_wrong_clock_give_the_same_verdict(seconds: float, tmp_path: Path) -> None:
    with run_in_victoria(SLOW, tmp_path, seconds) as run:
        assert_same(run.full, files_shifted(SLOW, tmp_path / "files", seconds))
        assert run.full.doc.primary.family == "D2"
        assert ("Metric times were shifted by" in run.full.preflight) == (abs(seconds) >= HOUR)


def test_samples_from_months_away_are_not_used(tmp_path: Path) -> None:
    with run_in_victoria(SLOW, tmp_path, 100 * 24 * HOUR) as run:
        assert (run.full.found_families, run.full.ruled_out_families) == (
            run.bare.found_families,
            run.bare.ruled_out_families,
        )
        assert not run.full.ruled_out_by("metric")
        assert "holds no metric of the run" in run.full.unknown_families["B3"]


def test_samples_outside_the_times_of_the_slurm_record_are_not_used(tmp_path: Path) -> None:
    """Slurm's times have a zone, so samples hours away are not tried."""
    with run_in_victoria(SLOW, tmp_path, 3 * HOUR) as run:
        result = diagnose(slurm_of(run, tmp_path / "bin", tmp_path), [run.rest], "48213")
        assert not result.ruled_out_by("metric")
        assert result.ruled_out_families <= run.bare.ruled_out_families
        assert result.found_families <= run.bare.found_families
        assert all(
            family in result.unknown_families
            for family in run.full.ruled_out_by("metric") - result.ruled_out_families - result.found_families
        )
