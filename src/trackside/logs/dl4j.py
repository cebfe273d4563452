"""Deeplearning4j: ``Score at iteration 100 is 1.39``; its score is the loss."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("dl4j", "Deeplearning4j", "framework")


@PARSER.pattern(
    rb"Score at iteration [0-9]{1,12} is ",
    rf"Score at iteration (\d{{1,12}}) is ({NUMBER})",
    safety="The whole form of the line.",
    matches=("10:21:31.120 [main] INFO  o.d.o.l.ScoreIterationListener - Score at iteration 100 is 1.3912",),
    avoids=("Score at iteration 100 is unknown",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    return line.event("progress", step=int(match[1]), loss=number(match[2]), framework=PARSER.id)
