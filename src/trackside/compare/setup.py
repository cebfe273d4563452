"""What the setup of two runs implies: whether they are comparable, and which differences a different setup may
explain."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trackside.compare.side import ComparedRow

WORKLOAD = re.compile(
    r"(?:model|arch|architecture|model_(?:name|type|arch)|model_name_or_path|base_model|backbone)|"
    r"(?:data|dataset|task)(?:_name|_path)?|(?:num_|n_)?(?:layers|parameters|params|hidden_layers|heads)|"
    r"hidden_size|vocab_size|d_model|ffn_hidden_size"
)
"""Settings that define the model or the data."""
BATCH = re.compile(
    r"batch size|(?:\w+_)?batch(?:_size)?|(?:\w+_)?gradient_accumulation(?:_steps)?|grad_accum|seq(?:uence)?_len\w*"
)
"""Settings that define the amount of work of a step."""
SCHEDULE = re.compile(
    r"planned steps|planned epochs|(?:\w+_)?(?:lr|learning_rate)(?:_\w+)?|(?:\w+_)?warmup(?:_\w+)?|"
    r"(?:num_|max_|total_)?(?:train_)?(?:steps|iters|epochs)"
)
"""Settings that define the learning-rate schedule."""
_PACE = re.compile(
    r"(?:median |measured )*step time|(?:elapsed )?time per step|throughput|(?:median )?(?:tokens|samples) per second"
)
_LEARNED = re.compile(r"loss|gradient norm")


def workload_differences(rows: Iterable[ComparedRow]) -> list[ComparedRow]:
    """The differences that show that the runs did different work: model, data or framework."""
    return _differences(rows, lambda row: row.label == "framework" or bool(WORKLOAD.fullmatch(row.label)))


def size_differences(rows: Iterable[ComparedRow]) -> list[ComparedRow]:
    """The differences in the number of GPUs, or in the amount of work of a step."""
    return _differences(rows, lambda row: row.label == "GPUs" or bool(BATCH.fullmatch(row.label)))


def with_causes(rows: Sequence[ComparedRow]) -> list[ComparedRow]:
    """The rows; each that differs gets the differences in setup that may explain it (``follows``)."""
    work_rows = size_differences(rows)
    batch_rows = [row for row in work_rows if row.label != "GPUs"]
    schedule_rows = _differences(rows, lambda row: bool(SCHEDULE.fullmatch(row.label)))
    return [
        replace(row, follows=_causes(row, work_rows, [*schedule_rows, *batch_rows])) if row.differs else row
        for row in rows
    ]


def _causes(row: ComparedRow, size: Sequence[ComparedRow], learning: Sequence[ComparedRow]) -> tuple[ComparedRow, ...]:
    """The differences in setup that may explain a row: ``size`` for its pace, ``learning`` for its loss."""
    if row.topic not in ("training", "metrics"):
        return ()
    if _PACE.match(row.label):
        causes = size
    elif row.topic == "training" and (row.label.startswith("learning rate") or _LEARNED.match(row.label)):
        causes = learning
    else:
        return ()
    return tuple(causes[:3])


def _differences(rows: Iterable[ComparedRow], predicate: Callable[[ComparedRow], bool]) -> list[ComparedRow]:
    return [
        row for row in rows if row.differs and row.a and row.b and row.topic in ("setup", "place") and predicate(row)
    ]
