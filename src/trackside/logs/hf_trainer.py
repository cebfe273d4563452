"""Transformers' Trainer, 3.x to 5.x, and what is built on it (TRL, Axolotl, Unsloth): dicts and banners.

A dict has no step. It is taken from the bar that stands around it: Trainer writes through ``tqdm.write``, which wipes the
bar, prints the dict and draws the bar again. Where stdout is a file and stderr is not buffered, the dicts come late and in
bursts, and only the wiped and redrawn bars are left where they belong: those are then matched with the dicts in order.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any

from trackside.logs.frameworks import named
from trackside.logs.line import COLLECTED, Line
from trackside.logs.numbers import number, whole
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "hf-trainer"

_ITEM = re.compile(r"'([A-Za-z_][\w/.\- ]{0,80})': ?(?:'([^'\n]{0,60})'|([^,}'\n]{1,60}))")
_MARK = rb"(?:(?:\[[^\]\r\n]{1,40}\]|[ ]{0,5}\d{1,5}):? ?|\([^)\r\n]{1,60}\) )?"
_BAR = re.compile(
    rb"(?:^|[\r\n])"
    + _MARK
    + rb"[ ]{0,3}\d{1,3}%\|[^|\r\n]{0,400}\| *(\d{1,9})/(\d{1,9}) \[([^\]\r\n]{0,60})\](?!\x1b\[A)"
)
_REDRAWN = re.compile(rb"\r {8,}[\r\n]{1,2}[ ]{0,3}\d{1,3}%\|[^|\r\n]{0,400}\| *(\d{1,9})/(\d{1,9}) \[")
_REACH, _TRIES, _BURST = 64 << 10, 200, 2 << 20

_OBJECTIVES = (
    ("rewards/margins", "dpo"),
    ("rewards/chosen", "dpo"),
    ("objective/kl", "ppo"),
    ("completions/mean_length", "grpo"),
    ("completion_length", "grpo"),
    ("frac_reward_zero_std", "grpo"),
    ("reward_std", "grpo"),
    ("mean_token_accuracy", "sft"),
)
_REWARDS = ("reward", "rewards/margins", "objective/scores", "objective/rlhf_reward")


def items(text: str) -> dict[str, str]:
    """The keys and printed values of a one-line dict of scalars."""
    return {key: (quoted or bare).strip() for key, quoted, bare in _ITEM.findall(text)}


def step_of(line: Line) -> tuple[int | None, int | None]:
    """(step, total steps) of the training bar around a line that Trainer printed."""
    behind, ahead = _neighbours(line)
    if behind.startswith(b"{'") or ahead.startswith(b"{'"):
        return _from_burst(line)
    before = _bar_before(line.buffer, line.start + max(0, line.full.find("{")))
    after = _BAR.match(b"\n" + ahead)
    if before is None:
        return None, line.notes(ID).get("total")
    total = int(before[2])
    if before[1] == b"0":
        return int(after[1]) if after is not None and int(after[2]) == total else None, total
    if after is not None and int(after[2]) == total and _drawn_at_once(before[3], after[3]):
        return int(after[1]), total  # the redraw that follows tqdm.write shows the count of that moment
    return int(before[1]), total


def _elapsed(line: Line) -> float | None:
    """Seconds that the training bar before a dict had run; None where dicts come late, in bursts."""
    before = _bar_before(line.buffer, line.start + max(0, line.full.find("{")))
    if before is None or any(near.startswith(b"{'") for near in _neighbours(line)):
        return None
    seconds = _seconds(before[3])
    return seconds if math.isfinite(seconds) else None


def _bar_before(buffer: bytes, end: int) -> re.Match[bytes] | None:
    """The nearest training bar before a position: not a bar with a description, nor one nested in it."""
    floor = max(0, end - _REACH)
    for _ in range(_TRIES):
        end = buffer.rfind(b"%|", floor, end)
        if end < 0:
            return None
        start = max(buffer.rfind(b"\r", floor, end), buffer.rfind(b"\n", floor, end), 0)
        found = _BAR.match(buffer, start)
        if found is not None:
            return found
    return None


def _neighbours(line: Line) -> tuple[bytes, bytes]:
    """The nearest segments before and after that are not blank, each clipped."""
    behind = line.buffer[max(0, line.start - 700) : line.start].rstrip()
    behind = behind[max(behind.rfind(b"\r"), behind.rfind(b"\n")) + 1 :]
    ahead = line.buffer[line.end : line.end + 1200].lstrip()
    return COLLECTED.sub(b"", behind), COLLECTED.sub(b"", ahead).lstrip()


def _drawn_at_once(before: bytes, after: bytes) -> bool:
    """Whether a bar was drawn again right after the one before it: same rate, or not a second later."""
    if before.rpartition(b",")[2].strip() == after.rpartition(b",")[2].strip():
        return True
    return abs(_seconds(after) - _seconds(before)) <= 1


def _seconds(inside: bytes) -> float:
    total = 0.0
    for part in inside.partition(b"<")[0].split(b":"):
        total = total * 60 + (int(part) if part.isdigit() else math.nan)
    return total


def _from_burst(line: Line) -> tuple[int | None, int | None]:
    """The step of the next wiped and redrawn bar that no dict has taken yet."""
    notes = line.notes(ID)
    waiting: deque[tuple[int, int]] = notes.setdefault("redraws", deque())
    origin = line.offset - line.start
    begin = max(notes.get("read", 0) - origin, line.start - _BURST, 0)
    for found in _REDRAWN.finditer(line.buffer, begin, line.start):
        waiting.append((int(found[1]), int(found[2])))
    notes["read"] = origin + line.start
    return waiting.popleft() if waiting else (None, notes.get("total"))


def _framework(line: Line, found: dict[str, str]) -> str:
    seen = named(line)
    for name in ("axolotl", "unsloth", "llama-factory"):
        if name in seen:
            return name
    return "trl" if "trl" in seen or any(key in found for key, _ in _OBJECTIVES) else ID


def point(line: Line, found: dict[str, str], framework: str) -> Event:
    """The progress event of a Trainer dict."""
    printed, _, planned = found.get("global_step/max_steps", found.get("step", "")).partition("/")
    step, total = whole(printed), whole(planned) or line.notes(ID).get("total")
    if step is None:
        step, total = step_of(line)
    policy = number(found.get("loss/policy_avg"))
    reward = next((number(found[key]) for key in _REWARDS if key in found), None)
    return line.event(
        "progress",
        step=step,
        total_steps=total,
        epoch=number(found.get("epoch")),
        loss=number(found["loss"]) if "loss" in found else policy,
        grad_norm=number(found.get("grad_norm")),
        lr=number(found.get("learning_rate") or found.get("lr")),
        reward=reward,
        elapsed_s=_elapsed(line),
        objective=next((name for key, name in _OBJECTIVES if key in found), None),
        framework=framework,
    )


PARSER = Parser(ID, "Transformers Trainer and what is built on it", "framework", precedence=100)


@PARSER.pattern(
    rb"'loss(?:/policy_avg)?': ",
    safety="A training point is a dict with a loss and an epoch. Dicts of evaluation, config dumps and a custom loop's own "
    "dicts (no epoch) are none; LLaMA-Factory's callback is read by its own parser.",
    matches=(
        "{'loss': 1.25, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'epoch': 0.1}",
        "{'loss': '5.79e+05', 'grad_norm': '0', 'learning_rate': '9625', 'epoch': '0.008'}",
        "{'loss': nan, 'lr': 0.0002, 'epoch': 0.09}",
    ),
    avoids=("{'loss': 'cross_entropy', 'depth': 4}", "{'loss': 1.25, 'accuracy': 0.5}"),
)
def _progress(line: Line) -> Event | None:
    if "callbacks:" in line.text:
        return None
    found = items(line.text)
    if "epoch" not in found or "eval_loss" in found or not ("loss" in found or "loss/policy_avg" in found):
        return None
    return point(line, found, _framework(line, found))


@PARSER.pattern(
    rb"\{'eval_[a-zA-Z0-9_/]{1,60}': ",
    safety="Never a training point.",
    matches=("{'eval_loss': 1.91, 'eval_runtime': 3.2, 'eval_steps_per_second': 9.1, 'epoch': 1.0}",),
    avoids=("{'eval_runtime': 3.2}",),
)
def _evaluation(line: Line) -> Event | None:
    found = items(line.text)
    name = (
        "eval_loss"
        if "eval_loss" in found
        else next((k for k in found if k.startswith("eval_") and k[5:] not in _TIMES), None)
    )
    if name is None:
        return None
    step, _ = step_of(line)
    return line.event(
        "evaluation",
        step=step,
        epoch=number(found.get("epoch")),
        metric=name,
        value=number(found[name]),
        loss=number(found.get("eval_loss")),
    )


_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


@PARSER.pattern(
    rb"'train_runtime': ",
    safety="train_loss here is the run's mean, no training point.",
    matches=("{'train_runtime': 4.66, 'train_samples_per_second': 68.6, 'train_loss': 1.54, 'epoch': 0.21}",),
    avoids=("'train_runtime': soon",),
)
def _end(line: Line) -> Event | None:
    found = items(line.text)
    seconds = number(found.get("train_runtime"))
    if seconds is None:
        return None
    step, _ = step_of(line)
    loss = number(found.get("train_loss"))
    return line.event(
        "training_end",
        status="success",
        steps=_closing(line) if step is None else step,
        planned=_of_rate(found["train_runtime"], found.get("train_steps_per_second", "")),
        train_loss=loss,
        seconds=seconds,
        framework=_framework(line, found),
    )


def _closing(line: Line) -> int | None:
    """The count of the full bar that is drawn once more after the summary, as the training bar is closed."""
    after = _BAR.match(b"\n" + _neighbours(line)[1])
    return int(after[1]) if after is not None and after[1] == after[2] else None


def _of_rate(runtime: str, rate: str) -> int | None:
    """The steps that Trainer reckoned its rate from (its plan); None where the printed digits leave several."""
    seconds, each = number(runtime), number(rate)
    if seconds is None or each is None or "e" in f"{runtime}{rate}":
        return None
    product = seconds * each
    slack = seconds * _half_digit(rate) + each * _half_digit(runtime)
    return round(product) if abs(product - round(product)) <= slack < 0.5 <= product else None


def _half_digit(printed: str) -> float:
    """Half of the last digit's place."""
    return 0.5 * 10.0 ** -len(printed.partition(".")[2])


_PLAN = (
    ("total_steps", re.compile(r"Total (?:optimization )?steps = ([\d,]+)")),
    ("epochs", re.compile(r"Num Epochs = ([\d,]+)")),
    ("examples", re.compile(r"Num examples = ([\d,]+)")),
    ("batch_size", re.compile(r"(?:Total train batch size|Total batch size)[^=]{0,80}= ([\d,]+)")),
)


@PARSER.pattern(
    rb"(?:\*\*\*\*\* Running training \*\*\*\*\*|Num Epochs = [0-9,]{1,12} \| Total steps = )",
    safety="A banner without figures below it says nothing.",
    matches=("   \\\\   /|    Num examples = 51,760 | Num Epochs = 1 | Total steps = 60",),
    avoids=("***** Running training *****",),
)
def _plan(line: Line) -> list[Event] | None:
    fields: dict[str, Any] = {}
    trainer = False
    for near in [line, *line.following(16)]:
        if near.label != line.label:
            continue
        trainer = trainer or "trainable parameters" in near.text or "Number of trainable" in near.text
        for name, regex in _PLAN:
            value = regex.search(near.text)
            if value is not None and name not in fields:
                fields[name] = whole(value[1])
    if not fields:
        return None
    if fields.get("total_steps"):
        line.notes(ID)["total"] = fields["total_steps"]
    framework = _framework(line, {}) if trainer else None
    return [
        line.event("training_plan", framework=framework, **fields),
        line.event("training_start", framework=framework),
    ]
