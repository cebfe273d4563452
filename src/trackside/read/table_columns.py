"""Recognizes the time, label and metric columns of a table by their names.

Wide tables have one column per metric, named in any dialect or as in the catalog, optionally with labels as in a
query's legend. Long tables have one column of metric names and one of values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trackside.catalog.dialect import Translation, dialects, translate, with_further_labels
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
"""Columns that hold all labels of a row, as JSON or in Prometheus notation."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Column indices. Either ``metrics`` is filled (wide), or ``name`` and ``value`` are set (long)."""

    time: int
    labels: tuple[tuple[int, str], ...]
    """(column index, foreign label)"""
    metrics: tuple[tuple[int, str, Mapping[str, str]], ...] = ()
    """(column index, foreign name, labels in the column's heading)"""
    name: int | None = None
    value: int | None = None
    packed: int | None = None
    others: tuple[str, ...] = ()
    """Headings of columns that are neither time, label nor known metric."""

    @property
    def identifying_columns(self) -> tuple[int, ...]:
        """Indices of all columns that identify the series of a row."""
        extra = (index for index in (self.name, self.packed) if index is not None)
        return (*(index for index, _ in self.labels), *extra)


@cache
def _own_labels() -> Mapping[str, Label]:
    """The labels under Trackside's own names."""
    labels = next(dialect.labels for dialect in dialects() if dialect.id == "trackside")
    return {name: label for name, label in labels.items() if label.name == name}


@cache
def _label_names() -> frozenset[str]:
    """The labels of all dialects, in lower case."""
    return frozenset(label for dialect in dialects() for label in dialect.labels)


def translate_heading(name: str, labels: Mapping[str, str]) -> Translation | None:
    """Trackside's metric and labels. In a table, labels may have Trackside's names as well as the source's."""
    translation = translate(name, labels)
    return None if translation is None else with_further_labels(translation, labels, _own_labels(), override=False)


def columns_of(heading: Sequence[str]) -> TableColumns | None:
    """The columns that a heading names; None without a time column or without any possible metric."""
    names = [text.strip().lower() for text in heading]
    if len(set(names)) != len(names):
        return None
    index_by_name = {name: index for index, name in enumerate(names)}
    time = next((index_by_name[name] for name in TIMES if name in index_by_name), None)
    if time is None:
        return None
    value = next((index_by_name[name] for name in VALUES if name in index_by_name), None)
    name = (
        next((index_by_name[label] for label in NAMES if label in index_by_name), None) if value is not None else None
    )
    packed = next((index_by_name[label] for label in PACKED if label in index_by_name), None)
    used_columns = {time, value, name, packed}
    labels = tuple(
        (index, label) for index, label in enumerate(names) if index not in used_columns and label in _label_names()
    )
    if name is not None:
        return TableColumns(time, labels, (), name, value, packed)
    used_columns |= {index for index, _ in labels}
    metrics = tuple(
        metric
        for index in range(len(names))
        if index not in used_columns and (metric := _metric(index, heading[index]))
    )
    used_columns |= {index for index, *_ in metrics}
    others = tuple(heading[index].strip() for index in range(len(names)) if index not in used_columns)
    return TableColumns(time, labels, metrics, packed=packed, others=others) if metrics else None


def _metric(index: int, heading: str) -> tuple[int, str, Mapping[str, str]] | None:
    """Index, name and labels of a metric column; None for a column that is not a known metric."""
    heading = heading.strip()
    if translate(heading, {}) is not None:
        return index, heading, {}
    parsed = series_of(heading) if heading.endswith("}") else None
    return (index, *parsed) if parsed is not None and translate(*parsed) is not None else None


def series_numbers(
    measurements: Measurements, columns: TableColumns, row: Sequence[str], position: Position
) -> tuple[int, ...]:
    """The series numbers of a row: one per metric column, or that of the metric that the row names."""
    labels = {name: row[index] for index, name in columns.labels if row[index]}
    if columns.packed is not None:
        labels = {**unpack_labels(row[columns.packed]), **labels}
    if columns.name is not None:
        return (_series_number(measurements, row[columns.name], labels, position),)
    return tuple(
        _series_number(measurements, name, {**labels, **heading_labels}, position)
        for _, name, heading_labels in columns.metrics
    )


def _series_number(measurements: Measurements, name: str, labels: Mapping[str, str], position: Position) -> int:
    translation = translate_heading(name, labels)
    if translation is None:
        return measurements.series(name, labels, position.line)  # counted as unknown
    return measurements.add_translated(name, translation, position)


def unpack_labels(text: str) -> Mapping[str, str]:
    """The labels in one cell: a JSON object, ``{a="b"}`` or ``a=b,c=d``; empty for other text."""
    if text.startswith("{"):
        if (parsed := series_of(f"x{text}")) is not None:
            return parsed[1]
        try:
            parsed_json = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return {name: str(value) for name, value in parsed_json.items() if isinstance(value, (str, int))}
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): value.strip().strip('"') for name, separator, value in pairs if separator}
