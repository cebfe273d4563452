"""nnU-Net, first and second version: an ``Epoch N`` line, then one figure per line. Its Dice loss is normally
negative."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_EPOCH = re.compile(r"(?:^|: )[Ee]poch:? {1,4}(\d{1,6})\s*$")
_RATE = re.compile(rf": Current learning rate: ({NUMBER})")
MAX_BLOCK_LINES = 40
"""Lines above a loss in which its epoch is looked for."""

PARSER = Parser("nnunet", "nnU-Net", "framework")


@PARSER.pattern(
    rb"[0-9]: (?:train|val|validation)[_ ]loss ?:? {0,2}[0-9naiNI.+-]",
    rf"^\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{{6}}: (train|val|validation)[_ ]loss ?:? ({NUMBER})\s*$",
    safety="Only a line of its own behind nnU-Net's timestamp; a loss next to other figures comes from something else.",
    matches=(
        "2026-01-01 00:00:00.711169: Epoch 19\n2026-01-01 00:00:00.724555: Current learning rate: 0.009\n"
        "2026-01-01 00:01:00.803760: train_loss -0.7526",
        "2026-01-01 00:01:00.803760: val_loss -0.771",
        "epoch:  6\n2026-01-01 00:01:00.625515: train loss : -0.6584",
    ),
    avoids=("2026-01-01 00:01:00.625515: train_loss -0.7 is the lowest",),
)
def _point(line: Line, match: re.Match[str]) -> Event:
    epoch, rate = None, None
    for neighbor in line.preceding(MAX_BLOCK_LINES):
        if header := _EPOCH.search(neighbor.text):
            epoch = int(header[1])
            break
        rate = rate or _RATE.search(neighbor.text)
    loss = number(match[2])
    if match[1] != "train":
        return line.event("evaluation", epoch=epoch, metric="loss", value=loss, loss=loss)
    return line.event(
        "progress", step=epoch, epoch=epoch, loss=loss, lr=number(rate[1]) if rate else None, framework="nnunet"
    )
