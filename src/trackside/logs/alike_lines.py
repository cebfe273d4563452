"""Losses of lines that begin alike, for a log in which no other reader finds a loss, or only a stray one.

A loop prints the same words at each step and only the figures change. So lines whose text before a named loss differs only in
digits are its logged steps, whatever else they say. Each such beginning is a series of its own, because mixed they would show
no loss curve; of these, and only where the other readers fail, the longest describes the run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from trackside.logs.figures import WRAPPER, LineFigures, line_figures
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition, position_of
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import LAST_RANK, NUMBER, field_meaning, number
from trackside.logs.pattern import Parser
from trackside.logs.positions import position_above
from trackside.model import Event

SERIES_IDS = tuple(f"alike-lines-{index}" for index in range(8))
"""Parser ids of the points, one for each beginning."""
MIN_LINES = 3
"""Lines that begin alike, from which on they count."""
MAX_BEGINNINGS = 60
"""Beginnings that are remembered in one file."""
MAX_BEGINNING_CHARS = 240
"""Characters before a loss that are looked at."""
MAX_WORDS_CHARS = 60
"""Characters before a loss that are compared, each number taken as one."""
MAX_READ_BY_OTHERS = 100
"""Positions at which another reader has read a loss, from which on these series are not needed."""
MAX_TEXT_CHARS = 1_000
"""A longer line is a dump, not a progress line."""

_LOSS = re.compile(
    r"(?<![\w.])(?P<name>(?:[A-Za-z]\w{0,24}[ /-]{1,2}){0,3}\w{0,24}loss(?:es)?(?: [A-Za-z]\w{0,11}(?=\s{0,3}[:=]))?)['\"\])]{0,2}"
    r"(?:\s?[\[(][A-Za-z_ ]{1,16}[\])])?\s{0,3}(?:[:=|]{1,2}|=>|->|\bis\b|\bof\b)?[\s\[({'\"]{0,40}(?:(?<=\[)[a-z_]{1,20}:\s?)?"
    rf"{WRAPPER}(?P<value>{NUMBER})(?![\w%/])",
    re.IGNORECASE,
)
"""A named loss and its figure, the name's last word next to it."""
_OTHER = re.compile(
    r"(?<![A-Za-z])(?:val\w{0,9}|test\w{0,3}|eval\w{0,8}|dev|best|min|minimum|lowest|final|last|prev\w{0,5}|saved?|saving|improved|summary|adv|adversarial|wandb)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Words before a loss by which it is not the one of a training step."""
_GLUED = re.compile(r"(?:^|[ /.-])[A-Za-z]{1,6}loss$", re.IGNORECASE)
"""A loss whose name is one word: ``Qloss``."""
_BAR_OR_CODE = re.compile(
    r"%\||%\s{1,3}\d{1,9}/\d{1,9} \[|\bit/s\b|\bs/it\b|/step - |^\s*File \"|train_runtime|Namespace\(|[Cc]onfig\w*\(|\w(?:Error|Exception): "
)
_EVALUATION_HEADING = re.compile(
    r"^\W{0,12}(?:val|valid|validat\w+|eval|evaluat\w+|te?st(?:ing)?|dev)\b", re.IGNORECASE
)
_EVALUATION_RECORD = re.compile(
    r"(?:^|[\s\]|>])(?:val|valid|validation|eval|evaluation|test)[ _-]?(?:metrics|stats|results|figures|log)\w{0,2}['\"]?\s?[:=]",
    re.IGNORECASE,
)
"""What begins the figures of an evaluation, however far before its loss."""
_CHANGING = re.compile(
    r"(?:[\d.,:+-]*\d[\d.,:+-]*(?:[hms]\b)?\s*)+|\b(?:mon|tue|wed|thu|fri|sat|sun)\b|\s+|\b(?:nan|inf)\b", re.IGNORECASE
)
"""What may differ between two beginnings: numbers, times, weekdays and blanks."""


@dataclass(slots=True)
class _Beginning:
    """The losses of lines that begin alike, until they count as logged steps."""

    waiting: list[Event] = field(default_factory=list)
    series_id: str | None = None
    last_line: int = 0
    is_in_turn: bool = False
    """Whether lines of another series stand between the first ones."""
    is_rejected: bool = False
    counts_steps: bool = True
    """Whether the steps of the lines differ; else they number something else."""


PARSER = Parser(
    "alike-lines", "lines that begin alike", "framework", generic=True, overlaps=True, fallback_ids=SERIES_IDS
)


@PARSER.pattern(
    rb"[lL](?:oss|OSS)[^\n\r0-9]{0,24}[0-9nNiI]",
    safety="Three lines that begin alike; used only where no other reader finds a loss, or only a stray one.",
    matches=(
        "(ep 1) acc 0.1: fit loss: [seg: 0.0499] 1\n(ep 1) acc 0.1: fit loss: [seg: 0.0431] 1\n(ep 1) acc 0.1: fit loss: [seg: 0.0417] 1",
        "fold A batch loss | 2.114 |\nfold A batch loss | 2.031 |\nfold A batch loss | 1.987 |",
        "Loss: 2.3345\nPrec@1: 0.0\nLoss: 1.6163\nPrec@1: 25.0\nLoss: 1.8599",
        "loss: tf.Tensor(1.07371, shape=(), dtype=float32)\nloss: tf.Tensor(0.99062, shape=(), dtype=float32)\nloss: tf.Tensor(0.81, shape=(), dtype=float32)",
        "0 [D loss: 1.37, acc.: 50.00%] [G loss: 0.91]\n1 [D loss: 1.21, acc.: 53.12%] [G loss: 0.88]\n2 [D loss: 1.02, acc.: 61.00%] [G loss: 1.19]",
        "3 epochs done\nCurrent training loss is  4.089\n4 epochs done\nCurrent training loss is  3.702\n5 epochs done\nCurrent training loss is  3.541",
        "14:31:20 outer: 1, inner: 4, loss: 0.44\n14:32:04 outer: 1, inner: 5, loss: 0.41\n14:32:51 outer: 1, inner: 6, loss: 0.38",
        "[0 :    100] loss G : 14.97 loss D : 7.23\n[0 :    200] loss G : 13.20 loss D : 6.31\n[1 :   1200] loss G : 12.20 loss D : 6.01",
        "Step 500/30000 MLoss: 0.0 GLoss: 0.2917\nStep 1000/30000 MLoss: 0.0 GLoss: 0.2512\nStep 1500/30000 MLoss: 0.0 GLoss: 0.2299",
    ),
    avoids=(
        "fold A batch loss | 2.114 |\nfold A batch loss | 2.031 |",
        "Attempted loss scale: 65536.0\nAttempted loss scale: 32768.0\nAttempted loss scale: 16384.0",
        "val_metrics: {'mae_raw': 3.11, 'rmse': 0.5, 'loss': 4.13}\nval_metrics: {'mae_raw': 2.41, 'rmse': 0.4, 'loss': 3.13}\nval_metrics: {'mae_raw': 2.11, 'rmse': 0.4, 'loss': 2.93}",
        "val loss | 2.114\nval loss | 2.031\nval loss | 1.987",
        "{'train_runtime': 10.1, 'train_loss': 0.44}\n{'train_runtime': 11.1, 'train_loss': 0.43}\n{'train_runtime': 9.8, 'train_loss': 0.41}",
        "loss weight 0.5 of loss 0.5\nloss weight 0.5 of loss 0.5\nloss weight 0.5 of loss 0.5",
    ),
)
def _alike_points(line: Line) -> list[Event]:
    """The loss of a line as a point of its beginning's series; with the ones before it once the third line shows that they are
    logged steps."""
    text = line.text
    if line.notes("alike").get("read_by_others", 0) >= MAX_READ_BY_OTHERS:
        return []
    if len(text) > MAX_TEXT_CHARS or _BAR_OR_CODE.search(text):
        return []
    if (loss := _training_loss(text)) is None or _EVALUATION_RECORD.search(text, 0, loss.start("name")):
        return []
    beginnings: dict[str, _Beginning] = line.notes("alike").setdefault("beginnings", {})
    start = loss.start("value")
    words = _CHANGING.sub("#", text[max(0, start - MAX_BEGINNING_CHARS) : start])[-MAX_WORDS_CHARS:]
    key = f"{line.label} {words}"
    if (beginning := beginnings.get(key)) is None:
        if len(beginnings) >= MAX_BEGINNINGS:
            return []
        beginning = beginnings[key] = _Beginning()
    if beginning.is_rejected:
        return []
    value = number(loss["value"])
    if value is None:
        return []
    figures = line_figures(text)
    figures.values["loss"] = value
    event = loss_point(line, figures, _position(line, figures, beginning))
    last_line, beginning.last_line = beginning.last_line, line.number
    if beginning.series_id is not None:
        return [replace(event, parser=beginning.series_id)]
    in_series = [other for other in beginnings.values() if other.series_id is not None]
    beginning.is_in_turn |= bool(beginning.waiting) and any(other.last_line > last_line for other in in_series)
    beginning.waiting.append(event)
    return _begin_series(line, words, beginning, beginnings) if len(beginning.waiting) == MIN_LINES else []


def note_other_reader(line: Line) -> None:
    """Note that another reader read a loss at a new position; if it does so often, these series are not needed."""
    notes = line.notes("alike")
    notes["read_by_others"] = notes.get("read_by_others", 0) + 1


def _begin_series(line: Line, words: str, beginning: _Beginning, beginnings: dict[str, _Beginning]) -> list[Event]:
    """The waiting points as the first ones of a series; none if they are settings or the results of an evaluation."""
    points, beginning.waiting = beginning.waiting, []
    series_id = _series_id(beginning, beginnings)
    is_evaluation = "train" not in words.lower() and any(
        _EVALUATION_HEADING.match(other.text) and not _BAR_OR_CODE.search(other.text) for other in line.preceding(3)
    )
    is_constant = len({point.get("loss") for point in points}) == 1
    if is_constant:
        beginning.waiting = points[1:]
        return []
    if series_id is None or is_evaluation:
        beginning.is_rejected = True
        return []
    beginning.series_id = series_id
    beginning.counts_steps = len({(point.get("step"), point.get("epoch")) for point in points}) == MIN_LINES
    points = points if beginning.counts_steps else [_without_step(point) for point in points]
    return [replace(point, parser=series_id) for point in points]


def _series_id(beginning: _Beginning, beginnings: dict[str, _Beginning]) -> str | None:
    """A series that is not in use, or the last one if these lines follow it: another phase of the same training; None if there
    is none left."""
    in_series = [other for other in beginnings.values() if other.series_id is not None]
    if in_series and not beginning.is_in_turn:
        return max(in_series, key=lambda other: other.last_line).series_id
    used_ids = {other.series_id for other in in_series}
    return next((series_id for series_id in SERIES_IDS if series_id not in used_ids), None)


def _position(line: Line, figures: LineFigures, beginning: _Beginning) -> LinePosition:
    """The position that the line prints, else the one above it; only the epoch if the steps number something else."""
    position = position_of(line.text, figures)
    if not position.is_known:
        above = position_above(line)
        position = LinePosition() if above is None else above.record_position
    return position if beginning.counts_steps else LinePosition(epoch=position.epoch)


def _without_step(point: Event) -> Event:
    """The point with no more of its position than the epoch."""
    names = ("step", "epoch_share", "epoch_steps", "total_steps", "text")
    return replace(point, fields={name: value for name, value in point.fields.items() if name not in names})


def _training_loss(text: str) -> re.Match[str] | None:
    """The loss that a line prints of a training step: a total or the training's before any other; None if there is none."""
    candidates = [
        match
        for match in _LOSS.finditer(text)
        if not match["value"].lstrip("+-").isdigit()
        and _rank(match["name"]) is not None
        and not _OTHER.search(text, _word_start(text, match), match.start("value"))
    ]
    return min(candidates, key=_order_of_preference, default=None)


def _word_start(text: str, match: re.Match[str]) -> int:
    """Where the words before a loss begin: behind the last number, at most 60 characters before its name."""
    start = max(0, match.start("name") - 60)
    return max((number.end() for number in re.finditer(r"\d", text[start : match.start("name")])), default=0) + start


def _order_of_preference(match: re.Match[str]) -> tuple[bool, int]:
    """Sort key of a line's losses: a part that is not in use, printed as 0, comes last."""
    return number(match["value"]) == 0, _rank(match["name"]) or 0


def _rank(name: str) -> int | None:
    """The rank of a name among those of the training loss; None if it is none of them."""
    meaning = field_meaning(name)
    if meaning is None and _GLUED.search(name) is not None:
        return LAST_RANK
    return meaning[1] if meaning is not None and meaning[0] == "loss" else None
