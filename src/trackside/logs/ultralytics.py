"""Ultralytics YOLO: one row per epoch under ``Epoch GPU_mem box_loss cls_loss ...``, as a bar that is drawn for each batch.

The losses are means since the epoch began; each printed count is a logged step, or each epoch where the line is cut before it.

Recent versions do not print the loss that they minimize, only its parts: the first of them is the loss of the step, or the
first that is not finite. Older ones print the total.
"""

from __future__ import annotations

import math
import re

from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "ultralytics"
_COUNT = re.compile(r"(\d{1,9})/(\d{1,9})(?=[ \]]|$)")
_NOT_LOSSES = ("instances", "labels", "targets", "size", "img_size")

PARSER = Parser(ID, "Ultralytics YOLO", "framework", redraws=True)


@PARSER.pattern(
    rb"Epoch {1,8}(?:GPU_mem|gpu_mem) {1,8}[A-Za-z_]{3,20} ",
    r"^\s{1,12}Epoch\s+(?:GPU_mem|gpu_mem)\s+(.{1,120})",
    safety="Only remembers the columns; yields no event.",
)
def _remember_columns(line: Line, match: re.Match[str]) -> None:
    line.notes(ID)["columns"] = match[1].split()


@PARSER.pattern(
    rb"[0-9]{1,6}/[0-9]{1,6} {2,12}[0-9.]{1,8}[GM]? [^\n\r]{1,200}: {1,4}[0-9]",
    r"^\s{1,12}(\d{1,6})/(\d{1,6})\s+(?:[\d.]{1,8}[GM]?)\s+(.{1,160}?)\s+\d{1,6}\s+\d{2,5}: {1,4}\d{1,3}(?:%|$)",
    safety="Only under its header; the last drawing of a count is the logged step.",
    matches=(
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "       3/55      9.95G      1.234       2.07      1.477         12        640: 100%|██████████| 787/787 [09:07<00:00,  1.44it/s]",
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "      12/50      8.38G      0.479     0.3817     0.8271         46        640: 0% ──────────── 0/75  1.6s",
        "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
        "     16/100      8.88G      1.727      2.006      1.389        234        640: 1",
        "     Epoch   gpu_mem       box       obj       cls    labels  img_size\n"
        "       0/1     1.55G    0.1585   0.07012    0.0521        93       640:   0%|          | 1/800 [00:02<37:31,  2.82s/it]",
        "     Epoch   gpu_mem      GIoU       obj       cls     total   targets  img_size\n"
        "   226/499        0G      2.72     0.107     0.022      2.85        69       640:   3%|3         | 1/33 [00:31<16:43, 31.36s/it]",
    ),
    avoids=("      3/55      9.95G      1.234  12        640: 100%|██████████| 787/787",),
)
def _progress(line: Line, match: re.Match[str]) -> Event | None:
    notes = line.notes(ID)
    columns = notes.get("columns")
    if columns is None:
        return None
    named = list(zip(columns, match[3].split(), strict=False))
    named.sort(key=lambda column: column[0] != "total")
    losses = [number(value) for name, value in named if name.lower() not in _NOT_LOSSES]
    non_finite = next((value for value in losses if value is not None and not math.isfinite(value)), None)
    loss = losses[0] if losses and non_finite is None else non_finite
    epoch, last_epoch = int(match[1]), int(match[2])
    bar = _COUNT.search(line.text, match.end())
    if bar is None or not 0 < int(bar[2]) >= int(bar[1]):
        if notes.get("counts_batches"):
            return None  # a torn line
        return line.event("progress", step=epoch, epoch=epoch, total_steps=last_epoch, loss=loss, framework=ID)
    notes["counts_batches"] = True
    # if its first epoch is 0, it prints the last epoch's number, not how many there are
    first_epoch = min(1, notes.setdefault("first_epoch", epoch))
    # a bar is drawn with the losses of a batch before it counts the batch
    count, batches = min(int(bar[1]) + 1, int(bar[2])), int(bar[2])
    return line.event(
        "progress",
        step=(epoch - first_epoch) * batches + count,
        epoch=epoch,
        step_in_epoch=count,
        epoch_steps=batches,
        total_steps=(last_epoch - first_epoch + 1) * batches,
        loss=loss,
        framework=ID,
    )
