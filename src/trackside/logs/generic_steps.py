"""Custom training loops: any line that names a step or an epoch and a training loss.

``step 10 loss 3.42``, ``iter 2/40 | loss 5.7 | lr 5e-3``, ``Epoch: [0][ 50/500] Loss 3.1 (3.4)``, ``{"step": 1, "loss":
2.0}``, ``level=info step=1 loss=2``, ``[Loss] 4.1 | [step] 89``, ``iter = 20`` with ``loss = 2.1`` on a line below, and
tables of comma-separated figures under a header.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from trackside.logs.figures import LineFigures, line_figures, position_first
from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.line_positions import EPOCH_BATCH, SAMPLES, LinePosition, position_of
from trackside.logs.numbers import NUMBER, field_meaning, figure, number
from trackside.logs.pattern import Parser
from trackside.logs.positions import epoch_above, position_above, remember_position
from trackside.logs.step_tables import table_points
from trackside.model import Event

MAX_TEXT_CHARS = 4_000
"""A longer line is a dump, not a progress line."""
MAX_RECORD_CHARS = 300
"""A longer line under a position is not a record of figures."""

_LAST_PACE = re.compile(r"[(\[](\d{1,9}(?:\.\d{1,6})?) ?(ms|s)(?:/(?:it|iter|step|batch))?[)\]]\s*$")
"""A step time in brackets at the end of the line: ``(64.8 ms)``, ``[0.21s/it]``."""
_TIME = re.compile(rf"\b[Tt]ime:?[ \t]{{1,4}}({NUMBER})")
"""A step's time in the meters of the ImageNet example and torchvision; elsewhere a time may be the time since the
start."""
_BARE_TIME = re.compile(r"\((\d{1,7}(?:\.\d{1,6})?) ?ms(?:/(?:step|iter|it))?\)\s*$")
_RECORD = re.compile(r"(?<![A-Za-z])[Ee]poch:? ?\[?\d{1,7}/\d{1,7}[\],]")
MIN_GLUED_RECORDS = 3
"""Records in one line, printed without a line end, from which the line is split."""
_BAR = re.compile(r":? {0,4}(?::|\d{1,3}%\|[^|]{0,200}\|) {0,4}\d{1,9}(?:it|/\d{1,9}) \[[^\]]{0,200}\].{0,400}$")
"""A tqdm bar behind a line that names its position and loss itself."""
_BAR_BEFORE = re.compile(r"^[^|]{0,200}\d{1,3}%\|[^|]{0,400}\|\s{0,9}\d{1,12}/\d{1,12} \[[^\]]{0,200}\](?=\S)")
"""A tqdm bar whose line another print continues."""
_VALUE = re.compile(rf"\b(?:val|valid|test|dev)\w{{0,20}}\s{{0,2}}[=:]\s{{0,2}}{NUMBER}", re.IGNORECASE)
"""A figure of the validation, not a word that qualifies the loss after it."""
_UNIT = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "s": 1.0}
_SECONDS = frozenset(("data_time_s", "compute_time_s", "comm_time_s", "step_time_s"))

_OTHER = re.compile(
    r"^\s{0,8}(?:\w{1,40}\.){0,8}[A-Z]\w{1,60}(?:Error|Exception): |%\||\bwandb: |it/s\b|s/it\b|:::MLLOG|Namespace\(|Arg(?:ument)?s\(|[Cc]onfig\w*\(|^\s*File \"|Traceback|train loss [^,]{1,30}, val loss "
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
_LOSS = re.compile(r"(?P<opening>[^\d\n]{0,60}?[lL](?:oss|OSS)[\w]{0,20})['\"]?\s{0,3}[:=]")
"""A loss at the start of a line, behind words without a number."""
_OTHER_SPLIT = re.compile(
    r"^\W{0,12}(?:(?:start|running|begin)\w*\W{1,3})?(?:dev|te?st|val|valid|validat\w+|eval|evaluat\w+|test\w*)\b(?!.{0,40}\d\.\d)",
    re.IGNORECASE,
)
"""The heading of an evaluation, without a figure."""
MAX_SPLIT_LINES = 6
MIN_ALIKE = 3
"""Lines that begin alike from which their losses are logged steps although no line says of which."""
MAX_OPENINGS = 40
_BEST_FIELD = re.compile(r"\[best\].*", re.IGNORECASE)


PARSER = Parser(
    "custom", "custom training loops", "framework", generic=True, precedence=630, fallback_id="custom-positions"
)


PARSER.pattern(
    rb"(?:(?:step|iter|iteration|epoch)[\"']?(?:[,;\t]|  )[^\n\r]{0,200}(?:loss|cost|total)|loss(?:[,;\t]|  )[^\n\r]{0,300}(?:step|iter|epoch))",
    safety="A header whose rows below hold figures in as many columns.",
    matches=(
        "step,loss,lr\n1,6.31,0.001\n2,5.90,0.001",
        "epoch     train_loss  valid_loss  accuracy\n0         0.512300    0.401200    0.910000",
        "Step\tTraining Loss\n10\t1.8123\n20\t1.5012",
        "12:44:48 [INFO]:    Epoch       Batch       box        id     total\n12:44:55 [INFO]:    14/29       40/165    0.0119   5.81       -11",
        "class_loss    disc_loss     env0_in_acc   epoch         step          step_time    \n"
        "0.6594799161  1.1082708836  0.8270022883  0.0000000000  300           1.7996511861 ",
        "dset  epoch      mcost      mtime\ntrn   94        4.3732   792.4505\ndev   94        1.5318    48.2489",
    ),
    avoids=("step,loss,lr are logged to a file", "Epoch  loss  total\nsaved the table above\n"),
    caseless=True,
)(table_points)


def _progress(line: Line, figures: LineFigures, position: LinePosition) -> Event:
    fields: dict[str, Any] = {
        name: figures.values[name]
        for name in ("loss", "lr", "grad_norm", "loss_scale", "reward")
        if name in figures.values
    }
    for name in _SECONDS & figures.values.keys():
        fields[name] = figures.values[name] * _UNIT.get(figures.units.get(name, "s"), 1.0)
    if "step_time_s" not in fields and EPOCH_BATCH.search(line.text) and (meter := _TIME.search(line.text)):
        fields["step_time_s"] = number(meter[1])
    if "step_time_s" not in fields and (match_pace := _LAST_PACE.search(line.text)):
        fields["step_time_s"] = float(match_pace[1]) * _UNIT[match_pace[2]]
    if "step_time_s" not in fields and (bare := _BARE_TIME.search(line.text)):
        fields["step_time_s"] = float(bare[1]) / 1000
    if "throughput" in figures.values:
        fields["throughput"] = figures.values["throughput"]
    if figures.adversarial:
        fields["objective"] = "gan"
    return line.event(
        "progress",
        step=position.step,
        epoch=position.epoch,
        epoch_steps=position.epoch_steps,
        total_steps=position.total,
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
    figures = LineFigures()
    for key, printed in record.items():
        field = field_meaning(key)
        value = number(printed) if isinstance(printed, str) else figure(printed)
        if field is not None and value is not None:
            figures.add(field[0], field[1], value)
    position = LinePosition(
        figures.whole_value("step"), figures.epoch(), total=figures.whole_value("total_steps")
    )
    is_record = position.known or ("lr" in figures.values and figures.ranks.get("loss", 0) > 0)
    if "loss" in figures.values and is_record:
        yield _progress(line, figures, position)


@PARSER.pattern(
    rb"(?:(?:epoch|iter|step)[^\n\r]{1,120}[ \t](?:cost|total|cross_entropy)|train(?:ing)?[ _]cost)[=:, ]{1,4}-?[0-9]",
    safety="A cost that is time has a unit or another name; a total is a loss only if it has a fraction.",
    matches=(
        "Pre-training layer final, epoch 85, cost  0.238637797038",
        "[epoch: 51/200, iter: 75/177] total: 0.669316 ",
        "Epoch: [0][ 10/100]\tTime 11.808 (11.953)\trecon 1.691 (1.417)\tcross_entropy 29.317 (29.780)\tad 35.081 (38.163)",
        "global step 1400 learning rate 0.1000\n  train perplexity 15.72\n  train cost 2.7552474976",
    ),
    avoids=("epoch 3, time cost: 2.68s", "epoch 3 cost 12.4 s", "step 10, total: 5000"),
    caseless=True,
)
@PARSER.pattern(
    rb"iters: [0-9]{1,9}, time: [0-9.]{1,9}, data: [0-9.]{1,9}[^\n\r]{0,40}: ?-?[0-9]",
    safety="Image translation with CycleGAN and pix2pix, whose losses have names of their own.",
    matches=(
        "(epoch: 1, iters: 100, time: 0.254, data: 0.192) G_GAN: 0.712 G_L1: 12.301 D_real: 0.612 D_fake: 0.511",
        "(epoch: 1, iters: 100, time: 0.254, data: 0.192) D_A: 0.712 G_A: 1.301 cycle_A: 0.612 idt_A: 0.511",
    ),
    avoids=("(epoch: 1, iters: 100, time: 0.254, data: 0.192)",),
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
        "EPOCH 1:\nLOSS train 0.3451 valid 0.4511",
        "[Epoch 0/200] [Batch 5/938] [D loss: 0.693147] [G loss: 0.7421]",
        "Ep 1: Loss:2.9429 | P:0.31 F1:0.45  New Best!",
        "iter 10000 || Loss: 3.7949 || Saving state, iter: 10000",
        "iter = 21580\n\tloss = 0.484435, accuracy (cur) = 0.781250",
        "[03.24.23|14:21:45] Training epoch: 55\n[03.24.23|14:22:06] \tmean_loss: 1.0710372626781464",
        "num of updates: 26000\nret loss: 0.98657\naction loss: 0.03781",
        "[INFO] Start training epoch 5, 3511 iters per inner epoch.\n[INFO] Averaged stats: lr: 0.0000  loss: 0.2588",
        "[Epoch 158] train=0.075812 val=0.963900 loss=0.766110 time: 114.246979",
        "INFO [Train] 48 epoch. Loss: 87.07872",
        "[Training] 83/160 [==============>...............] - ETA: 1:48  [ loss=3.6367 ]",
        "Train Epoch: 50 [79/287 (27%)] Loss: 8.961083: : 79it [00:18,  4.26it/s]",
        "Loss: 2.3345\nPrec@1: 0.0\nLoss: 1.6163\nPrec@1: 25.0\nLoss: 1.8599",
        "loss: tf.Tensor(1.07371, shape=(), dtype=float32)\nloss: tf.Tensor(0.99062, shape=(), dtype=float32)\nloss: tf.Tensor(0.81, shape=(), dtype=float32)",
        "Train loss: tensor([1.1266], device='cuda:0')\tstep: 104010",
        "Loss for Iter 51: 0.398579, acc = 0.260000",
        "Average loss at step  2000: 113.4",
        "[ (3 ) Loss:  0.358, train_Acc: 0.98647, valid_Loss: 0.364",
        "Epoch[38] Batch [0-20]\tSpeed: 25.55 samples/sec\tM0_RPNAcc=0.99\tM0_BboxLoss=0.054016",
        "======== Epoch 2 / 4 ========\n  Average training loss: 0.29",
        "step:26K smpl:819K ep:2K epch:46.73 loss:0.031 grdn:4.522",
        "('Epoch: ', 4)\n('gen Loss: ', [array(0.9504, dtype=float32), array(0.11, dtype=float32)], '\t disc loss', [array(0.54)])",
        "epoch: 1/9, train_loss: 2.3epoch: 2/9, train_loss: 2.2epoch: 3/9, train_loss: 2.1",
    ),
    avoids=(
        "`loss_type=None` was set in the config but it is unrecognized.",
        "loss: 0.1",
        "loss_gamma: 2.0\nloss_gamma: 2.0\nloss_gamma: 2.0",
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
        notes = line.notes(PARSER.id)
        sums_up = notes.get("positioned", 0) > notes.get("below", 0)  # those that name a position themselves
        if len(text) > MAX_RECORD_CHARS or sums_up or _is_setting(line, figures):
            return None
        if above is None:
            return None if not_training or "loss" not in figures.values else _unpositioned(line, figures)
        position, not_training = above.of_record, not_training or above.evaluates or _evaluates_above(line, above.line)
        notes["below"] = notes.get("below", 0) + 1
    elif "loss" in figures.values and not not_training:
        line.notes(PARSER.id)["positioned"] = line.notes(PARSER.id).get("positioned", 0) + 1
        if position.epoch is None and (in_epoch := epoch_above(line)) is not None:
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
        events.append(_progress(line, figures, position))
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
    notes = line.notes(f"{PARSER.id} {line.label}")
    notes["fractional"] = notes.get("fractional", False) or figures.whole_value("loss") is None
    return not notes["fractional"]


def _unpositioned(line: Line, figures: LineFigures) -> list[Event] | None:
    """Losses of lines that begin alike and of which none names a position: logged steps from the third one on."""
    match = _LOSS.match(line.text)
    if match is None or figures.rounded:
        return None
    notes = line.notes(f"{PARSER.id} {line.label}")
    openings: dict[str, list[Event] | None] = notes.setdefault("openings", {})
    opening = match["opening"]
    if opening not in openings and len(openings) >= MAX_OPENINGS:
        return None
    event = replace(_progress(line, figures, LinePosition()), parser=PARSER.fallback_id)
    waiting = openings.setdefault(opening, [])
    if waiting is None:
        return [event]
    waiting.append(event)
    if len(waiting) < MIN_ALIKE or len({event.get("loss") for event in waiting}) == 1:
        del waiting[: -MIN_ALIKE]
        return None
    openings[opening] = None
    return waiting


def _is_first_name(line: Line, figures: LineFigures, position: LinePosition) -> bool:
    """Whether no loss with a more specific name was printed for the same step and epoch: ``Train Loss`` before ``True
    Loss``."""
    notes, rank = line.notes(f"{PARSER.id} {line.label}"), figures.ranks["loss"]
    place = position.step, position.epoch
    if notes.get("position") == place and notes["rank"] < rank:
        return False
    notes.update(position=place, rank=rank)
    return True


@PARSER.pattern(
    rb"(?:epoch|iter|step|update|round|batch|episode)[a-z]{0,6}[^\n\r0-9]{0,6}[0-9]",
    safety="A position is done when the next one is printed; the points count only if the log prints no loss.",
    matches=(
        "Epoch 499 out of 500\nEpoch 500 out of 500",
        "Training epoch: 55\nTraining epoch: 56",
        "Finished epoch 006  in 00: 06: 19\nFinished epoch 007  in 00: 06: 24\nFinished epoch 008  in 00: 06: 22",
        "('Epoch: ', 4)\n('Epoch: ', 5)",
    ),
    avoids=(
        "iter = 21580",
        "Training epoch: 55",
        "Eval epoch: 55\nEval epoch: 56",
        "max epoch: 100\nwarmup epoch: 5",
        "load weights of epoch 7\nload weights of epoch 8",
    ),
    caseless=True,
)
def _position_line(line: Line) -> Event | None:
    done = remember_position(line)
    if done is None or done.rounds:
        return None
    position = done.of_record
    event = line.event(
        "progress",
        step=position.step,
        epoch=position.epoch,
        epoch_steps=position.epoch_steps,
        total_steps=position.total,
        framework="custom",
    )
    return replace(event, parser=PARSER.fallback_id)
