"""Answers to queries (rows, series, or the reason why there is none), and citations of these answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.metrics import DESCRIPTIVE_LABELS, METRICS
from trackside.model import Event, Plane, Record, Scalar, Series, TimeRange
from trackside.query import Query, QueryError, Reducer, Row

SOURCE_UNANSWERED = "source_unanswered"
"""The kind of event that records a source that could not be queried."""
UNABLE_TO_CHECK = "unable to check: "
"""Prefix of the reason of a :class:`Missing` caused by a source that did not answer."""
NO_METRIC_INPUT = "no metric input was given"
"""The reason of a metric without an answer if no input could have it; any other reason means that some could."""


@dataclass(frozen=True, slots=True)
class Cite:
    """A reference that can be checked again.

    ``query`` gives ``value`` when run on the same inputs; None if only the location is known. ``where``: the location
    for a human reader.
    """

    plane: Plane
    store: str
    query: Query | None
    where: str
    value: Scalar
    unit: str = ""
    text: str = ""
    window: TimeRange | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A number or a name that a verdict may state: it cannot exist without its citations."""

    value: Scalar | tuple[Scalar, ...]
    cites: tuple[Cite, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.cites:
            raise ValueError(f"uncited value: {self.value!r}")

    @property
    def number(self) -> float:
        """The value as a number; TypeError for a name."""
        if isinstance(self.value, (int, float)):
            return float(self.value)
        raise TypeError(f"not a number: {self.value!r}")


@dataclass(frozen=True)
class Missing:
    """A fact or an answer that is unavailable: not measured, not given, or refused. It never means "none"."""

    reason: str
    source: str = field(default="", kw_only=True)
    """The source that did not answer, if that is the reason."""
    reasons: tuple[str, ...] = field(default=(), kw_only=True)
    """The single reasons, if ``reason`` joins several."""
    by_data: bool = field(default=True, kw_only=True)
    """Whether more data would help; not if the run itself gave nothing to judge."""


@dataclass(frozen=True)
class MissingAnswer(Missing):
    """A query without an answer."""

    query: Query


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows that answer a query, in time and file order. An empty frame proves that there are none only if
    ``covered`` is not empty.

    A frame knows its query and store, so that every value taken from it carries its citation.
    """

    query: Query
    store: str
    rows: tuple[Row, ...] = ()
    covered: tuple[Plane, ...] = ()
    """The planes that were read and could have such rows."""
    whole: tuple[Row, ...] | None = field(default=None, kw_only=True)
    """All rows of the query, if :meth:`filtered` selected some of them."""

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @property
    def events(self) -> tuple[Event, ...]:
        """The rows that are events."""
        return tuple(row for row in self.rows if isinstance(row, Event))

    @property
    def records(self) -> tuple[Record, ...]:
        """The rows that are records."""
        return tuple(row for row in self.rows if isinstance(row, Record))

    def where(self, **filters: Scalar) -> Frame:
        """The rows of the query of which these fields have these values, with a query of their own. Rows that
        :meth:`filtered` removed count again."""
        whole = self.rows if self.whole is None else self.whole
        rows = tuple(row for row in whole if all(row.get(name) == value for name, value in filters.items()))
        return replace(self, query=self.query.where(**filters), rows=rows, whole=None)

    def filtered(self, keep: Callable[[Row], bool]) -> Frame:
        """A frame with the rows that pass. No query has these rows alone: a value of :meth:`reduce` is still that of
        all rows of the query."""
        whole = self.rows if self.whole is None else self.whole
        return replace(self, rows=tuple(row for row in self.rows if keep(row)), whole=whole)

    def cite(self, row: Row, field: str) -> Cite:
        """Citation of one field of one row, by the row's position."""
        at = row.at
        query = Query(self.query.subject, self.query.kind).where(file=at.path, line=at.line, offset=at.offset)
        time = row.time if isinstance(row, Event) else None
        return Cite(
            plane=row.plane,
            store=self.store,
            query=query.reduce("first", field),
            where=str(at) if isinstance(row, Event) else f"{at} {field}",
            value=row.get(field),
            text=row.text,
            window=None if time is None else (time, time),
        )

    def value(self, row: Row, field: str, unit: str = "") -> Value:
        """One field of one row as a citable value."""
        return Value(row.get(field), (self.cite(row, field),), unit)

    def reduce(self, reducer: Reducer, field: str | None = None, unit: str = "") -> Value:
        """All rows of the *query* reduced to one citable value (also those removed by :meth:`filtered`)."""
        rows = self.rows if self.whole is None else self.whole
        value = reduce_rows(rows, reducer, field)
        plane: Plane = rows[0].plane if rows else (self.covered or self.query.planes)[0]
        query = self.query.reduce(reducer, field)
        where = str(rows[0].at) if rows else ", ".join(self.covered) or "inputs"
        return Value(value, (Cite(plane, self.store, query, where, value, unit),), unit)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The series that answer a metric query: one row per series, one column per window.

    A grid that is narrowed with :meth:`where`, :meth:`one` or :meth:`during` has the query of what remains, so that
    :meth:`value` always returns a citation that can be checked again.
    """

    query: Query
    store: str
    series: tuple[Series, ...]
    times: NDArray[np.float64]
    """Ends of the windows, POSIX seconds; shape (windows,)."""
    values: NDArray[np.float64]
    """Shape (series, windows), in the catalog's unit; NaN where nothing was sampled."""
    samples: int
    """Number of measurements behind the values."""
    step: float
    """Length of a window, seconds."""

    def __len__(self) -> int:
        return len(self.series)

    def __bool__(self) -> bool:
        return bool(self.series)

    @property
    def unit(self) -> str:
        """The catalog's unit."""
        return METRICS[self.query.kind].unit

    def labels(self, *names: str) -> list[tuple[str, ...]]:
        """These labels of every series; an empty string for a missing label."""
        return [tuple(series.get(name) or "" for name in names) for series in self.series]

    def where(self, **labels: str) -> Grid:
        """The series with these labels."""
        indices = [i for i, series in enumerate(self.series) if all(series.get(n) == v for n, v in labels.items())]
        return replace(self, query=self.query.where(**labels), series=tuple(self.series[i] for i in indices),
                       values=self.values[indices])  # fmt: skip

    def one(self, index: int) -> Grid:
        """One series, by its index."""
        named = {name: value for name, value in self.series[index].labels if name not in DESCRIPTIVE_LABELS}
        already = dict(self.query.filters)
        query = self.query.where(**{n: v for n, v in named.items() if already.get(n) != v})
        return replace(self, query=query, series=(self.series[index],), values=self.values[index : index + 1])

    def during(self, start: float, end: float) -> Grid:
        """The windows of this grid that end in ``(start, end]``.

        The query names the edges of these windows, so that running it again gives the same ones; if there are none, its
        span is empty.
        """
        selected = (self.times > start) & (self.times <= end)
        times = self.times[selected]
        known_times = times if len(times) else self.times[:1]
        edge = round(float(known_times[0]) - self.step, 3) if len(known_times) else 0.0
        query = replace(self.query, window=(edge, float(times[-1]) if len(times) else edge))
        return replace(self, query=query, times=times, values=self.values[:, selected])

    def value(self, reducer: Reducer, unit: str | None = None) -> Value:
        """All values reduced to one citable value; None if nothing was sampled."""
        value = reduce_grid(self, reducer)
        query = self.query.reduce(reducer)
        first = self.series[0] if self.series else None
        where = (
            "no series" if first is None else str(first.at) + (f" and {len(self) - 1} more" if len(self) > 1 else "")
        )
        window = (float(self.times[0]) - self.step, float(self.times[-1])) if len(self.times) else None
        counted = reducer == "count" or self.query.rollup_how == "count"
        unit = ("" if counted else self.unit) if unit is None else unit
        return Value(value, (Cite("metric", self.store, query, where, value, unit, window=window),), unit)


Answer = Frame | Grid | MissingAnswer


@dataclass(frozen=True)
class Evidence:
    """The answers to the queries that one fact declares, by name. Any other name is a programming error: KeyError."""

    answers: Mapping[str, Answer]

    def __getitem__(self, name: str) -> Frame:
        """The rows of a query. An empty frame may also mean that the query has no answer: before concluding anything
        from it, check :meth:`missing`, or name the query in the ``needs`` of the fact."""
        answer = self.answers[name]
        return answer if isinstance(answer, Frame) else Frame(answer.query, "none")

    def grid(self, name: str) -> Grid | None:
        """The grid of a metric query; None if it has no answer. A grid has at least one series."""
        answer = self.answers[name]
        return answer if isinstance(answer, Grid) else None

    def missing(self, name: str) -> MissingAnswer | None:
        """Why a query has no answer; None if it has one."""
        answer = self.answers[name]
        return answer if isinstance(answer, MissingAnswer) else None

    def has(self, name: str) -> bool:
        """Whether the query was answered, even if with no rows."""
        return self.missing(name) is None


def reduce_answer(answer: Frame | Grid, query: Query) -> Scalar:
    """The value of the query's reducer on the answer to its rows. Raises QueryError without a reducer."""
    if query.reducer is None:
        raise QueryError("the query gives many values, not one")
    if isinstance(answer, Grid):
        return reduce_grid(answer, query.reducer)
    return reduce_rows(answer.rows, query.reducer, query.reduced)


def derived(value: Scalar | tuple[Scalar, ...], *sources: Value, unit: str = "") -> Value:
    """A value computed from cited ones: it carries all their citations."""
    return Value(value, tuple(dict.fromkeys(cite for source in sources for cite in source.cites)), unit)


def reduce_rows(rows: Sequence[Row], reducer: Reducer, field: str | None) -> Scalar:
    """Apply a reducer to rows; shared by all stores. Rows without the field don't count."""
    if reducer == "count" and field is None:
        return len(rows)
    values = [value for row in rows if (value := row.get(field or "")) is not None]
    if reducer == "count":
        return len(values)
    if reducer == "distinct":
        return ",".join(sorted({str(value) for value in values}))
    if reducer in ("first", "last"):
        return (values[0] if reducer == "first" else values[-1]) if values else None
    if reducer not in ("min", "max"):
        raise QueryError(f"{reducer}() reduces metrics, not rows")
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not math.isnan(v)]
    if not numbers:
        return None
    return min(numbers) if reducer == "min" else max(numbers)


def reduce_grid(grid: Grid, reducer: Reducer) -> Scalar:
    """Apply a reducer to a metric's values, without NaN; first and last are those of the earliest and the latest window
    that has a value, in the first such series."""
    values = grid.values
    has_value = ~np.isnan(values)
    if reducer == "count":
        return int(has_value.sum())
    if not has_value.any():
        return None
    match reducer:
        case "first" | "last":
            columns = np.flatnonzero(has_value.any(axis=0))
            column = values[:, columns[0 if reducer == "first" else -1]]
            return float(column[~np.isnan(column)][0])
        case "min":
            return float(np.nanmin(values))
        case "max":
            return float(np.nanmax(values))
        case "avg":
            return float(np.nanmean(values))
        case "median":
            return float(np.nanmedian(values))
        case "sum":
            return float(np.nansum(values))
    raise QueryError(f"{reducer}() reduces rows, not metrics")


class Store(Protocol):
    """A store of evidence. Every store gives the same answer to the same query."""

    name: str

    def ask(self, query: Query) -> Answer:
        """Answer one query; Missing if no plane that could have it was read."""
        ...


@runtime_checkable
class BatchStore(Protocol):
    """A store that answers several queries in fewer passes than one each."""

    def ask_many(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """The answers, in the order of the queries."""
        ...

    def expect(self, queries: Iterable[Query]) -> None:
        """Announce later queries."""
        ...


def ask_many(store: Store, queries: Sequence[Query]) -> Sequence[Answer]:
    """The answers to several queries, in their order; in one pass if the store can."""
    return store.ask_many(queries) if isinstance(store, BatchStore) else [store.ask(query) for query in queries]
