"""Curves as lines of text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trackside.query import Query
from trackside.show.document import CurveDoc
from trackside.show.wording import SCALED, of_whom, word

BEYOND = "\N{MULTIPLICATION SIGN}"
"""What stands for a value that is not finite."""
BARS = "\N{LOWER ONE EIGHTH BLOCK}\u2582\u2583\u2584\u2585\u2586\u2587\N{FULL BLOCK}"


LEAST = 15
"""Columns of the narrowest curve."""


def curves(docs: Iterable[CurveDoc], encoding: str, width: int) -> list[RenderableType]:
    """A row each: whose it is, its course, between which values. None where the terminal lacks the characters."""
    rows = [doc for doc in docs if any(value is not None for value in doc.values)]
    if not rows or not encoding.lower().startswith("utf"):
        return []
    names, bounds = [_name(doc) for doc in rows], [_bounds(doc) for doc in rows]
    room = max(LEAST, width - max(map(len, names)) - max(map(len, bounds)) - 5)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True, min_width=LEAST)
    grid.add_column()
    for doc, name, ends in zip(rows, names, bounds, strict=True):
        grid.add_row(
            "", Text(name, style="dim"), Text(line(fewer(doc.values, room), doc.unit)), Text(ends, style="dim")
        )
    return [grid]


def _name(doc: CurveDoc) -> str:
    growth = "growth of " if Query.parse(doc.query).rollup_how == "increase" else ""
    return growth + doc.metric + of_whom(dict(doc.labels)) + (f", median of {doc.series}" if doc.series > 1 else "")


def _bounds(doc: CurveDoc) -> str:
    known = [value for value in doc.values if value is not None]
    finite = [value for value in known if math.isfinite(value)]
    beyond = f"{BEYOND} not finite" if len(finite) < len(known) else ""
    ends = (
        f"{word(min(finite), doc.unit if doc.unit in SCALED else '')} to {word(max(finite), doc.unit)}"
        if finite
        else ""
    )
    return ", ".join(filter(None, (ends, beyond)))


def fewer(values: Sequence[float | None], most: int) -> list[float | None]:
    """At most so many values: the mean of each stretch."""
    size = -(-len(values) // most)
    parts = [[v for v in values[start : start + size] if v is not None] for start in range(0, len(values), size)]
    return [sum(part) / len(part) if part else None for part in parts]


def line(values: Sequence[float | None], unit: str = "") -> str:
    """Bars from 0 (or the least, if that is less) to the most; ratios to 1. A blank where nothing was sampled."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min([0.0, *known]), max([1.0 if unit == "ratio" else 0.0, *known])
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_bar(value, low, scale) for value in values)


def _bar(value: float | None, low: float, scale: float) -> str:
    if value is None:
        return " "
    return BARS[round((value - low) * scale)] if math.isfinite(value) else BEYOND
