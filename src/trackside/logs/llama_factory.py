"""LLaMA-Factory's log callback, which prints each of Trainer's points once more, rounded and without gradient norm."""

from __future__ import annotations

import re

from trackside.logs.hf_trainer import items, point
from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

_AHEAD = 4 << 10
_TWIN = re.compile(rb"\{'loss': '?([^,'}\r\n]{1,40})")

PARSER = Parser("llama-factory", "LLaMA-Factory's log callback", "framework", precedence=110)


@PARSER.pattern(
    rb"callbacks:[0-9]{1,5} >> \{'loss': ",
    safety="Left to Trainer's own dict where that follows, so that a point is not counted twice.",
    matches=(
        "[INFO|2025-02-10 09:41:07] llamafactory.train.callbacks:157 >> {'loss': 1.08, 'learning_rate': 1.9e-05, 'epoch': 0.06}",
    ),
    avoids=("[INFO|2025-02-10 09:41:07] llamafactory.train.callbacks:157 >> {'loss': 'auto'}",),
)
def _progress(line: Line) -> Event | None:
    found = items(line.text)
    loss = number(found.get("loss"))
    if "callbacks:" not in line.text or loss is None or "epoch" not in found:
        return None
    twin = _TWIN.search(line.buffer, line.end, min(len(line.buffer), line.end + _AHEAD))
    if twin is not None and b"callbacks:" not in line.buffer[line.end : twin.start()]:
        other = number(twin[1].decode("ascii", "replace"))
        if other is not None and (
            other == loss or abs(other - loss) <= 1e-3 * abs(loss) or (other != other and loss != loss)
        ):
            return None  # Trainer's own print of the same point follows and says more
    return point(line, found, "llama-factory")
