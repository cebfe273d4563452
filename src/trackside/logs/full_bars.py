"""tqdm bars that reached their end: the steps that they count are done, whatever was logged last."""

from __future__ import annotations

import re

from trackside.logs.bars import EVALUATION
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("full-bars", "tqdm bars at their end", "framework", generic=True)
_FULL = re.compile(r"100%\|[^|]{0,400}\|\s{0,9}(\d{1,9})/(\d{1,9}) \[[^\]]{0,120}\]\s*$")


@PARSER.pattern(
    rb"100%\|[^|\r\n]{0,400}\| {0,9}[0-9]{1,9}/[0-9]{1,9} \[",
    safety="No progress of the training by itself: loading and evaluation have full bars, too. Only one of as many "
    "steps as the training plans counts.",
    matches=("100%|██████████| 129/129 [59:01<00:00, 27.45s/it]",),
    avoids=(
        " 99%|█████████▉| 128/129 [58:35<00:25, 25.42s/it]",
        "100%|██████████| 1/100 [00:01<00:00,  1.0s/it]",
        "Validation: 100%|██████████| 9/9 [00:01<00:00,  1.0s/it]",
    ),
)
def _full_bar(line: Line) -> Event | None:
    match = _FULL.search(line.text)
    if match is None or match[1] != match[2] or EVALUATION.search(line.text, 0, match.start()) is not None:
        return None
    return line.event("full_bar", steps=int(match[1]))
