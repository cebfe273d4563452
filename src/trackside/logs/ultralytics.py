"""Ultralytics YOLO: one row per epoch under ``Epoch GPU_mem box_loss cls_loss ...``, as a bar.

The loss that it minimizes is not printed, only its parts: a row is a logged step without a loss, or with a
non-finite one.
"""

from __future__ import annotations

import math
import re

from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

_HEADER = re.compile(r"^\s{1,12}Epoch\s+(?:GPU_mem|gpu_mem)\s+(.{1,120})")
MAX_BLOCK_LINES = 60

PARSER = Parser("ultralytics", "Ultralytics YOLO", "framework")


@PARSER.pattern(
    rb"[0-9]{1,6}/[0-9]{1,6} {2,12}[0-9.]{1,8}[GM]? [^\n\r]{1,200}: 100%",
    r"^\s{1,12}(\d{1,6})/(\d{1,6})\s+(?:[\d.]{1,8}[GM]?)\s+(.{1,160}?)\s+\d{1,6}\s+\d{2,5}: 100%",
    safety="Only the finished bar of an epoch, under its header.",
    matches=(
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "       3/55      9.95G      1.234       2.07      1.477         12        640: 100%|██████████| 787/787 [09:07<00:00,  1.44it/s]",
    ),
    avoids=("      3/55      9.95G      1.234  12        640: 100%|██████████| 787/787",),
)
def _progress(line: Line, match: re.Match[str]) -> Event | None:
    header = next((m for neighbor in line.preceding(MAX_BLOCK_LINES) if (m := _HEADER.match(neighbor.text))), None)
    if header is None:
        return None
    losses = [number(value) for name, value in zip(header[1].split(), match[3].split(), strict=False) if "loss" in name]
    non_finite = next((value for value in losses if value is not None and not math.isfinite(value)), None)
    return line.event("progress", step=int(match[1]), epoch=int(match[1]), loss=non_finite, framework="ultralytics")
