from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trackside
from tests.stores.metadata.verdicts import T0, verdict, written
from tests.stores.metadata.verdicts import run as archived_run
from tools.cases import SCENARIOS
from trackside.cli import main
from trackside.stores.metadata.archive import Archive

TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/home/user/train/train.py", line 3, in <module>\n'
    "    main()\n"
    "ModuleNotFoundError: No module named 'flash_attn'\n"
)
SACCT = (
    "JobID|JobName|State|ExitCode|Submit|Start|End|NodeList\n"
    "41|lm|FAILED|1:0|2026-11-21T08:00:00|2026-11-21T08:00:00|2026-11-21T08:00:30|gpu017\n"
    "42|other|COMPLETED|0:0|2026-11-21T09:00:00|2026-11-21T09:00:00|2026-11-21T09:10:00|gpu018\n"
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments], prog_name="trackside")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-41.out"
    path.write_text(TRACEBACK)
    return path


def test_a_single_log_is_diagnosed(log: Path) -> None:
    result = run("diagnose", log)
    assert result.exit_code == 0
    assert "A1 startup-crash" in result.stdout
    assert "slurm-41.out:" in result.stdout


def test_json_is_alone_on_stdout_and_verifies(log: Path, tmp_path: Path) -> None:
    result = run("diagnose", log, "--json")
    verdict = json.loads(result.stdout)
    assert verdict["schema"] == "trackside.verdict/1"
    assert verdict["primary"]["fault_class"] == "env"
    saved = tmp_path / "verdict.json"
    saved.write_text(result.stdout)
    assert run("verify", saved, log).exit_code == 0
    assert run("verify", saved).exit_code == 0
    log.write_text(TRACEBACK.replace("flash_attn", "xformers"))
    changed = run("verify", saved, log)
    assert changed.exit_code == 1
    assert "xformers" in changed.stdout


def test_the_command_of_the_short_verdict_follows_its_advice(log: Path) -> None:
    text = run("diagnose", log, "--short").stdout
    advice, _, rest = text.partition("Do: ")[2].partition(" Command: `")
    assert advice.endswith(".")
    assert rest.partition("`. ")[2].startswith("Cost: ") or rest.rstrip().endswith("`.")


def test_exit_codes(log: Path, tmp_path: Path) -> None:
    assert run("diagnose", log, "--exit-code").exit_code == 10
    nothing = tmp_path / "quiet.log"
    nothing.write_text("hello\n")
    assert run("diagnose", nothing, "--exit-code").exit_code == 11
    healthy = SCENARIOS / "g1/pretraining-completed/inputs"
    assert run("diagnose", healthy, "--exit-code").exit_code == 0
    unfinished = tmp_path / "stopped.log"
    unfinished.write_text("".join(f"step {step}/100 loss {9 - step / 10:.2f}\n" for step in range(1, 51)))
    result = run("diagnose", unfinished, "--exit-code")
    assert "G1 healthy" in result.stdout
    assert "certainty: possible" in result.stdout
    assert result.exit_code == 11


def test_several_jobs_need_a_choice(log: Path, tmp_path: Path) -> None:
    (tmp_path / "sacct.txt").write_text(SACCT)
    (tmp_path / "slurm-42.out").write_text("step 1 loss 3.0\n")
    result = run("diagnose", tmp_path)
    assert result.exit_code == 2
    assert "--job" in result.stderr
    assert "41" in result.stderr
    assert "42" in result.stderr
    chosen = json.loads(run("diagnose", tmp_path, "--job", "41", "--json").stdout)
    assert chosen["run"]["id"] == "41"
    assert chosen["run"]["disposition"] == "FAILED"
    assert run("diagnose", tmp_path, "--job", "77").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["diagnose"], 2, "give PATHS"),
        (["diagnose", "--frobnicate", "x"], 2, "diagnose has no option --frobnicate; 'trackside diagnose --help'"),
        (["diagnose", "x", "--price", "3x"], 2, "--price '3x' is not a price of a GPU-hour"),
        (["runs", "--archive", "sqlite:////tmp/no-such.db"], 2, "no archive at /tmp/no-such.db"),
        (["--jbo"], 2, "trackside has no option --jbo"),
        (["diagnose", "--jub", "3"], 2, "diagnose has no option --jub; did you mean --job?"),
        (["diagnose", "x", "--interval"], 2, "option '--interval' requires an argument"),
        (["simulate", "straggler", "--seed", "x"], 2, "--seed: 'x' is not a whole number; 'trackside simulate"),
        (["serve", "--store", "x", "--listen", "x"], 2, "--listen: 'x' is not HOST:PORT; give 127.0.0.1:9480"),
        (["diagnose", "x", "--interval", "0"], 2, "--interval: 0.0 is less than the minimum of 1; 'trackside diagnose"),
        (["explain"], 2, "explain needs FAMILY; 'trackside explain --help' shows how to use it"),
        (["ingest", "a"], 2, "ingest needs --store DIR; 'trackside ingest --help'"),
        (["schema", "x"], 2, "DOCUMENT: 'x' is not one of 'verdict', 'comparison'; 'trackside schema --help'"),
        (["version", "x"], 2, "unexpected extra argument (x); 'trackside version --help'"),
        (["agent", "--x"], 2, "no such argument: --x; 'trackside agent --help' shows how to use it"),
        (["agent", "chek"], 2, "no command 'chek'; did you mean 'check'?\n"),
        (["chek"], 2, "no command 'chek'"),
        (["diagnose", "/no/such/path"], 2, "no such file"),
        (["explain", "z9"], 2, "no family"),
        (["verify", "/no/such/verdict.json"], 2, "no such file or folder: /no/such/verdict.json"),
        (["diagnose", "--now", "yesterday", "."], 2, "--now"),
        (["diagnose", "--now", "nan", "."], 2, "--now"),
        (["diagnose", "--now", "inf", "."], 2, "--now"),
    ],
)
def test_wrong_usage_is_refused_with_a_reason(arguments: list[str], status: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == status
    assert message in result.stderr
    assert result.stderr.startswith("trackside")
    assert result.stderr.count("\n") == 1


def test_unreadable_inputs_are_listed(tmp_path: Path) -> None:
    (tmp_path / "core.bin").write_bytes(os.urandom(4096))
    (tmp_path / "empty.log").touch()
    result = run("diagnose", tmp_path)
    assert result.exit_code == 3
    assert "inputs" in result.stderr
    assert "empty.log" in result.stderr
    table = run("inputs", tmp_path)
    assert table.exit_code == 3
    assert "empty" in table.stdout


def test_a_file_without_a_run_is_not_called_empty(tmp_path: Path) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=gamma\nSlurmctldHost=ctl\nSchedulerType=sched/backfill\n")
    result = run("diagnose", tmp_path / "slurm.conf")
    assert result.exit_code == 3
    assert "nothing to diagnose in slurm.conf: slurm.conf; nothing about a run" in result.stderr
    imported = run("ingest", tmp_path / "slurm.conf", "--store", tmp_path / "store")
    assert "is empty" not in imported.stderr
    (tmp_path / "empty.log").touch()
    assert "nothing to diagnose in empty.log: the file is empty" in run("diagnose", tmp_path / "empty.log").stderr


def test_verify_reports_a_removed_citation(log: Path, tmp_path: Path) -> None:
    doc = json.loads(run("diagnose", log, "--json").stdout)
    removed, _ = doc["cites"].popitem()
    path = tmp_path / "verdict.json"
    path.write_text(json.dumps(doc))
    result = run("verify", path)
    assert result.exit_code == 1
    assert f"{removed}: a sentence cites it, but" in result.stdout


def test_verify_refuses_a_file_that_is_not_a_verdict(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"schema": 3}')
    assert run("verify", path).exit_code == 2


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("metric(gpu_sm_active_ratio).where(gpu=['0']).max()", "strings"),
        ("metric(gpu_sm_active_ratio).where(gpu=0).max()", "string"),
        ("metric(gpu_sm_active_ratio).rollup(1e999, 'avg').max()", "finite"),
        ("metric(gpu_sm_active_ratio).during(0, 1e12).rollup(0.001, 'avg').max()", "windows"),
        ("metric(gpu_sm_active_ratio).during(0, 1e12).max()", "windows"),
        ("events(exception).where(step={}).count()", "strings"),
        ("events(exception).by('rank', how='sum').count()", "metrics"),
    ],
)
def test_verify_explains_an_invalid_query(query: str, problem: str, log: Path, tmp_path: Path) -> None:
    curves = tmp_path / "gpu.prom"
    curves.write_text(
        "".join(f'gpu_sm_active_ratio{{node="n",gpu="0"}} 1 {1764000000 + t}000\n' for t in range(0, 600, 15))
    )
    doc = json.loads(run("diagnose", log, curves, "--json").stdout)
    name = next(iter(doc["cites"]))
    doc["cites"][name]["query"] = query
    saved = tmp_path / "verdict.json"
    saved.write_text(json.dumps(doc))
    result = run("verify", saved, log, curves)
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit)
    (line,) = [line for line in result.stdout.splitlines() if line.startswith(f"{name}: ")]
    assert problem in line


def test_labels_and_ids_may_be_numbers_of_any_length(tmp_path: Path) -> None:
    many = "7" * 5000
    curves, jobs = tmp_path / "gpu.prom", tmp_path / "sacct.txt"
    curves.write_text("".join(
        f'{name}{{node="n{node}",gpu="{gpu}",rank="{gpu}"}} 0.5 {1795248000 + t}000\n'
        for name in ("gpu_sm_active_ratio", "training_step_seconds") for node in ("1", many) for gpu in ("0", many)
        for t in range(0, 600, 15)
    ))  # fmt: skip
    assert run("diagnose", curves).exit_code == 0
    jobs.write_text(SACCT.replace("42|", f"{many}|").replace("gpu017", f"n{many}"))
    assert run("diagnose", curves, jobs, "--job", "41").exit_code == 0
    several = run("diagnose", curves, jobs)
    assert several.exit_code == 2
    assert "2 jobs: 41, 777" in several.stderr


def test_verify_explains_unreadable_paths(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run("verify", tmp_path)
    assert folder.exit_code == 2
    assert "is a folder" in folder.stderr
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "verdict.json"
    saved.write_text(run("diagnose", log.name, "--json").stdout)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    moved = run("verify", saved)
    assert moved.exit_code == 2
    assert "PATHS" in moved.stderr
    assert run("verify", saved, log).exit_code == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["diagnose"], ["diagnose", "--json"], ["inputs"]])
def test_a_full_disk_is_a_one_line_error(log: Path, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trackside", *arguments, str(log)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.startswith("trackside: ")
    assert done.stderr.count("\n") == 1


def test_an_ascii_stdout_gets_ascii_lines(log: Path) -> None:
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "trackside", "diagnose", str(log)], env=plain, capture_output=True)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert all(line == line.rstrip() for line in done.stdout.decode().split("\n"))


@pytest.mark.parametrize(("columns", "max_width"), [("80", 80), ("160", 160), ("none", 120)])
def test_piped_text_is_as_wide_as_the_columns_variable(columns: str, max_width: int, log: Path) -> None:
    env = {**os.environ, "COLUMNS": columns}
    done = subprocess.run([sys.executable, "-m", "trackside", "diagnose", str(log)], env=env, capture_output=True)
    widest = max(len(line) for line in done.stdout.decode().splitlines())
    assert max_width - 25 < widest <= max_width


def test_a_piped_table_of_inputs_has_a_line_per_file(tmp_path: Path) -> None:
    path = tmp_path / ("long-folder-name/" * 12) / "job.log"
    path.parent.mkdir(parents=True)
    path.write_text("step 1 loss 2.0\n")
    lines = CliRunner().invoke(main, ["inputs", str(tmp_path)]).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["file", str(path.relative_to(tmp_path))]


def test_runs_lists_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    url = f"sqlite:///{tmp_path}/verdicts.db"
    with Archive.open(url) as archive:
        for job, family in (("7", "A1"), ("8", "G1")):
            job_run = archived_run(job, name=f"lm-{job}", start=T0 + int(job))
            archived = verdict(job_run, family)
            archive.record(archived, written(archived))
    listed = run("runs", "--archive", url)
    assert listed.exit_code == 0, listed.output
    head, *rows = listed.stdout.splitlines()
    assert head.split()[-1] == "verdict"
    assert [row.split()[:3] for row in rows] == [["7", "lm-7", "FAILED"], ["8", "lm-8", "FAILED"]]
    assert rows[0].endswith("A1 (established)")
    (tmp_path / "trackside.toml").write_text(f'[metadata]\nurl = "{url}"\n')
    assert run("runs", "--config", tmp_path / "trackside.toml").stdout == listed.stdout
    last = run("runs", "--archive", url, "--limit", 1)
    assert "lm-7" not in last.stdout
    assert "use --limit N to list more" in last.stderr
    assert [row["id"] for row in json.loads(run("runs", "--archive", url, "--json").stdout)] == ["7", "8"]
    assert "not both" in run("runs", "--archive", url, "--store", tmp_path).output


def test_a_verdict_cannot_command_the_terminal(log: Path, tmp_path: Path) -> None:
    doc = json.loads(run("diagnose", log, "--json").stdout)
    for cite in doc["cites"].values():
        cite["where"], cite["value"] = "train.log\x1b[2J:3", "other"
    (tmp_path / "verdict.json").write_text(json.dumps(doc))
    result = run("verify", tmp_path / "verdict.json", log)
    assert result.exit_code == 1
    assert "train.log\N{REPLACEMENT CHARACTER}[2J:3" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "give paths or store"),
        ({"job": 42}, "give paths or store"),
        ({"paths": [], "job": "42"}, "give paths or store"),
        ({"paths": "run", "as_of": "now"}, "as_of is 'now'; give POSIX seconds"),
        ({"paths": "run", "as_of": float("nan")}, "as_of is nan; give POSIX seconds"),
        ({"paths": None}, "paths is None; give"),
    ],
)
def test_python_is_told_which_arguments_are_missing_or_wrong(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(trackside.errors.UsageError, match=reason):
        trackside.diagnose(**arguments)


def test_python_takes_a_job_as_a_number_and_names_its_types(log: Path) -> None:
    (log.parent / "sacct.txt").write_text(SACCT)
    verdict = trackside.diagnose(log.parent, job=41)
    assert isinstance(verdict, trackside.Verdict)
    assert verdict.run.id == "41"


def test_python_gives_the_sentences_and_the_documents_that_the_command_prints(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    verdict = trackside.diagnose(log)
    doc = json.loads(run("diagnose", log, "--json").stdout)
    assert verdict.headline == doc["primary"]["headline"]["text"]
    assert [str(claim) for claim in verdict.primary.shows] == [claim["text"] for claim in doc["shows"]]
    assert str(verdict.primary.actions[0]).splitlines()[0] == doc["actions"][0]["text"]
    assert trackside.to_text(verdict).split() == run("diagnose", log).stdout.split()
    assert trackside.to_dict(verdict) == json.loads(trackside.to_json(verdict)) == doc


def test_python_says_that_a_cause_is_merely_possible() -> None:
    verdict = trackside.diagnose("tests/scenarios/h2/log-ends-with-an-unknown-error-line/inputs")
    assert verdict.headline.startswith("Possibly crashed")
    assert trackside.to_dict(verdict)["primary"]["headline"]["text"] == verdict.headline


def test_a_document_of_python_names_its_inputs_for_verify(log: Path, tmp_path: Path) -> None:
    ingested = run("ingest", log, "--store", tmp_path / "store")
    assert ingested.exit_code == 0, ingested.output
    for made, inputs in (
        (trackside.diagnose([log]), [str(log)]),
        (trackside.diagnose(store=tmp_path / "store"), [str(tmp_path / "store")]),
    ):
        (tmp_path / "verdict.json").write_text(trackside.to_json(made))
        assert trackside.to_dict(made)["paths"] == inputs
        assert run("verify", tmp_path / "verdict.json").exit_code == 0


def test_the_help_of_the_package_shows_its_public_names() -> None:
    shown = set(dir(trackside))
    assert shown > {*trackside.__all__, "__version__", "errors"}
    assert not {name for name in shown if not name.startswith("__")} - {*trackside.__all__, "errors"}
    assert all(getattr(trackside, name) for name in shown)


def test_the_settings_in_effect_name_the_options_that_set_them() -> None:
    shown = run(
        "config", "--slurm", "off", "--archive", "sqlite:////x.db", "--metrics-url", "http://x", "--cluster", "c"
    )
    origins = re.findall(r"# (--.*)", shown.stdout)
    assert sorted(set(origins)) == ["--archive", "--cluster", "--metrics-url", "--slurm"]


def test_watching_files_needs_a_site(log: Path) -> None:
    result = run("diagnose", log, "--job", "41", "--watch")
    assert result.exit_code == 2
    assert "leave out PATHS and --store, or add a site option" in result.stderr


def test_an_archive_gives_the_same_verdict(tmp_path: Path) -> None:
    folder = next(iter(sorted(SCENARIOS.glob("a2/*/inputs"))))
    archive = tmp_path / "run.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "run")
    from_folder, from_archive = trackside.diagnose(folder), trackside.diagnose(archive)
    assert from_archive.primary.family == from_folder.primary.family
    assert from_archive.progress == from_folder.progress


def test_explain_families_and_schema_print_their_documents() -> None:
    assert run("explain", "u0").stdout == run("explain", "UNKNOWN").stdout
    assert "What it cannot decide" in run("explain", "cuda-oom").stdout
    assert "\n- NVIDIA: Xid catalog: https://docs.nvidia.com/deploy/xid-errors/" in run("explain", "b2").stdout
    assert "B1" in run("families").stdout
    assert json.loads(run("schema").stdout)["title"] == "trackside.verdict/1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("diagnos", "x"), "no command 'diagnos'; did you mean 'diagnose'?"),
        (("serve", "--metrics-url", "mimir"), "--metrics-url: the URL 'mimir' must begin with http://"),
    ],
)
def test_an_error_names_what_was_given(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_verbose_shows_every_query(log: Path) -> None:
    assert "events(exception)" in run("diagnose", log, "-v").stdout


def test_a_log_line_cannot_command_the_terminal(tmp_path: Path) -> None:
    hostile = "\x07 \x1b]0;title\x1b\\ \x1bc \x9b31m \u202e"
    path = tmp_path / "slurm-4242.out"
    path.write_text(
        "2026-03-02T08:00:00Z start\nTraceback (most recent call last):\n"
        f'  File "a.py", line 1, in <module>\ntorch.OutOfMemoryError: CUDA out of memory {hostile} x\n'
    )
    result = run("diagnose", path)
    assert "\N{REPLACEMENT CHARACTER}]0;title" in result.stdout
    wrong = run("diagnose", tmp_path / hostile.replace("/", ""))
    for text in (result.stdout, wrong.stderr):
        assert [
            character for character in text if character != "\n" and unicodedata.category(character) in ("Cc", "Cf")
        ] == []


def test_without_arguments_the_command_that_was_meant_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"):
        monkeypatch.delenv(name, raising=False)

    def suggestion() -> str:
        result = CliRunner().invoke(main, ["diagnose"])
        assert result.exit_code == 2
        return result.stderr.partition("of a job at this site")[2].partition("; 'main diagnose --help'")[0]

    assert suggestion() == ""
    for number, name in enumerate(("slurm-9.out", "slurm-10_2.out", "slurm-x.out", "train.log")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (number, number))
    assert suggestion() == "; the newest output of a job here: 'trackside diagnose slurm-10_2.out'"
    monkeypatch.setenv("SLURM_JOB_ID", "44")
    assert suggestion() == "; this is job 44: 'trackside diagnose --job 44'"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "42")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    assert suggestion() == "; this is job 42: 'trackside diagnose --job 42_2'"
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "42; rm -rf /")
    assert suggestion() == "; the newest output of a job here: 'trackside diagnose slurm-10_2.out'"
