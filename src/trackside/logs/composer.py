"""MosaicML Composer and LLM Foundry: a ``[batch=N/M]:`` header, then one figure per line."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_HEADER = re.compile(r"\[batch=(\d{1,12})(?:/(\d{1,12}))?\]")
_OTHER_FIGURES = {
    "lr": re.compile(rf"\bTrain lr-[\w/]{{1,60}}: ({NUMBER})"),
    "throughput": re.compile(rf"\bTrain throughput/tokens_per_sec: ({NUMBER})"),
}
MAX_BLOCK_LINES = 80
"""Lines between a header and the figures of its block."""

PARSER = Parser("composer", "MosaicML Composer", "framework", precedence=170)


@PARSER.pattern(
    rb"Train loss/train/total: [0-9naiNI.+-]",
    rf"\bTrain loss/train/total: ({NUMBER})",
    safety="Evaluation losses begin with another word.",
    matches=(
        "[batch=10/4800]:\n\t Train time/epoch: 0\n\t Train loss/train/total: 11.3625\n\t Train lr-DecoupledAdamW/group0: 1e-05",
    ),
    avoids=("\t Eval loss/train/total: 11.3625",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    header = next(
        (
            m
            for neighbor in line.preceding(MAX_BLOCK_LINES)
            if neighbor.label == line.label and (m := _HEADER.search(neighbor.text))
        ),
        None,
    )
    figures: dict[str, float | None] = {}
    for neighbor in line.following(MAX_BLOCK_LINES):
        if neighbor.label == line.label and _HEADER.search(neighbor.text):
            break
        for name, regex in _OTHER_FIGURES.items():
            if neighbor.label == line.label and (figure := regex.search(neighbor.text)):
                figures[name] = number(figure[1])
    return line.event(
        "progress",
        step=None if header is None else int(header[1]),
        total_steps=int(header[2]) if header is not None and header[2] else None,
        loss=number(match[1]),
        lr=figures.get("lr"),
        throughput=figures.get("throughput"),
        throughput_unit="tokens/s" if "throughput" in figures else None,
        framework="composer",
    )
