"""Bundles of runs that are in no folder: data of a store or a site is written as files with the same content."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import trackside
from tests import services
from tests.serve.receiving import T0_MS, flushed, gpu, opened, push_lines, sent
from tests.site.test_gather import answering, owned, site
from tests.stores.embedded.runs import SACCT, T0, TRACEBACK, sacct, scrape, steps, write
from trackside.bundle import live
from trackside.cli import main
from trackside.ingest import ingest
from trackside.read.bundle import BundleManifest
from trackside.read.bundle import open_bundle as bundle_at
from trackside.stores.log_store import LogEntry, LogRequest, LogStream, Streams

__all__ = ["site"]


def run_cli(*arguments: str | Path, home: Path | None = None) -> Result:
    return CliRunner().invoke(
        main, [str(argument) for argument in arguments], env={} if home is None else {"HOME": str(home)}
    )


def manifest_of(path: Path) -> BundleManifest:
    with bundle_at(path) as bundle:
        bundle.check()
        return bundle.manifest


def metrics(minutes: int = 12, node: str = "gpu017") -> str:
    """Scrapes of one node's exporter."""
    return "".join(scrape(node, second, 90.0) for second in range(0, minutes * 60, 30))


class JobLogStore:
    """A log store with the output of job 41."""

    name = "loki http://127.0.0.1:9"

    def streams(self, request: LogRequest) -> Streams:
        return Streams(
            (LogStream("job", {"slurm_job_id": "41", "node": "gpu017"}, "", 0, 1),) if "41" in request.jobs else ()
        )

    def lines(self, stream: LogStream) -> Iterator[Sequence[LogEntry]]:
        text = steps(5) + TRACEBACK.format(module="apex")
        yield [LogEntry((T0 + 10 + n) * 1_000_000_000, line, stream.labels) for n, line in enumerate(text.splitlines())]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A store with two jobs: their records, one log each, and metrics of two nodes."""
    folder = write(
        tmp_path / "runs",
        {
            "sacct.txt": SACCT + sacct("41") + sacct("42", state="COMPLETED", node="gpu018"),
            "slurm-41.out": steps(5) + TRACEBACK.format(module="apex"),
            "slurm-42.out": steps(50),
            "gpu.prom": metrics() + metrics(node="gpu018"),
        },
    )
    ingest([folder], tmp_path / "store")
    return tmp_path / "store"


class TestStore:
    def test_one_job_of_a_store_is_bundled(self, stored: Path, tmp_path: Path) -> None:
        out = tmp_path / "run.tsb"
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", out)
        assert response.exit_code == 0, response.output
        before = trackside.diagnose(store=stored, job="41")
        after = trackside.diagnose(out)
        assert (after.primary.family, after.primary.culprit) == (before.primary.family, before.primary.culprit)
        assert after.run.id == "41"
        with zipfile.ZipFile(out) as archive:
            assert archive.read("inputs/slurm-41.out").decode() == steps(5) + TRACEBACK.format(module="apex")
            rows = [json.loads(line) for line in archive.read(f"inputs/{live.METRICS}").splitlines()]
        assert {row["metric"]["node"] for row in rows} == {"gpu017"}
        assert sum(len(row["values"]) for row in rows) == 48
        assert run_cli("verify", out).exit_code == 0

    def test_a_job_of_a_store_can_be_redacted(self, stored: Path, tmp_path: Path) -> None:
        out = tmp_path / "run.tsb"
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", out, "--redact")
        assert response.exit_code == 0, response.output
        with zipfile.ZipFile(out) as archive:
            assert not [name for name in archive.namelist() if b"gpu017" in archive.read(name)]
        assert trackside.diagnose(out).primary.family == "H2"

    def test_a_missing_file_is_named(self, stored: Path, tmp_path: Path) -> None:
        """Without it the verdict differs: nothing is written without --despite-differences."""
        out = tmp_path / "run.tsb"
        (tmp_path / "runs" / "slurm-41.out").unlink()
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", out)
        assert response.exit_code == 1
        assert "a different verdict: family: " in response.output
        assert "slurm-41.out no longer exists" in response.output
        assert not out.exists()
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", out, "--despite-differences")
        assert response.exit_code == 0, response.output
        assert "left out: slurm-41.out" in response.output
        assert "the verdict on the run itself differs: family: " in "".join(manifest_of(out).notes)

    def test_a_changed_file_is_named(self, stored: Path, tmp_path: Path) -> None:
        log = tmp_path / "runs" / "slurm-41.out"
        log.write_text(log.read_text() + "bye\n")
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", tmp_path / "run.tsb")
        assert response.exit_code == 0, response.output
        assert "slurm-41.out has changed since it was put into the store" in response.output

    def test_files_can_be_added_to_a_store(self, stored: Path, tmp_path: Path) -> None:
        more = write(tmp_path / "more", {"slurm-43.out": steps(3) + TRACEBACK.format(module="flash"),
                                         "sacct.txt": SACCT + sacct("43")})  # fmt: skip
        response = run_cli("bundle", "--store", stored, "--job", "43", more, "-o", tmp_path / "run.tsb")
        assert response.exit_code == 0, response.output
        after = trackside.diagnose(tmp_path / "run.tsb")
        assert (after.primary.family, after.run.id, after.run.disposition) == ("H2", "43", "FAILED")

    def test_received_data_is_bundled(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with closing(opened(store)) as intake:
            ticks = [(gpu(number=n, hpc_job="77"), [(T0_MS + t * 15_000, 50.0) for t in range(40)]) for n in range(4)]
            sent(intake, ticks).result(30)
            lines = [*steps(5).splitlines(), *TRACEBACK.format(module="apex").splitlines()]
            entries = [(n * 15_000_000_000, line) for n, line in enumerate(lines)]
            push_lines(intake, {"slurm_job_id": "77", "node": "gpu017"}, entries).result(30)
            flushed(intake)
        result = run_cli("bundle", "--store", store, "--job", "77", "-o", tmp_path / "run.tsb")
        assert result.exit_code == 0, result.output
        names = [member.name for member in manifest_of(tmp_path / "run.tsb").members]
        assert f"inputs/{live.METRICS}" in names
        assert any(name.startswith("inputs/job-77/") for name in names)
        assert trackside.diagnose(tmp_path / "run.tsb").primary.family == "H2"

    def test_samples_beyond_the_limit_are_left_out_and_reported(
        self, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "MAX_SAMPLES", 10)
        response = run_cli("bundle", "--store", stored, "--job", "41", "-o", tmp_path / "run.tsb")
        assert response.exit_code == 0, response.output
        assert "left out because of the limit of 10 samples: gpu_util" in response.output


class TestSite:
    def bundle_job(self, site: Path, *arguments: str) -> Result:
        config = ("--config", str(site / "trackside.toml"))
        return run_cli("bundle", "--job", "41", *config, "-o", site / "run.tsb", *arguments, home=site)

    def test_slurm_records_and_job_output_are_bundled(self, site: Path) -> None:
        result = self.bundle_job(site)
        assert result.exit_code == 0, result.output
        verdict = trackside.diagnose(site / "run.tsb")
        assert (verdict.primary.family, verdict.run.disposition) == ("H2", "FAILED")
        names = [row.path for row in manifest_of(site / "run.tsb").inputs]
        assert any(name.startswith("sacct") for name in names)
        assert any(name.endswith("work/slurm-41.out") for name in names)
        assert run_cli("verify", site / "run.tsb").exit_code == 0

    def test_an_unavailable_source_is_listed(self, site: Path) -> None:
        with answering(site) as (url, _):
            pass  # nothing listens any more
        result = self.bundle_job(site, "--metrics-url", url)
        assert result.exit_code == 0, result.output
        (row,) = [row for row in manifest_of(site / "run.tsb").inputs if row.plane == "metric"]
        assert row.status == "unreadable"

    def test_a_store_can_be_added_to_a_site(self, site: Path) -> None:
        folder = write(site / "more", {"gpu.prom": metrics(), "sacct.txt": owned(SACCT + sacct("41"))})
        ingest([folder], site / "store")
        result = self.bundle_job(site, "--store", str(site / "store"))
        assert result.exit_code == 0, result.output
        assert f"inputs/{live.METRICS}" in [member.name for member in manifest_of(site / "run.tsb").members]

    def test_lines_of_a_log_store_are_bundled(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are written as the readers received them."""
        (site / "work" / "slurm-41.out").unlink()
        monkeypatch.setattr("trackside.session.site.open_log_store", lambda options: JobLogStore())
        result = self.bundle_job(site, "--logs-url", "loki=http://127.0.0.1:9")
        assert result.exit_code == 0, result.output
        with zipfile.ZipFile(site / "run.tsb") as archive:
            (name,) = [name for name in archive.namelist() if name.startswith("inputs/job-41/")]
            lines = archive.read(name).decode().splitlines()
        assert lines[0] == "2026-03-02T08:00:10.000000000Z stdout F step 1 loss 10.0000"
        assert trackside.diagnose(site / "run.tsb").primary.family == "H2"

    @pytest.mark.service
    def test_samples_of_victoriametrics_are_bundled(self, site: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        with services.victoria_metrics(tmp_path_factory.mktemp("vm")) as victoria:
            victoria.load(metrics())
            result = self.bundle_job(site, "--metrics-url", victoria.url)
        assert result.exit_code == 0, result.output
        with zipfile.ZipFile(site / "run.tsb") as archive:
            rows = [json.loads(line) for line in archive.read(f"inputs/{live.METRICS}").splitlines()]
        by_gpu = {row["metric"]["gpu"]: dict(zip(row["timestamps"], row["values"], strict=True)) for row in rows}
        times = [(T0 + second) * 1000 for second in range(0, 720, 30)]
        assert by_gpu == {"0": dict.fromkeys(times, 0.9), "1": dict.fromkeys(times, 0.91)}
        assert run_cli("verify", site / "run.tsb").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--metrics-url", "http://127.0.0.1:9"), "give --job"),
        (("x", "--despite-differences"), "needs --store, or --job without PATHS"),
        ((), "PATHS of a run's evidence, or --job ID"),
        (("--check",), "give the bundle"),
    ],
)
def test_wrong_arguments_are_refused_with_a_reason(arguments: tuple[str, ...], reason: str) -> None:
    response = run_cli("bundle", *arguments)
    assert response.exit_code == 2
    assert reason in response.output


def test_copies_stay_in_their_folder(tmp_path: Path) -> None:
    """Whatever the name of a log stream is."""
    with live.copies() as copies:
        for path in ("../../etc/x", "/etc/x", "a/../../x", "a", "a/b", "n\0ul", "x" * 500, "sacct -j 4242", "A"):
            target = Path(copies._target_path(path))
            target.write_text("")
            assert Path(copies.folder).resolve() in target.resolve().parents
