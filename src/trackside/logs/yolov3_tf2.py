"""yolov3-tf2: ``12_train_84, 5.552264, [0.528438, 0.003370]``: epoch, batch, total loss and its parts."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("yolov3-tf2", "yolov3-tf2", "framework", precedence=300)


@PARSER.pattern(
    rb"[0-9]_(?:train|val)_[0-9]{1,9}, [0-9naif.-]{1,24}, \[",
    rf"\b(?P<epoch>\d{{1,7}})_(?P<split>train|val)_(?P<batch>\d{{1,9}}), (?P<loss>{NUMBER}), \[",
    safety="A list of the loss's parts follows.",
    matches=(
        "I0403 06:36:32.364682 140009606776640 train.py:153] 50_train_33, 5.51021146774292, [0.48405588, 0.0019648294]",
        "I0403 06:36:52.364682 140009606776640 train.py:170] 50_val_3, 6.5, [0.5, 0.2]",
    ),
    avoids=("50_train_33.tfrecord, 12, [a]",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    epoch, batch, loss = int(match["epoch"]), int(match["batch"]), number(match["loss"])
    if match["split"] == "val":
        return line.event("evaluation", step=batch, epoch=epoch, metric="loss", value=loss, loss=loss)
    return line.event("progress", step=batch, epoch=epoch, loss=loss, framework=PARSER.id)
