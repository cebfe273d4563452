"""Inputs of more than one run: reported if they cannot be separated, and never healthy if one failed."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import trackside
from tests.families.rows import sentence_name
from tests.stores.embedded.runs import SACCT, sacct, write
from trackside.finding import Verdict
from trackside.show.document import document


def log(start: float, steps: int = 30, prefix: str = "") -> str:
    """The output of a training loop whose loss falls from ``start``."""
    return "".join(f"{prefix}step {step} loss {start * 0.97**step:.4f}\n" for step in range(1, steps + 1))


def keys(verdict: Verdict) -> set[str]:
    return {sentence_name(claim) for claim in verdict.preflight}


def test_two_trainings_in_one_folder_give_a_preflight_claim(tmp_path: Path) -> None:
    verdict = trackside.diagnose(write(tmp_path, {"one.log": log(8.0), "two.log": log(3.0)}))
    assert "several_runs" in keys(verdict)
    (claim,) = (sentence for sentence in verdict.preflight if sentence_name(sentence) == "several_runs")
    assert {cite.where.partition(":")[0] for cite in claim.cites} == {"one.log", "two.log"}


def test_copies_and_ranks_of_one_run_are_one_run(tmp_path: Path) -> None:
    copies = trackside.diagnose(write(tmp_path / "a", {"one.log": log(8.0), "two.log": log(8.0)}))
    ranks = {f"run.log.rank{rank}": log(8.0 + rank, prefix=f"[rank{rank}]: ") for rank in range(3)}
    assert "several_runs" not in keys(copies)
    assert "several_runs" not in keys(trackside.diagnose(write(tmp_path / "b", ranks)))


def test_parts_that_follow_each_other_are_one_run(tmp_path: Path) -> None:
    later = "".join(f"step {step} loss {2.0 * 0.99**step:.4f}\n" for step in range(31, 60))
    assert "several_runs" not in keys(trackside.diagnose(write(tmp_path, {"one.log": log(8.0), "two.log": later})))


def test_contradicting_records_never_give_a_healthy_run(tmp_path: Path) -> None:
    files = {
        "one/sacct.txt": SACCT + sacct("7"),
        "two/sacct.txt": SACCT + sacct("7", "COMPLETED"),
        "slurm-7.out": log(8.0),
    }
    for swapped in (files, {"one/sacct.txt": files["two/sacct.txt"], "two/sacct.txt": files["one/sacct.txt"]}):
        verdict = trackside.diagnose(write(tmp_path / str(id(swapped)), {**files, **swapped}), job="7")
        assert "records_disagree" in keys(verdict)
        assert verdict.family != "G1"


TRACEBACK = 'Traceback (most recent call last):\n  File "/home/user/train.py", line 3, in <module>\n    main()\n'


def cautions(folder: Path, job: str | None = None) -> str:
    return " ".join(claim.text for claim in document(trackside.diagnose(folder, job=job)).preflight)


@pytest.mark.parametrize(
    ("files", "caution", "arguments"),
    [
        (
            {"slurm-41.out": "KeyError: 1\n", "slurm-42.out": "KeyError: 2\n", "sacct.txt": SACCT + sacct("42")},
            "This verdict is about job 42; the inputs also hold job 41",
            ["FOLDER", "--job", "41"],
        ),
        (
            {"a.out": "KeyError: 1\n", "slurm-43.out": "KeyError: 3\n", "slurm-42.out": "KeyError: 2\n", "sacct.txt": SACCT + sacct("42")},
            "The verdict on job 42 leaves out a.out, whose job is not known",
            ["FOLDER/a.out"],
        ),
        (
            {"nohup1.out": "KeyError: 1\n", "nohup2.out": "ValueError: 2\n"},
            "nohup1.out and nohup2.out look like separate runs, but are judged as one; the answer is from nohup1.out",
            ["FOLDER/nohup2.out"],
        ),
        (
            {"a.log": "2026-01-02 08:00:00 start\nKeyError: 1\n", "b.log": "2026-01-03 08:00:00 start\nValueError: 2\n"},
            "a.log and b.log look like separate runs, but are judged as one; the answer is from a.log",
            ["FOLDER/b.log"],
        ),
        (
            {
                "a.log": "2022-01-02 08:00:00 start\nKeyError: 1\n",
                "b.log": "2025-01-03 08:00:00 start\nValueError: 2\nslurmstepd: error: *** JOB 41 ON n1 CANCELLED ***\n",
            },
            "a.log and b.log look like separate runs, but are judged as one; the answer is from a.log",
            ["FOLDER/b.log"],
        ),
        (
            {"one.log": log(8.0), "two.log": log(3.0)},
            "one.log and two.log look like separate runs, but are judged as one; the answer is from two.log",
            ["FOLDER/one.log"],
        ),
    ],
)  # fmt: skip
def test_a_verdict_on_one_of_several_runs_names_it_and_how_to_diagnose_another(
    tmp_path: Path, files: dict[str, str], caution: str, arguments: list[str]
) -> None:
    for error in ("KeyError", "ValueError"):
        files = {name: text.replace(error, TRACEBACK + error) for name, text in files.items()}
    folder = write(tmp_path / "two words", files)
    doc = document(trackside.diagnose(folder))
    assert caution in [claim.text for claim in doc.preflight]
    words = [argument.replace("FOLDER", str(folder)) for argument in arguments]
    assert shlex.join(["trackside", "diagnose", *words]) in [action.command for action in doc.actions]
    job = dict(zip(words[1::2], words[2::2], strict=True)).get("--job")
    assert caution not in cautions(Path(words[0]), job)


def test_who_chose_the_job_is_not_told_about_the_others(tmp_path: Path) -> None:
    folder = write(tmp_path, {f"slurm-{job}.out": f"{TRACEBACK}KeyError: {job}\n" for job in (41, 42)})
    assert "also hold" not in cautions(folder, "41")


def test_logs_of_the_parts_of_one_run_are_one_run(tmp_path: Path) -> None:
    for number, names in enumerate(
        (("node0.log", "node1.log"), ("run.out", "run.err"), ("nohup_rank0.out", "nohup_rank1.out"))
    ):
        files = {name: f"{TRACEBACK}KeyError: {index}\n" for index, name in enumerate(names)}
        assert "separate runs" not in cautions(write(tmp_path / str(number), files))
