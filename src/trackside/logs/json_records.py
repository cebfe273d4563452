"""JSON objects with the figures of a step or an epoch, one a line: ``{"step": 1, "loss": 2.0}``."""

from __future__ import annotations

import json
from collections.abc import Iterator

from trackside.logs.figures import LineFigures
from trackside.logs.line import Line
from trackside.logs.line_positions import LinePosition
from trackside.logs.loss_points import loss_point
from trackside.logs.numbers import field_meaning, figure, number
from trackside.model import Event


def json_points(line: Line) -> Iterator[Event]:
    """The logged step of a line that is one object, or that ends in one."""
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
    position = LinePosition(figures.whole_value("step"), figures.epoch(), total=figures.whole_value("total_steps"))
    is_record = position.is_known or ("lr" in figures.values and figures.precedences.get("loss", 0) > 0)
    if "loss" in figures.values and is_record:
        yield loss_point(line, figures, position)
