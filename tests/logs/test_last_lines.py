"""The last lines of a log in many wordings, as strangers' programs print them: what ended the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trackside import diagnose

WORDINGS = json.loads((Path(__file__).parent / "last_lines.json").read_text("utf-8"))
START = "Using device: cuda\nLoading dataset from data/train\n"
PLANNED_EPOCHS = 50


def epochs(count: int = 12) -> str:
    """The lines of a loop that learns."""
    return "".join(
        f"Epoch {i}/{PLANNED_EPOCHS}: train loss {2 / i**0.5:.4f}, val loss {2.1 / i**0.5:.4f}\n"
        for i in range(1, count + 1)
    )


def family(text: str, folder: Path) -> str:
    log = folder / "train.log"
    log.write_text(text, "utf-8")
    return diagnose(log).primary.family


@pytest.mark.parametrize("words", WORDINGS["interrupted"])
def test_a_person_stopped_it(words: str, tmp_path: Path) -> None:
    assert family(START + epochs() + words + "\n", tmp_path) == "H1"


@pytest.mark.parametrize("words", WORDINGS["not_interrupted"])
def test_nobody_stopped_it(words: str, tmp_path: Path) -> None:
    assert family(START + epochs() + words + "\n", tmp_path) == "G1"


@pytest.mark.parametrize("words", WORDINGS["ended"])
def test_the_training_ended(words: str, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(START + epochs(PLANNED_EPOCHS - 1) + words + "\n", "utf-8")
    primary = diagnose(log).primary
    assert primary.family == "G1"
    assert primary.certainty is not None
    assert primary.certainty.value != "possible"


@pytest.mark.parametrize(("words", "families"), WORDINGS["failed_at_the_start"].items())
def test_it_failed_at_the_start(words: str, families: list[str], tmp_path: Path) -> None:
    assert family(f"{START}{words}\n", tmp_path) in families


@pytest.mark.parametrize(("words", "families"), WORDINGS["failed_in_mid_training"].items())
def test_it_failed_in_mid_training(words: str, families: list[str], tmp_path: Path) -> None:
    assert family(START + epochs() + words + "\n", tmp_path) in families
