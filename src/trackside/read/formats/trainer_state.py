"""HF Trainer's ``trainer_state.json`` and LLaMA-Factory's ``trainer_log.jsonl``: the training points as saved.

The entries of ``log_history`` are read one by one from the text, so that each is cited by its line and a
state that was cut off while it was written gives what it holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trackside.logs.numbers import figure
from trackside.model import Event, Position, Role, Scalar
from trackside.read.format import Format, Match, Result, Sink, Source

FRAMEWORK = "hf-trainer"
LLAMA_FACTORY = "llama-factory"
_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_SUMMARY = frozenset({"train_runtime", "train_loss"})
_EVAL = re.compile(
    r"(?:eval|test)_(?!runtime$|samples_per_second$|steps_per_second$|model_preparation_time$)(.{1,100})"
)
_PRINTED = {"loss": "loss", "grad_norm": "grad_norm", "lr": "learning_rate"}
_REWARDS = ("reward", "rewards/margins", "objective/rlhf_reward")


def whole_number(value: object) -> int | None:
    """A JSON or CSV number as an integer; None where it is no finite one."""
    found = figure(value)
    return int(found) if found is not None and found == found and abs(found) < 1e15 else None


def point(at: Position, kind: str, text: str, **fields: Scalar) -> Event:
    """An event of the job's own records; None fields are left out."""
    kept = {name: value for name, value in fields.items() if value is not None}
    return Event(kind, at, "log", text=text[:500], role=Role.FACT, parser="trainer-state", fields=kept)


# -- trainer_state.json


def _sniff(source: Source) -> Match | None:
    head = source.head.lstrip()
    if not head.startswith(b"{") or b'"log_history"' not in head:
        return None
    if b'"global_step"' not in head and b'"best_metric"' not in head:
        return None
    return Match(0.95, "HF Trainer's saved state")


def _read(source: Source, sink: Sink) -> Result:
    text = source.whole().decode("utf-8", "replace")
    start = _HISTORY.search(text)
    if start is None:
        raise ValueError("no log_history in it")
    rows, end = 0, start.end()
    for at, entry in _entries(source.path, text, start.end()):
        end = at.offset + at.length
        for event in _events(at, entry, text[at.offset : end]):
            sink.event(event)
            rows += 1
    closed = text[end : end + 200].lstrip(" \n\r\t,").startswith("]")
    state = _state(text[: start.start()], text[end:]) if closed else _state(text[: start.start()], "")
    for event in _plan(Position(source.path, 1), state):
        sink.event(event)
        rows += 1
    if not closed:
        return Result(rows, "partial", "cut off in its log_history")
    return Result(rows)


def _entries(path: str, text: str, position: int) -> Iterator[tuple[Position, dict[str, Any]]]:
    """(place, entry) of each whole entry of an array that begins at ``position``."""
    decoder = json.JSONDecoder()
    line, counted = 1, 0
    while True:
        position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr]
        if not text.startswith("{", position):
            return
        try:
            entry, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        line += text.count("\n", counted, position)
        counted = position
        yield Position(path, line, position, end - position), entry
        position = end


def _events(at: Position, entry: dict[str, Any], raw: str) -> Iterator[Event]:
    text = " ".join(raw.split())
    step, epoch = whole_number(entry.get("step")), figure(entry.get("epoch"))
    if entry.keys() >= _SUMMARY:
        seconds, loss = figure(entry["train_runtime"]), figure(entry["train_loss"])
        yield point(
            at,
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
        reward = next((found for key in _REWARDS if (found := figure(entry.get(key))) is not None), None)
        told = {field: figure(entry.get(key)) for field, key in _PRINTED.items()}
        yield point(at, "progress", text, step=step, epoch=epoch, **told, reward=reward, framework=FRAMEWORK)
    for key, value in entry.items():
        metric, found = _EVAL.fullmatch(key), figure(value)
        if metric is not None and found is not None:
            loss = found if metric[1] == "loss" else None
            yield point(at, "evaluation", text, step=step, epoch=epoch, metric=key, value=found, loss=loss)


def _state(before: str, after: str) -> dict[str, Any]:
    """The other members of the document: whole, or those before the history where it is cut off."""
    for text in (before + '"log_history": [' + after.lstrip(" \n\r\t,"), before.rstrip().rstrip(",") + "}"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
    return {}


def _plan(at: Position, state: dict[str, Any]) -> Iterator[Event]:
    def positive(name: str) -> int | None:
        found = whole_number(state.get(name))
        return found if found is not None and found > 0 else None

    total, epochs = positive("max_steps"), figure(state.get("num_train_epochs"))
    if total is not None or epochs is not None:
        yield point(
            at,
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
        yield point(at, "evaluation", text, step=positive("best_global_step"), metric="best_metric", value=best)


# -- trainer_log.jsonl


def _sniff_lines(source: Source) -> Match | None:
    first = source.head.split(b"\n", 1)[0]
    if first.startswith(b'{"current_steps"') and b'"total_steps"' in first:
        return Match(0.95, "LLaMA-Factory's trainer log")
    return None


def _read_lines(source: Source, sink: Sink) -> Result:
    rows = bad = 0
    planned = 0
    for line, offset, text in source.lines():
        if not text.strip():
            continue
        try:
            entry = json.loads(text)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            bad += 1
            continue
        at = Position(source.path, line, offset, len(text))
        step, total = whole_number(entry.get("current_steps")), whole_number(entry.get("total_steps"))
        if total is not None and not planned:
            planned = total
            sink.event(point(at, "training_plan", text, total_steps=total, framework=LLAMA_FACTORY))
        for event in _logged(at, entry, text, step, total):
            sink.event(event)
            rows += 1
    return Result(rows, "partial" if bad else "read", f"{bad} lines are not JSON objects" if bad else "")


def _logged(at: Position, entry: dict[str, Any], text: str, step: int | None, total: int | None) -> Iterator[Event]:
    epoch = figure(entry.get("epoch"))
    if (loss := figure(entry.get("loss"))) is not None:
        lr = figure(entry.get("lr", entry.get("learning_rate")))
        reward = figure(entry.get("reward"))
        yield point(
            at,
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
        yield point(at, "evaluation", text, step=step, epoch=epoch, metric="eval_loss", value=value, loss=value)


FORMATS = (
    Format("trainer-state", "HF Trainer trainer_state.json", "log", _sniff, _read),
    Format("trainer-log", "LLaMA-Factory trainer_log.jsonl", "log", _sniff_lines, _read_lines),
)
