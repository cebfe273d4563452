"""Positions on lines of their own: ``iter = 21560``, ``Training epoch: 55``, ``num of updates: 26000``.

Loops that print a record over several lines print the position first and the loss below it; :func:`position_above` gives
the position that a loss without one belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from trackside.catalog.excerpt import below_heading
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition

MAX_RECORD_LINES = 60
"""Lines below a step within which a record belongs to it."""
MAX_EPOCH_LINES = 20_000
"""Lines below an epoch within which a record belongs to it."""
MAX_TEXT_CHARS = 160
"""A longer line says more than a position."""
MAX_REST_CHARS = 60
"""Characters after the count, unless they are figures."""

_NOTES = "positions"
_POSITION = re.compile(
    r"(?:^|[^\w\s'\"./-]|\b(?:INFO|DEBUG)\s|\d [IDW]\s)[^\w]{0,40}(?:(?:start(?:ing|ed)?|begin(?:ning)?|train(?:ing)?|learning|eval(?:uat\w+)?|valid\w*|test\w*|current|running|outer|in|at|the|for|of)\s){0,3}"
    r"(?:(?P<epoch>epoch|round|episode)|(?:global[ _])?(?:step|iter|iteration|update|batch|minibatch)|num(?:ber)?[ _]of[ _]updates|num_updates)"
    r"['\"]?(?:\s(?:of|no\.?|number|index|idx)(?=\s{0,2}[:=#]))?\s{0,3}[:=#]?[\s'\",]{0,60}[\[(]?\s{0,6}(?P<count>\d{1,3}(?:,\d{3}){1,3}|\d{1,12})(?!\d|\.\d)(?(epoch)|(?!\.))"
    r"(?:\s{0,2}(?:/|(?:out )?of)\s{0,2}(?P<of>\d{1,3}(?:,\d{3}){1,3}|\d{1,12}))?",
    re.IGNORECASE,
)
"""A counter at the start of a line, or behind a time, a level or punctuation; not ``warmup step: 100``. An epoch may end a
sentence; a step with a full stop is an item of a list."""
_FIGURES = re.compile(r"[\W_]{0,6}(?:[A-Za-z][\w%./-]{0,24}\s?[=:]\s?\S{1,20}(?:[\s|,;]{1,4}|$)){2}")
"""Figures with names behind a count: ``step= 84,000 | critic=0.65 | actor=-4.48 | ...``."""
_EPOCH_BEHIND = re.compile(r"[,;|]\s{0,3}epoch\s{0,3}[:=]\s{0,3}(\d{1,7})(?![.\d])", re.IGNORECASE)
"""An epoch behind a step: ``step: 500, epoch: 3``."""
_EPOCH_NAMED = re.compile(
    r"^[^\d]{0,60}(?:^|[^\w./-])(?P<epoch>epoch)\s{0,2}[:#]?\s{0,4}(?P<count>\d{1,7})(?![.\d])(?P<of>(?!))?",
    re.IGNORECASE,
)
"""An epoch behind other words: ``Finished epoch 7 in 00:06:19``. It counts only where the number grows by one."""
_STAGE = re.compile(
    r"(?:^|\W)step\s{0,2}#?\d{1,3}\s?[\]):.-]{0,3}\s{0,4}[A-Za-z][\w&'-]*[\s,/]{1,3}[A-Za-z&(][^\d=]*$", re.IGNORECASE
)
"""A stage of a program, not of its training: ``[STEP 4] Build the tokenizer``."""
_BAR_OR_LOSS = re.compile(
    r"loss|(?<!time )\bcost\b(?! time)|\d%\||it/s|s/it|[\w.]\.py\b|\bsav(?:ed|ing)\b|\bbest\b|checkpoint|\b(?:re)?load|\bresum",
    re.IGNORECASE,
)
BAR_IN_FRONT = re.compile(r"^[^|]{0,200}\d{1,3}%\|[^|]{0,400}\|\s{0,9}\d{1,12}/\d{1,12} \[[^\]]{0,200}\](?=\S)")
"""A tqdm bar whose line another print continues."""
TRAINING_WORD = re.compile(r"\btrain(?:ing)?\b", re.IGNORECASE)
_NOT_TRAINING = re.compile(r"\b(?:eval\w*|val(?:id\w*)?|test\w*|dev)\b", re.IGNORECASE)

LOGGER_NAME = re.compile(r"\b(?:INFO|DEBUG):[\w.-]{1,60}:")
"""A level with the name of a logger, which may be any word."""


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """Where the loop is; ``is_evaluation``: in an evaluation, so a loss below it is not the training loss."""

    step: int | None
    epoch: int | None
    """The epoch as printed; for a step, the epoch printed above it."""
    total: int | None
    """The ``M`` of a step that was printed as ``N/M``."""
    line: int
    offset: int
    is_evaluation: bool
    counts_rounds: bool = False
    """Whether it counts rounds or episodes, which programs other than training also count."""
    text: str = ""
    """The lines that print it, the epoch's first."""
    epoch_text: str = ""
    """The line that prints the epoch."""

    @property
    def record_position(self) -> LinePosition:
        """The position of a record below; behind an epoch, a step is counted from the epoch's start if its number of
        steps is known."""
        if self.step is None or self.epoch is None or self.total is None:
            return LinePosition(self.step, self.epoch, None, self.total, heading=self.text)
        return LinePosition(self.step, self.epoch, self.total, heading=self.text)


def remember_position(line: Line) -> LoopPosition | None:
    """Remember the position that a short line names, unless it prints a loss or a bar; returns the one before it if the
    loop moved on from there."""
    text = BAR_IN_FRONT.sub("", line.text) if "%|" in line.text else line.text
    if len(text) > MAX_TEXT_CHARS or _BAR_OR_LOSS.search(text) or _STAGE.search(text):
        return None
    match, before = _POSITION.search(text), _last_position(line)
    if match is None:
        match = _EPOCH_NAMED.search(text)
        named = line.notes(f"{_NOTES} named")
        last, named[line.label] = named.get(line.label), None if match is None else int(match["count"])
        if match is None or last is None or named[line.label] not in (last, last + 1):
            return None
    notes = line.notes(_NOTES)
    if len(text) - match.end() > MAX_REST_CHARS:
        if before is not None or not _FIGURES.match(text, match.end()):
            return None
        # figures may sum up what ended: they are no heading of the lines below
        notes = line.notes(f"{_NOTES} with figures")
        before = notes.get(line.label)
    count, of = _to_count(match["count"]), _to_count(match["of"])
    in_epoch = None if before is None or before.is_evaluation else before.epoch
    if match["epoch"] is None and (behind := _EPOCH_BEHIND.match(text, match.end())) is not None:
        in_epoch = int(behind[1])
    position = LoopPosition(
        None if match["epoch"] else count,
        count if match["epoch"] else in_epoch,
        None if match["epoch"] else of,
        line.number,
        line.offset,
        _NOT_TRAINING.search(LOGGER_NAME.sub("", text)) is not None and TRAINING_WORD.search(text, match.end()) is None,
        (match["epoch"] or "").lower() in ("round", "episode"),
        *_texts(
            text.strip(), is_epoch=match["epoch"] is not None, epoch_above=before if in_epoch is not None else None
        ),
    )
    notes[line.label] = position
    if before is None or before.is_evaluation or position.is_evaluation:
        return None
    has_moved = (before.step, before.epoch) != (position.step, position.epoch)
    return before if has_moved and (before.step is None) == (position.step is None) else None


def _texts(text: str, *, is_epoch: bool, epoch_above: LoopPosition | None) -> tuple[str, str]:
    """The lines that print a position, and the one that prints its epoch."""
    if is_epoch:
        return text, text
    heading = "" if epoch_above is None else epoch_above.epoch_text
    return (below_heading(heading, text) if heading else text), heading


def _to_count(text: str | None) -> int | None:
    """A printed count with or without thousands separators."""
    return int(text.replace(",", "")) if text else None


def epoch_above(line: Line) -> int | None:
    """The epoch that the same writer's last position named, or None."""
    position = _last_position(line)
    return None if position is None or position.is_evaluation else position.epoch


def position_above(line: Line) -> LoopPosition | None:
    """The position that the same writer printed above: at most :data:`MAX_RECORD_LINES` lines for a step, or None."""
    position = _last_position(line)
    if position is None:
        return None
    reach = MAX_EPOCH_LINES if position.step is None else MAX_RECORD_LINES
    if line.number - position.line <= reach:
        return position
    return (
        replace(position, step=None, total=None, counts_rounds=False, text=position.epoch_text)
        if position.epoch is not None
        else None
    )


def _last_position(line: Line) -> LoopPosition | None:
    """The last position of the line's writer."""
    position: LoopPosition | None = line.notes(_NOTES).get(line.label)
    return position
