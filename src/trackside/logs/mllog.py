"""MLPerf's ``:::MLLOG {json}`` lines."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from trackside.logs.line import Line
from trackside.logs.numbers import figure
from trackside.logs.pattern import Parser
from trackside.model import Event

ID = "mlperf"

_LOSSES = ("train_loss", "loss", "reduced_train_loss", "lm_loss")
_STEPS = ("step", "step_num", "global_step", "iteration")
_EVALUATIONS = (
    "eval_accuracy",
    "eval_loss",
    "eval_error",
    "validation_loss",
    "averaged_clip_score",
    "validation_accuracy",
)


def _example(key: str, value: str, metadata: str = '"step_num": 100') -> str:
    """A line of MLPerf's logger."""
    return (
        ':::MLLOG {"namespace": "", "time_ms": 1714725015064, "event_type": "POINT_IN_TIME", '
        f'"key": "{key}", "value": {value}, "metadata": {{"file": "train.py", "lineno": 10, {metadata}}}}}'
    )


PARSER = Parser(ID, "MLPerf logging", "framework", precedence=130, fallback_ids=(f"{ID}-stats",))


@PARSER.pattern(
    rb":::MLLOG \{[^\n\r]{0,300}\"(?:global_batch_size|train_loss|tracked_stats|run_start|run_stop|(?:eval|valid)[a-z_]{2,20}|averaged_clip_score)\"",
    safety="eval_accuracy may be a loss or an error: it becomes an evaluation under its printed name.",
    matches=(
        _example("train_loss", "1.25"),
        _example("tracked_stats", '{"throughput": 370.0, "loss": 1.11, "lr": 2.5e-06}'),
        _example("eval_accuracy", "NaN", '"epoch_num": 3'),
        "0: " + _example("run_stop", "null", '"status": "success"'),
    ),
    avoids=(_example("eval_samples", "10000"), _example("tracked_stats", '{"warmup_time": 347.0}')),
)
def _event(line: Line) -> Event | None:
    start = line.text.find("{")
    try:
        row = json.loads(line.text[start : line.text.rindex("}") + 1])
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("key"), str):
        return None
    key, value = row["key"], row.get("value")
    metadata = row["metadata"] if isinstance(row.get("metadata"), dict) else {}
    stamp = figure(row.get("time_ms"))
    time = None if stamp is None else stamp / 1000
    if key == "global_batch_size":
        line.notes(ID)["batch"] = figure(value)
        return None
    if key == "run_start":
        return line.event("training_start", time=time, framework=ID)
    if key == "run_stop":
        status = metadata.get("status")
        return line.event("training_end", time=time, status=status if isinstance(status, str) else None, framework=ID)
    if key in _EVALUATIONS:
        score = figure(value)
        is_loss = "loss" in key
        return line.event(
            "evaluation",
            time=time,
            step=_step(line, metadata),
            epoch=figure(metadata.get("epoch_num")),
            metric=key,
            value=score,
            loss=score if is_loss else None,
        )
    return _progress(line, key, value, metadata, time)


def _progress(line: Line, key: str, value: Any, metadata: dict[str, Any], time: float | None) -> Event | None:
    """The logged step of a loss or of tracked statistics; None for anything else."""
    stats = value if isinstance(value, dict) else {key: value}
    loss = next((figure(stats[name]) for name in _LOSSES if name in stats), None)
    throughput = figure(stats.get("throughput"))
    if loss is None and (key != "tracked_stats" or throughput is None):
        return None
    lr = next((figure(stats[name]) for name in ("lr", "current_lr", "learning_rate") if name in stats), None)
    event = line.event(
        "progress",
        time=time,
        step=_step(line, {**stats, **metadata}),
        loss=loss,
        lr=lr,
        grad_norm=figure(stats.get("grad_norm")),
        loss_scale=figure(stats.get("loss_scale")),
        throughput=throughput,
        throughput_unit=None if throughput is None else "samples/s",
        step_time_s=figure(stats.get("train_step_time")),
        framework=ID,
    )
    # a separate series: if train_loss is logged too, throughput alone is not a second logged step
    return event if loss is not None else replace(event, parser=PARSER.fallback_ids[0])


def _step(line: Line, stats: dict[str, Any]) -> int | None:
    """The printed step, or the number of samples divided by the global batch size."""
    for name in _STEPS:
        value = stats.get(name)
        step = figure(value[-1] if isinstance(value, list) and value else value)
        if step is not None and abs(step) < 1e15:
            return int(step)
    samples, batch = figure(stats.get("samples_count")), line.notes(ID).get("batch")
    return int(samples / batch) if samples is not None and batch and 0 <= samples < 1e15 else None
