"""AllenNLP: a table of training and validation figures after each epoch.

- allennlp.training.trainer - Epoch 4/74
- allennlp.training.trainer -              Training |  Validation
- allennlp.training.trainer - loss     |     0.432  |     0.394
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "allennlp"

PARSER = Parser(ID, "AllenNLP", "framework")


@PARSER.pattern(
    rb"allennlp[^\n\r]{1,80} - Epoch [0-9]{1,6}/[0-9]",
    r" - Epoch (\d{1,7})/\d{1,7}\s*$",
    safety="Only remembers the epoch; yields no event.",
)
def _remember_epoch(line: Line, match: re.Match[str]) -> None:
    line.notes(ID)["epoch"] = int(match[1])


@PARSER.pattern(
    rb"allennlp[^\n\r]{1,80} - (?:training_)?loss {1,20}\| {1,20}[0-9nNiI-]",
    rf" - (?:training_)?loss\s+\|\s+({NUMBER})(?:\s+\|\s+({NUMBER})|\s)",
    safety="The other rows are metrics.",
    matches=(
        "INFO - allennlp.training.trainer - Epoch 4/74\n"
        "INFO - allennlp.training.trainer - loss     |     0.432  |     0.394",
    ),
    avoids=("INFO - allennlp.training.trainer - accuracy |     0.837  |     0.848",),
)
def _progress(line: Line, match: re.Match[str]) -> Iterator[Event]:
    epoch = line.notes(ID).get("epoch")
    yield line.event("progress", epoch=epoch, loss=number(match[1]), framework=ID)
    if match[2] is not None:
        value = number(match[2])
        yield line.event("evaluation", epoch=epoch, metric="loss", value=value, loss=value)
