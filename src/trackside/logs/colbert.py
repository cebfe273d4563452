"""ColBERT: ``[Mar 29, 22:30:04] 624 5.457503729277139``, a step and its running loss."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("colbert", "ColBERT", "framework")


@PARSER.pattern(
    rb"\[[A-Z][a-z]{2} [0-9]{2}, [0-9:]{8}\] [0-9]{1,9} [0-9]{1,4}\.[0-9]{6}",
    r"^\[[A-Z][a-z]{2} \d\d, \d\d:\d\d:\d\d\] (\d{1,9}) (\d{1,6}\.\d{6,20})\s*$",
    safety="Nothing follows the loss, which has many digits.",
    matches=("[Mar 29, 22:30:04] 624 5.457503729277139",),
    avoids=("[Mar 29, 22:30:04] 624 5.457503729277139 passages/s", "[Mar 29, 22:30:04] 12 0.25"),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    return line.event("progress", step=int(match[1]), loss=number(match[2]), framework=PARSER.id)
