"""Transformers' Trainer, 3.x to 5.x, and what is built on it (TRL, Axolotl, Unsloth): dicts and banners.

A dict has no step. The step comes from the bar around it: Trainer writes through ``tqdm.write``, which clears the bar,
prints the dict and draws the bar again. If stdout is a file and stderr is not buffered, the dicts come late and in
bursts, and only the cleared and redrawn bars stay in place: those are then matched with the dicts in order.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any

from trackside.logs.frameworks import named_frameworks
from trackside.logs.line import Line
from trackside.logs.numbers import number, whole_number
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
_MAX_BACK_BYTES, _MAX_TRIES, _MAX_BURST_BYTES = 64 << 10, 200, 2 << 20
"""Bytes before a dict, and bars in them, in which its bar is looked for; bytes in which the bars of a burst are."""

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


def dict_items(text: str) -> dict[str, str]:
    """The keys and printed values of a one-line dict of scalars."""
    return {key: (quoted or bare).strip() for key, quoted, bare in _ITEM.findall(text)}


def step_of(line: Line) -> tuple[int | None, int | None]:
    """(step, total steps) of the training bar around a line that Trainer printed."""
    behind, ahead = _neighbors(line)
    if behind.startswith(b"{'") or ahead.startswith(b"{'"):
        return _step_from_burst(line)
    before = _bar_before(line.buffer, max(line.start, line.buffer.find(b"{", line.start, line.end)))
    after = _BAR.match(b"\n" + ahead)
    if before is None:
        return None, line.notes(ID).get("total")
    total = int(before[2])
    if before[1] == b"0":
        return int(after[1]) if after is not None and int(after[2]) == total else None, total
    if after is not None and int(after[2]) == total and _is_redraw(before[3], after[3]):
        return int(after[1]), total  # the redraw after tqdm.write shows the current count
    return int(before[1]), total


def _elapsed_s(line: Line) -> float | None:
    """Seconds for which the training bar before a dict had run; None if dicts come late, in bursts."""
    before = _bar_before(line.buffer, max(line.start, line.buffer.find(b"{", line.start, line.end)))
    if before is None or any(neighbor.startswith(b"{'") for neighbor in _neighbors(line)):
        return None
    seconds = _seconds(before[3])
    return seconds if math.isfinite(seconds) else None


def _bar_before(buffer: bytes, end: int) -> re.Match[bytes] | None:
    """The nearest training bar before a position: neither a bar with a description nor one nested in it."""
    floor = max(0, end - _MAX_BACK_BYTES)
    for _ in range(_MAX_TRIES):
        end = buffer.rfind(b"%|", floor, end)
        if end < 0:
            return None
        start = max(buffer.rfind(b"\r", floor, end), buffer.rfind(b"\n", floor, end), 0)
        match = _BAR.match(buffer, start)
        if match is not None:
            return match
    return None


def _neighbors(line: Line) -> tuple[bytes, bytes]:
    """The nearest non-blank segments before and after the line, each clipped."""
    behind = line.buffer[max(0, line.start - 700) : line.start].rstrip()
    behind = behind[max(behind.rfind(b"\r"), behind.rfind(b"\n")) + 1 :]
    ahead = line.buffer[line.end : line.end + 1200].lstrip()
    return line.context.peel_line(behind).text, line.context.peel_line(ahead).text.lstrip()


def _is_redraw(before: bytes, after: bytes) -> bool:
    """Whether a bar was redrawn right after the previous one: the same rate, or at most a second later."""
    if before.rpartition(b",")[2].strip() == after.rpartition(b",")[2].strip():
        return True
    return abs(_seconds(after) - _seconds(before)) <= 1


def _seconds(brackets: bytes) -> float:
    """The elapsed time in a bar's brackets, in seconds; nan if it is not a time."""
    total = 0.0
    for part in brackets.partition(b"<")[0].split(b":"):
        total = total * 60 + (int(part) if part.isdigit() else math.nan)
    return total


def _step_from_burst(line: Line) -> tuple[int | None, int | None]:
    """The step of the next cleared and redrawn bar that no dict has used yet."""
    notes = line.notes(ID)
    redraws: deque[tuple[int, int]] = notes.setdefault("redraws", deque())
    origin = line.offset - line.start
    begin = max(notes.get("read", 0) - origin, line.start - _MAX_BURST_BYTES, 0)
    for match in _REDRAWN.finditer(line.buffer, begin, line.start):
        redraws.append((int(match[1]), int(match[2])))
    notes["read"] = origin + line.start
    return redraws.popleft() if redraws else (None, notes.get("total"))


def _framework(line: Line, figures: dict[str, str]) -> str:
    """The library that printed the dict: the file names it, or its figures show it."""
    names = named_frameworks(line)
    for name in ("axolotl", "unsloth", "llama-factory"):
        if name in names:
            return name
    return "trl" if "trl" in names or any(key in figures for key, _ in _OBJECTIVES) else ID


def trainer_point(line: Line, figures: dict[str, str], framework: str) -> Event:
    """The logged step of a Trainer dict."""
    printed, _, planned = figures.get("global_step/max_steps", figures.get("step", "")).partition("/")
    step, total = whole_number(printed), whole_number(planned) or line.notes(ID).get("total")
    if step is None:
        step, total = step_of(line)
    policy = number(figures.get("loss/policy_avg"))
    reward = next((number(figures[key]) for key in _REWARDS if key in figures), None)
    return line.event(
        "progress",
        step=step,
        total_steps=total,
        epoch=number(figures.get("epoch")),
        loss=number(figures["loss"]) if "loss" in figures else policy,
        grad_norm=number(figures.get("grad_norm")),
        lr=number(figures.get("learning_rate") or figures.get("lr")),
        reward=reward,
        elapsed_s=_elapsed_s(line),
        objective=next((name for key, name in _OBJECTIVES if key in figures), None),
        framework=framework,
    )


PARSER = Parser(ID, "Transformers Trainer and libraries built on it", "framework", precedence=100)


@PARSER.pattern(
    rb"'loss(?:/policy_avg)?': ",
    safety="A logged step is a dict with a loss and an epoch. Evaluation dicts, config dumps and dicts of a "
    "custom loop (no epoch) are not; LLaMA-Factory's parser reads its callback.",
    matches=(
        "{'loss': 1.25, 'grad_norm': 0.9, 'learning_rate': 2e-05, 'epoch': 0.1}",
        "{'loss': '5.79e+05', 'grad_norm': '0', 'learning_rate': '9625', 'epoch': '0.008'}",
        "{'loss': nan, 'lr': 0.0002, 'epoch': 0.09}",
    ),
    avoids=("{'loss': 'cross_entropy', 'depth': 4}", "{'loss': 1.25, 'accuracy': 0.5}"),
)
def _logged_step(line: Line) -> Event | None:
    if "callbacks:" in line.text:
        return None
    figures = dict_items(line.text)
    if "epoch" not in figures or "eval_loss" in figures or not ("loss" in figures or "loss/policy_avg" in figures):
        return None
    return trainer_point(line, figures, _framework(line, figures))


@PARSER.pattern(
    rb"\{'eval_[a-zA-Z0-9_/]{1,60}': ",
    safety="Never a logged step.",
    matches=("{'eval_loss': 1.91, 'eval_runtime': 3.2, 'eval_steps_per_second': 9.1, 'epoch': 1.0}",),
    avoids=("{'eval_runtime': 3.2}",),
)
def _evaluation(line: Line) -> Event | None:
    figures = dict_items(line.text)
    name = (
        "eval_loss"
        if "eval_loss" in figures
        else next((k for k in figures if k.startswith("eval_") and k[5:] not in _EVALUATION_TIMES), None)
    )
    if name is None:
        return None
    step, _ = step_of(line)
    return line.event(
        "evaluation",
        step=step,
        epoch=number(figures.get("epoch")),
        metric=name,
        value=number(figures[name]),
        loss=number(figures.get("eval_loss")),
    )


_EVALUATION_TIMES = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time")


@PARSER.pattern(
    rb"'train_runtime': ",
    safety="train_loss is the run's mean here, not a logged step.",
    matches=("{'train_runtime': 4.66, 'train_samples_per_second': 68.6, 'train_loss': 1.54, 'epoch': 0.21}",),
    avoids=("'train_runtime': soon",),
)
def _training_end(line: Line) -> Event | None:
    figures = dict_items(line.text)
    seconds = number(figures.get("train_runtime"))
    if seconds is None:
        return None
    step, _ = step_of(line)
    loss = number(figures.get("train_loss"))
    return line.event(
        "training_end",
        status="success",
        steps=_final_step(line) if step is None else step,
        planned=_planned_steps(figures["train_runtime"], figures.get("train_steps_per_second", "")),
        train_loss=loss,
        seconds=seconds,
        framework=_framework(line, figures),
    )


def _final_step(line: Line) -> int | None:
    """The count of the full bar that is drawn once more after the summary, when the training bar is closed."""
    after = _BAR.match(b"\n" + _neighbors(line)[1])
    return int(after[1]) if after is not None and after[1] == after[2] else None


def _planned_steps(runtime: str, rate: str) -> int | None:
    """The planned steps from which Trainer computed its rate; None if the printed digits allow several values."""
    seconds, per_second = number(runtime), number(rate)
    if seconds is None or per_second is None or "e" in f"{runtime}{rate}":
        return None
    product = seconds * per_second
    slack = seconds * _rounding_error(rate) + per_second * _rounding_error(runtime)
    return round(product) if abs(product - round(product)) <= slack < 0.5 <= product else None


def _rounding_error(printed: str) -> float:
    """Half a unit of the last printed digit."""
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
    is_trainer = False
    for neighbor in [line, *line.following(16)]:
        if neighbor.label != line.label:
            continue
        is_trainer = is_trainer or "trainable parameters" in neighbor.text or "Number of trainable" in neighbor.text
        for name, regex in _PLAN:
            value = regex.search(neighbor.text)
            if value is not None and name not in fields:
                fields[name] = whole_number(value[1])
    if not fields:
        return None
    if fields.get("total_steps"):
        line.notes(ID)["total"] = fields["total_steps"]
    framework = _framework(line, {}) if is_trainer else None
    return [
        line.event("training_plan", framework=framework, **fields),
        line.event("training_start", framework=framework),
    ]
