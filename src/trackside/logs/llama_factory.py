"""LLaMA-Factory's log callback, which prints each of Trainer's points again, rounded and without the gradient norm."""

from __future__ import annotations

import re

from trackside.logs.hf_trainer import dict_items, trainer_point
from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

_MAX_AHEAD_BYTES = 4 << 10
_TRAINER_DICT = re.compile(rb"\{'loss': '?([^,'}\r\n]{1,40})")

PARSER = Parser("llama-factory", "LLaMA-Factory's log callback", "framework", precedence=110)


@PARSER.pattern(
    rb"callbacks:[0-9]{1,5} >> \{'loss': ",
    safety="Skipped if Trainer's own dict follows, so that a point is not counted twice.",
    matches=(
        "[INFO|2025-02-10 09:41:07] llamafactory.train.callbacks:157 >> {'loss': 1.08, 'learning_rate': 1.9e-05, 'epoch': 0.06}",
    ),
    avoids=("[INFO|2025-02-10 09:41:07] llamafactory.train.callbacks:157 >> {'loss': 'auto'}",),
)
def _progress(line: Line) -> Event | None:
    figures = dict_items(line.text)
    loss = number(figures.get("loss"))
    if "callbacks:" not in line.text or loss is None or "epoch" not in figures:
        return None
    trainer_dict = _TRAINER_DICT.search(line.buffer, line.end, min(len(line.buffer), line.end + _MAX_AHEAD_BYTES))
    if trainer_dict is not None and b"callbacks:" not in line.buffer[line.end : trainer_dict.start()]:
        trainer_loss = number(trainer_dict[1].decode("ascii", "replace"))
        if trainer_loss is not None and (
            trainer_loss == loss
            or abs(trainer_loss - loss) <= 1e-3 * abs(loss)
            or (trainer_loss != trainer_loss and loss != loss)
        ):
            return None  # Trainer's own dict of the same point follows and has more fields
    return trainer_point(line, figures, "llama-factory")
