"""Keras' progress bars, old and new, and its one line per epoch (``verbose=2``).

A bar's loss is the running mean within the epoch; each printed count is a logged step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trackside.catalog.excerpt import below_heading
from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "keras"

_BAR = re.compile(
    r"(?:^|[\x08\s])(\d{1,9})/(\d{1,9}|Unknown)\s+(?:\[[=>.]{5,60}\]|━[━ ]{3,60}|={10,40}(?=\s)|(?:Γöü){3,60}|(?:â\S{1,2}){3,60}|- (?=\d))"
)
"""A bar, with what consoles and redirections of Windows make of its line."""
_EPOCH_LINE = re.compile(r"^\s*- \d+s(?: \d+m?s/(?:step|epoch|sample))? - ")
_FIGURE = re.compile(rf"(?:- |^)([A-Za-z_][\w/ ]{{0,60}}?): ({NUMBER})")
_STEP_TIME = re.compile(r"(\d{1,6})(us|ms|s)/(?:step|sample)")
_UNIT = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TRAINING = ("loss", "total_loss", "train_loss")

HISTORY_ID = "keras-history"
_HISTORY = re.compile(r"['\"](?:train_)?loss['\"]: \[(?P<losses>[^\]\n]{1,60000})\]")
_VALIDATION = re.compile(r"['\"]val_loss['\"]: \[(?P<losses>[^\]\n]{1,60000})\]")
MAX_HISTORY_EPOCHS = 2_000

PARSER = Parser(ID, "Keras", "framework", precedence=200, redraws=True, fallback_ids=(HISTORY_ID,))


@PARSER.pattern(
    rb"Epoch [0-9]{1,7}/[0-9]{1,7}",
    r"^\s*Epoch (\d{1,7})/(\d{1,7})\s*$",
    safety="Only a line of its own; it is remembered and yields no event. A loop that calls fit for one epoch at a time "
    "prints the first epoch each time.",
)
def _remember_epoch(line: Line, match: re.Match[str]) -> None:
    notes, epoch, epochs = line.notes(ID), int(match[1]), int(match[2])
    if epochs == 1:
        notes["fits"] = notes.get("fits", 0) + (notes.get("done") is not None)
        epoch += notes["fits"]
    notes.update(epoch=(epoch, max(epoch, epochs)), done=None, heading=line.text.strip())


@PARSER.pattern(
    rb"[0-9]/[0-9U][^\n\r]{0,400}loss: [0-9niNI+.-]",
    safety="A count alone is not enough: a Keras bar or a dash must follow. val_loss is an evaluation.",
    matches=(
        "  2/102 [..............................] - ETA: 8:26 - loss: 0.6908 - accuracy: 0.5859 ",
        "72/72 ━━━━━━━━━━━━━━━━━━━━ 0s 1ms/step - accuracy: 0.9 - loss: 0.3012",
        "  7/131 ==================== 2:23 1s/step - accuracy: 0.9883 - loss: 0.0609",
        " 7/13 ΓöüΓöüΓöüΓöüΓöüΓöüΓöüΓöüΓöüΓöü 2s 1s/step - accuracy: 0.61 - loss: 1.2",
        "72/72 - 1s - 5ms/step - accuracy: 0.6584 - loss: 1.2709 - val_accuracy: 0.95 - val_loss: 0.4092",
        "60000/60000 - 3s - loss: 0.2204 - acc: 0.9342",
        "  2/9 [=====>........................] - ETA: 36s - loss: 982.1183 - acc: 0.6\x08\x08\x08\x08\x08\x08\x08\x08",
    ),
    avoids=("iter 2/40 | loss: 5.7", "32/32 [==============================] - 0s 2ms/step - val_loss: 0.3"),
)
@PARSER.pattern(
    rb" - [0-9]{1,7}s (?:[0-9]{1,6}m?s/(?:step|epoch|sample) )?- loss: ",
    safety="Old verbose=2 without a count; the line must begin with it.",
    matches=(" - 3s - loss: 0.4512 - acc: 0.8012",),
    avoids=("worker 3 - 3s - loss: 0.4512",),
)
def _point(line: Line) -> Iterator[Event]:
    text = line.text.rstrip("\x08").rpartition("\x08")[2]  # the last drawing
    bar = _BAR.search(text)
    epoch_line = _EPOCH_LINE.match(text) if bar is None else None
    if bar is None and epoch_line is None:
        return
    tail = text[bar.end() :] if bar is not None else text
    figures = {key.strip(): number(value) for key, value in _FIGURE.findall(tail)}
    loss = next((figures[key] for key in _TRAINING if key in figures), None)
    if loss is None:
        return
    count = int(bar[1]) if bar is not None else 1
    total = (int(bar[2]) if bar[2].isdigit() else None) if bar is not None else 1
    epoch, epochs = line.notes(ID).get("epoch", (None, None))
    closed_bar = line.notes(ID).get("done")
    if epoch is not None and closed_bar and (count, total) != closed_bar:
        return  # a bar after the epoch's last one without a new header: an evaluation
    line.notes(ID)["done"] = (count, total) if count == total else None
    seconds = _STEP_TIME.search(tail)
    step = count if epoch is None else (epoch - 1) * total + count if total else None if epoch > 1 else count
    yield line.event(
        "progress",
        step=step,
        epoch=epoch,
        text=None if epoch is None else below_heading(line.notes(ID)["heading"], text.strip()),
        step_in_epoch=None if epoch is None or bar is None else count,
        epoch_steps=None if epoch is None or bar is None else total,
        loss=loss,
        lr=figures.get("learning_rate") or figures.get("lr"),
        total_steps=epochs * total if epochs and total else None,
        step_time_s=None if seconds is None else int(seconds[1]) * _UNIT[seconds[2]],
        framework=ID,
    )
    for name, value in figures.items():
        if name.startswith("val_") and value is not None:
            is_loss = name == "val_loss"
            yield line.event(
                "evaluation", step=step, epoch=epoch, metric=name, value=value, loss=value if is_loss else None
            )


@PARSER.pattern(
    rb"loss['\"]: \[[0-9a-z(.-]",
    _HISTORY,
    safety="The history that fit returns, printed as a whole; it describes the run only if nothing else does.",
    matches=(
        "{'loss': [0.0995, 0.1036, 0.0908], 'accuracy': [0.96, 0.94, 0.97], 'val_loss': [0.09, 0.1, 0.08]}",
        '{"loss": [2.3, 1.9], "acc": [0.1, 0.2]}',
    ),
    avoids=("{'loss': ['mse', 'mae'], 'optimizer': 'adam'}", "{'loss': [0.5]}", "loss: [0.1, 0.2]"),
)
def _history(line: Line, match: re.Match[str]) -> list[Event]:
    losses = _figures_of(match["losses"])
    if len(losses) < 2:
        return []
    validation = _VALIDATION.search(line.text)
    evaluations = [] if validation is None else _figures_of(validation["losses"])
    points = [
        line.event("progress", epoch=epoch, loss=loss, total_steps=None, framework=ID, text=line.text[:80])
        for epoch, loss in enumerate(losses, 1)
    ]
    events = [replace(point, parser=HISTORY_ID) for point in points]
    events += [
        line.event("evaluation", epoch=epoch, metric="val_loss", value=loss, loss=loss)
        for epoch, loss in enumerate(evaluations, 1)
    ]
    return events


def _figures_of(text: str) -> list[float]:
    """The numbers of a list, with or without the type that numpy prints around each; empty if it lists anything else."""
    figures = [
        number(part.strip().removesuffix(")").rpartition("(")[2]) for part in text.split(",")[:MAX_HISTORY_EPOCHS]
    ]
    return [] if None in figures else [figure for figure in figures if figure is not None]
