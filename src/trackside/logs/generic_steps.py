"""Custom training loops: any line that names a step or an epoch and a training loss.

``step 10 loss 3.42``, ``iter 2/40 | loss 5.7 | lr 5e-3``, ``Epoch: [0][ 50/500] Loss 3.1 (3.4)``, ``{"step": 1, "loss":
2.0}``, ``level=info step=1 loss=2``, ``[Loss] 4.1 | [step] 89``, ``iter = 20`` with ``loss = 2.1`` on a line below, and
tables of comma-separated figures under a header.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.numbers import LAST_RANK, NUMBER, as_whole, field_meaning, figure, number
from trackside.logs.pattern import Parser
from trackside.logs.positions import epoch_above, position_above, remember_position
from trackside.logs.step_tables import table_points
from trackside.model import Event

MAX_TEXT_CHARS = 4_000
"""A longer line is a dump, not a progress line."""
MAX_RECORD_CHARS = 300
"""A longer line under a position is not a record of figures."""

_PAIR = re.compile(
    r"(?<![\w/.\-])(?P<key>[A-Za-z_][\w/.\-]{0,60}+(?: (?!(?i:nan|inf)\b)[A-Za-z_(][\w/\-)]{0,40}+){0,3})"
    r"(?:\s?\((?:ms|s|sec|avg|%|it/s)\))?['\"\]]{0,2}"
    r"(?:\s{0,3}[:=]\s{0,60}|\s{1,10}|\s{0,3}#)['\"\[(]{0,2}\s{0,8}"
    rf"(?:tensor\()?(?P<value>{NUMBER})(?:\s{{0,2}}/\s{{0,8}}(?P<of>\d{{1,12}}))?(?:\s?(?P<unit>ms|us|µs|s)\b)?"
)
_EPOCH_BATCH = re.compile(
    r"(?:\[\s{0,6}|\bTrain: )(\d{1,7})(?:/\d{1,7})?(?:\s{0,3}\]\s{0,3}(?:[A-Z][a-z]{2,9})?| )\[\s{0,9}(\d{1,9})\s{0,3}/\s{0,9}(\d{1,9})\s{0,3}[\](]"
)
_LAST_PACE = re.compile(r"[(\[](\d{1,9}(?:\.\d{1,6})?) ?(ms|s)(?:/(?:it|iter|step|batch))?[)\]]\s*$")
"""A step time in brackets at the end of the line: ``(64.8 ms)``, ``[0.21s/it]``."""
_TIME = re.compile(rf"\b[Tt]ime:?[ \t]{{1,4}}({NUMBER})")
"""A step's time in the meters of the ImageNet example and torchvision; elsewhere a time may be the time since the
start."""
_BARE_TIME = re.compile(r"\((\d{1,7}(?:\.\d{1,6})?) ?ms(?:/(?:step|iter|it))?\)\s*$")
_EPOCH_SLASH = re.compile(r"\bTRAIN Batch (\d{1,7})/(\d{1,9}) loss ")
"""WeNet prints epoch and batch here, not batch and number of batches."""
_EPOCH_COMMA = re.compile(r"\[\s{0,6}(\d{1,7}),\s{1,9}(\d{1,9})\]\s{0,3}loss")
_BATCHES = re.compile(r"\|\s{1,9}(\d{1,9})/\s{0,9}(\d{1,9}) batches")
_SAMPLES = re.compile(r"\[\s{0,9}(\d{1,12})\s?/\s?(\d{1,12})\s{1,3}\(\s{0,3}\d{1,3}(?:\.\d+)?%\)\]")
_BRACKET = re.compile(r"(?:^|\s)[\[(]\s{0,9}(\d{1,9})\s?/\s{0,9}(\d{1,9})\s?[\])]")
_RECORD = re.compile(r"(?<![A-Za-z])[Ee]poch:? ?\[?\d{1,7}/\d{1,7}[\],]")
MIN_GLUED_RECORDS = 3
"""Records in one line, printed without a line end, from which the line is split."""
_EPOCH_AFTER = re.compile(r"\b(\d{1,7}) epoch\b[.:,]")
_BAR_COUNT = re.compile(r"(?:^|\s)(\d{1,9})/(\d{1,9}) \[[=>.]{5,60}\]")
_BAR = re.compile(r":? {0,4}(?::|\d{1,3}%\|[^|]{0,200}\|) {0,4}\d{1,9}(?:it|/\d{1,9}) \[[^\]]{0,200}\].{0,400}$")
"""A tqdm bar behind a line that names its position and loss itself."""
_BAR_BEFORE = re.compile(r"^[^|]{0,200}\d{1,3}%\|[^|]{0,400}\|\s{0,9}\d{1,12}/\d{1,12} \[[^\]]{0,200}\](?=\S)")
"""A tqdm bar whose line another print continues."""
_VALUE = re.compile(rf"\b(?:val|valid|test|dev)\w{{0,20}}\s{{0,2}}[=:]\s{{0,2}}{NUMBER}", re.IGNORECASE)
"""A figure of the validation, not a word that qualifies the loss after it."""
_NUMBERED = re.compile(r"(?:^|\s)\[\s{0,9}(\d{1,9})\] (?:\| )?[a-zA-Z_]{2,40}[ :=]")
_LEADING = re.compile(r"^\s{0,9}(\d{1,9})\s?/\s{0,9}(\d{1,9})[\s:|,]")
_UNIT = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
_SECONDS = frozenset(("data_time_s", "compute_time_s", "comm_time_s", "step_time_s"))

_OTHER = re.compile(
    r"^\s{0,8}(?:\w{1,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception): |%\||\bwandb: |it/s\b|s/it\b|:::MLLOG|Namespace\(|Arg(?:ument)?s\(|[Cc]onfig\w*\(|^\s*File \"|Traceback|train loss [^,]{1,30}, val loss "
    r"|'eval_|'train_runtime'|validation loss at |\| valid \||/step - "
    r"|\b(?:[Bb]est|BEST|[Ff]inal(?!,)|[Ss]av(?:ed|ing)|SAVE|[Ll]owest|[Mm]inimum|improved|[Ee]arly ?[Ss]topp\w*|[Ss]ummary)\b"
)
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
_BEST_FIELD = re.compile(r"\[best\].*", re.IGNORECASE)


@dataclass(slots=True)
class _LineFigures:
    """The figures of a line, each field taken from its most specific name."""

    values: dict[str, float] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, rank: int, value: float, total: str | None = None, unit: str | None = None) -> None:
        if name in self.ranks and self.ranks[name] <= rank:
            return
        self.values[name], self.ranks[name] = value, rank
        self.totals.pop(name, None)
        if total:
            self.totals[name] = int(total)
        if unit:
            self.units[name] = unit

    def whole_value(self, name: str) -> int | None:
        return as_whole(self.values.get(name))

    def epoch(self) -> float | None:
        """The epoch, an integer if it has no fraction."""
        whole = self.whole_value("epoch")
        return self.values.get("epoch") if whole is None else whole


def _pairs(text: str) -> _LineFigures:
    figures = _LineFigures()
    for match in _PAIR.finditer(text):
        field = field_meaning(match["key"])
        value = number(match["value"])
        if field is None or value is None:
            continue
        if field[0] == "total_steps" and math.isfinite(value) and value != int(value):
            field = ("loss", LAST_RANK)  # a total with a fraction is the sum of the losses
        if field[0] == "loss" and match["unit"]:
            continue
        figures.add(field[0], field[1], value, match["of"], match["unit"])
    return figures


def _position(text: str, figures: _LineFigures) -> tuple[int | None, float | None, int | None, int | None]:
    """(step, epoch, steps per epoch, planned steps)."""
    if ("[" in text or "Train: " in text) and (match := _EPOCH_BATCH.search(text)):
        return int(match[2]), int(match[1]), int(match[3]), None
    if match := _EPOCH_SLASH.search(text):
        return int(match[2]), int(match[1]), None, None
    if match := _EPOCH_COMMA.search(text):
        return int(match[2]), int(match[1]), None, None
    epoch = figures.whole_value("epoch")
    if epoch is None and (match := _EPOCH_AFTER.search(text)):
        epoch = int(match[1])
    position: float | None = epoch if epoch is not None else figures.values.get("epoch")
    if match := _SAMPLES.search(text):
        share_done = int(match[1]) / max(1, int(match[2]))
        return None, None if epoch is None else epoch + share_done, None, None
    step, total = figures.whole_value("step"), figures.totals.get("step")
    match = _BATCHES.search(text)
    if match is None and step is None:
        match = _BAR_COUNT.search(text) or _BRACKET.search(text) or _LEADING.search(text)
    if match is not None:
        step, total = int(match[1]), int(match[2])
    elif step is None and epoch is None and (match := _NUMBERED.search(text)):
        step = int(match[1])
    if epoch is not None and total is not None:
        return step, epoch, total, None
    return step, position, None, total or figures.whole_value("total_steps")


PARSER = Parser(
    "custom", "custom training loops", "framework", generic=True, precedence=630, fallback_id="custom-positions"
)


@PARSER.pattern(
    rb"(?:epoch|iter|step|update)[a-z]{0,6}[^\n\r0-9]{0,6}[0-9]",
    safety="A position is done when the next one is printed; the points count only if the log prints no loss.",
    matches=("Epoch 499 out of 500\nEpoch 500 out of 500", "Training epoch: 55\nTraining epoch: 56"),
    avoids=("iter = 21580", "Training epoch: 55", "Eval epoch: 55\nEval epoch: 56"),
    caseless=True,
)
def _position_line(line: Line) -> Event | None:
    done = remember_position(line)
    if done is None:
        return None
    event = line.event("progress", step=done.step, epoch=done.epoch, total_steps=done.total, framework="custom")
    return replace(event, parser=PARSER.fallback_id)


PARSER.pattern(
    rb"(?:step|iter|iteration|epoch)[\"']?(?:[,;\t]|  )[^\n\r]{0,200}(?:loss|cost|total)",
    safety="A header whose rows below hold figures in as many columns.",
    matches=(
        "step,loss,lr\n1,6.31,0.001\n2,5.90,0.001",
        "epoch     train_loss  valid_loss  accuracy\n0         0.512300    0.401200    0.910000",
        "Step\tTraining Loss\n10\t1.8123\n20\t1.5012",
        "12:44:48 [INFO]:    Epoch       Batch       box        id     total\n12:44:55 [INFO]:    14/29       40/165    0.0119   5.81       -11",
        "dset  epoch      mcost      mtime\ntrn   94        4.3732   792.4505\ndev   94        1.5318    48.2489",
    ),
    avoids=("step,loss,lr are logged to a file", "Epoch  loss  total\nsaved the table above\n"),
    caseless=True,
)(table_points)


def _progress(
    line: Line, figures: _LineFigures, step: int | None, epoch: float | None, epoch_steps: int | None, total: int | None
) -> Event:
    fields: dict[str, Any] = {
        name: figures.values[name]
        for name in ("loss", "lr", "grad_norm", "loss_scale", "reward")
        if name in figures.values
    }
    for name in _SECONDS & figures.values.keys():
        fields[name] = figures.values[name] * _UNIT.get(figures.units.get(name, "s"), 1.0)
    if "step_time_s" not in fields and _EPOCH_BATCH.search(line.text) and (meter := _TIME.search(line.text)):
        fields["step_time_s"] = number(meter[1])
    if "step_time_s" not in fields and (match_pace := _LAST_PACE.search(line.text)):
        fields["step_time_s"] = float(match_pace[1]) * _UNIT[match_pace[2]]
    if "step_time_s" not in fields and (bare := _BARE_TIME.search(line.text)):
        fields["step_time_s"] = float(bare[1]) / 1000
    if "throughput" in figures.values:
        fields["throughput"] = figures.values["throughput"]
    return line.event(
        "progress",
        step=step,
        epoch=epoch,
        epoch_steps=epoch_steps,
        total_steps=total,
        framework=_framework(line),
        **fields,
    )


def _framework(line: Line) -> str:
    names = named_frameworks(line)
    return next((name for name in ("deepspeed", "accelerate") if name in names), "custom")


@PARSER.pattern(
    rb"loss[a-z_]{0,20}\": ?\"?-?[0-9nNI]",
    safety="One JSON object is the whole line, or all that follows a label; it names a step or an epoch.",
    matches=(
        '{"train_lr": 0.0002, "train_class_error": 0.03, "train_loss": 17.2, "train_loss_bbox_0": 1.1, "epoch": 4, "n_parameters": 9}',
        '{"train_lr": "0.000", "train_loss": "0.136"}',
        'json_stats: {"_type": "train_epoch", "dt": 0.4, "epoch": "3/100", "loss": 2.5}',
    ),
    avoids=('{"loss": 17.2, "lr": 0.1, "model": "a"}', '{"train_loss": 17.2, "model": "a"}', '{"loss": 1.2, "epoch": '),
)
def _json(line: Line) -> Iterator[Event]:
    start = line.text.find("{")
    try:
        record = json.loads(line.text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return
    if not isinstance(record, dict):
        return
    figures = _LineFigures()
    for key, printed in record.items():
        field = field_meaning(key)
        value = number(printed) if isinstance(printed, str) else figure(printed)
        if field is not None and value is not None:
            figures.add(field[0], field[1], value)
    step, epoch = figures.whole_value("step"), figures.epoch()
    is_record = step is not None or epoch is not None or ("lr" in figures.values and figures.ranks.get("loss", 0) > 0)
    if "loss" in figures.values and is_record:
        yield _progress(line, figures, step, epoch, None, figures.whole_value("total_steps"))


@PARSER.pattern(
    rb"(?:epoch|iter|step)[^\n\r]{1,120}[ \t](?:cost|total)[=:, ]{1,4}-?[0-9]",
    safety="A cost that is time has a unit or another name; a total is a loss only if it has a fraction.",
    matches=(
        "Pre-training layer final, epoch 85, cost  0.238637797038",
        "[epoch: 51/200, iter: 75/177] total: 0.669316 ",
    ),
    avoids=("epoch 3, time cost: 2.68s", "epoch 3 cost 12.4 s", "step 10, total: 5000"),
    caseless=True,
)
@PARSER.pattern(
    rb"[lL](?:oss|OSS)[^\n\r0-9]{0,24}[0-9nNiI]",
    safety="Settings (loss_scale, loss_weight, a loss without step or epoch), echoed arguments, code in tracebacks, "
    "best or final losses and validation losses are not logged steps.",
    matches=(
        "step 10 loss 3.4290",
        "Epoch: [0] Step: 10 Loss: 3.3378",
        "[2026-11-21 08:28:09,239][INFO][rank0] iter 2/40 | loss 5.7066 | lr 5.00e-03 | data 1046ms compute 116ms allreduce 71ms",
        "loss: 6.516232, global_step: 1",
        '{"step": 10, "loss": 2.31, "lr": 0.0003}',
        "level=info msg=train step=10 total=100 loss=2.31",
        "| E6 iter[ 14/ 15] | [Loss] nan | [step]   104 | [url] none",
        "step:12/5100 train_loss:9.4594 train_time:3176ms step_avg:nanms",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.2831",
        "Epoch [1/10], Step [100/600], Loss: 0.3412",
        "[1,  2000] loss: 2.187",
        "step 5 loss nan lr 3.00e+03 (143.6 ms)",
        "Train: 0 [  50/1251 (  4%)]  Loss: 6.931 (6.95)  Time: 1.842s,  555.92/s  LR: 1.000e-01  Data: 1.611 (1.655)",
        "| epoch   1 |   200/ 2983 batches | lr 5.00 | ms/batch 12.1 | loss  8.12 | ppl  3361",
        "step    7/19560 | loss 10.913 (+nanz)| norm 15.21 (+nanz)| lr 6.0e-06 | 850.4 ms",
        "iteration:  4875/500000   0% | elapsed time: 19:29:30 | per_token_loss: 3.3900 | lr: 9.9E-06 | z_loss: 26.2",
        "Epoch 3 - val_loss: 0.412",
        "iter = 21580\n\tloss = 0.484435, accuracy (cur) = 0.781250",
        "[03.24.23|14:21:45] Training epoch: 55\n[03.24.23|14:22:06] \tmean_loss: 1.0710372626781464",
        "num of updates: 26000\nret loss: 0.98657\naction loss: 0.03781",
        "[INFO] Start training epoch 5, 3511 iters per inner epoch.\n[INFO] Averaged stats: lr: 0.0000  loss: 0.2588",
        "[Epoch 158] train=0.075812 val=0.963900 loss=0.766110 time: 114.246979",
        "INFO [Train] 48 epoch. Loss: 87.07872",
        "[Training] 83/160 [==============>...............] - ETA: 1:48  [ loss=3.6367 ]",
        "Train Epoch: 50 [79/287 (27%)] Loss: 8.961083: : 79it [00:18,  4.26it/s]",
        "epoch: 1/9, train_loss: 2.3epoch: 2/9, train_loss: 2.2epoch: 3/9, train_loss: 2.1",
    ),
    avoids=(
        "`loss_type=None` was set in the config but it is unrecognized.",
        "loss: 0.1",
        "  loss_scale_window ............... 1000",
        "Namespace(epochs=3, loss=0.5, step=10)",
        "Saved checkpoint at step 100 (loss 2.31)",
        "Epoch 3: best loss 0.31",
        "prediction_loss_only=False, max_steps=100",
        '  File "train.py", line 100, in loss',
        "world size 2, steps 100, lr 0.003",
    ),
)
def _line(line: Line) -> list[Event] | None:
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
        if _EPOCH_BATCH.search(text) or _SAMPLES.search(text):
            text = _BAR.sub("", text)
    lowered = text.lower()
    if any(hint in lowered for hint in _OTHER_HINTS) and _OTHER.search(text):
        return None
    figures = _pairs(text)
    if "loss" not in figures.values and "eval_loss" not in figures.values:
        return None
    before = lowered[: max(0, lowered.find("loss"))]
    hinted = any(hint in before for hint in _NOT_TRAINING_HINTS)
    not_training = hinted and _NOT_TRAINING.search(_VALUE.sub("", before)) is not None
    step, epoch, epoch_steps, total = _position(text, figures)
    if step is None and epoch is None:
        above = position_above(line)
        if above is None or len(text) > MAX_RECORD_CHARS or line.notes(PARSER.id).get("positioned"):
            return None
        step, epoch, total, not_training = above.step, above.epoch, above.total, not_training or above.evaluates
    elif "loss" in figures.values and not not_training:
        line.notes(PARSER.id)["positioned"] = True  # a line without a position sums up those that have one
        if epoch is None and (in_epoch := epoch_above(line)) is not None:
            epoch, epoch_steps, total = in_epoch, total, None
    events = []
    validated = figures.values.get("loss" if not_training and "eval_loss" not in figures.values else "eval_loss")
    if validated is not None:
        events.append(line.event("evaluation", step=step, epoch=epoch, metric="loss", value=validated, loss=validated))
    if "loss" in figures.values and not not_training and _is_first_name(line, figures, step, epoch):
        events.append(_progress(line, figures, step, epoch, epoch_steps, total))
    return events or None


def _is_first_name(line: Line, figures: _LineFigures, step: int | None, epoch: float | None) -> bool:
    """Whether no loss with a more specific name was printed for the same step and epoch: ``Train Loss`` before ``True
    Loss``."""
    notes, rank = line.notes(f"{PARSER.id} {line.label}"), figures.ranks["loss"]
    if notes.get("position") == (step, epoch) and notes["rank"] < rank:
        return False
    notes.update(position=(step, epoch), rank=rank)
    return True
