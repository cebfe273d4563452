"""Which columns of a table are times, labels and metrics, told by their names.

Wide: a column a metric, named in any dialect or in the catalogue's own words, maybe with labels as a query's legend
writes them. Long: one column of metric names and one of values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trackside.catalog.dialect import Translated, dialects, relabeled, translate
from trackside.catalog.exposition import series_of
from trackside.catalog.labels import Label
from trackside.model import Position
from trackside.read.measurements import Measurements

TIMES = (
    "timestamp", "time", "ts", "datetime", "date_time", "_time", "epoch", "unix_time", "unixtime",
    "timestamp_ms", "time_ms", "ts_ms", "timestamp_s", "time_s", "epoch_ms",
)  # fmt: skip
NAMES = ("metric", "metric_name", "__name__", "name")
VALUES = ("value", "val", "v", "metric_value")
PACKED = ("labels", "tags")
"""Columns that hold all labels of a row, as JSON or as Prometheus writes them."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Places of columns. Either ``metrics`` is filled, or ``name`` and ``value`` are set."""

    time: int
    labels: tuple[tuple[int, str], ...]
    """(place, foreign label)"""
    metrics: tuple[tuple[int, str, Mapping[str, str]], ...] = ()
    """(place, foreign name, labels that the column's heading gives)"""
    name: int | None = None
    value: int | None = None
    packed: int | None = None
    others: tuple[str, ...] = ()
    """Headings of columns that are neither time nor label nor a metric that is known."""

    @property
    def telling(self) -> tuple[int, ...]:
        """Places of all columns that tell which series a row is of."""
        more = (place for place in (self.name, self.packed) if place is not None)
        return (*(place for place, _ in self.labels), *more)


@cache
def _ours() -> Mapping[str, Label]:
    """The labels that go by our own names."""
    labels = next(dialect.labels for dialect in dialects() if dialect.id == "trackside")
    return {name: label for name, label in labels.items() if label.name == name}


@cache
def _label_names() -> frozenset[str]:
    """All labels that any dialect knows, in lower case."""
    return frozenset(label for dialect in dialects() for label in dialect.labels)


def translated(name: str, labels: Mapping[str, str]) -> Translated | None:
    """Our metric and labels; in a table, labels may go by our names beside the source's own."""
    known = translate(name, labels)
    return None if known is None else relabeled(known, labels, _ours(), override=False)


def columns_of(heading: Sequence[str]) -> Columns | None:
    """What a heading says; None where it names no time, or nothing that could be a metric."""
    names = [text.strip().lower() for text in heading]
    if len(set(names)) != len(names):
        return None
    place = {name: at for at, name in enumerate(names)}
    time = next((place[name] for name in TIMES if name in place), None)
    if time is None:
        return None
    value = next((place[name] for name in VALUES if name in place), None)
    name = next((place[each] for each in NAMES if each in place), None) if value is not None else None
    packed = next((place[each] for each in PACKED if each in place), None)
    taken = {time, value, name, packed}
    labels = tuple((at, each) for at, each in enumerate(names) if at not in taken and each in _label_names())
    if name is not None:
        return Columns(time, labels, (), name, value, packed)
    taken |= {at for at, _ in labels}
    metrics = tuple(found for at in range(len(names)) if at not in taken and (found := _metric(at, heading[at])))
    taken |= {at for at, *_ in metrics}
    others = tuple(heading[at].strip() for at in range(len(names)) if at not in taken)
    return Columns(time, labels, metrics, packed=packed, others=others) if metrics else None


def _metric(place: int, heading: str) -> tuple[int, str, Mapping[str, str]] | None:
    """A column of a metric, its heading maybe with labels."""
    heading = heading.strip()
    if translate(heading, {}) is not None:
        return place, heading, {}
    parsed = series_of(heading) if heading.endswith("}") else None
    return (place, *parsed) if parsed is not None and translate(*parsed) is not None else None


def numbers_of(found: Measurements, columns: Columns, row: Sequence[str], at: Position) -> tuple[int, ...]:
    """The numbers of a row's series: of each metric, or of the one that it names."""
    labels = {name: row[place] for place, name in columns.labels if row[place]}
    if columns.packed is not None:
        labels = {**unpacked(row[columns.packed]), **labels}
    if columns.name is not None:
        return (_entered(found, row[columns.name], labels, at),)
    return tuple(_entered(found, name, {**labels, **given}, at) for _, name, given in columns.metrics)


def _entered(found: Measurements, name: str, labels: Mapping[str, str], at: Position) -> int:
    known = translated(name, labels)
    if known is None:
        return found.series(name, labels, at.line)  # which counts it as unknown
    return found.enter(name, known, at)


def unpacked(text: str) -> Mapping[str, str]:
    """All labels of one cell: a JSON object, ``{a="b"}`` or ``a=b,c=d``; none from other text."""
    if text.startswith("{"):
        if (parsed := series_of(f"x{text}")) is not None:
            return parsed[1]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return {name: str(value) for name, value in found.items() if isinstance(value, (str, int))}
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): value.strip().strip('"') for name, mark, value in pairs if mark}
