"""Losses that a line names only by their split: ``Epoch 3 | Train: 2.65 | Test: 2.71``, ``0 train 10.93``.

Scores are printed in the same way. The figures of lines that begin alike are losses if the line says so before them, or once
they have fallen often enough to a new minimum: a score rises when a model learns. Nothing is read of lines that count no
steps or epochs, and nothing in a log that names its losses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trackside.catalog.scores import score_direction
from trackside.logs.figures import LineFigures, line_figures, put_position_first
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition, position_of
from trackside.logs.localized import to_english
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import NUMBER, number
from trackside.logs.positions import position_above
from trackside.model import Event

MAX_TEXT_CHARS = 300
MIN_NET_FALLS = 4
"""How much more often the figure must have fallen than risen."""
MAX_WAITING = 2_000
"""Lines after which figures that did not fall are no losses."""
MAX_OPENINGS = 20

_TRAIN = re.compile(
    rf"(?<![\w/.-])(?:train(?:ing)?|trn|tr)['\"\]]?(?:\s{{0,2}}[:=|]\s{{0,3}}|\s{{1,3}})(?P<value>{NUMBER})(?!\s?[%\d/:]|\s(?!va|te?st|dev|eval|lr|acc)\w)",
    re.IGNORECASE,
)
_OTHER_SPLIT = re.compile(
    r"(?<![\w/.-])(?:val(?:id(?:ation)?)?|va|te?st|dev|eval|held[-_ ]?out|hold[-_ ]?out)\b[^\d]{0,12}\d", re.IGNORECASE
)
_NUMBERED = re.compile(r"\s{0,6}(\d{1,9}):? train(?:ing)? \S{1,24}\s{0,4}$")
"""A step, a split and a figure, nothing else: ``0 train 10.93``."""
_ALONE = re.compile(rf"\W{{0,6}}train(?:ing)?\s?[:=]\s{{0,3}}{NUMBER}\W{{0,3}}$", re.IGNORECASE)
"""A split and a figure, nothing else, below a position: ``Training: 4.07``."""
_WORDS = re.compile(r"[A-Za-z][\w-]{0,30}")
_REMARK = re.compile(
    r"\b(?:best|final|size|samples|images|split|ratio|fold|(?:time|speed)(?!\s?[:=]\s?\d))\b", re.IGNORECASE
)


@dataclass(slots=True)
class _Opening:
    """Lines that begin alike, until their figures count as losses."""

    waiting: list[Event] = field(default_factory=list)
    net_falls: int = 0
    minimum: float = float("inf")
    last: float | None = None
    counts: bool = False


def split_loss(line: Line) -> list[Event] | None:
    """The logged steps of a line that names a training figure by its split; several once it is known what they are."""
    text = line.text
    if len(text) > MAX_TEXT_CHARS:
        return None
    text = put_position_first(text if text.isascii() else to_english(text))
    match = _TRAIN.search(text)
    if match is None or not ("." in match["value"] or "n" in match["value"].lower()):
        return None
    before = text[: match.start()]
    numbered = _NUMBERED.match(text)
    is_beside_other = _OTHER_SPLIT.search(text) is not None and not _REMARK.search(before)
    if numbered is None and not is_beside_other and _ALONE.match(text) is None:
        return None
    words = _WORDS.findall(before)
    if any(score_direction(word) is not None for word in words):
        return None
    figures = line_figures(text)
    if "loss" in figures.values:
        return None
    position = LinePosition(step=int(numbered[1])) if numbered is not None else position_of(text, figures)
    if not position.is_known:
        above = position_above(line)
        if above is None or above.is_evaluation:
            return None
        position = above.record_position
    value = number(match["value"])
    if value is None:
        return None
    figures = LineFigures({**figures.values, "loss": value}, figures.precedences, figures.totals, figures.units)
    return _once_known(
        line, loss_point(line, figures, position), value, before, any("loss" in word.lower() for word in words)
    )


def _once_known(line: Line, event: Event, value: float, before: str, is_named: bool) -> list[Event] | None:
    """The event and those that waited for it, if it is known that such figures are losses."""
    openings: dict[str, _Opening] = line.notes("split-losses").setdefault(line.label, {})
    key = re.sub(r"\s*\d[\d.:,]*", "#", before)[-40:]
    if key not in openings and len(openings) >= MAX_OPENINGS:
        return None
    opening = openings.setdefault(key, _Opening(counts=is_named))
    if opening.counts:
        return [event]
    if opening.last is not None and value != opening.last:
        opening.net_falls += 1 if value < opening.last else -1
    opening.last = value
    if len(opening.waiting) < MAX_WAITING:
        opening.waiting.append(event)
    is_minimum, opening.minimum = value < opening.minimum, min(value, opening.minimum)
    if not is_minimum or opening.net_falls < MIN_NET_FALLS or len(opening.waiting) >= MAX_WAITING:
        return None
    opening.counts = True
    return opening.waiting
