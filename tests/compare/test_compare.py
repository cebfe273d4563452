"""Two runs compared: what differs, where they diverge, and that every figure cites both."""

from __future__ import annotations

import io
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tools.cases import SCENARIOS, simulated_run
from trackside.cli import main
from trackside.compare.compare import compare
from trackside.compare.divergence import first_divergence
from trackside.compare.settings import settings
from trackside.compare.side import ComparedRow, Side
from trackside.evidence import reduce_answer
from trackside.query import Query
from trackside.session import Session
from trackside.session.paths import load
from trackside.show.comparison import SCHEMA, ComparisonDoc, _onset_sentence, _onset_text, comparison, render
from trackside.show.document import json_schema
from trackside.sim import scenarios


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["compare", *(str(argument) for argument in arguments)])


def comparison_doc(*arguments: object) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    doc: dict[str, Any] = json.loads(result.stdout)
    return doc


def row(doc: dict[str, Any], label: str) -> dict[str, Any]:
    match: dict[str, Any] = next(row for row in doc["rows"] if row["label"].startswith(label))
    return match


def inputs(name: str) -> Path:
    folder = SCENARIOS / name
    return simulated_run(folder / "scenario.toml") if (folder / "scenario.toml").exists() else folder / "inputs"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A healthy run and the same one with a GPU that throttles."""
    folder = tmp_path_factory.mktemp("pair")
    text = (SCENARIOS / "b3/sim-thermal-one-gpu/scenario.toml").read_text()
    (folder / "good.toml").write_text(text.partition("[[fault]]")[0])
    return simulated_run(folder / "good.toml"), inputs("b3/sim-thermal-one-gpu")


@pytest.fixture(scope="session")
def sides(pair: tuple[Path, Path]) -> tuple[Side, Side]:
    """Both runs of the pair, diagnosed."""
    good, bad = (Session.of(load([path])) for path in pair)
    return Side(good), Side(bad)


@pytest.fixture(scope="session")
def throttle_doc(pair: tuple[Path, Path]) -> dict[str, Any]:
    """The comparison of the pair."""
    return comparison_doc(*pair)


# -- simulated pairs


def test_a_throttled_run_diverges_when_its_clock_falls(throttle_doc: dict[str, Any]) -> None:
    doc = throttle_doc
    assert doc["answer"][0].startswith(
        "A: No fault found; the training loss fell (G1). B: GPU clocks throttled by heat, rank 7"
    )
    assert doc["answer"][1].startswith("A step takes 1.58 times as long in B: 2.99 s in A, 4.74 s in B")
    assert "more than at the pace of A" in doc["answer"][2]
    assert doc["answer"][3].startswith("The runs diverge 14 min after the start: ")
    assert "SM clock of the slowest GPU (median of the next 180 s) 1,980 MHz in A, 990 MHz in B" in doc["answer"][3]
    assert 800 <= doc["partings"][0]["seconds"] <= 900
    clock = row(doc, "SM clock of the slowest GPU")
    assert (clock["a"], clock["b"], clock["differs"]) == (1.98e9, 9.9e8, True)
    assert row(doc, "median SM clock")["differs"] is False
    assert row(doc, "loss")["differs"] is False
    assert row(doc, "nodes")["differs"] is False


def test_a_divergence_before_that_of_the_fault_is_named() -> None:
    early, fault = (
        ComparedRow("metrics", "SM activity", seconds=210.0),
        ComparedRow("metrics", "SM clock", seconds=900.0),
    )
    assert _onset_sentence([fault], [early]) == (
        "The runs diverge 3 min 30 s after the start in SM activity, and by a fault 15 min after the start: SM clock."
    )
    late = replace(early, seconds=960.0)
    assert _onset_sentence([fault], [late]) == "The runs diverge 15 min after the start: SM clock."


def test_swapped_runs_give_a_mirrored_comparison(pair: tuple[Path, Path], throttle_doc: dict[str, Any]) -> None:
    one, other = throttle_doc, comparison_doc(*reversed(pair))
    for here, there in zip(one["rows"], other["rows"], strict=True):
        assert (here["label"], here["differs"], here["a"], here["b"]) == (
            there["label"], there["differs"], there["b"], there["a"],
        )  # fmt: skip
    assert [parting["seconds"] for parting in one["partings"]] == [parting["seconds"] for parting in other["partings"]]
    assert one["a"] == other["b"] | {"paths": one["a"]["paths"]}


def test_a_run_compared_with_itself_has_no_difference(pair: tuple[Path, Path]) -> None:
    doc = comparison_doc(pair[0], pair[0])
    assert doc["answer"][0] == "A and B are the same input: the run is compared with itself."
    assert doc["answer"][1].startswith("No difference found in ")
    assert doc["partings"] == []
    assert not any(row["differs"] for row in doc["rows"])


def test_the_exit_status_shows_whether_the_runs_differ(tmp_path: Path) -> None:
    one, other = log(tmp_path / "a.out", 1), log(tmp_path / "b.out", 1, rate="3.0e-04")
    assert run(one, one, "--exit-code").exit_code == 0
    assert run(one, other, "--exit-code").exit_code == 10
    assert run(one, other).exit_code == 0


def test_every_value_cites_its_own_run_and_can_be_checked_again(
    throttle_doc: dict[str, Any], sides: tuple[Side, Side]
) -> None:
    doc = throttle_doc
    jsonschema.validate(doc, json_schema(SCHEMA, ComparisonDoc))
    stores = {letter: side.session.store for letter, side in zip("ab", sides, strict=True)}
    for entry in (*doc["rows"], *doc["partings"]):
        for letter in "ab":
            if entry[letter] is not None:
                assert entry[f"cites_{letter}"], entry
            assert all(name.startswith(letter) for name in entry[f"cites_{letter}"])
    assert len(doc["cites"]) > 40
    for name, cite in doc["cites"].items():
        if cite["query"]:
            query = Query.parse(cite["query"])
            answer = stores[name[0]].ask(query.rows)
            assert reduce_answer(answer, query) == pytest.approx(cite["value"]), cite  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bad", "family", "first", "dated"),
    [
        ("d3/sim-slow-gpu-16", "(D3)", "SM activity", False),  # slow from its start
        ("e1/sim-explode", "(E1)", "loss ", True),
        ("b1/sim-midrun-one-rank-watchdog", "(B1)", "the fault of run B begins", True),
    ],
)
def test_a_good_run_compared_with_bad_ones(
    pair: tuple[Path, Path], bad: str, family: str, first: str, dated: bool
) -> None:
    doc = comparison_doc(pair[0], inputs(bad))
    assert family in " ".join(doc["answer"])
    (parting,) = (line for line in doc["answer"] if line.startswith("The runs diverge"))
    assert first in parting
    assert any(entry["label"] == "the fault of run B begins" for entry in doc["partings"]) == dated
    assert "learning rate" not in parting
    assert all(parting["cites_a"] or parting["cites_b"] for parting in doc["partings"])
    assert all(parting["label"].startswith(parting["name"]) for parting in doc["partings"])


def test_a_learning_rate_of_another_schedule_is_no_divergence(pair: tuple[Path, Path]) -> None:
    """More steps are planned: differences that follow from that are marked as such."""
    doc = comparison_doc(pair[1], inputs("b1/sim-midrun-one-rank-watchdog"))
    assert row(doc, "planned steps")["differs"] is True
    along = {entry["name"]: entry["follows"] for entry in doc["following"]}
    assert along["learning rate"].startswith("planned steps (")
    assert "learning rate" not in {parting["name"] for parting in doc["partings"]}
    assert any("may explain these divergences: learning rate" in line for line in doc["answer"])


def test_a_slowdown_is_priced_in_gpu_hours_and_money(pair: tuple[Path, Path], throttle_doc: dict[str, Any]) -> None:
    result = run(*pair, "--price", "2 EUR", "--json")
    slow = json.loads(result.stdout)["slowdown"]
    figures = re.fullmatch(
        r"(\d+) GPUs x ([\d,]+) steps x \(([\d.]+) s - ([\d.]+) s\) / 3,600 s/h = ([\d.]+) GPU-hours",
        slow["formula"],
    )
    assert figures is not None
    gpus, steps, longer, shorter, hours = (float(group.replace(",", "")) for group in figures.groups())
    assert hours == slow["gpu_hours"] == pytest.approx(gpus * steps * (longer - shorter) / 3600, abs=1e-3)
    assert (slow["slower"], slow["cost"], slow["currency"]) == ("b", pytest.approx(2 * hours, abs=0.01), "EUR")
    assert slow["cites_a"]
    assert slow["cites_b"]
    assert "same amount of work" in slow["assumption"]
    assert throttle_doc["slowdown"]["cost"] is None
    assert comparison_doc(*reversed(pair))["slowdown"]["slower"] == "a"


def test_steps_of_other_sizes_are_not_priced(pair: tuple[Path, Path]) -> None:
    """Fewer GPUs, smaller batches: the step times are shown with that caveat."""
    doc = comparison_doc(pair[1], inputs("b1/sim-midrun-one-rank-watchdog"))
    assert row(doc, "GPUs")["differs"] is True
    assert doc["slowdown"] is None
    slow = [line for line in doc["answer"] if "times as long in" in line]
    assert all("the steps are not the same amount of work: the runs differ in GPUs (" in line for line in slow)
    assert slow


def test_the_time_after_a_fault_does_not_count_as_step_time() -> None:
    """B waits for minutes in a collective with a lost GPU."""
    doc = comparison_doc(inputs("b2/sim-ecc-contained"), inputs("b2/sim-lost-and-hanging"))
    assert row(doc, "elapsed time")["differs"] is True
    assert row(doc, "time per step")["differs"] is False
    assert not any("times as long in" in line for line in doc["answer"])


def test_runs_with_different_work_are_not_comparable(tmp_path: Path) -> None:
    head = "Namespace(batch_size=32, model='{}', dataset='{}')\n"
    one = log(tmp_path / "a.out", 1, head=head.format("gpt2", "pile"))
    other = log(tmp_path / "b.out", 1, head=head.format("bert", "books"), rises_at=20)
    first = comparison_doc(one, other)["answer"][0]
    assert first.startswith("These runs do not look comparable: they differ in ")
    assert "model (gpt2 / bert)" in first
    assert "dataset (pile / books)" in first
    assert not comparison_doc(one, log(tmp_path / "c.out", 1, head=head.format("gpt2", "pile"), rises_at=20))["answer"][
        0
    ].startswith("T")


def test_labels_are_not_truncated(throttle_doc: dict[str, Any], sides: tuple[Side, Side]) -> None:
    out = io.StringIO()
    render(comparison(compare(*sides)), Console(file=out, width=120, highlight=False))
    assert any(line.startswith("  median SM clock of the slowest GPU  ") for line in out.getvalue().splitlines())
    long = next(
        row["label"]
        for row in throttle_doc["rows"]
        if row["seconds"] is None and row["differs"] and 26 < len(row["label"]) < 46
    )
    assert any(line.startswith(f"  {long} ") for line in out.getvalue().splitlines())


def test_values_known_for_one_run_only_are_not_compared(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A value that one run lacks is not compared, and the reason names that run."""
    logs = tmp_path / "logs"
    logs.mkdir()
    for path in pair[0].rglob("*.out"):
        (logs / path.name).write_bytes(path.read_bytes())
    doc = comparison_doc(logs, pair[1])
    assert row(doc, "loss")["differs"] is False
    assert row(doc, "median SM activity")["why"] == "not known for run A"
    assert row(doc, "state")["differs"] is None
    doc = comparison_doc(inputs("c3/sim-metrics-only"), pair[1])
    assert row(doc, "loss")["why"] == "not recognized in run A"
    assert row(doc, "median SM activity")["differs"] is not None


def test_a_first_step_is_no_step_time(tmp_path: Path) -> None:
    """The first step includes the warm-up: alone, it is not compared with the median of another run."""
    lines = [f"iter {i}: loss {9 - i / 10:.4f}, time {5000 if i == 0 else 150}.00ms, mfu 3.00%" for i in range(20)]
    for name, count in (("long", 20), ("short", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.log").write_text("\n".join(lines[:count]) + "\n")
    doc = comparison_doc(tmp_path / "long", tmp_path / "short")
    assert row(doc, "median step time")["why"].startswith("too few steps behind the first")
    assert not any("times as long" in line for line in doc["answer"])


def test_two_groups_of_gpus_are_compared_by_their_ends_not_by_a_median(pair: tuple[Path, Path]) -> None:
    """Half of the GPUs of run B wait for a slow host: the median describes neither half."""
    slow_host = simulated_run(Path(scenarios.__file__).with_name("straggler-cpu.toml"))
    doc = comparison_doc(pair[0], slow_host)
    assert "median engine activity" not in [row["label"] for row in doc["rows"]]
    least = row(doc, "median engine activity of the least busy GPU")["b"]
    assert least < 0.6 < row(doc, "median engine activity of the busiest GPU")["b"]


def test_jobs_of_a_store_can_be_compared(pair: tuple[Path, Path], tmp_path: Path) -> None:
    store = tmp_path / "store"
    CliRunner().invoke(main, ["ingest", str(pair[0]), "--store", str(store)])
    doc = comparison_doc("48213", pair[1], "--store", store)
    assert doc["answer"][0].endswith("(B3).")
    assert "a store keeps the parsed events" in row(doc, "settings printed in the log")["why"]
    assert run("48213", pair[1]).exit_code == 2
    whole = comparison_doc(store, pair[1])  # a store with one job is a run too
    assert whole["answer"] == doc["answer"]
    assert "a store keeps the parsed events" in row(whole, "settings printed in the log")["why"]


# -- generated logs


def log(
    path: Path, seed: int, *, steps: int = 60, rises_at: int | None = None, head: str = "", rate: str = "2.0e-04"
) -> Path:
    """A log with noise by ``seed``; its loss rises from step ``rises_at`` on."""
    noise = random.Random(seed)
    lines = head.splitlines()
    for step in range(1, steps + 1):
        loss = (
            4 * 0.99**step
            + noise.gauss(0, 0.03)
            + (0.2 * (step - rises_at) if rises_at is not None and step > rises_at else 0)
        )
        lines.append(
            f"2026-06-10 12:{step // 2:02d}:{30 * (step % 2):02d} | INFO | step {step} | loss {loss:.4f} | lr {rate}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_losses_with_different_seeds_do_not_diverge(tmp_path: Path) -> None:
    for seed in range(8):
        doc = comparison_doc(log(tmp_path / "a.out", seed), log(tmp_path / "b.out", 100 + seed))
        assert row(doc, "loss at step")["differs"] is False, seed


def test_losses_diverge_where_one_rises(tmp_path: Path) -> None:
    doc = comparison_doc(log(tmp_path / "a.out", 1), log(tmp_path / "b.out", 2, rises_at=30))
    loss = row(doc, "loss at step")
    assert (loss["differs"], loss["name"]) == (True, "loss")
    assert 31 <= loss["step"] <= 34
    assert "4 times the noise" in loss["rule"]
    assert "/b.out" in doc["cites"][loss["cites_b"][0]]["where"] or doc["cites"][loss["cites_b"][0]][
        "where"
    ].startswith("b.out")


def test_the_time_of_a_step_names_its_run() -> None:
    divergence = ComparedRow("training", "loss", differs=True, step=50.0, seconds=222.0, clock="A")
    assert _onset_text(divergence) == "at step 50, 3 min 42 s after the start of A"
    assert _onset_text(replace(divergence, step=None, clock="")) == "3 min 42 s after the start"


HEAD_A = "Namespace(batch_size=32, lr=0.0002, warmup=100, output='/runs/a')\nPyTorch version: 2.3.1\nNCCL_ALGO=RING\n"
HEAD_B = "Namespace(batch_size=64, lr=0.0002, warmup=100, output='/runs/b')\nPyTorch version: 2.4.0\nNCCL_ALGO=RING\n"


def test_settings_are_compared_and_cited_by_their_lines(tmp_path: Path) -> None:
    doc = comparison_doc(log(tmp_path / "a.out", 1, head=HEAD_A), log(tmp_path / "b.out", 1, head=HEAD_B))
    size = row(doc, "batch_size")
    assert (size["a"], size["b"], size["differs"]) == ("32", "64", True)
    assert doc["cites"][size["cites_a"][0]]["where"] == "a.out:1"
    assert "batch_size (32 / 64)" in " ".join(doc["answer"])
    assert not [row for row in doc["rows"] if row["label"].startswith("warmup")]
    assert [row for row in doc["rows"] if "version" in row["label"]]


def test_a_log_cannot_command_the_terminal(tmp_path: Path) -> None:
    head = "Namespace(batch_size=32, model='\x1b[31m[bold]x\u202e')\n"
    text = run(log(tmp_path / "a.out", 1, head=head), log(tmp_path / "b.out", 1, head=HEAD_A)).stdout
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_different_frameworks_are_reported() -> None:
    doc = comparison_doc(inputs("g1/lab-hf-ddp"), inputs("g1/lab-keras-verbose-2"))
    assert row(doc, "framework")["differs"] is True
    assert "framework (hf-trainer / keras)" in " ".join(doc["answer"])


def test_a_framework_that_is_not_recognized_is_not_compared() -> None:
    doc = comparison_doc(inputs("g1/lab-hf-ddp"), inputs("g1/lab-custom-key-value"))
    assert (row(doc, "framework")["differs"], row(doc, "framework")["why"]) == (None, "not recognized for run B")
    assert "framework" not in " ".join(doc["answer"])


def test_missing_paths_are_an_error(tmp_path: Path) -> None:
    result = run(tmp_path / "none", tmp_path / "other")
    assert result.exit_code == 2
    assert "--store" in result.stderr


@pytest.mark.parametrize("width", [60, 100, 160])
def test_text_keeps_to_its_width(sides: tuple[Side, Side], width: int) -> None:
    doc = comparison(compare(*sides), (["good"], ["bad"]))
    for verbose in (False, True):
        out = io.StringIO()
        render(doc, Console(file=out, width=width, highlight=False), verbose)
        assert "B3 clock-throttle" in out.getvalue()
        assert max(map(len, out.getvalue().splitlines())) <= width
        assert "\x1b" not in out.getvalue()


# -- the rule of divergence


def test_first_divergence_needs_a_sustained_difference() -> None:
    flat = [1.0] * 20
    assert first_divergence(flat, flat, 0.03) is None
    assert first_divergence(flat, [*flat[:10], 5.0, *flat[11:]], 0.03) is None, "one point is a spike"
    assert first_divergence(flat, [*flat[:10], *[1.5] * 10], 0.03) == 10
    assert first_divergence(flat, [*flat[:10], *[math.nan] * 10], 0.03) == 10
    assert first_divergence(flat, [*flat[:19], 3.0], 0.03) == 19, "far apart at the end of both"
    assert first_divergence(flat, [*flat[:19], 1.2], 0.03) is None
    assert first_divergence([], [], 0.03) is None
    assert first_divergence([1.0], [5.0], 0.03) == 0


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("Namespace(lr=0.1, model='gpt')", "model", "gpt"),
        ("  hidden_size ..................................... 4096", "hidden_size", "4096"),
        ("python train.py --batch-size 32 --amp", "batch_size", "32"),
        ("export NCCL_DEBUG=INFO", "nccl_debug", "INFO"),
        ("+ NCCL_ALGO=RING", "nccl_algo", "RING"),
        ("weight_decay: 0.01", "weight_decay", "0.01"),
        (':::MLLOG {"key": "global_batch_size", "value": 768, "event_type": "POINT_IN_TIME", "metadata": {}}',
         "global_batch_size", "768"),
        ("NCCL version 2.21.5+cuda12.4", "nccl version", "2.21.5+cuda12.4"),
    ],
)  # fmt: skip
def test_lines_with_settings_are_read(line: str, name: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(line + "\n")
    assert settings([str(tmp_path)], ["a.out"], {})[name].value == value


@pytest.mark.parametrize(
    "line", ["loss: 3.2", "Epoch: 3", "time: 12:00:01", "see https://x.org: y", "val_accuracy = 0.3"]
)
def test_lines_about_progress_are_no_settings(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text(line + "\n")
    assert settings([str(tmp_path)], ["a.out"], {}) == {}
