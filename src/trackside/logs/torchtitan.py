"""torchtitan: every rank may print the same step, with color codes between the figures."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_TPS = re.compile(rf"\b(?:tps|wps):\s{{1,4}}({NUMBER})")
_LR = re.compile(rf"\blr:\s{{1,4}}({NUMBER})")

PARSER = Parser("torchtitan", "torchtitan", "framework", precedence=150)


@PARSER.pattern(
    rb"step: [^\n\r]{1,30}loss: [^\n\r]{1,120}(?:memory: |[tw]ps: )",
    rf"step:\s{{1,8}}(\d{{1,9}})\s{{1,4}}loss:\s{{1,12}}({NUMBER})(?:\s{{1,4}}grad_norm:\s{{1,12}}({NUMBER}))?",
    safety="A step line without memory or token rate comes from something else; validation lines are not logged steps.",
    matches=(
        "[titan] 2025-02-25 21:08:33,204 - root - INFO - step:  4  loss:  7.61940  grad_norm: 27.1250  "
        "memory: 66.91GiB(37.51%)  tps: 10,046  tflops: 314.58  mfu: 13.98%",
    ),
    avoids=("[titan] 2025-02-25 21:08:33,204 - root - INFO - validate step:  4  loss:  7.6  memory: 66.91GiB(37.51%)",),
)
def _progress(line: Line, match: re.Match[str]) -> Event | None:
    if "validat" in line.text:
        return None
    rate, lr = _TPS.search(line.text), _LR.search(line.text)
    return line.event(
        "progress",
        step=int(match[1]),
        loss=number(match[2]),
        grad_norm=number(match[3]),
        lr=None if lr is None else number(lr[1]),
        throughput=None if rate is None else number(rate[1]),
        throughput_unit=None if rate is None else "tokens/s",
        framework="torchtitan",
    )


@PARSER.pattern(
    rb"Training starts at step [0-9]",
    safety="Printed once before the loop.",
    matches=("[titan] 2025-02-25 21:08:33,204 - root - INFO - Training starts at step 1.",),
)
def _start(line: Line) -> Event:
    return line.event("training_start", framework="torchtitan")
