"""NeMo 2's line logger; NeMo's bars are read by the Lightning parser."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import number, whole
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
    found = {
        key.strip(): value.strip() for key, _, value in (p.partition(":") for p in line.text[head.end() :].split("|"))
    }
    if "reduced_train_loss" not in found and "loss" not in found:
        return None
    printed = whole(found.get("global_step"))
    return line.event(
        "progress",
        step=int(head[2]) if printed is None else printed,
        loss=number(found.get("reduced_train_loss") or found.get("loss")),
        lr=number(found.get("lr")),
        grad_norm=number(found.get("grad_norm")),
        total_steps=int(head[3]) + 1,
        step_time_s=number(found.get("train_step_timing in s")),
        framework="nemo",
    )
