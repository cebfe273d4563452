"""The logged step of a line that names a loss: its figures as fields of a ``progress`` event."""

from __future__ import annotations

import re
from typing import Any

from trackside.catalog.excerpt import below_heading
from trackside.logs.figures import LineFigures
from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.line_positions import EPOCH_BATCH, LinePosition
from trackside.logs.numbers import NUMBER, number
from trackside.model import Event

_STEP_TIME_AT_END = re.compile(r"[(\[](\d{1,9}(?:\.\d{1,6})?) ?(ms|s)(?:/(?:it|iter|step|batch))?[)\]]\s*$")
"""A step time in brackets at the end of the line: ``(64.8 ms)``, ``[0.21s/it]``."""
_STEP_TIME_METER = re.compile(rf"\b[Tt]ime:?[ \t]{{1,4}}({NUMBER})")
"""A step's time in the meters of the ImageNet example and torchvision; elsewhere a time may be the time since the
start."""
_STEP_TIME_OF_VERL = re.compile(rf"\btrain/time\(s\):({NUMBER})")
"""verl's seconds of a step; elsewhere such a name may be the time since the start."""
_MEAN = r":?[ \t]{1,4}[\d.]{1,12} {1,2}\((\d{1,9}(?:\.\d{1,9})?)\)"
_MEAN_METERS = {
    "epoch_step_time_s": re.compile(rf"\b(?:[Bb]atch ?)?[Tt]ime{_MEAN}"),
    "epoch_data_time_s": re.compile(rf"\b[Dd]ata(?:[ _][Tt]ime)?{_MEAN}"),
}
"""The same meters' means since the epoch began, in brackets: single steps are printed with too few digits, and most are
not printed."""
_POLICY_LOSS = re.compile(r"\b(?:ppo_ep\b|(?:actor/)?pg_loss\b|(?:actor|policy)_loss\b)")
"""Figures that only reinforcement learning prints."""
_UNIT = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
_SECONDS = frozenset(("data_time_s", "compute_time_s", "comm_time_s", "step_time_s"))


def loss_point(line: Line, figures: LineFigures, position: LinePosition) -> Event:
    """The logged step at a position."""
    fields: dict[str, Any] = {
        name: figures.values[name]
        for name in ("loss", "lr", "grad_norm", "loss_scale", "reward")
        if name in figures.values
    }
    is_timed = "ime" in line.text or not figures.units.keys().isdisjoint(_SECONDS) or "compute_time_s" in figures.values
    for name in _SECONDS & figures.values.keys():
        if name == "data_time_s" and not is_timed:
            continue  # the loss on the data
        fields[name] = figures.values[name] * _UNIT.get(figures.units.get(name, "s"), 1.0)
    if "step_time_s" not in fields and EPOCH_BATCH.search(line.text) and (meter := _STEP_TIME_METER.search(line.text)):
        fields["step_time_s"] = number(meter[1])
    if position.epoch_steps is not None:
        means = {name: meter for name, regex in _MEAN_METERS.items() if (meter := regex.search(line.text)) is not None}
        fields |= {name: float(meter[1]) for name, meter in means.items()} if len(means) == len(_MEAN_METERS) else {}
    if "step_time_s" not in fields and (of_verl := _STEP_TIME_OF_VERL.search(line.text)):
        fields["step_time_s"] = number(of_verl[1])
    if "step_time_s" not in fields and (at_end := _STEP_TIME_AT_END.search(line.text)):
        fields["step_time_s"] = float(at_end[1]) * _UNIT[at_end[2]]
    if "throughput" in figures.values:
        fields["throughput"] = figures.values["throughput"]
    if figures.is_adversarial:
        fields["objective"] = "gan"
    elif _POLICY_LOSS.search(line.text):
        fields["objective"] = "rl"
    if position.heading:
        fields["text"] = below_heading(position.heading, line.text.strip())
    return line.event(
        "progress",
        step=position.step,
        epoch=position.epoch,
        epoch_share=position.epoch_share,
        epoch_steps=position.epoch_steps,
        total_steps=position.total,
        framework=_framework(line),
        **fields,
    )


def _framework(line: Line) -> str:
    """The framework that the file names, else ``custom``."""
    names = named_frameworks(line)
    return next((name for name in ("deepspeed", "accelerate") if name in names), "custom")
