"""OpenMMLab: mmengine and its predecessor mmcv."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_EPOCH = re.compile(r"\bEpoch ?(?:\(train\))?\s{0,4}\[(\d{1,7})\]\[\s{0,8}(\d{1,9})/(\d{1,9})\]")
_ITER = re.compile(r"\bIter ?(?:\(train\))?\s{0,4}\[\s{0,8}(\d{1,9})/(\d{1,9})\]")
_PAIR = re.compile(rf"\b([a-z_]{{1,30}}(?:\.[a-z_]{{1,30}})?): ({NUMBER})")

PARSER = Parser("mmengine", "OpenMMLab's mmengine and mmcv", "framework", precedence=160)


@PARSER.pattern(
    rb"(?:Epoch|Iter) ?(?:\(train\) {0,4})?\[[^\n\r]{1,400}[ \t]loss: ",
    safety="Epoch(val) lines are evaluations of metrics, not logged steps.",
    matches=(
        "2023/01/01 00:00:10 - mmengine - INFO - Epoch(train)  [1][ 50/500]  lr: 1.0000e-02  eta: 0:10:00  time: 0.21  "
        "data_time: 0.01  memory: 1000  grad_norm: 3.1  loss: 0.5123  loss_cls: 0.3",
        "2021-01-01 00:00:10,000 - mmdet - INFO - Epoch [1][50/7330]\tlr: 2.000e-03, eta: 1 day, 0:00:00, time: 0.4, "
        "data_time: 0.05, memory: 3900, loss_rpn_cls: 0.6, loss: 1.2034",
        "2021-01-01 00:00:10,000 - mmseg - INFO - Iter [50/160000]\tlr: 9.997e-03, eta: 10:00:00, time: 0.4, loss: 2.1",
    ),
    avoids=("2023/01/01 00:00:10 - mmengine - INFO - Epoch(val)  [1][50/50]  acc: 0.5  loss: 0.5",),
)
def _progress(line: Line) -> Event | None:
    by_epoch, by_iteration = _EPOCH.search(line.text), _ITER.search(line.text)
    match = by_epoch or by_iteration
    if match is None or "(val)" in line.text:
        return None
    figures = dict(_PAIR.findall(line.text, match.end()))
    if "loss" not in figures:
        return None
    if by_epoch is not None:
        epoch, count, epoch_steps = int(by_epoch[1]), int(by_epoch[2]), int(by_epoch[3])
        step, total, epochs = (epoch - 1) * epoch_steps + count, None, epoch - 1 + count / max(epoch_steps, 1)
    else:
        step, total, epochs = int(match[1]), int(match[2]), None
    return line.event(
        "progress",
        step=step,
        total_steps=total,
        epoch=epochs,
        loss=number(figures["loss"]),
        lr=number(figures.get("lr") or figures.get("base_lr")),
        grad_norm=number(figures.get("grad_norm")),
        step_time_s=number(figures.get("time")),
        data_time_s=number(figures.get("data_time")),
        framework="mmengine",
    )
