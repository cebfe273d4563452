"""PyTorch Lightning: tqdm and rich bars with a version number, and NeMo's bars and lines on top of it."""

from __future__ import annotations

import re

from trackside.logs.bars import best_figures, read_bar
from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.numbers import NUMBER, number
from trackside.logs.pattern import Parser
from trackside.model import Event

_RICH_RATE = re.compile(r"([\d.]{1,12})it/s")
_PAIR = re.compile(rf"([A-Za-z_][\w/.-]{{0,60}})\s?[:=]\s?({NUMBER})")

PARSER = Parser("lightning", "PyTorch Lightning", "framework", precedence=190, redraws=True)


@PARSER.pattern(
    rb"` stopped: `?max_(?:steps|epochs|time)",
    r"`(?:Trainer\.fit|Trainer)` stopped: `?(max_steps|max_epochs|max_time)=?(\d+)?",
    safety="Other reasons to stop (early stopping, a signal) have other wordings.",
    matches=("`Trainer.fit` stopped: `max_steps=120` reached.",),
    avoids=("`Trainer.fit` stopped: No training batches.",),
)
def _training_end(line: Line, match: re.Match[str]) -> list[Event] | None:
    steps = int(match[2]) if match[1] == "max_steps" and match[2] else None
    last_point = _tqdm_point(line)  # the sentence usually follows the last drawing of the bar on the same line
    end = line.event("training_end", status="success", steps=steps, framework="lightning")
    return [end] if last_point is None else [last_point, end]


@PARSER.pattern(
    rb"Best ckpt path: [^ \n\r]",
    r"INFO\] - Best ckpt path: \S",
    safety="What scripts of the Lightning-Hydra template log when training and test are over.",
    matches=(
        "[2026-01-02 10:20:30,123][__main__][INFO] - Best ckpt path: logs/train/runs/a/checkpoints/epoch_009.ckpt",
    ),
    avoids=("Best ckpt path: ", "set 'Best ckpt path: x' in the config"),
)
def _template_end(line: Line, _: re.Match[str]) -> Event:
    return line.event("training_end", status="success", framework="lightning")


def _value(figures: dict[str, tuple[float, int]], name: str) -> float | None:
    """The value of a figure; None if it was not printed."""
    return figures[name][0] if name in figures else None


@PARSER.pattern(
    rb"Epoch [0-9]{1,7}[^\n\r|]{0,20}\|?[^\n\r]{0,400}[_, ]loss[a-z_]{0,20}=",
    safety="v_num is the logger's version, not a metric; validation bars and bars at count 0 (which show the last "
    "epoch's figures) are not logged steps; the tqdm parser reads the same bar of another library.",
    matches=(
        "Epoch 0:  11%|█         | 2/18 [00:11<01:32,  5.77s/it, loss=10.198, v_num=200417]",
        "Epoch 3: 100%|██████████| 30/30 [00:03<00:00,  8.16it/s, v_num=0, train_loss=0.892, val_loss=1.090]",
    ),
    avoids=(
        "Epoch 1:   0%|          | 0/30 [00:00<?, ?it/s, v_num=0, train_loss=3.010]",
        "Epoch 3: 100%|██████████| 30/30 [00:03<00:00,  8.16it/s, v_num=0, val_loss=1.090]",
    ),
)
def _tqdm_point(line: Line) -> Event | None:
    bar = read_bar(line.text)
    if bar is None or bar.is_evaluation or bar.epoch is None or "loss" not in bar.figures or bar.count == 0:
        return None
    if not ("v_num=" in bar.brackets or "reduced_train_loss=" in bar.brackets or "lightning" in named_frameworks(line)):
        return None
    epoch, _ = bar.epoch
    step = epoch * bar.total + bar.count if bar.total else bar.count
    rate = bar.rate
    return line.event(
        "progress",
        step=step,
        epoch=epoch,
        step_in_epoch=None if bar.total is None else bar.count,
        epoch_steps=bar.total,
        loss=bar.figures["loss"][0],
        lr=_value(bar.figures, "lr"),
        grad_norm=_value(bar.figures, "grad_norm"),
        throughput=None if rate is None else rate[0],
        throughput_unit=None if rate is None else rate[1],
        framework="nemo" if "reduced_train_loss=" in bar.brackets or "nemo" in named_frameworks(line) else "lightning",
    )


@PARSER.pattern(
    rb"Epoch [0-9]{1,7}(?:/-?[0-9]{1,7})? +\xe2\x94\x81[^\n\r]{0,600}loss[a-z_]{0,20}: ",
    r"Epoch (\d{1,7})(?:/(-?\d{1,7}))?\s[━╸╺ ]{2,400}\s?(\d{1,9})/(\d{1,9}|\?|--)\s+(.*)",
    safety="A bar at count 0 shows the last epoch's figures.",
    matches=("Epoch 0/9  ━━━━━━━━━━━━━━━━━━ 10/100 0:00:01 • 0:00:10 12.30it/s v_num: 0.000 loss: 1.250",),
    avoids=("Epoch 1/9  ━━━━━━━━━━━━━━━━━━ 0/100 0:00:00 • -:--:-- 0.00it/s v_num: 0.000 loss: 1.250",),
)
def _rich_point(line: Line, match: re.Match[str]) -> Event | None:
    if match[3] == "0":
        return None
    best = best_figures(_PAIR.findall(match[5]))
    if "loss" not in best:
        return None
    epoch, count = int(match[1]), int(match[3])
    total = int(match[4]) if match[4].isdigit() else None
    rate = _RICH_RATE.search(match[5])
    return line.event(
        "progress",
        step=epoch * total + count if total else count,
        epoch=epoch,
        step_in_epoch=None if total is None else count,
        epoch_steps=total,
        loss=best["loss"][0],
        lr=_value(best, "lr"),
        throughput=None if rate is None else number(rate[1]),
        throughput_unit=None if rate is None else "it/s",
        framework="lightning",
    )
