"""Reads back the logged steps of a lab run.

These readers know which script wrote the log, so they are simple on purpose: they give
the expected progress of a scenario and share no code with the tool under test.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Point = tuple[int | None, float | str]

# Patterns with groups `step` and `loss`, by style of train/prints.py or framework.
NUMBER = r"(?P<loss>[-+\w.]+)"
PLAIN = rf"\bstep (?P<step>\d+) loss {NUMBER}"
NANOGPT = rf"\biter (?P<step>\d+): loss {NUMBER},"
JSON_LINE = rf'"event": "train".*"step": (?P<step>\d+), "loss": {NUMBER}'
KEY_VALUE = rf"msg=train step=(?P<step>\d+) total=\d+ loss={NUMBER}"
LOGGER = rf"iter (?P<step>\d+)/\d+ \| loss {NUMBER}"
TQDM_LOSS = r"\| (?P<step>\d+)/\d+ \[[^\]\n]*loss=(?P<loss>[-+\w.]+)"
LIGHTNING_BAR = r"Epoch (?P<epoch>\d+): [^\n]*?\| (?P<batch>\d+)/\d+ \[[^\]\n]*train_loss=(?P<loss>[-+\w.]+)"
EPOCH_METER = r"Epoch: \[(?P<epoch>\d+)\]\[ *(?P<batch>\d+)/50\].*Loss (?P<loss>[-+\w.]+) \("
KERAS_LOSS = r"loss: (?P<loss>[-+\w.]+)"
HF_DICT = r"'loss': '?(?P<loss>[-+\w.]+)"


class StepReader(Protocol):
    """Reads logged steps from a scenario's inputs."""

    def read(self, inputs: Path) -> list[Point]: ...


@dataclass(frozen=True)
class Reader:
    """Points of the files that match `files`.

    `every` numbers points that carry no step of their own (HF Trainer, Keras epochs);
    `first_step` is where such counting begins in a resumed run.
    """

    pattern: str
    files: str = "*.log"
    every: int | None = None
    first_step: int = 0

    def read(self, inputs: Path) -> list[Point]:
        points: dict[int | None, Point] = {}
        for path in sorted(inputs.rglob(self.files)):
            text = path.read_text(errors="replace").replace("\r", "\n")
            for match in re.finditer(self.pattern, text):
                step = self._step(match, len(points))
                points.setdefault(step, (step, _number(match["loss"])))
        return list(points.values())

    def _step(self, match: re.Match[str], count: int) -> int:
        if self.every is None:
            return int(match["step"])
        return self.first_step + (count + 1) * self.every


@dataclass(frozen=True)
class BarReader:
    """Points that carry epoch and batch: the last loss that was shown at each batch."""

    pattern: str
    batches: int
    files: str = "*.log"

    def read(self, inputs: Path) -> list[Point]:
        points: dict[int, Point] = {}
        for path in sorted(inputs.rglob(self.files)):
            text = path.read_text(errors="replace").replace("\r", "\n")
            for match in re.finditer(self.pattern, text):
                batch = int(match["batch"])
                step = int(match["epoch"]) * self.batches + batch
                if batch:
                    points[step] = (step, _number(match["loss"]))
        return list(points.values())


@dataclass(frozen=True)
class KerasReader:
    """Points of Keras' fit: the last loss shown in each epoch."""

    batches: int
    files: str = "*.log"

    def read(self, inputs: Path) -> list[Point]:
        points: list[Point] = []
        for path in sorted(inputs.rglob(self.files)):
            epochs = re.split(r"Epoch \d+/\d+", path.read_text(errors="replace"))[1:]
            for number, text in enumerate(epochs, 1):
                shown = re.findall(KERAS_LOSS, text)
                points.append((number * self.batches, _number(shown[-1])))
        return points


def _number(text: str) -> float | str:
    value = float(text)
    finite = value - value == 0
    return value if finite else str(value)


def progress(points: list[Point], keys: tuple[str, ...]) -> dict[str, object] | None:
    """The `progress` entry of expected.json; a loss that is not finite is a string."""
    if not points:
        return None
    entry = {"points": len(points), "first": list(points[0]), "last": list(points[-1])}
    return {key: entry[key] for key in keys}


def dumps(value: object) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
