"""Lines that name a training loss, and where the loop was: on the line itself, above it, or nowhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise

from trackside.logs.figures import LineFigures, line_figures, position_first
from trackside.logs.line import Line
from trackside.logs.line_positions import EPOCH_BATCH, SAMPLES, LinePosition, position_of
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import NUMBER
from trackside.logs.positions import epoch_above, position_above
from trackside.model import Event

ID, FALLBACK_ID = "custom", "custom-positions"
"""Ids of the parser of custom loops, and of points that count only if no others do."""
MAX_TEXT_CHARS = 4_000
"""A longer line is a dump, not a progress line."""
MAX_RECORD_CHARS = 300
"""A longer line under a position is not a record of figures."""

_RECORD = re.compile(r"(?<![A-Za-z])[Ee]poch:? ?\[?\d{1,7}/\d{1,7}[\],]")
MIN_GLUED_RECORDS = 3
"""Records in one line, printed without a line end, from which the line is split."""
_BAR = re.compile(r":? {0,4}(?::|\d{1,3}%\|[^|]{0,200}\|) {0,4}\d{1,9}(?:it|/\d{1,9}) \[[^\]]{0,200}\].{0,400}$")
"""A tqdm bar behind a line that names its position and loss itself."""
_BAR_BEFORE = re.compile(r"^[^|]{0,200}\d{1,3}%\|[^|]{0,400}\|\s{0,9}\d{1,12}/\d{1,12} \[[^\]]{0,200}\](?=\S)")
"""A tqdm bar whose line another print continues."""
_VALUE = re.compile(rf"\b(?:val|valid|test|dev)\w{{0,20}}\s{{0,2}}[=:]\s{{0,2}}{NUMBER}", re.IGNORECASE)
"""A figure of the validation, not a word that qualifies the loss after it."""
_OTHER = re.compile(
    r"^\s{0,8}(?:\w{1,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception): |%\||\bwandb: |\[\d\d:[\d:]{2,9}(?:<|, )|:::MLLOG|Namespace\(|Arg(?:ument)?s\(|[Cc]onfig\w*\(|^\s*File \"|Traceback|train loss [^,]{1,30}, val loss "
    r"|'eval_|'train_runtime'|validation loss at |\| valid \||/step - "
)
_REMARK = re.compile(
    r"\b(?:[Bb]est|BEST|[Ff]inal(?!,)|[Ss]av(?:ed|ing)|SAVE|[Ll]owest|[Mm]inimum|improved|[Ee]arly ?[Ss]topp\w*|[Ss]ummary)\b"
)
"""Words of a remark: behind the figures of a step it is cut off; a loss behind it is none of a step."""
_LOSS_BEFORE = re.compile(rf"[lL](?:oss|OSS)[^\n]{{0,24}}?{NUMBER}")
_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id|idation|idating)?|eval(?:uat(?:ion|ing|ed))?)\b|(?:^|[|\]\[>(:-])\s{0,4}(?:test(?:ing)?|dev)\b",
    re.IGNORECASE,
)
"""Before the loss, these words say that it is not the training loss."""
_OTHER_HINTS = (
    "%|", "it/s", "s/it", ":::m", "namespace(", "args(", "arguments(", "config", 'file "', "traceback", "val loss", "'eval_",
    "'train_runtime", "validation loss", "| valid", "/step - ", "best", "final", "sav", "lowest", "minimum", "improved", "early",
    "summary", "error: ", "exception: ", "wandb: ",
)  # fmt: skip
_NOT_TRAINING_HINTS = ("val", "eval", "test", "dev")
"""Every line that the regex above can match contains one of these in lower case; searching for them first is far
cheaper."""
_LOSS = re.compile(r"[^\n]{0,200}?[lL](?:oss|OSS)\w{0,20}['\"]?(?:\s{0,3}[:=]| is\b)")
"""A line up to the first loss that it names."""
_DIGITS = re.compile(r"\d+")
_OTHER_SPLIT = re.compile(
    r"^\W{0,12}(?:(?:start|running|begin)\w*\W{1,3})?(?:dev|te?st|val|valid|validat\w+|eval|evaluat\w+|test\w*)\b(?!.{0,40}\d\.\d)",
    re.IGNORECASE,
)
"""The heading of an evaluation, without a figure."""
MAX_SPLIT_LINES = 6
MIN_ALIKE = 3
"""Lines that begin alike from which their losses are logged steps although no line says of which."""
MAX_OPENINGS = 40


@dataclass(slots=True)
class _Opening:
    """Lines that begin alike: their losses so far, until they count as logged steps."""

    waiting: list[Event] = field(default_factory=list)
    counts: bool = False
    last_line: int = 0


_BEST_FIELD = re.compile(r"\[best\].*", re.IGNORECASE)


def line_points(line: Line) -> list[Event] | None:
    """The logged steps and evaluation losses of a line, or None."""
    starts = [match.start() for match in _RECORD.finditer(line.text)]
    if len(starts) < MIN_GLUED_RECORDS:
        return None if len(line.text) > MAX_TEXT_CHARS else _read(line, line.text)
    pieces = [line.text[start:stop] for start, stop in pairwise([*starts, len(line.text)])]
    return [event for piece in pieces for event in _read(line, piece) or ()]


def _read(line: Line, text: str) -> list[Event] | None:
    """The events of one record."""
    if "est]" in text or "EST]" in text:
        text = _BEST_FIELD.sub("", text)
    if "%|" in text or "it [" in text:
        text = _BAR_BEFORE.sub("", text)
        if EPOCH_BATCH.search(text) or SAMPLES.search(text):
            text = _BAR.sub("", text)
    text = position_first(text)
    lowered = text.lower()
    if any(hint in lowered for hint in _OTHER_HINTS):
        if (remark := _REMARK.search(text)) is not None:
            text = text[: remark.start()]
            if _LOSS_BEFORE.search(text) is None:
                return None
            lowered = text.lower()
        if _OTHER.search(text):
            return None
    figures = line_figures(text)
    if "loss" not in figures.values and "eval_loss" not in figures.values:
        return None
    before = lowered[: max(0, lowered.find("loss"))]
    hinted = any(hint in before for hint in _NOT_TRAINING_HINTS)
    not_training = hinted and _NOT_TRAINING.search(_VALUE.sub("", before)) is not None
    position = _without_epoch_length(position_of(text, figures), figures)
    if not position.known and not figures.rounded:
        above = position_above(line)
        notes = line.notes(ID)
        sums_up = notes.get("positioned", 0) > notes.get("below", 0)  # those that name a position themselves
        if len(text) > MAX_RECORD_CHARS or sums_up or _is_setting(line, figures):
            return None
        if above is None:
            return None if not_training or "loss" not in figures.values else _unpositioned(line, figures)
        position, not_training = above.of_record, not_training or above.evaluates or _evaluates_above(line, above.line)
        notes["below"] = notes.get("below", 0) + 1
    elif "loss" in figures.values and not not_training:
        notes = line.notes(ID)
        notes["positioned"] = notes.get("positioned", 0) + 1
        if position.epoch is not None:
            notes["names_epoch"] = True
        elif "names_epoch" not in notes and (in_epoch := epoch_above(line)) is not None:
            position = LinePosition(position.step, in_epoch, position.total)
    events = []
    validated = figures.values.get("loss" if not_training and "eval_loss" not in figures.values else "eval_loss")
    if validated is not None:
        events.append(
            line.event(
                "evaluation",
                step=position.step,
                epoch=position.epoch,
                metric="loss",
                value=validated,
                loss=validated,
            )
        )
    if "loss" in figures.values and not not_training and _is_first_name(line, figures, position):
        events.append(loss_point(line, figures, position))
    return events or None


def _evaluates_above(line: Line, position_line: int) -> bool:
    """Whether one of the lines between the position and this line begins with the name of another split."""
    lines = (other.text for other in line.preceding(MAX_SPLIT_LINES) if other.number > position_line)
    return any(_OTHER_SPLIT.match(text) for text in lines)


def _without_epoch_length(position: LinePosition, figures: LineFigures) -> LinePosition:
    """The position of an epoch's summary, which says how many steps the epoch had: ``Epoch: 3, Steps: 270 | ...``."""
    summary = position.epoch is not None and position.step is not None and "eval_loss" in figures.values
    is_length = summary and figures.step_name.lower().endswith(("steps", "iterations", "iters", "batches"))
    return LinePosition(epoch=position.epoch) if is_length else position


def _is_setting(line: Line, figures: LineFigures) -> bool:
    """Whether the first loss that names no position is a whole number, as in settings and code."""
    notes = line.notes(f"{ID} {line.label}")
    notes["fractional"] = notes.get("fractional", False) or figures.whole_value("loss") is None
    return not notes["fractional"]


def _unpositioned(line: Line, figures: LineFigures) -> list[Event] | None:
    """Losses of lines that begin alike and of which none names a position: logged steps from the third one on.

    Lines begin alike if they differ only in digits before the loss. Of two such losses that are printed in turn (of two
    networks, or of parts) the first one counts."""
    match = _LOSS.match(line.text)
    if match is None or figures.rounded:
        return None
    openings: dict[str, _Opening] = line.notes(f"{ID} {line.label}").setdefault("openings", {})
    text = _DIGITS.sub("#", match[0])
    if text not in openings and len(openings) >= MAX_OPENINGS:
        return None
    opening = openings.setdefault(text, _Opening())
    interrupted = any(other.counts and other.last_line > opening.last_line for other in openings.values())
    opening.last_line = line.number
    event = replace(loss_point(line, figures, LinePosition()), parser=FALLBACK_ID)
    if opening.counts:
        return [event]
    opening.waiting = [event] if interrupted else [*opening.waiting, event]
    if len(opening.waiting) < MIN_ALIKE or len({event.get("loss") for event in opening.waiting}) == 1:
        del opening.waiting[:-MIN_ALIKE]
        return None
    opening.counts = True
    return opening.waiting


def _is_first_name(line: Line, figures: LineFigures, position: LinePosition) -> bool:
    """Whether no loss with a more specific name was printed for the same step and epoch: ``Train Loss`` before ``True
    Loss``."""
    notes, rank = line.notes(f"{ID} {line.label}"), figures.ranks["loss"]
    place = position.step, position.epoch
    if notes.get("position") == place and notes["rank"] < rank:
        return False
    notes.update(position=place, rank=rank)
    return True
