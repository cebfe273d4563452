"""HF Trainer's ``trainer_state.json`` and LLaMA-Factory's ``trainer_log.jsonl``: saved logged steps.

The entries of ``log_history`` are parsed one by one from the text, so that each can be cited by its line, and a
truncated state file is read as far as it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trackside.logs.numbers import figure
from trackside.model import Event, EventRole, Position, Scalar
from trackside.read.format import Format, InputSource, Match, Result, Sink

FRAMEWORK = "hf-trainer"
LLAMA_FACTORY = "llama-factory"
_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_SEPARATOR = re.compile(r"[\s,]*")
_SUMMARY = frozenset({"train_runtime", "train_loss"})
_EVAL = re.compile(
    r"(?:eval|test)_(?!runtime$|samples_per_second$|steps_per_second$|model_preparation_time$)(.{1,100})"
)
_PRINTED = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
_REWARDS = ("reward", "rewards/margins", "objective/rlhf_reward")


def whole_number(value: object) -> int | None:
    """A JSON or CSV number as an integer; None if it is not finite."""
    number = figure(value)
    return int(number) if number is not None and number == number and abs(number) < 1e15 else None


def point(position: Position, kind: str, text: str, **fields: Scalar) -> Event:
    """An event from the job's own records, without the fields that are None."""
    known_fields = {name: value for name, value in fields.items() if value is not None}
    return Event(
        kind, position, "log", text=text[:500], role=EventRole.OBSERVATION, parser="trainer-state", fields=known_fields
    )


# -- trainer_state.json


def _sniff(source: InputSource) -> Match | None:
    head = source.head.lstrip()
    if not head.startswith(b"{") or b'"log_history"' not in head:
        return None
    if b'"global_step"' not in head and b'"best_metric"' not in head:
        return None
    return Match(0.95, "HF Trainer saved state")


def _read(source: InputSource, sink: Sink) -> Result:
    text = source.whole().decode("utf-8", "replace")
    start = _HISTORY.search(text)
    if start is None:
        raise ValueError("it has no log_history")
    rows, end = 0, start.end()
    for position, entry in _entries(source.path, text, start.end()):
        end = position.offset + position.length
        for event in _events(position, entry, text[position.offset : end]):
            sink.event(event)
            rows += 1
    is_complete = text[end : end + 200].lstrip(" \n\r\t,").startswith("]")
    state = _state(text[: start.start()], text[end:]) if is_complete else _state(text[: start.start()], "")
    for event in _plan(Position(source.path, 1), state):
        sink.event(event)
        rows += 1
    if not is_complete:
        return Result(rows, "partial", "truncated within log_history")
    return Result(rows)


def _entries(path: str, text: str, offset: int) -> Iterator[tuple[Position, dict[str, Any]]]:
    """Yield (position, entry) of each complete entry of an array that begins at ``offset``."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    while True:
        offset = _SEPARATOR.match(text, offset).end()  # type: ignore[union-attr]
        if not text.startswith("{", offset):
            return
        try:
            entry, end = decoder.raw_decode(text, offset)
        except (ValueError, RecursionError):
            return
        line += text.count("\n", counted, offset)
        counted = offset
        yield Position(path, line, offset, end - offset), entry
        offset = end


def _events(position: Position, entry: dict[str, Any], raw: str) -> Iterator[Event]:
    text = " ".join(raw.split())
    step, epoch = whole_number(entry.get("step")), figure(entry.get("epoch"))
    if entry.keys() >= _SUMMARY:
        seconds, loss = figure(entry["train_runtime"]), figure(entry["train_loss"])
        yield point(
            position,
            "training_end",
            text,
            status="success",
            steps=step,
            train_loss=loss,
            seconds=seconds,
            framework=FRAMEWORK,
        )
        return
    if "loss" in entry:
        reward = next((number for key in _REWARDS if (number := figure(entry.get(key))) is not None), None)
        printed = {field: figure(entry.get(key)) for field, key in _PRINTED.items()}
        yield point(position, "progress", text, step=step, epoch=epoch, **printed, reward=reward, framework=FRAMEWORK)
    for key, value in entry.items():
        metric, number = _EVAL.fullmatch(key), figure(value)
        if metric is not None and number is not None:
            loss = number if metric[1] == "loss" else None
            yield point(position, "evaluation", text, step=step, epoch=epoch, metric=key, value=number, loss=loss)


def _state(before: str, after: str) -> dict[str, Any]:
    """The other members of the document: all, or those before the history if it is truncated."""
    for text in (before + '"log_history": [' + after.lstrip(" \n\r\t,"), before.rstrip().rstrip(",") + "}"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict):
            return document
    return {}


def _plan(position: Position, state: dict[str, Any]) -> Iterator[Event]:
    def positive(name: str) -> int | None:
        number = whole_number(state.get(name))
        return number if number is not None and number > 0 else None

    total, epochs = positive("max_steps"), figure(state.get("num_train_epochs"))
    if total is not None or epochs is not None:
        yield point(
            position,
            "training_plan",
            f"max_steps {total}, num_train_epochs {epochs}",
            total_steps=total,
            epochs=epochs,
            save_steps=positive("save_steps"),
            log_steps=positive("logging_steps"),
            framework=FRAMEWORK,
        )
    best = figure(state.get("best_metric"))
    if best is not None:
        text = f"best_metric {best}"
        yield point(position, "evaluation", text, step=positive("best_global_step"), metric="best_metric", value=best)


# -- trainer_log.jsonl


def _sniff_lines(source: InputSource) -> Match | None:
    first = source.head.split(b"\n", 1)[0]
    if first.startswith(b'{"current_steps"') and b'"total_steps"' in first:
        return Match(0.95, "LLaMA-Factory trainer log")
    return None


def _read_lines(source: InputSource, sink: Sink) -> Result:
    rows = bad_lines = 0
    planned_steps = 0
    for line, offset, text in source.lines():
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            bad_lines += 1
            continue
        position = Position(source.path, line, offset, len(text))
        step, total = whole_number(entry.get("current_steps")), whole_number(entry.get("total_steps"))
        if total is not None and not planned_steps:
            planned_steps = total
            sink.event(point(position, "training_plan", text, total_steps=total, framework=LLAMA_FACTORY))
        for event in _log_events(position, entry, text, step, total):
            sink.event(event)
            rows += 1
    return Result(
        rows, "partial" if bad_lines else "read", f"{bad_lines} lines without a JSON object" if bad_lines else ""
    )


def _log_events(
    position: Position, entry: dict[str, Any], text: str, step: int | None, total: int | None
) -> Iterator[Event]:
    epoch = figure(entry.get("epoch"))
    if (loss := figure(entry.get("loss"))) is not None:
        lr = figure(entry.get("lr", entry.get("learning_rate")))
        reward = figure(entry.get("reward"))
        yield point(
            position,
            "progress",
            text,
            step=step,
            epoch=epoch,
            loss=loss,
            lr=lr,
            total_steps=total,
            reward=reward,
            framework=LLAMA_FACTORY,
        )
    if (value := figure(entry.get("eval_loss"))) is not None:
        yield point(position, "evaluation", text, step=step, epoch=epoch, metric="eval_loss", value=value, loss=value)


FORMATS = (
    Format("trainer-state", "HF Trainer trainer_state.json", "log", _sniff, _read),
    Format("trainer-log", "LLaMA-Factory trainer_log.jsonl", "log", _sniff_lines, _read_lines),
)
