"""Marian NMT: ``Ep. 1 : Up. 1000 : Sen. 64,000 : Cost 8.31 : Time 66.91s : 9874.02 words/s : L.r. 3.0e-05``; its cost is
the cross-entropy."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

PARSER = Parser("marian", "Marian NMT", "framework")


@PARSER.pattern(
    rb"Ep\. [0-9.]{1,12} : Up\. [0-9]{1,12} : Sen\. [^\n\r]{1,20} : Cost ",
    rf"\bEp\. (\d{{1,7}})[\d.]{{0,6}} : Up\. (\d{{1,12}}) : Sen\. [\d,]{{1,20}} : Cost ({NUMBER})(?:.{{0,120}} L\.r\. ({NUMBER}))?",
    safety="Validation prints the name of its measure in place of the sentences.",
    matches=(
        "[2026-01-02 03:04:05] Ep. 1 : Up. 500 : Sen. 31,984 : Cost 9.21873856 : Time 41.11s : 8012.40 words/s : L.r. 1.5000e-05",
        "[2026-01-02 03:04:05] Ep. 2 : Up. 900 : Sen. 1,204 : Cost 7.02 * 310,112 @ 4,112 after 2,101,330 : Time 40.20s",
    ),
    avoids=("[2026-01-02 03:04:05] Ep. 1 : Up. 500 : Sen. 31,984 : Cost unknown",),
)
def _progress(line: Line, match: re.Match[str]) -> Event:
    epoch, update, cost, lr = match.groups()
    return line.event(
        "progress", epoch=int(epoch), step=whole_number(update), loss=number(cost), lr=number(lr), framework=PARSER.id
    )


@PARSER.pattern(
    rb"\[valid\] Ep\. [0-9.]{1,12} : Up\. [0-9]{1,12} : (?:cross-entropy|ce-mean-words) : ",
    rf"\[valid\] Ep\. (\d{{1,7}})[\d.]{{0,6}} : Up\. (\d{{1,12}}) : (?:cross-entropy|ce-mean-words) : ({NUMBER})",
    safety="Other measures of the validation are scores.",
    matches=("[2026-01-02 03:04:05] [valid] Ep. 1 : Up. 500 : cross-entropy : 180.21 : new best",),
    avoids=("[2026-01-02 03:04:05] [valid] Ep. 1 : Up. 500 : bleu : 12.1 : new best",),
)
def _evaluation(line: Line, match: re.Match[str]) -> Event:
    loss = number(match[3])
    return line.event(
        "evaluation", epoch=int(match[1]), step=whole_number(match[2]), metric="loss", value=loss, loss=loss
    )
