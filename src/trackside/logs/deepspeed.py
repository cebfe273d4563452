"""DeepSpeed's engine lines: step and learning rate without a loss, the pipeline engine's with one."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser, Pattern
from trackside.model import Event

_STEP = re.compile(rf"\[Rank (\d+)\] step=(\d+), skipped=(\d+), lr=\[({NUMBER})")
_PIPE = re.compile(rf"\bsteps: (\d+) loss: ({NUMBER}) iter time \(s\): ({NUMBER})(?: samples/sec: ({NUMBER}))?")
_OVERFLOW = re.compile(
    rf"(?:OVERFLOW!|[Gg]radient overflow).{{0,80}}?(?:loss[ _]scale:? ?(?P<before>{NUMBER}), reducing to (?P<after>{NUMBER})"
    rf"|(?:reducing loss scale to|setting loss scale to:) (?P<set>{NUMBER}))"
)


def _step(line: Line) -> Event | None:
    found = _STEP.search(line.text)
    if found is None or found[2] == "0":
        return None
    return line.event(
        "progress",
        rank=int(found[1]) if line.rank is None else None,
        step=int(found[2]),
        skipped=int(found[3]),
        lr=number(found[4]),
        framework="deepspeed",
    )


def _pipe(line: Line) -> Event | None:
    found = _PIPE.search(line.text)
    if found is None:
        return None
    rate = number(found[4])
    return line.event(
        "progress",
        step=int(found[1]),
        loss=number(found[2]),
        step_time_s=number(found[3]),
        throughput=rate,
        throughput_unit=None if rate is None else "samples/s",
        framework="deepspeed",
    )


def _overflow(line: Line) -> Event | None:
    found = _OVERFLOW.search(line.text)
    if found is None:
        return None
    return line.event("loss_scale_cut", before=number(found["before"]), after=number(found["after"] or found["set"]))


PARSER = Parser(
    "deepspeed",
    "DeepSpeed engine",
    "framework",
    (
        Pattern(
            "step",
            rb"\] step=[0-9]{1,9}, skipped=",
            _step,
            "It has no loss: a parser that reads one tells the run.",
            (
                "[2022-03-12 11:20:41,117] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2, lr=[5e-05], mom=[[0.9, 0.999]]",
            ),
            ("[note] step=40, skipped=all",),
        ),
        Pattern(
            "pipeline",
            rb"steps: [0-9]{1,9} loss: [^\n\r]{1,30} iter time \(s\): ",
            _pipe,
            "Only the pipeline engine's wording.",
            ("steps: 10 loss: 1.2345 iter time (s): 0.501 samples/sec: 15.968",),
            ("steps: 10 loss: unknown iter time (s): 0.5",),
        ),
        Pattern(
            "overflow",
            rb"(?:OVERFLOW! |radient overflow)",
            _overflow,
            "A step skipped by dynamic loss scaling is normal at the start; only many in a row mean divergence.",
            (
                "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536.0, reducing to 32768.0",
                "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 16384.0",
                "gradient overflow detected, ignoring gradient, setting loss scale to: 64.0",
            ),
            ("no gradient overflow seen",),
        ),
    ),
)
