"""Time series as sparklines: one line of block characters each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from trackside.query import Query
from trackside.show.document import CurveDoc
from trackside.wording import SCALED, label_phrase, word

NOT_FINITE = "\N{MULTIPLICATION SIGN}"
"""The mark of a value that is not finite."""
BARS = "\N{LOWER ONE EIGHTH BLOCK}\u2582\u2583\u2584\u2585\u2586\u2587\N{FULL BLOCK}"
MIN_COLUMNS = 15
"""Width of the narrowest sparkline."""


def curves(docs: Iterable[CurveDoc], encoding: str, width: int) -> list[RenderableType]:
    """A table with a row per series that varies: name, sparkline, lowest and highest value. Empty if the encoding lacks
    the block characters."""
    rows = [doc for doc in docs if len({value for value in doc.values if value is not None}) > 1]
    if not rows or not encoding.lower().startswith("utf"):
        return []
    names, ranges = [_name(doc) for doc in rows], [_value_range(doc) for doc in rows]
    columns = max(MIN_COLUMNS, width - max(map(len, names)) - max(map(len, ranges)) - 5)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(overflow="fold")
    grid.add_column(no_wrap=True, min_width=MIN_COLUMNS)
    grid.add_column()
    for doc, name, value_range in zip(rows, names, ranges, strict=True):
        grid.add_row(
            "",
            Text(name, style="dim"),
            Text(line(downsample(doc.values, columns), doc.unit)),
            Text(value_range, style="dim"),
        )
    return [grid]


def _name(doc: CurveDoc) -> str:
    growth = "growth of " if Query.parse(doc.query).rollup_how == "increase" else ""
    return (
        growth + doc.metric + label_phrase(dict(doc.labels)) + (f", median of {doc.series}" if doc.series > 1 else "")
    )


def _value_range(doc: CurveDoc) -> str:
    sampled = [value for value in doc.values if value is not None]
    finite = [value for value in sampled if math.isfinite(value)]
    means = " (means)" if Query.parse(doc.query).rollup_how == "avg" else ""
    not_finite = f"{NOT_FINITE} not finite" if len(finite) < len(sampled) else ""
    range_text = (
        f"{word(min(finite), doc.unit if doc.unit in SCALED else '')} to {word(max(finite), doc.unit)}{means}"
        if finite
        else ""
    )
    return ", ".join(filter(None, (range_text, not_finite)))


def downsample(values: Sequence[float | None], max_values: int) -> list[float | None]:
    """At most ``max_values`` values, each the mean of a bucket."""
    size = -(-len(values) // max_values)
    parts = [[v for v in values[start : start + size] if v is not None] for start in range(0, len(values), size)]
    return [sum(part) / len(part) if part else None for part in parts]


def line(values: Sequence[float | None], unit: str = "") -> str:
    """A bar per value, scaled from 0 (or the minimum, if negative) to the maximum, or to 1 for ratios. A blank means
    not sampled."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = min([0.0, *finite]), max([1.0 if unit == "ratio" else 0.0, *finite])
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_bar(value, low, scale) for value in values)


def _bar(value: float | None, low: float, scale: float) -> str:
    if value is None:
        return " "
    return BARS[round((value - low) * scale)] if math.isfinite(value) else NOT_FINITE
