"""nanoGPT: ``iter 10: loss 10.2, time 12.1ms, mfu 3.2%`` and its evaluations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("nanogpt", "nanoGPT", "framework", precedence=610, fallback_ids=("nanogpt-estimates",))


@PARSER.pattern(
    rb"iter [0-9]{1,9}: loss [^\n\r]{1,60}, time ",
    rf"\biter (\d{{1,9}}): loss ({NUMBER})(?:, lr ({NUMBER}))?, time ({NUMBER})(ms|s)",
    safety="Only the exact shape of nanoGPT's line.",
    matches=("iter 10: loss 10.2304, time 12.12ms, mfu 3.21%",),
    avoids=("iter 10: loss unavailable, time 12.1ms",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    time = number(match[4])
    seconds = None if time is None else time / 1000 if match[5] == "ms" else time
    return line.event(
        "progress",
        step=int(match[1]),
        loss=number(match[2]),
        lr=number(match[3]),
        step_time_s=seconds,
        framework="nanogpt",
    )


@PARSER.pattern(
    rb"(?:step|iter) [0-9]{1,9}: train loss [^\n\r]{1,30}, val loss ",
    rf"\b(?:step|iter) (\d{{1,9}}): train loss ({NUMBER}), val loss ({NUMBER})",
    safety="An estimate over several batches: an evaluation. The training loss counts only if the log prints no other.",
    matches=("step 0: train loss 10.9, val loss 10.8", "iter 1800: train loss 6.97, val loss 6.86"),
    avoids=("step 0: train loss unknown, val loss unknown",),
)
def _estimates(line: Line, match: re.Match[str]) -> Iterator[Event]:
    step, loss = int(match[1]), number(match[3])
    yield line.event("evaluation", step=step, metric="val loss", value=loss, loss=loss)
    point = line.event("progress", step=step, loss=number(match[2]), framework="nanogpt")
    yield replace(point, parser=PARSER.fallback_ids[0])
