"""A server of metrics whose clock is wrong: the verdict says by how much, or takes no sample for one of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

import trackside
from tests.contract.test_verdicts import CASES
from tests.faults.runs import SLOW, Told, ask, assert_same, held, shifted
from tests.faults.slurm import slurm_of

pytestmark = [pytest.mark.service, pytest.mark.slow]
HOUR = 3600.0


def files_shifted(name: str, folder: Path, seconds: float) -> Told:
    """The verdict on the run's files, those of metrics moved."""
    with CASES[name].inputs() as whole:
        for path in (path for path in whole.rglob("*") if path.is_file()):
            target = folder / path.relative_to(whole)
            target.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text("utf-8")
            target.write_text(shifted(text, seconds) if path.suffix == ".prom" else text)
    return Told(trackside.diagnose(folder))


@pytest.mark.parametrize("seconds", [-47.0, 7.25, HOUR, 3 * HOUR, -5.5 * HOUR])
def test_the_server_says_what_files_with_that_clock_say(seconds: float, tmp_path: Path) -> None:
    with held(SLOW, tmp_path, seconds) as run:
        assert_same(run.full, files_shifted(SLOW, tmp_path / "files", seconds))
        assert run.full.doc.primary.family == "D2"
        assert ("Metric times were shifted by" in run.full.preflight) == (abs(seconds) >= HOUR)


def test_samples_of_another_season_are_not_the_runs(tmp_path: Path) -> None:
    with held(SLOW, tmp_path, 100 * 24 * HOUR) as run:
        assert (run.full.found, run.full.absent) == (run.bare.found, run.bare.absent)
        assert not run.full.by("metric")
        assert "holds no metric of the run" in run.full.unknown["B3"]


def test_samples_outside_the_time_that_slurm_tells_are_not_the_runs(tmp_path: Path) -> None:
    """What Slurm says has its zone, so that nothing is looked for hours away."""
    with held(SLOW, tmp_path, 3 * HOUR) as run:
        answer = ask(slurm_of(run, tmp_path / "bin", tmp_path), [run.rest], "48213")
        assert not answer.by("metric")
        assert answer.absent <= run.bare.absent
        assert answer.found <= run.bare.found
        assert all(family in answer.unknown for family in run.full.by("metric") - answer.absent - answer.found)
