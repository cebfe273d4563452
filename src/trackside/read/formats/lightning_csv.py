"""Lightning's ``metrics.csv`` (CSVLogger): one row per logging step, with empty cells for values not logged."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trackside.logs.numbers import figure
from trackside.model import Position
from trackside.read.format import Format, InputSource, Match, Result, Sink, csv_cells
from trackside.read.formats.trainer_state import point, whole_number

FRAMEWORK = "lightning"
_NAME = re.compile(r"[\w./-]{1,120}")
_TRAIN_LOSS = (
    "train_loss_step",
    "train_loss",
    "train/loss_step",
    "train/loss",
    "loss_step",
    "loss",
    "train_loss_epoch",
)
_HELD_OUT = re.compile(r"(?:^|[_/.-])(?:val|valid|validation|test|eval)(?=[_/.-])")
_EPOCH_ENDED = re.compile(r"_epoch$")


def _header(source: InputSource) -> list[str]:
    names = source.text.split("\n", 1)[0].strip().split(",")
    return names if {"epoch", "step"} <= set(names) and all(map(_NAME.fullmatch, names)) else []


def _sniff(source: InputSource) -> Match | None:
    names = _header(source)
    return Match(0.85, "Lightning CSV metrics") if names and _loss_columns(names) else None


def _loss_columns(names: Sequence[str]) -> list[str]:
    """Columns with a training loss, best first."""
    usual = [name for name in _TRAIN_LOSS if name in names]
    others = [name for name in names if "loss" in name.lower() and not _HELD_OUT.search(name) and name not in usual]
    return usual + sorted(others, key=lambda name: (_EPOCH_ENDED.search(name) is not None, names.index(name)))


def _read(source: InputSource, sink: Sink) -> Result:
    names = _header(source)
    losses = _loss_columns(names)
    held_out = [name for name in names if "loss" in name.lower() and _HELD_OUT.search(name)]
    rates = [name for name in names if name in ("lr", "learning_rate") or name.startswith("lr-")]
    norms = [name for name in names if "grad_norm" in name]
    rows = bad_rows = 0
    for line, offset, text in source.lines():
        if line == 1 or not text.strip():
            continue
        cells = csv_cells(text)
        if len(cells) != len(names):
            bad_rows += 1
            continue
        row = dict(zip(names, cells, strict=True))
        position = Position(source.path, line, offset, len(text))
        step, epoch = whole_number(row["step"]), figure(row["epoch"])

        def first(columns: Sequence[str], row: dict[str, str] = row) -> float | None:
            return next((value_of_row for name in columns if (value_of_row := figure(row[name])) is not None), None)

        if (loss := first(losses)) is not None:
            lr, norm = first(rates), first(norms)
            fields = {"step": step, "epoch": epoch, "loss": loss, "lr": lr, "grad_norm": norm}
            sink.event(point(position, "progress", text, framework=FRAMEWORK, **fields))
            rows += 1
        for name in held_out:
            if (value := figure(row[name])) is not None:
                sink.event(
                    point(position, "evaluation", text, step=step, epoch=epoch, metric=name, value=value, loss=value)
                )
                rows += 1
    return Result(
        rows, "partial" if bad_rows else "read", f"{bad_rows} rows have the wrong number of cells" if bad_rows else ""
    )


FORMAT = Format("lightning-csv", "Lightning metrics.csv", "log", _sniff, _read)
