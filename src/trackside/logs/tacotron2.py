"""NVIDIA's Tacotron 2: ``Train loss 500 0.412345 Grad Norm 1.234567 3.45s/it``."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("tacotron2", "Tacotron 2", "framework")


@PARSER.pattern(
    rb"Train loss [0-9]{1,9} [-0-9naif.e+]{1,20} Grad Norm ",
    rf"Train loss (\d{{1,9}}) ({NUMBER}) Grad Norm ({NUMBER}) ({NUMBER})s/it",
    safety="The whole form of the line.",
    matches=("Train loss 500 0.412345 Grad Norm 1.234567 3.45s/it",),
    avoids=("Train loss 500 Grad Norm 1.2", "Validation loss 500:  0.412345  "),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    step, loss, grad_norm, step_time_s = match.groups()
    return line.event(
        "progress",
        step=int(step),
        loss=number(loss),
        grad_norm=number(grad_norm),
        step_time_s=number(step_time_s),
        framework=PARSER.id,
    )
