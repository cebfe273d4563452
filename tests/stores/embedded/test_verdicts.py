"""A store gives the same verdict as the files, whatever else it holds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import trackside
from tests.stores.embedded.runs import (
    SACCT,
    T0,
    TRACEBACK,
    ingest,
    sacct,
    scrape,
    steps,
    verdict_document,
    verdict_of_files,
    verdict_of_store,
    write,
)
from tools.cases import Case, scenarios
from trackside.cli import main
from trackside.runs.resolve import NoSuchRun, SeveralRuns
from trackside.session import StoreRequest, open_session
from trackside.session.paths import load
from trackside.show.document import document, encode
from trackside.sim import load_scenario, simulate
from trackside.stores.metadata.archive import Archive

pytestmark = pytest.mark.slow

SAMPLE = (
    "a2/kernel-oom-takes-one-rank",
    "b1/sim-load-one-gpu",
    "b2/fallen-off-the-bus",
    "c2/watchdog-one-rank-says-nothing",
    "d2/hf-saves-every-step",
    "e2/lab-slurm-silent-resume",
    "f2/preempted-then-completed",
    "g1/lab-lightning-tqdm",
    "g1/sim-mig-slices",
    "h4/lab-disk-full-checkpoint",
)
CASES = {case.name: case for case in scenarios()}
SMALL = ("cluster.nodes=2", "cluster.gpus_per_node=2", "job.duration_s=240")
"""Two nodes with two GPUs each for four minutes."""


@pytest.mark.parametrize("name", SAMPLE)
def test_files_and_store_give_the_same_verdict(name: str, tmp_path: Path) -> None:
    case: Case = CASES[name]
    with case.inputs() as folder:
        ingest([folder], tmp_path / "store")
        stored = verdict_of_store(tmp_path / "store")
        job = stored["run"]["id"]  # without it, files that hold several jobs name the others
        assert stored == verdict_of_files(folder, job=job)


def _fleet(folder: Path) -> dict[str, Path]:
    """Simulated runs of one cluster, each on its own nodes: job id -> folder."""
    runs = {}
    for number, scenario in enumerate(("healthy", "gpu-lost", "cuda-oom-first-step")):
        job = str(48_200 + number)
        changes = [*SMALL, f"job.id={job!r}", f"job.name={scenario!r}", f"cluster.first={number * 10 + 1}"]
        changes += ["fault.0.gpu=1"] if scenario == "gpu-lost" else []
        simulate(load_scenario(scenario, changes, 7), folder / f"made-{job}")
        runs[job] = (folder / f"made-{job}" / "run").rename(folder / f"run-{job}")
    return runs


def test_a_store_of_several_runs_gives_each_run_its_verdict(tmp_path: Path) -> None:
    runs, store = _fleet(tmp_path), tmp_path / "store"
    expected = {job: verdict_of_files(folder) for job, folder in runs.items()}
    assert len({document["primary"]["family"] for document in expected.values()}) == len(runs)
    order = list(runs)
    random.Random(3).shuffle(order)
    for job in order:
        ingest([runs[job]], store)
    for job in runs:
        assert expected[job]["run"]["id"] == job
        assert verdict_of_store(store, job, [f"run-{job}/"]) == expected[job]

    with pytest.raises(SeveralRuns, match=f"{', '.join(runs)}; name one of them$"):
        trackside.diagnose(store=store)
    assert "; choose one with --job ID" in CliRunner().invoke(main, ["diagnose", "--store", str(store)]).stderr
    with pytest.raises(NoSuchRun, match="no job 4820 in the store; 'trackside runs --store"):
        trackside.diagnose(store=store, job="4820")

    listed = json.loads(CliRunner().invoke(main, ["runs", "--store", str(store), "--json"]).stdout)
    assert [row["id"] for row in listed] == list(runs)
    for row in listed:
        run = expected[row["id"]]["run"]
        for column, field in (("name", "name"), ("state", "disposition"), ("start", "start"), ("end", "end")):
            assert row[column] == run[field]
        assert row["nodes"] == run["nodes"]
        assert row["n_gpus"] == 4
        assert {"scheduler", "log", "metric"} <= set(row["planes"])
    table = CliRunner().invoke(main, ["runs", "--store", str(store)]).stdout
    assert [line.split()[0] for line in table.splitlines() if line[0] != " "] == ["job", *runs]


def test_a_verdict_from_a_store_can_be_verified(tmp_path: Path) -> None:
    store, saved = tmp_path / "store", tmp_path / "verdict.json"
    simulate(load_scenario("straggler", (*SMALL, "fault.0.gpu=1"), 7), tmp_path / "made")
    ingest([tmp_path / "made" / "run"], store)
    diagnosed = CliRunner().invoke(main, ["diagnose", "--store", str(store), "--json"])
    assert diagnosed.exit_code == 0
    assert any(cite["query"].startswith("metric") for cite in json.loads(diagnosed.stdout)["cites"].values())
    saved.write_text(diagnosed.stdout)
    result = CliRunner().invoke(main, ["verify", str(saved)])
    assert result.exit_code == 0, result.output
    assert CliRunner().invoke(main, ["verify", str(saved), str(tmp_path / "made" / "run")]).exit_code == 0


def test_a_run_without_a_job_id_counts_among_the_runs_of_a_store(tmp_path: Path) -> None:
    recorded = write(tmp_path / "one", {"sacct.txt": SACCT + sacct("41", "COMPLETED"), "slurm-41.out": steps(20)})
    store = tmp_path / "store"
    for folder in (recorded, write(tmp_path / "two", {"train.log": steps(20)})):
        ingest([folder], store)
    with pytest.raises(SeveralRuns, match="the store has 2 runs: 41, two; name one of them"):
        trackside.diagnose(store=store)


def test_runs_without_a_job_go_by_their_folders(tmp_path: Path) -> None:
    first = write(tmp_path / "one", {"train.log": steps(20) + TRACEBACK.format(module="flash_attn")})
    second = write(tmp_path / "two", {"train.log": TRACEBACK.format(module="xformers")})
    store, saved = tmp_path / "store", tmp_path / "verdict.json"
    for folder in (first, second):
        ingest([folder], store)
    with pytest.raises(SeveralRuns, match="the store has 2 runs: one, two; name one of them"):
        trackside.diagnose(store=store)
    assert verdict_of_store(store, "one") == verdict_of_files(first)
    assert verdict_of_store(store, str(second), ["two/"]) == verdict_of_files(second)
    listed = CliRunner().invoke(main, ["runs", "--store", str(store)]).stdout.splitlines()
    assert [line.split()[:2] for line in listed[1:]] == [["one", "(folder)"], ["two", "(folder)"]]
    saved.write_text(CliRunner().invoke(main, ["diagnose", "--store", str(store), "--job", "two", "--json"]).stdout)
    assert CliRunner().invoke(main, ["verify", str(saved)]).exit_code == 2
    assert CliRunner().invoke(main, ["verify", str(saved), "--job", "two"]).exit_code == 0


def test_a_log_without_a_job_id_belongs_to_the_job_ingested_with_it(tmp_path: Path) -> None:
    store = tmp_path / "store"
    folders = {}
    for job, module in (("7001", "flash_attn"), ("7002", "xformers"), ("7003", "xformers")):
        files = {
            "sacct.txt": SACCT + sacct(job, name="train", day=int(job) - 7000),
            "train.log": TRACEBACK.format(module=module),
        }
        folders[job] = write(tmp_path / f"run-{job}", files)
        write(tmp_path / "others", {f"slurm-{job[:3]}9.out": steps(5)})
        ingest([folders[job]], store)
    ingest([tmp_path / "others"], store)
    for job, folder in folders.items():
        expected = verdict_of_files(folder)
        assert expected["primary"]["family"] == "A1"
        assert verdict_of_store(store, job, [f"run-{job}/"]) == expected


def test_an_exception_of_the_previous_run_is_not_this_runs(tmp_path: Path) -> None:
    """The runs share user, folder and name; the first lacked a module, the second ran out of memory."""
    folder = "/home/user/train"
    oom = "slurmstepd-gpu017: error: Detected 1 oom-kill event(s) in StepId=7102.batch. Some of your processes may have been killed by the cgroup out-of-memory handler.\n"
    first = {"a.txt": SACCT + sacct("7101", folder=folder), "slurm-7101.out": TRACEBACK.format(module="flash_attn")}
    second = {"b.txt": SACCT + sacct("7102", "OUT_OF_MEMORY", day=3, folder=folder), "slurm-7102.out": oom}
    for name, files in (("first", first), ("second", second)):
        ingest([write(tmp_path / name, files)], tmp_path / "store")
    both = verdict_of_files(write(tmp_path / "both", first | second), job="7102")
    assert both["run"]["parent"] == "7101"
    assert both["primary"]["family"] == "A2"
    document = verdict_of_store(tmp_path / "store", "7102")
    assert document["run"]["parent"] == "7101"
    assert document["primary"]["family"] == "A2"
    assert "A1" not in {finding["family"] for finding in (*document["consequences"], *document["warnings"])}


def test_jobs_of_the_same_name_in_other_folders_are_not_parents(tmp_path: Path) -> None:
    for number in (1, 2):
        job = f"720{number}"
        files = {"sacct.txt": SACCT + sacct(job, day=number, name="train"), f"slurm-{job}.out": steps(30)}
        ingest([write(tmp_path / f"run-{job}", files)], tmp_path / "store")
    assert verdict_of_store(tmp_path / "store", "7202")["run"]["parent"] is None


def test_files_given_with_a_store_belong_to_the_requested_job(tmp_path: Path) -> None:
    run = write(tmp_path / "run", {"sacct.txt": SACCT + sacct("7301")})
    log = write(tmp_path / "elsewhere", {"train.log": TRACEBACK.format(module="flash_attn")}) / "train.log"
    store = tmp_path / "store"
    ingest([run], store)
    ingest([write(tmp_path / "other", {"sacct.txt": SACCT + sacct("7302"), "slurm-7302.out": steps(9)})], store)
    verdict = trackside.diagnose([log], store=store, job="7301")
    assert verdict.primary.family == "A1"
    assert verdict.run.log_paths == ("train.log",)
    assert trackside.diagnose(store=store, job="7301").primary.family != "A1"

    ingest([log], store)  # the store now has it, assigned to no job
    assert trackside.diagnose([log], store=store, job="7301").primary.family == "A1"


def test_samples_over_the_memory_limit_go_to_a_temporary_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    simulate(load_scenario("straggler", (*SMALL, "fault.0.gpu=1"), 7), tmp_path / "made")
    expected = verdict_of_files(tmp_path / "made" / "run")
    monkeypatch.setattr("trackside.session.inputs.MAX_SAMPLES_IN_MEMORY", 700)
    loaded = load([tmp_path / "made" / "run"])
    assert loaded.metric_backend is not None
    assert loaded.metric_backend.name == "store"
    assert list(tmp_path.glob("trackside-store-*"))
    del loaded
    assert not list(tmp_path.glob("trackside-store-*"))
    assert verdict_document(trackside.diagnose(tmp_path / "made" / "run")) == expected
    assert not list(tmp_path.glob("trackside-store-*"))


def test_metrics_in_another_folder_are_found_by_node_and_time(tmp_path: Path) -> None:
    """The metrics are found by node and time; samples of the node a week later are not the run's."""
    store = tmp_path / "store"
    run = write(tmp_path / "run", {"sacct.txt": SACCT + sacct("7401", "COMPLETED"), "slurm-7401.out": steps(50)})
    during_run = "".join(scrape("gpu017", seconds, 90) for seconds in range(0, 601, 15))
    later = "".join(scrape("gpu017", 7 * 86_400 + seconds, 5) for seconds in range(0, 601, 15))
    other = "".join(scrape("gpu018", seconds, 5) for seconds in range(0, 601, 15))
    ingest([run], store)
    ingest([write(tmp_path / "metrics", {"here.prom": during_run, "later.prom": later, "other.prom": other})], store)
    with open_session(StoreRequest(store, "7401")) as session:
        metrics, picked = session.store.metrics, session.run
        assert metrics is not None
        metric_series = [info.series for info in metrics.series]
    assert {series.get("node") for series in metric_series} == {"gpu017"}
    assert picked.gpus == ("gpu017:0", "gpu017:1")
    assert picked.start == T0 + 10


def test_runs_are_listed_with_their_verdicts(tmp_path: Path) -> None:
    """Those that the receiver archived; with --verdicts also new ones."""
    files = {"sacct.txt": SACCT + sacct("41"), "slurm-41.out": steps(20) + TRACEBACK.format(module="flash_attn")}
    ingest([write(tmp_path / "41", files)], tmp_path / "store")
    files = {"sacct.txt": SACCT + sacct("42", "COMPLETED"), "slurm-42.out": steps(200)}
    ingest([write(tmp_path / "42", files)], tmp_path / "store")

    def listed(*options: str) -> dict[str, str | None]:
        output = CliRunner().invoke(main, ["runs", "--store", str(tmp_path / "store"), "--json", *options]).stdout
        return {row["id"]: row["verdict"] for row in json.loads(output)}

    assert listed() == {"41": None, "42": None}
    verdict = trackside.diagnose(store=tmp_path / "store", job=41)
    with Archive.open(f"sqlite:///{tmp_path / 'store' / 'verdicts.db'}") as archive:
        archive.record(verdict, encode(document(verdict, [])), job="41")
    assert listed() == {"41": "H2 (established)", "42": None}
    assert listed("--verdicts") == {"41": "H2 (established)", "42": "G1 healthy (supported)"}
