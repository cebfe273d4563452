"""Any training loop that shows its progress in a tqdm bar: accelerate's examples, diffusers, plain loops.

A bar without a loss counts steps; those points describe the run only if the log prints no loss elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from trackside.logs.bars import PREPARATION, ProgressBar, read_bar
from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.logs.positions import epoch_above
from trackside.model import Event

ID = "tqdm"

PARSER = Parser(
    ID, "tqdm bars", "framework", generic=True, precedence=620, redraws=True, fallback_ids=(f"{ID}-counts",)
)

_TRAINING = re.compile(r"\b(?:train\w*|epochs?|ep|steps?|iter\w*|rounds?|updates?|episodes?|overall)\b", re.IGNORECASE)
"""Descriptions of bars that count training steps or epochs, or all that a program does; other bars load, convert, download, evaluate or predict."""
MAX_COUNTS = 1_000
"""Drawings of a bar without a loss that are read, evenly over its length."""
_COUNT = re.compile(r"[|%] {0,9}(\d{1,12})/(\d{1,12}) \[")
_EPOCHS = re.compile(r"(?:epochs?|ep)\W*(?:progress)?\W*", re.IGNORECASE)
"""Descriptions of bars that count epochs."""


@PARSER.pattern(
    rb"[0-9?] \[[0-9?:]{4,12}<[^\n\r]{3,200}[lL](?:oss|OSS)[a-zA-Z_/]{0,20}[=: ]",
    safety="The trajectory handles redraws (the last drawing of a count is the logged step); validation bars do "
    "not count.",
    matches=(
        "epochs:  13%|█▎        | 2/15 [1:24:09<7:31:20, 2083.11s/it, loss=3.07, lr=0.01]",
        "  2%|▎         | 2/80 [00:00<00:10,  7.78it/s, loss=5.94, lr=0.003]",
        "Epoch 1/3:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, train_loss=2.31]",
        "SFT:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, loss 0.0231]",
        "5%|4         | 9.00/180 [00:02<00:43, 3.94batch/s, accuracy=0.11, loss=4.02]",
    ),
    avoids=(
        "Validation:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, loss=2.31]",
        "  2%|▎         | 2/80 [00:00<00:10,  7.78it/s, val_loss=5.94]",
    ),
)
@PARSER.pattern(
    rb"[lL](?:oss|OSS)[=: ]{1,3}[0-9naif.+-]{1,24}[^\n\r|]{0,60}[0-9]{1,3}%(?:\|| [0-9]{1,9}/)",
    safety="The same as above, with the loss before the bar, or before the percentage where no bar is drawn.",
    matches=(
        "loss: 2.3410:  12%|█▎        | 5/40 [00:01<00:07,  4.90it/s]",
        "loss=21.34 (22.01), lr=0.020000: :  12% 5/40 [00:01<00:07,  4.90it/s]",
    ),
    avoids=("val loss: 2.3410:  12%|█▎        | 5/40 [00:01<00:07,  4.90it/s]",),
)
@PARSER.pattern(
    rb"[0-9?] \[[0-9?:]{4,12}<[^\n\r]{3,200}, (?:L|[cC][eE]|[bB][cC][eE]|nll|[xX]ent|recon|tot|Tot)[=:] ?-?[0-9]",
    safety="The same as above, under the name of a loss function.",
    matches=("Epoch 1/3:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, L=2.311, Cls=1.200]",),
    avoids=("Epoch 1/3:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, val_loss=2.311, L=0.120]",),
)
@PARSER.pattern(
    rb"\b(?:L|CE|BCE|nll|[xX]ent|recon|[tT]ot):? ?[0-9][^\n\r|]{0,80}[0-9]{1,3}%\|",
    safety="The same as above, before the bar.",
    matches=("[Adam] Tot:1.608e-02 PDE:8.9e-04/3.2e-04:  48%|████▊     | 5798/12000 [16:02<16:18,  6.34it/s]",),
    avoids=("Tot: 12:  48%|████▊     | 5798/12000 [16:02<16:18,  6.34it/s]",),
)
@PARSER.pattern(
    rb"[0-9]it \[[0-9:]{4,12}, [^\n\r]{3,200}[lL]oss[a-zA-Z_/]{0,20}=",
    safety="The same as above, for iterators of unknown length.",
    matches=("12it [00:03,  3.90it/s, loss=2.31]",),
    avoids=("12it [00:03,  3.90it/s, eval_loss=2.31]",),
)
def _loss_point(line: Line) -> Event | None:
    bar = read_bar(line.text)
    if bar is None or bar.is_evaluation or "loss" not in bar.figures:
        return None
    notes = line.notes(f"{ID} {line.label}")
    if bar.total is not None and _EPOCHS.fullmatch(bar.description):
        return _epoch_bar_point(line, bar, notes)
    loss, redraw = bar.figures["loss"][0], notes.get("redraw")
    notes["redraw"] = bar.count, loss
    if bar.count == 0:
        notes["before"] = True  # a bar that shows a figure at count 0 is updated before the step is counted
    is_counted = bar.total is None or not notes.get("before") or redraw == (bar.count - 1, loss)
    count = bar.count if is_counted else bar.count + 1
    if bar.total is not None:
        if bar.count > bar.total:
            return None
        count = min(count, bar.total)
    if bar.epoch is not None:
        notes["named_total"] = bar.total
    elif bar.total is not None and bar.total == notes.get("named_total"):
        return None  # the bars of this length name their epoch: a torn line
    heading = epoch_above(line)
    if _is_other_split(notes, bar, heading):
        return None
    step = _steps_before(notes, bar, heading) + count
    fields: dict[str, Any] = {
        name: bar.figures[name][0] for name in ("lr", "grad_norm", "reward") if name in bar.figures
    }
    if bar.epoch is not None and bar.total is not None:
        fields |= {"epoch": bar.epoch[0], "step_in_epoch": count, "epoch_steps": bar.total}
    rate = bar.rate
    return line.event(
        "progress",
        step=step,
        loss=loss,
        total_steps=_planned_steps(bar),
        throughput=None if rate is None else rate[0],
        throughput_unit=None if rate is None else rate[1],
        framework="accelerate" if "accelerate" in named_frameworks(line) else "custom",
        **fields,
    )


@PARSER.pattern(
    rb"(?:train|epoch|ep |step|iter|round|update|episode|overall)[^\n\r|]{0,60}[0-9]%(?:\|| [0-9]{1,9}/[0-9]{1,9} \[)",
    safety="Only bars named for training, epochs or steps; others load or convert data, evaluate or predict.",
    matches=(
        "Epoch 1:  10%|█         | 10/100 [00:01<00:09,  9.80it/s]",
        "Training:  10%|█         | 10/100 [00:01<00:09,  9.80it/s, acc=0.5]",
        "Epochs:  10%|█         | 1/10 [01:01<09:09, 61.1s/it]",
        "Overall: 100%|██████████| 60/60 [3:01:01<00:00]",
    ),
    avoids=(
        "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.0s/it]",
        "Map:  10%|█         | 1000/10000 [00:01<00:09, 980 examples/s]",
        "Loading train set to RAM:  10%|█         | 100/1000 [00:01<00:09, 98.0it/s]",
        "Validating:  10%|█         | 10/100 [00:01<00:09,  9.80it/s]",
        "Epoch 1:   0%|          | 0/100 [00:00<?, ?it/s]",
        "  2%|▎         | 2/80 [00:00<00:10,  7.78it/s]",
    ),
    caseless=True,
)
def _count_point(line: Line) -> Event | None:
    notes = line.notes(f"{PARSER.fallback_ids[0]} {line.label}")
    match = _COUNT.search(line.text)
    if match is None:
        return None
    part = int(match[1]) * MAX_COUNTS // max(1, int(match[2])), match[2]
    if notes.get("part") == part:
        return None
    notes["part"] = part
    bar = read_bar(line.text)
    if bar is None or bar.total is None or not 0 < bar.count <= bar.total or bar.is_evaluation:
        return None
    if bar.figures.keys() & {"loss", "eval_loss"} or not _TRAINING.search(bar.description):
        return None
    if PREPARATION.match(bar.description):
        return None
    if _EPOCHS.fullmatch(bar.description):
        event = line.event("progress", epoch=bar.count, framework="custom")
    else:
        step = _steps_before(notes, bar, epoch_above(line)) + bar.count
        event = line.event("progress", step=step, total_steps=_planned_steps(bar), framework="custom")
    return replace(event, parser=PARSER.fallback_ids[0])


def _epoch_bar_point(line: Line, bar: ProgressBar, notes: dict[str, Any]) -> Event | None:
    """The logged step of a bar that counts epochs: its loss changes with the steps of the loop inside."""
    loss = bar.figures["loss"][0]
    if notes.get("loss") == loss:
        return None
    notes["loss"] = loss
    lr = bar.figures.get("lr")
    return line.event("progress", epoch=bar.count, loss=loss, lr=None if lr is None else lr[0], framework="custom")


def _is_other_split(notes: dict[str, Any], bar: ProgressBar, heading: int | None) -> bool:
    """Whether a shorter bar follows the one of the same epoch: that of its validation."""
    epoch, total = heading if bar.epoch is None else bar.epoch[0], bar.total or 0
    if epoch is not None and epoch == notes.get("split_epoch") and total < notes["split_total"]:
        return True
    notes["split_epoch"], notes["split_total"] = epoch, total
    return False


def _steps_before(notes: dict[str, object], bar: ProgressBar, heading: int | None) -> int:
    """Steps of the epochs before this one: by the printed epoch, else by how often the bar restarted, or came to stand
    under another epoch's ``heading``."""
    if bar.total is None:
        return 0
    if bar.epoch is not None:
        epoch, epochs = bar.epoch
        origin = notes.setdefault("origin", 0 if epoch == 0 or (epochs is None and epoch > 1) else 1)
        return max(0, epoch - (origin if isinstance(origin, int) else 0)) * bar.total
    last_count, laps = notes.get("last", 0), notes.get("laps", 0)
    last_count, laps = (last_count if isinstance(last_count, int) else 0), (laps if isinstance(laps, int) else 0)
    starts_over = bar.count < last_count and last_count >= bar.total - 1 and bar.count <= max(2, bar.total // 10)
    is_drawn_at_end_only = bar.count == last_count == bar.total and notes.get("heading") != heading
    if starts_over or is_drawn_at_end_only:
        laps += 1
    notes["last"], notes["laps"], notes["heading"] = bar.count, laps, heading
    return laps * bar.total


def _planned_steps(bar: ProgressBar) -> int | None:
    """The planned steps of all epochs; None if the bar does not show them."""
    if bar.total is None:
        return None
    if bar.epoch is None:
        return bar.total
    return bar.total * bar.epoch[1] if bar.epoch[1] else None
