"""DeepSpeed's engine lines: step and learning rate without a loss; the pipeline engine's lines with one."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("deepspeed", "DeepSpeed engine", "framework", precedence=600)


@PARSER.pattern(
    rb"\] step=[0-9]{1,9}, skipped=",
    rf"\[Rank (\d+)\] step=(\d+), skipped=(\d+), lr=\[({NUMBER})",
    safety="It has no loss: a parser that reads a loss takes precedence.",
    matches=(
        "[2022-03-12 11:20:41,117] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2, lr=[5e-05], mom=[[0.9, 0.999]]",
    ),
    avoids=("[note] step=40, skipped=all",),
)
def _engine_step(line: Line, match: re.Match[str]) -> Event | None:
    if match[2] == "0":
        return None
    return line.event(
        "progress",
        rank=int(match[1]) if line.rank is None else None,
        step=int(match[2]),
        skipped=int(match[3]),
        lr=number(match[4]),
        framework="deepspeed",
    )


@PARSER.pattern(
    rb"steps: [0-9]{1,9} loss: [^\n\r]{1,30} iter time \(s\): ",
    rf"\bsteps: (\d+) loss: ({NUMBER}) iter time \(s\): ({NUMBER})(?: samples/sec: ({NUMBER}))?",
    safety="Only the pipeline engine's wording.",
    matches=("steps: 10 loss: 1.2345 iter time (s): 0.501 samples/sec: 15.968",),
    avoids=("steps: 10 loss: unknown iter time (s): 0.5",),
)
def _pipeline_step(line: Line, match: re.Match[str]) -> Event:
    rate = number(match[4])
    return line.event(
        "progress",
        step=int(match[1]),
        loss=number(match[2]),
        step_time_s=number(match[3]),
        throughput=rate,
        throughput_unit=None if rate is None else "samples/s",
        framework="deepspeed",
    )


@PARSER.pattern(
    rb"(?:OVERFLOW! |radient overflow)",
    rf"(?:OVERFLOW!|[Gg]radient overflow).{{0,80}}?(?:loss[ _]scale:? ?(?P<before>{NUMBER}), reducing to (?P<after>{NUMBER})"
    rf"|(?:reducing loss scale to|setting loss scale to:) (?P<set>{NUMBER}))",
    safety="Dynamic loss scaling normally skips steps at the start; only many in a row mean divergence.",
    matches=(
        "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
        "gradient overflow detected, ignoring gradient, setting loss scale to: 64.0",
    ),
    avoids=("no gradient overflow seen",),
)
def _loss_scale_cut(line: Line, match: re.Match[str]) -> Event:
    return line.event("loss_scale_cut", before=number(match["before"]), after=number(match["after"] or match["set"]))
