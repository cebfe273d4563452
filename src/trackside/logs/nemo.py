"""NeMo 2's line logger; the Lightning parser reads NeMo's bars."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("nemo", "NeMo", "framework", precedence=180)


@PARSER.pattern(
    rb"Training epoch [0-9]{1,7}, iteration [0-9]{1,9}/[0-9]{1,9} \|",
    r"Training epoch (\d+), iteration (\d+)/(\d+) \|",
    safety="Validation lines begin with another word.",
    matches=(
        "Training epoch 0, iteration 4/99 | lr: 1.5e-06 | global_batch_size: 8 | global_step: 4 | "
        "reduced_train_loss: 10.91 | train_step_timing in s: 1.31 | consumed_samples: 40",
    ),
    avoids=("Validation epoch 0, iteration 4/99 | loss: 1.0",),
)
def _progress(line: Line, head: re.Match[str]) -> Event | None:
    figures = {
        key.strip(): value.strip() for key, _, value in (p.partition(":") for p in line.text[head.end() :].split("|"))
    }
    if "reduced_train_loss" not in figures and "loss" not in figures:
        return None
    printed = whole_number(figures.get("global_step"))
    return line.event(
        "progress",
        step=int(head[2]) if printed is None else printed,
        loss=number(figures.get("reduced_train_loss") or figures.get("loss")),
        lr=number(figures.get("lr")),
        grad_norm=number(figures.get("grad_norm")),
        total_steps=int(head[3]) + 1,
        step_time_s=number(figures.get("train_step_timing in s")),
        framework="nemo",
    )
