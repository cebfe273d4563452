"""NVIDIA's GAN code and what is built on it (StyleGAN2-ADA, StyleGAN3, EDM, MAT): a status line every tick.

``tick 50 kimg 200.0 time 8h 43m 53s sec/tick 612.9``: a step is a thousand images; no loss is printed.
"""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("stylegan", "StyleGAN and EDM", "framework")
_DURATION = re.compile(r"(?:(\d{1,4})d )?(?:(\d{1,3})h )?(?:(\d{1,3})m )?(\d{1,3})s\b")


@PARSER.pattern(
    rb"tick [0-9]{1,7} {1,9}kimg [0-9.]{1,12} {1,9}time ",
    r"^tick (\d{1,7}) {1,9}kimg (\d{1,9}(?:\.\d{1,4})?) {1,9}time ([\dhms ]{2,20}?) {1,9}sec/tick (\d{1,9}\.\d{1,4})\b",
    safety="Only the status line of the training loop has ticks, kimg and time in this order.",
    matches=(
        "tick 12    kimg 48.0     time 2h 05m 31s   sec/tick 610.2   sec/kimg 152.55  maintenance 0.0    cpumem 6.4",
        "tick 0     kimg 0.0      time 21s          sec/tick 4.7     sec/kimg 148.20  maintenance 16.7   cpumem 5.0",
    ),
    avoids=("tick 12 of the clock, kimg 48", "tick 12 kimg 48.0 time unknown"),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    total = line.notes(PARSER.id).get("total")
    return line.event(
        "progress", step=round(number(match[2]) or 0), total_steps=total, elapsed_s=_to_seconds(match[3]),
        framework=PARSER.id,
    )  # fmt: skip


@PARSER.pattern(
    rb"Training for [0-9]{1,9} kimg\.\.\.",
    r"^Training for (\d{1,9}) kimg\.\.\.$",
    safety="The loop announces its length with these words alone.",
    matches=("Training for 200 kimg...",),
    avoids=("Training for 200 epochs...",),
)
def _plan(line: Line, match: re.Match[str]) -> Event:
    line.notes(PARSER.id)["total"] = int(match[1])
    return line.event("training_plan", total_steps=int(match[1]), framework=PARSER.id)


def _to_seconds(text: str) -> float | None:
    """The seconds of ``8h 43m 53s``; None for any other text."""
    match = _DURATION.search(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return 86_400.0 * days + 3_600 * hours + 60 * minutes + seconds
