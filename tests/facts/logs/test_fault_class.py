"""The fault class of a job's exception, for messages of many libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from trackside.facts.logs.fault_rules import RULES, classify
from trackside.model import Event, Position

LINES = [
    line
    for line in (Path(__file__).parent / "fault_classes.txt").read_text().splitlines()
    if line.strip() and not line.startswith("#")
]


def exception(name: str, message: str, frames: str = "", **fields: str) -> Event:
    where = {"frames": frames} if " in " in frames else {"user_code": frames}
    return Event("exception", Position("log", 1), "log", fields={"type": name, "message": message, **where, **fields})


@pytest.mark.parametrize("line", LINES)
def test_the_exception_decides_the_fault_class(line: str) -> None:
    expected, name, message, *places = (part.strip() for part in line.split("|"))
    fault_class = classify(exception(name, message.replace("\\n", "\n"), *places))
    assert fault_class == expected


def test_the_root_of_an_exception_chain_is_classified() -> None:
    fault_class = classify(
        exception(
            "RuntimeError",
            "could not set up the run",
            chain="FileNotFoundError",
            root_type="FileNotFoundError",
            root_message="[Errno 2] No such file or directory: '/data/x.bin'",
        )
    )
    assert fault_class == "asset"


@pytest.mark.parametrize(
    ("frames", "own", "expected"),
    [
        ("/venv/site-packages/hydra/main.py:90 in decorated_main;/home/u/model.py:12 in stft", "model.py:12", "code"),
        ("/home/u/train_3_datasets.py:9 in main;/home/u/loss.py:34 in forward", "loss.py:34", "code"),
        ("/home/u/train.py:9 in main;/home/u/dataset.py:34 in __getitem__", "dataset.py:34", "data"),
        ("/venv/torch/utils/data/_utils/fetch.py:54 in fetch;/home/u/audio.py:3 in resample", "audio.py:3", "data"),
    ],
)
def test_the_frames_above_the_jobs_own_last_one_decide_no_class(frames: str, own: str, expected: str) -> None:
    own_frame = next(frame for frame in frames.split(";") if own in frame)
    assert classify(exception("ValueError", "bad size 3", frames, user_frame=own_frame)) == expected


def test_an_unknown_exception_is_code() -> None:
    assert classify(exception("acme.Oops", "it broke")) == "code"


def test_rule_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
