"""Horovod: its stall inspector's reports of ranks that did not submit a tensor."""

from __future__ import annotations

import re

from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_RANKS = re.compile(r"\[missing ranks: ([\d, ]{1,400})\]")
_MISSING = re.compile(r"\s{0,8}(\d{1,6}): ?\[")
MAX_RANKS = 64
"""Ranks read from one report; the report of a large job names them all."""

PARSER = Parser("horovod", "Horovod", "system")


@PARSER.pattern(
    rb"are waiting for remainder of ranks for more than [0-9]",
    r"for more than (\d{1,7}) seconds",
    safety="Repeated while the wait lasts: later progress clears it.",
    matches=(
        "[2026-01-02 03:04:05.958103: W horovod/common/stall_inspector.cc:105] One or more tensors were "
        "submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of "
        "ranks for more than 60 seconds. This may indicate that different ranks are trying to submit "
        "different tensors.\nMissing ranks:\n3: [grad_0]",
    ),
    avoids=("workers are waiting for the remainder of the ranks",),
)
def _stall(line: Line, match: re.Match[str]) -> Event:
    missing = _missing_ranks(line)
    return line.event(
        "collective_timeout",
        EventRole.CASCADE,
        elapsed_s=float(match[1]),
        backend="horovod",
        missing_ranks=",".join(missing) or None,
    )


def _missing_ranks(line: Line) -> list[str]:
    """The ranks named below the report: "[missing ranks: 1, 2]" at each tensor, or "Missing ranks:" and one line per
    rank."""
    is_list, ranks = False, dict[str, None]()
    for below in line.following(MAX_RANKS):
        if below.label != line.label:
            continue
        if match := _RANKS.search(below.text):
            ranks.update(dict.fromkeys(rank.strip() for rank in match[1].split(",")))
        elif "Missing ranks:" in below.text:
            is_list = True
        elif is_list and (match := _MISSING.match(below.text)):
            ranks[match[1]] = None
        elif not below.text.startswith(("Stalled ops", "Stalled ranks")):
            break
    return [rank for rank in ranks if rank][:MAX_RANKS]
