"""What follows from how two runs were set up: whether they can be compared at all, and which differences a different
setup brings along. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from trackside.compare.side import Row

UNNAMED = "custom"
"""What a log of no known framework is called: two such logs, or one and a known one, may be of the same."""
WORKLOAD = re.compile(
    r"(?:model|arch|architecture|model_(?:name|type|arch)|model_name_or_path|base_model|backbone)|"
    r"(?:data|dataset|task)(?:_name|_path)?|(?:num_|n_)?(?:layers|parameters|params|hidden_layers|heads)|"
    r"hidden_size|vocab_size|d_model|ffn_hidden_size"
)
"""Settings that say what was trained."""
BATCH = re.compile(
    r"batch size|(?:\w+_)?batch(?:_size)?|(?:\w+_)?gradient_accumulation(?:_steps)?|grad_accum|seq(?:uence)?_len\w*"
)
"""Settings that say how much work a step is."""
SCHEDULE = re.compile(
    r"steps planned|epochs planned|(?:\w+_)?(?:lr|learning_rate)(?:_\w+)?|(?:\w+_)?warmup(?:_\w+)?|"
    r"(?:num_|max_|total_)?(?:train_)?(?:steps|iters|epochs)"
)
"""Settings that the learning rate goes by."""
_PACE = re.compile(r"time of a step|throughput|time held for each step|(?:tokens|samples) a second")
_LEARNED = re.compile(r"loss|gradient norm")


def unlike(rows: Iterable[Row]) -> list[Row]:
    """What tells that the two did not do the same work."""
    return _differing(rows, lambda row: bool(WORKLOAD.fullmatch(row.label)) or _frameworks(row))


def sizes(rows: Iterable[Row]) -> list[Row]:
    """What makes a step of one another amount of work, or done by another number of GPUs."""
    return _differing(rows, lambda row: row.label == "GPUs" or bool(BATCH.fullmatch(row.label)))


def following(rows: Sequence[Row]) -> list[Row]:
    """The rows, each with the settings that it may follow from."""
    size = sizes(rows)
    batch = [row for row in size if row.label != "GPUs"]
    rate = _differing(rows, lambda row: bool(SCHEDULE.fullmatch(row.label)))
    return [replace(row, follows=_because(row, size, [*rate, *batch])) if row.differs else row for row in rows]


def _because(row: Row, size: Sequence[Row], learning: Sequence[Row]) -> tuple[Row, ...]:
    if row.topic not in ("training", "metrics"):
        return ()
    if _PACE.match(row.label):
        causes = size
    elif row.topic == "training" and (row.label.startswith("learning rate") or _LEARNED.match(row.label)):
        causes = learning
    else:
        return ()
    return tuple(causes[:3])


def _frameworks(row: Row) -> bool:
    names = [value.value for value in (row.a, row.b) if value is not None]
    return row.label == "framework" and UNNAMED not in names


def _differing(rows: Iterable[Row], chosen: Callable[[Row], bool]) -> list[Row]:
    return [row for row in rows if row.differs and row.a and row.b and row.topic in ("setup", "place") and chosen(row)]
