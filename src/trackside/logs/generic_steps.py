"""Custom training loops: any line that names a step or an epoch and a training loss.

``step 10 loss 3.42``, ``iter 2/40 | loss 5.7 | lr 5e-3``, ``Epoch: [0][ 50/500] Loss 3.1 (3.4)``, ``{"step": 1, "loss":
2.0}``, ``level=info step=1 loss=2``, ``[Loss] 4.1 | [step] 89``, and tables of comma-separated figures under a header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, field_meaning, number, whole_number
from trackside.logs.pattern import Parser
from trackside.model import Event

MAX_TEXT_CHARS = 4_000
"""A longer line is a dump, not a progress line."""
MAX_ROWS = 20_000

_PAIR = re.compile(
    r"(?<![\w/.\-])(?P<key>[A-Za-z_][\w/.\-]{0,60}+(?: (?!(?i:nan|inf)\b)[A-Za-z_(][\w/\-)]{0,40}+){0,3})"
    r"(?:\s?\((?:ms|s|sec|avg|%|it/s)\))?['\"\]]{0,2}"
    r"(?:\s{0,3}[:=]\s{0,8}|\s{1,10}|\s{0,3}#)['\"\[(]{0,2}\s{0,8}"
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
_NUMBERED = re.compile(r"(?:^|\s)\[\s{0,9}(\d{1,9})\] \| (?:gnorm|lr|loss)\b")
_LEADING = re.compile(r"^\s{0,9}(\d{1,9})\s?/\s{0,9}(\d{1,9})[\s:|,]")
_UNIT = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
_SECONDS = frozenset(("data_time_s", "compute_time_s", "comm_time_s", "step_time_s"))

_OTHER = re.compile(
    r"^\s{0,8}(?:\w{1,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception): |%\||it/s\b|s/it\b|:::MLLOG|Namespace\(|Arg(?:ument)?s\(|[Cc]onfig\w*\(|^\s*File \"|Traceback|train loss [^,]{1,30}, val loss "
    r"|'eval_|'train_runtime'|validation loss at |\| valid \||/step - "
    r"|\b(?:[Bb]est|BEST|[Ff]inal|[Ss]av(?:ed|ing)|SAVE|[Ll]owest|[Mm]inimum|improved|[Ee]arly ?[Ss]topp\w*|[Ss]ummary)\b"
)
_NOT_TRAINING = re.compile(
    r"\b(?:val(?:id|idation|idating)?|eval(?:uation|uating)?)\b|(?:^|[|\]\[>(:-])\s{0,4}(?:test(?:ing)?|dev)\b",
    re.IGNORECASE,
)
"""Before the loss, these words say that it is not the training loss."""
_OTHER_HINTS = (
    "%|", "it/s", "s/it", ":::m", "namespace(", "args(", "arguments(", "config", 'file "', "traceback", "val loss", "'eval_",
    "'train_runtime", "validation loss", "| valid", "/step - ", "best", "final", "sav", "lowest", "minimum", "improved", "early",
    "summary", "error: ", "exception: ",
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
        value = self.values.get(name)
        return (
            int(value) if value is not None and value == value and abs(value) < 1e15 and value == int(value) else None
        )


def _pairs(text: str) -> _LineFigures:
    figures = _LineFigures()
    for match in _PAIR.finditer(text):
        field = field_meaning(match["key"])
        value = number(match["value"])
        if field is not None and value is not None:
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
    position: float | None = epoch if epoch is not None else figures.values.get("epoch")
    if match := _SAMPLES.search(text):
        share_done = int(match[1]) / max(1, int(match[2]))
        return None, None if epoch is None else epoch + share_done, None, None
    step, total = figures.whole_value("step"), figures.totals.get("step")
    match = _BATCHES.search(text)
    if match is None and step is None:
        match = _BRACKET.search(text) or _LEADING.search(text)
    if match is not None:
        step, total = int(match[1]), int(match[2])
    elif step is None and epoch is None and (match := _NUMBERED.search(text)):
        step = int(match[1])
    if epoch is not None and total is not None:
        return step, epoch, total, None
    return step, position, None, total or figures.whole_value("total_steps")


PARSER = Parser("custom", "custom training loops", "framework", generic=True, precedence=630)


@PARSER.pattern(
    rb"(?:step|iter|iteration|epoch)[\"']?(?:[,;\t]|  )[^\n\r]{0,200}loss",
    safety="A header whose rows below hold figures in as many columns.",
    matches=(
        "step,loss,lr\n1,6.31,0.001\n2,5.90,0.001",
        "epoch     train_loss  valid_loss  accuracy\n0         0.512300    0.401200    0.910000",
        "Step\tTraining Loss\n10\t1.8123\n20\t1.5012",
    ),
    avoids=("step,loss,lr are logged to a file",),
    caseless=True,
)
def _table(line: Line) -> Iterator[Event]:
    """The rows under a header such as ``step,loss,lr``."""
    separator = next((character for character in (",", "\t", ";") if character in line.text), None)
    names = [name.strip().strip("\"'") for name in line.text.split(separator)]
    columns = {}
    for index, name in enumerate(names):
        field = field_meaning(name) if re.fullmatch(r"[\w/.\- ]{1,60}", name) else None
        if field is not None and field[0] not in columns:
            columns[field[0]] = index
    if "loss" not in columns or not columns.keys() & {"step", "epoch"}:
        return
    for row in line.following(MAX_ROWS):
        cells = row.text.split(separator)
        if len(cells) != len(names):
            return
        step = whole_number(cells[columns["step"]]) if "step" in columns else None
        epoch = number(cells[columns["epoch"]]) if "epoch" in columns else None
        loss = number(cells[columns["loss"]])
        if step is None and epoch is None:
            return
        if loss is None:
            continue
        optional: dict[str, Any] = {
            name: number(cells[columns[name]]) for name in ("lr", "grad_norm") if name in columns
        }
        yield row.event("progress", step=step, epoch=epoch, loss=loss, framework="custom", **optional)


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
    text = line.text
    if len(text) > MAX_TEXT_CHARS:
        return None
    text = _BEST_FIELD.sub("", text)
    lowered = text.lower()
    if any(hint in lowered for hint in _OTHER_HINTS) and _OTHER.search(text):
        return None
    figures = _pairs(text)
    if "loss" not in figures.values and "eval_loss" not in figures.values:
        return None
    step, epoch, epoch_steps, total = _position(text, figures)
    if step is None and epoch is None:
        return None
    events = []
    before = lowered[: max(0, lowered.find("loss"))]
    not_training = any(hint in before for hint in _NOT_TRAINING_HINTS) and _NOT_TRAINING.search(before) is not None
    validated = figures.values.get("loss" if not_training and "eval_loss" not in figures.values else "eval_loss")
    if validated is not None:
        events.append(line.event("evaluation", step=step, epoch=epoch, metric="loss", value=validated, loss=validated))
    if "loss" in figures.values and not not_training:
        events.append(_progress(line, figures, step, epoch, epoch_steps, total))
    return events or None
