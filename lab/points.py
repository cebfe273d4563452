"""Reads back the training points that a lab run printed.

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
KERAS_EPOCH = r"(?m)^\S*25/25[^\n]*loss: (?P<loss>[-+\w.]+)[^\n]*$"
HF_DICT = r"'loss': '?(?P<loss>[-+\w.]+)"


class Reads(Protocol):
    """Anything that gets points out of a scenario's inputs."""

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
    """Points of Lightning's bar: the last loss that it showed at each batch."""

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


def _number(text: str) -> float | str:
    value = float(text)
    finite = value - value == 0
    return value if finite else str(value)


def progress(points: list[Point]) -> dict[str, object] | None:
    """The `progress` entry of expected.json; a loss that is not finite is a string."""
    if not points:
        return None
    return {"points": len(points), "first": list(points[0]), "last": list(points[-1])}


def dumps(value: object) -> str:
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
