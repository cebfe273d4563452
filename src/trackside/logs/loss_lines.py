"""Logged steps of lines that name a training loss; the position is on the line itself, above it, or missing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from trackside.logs.alike_lines import note_other_reader
from trackside.logs.figures import LineFigures, line_figures, put_position_first
from trackside.logs.line import Line
from trackside.logs.line_positions import EPOCH_BATCH, SAMPLES, LinePosition, position_of
from trackside.logs.localized import is_in_other_script, to_english
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import LAST_RANK, NUMBER, as_whole, function_loss, number
from trackside.logs.positions import BAR_IN_FRONT, LOGGER_NAME, TRAINING_WORD, epoch_above, position_above
from trackside.logs.series import REPLACES
from trackside.model import Event

ID, FALLBACK_ID = "custom", "custom-positions"
"""Ids of the parser of custom loops, and of points that count only if no others do."""
MAX_TEXT_CHARS = 4_000
"""A longer line is a dump, not a progress line."""
MAX_RECORD_CHARS = 300
"""A longer line under a position is not a record of figures."""
RESTART_BYTES = 2_000
"""A process that starts over prints more than this before its first record."""

_RECORD = re.compile(r"(?<![A-Za-z])[Ee]poch:? ?\[?\d{1,7}/\d{1,7}[\],]|\[\d{1,7}/\d{1,7}\] ?\[\d{1,9}/\d{1,9}\]")
MIN_GLUED_RECORDS = 3
"""A line with at least this many records, printed without line ends, is split into them."""
_BAR_BEHIND = re.compile(r":? {0,4}(?::|\d{1,3}%\|[^|]{0,200}\|) {0,4}\d{1,9}(?:it|/\d{1,9}) \[[^\]]{0,200}\].{0,400}$")
"""A tqdm bar behind a line that names its position and loss itself."""
_EVALUATION_FIGURE = re.compile(
    rf"\b(?:val|valid|test|dev)\w{{0,20}}(?:\s\w{{1,20}})?\s{{0,2}}[=:]\s{{0,2}}{NUMBER}", re.IGNORECASE
)
"""A figure of the validation, not a word that qualifies the loss after it."""
_EVALUATION_METER = re.compile(
    r"\[ {0,6}(?P<batch>\d{1,9})/\d{1,9}\].{0,80}\bloss:?[ \t]{1,4}[\d.e+-]{1,12} {1,2}\((?P<mean>\d{1,9}(?:\.\d{1,9})?(?:e[+-]\d\d)?)\)",
    re.IGNORECASE,
)
"""A batch of an evaluation in the meters of the ImageNet example and torchvision; in brackets the mean so far."""
_NOT_PROGRESS = re.compile(
    r"^\s{0,8}(?:\w{1,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception): |%(?:\|| \d{1,9}/\d{1,9} \[)|\bwandb: |\[\d\d:[\d:]{2,9}(?:<|, )|:::MLLOG|Namespace\(|Arg(?:ument)?s\(|[Cc]onfig\w*\(|^\s*File \"|Traceback|train loss [^,]{1,30}, val loss "
    r"|'eval_|'train_runtime'|validation loss at |\| valid \||/step - "
)
_REMARK = re.compile(
    r"\b(?:[Bb]est|BEST|[Ff]inal(?!,|\.py)|[Ss]av(?:ed|ing)|SAVE|[Ll]owest|[Mm]inimum|improved|[Ee]arly ?[Ss]topp\w*|[Ss]ummary)\b"
)
"""Words of a remark: what follows the figures of a step is cut off; a loss behind such a word is not a step's."""
_LOSS_BEFORE = re.compile(rf"[lL](?:oss|OSS)[^\n]{{0,24}}?{NUMBER}")
_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id|idation|idating)?|eval(?:uat(?:ion|ing|ed))?)(?:\b|_summary)"
    r"|(?:^|[|\]\[>(:-])\s{0,4}(?:(?:test(?:ing)?|dev)(?:\b|_summary)|ttt:)"
    r"|(?:^|\s)(?:val|valid|validation|test|eval|dev)_\w{1,40}\s{1,40}$",
    re.IGNORECASE,
)
"""Before the loss, these words say that it is not the training loss: a split, or a set of one (``val_night   loss``)."""
_EVALUATION_GROUP = re.compile(
    r"\b(?:val|valid|validation|eval|evaluation|test|dev)['\"]?\s?[:=]\s?[\[{(][^\]})\n]{0,200}?(?<!\w)(?=loss\b)",
    re.IGNORECASE,
)
"""The figures of another split in brackets, up to their loss: ``train loss=2.1 | val: {'loss': 2.4, ...}``."""
_PHASE_TAG = re.compile(
    r"^\s{0,4}\[[^\]\n]{0,40}\bstep:?\s?\d{1,4}\](?=[^\n]{0,60}\b(?:iter\w{0,6}|itrs?|batch)\W{0,3}\d{1,9}\s?/\s?\d{1,9}\b)",
    re.IGNORECASE,
)
"""A tag with the step of a schedule, before a count within the epoch: ``[task 2 / step 0] Epoch 0, Itrs 10/2524``."""
_NAMES_TRAINING = re.compile(r"\btrain(?:ing)?[\s_/-]{1,3}(?:\w{1,12}[\s_/-]){0,2}$")
"""A name of a loss, up to that word, that says which split it is of."""
_NOT_PROGRESS_HINTS = (
    "%|", "it/s", "s/it", ":::m", "namespace(", "args(", "arguments(", "config", 'file "', "traceback", "val loss", "'eval_",
    "'train_runtime", "validation loss", "| valid", "/step - ", "best", "final", "sav", "lowest", "minimum", "improved", "early",
    "summary", "error: ", "exception: ", "wandb: ",
)  # fmt: skip
_NOT_TRAINING_HINTS = ("val", "eval", "test", "dev", "ttt")
"""Every line that the regex above can match contains one of these in lower case; searching for them first is far
cheaper."""
_EVALUATION_HEADING = re.compile(
    r"^\W{0,12}(?:(?:start|running|begin)\w*\W{1,3})?(?:dev|te?st|val|valid|validat\w+|eval|evaluat\w+|test\w*)\b(?!.{0,40}\d\.\d)",
    re.IGNORECASE,
)
"""The heading of an evaluation, without a figure."""
MAX_SPLIT_LINES = 6
"""Lines above a loss in which such a heading is looked for."""
_BEST_FIELD = re.compile(r"\[best\].*", re.IGNORECASE)


def line_points(line: Line) -> list[Event] | None:
    """The logged steps and evaluation losses of a line, or None."""
    starts = [match.start() for match in _RECORD.finditer(line.text)]
    if len(starts) < MIN_GLUED_RECORDS:
        return None if len(line.text) > MAX_TEXT_CHARS else _read_record(line, _text_of(line))
    pieces = [line.text[start:stop] for start, stop in pairwise([*starts, len(line.text)])]
    return [event for piece in pieces for event in _read_record(line, piece) or ()]


def _text_of(line: Line) -> str:
    """The text of a line; words of another script for positions in English."""
    return to_english(line.text) if not line.text.isascii() and is_in_other_script(line.text) else line.text


def localized_points(line: Line) -> list[Event] | None:
    """The logged steps of a line in another language, or None."""
    return None if len(line.text) > MAX_TEXT_CHARS else _read_record(line, to_english(line.text))


def _read_record(line: Line, text: str) -> list[Event] | None:
    """The events of one record; None if it is not one."""
    if "est]" in text or "EST]" in text:
        text = _BEST_FIELD.sub("", text)
    if "%|" in text or "it [" in text:
        text = BAR_IN_FRONT.sub("", text)
        if EPOCH_BATCH.search(text) or SAMPLES.search(text):
            text = _BAR_BEHIND.sub("", text)
    if ":" in text[:12]:
        text = LOGGER_NAME.sub("", text)
    text = _PHASE_TAG.sub("", put_position_first(text))
    if "loss" in text and (group := _EVALUATION_GROUP.search(text)) is not None:
        text = f"{text[: group.end()]}val_{text[group.end() :]}"
    lowered = text.lower()
    if any(hint in lowered for hint in _NOT_PROGRESS_HINTS):
        if (remark := _REMARK.search(text)) is not None:
            text = text[: remark.start()]
            if _LOSS_BEFORE.search(text) is None:
                return None
            lowered = text.lower()
        if _NOT_PROGRESS.search(text):
            return None
    figures = line_figures(text)
    function = None
    if "loss" not in figures.values and "eval_loss" not in figures.values:
        function = function_loss(text)
        value = None if function is None else number(function["value"])
        if function is None or value is None or line.notes(ID).get("names_losses"):
            return None
        figures.add("loss", LAST_RANK, value)
    before = lowered[: max(0, lowered.find("loss")) if function is None else function.start("value")]
    has_evaluation_word = any(hint in before for hint in _NOT_TRAINING_HINTS)
    is_evaluation = has_evaluation_word and _NOT_TRAINING.search(_EVALUATION_FIGURE.sub("", before)) is not None
    position = _drop_epoch_length(position_of(text, figures), figures)
    if not position.is_known and not figures.is_step_rounded:
        above = position_above(line)
        notes = line.notes(ID)
        is_record = (
            above is not None
            and above.step is None
            and above.line > notes.get("positioned_line", 0)
            and (TRAINING_WORD.search(before) is not None or above.epoch != notes.get("positioned_epoch"))
        )
        # a summary of losses that name a position themselves
        is_summary = notes.get("positioned", 0) > notes.get("below", 0) and not is_record
        if len(text) > MAX_RECORD_CHARS or is_summary or _is_setting(line, figures):
            return None
        if above is None or (function is not None and TRAINING_WORD.search(before) is None):
            return None
        position, is_evaluation = (
            above.record_position,
            is_evaluation
            or (
                _NAMES_TRAINING.search(before) is None
                and (
                    (above.is_evaluation and TRAINING_WORD.search(before) is None)
                    or _has_evaluation_heading_above(line, above.line)
                )
            ),
        )
        notes["below"] = notes.get("below", 0) + 1
    elif "loss" in figures.values and not is_evaluation:
        notes = line.notes(ID)
        notes["positioned"], notes["positioned_line"] = notes.get("positioned", 0) + 1, line.number
        notes["positioned_epoch"] = position.epoch
        if position.epoch is None and "names_epoch" not in notes and (in_epoch := epoch_above(line)) is not None:
            position = LinePosition(position.step, in_epoch, position.total)
        elif position.epoch is not None:
            notes["names_epoch"] = True
        position = _in_next_epoch(line, position)
        is_evaluation = _is_other_split(line, position)
    events = []
    eval_loss = figures.values.get("loss" if is_evaluation and "eval_loss" not in figures.values else "eval_loss")
    if eval_loss is not None:
        meter = _EVALUATION_METER.search(text)
        loss = eval_loss if meter is None else float(meter["mean"])
        events.append(
            line.event(
                "evaluation",
                step=position.step if meter is None else None,
                epoch=position.epoch,
                batch=None if meter is None else int(meter["batch"]),
                metric="loss",
                value=loss,
                loss=loss,
            )
        )
    if "loss" in figures.values and not is_evaluation:
        rank = _rank_at_same_position(line, figures, position)
        if rank is None or rank >= figures.precedences["loss"]:
            point = loss_point(line, figures, position)
            replaces = rank is not None and rank > figures.precedences["loss"]
            events.append(replace(point, fields={**point.fields, REPLACES: True}) if replaces else point)
            line.notes(ID)["names_losses"] = line.notes(ID).get("names_losses", False) or function is None
    return events or None


@dataclass(slots=True)
class _Epochs:
    """A writer's steps without an epoch, and the means of epochs that it prints behind them."""

    end: int = 0
    """Offset of the last record."""
    done: int | None = None
    """The epoch of the mean that was printed last."""
    last_step: int = 0
    gap: int = 0
    """The last printed step, and its distance from the one before it."""
    steps_before: int = 0
    """Steps of the epochs before this one, if the count starts over with each."""


def _in_next_epoch(line: Line, position: LinePosition) -> LinePosition:
    """The position; a step that follows the mean of an epoch is one of the next epoch, counted over all epochs."""
    notes = line.notes(f"{ID} {line.label}")
    if position.epoch is not None and position.step is not None:
        notes.pop("epochs", None)
        return position
    epochs: _Epochs = notes.setdefault("epochs", _Epochs(line.offset))
    if line.offset - epochs.end > RESTART_BYTES:
        epochs = notes["epochs"] = _Epochs()
    epochs.end = line.offset
    if position.step is None:
        epochs.done = as_whole(position.epoch)
        return position
    if epochs.done is not None and position.step <= epochs.last_step and epochs.gap > 0:
        epochs.steps_before += epochs.last_step + (epochs.gap if position.step == 0 else 0)
        epochs.done = None
    else:
        epochs.gap = position.step - epochs.last_step
    epochs.last_step = position.step
    if not epochs.steps_before:
        return position
    return LinePosition(position.step + epochs.steps_before)


def _is_other_split(line: Line, position: LinePosition) -> bool:
    """Whether the steps start over in one epoch, after they reached its end, and count to a smaller number: validation that
    is printed like training."""
    length, notes = position.epoch_steps or position.total, line.notes(f"{ID} {line.label}")
    if position.step is None or length is None:
        return False
    epoch, count, steps, gap = notes.get("split", (None, 0, 0, 0))
    in_same_epoch = position.epoch == epoch or (position.epoch is None and epoch is not None)
    if in_same_epoch and position.step <= count and 10 * length < 9 * steps and steps <= count + gap:
        return True
    gap = position.step - count if in_same_epoch and position.step > count else position.step
    notes["split"] = position.epoch, position.step, length, max(1, gap)
    return False


def _has_evaluation_heading_above(line: Line, position_line: int) -> bool:
    """Whether one of the lines between the position and this line begins with the name of another split."""
    lines = (other.text for other in line.preceding(MAX_SPLIT_LINES) if other.number > position_line)
    return any(_EVALUATION_HEADING.match(text) for text in lines)


def _drop_epoch_length(position: LinePosition, figures: LineFigures) -> LinePosition:
    """The position without a step that is the epoch's length, as in summaries: ``Epoch: 3, Steps: 270 | ...``."""
    is_summary = position.epoch is not None and position.step is not None and "eval_loss" in figures.values
    is_length = is_summary and figures.step_name.lower().endswith(("steps", "iterations", "iters", "batches"))
    return LinePosition(epoch=position.epoch) if is_length else position


def _is_setting(line: Line, figures: LineFigures) -> bool:
    """Whether the first loss that names no position is a whole number, as in settings and code."""
    notes = line.notes(f"{ID} {line.label}")
    notes["fractional"] = notes.get("fractional", False) or figures.whole_value("loss") is None
    return not notes["fractional"]


def _rank_at_same_position(line: Line, figures: LineFigures, position: LinePosition) -> int | None:
    """The best rank of the losses that were printed for this step and epoch before, such as ``Train Loss`` before ``True
    Loss``; None if there are none."""
    notes, rank = line.notes(f"{ID} {line.label}"), figures.precedences["loss"]
    step_and_epoch = position.step, position.epoch
    best = notes["rank"] if notes.get("position") == step_and_epoch else None
    if step_and_epoch != notes.get("position"):
        note_other_reader(line)
    notes.update(position=step_and_epoch, rank=rank if best is None else min(rank, best))
    return best
