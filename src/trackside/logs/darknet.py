"""Darknet: `` 378: 2.171473, 1.238869 avg loss, 0.000053 rate, 0.612668 seconds, 18144 images, 0.29 hours left``."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("darknet", "Darknet", "framework", precedence=300)


@PARSER.pattern(
    rb"[0-9]: [0-9.naif-]{1,20}, [0-9.naif-]{1,20} avg(?: loss)?, [0-9.]{1,12} rate, ",
    rf"(?:^|\s)(\d{{1,9}}): {NUMBER}, ({NUMBER}) avg(?: loss)?, ({NUMBER}) rate, ({NUMBER}) seconds",
    safety="The running mean, which Darknet calls the loss, not the batch's own in front of it.",
    matches=(
        " 378: 2.171473, 1.238869 avg loss, 0.000053 rate, 0.612668 seconds, 18144 images, 0.291708 hours left",
        "9798: 0.370096, 0.451929 avg, 0.001000 rate, 3.300000 seconds, 627072 images",
    ),
    avoids=("Region 82 Avg IOU: 0.371293, Class: 0.4, Obj: 0.5",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    return line.event(
        "progress",
        step=int(match[1]),
        loss=number(match[2]),
        lr=number(match[3]),
        step_time_s=number(match[4]),
        framework=PARSER.id,
    )
