"""BasicSR and projects built on it: ``[net..][epoch: 92, iter:   5,100, lr:(4.713e-07,)] [eta: ...] l_pix: 5.2e-05``."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_HEAD = re.compile(
    rf"\[epoch:\s{{0,6}}(\d{{1,7}}), iter:\s{{0,12}}([\d,]{{1,15}}), lr:\(({NUMBER})[^)]{{0,200}}\)\]"
    rf"(?:\s\[eta: [^,\]]{{1,60}}, time \(data\): ({NUMBER}) \(({NUMBER})\)\])?"
)
_LOSS = re.compile(rf"\b(l_\w{{1,40}}): ({NUMBER})")

PARSER = Parser("basicsr", "BasicSR", "framework")


@PARSER.pattern(
    rb"\[epoch: {0,6}[0-9]{1,7}, iter: {0,12}[0-9,]{1,15}, lr:\(",
    _HEAD,
    safety="The first loss in the line (`l_...`) is the point's; metrics have other names.",
    matches=(
        "INFO: [basel..][epoch: 92, iter:   5,100, lr:(4.713e-07,)] [eta: 0:16:41, time (data): 1.829 (0.346)] "
        "l_mos: 5.1573e-05 l_metric: 1.9208e-02 train_metrics/srcc: 9.8529e-01",
    ),
    avoids=("[epoch: 92, iter:   5,100, lr:(4.713e-07,)] psnr: 31.2",),
)
def _progress(line: Line, head: re.Match[str]) -> Event | None:
    loss = _LOSS.search(line.text, head.end())
    if loss is None:
        return None
    return line.event(
        "progress",
        step=int(head[2].replace(",", "")),
        epoch=int(head[1]),
        loss=number(loss[2]),
        lr=number(head[3]),
        step_time_s=number(head[4]),
        data_time_s=number(head[5]),
        framework=PARSER.id,
    )
