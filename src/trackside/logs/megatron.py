"""Megatron-LM, Megatron-DeepSpeed and their forks: the ``iteration N/ M | key: value |`` line."""

from __future__ import annotations

import re

from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

_LOSSES = ("lm loss", "lm-loss", "loss", "masked lm loss", "reduced_train_loss", "total loss", "train loss")
_NOT_LOSS = ("load", "z_loss", "z loss", "scale", "aux", "sop", "mtp", "balanc", "loss_mask")

PARSER = Parser("megatron", "Megatron-LM and Megatron-DeepSpeed", "framework", precedence=120)


@PARSER.pattern(
    rb"iteration {1,12}[0-9]{1,12}/ {0,12}[0-9]{1,12} \|",
    r"\biteration {1,12}(\d{1,12})/ {0,12}(\d{1,12}) \|",
    safety="Megatron leaves out the loss when it is NaN: the logged step then has no loss.",
    matches=(
        " iteration       10/    1000 | consumed samples:          40 | elapsed time per iteration (ms): 1382.1 | "
        "learning rate: 1.4E-05 | global batch size:     4 | lm loss: 1.09E+01 | loss scale: 16384.0 | grad norm: 3.6 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
    ),
    avoids=("data iteration   10/ 20 | loading shard 3",),
)
def _progress(line: Line, head: re.Match[str]) -> Event | None:
    figures: dict[str, str] = {}
    for part in line.text[head.end() :].split("|"):
        key, colon, value = part.rpartition(":")
        if colon:
            figures[key.strip()] = value.strip()
    if "elapsed time per iteration (ms)" not in figures and "learning rate" not in figures:
        return None
    milliseconds = number(figures.get("elapsed time per iteration (ms)"))
    throughput, unit = _throughput(figures)
    return line.event(
        "progress",
        step=int(head[1]),
        total_steps=int(head[2]),
        loss=_loss(figures),
        grad_norm=number(figures.get("grad norm")),
        lr=number(figures.get("learning rate")),
        loss_scale=number(figures.get("loss scale")),
        skipped=whole_number(figures.get("number of skipped iterations")),
        nan_iterations=whole_number(figures.get("number of nan iterations")),
        step_time_s=None if milliseconds is None else milliseconds / 1000,
        throughput=throughput,
        throughput_unit=unit,
        framework="megatron-deepspeed" if "deepspeed" in named_frameworks(line) else "megatron",
    )


def _loss(figures: dict[str, str]) -> float | None:
    """The training loss, whatever the fork calls it."""
    for name in _LOSSES:
        if name in figures:
            return number(figures[name])
    for name, value in figures.items():
        if name.endswith("loss") and not any(word in name for word in _NOT_LOSS):
            return number(value)
    return None


def _throughput(figures: dict[str, str]) -> tuple[float | None, str | None]:
    """(value, unit) of the throughput; (None, None) if it is not printed."""
    for name, unit in (
        ("tokens per gpu per second (tgs)", "tokens/s/gpu"),
        ("tokens per second", "tokens/s"),
        ("samples per second", "samples/s"),
        ("throughput per GPU (TFLOP/s/GPU)", "TFLOP/s/gpu"),
    ):
        if name in figures:
            return number(figures[name]), unit
    return None, None


@PARSER.pattern(
    rb"validation loss at (?:iteration|the end)",
    r"validation loss at (?:iteration|the end of training for)\D{0,12}(\d+)?[^|]{0,60}\| ([\w -]{0,40}?loss)(?: value)?: ([^ |]+)",
    safety="Never a logged step.",
    matches=(" validation loss at iteration 200 | lm loss value: 7.487306E+00 | lm loss PPL: 1.785236E+03 | ",),
    avoids=("validation loss at iteration boundary is not computed",),
)
def _evaluation(line: Line, match: re.Match[str]) -> Event:
    value = number(match[3])
    return line.event("evaluation", step=whole_number(match[1]), metric=match[2].strip(), value=value, loss=value)


@PARSER.pattern(
    rb"\[before the start of training step\]",
    safety="Megatron's own timestamp before its loop.",
    matches=("[before the start of training step] datetime: 2021-05-23 08:20:10 ",),
)
def _training_start(line: Line) -> Event:
    return line.event("training_start", framework="megatron")


@PARSER.pattern(
    rb"\[after training is done\]",
    safety="Megatron's own timestamp after its loop.",
    matches=("[after training is done] datetime: 2021-05-23 08:45:10 ",),
)
def _training_end(line: Line) -> Event:
    return line.event("training_end", status="success", framework="megatron")
