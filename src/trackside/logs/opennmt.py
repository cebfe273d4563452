"""OpenNMT-py: ``Step 50/ 5000; acc: 5.35; ppl: 1497.24; xent: 7.31; lr: 1.0; ...``; its loss is the cross-entropy
per token."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("opennmt", "OpenNMT-py", "framework")


@PARSER.pattern(
    rb"; ppl: [^\n\r;]{1,20}; xent: ",
    rf"\b(?:Step (\d{{1,9}})/ ?(\d{{1,9}})|Epoch {{1,4}}(\d{{1,6}}), {{1,8}}(\d{{1,9}})/ ?(\d{{1,9}})); acc: "
    rf"[^;]{{1,12}}; ppl: [^;]{{1,20}}; xent: {{1,8}}({NUMBER})(?:; lr: {{1,4}}({NUMBER}))?",
    safety="Validation is reported on separate lines, one figure each.",
    matches=(
        "[2026-01-01 00:00:00,000 INFO] Step 50/ 5000; acc:   5.35; ppl: 1497.24; xent: 7.31; lr: 1.00000;  84/336 tok/s;    890 sec",
        "Epoch  1, 12850/37527; acc:   3.99; ppl: 12792.57; xent:   9.46; 3438 src tok/s; 3517 tgt tok/s;   9823 s elapsed",
    ),
    avoids=("Step 50/ 5000; acc: unknown; ppl: unknown; xent: unknown",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    step, total, epoch, count, epoch_steps, loss, lr = match.groups()
    return line.event(
        "progress",
        step=int(step or count),
        epoch=int(epoch) if epoch else None,
        epoch_steps=int(epoch_steps) if epoch_steps else None,
        total_steps=int(total) if total else None,
        loss=number(loss),
        lr=number(lr),
        framework="opennmt",
    )
