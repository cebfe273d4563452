"""Logged steps that frameworks save in files of their own, and other text files next to a job's output."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from trackside.model import Event, Input
from trackside.read.detect import read_source
from trackside.read.format import HEAD_BYTES, CollectingSink, InputSource
from trackside.read.formats.job_log import looks_like_text, rank_of
from trackside.read.walk import walk


def read(data: str | bytes, path: str) -> tuple[Input, list[Event]]:
    raw = data.encode() if isinstance(data, str) else data
    sink = CollectingSink()
    source = InputSource(path, raw[:HEAD_BYTES], io.BufferedReader(io.BytesIO(raw)), len(raw))  # type: ignore[arg-type]
    return read_source(source, sink), sink.events


def state(steps: int = 20, **more: Any) -> dict[str, Any]:
    history: list[dict[str, Any]] = [
        {"epoch": n / 10, "grad_norm": 1.5, "learning_rate": 1e-4, "loss": 3 - n / 10, "step": n * 5}
        for n in range(1, steps + 1)
    ]
    history.insert(10, {"epoch": 1.0, "eval_loss": 2.25, "eval_accuracy": 0.5, "eval_runtime": 9.1, "step": 50})
    return {
        "best_metric": 2.25,
        "epoch": 2.0,
        "global_step": 5 * steps,
        "log_history": history,
        "logging_steps": 5,
        "max_steps": 400,
        "num_train_epochs": 8,
        "save_steps": 50,
        **more,
    }


def test_trainer_state() -> None:
    text = json.dumps(state(), indent=2, sort_keys=True)
    row, events = read(text, "checkpoint-100/trainer_state.json")
    assert (row.format, row.status, row.plane) == ("trainer-state", "read", "log")
    points = [event for event in events if event.kind == "progress"]
    assert len(points) == 20
    assert points[2].fields == {
        "step": 15,
        "epoch": 0.3,
        "loss": 2.7,
        "grad_norm": 1.5,
        "lr": 1e-4,
        "framework": "hf-trainer",
    }
    assert text.split("\n")[points[2].at.line - 1].strip() == "{"
    assert json.loads(text[points[2].at.offset :][: points[2].at.length])["step"] == 15
    (plan,) = (event for event in events if event.kind == "training_plan")
    assert (plan.get("total_steps"), plan.get("epochs"), plan.get("save_steps")) == (400, 8.0, 50)
    assert {(e.get("metric"), e.get("value"), e.get("loss")) for e in events if e.kind == "evaluation"} == {
        ("eval_loss", 2.25, 2.25),
        ("eval_accuracy", 0.5, None),
        ("best_metric", 2.25, None),
    }


def test_trainer_state_of_a_finished_run() -> None:
    document = state()
    document["log_history"].append({"epoch": 2.0, "step": 100, "train_loss": 1.9, "train_runtime": 60.5})
    _, events = read(json.dumps(document), "trainer_state.json")
    (end,) = (event for event in events if event.kind == "training_end")
    assert (end.get("steps"), end.get("train_loss"), end.get("seconds")) == (100, 1.9, 60.5)


@pytest.mark.parametrize("part", [0.3, 0.5, 0.95])
def test_truncated_trainer_state(part: float) -> None:
    text = json.dumps(state(200), indent=2, sort_keys=True)
    row, events = read(text[: int(len(text) * part)], "trainer_state.json")
    assert row.status == "partial"
    assert len(events) >= 200 * part * 0.9


def test_trainer_state_with_odd_values() -> None:
    document = state(3)
    document["log_history"] += [
        {"step": 4, "loss": float("nan"), "grad_norm": float("inf")},
        {"step": "5", "loss": "0.5", "learning_rate": None},
        {"step": 10**30, "loss": 10**400},
        {"step": [1], "loss": {"a": 1}},
        {},
    ]
    _, events = read(json.dumps(document), "trainer_state.json")
    points = [event for event in events if event.kind == "progress"]
    assert [point.get("step") for point in points[3:]] == [4, 5, None, None]
    assert str(points[3].get("loss")) == "nan"
    assert points[4].get("loss") == 0.5


def test_trainer_log_lines() -> None:
    lines = [
        json.dumps({"current_steps": n, "total_steps": 30, "loss": 2.0, "lr": 1e-5, "epoch": n / 10}) for n in (10, 20)
    ]
    row, events = read("\n".join([*lines, '{"current_steps": 30, "to']), "trainer_log.jsonl")
    assert (row.format, row.status) == ("trainer-log", "partial")
    assert [(e.get("step"), e.at.line) for e in events if e.kind == "progress"] == [(10, 1), (20, 2)]


def test_lightning_csv() -> None:
    text = "epoch,lr-AdamW,step,train_loss_epoch,train_loss_step,val_loss\n0,,9,,2.5,\n0,0.001,9,,,\n0,,19,2.25,,\n0,,19,,,1.5\nx\n"
    row, events = read(text, "metrics.csv")
    assert (row.format, row.status) == ("lightning-csv", "partial")
    assert [(e.get("step"), e.get("loss"), e.at.line) for e in events if e.kind == "progress"] == [
        (9, 2.5, 2),
        (19, 2.25, 4),
    ]
    assert [(e.get("metric"), e.get("value")) for e in events if e.kind == "evaluation"] == [("val_loss", 1.5)]


def test_nccl_debug_file() -> None:
    line = "gpu017:811:{} [3] NCCL INFO {}\n"
    text = line.format(811, "Bootstrap : Using eth0") + line.format(
        812, "ncclCommInitRank comm 0x5581a0 rank 3 nranks 8 cudaDev 3 busId 9d000 - Init COMPLETE"
    )
    row, events = read(text, "nccl.gpu017.811.log")
    assert (row.format, row.plane) == ("nccl-debug", "log")
    assert {(event.rank, event.node) for event in events} == {(3, "gpu017")}


# -- any text


def test_nul_bytes_in_a_log_are_noted_and_skipped() -> None:
    text = b"step 1\n" + bytes(5000) + b"Traceback (most recent call last):\n  File 'x'\nValueError: bad\n" + bytes(300)
    row, events = read(text, "a.log")
    assert (row.format, row.status) == ("job-log", "read")
    assert "5,300 NUL bytes" in row.note
    (activity,) = (event for event in events if event.kind == "log_activity")
    assert activity.get("last_line") == "ValueError: bad"


def test_a_file_of_only_nul_bytes_is_not_read() -> None:
    row, _ = read(bytes(100_000), "a.log")
    assert row.status == "unrecognised"
    assert "NUL" in row.note


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain\n", True),
        ("Größe: 5 µs ✓\n".encode(), True),
        (b"latin-1 caf\xe9\n", True),
        (b"\x1b[31mred\x1b[0m\r\n", True),
        (b'\x50\0\0\0\0\0\0\0{"__metadata__": {}}' + b" " * 9000, False),
        (b"\x7fELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0>\0" + b"text " * 999, False),
        (b"GGUF\3\0\0\0" + b"text " * 999, False),
        (bytes(range(256)) * 8, False),
    ],
)
def test_text_is_distinguished_from_binary_data(data: bytes, text: bool) -> None:
    assert looks_like_text(data) is text


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("train.py", "import torch\n", "unrecognised"),
        ("config.json", '{\n  "hidden_size": 4096\n}\n', "unrecognised"),
        ("dcgm.prom", "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature.\n", "unrecognised"),
        ("model.safetensors", b"\x50\0\0\0\0\0\0\0{}" + bytes(100), "unrecognised"),
        ("run.sh", "srun: error: gpu017: task 0: Killed\n", "read"),
        ("out.jsonl", '{"level": "info", "msg": "start"}\n{"level": "info", "msg": "end"}\n', "read"),
    ],
)
def test_output_is_distinguished_from_source_config_and_data(name: str, data: str | bytes, status: str) -> None:
    row, _ = read(data, name)
    assert row.status == status
    assert row.note


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/attempt_0/3/stdout.log", 3),
        ("a.tar!attempt_1/12/stderr.log", 12),
        ("logs/rank_7.log", 7),
        ("a.tar.gz!rank03.log", 3),
        ("frank3.log", None),
        ("slurm-3.out", None),
    ],
)
def test_rank_of_a_path(path: str, rank: int | None) -> None:
    assert rank_of(path) == rank


def test_the_torchrun_folder_gives_attempt_and_rank() -> None:
    _, events = read("hello\n", "attempt_1/3/stdout.log")
    (activity,) = events
    assert (activity.get("attempt"), activity.get("rank_dir")) == (1, 3)


@pytest.mark.corpus
def test_states_of_real_runs() -> None:
    """Numbers of points and first and last losses, from the notes that came with the data."""
    data = Path(__file__).parents[4] / "shared/data/hf-trainer-states"
    expected = {
        "alpaca/trainer_state.json": (1218, 1.5021),
        "mistral-translator/checkpoint-3000/trainer_state.json": (300, 2.498),
        "nsllm/trainer_log.jsonl": (435, 2.348),
        "qwen-medical/trainer_log.jsonl": (675, 2.219),
        "with-eval/trainer_state.json": (30, 1.107),
        "lightning-two-rows/metrics.csv": (2, 6.575),
    }
    for source in walk([data]):
        sink = CollectingSink()
        assert isinstance(source, InputSource)
        read_source(source, sink)
        if source.path in expected:
            points = [event for event in sink.events if event.kind == "progress"]
            assert (len(points), points[0].get("loss")) == (
                expected[source.path][0],
                pytest.approx(expected[source.path][1], abs=1e-3),
            )
