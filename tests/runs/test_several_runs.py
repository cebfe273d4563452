"""Inputs of more than one run: reported if they cannot be separated, and never healthy if one failed."""

from __future__ import annotations

from pathlib import Path

import trackside
from tests.families.rows import sentence_name
from tests.stores.embedded.runs import SACCT, sacct, write
from trackside.finding import Verdict


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
