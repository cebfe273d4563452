"""Lines that only say where a loop is: ``iter = 21560``, ``Training epoch: 55``, ``num of updates: 26000``.

Loops that print a record over several lines print the position first and the loss below it; :func:`position_above` gives
the position that a loss without one belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.logs.line import Line

MAX_RECORD_LINES = 60
"""Lines of one record below its position."""
MAX_TEXT_CHARS = 160
"""A longer line says more than a position."""
MAX_REST_CHARS = 60
"""Characters after the count."""

_NOTES = "positions"
_POSITION = re.compile(
    r"(?:^|[^\w\s'\"./-])[^\w]{0,20}(?:(?:start(?:ing|ed)?|begin(?:ning)?|train(?:ing)?|eval(?:uat\w+)?|valid\w*|test\w*|current|running|outer|in|at|the|for|of)\s){0,3}"
    r"(?:(?P<epoch>epoch)|(?:global[ _])?(?:step|iter|iteration|update)|num(?:ber)?[ _]of[ _]updates|num_updates)"
    r"['\"]?\s{0,3}[:=#]?\s{0,60}[\[(]?\s{0,6}(?P<count>\d{1,12})(?![.\d])(?:\s{0,2}(?:/|(?:out )?of)\s{0,2}(?P<of>\d{1,12}))?",
    re.IGNORECASE,
)
"""A counter at the start of a line, or behind a time, a level or punctuation; not ``warmup step: 100``."""
_BAR_OR_LOSS = re.compile(r"loss|\d%\||it/s|s/it|[\w.]\.py\b|\bsav(?:ed|ing)\b|\bbest\b|checkpoint", re.IGNORECASE)
_NOT_TRAINING = re.compile(r"\b(?:eval\w*|val(?:id\w*)?|test\w*|dev)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """Where the loop is; ``evaluates``: in an evaluation, so a loss below is none of training."""

    step: int | None
    epoch: int | None
    total: int | None
    """Planned steps, if a step was printed as ``N/M``."""
    line: int
    evaluates: bool


def remember_position(line: Line) -> LoopPosition | None:
    """Remember the position that a short line names, if it prints no loss and no bar; the one before it, if the loop
    moved on from there."""
    text = line.text
    if len(text) > MAX_TEXT_CHARS or _BAR_OR_LOSS.search(text):
        return None
    match = _POSITION.search(text)
    if match is None or len(text) - match.end() > MAX_REST_CHARS:
        return None
    count, total = int(match["count"]), int(match["of"]) if match["of"] else None
    position = LoopPosition(
        None if match["epoch"] else count,
        count if match["epoch"] else None,
        None if match["epoch"] else total,
        line.number,
        _NOT_TRAINING.search(text) is not None,
    )
    before = _last_position(line)
    line.notes(_NOTES)[line.label] = position
    if before is None or before.evaluates or position.evaluates:
        return None
    moved = (before.step, before.epoch) != (position.step, position.epoch)
    return before if moved and (before.step is None) == (position.step is None) else None


def epoch_above(line: Line) -> int | None:
    """The epoch that the same writer's last position named, or None."""
    position = _last_position(line)
    return None if position is None or position.evaluates else position.epoch


def position_above(line: Line) -> LoopPosition | None:
    """The position that the same writer printed at most :data:`MAX_RECORD_LINES` lines above, or None."""
    position = _last_position(line)
    return None if position is None or line.number - position.line > MAX_RECORD_LINES else position


def _last_position(line: Line) -> LoopPosition | None:
    """The last position of the line's writer."""
    position: LoopPosition | None = line.notes(_NOTES).get(line.label)
    return position
