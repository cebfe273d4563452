"""OLMo: a ``[step=N/M,epoch=E]`` header, then one figure per line."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

_FIGURE = re.compile(rf"^\s{{1,12}}([\w/()]{{1,60}}(?: [\w/()]{{1,30}}){{0,4}})=({NUMBER})")
_LOSSES = ("train/CrossEntropyLoss", "train/CE loss", "train/loss")
MAX_BLOCK_LINES = 120
"""Lines of the figures below a header."""

PARSER = Parser("olmo", "OLMo", "framework")


@PARSER.pattern(
    rb"\[step=[0-9,]{1,15}(?:/|,|\])",
    r"\[step=([\d,]{1,15})(?:/([\d,]{1,15}))?(?:,epoch=[^\]]{1,40})?\]",
    safety="The figures follow on indented lines; evaluation blocks have no training loss.",
    matches=(
        "2026-01-01 00:00:00.181 host:0 olmo.train:908 INFO [step=2/1000,epoch=0]\n"
        "    optim/total_grad_norm=2.7\n    train/CrossEntropyLoss=9.25\n    train/Perplexity=10,404",
    ),
    avoids=("INFO [step=2/1000,epoch=0]\n    eval/all/Perplexity=20.1",),
)
def _progress(line: Line, header: re.Match[str]) -> Event | None:
    figures: dict[str, float | None] = {}
    for neighbor in line.following(MAX_BLOCK_LINES):
        if neighbor.label != line.label:
            continue
        match = _FIGURE.match(neighbor.text)
        if match is None:
            break
        figures[match[1]] = number(match[2])
    loss = next((figures[name] for name in _LOSSES if name in figures), None)
    if loss is None:
        return None
    rate = figures.get("throughput/device/tokens_per_second")
    return line.event(
        "progress",
        step=whole_number(header[1]),
        total_steps=whole_number(header[2]),
        loss=loss,
        grad_norm=next((figures[n] for n in ("optim/total_grad_norm", "optim/total grad norm") if n in figures), None),
        lr=next((value for name, value in figures.items() if name.startswith("optim/learning_rate")), None),
        throughput=rate,
        throughput_unit=None if rate is None else "tokens/s",
        framework="olmo",
    )
