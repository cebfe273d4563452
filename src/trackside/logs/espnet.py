"""ESPnet 2: ``1epoch:train:1-682batch: iter_time=2.8e-04, ..., loss=123.9, ...``."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_PAIR = re.compile(rf"\b([a-z]\w{{0,40}})=({NUMBER})")

PARSER = Parser("espnet", "ESPnet", "framework")


@PARSER.pattern(
    rb"[0-9]epoch:train:[0-9]{1,9}-[0-9]{1,9}batch: ",
    r"\b(\d{1,6})epoch:train:\d{1,9}-(\d{1,9})batch: ",
    safety="An epoch's summary begins differently.",
    matches=(
        "[gpu01:0/2] 2026-01-01 00:00:00,080 (trainer:464) INFO: 1epoch:train:1-682batch: iter_time=2.878e-04, "
        "forward_time=0.134, loss=123.963, loss_att=77.448, acc=0.013, lr_0=3.460e-06, train_time=1.816",
    ),
    avoids=("INFO: 1epoch:train:1-682batch: no figures",),
)
def _progress(line: Line, head: re.Match[str]) -> Event | None:
    figures = {name: number(value) for name, value in _PAIR.findall(line.text, head.end())}
    if "loss" not in figures:
        return None
    return line.event(
        "progress",
        step=int(head[2]),
        epoch=int(head[1]),
        loss=figures["loss"],
        lr=figures.get("lr_0") or figures.get("optim0_lr0"),
        grad_norm=figures.get("grad_norm"),
        step_time_s=figures.get("train_time"),
        data_time_s=figures.get("iter_time"),
        framework="espnet",
    )
