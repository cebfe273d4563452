"""WHAT ANSWERS A QUESTION: rows, curves or a reason why not, and the citations that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.metrics import DESCRIPTIVE, METRICS
from trackside.model import Event, Plane, Record, Scalar, Series
from trackside.query import Query, QueryError, Reducer, Row

UNANSWERED = "source_unanswered"
"""The kind of event that says what could not be asked."""
UNABLE = "unable to check: "
"""Begins the reason of a :class:`Missing` that is due to what did not answer."""
NOT_GIVEN = "no metric input was given"
"""Why a metric has no answer where no plane could give one; any other reason says that some were given."""


@dataclass(frozen=True, slots=True)
class Cite:
    """One thing that can be asked again.

    ``query`` gives ``value`` when it is asked of the same inputs; None where only the place is known. ``where`` is
    where a person looks.
    """

    plane: Plane
    store: str
    query: Query | None
    where: str
    value: Scalar
    unit: str = ""
    text: str = ""
    window: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """A figure or a name that a verdict may state: it can't exist without its citations."""

    value: Scalar | tuple[Scalar, ...]
    cites: tuple[Cite, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        if not self.cites:
            raise ValueError(f"uncited value: {self.value!r}")

    @property
    def number(self) -> float:
        """The value of a figure; TypeError for a name."""
        if isinstance(self.value, (int, float)):
            return float(self.value)
        raise TypeError(f"no figure: {self.value!r}")


@dataclass(frozen=True)
class Missing:
    """A fact or an answer that can't be had: not measured, not given, or refused. Never "none"."""

    reason: str
    source: str = field(default="", kw_only=True)
    """What was asked and did not answer, if that is why."""
    reasons: tuple[str, ...] = field(default=(), kw_only=True)
    """The reasons that ``reason`` joins, if it is several."""


@dataclass(frozen=True)
class MissingAnswer(Missing):
    """A question that has no answer."""

    query: Query


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows that answer a query, in time and file order; an empty frame is a real "none".

    A frame knows its query and store, so that every value taken from it carries its citation.
    """

    query: Query
    store: str
    rows: tuple[Row, ...] = ()
    covered: tuple[Plane, ...] = ()
    """The planes that were read and could have shown such rows."""
    whole: tuple[Row, ...] | None = field(default=None, kw_only=True)
    """All rows of the query, where :meth:`where` left only some."""

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

    def where(self, keep: Callable[[Row], bool]) -> Frame:
        """A frame of the rows that pass; its query stays that of the whole."""
        whole = self.rows if self.whole is None else self.whole
        return replace(self, rows=tuple(row for row in self.rows if keep(row)), whole=whole)

    def cite(self, row: Row, field: str) -> Cite:
        """Citation of one field of one row, by the row's place."""
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
        """All rows of the *query* reduced to one citable value (not those left by :meth:`where`)."""
        rows = self.rows if self.whole is None else self.whole
        value = reduce_rows(rows, reducer, field)
        plane: Plane = rows[0].plane if rows else (self.covered or self.query.planes)[0]
        query = self.query.reduce(reducer, field)
        where = str(rows[0].at) if rows else ", ".join(self.covered) or "inputs"
        return Value(value, (Cite(plane, self.store, query, where, value, unit),), unit)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The curves that answer a metric query: one row a series, one column a window.

    A grid cut down with :meth:`where`, :meth:`one` or :meth:`during` knows the query of what is left, so that
    :meth:`value` is always a citation that can be asked again.
    """

    query: Query
    store: str
    series: tuple[Series, ...]
    times: NDArray[np.float64]
    """Ends of the windows, POSIX seconds; shape (windows,)."""
    values: NDArray[np.float64]
    """Shape (series, windows), in the catalogue's unit; NaN where nothing was sampled."""
    samples: int
    """Measurements behind them."""
    step: float
    """Length of a window, seconds."""

    def __len__(self) -> int:
        return len(self.series)

    def __bool__(self) -> bool:
        return bool(self.series)

    @property
    def unit(self) -> str:
        """The catalogue's unit."""
        return METRICS[self.query.kind].unit

    def labels(self, *names: str) -> list[tuple[str, ...]]:
        """These labels of every series; empty strings where it has none."""
        return [tuple(each.get(name) or "" for name in names) for each in self.series]

    def where(self, **labels: str) -> Grid:
        """The series with these labels."""
        kept = [i for i, each in enumerate(self.series) if all(each.get(n) == v for n, v in labels.items())]
        return replace(self, query=self.query.where(**labels), series=tuple(self.series[i] for i in kept),
                       values=self.values[kept])  # fmt: skip

    def one(self, index: int) -> Grid:
        """One series, by its place."""
        named = {name: value for name, value in self.series[index].labels if name not in DESCRIPTIVE}
        already = dict(self.query.filters)
        query = self.query.where(**{n: v for n, v in named.items() if already.get(n) != v})
        return replace(self, query=query, series=(self.series[index],), values=self.values[index : index + 1])

    def during(self, start: float, end: float) -> Grid:
        """The windows that end in ``(start, end]``, of those that the grid holds.

        Its query names the edges of those windows, so that asking it again gives no others; of none, an empty span.
        """
        kept = (self.times > start) & (self.times <= end)
        times = self.times[kept]
        whole = times if len(times) else self.times[:1]
        edge = round(float(whole[0]) - self.step, 3) if len(whole) else 0.0
        query = replace(self.query, window=(edge, float(times[-1]) if len(times) else edge))
        return replace(self, query=query, times=times, values=self.values[:, kept])

    def value(self, reducer: Reducer, unit: str | None = None) -> Value:
        """All of it reduced to one citable value; None where nothing was sampled."""
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
    """The answers to the questions that one fact declares, by name. Any other name is a programming error: KeyError."""

    answers: Mapping[str, Answer]

    def __getitem__(self, name: str) -> Frame:
        """The rows of a question; an empty frame if it has no answer (see :meth:`missing` before concluding)."""
        answer = self.answers[name]
        return answer if isinstance(answer, Frame) else Frame(answer.query, "none")

    def grid(self, name: str) -> Grid | None:
        """The curves of a metric question; None if it has no answer. A grid holds at least one series."""
        answer = self.answers[name]
        return answer if isinstance(answer, Grid) else None

    def missing(self, name: str) -> MissingAnswer | None:
        """Why a question has no answer; None if it has one."""
        answer = self.answers[name]
        return answer if isinstance(answer, MissingAnswer) else None

    def has(self, name: str) -> bool:
        """Whether the question was answered, even if with no rows."""
        return self.missing(name) is None


def reduced(answer: Frame | Grid, query: Query) -> Scalar:
    """One value, as the query's reducer takes it from the answer to its rows. Raises QueryError without a reducer."""
    if query.reducer is None:
        raise QueryError("the query gives many values, not one")
    if isinstance(answer, Grid):
        return reduce_grid(answer, query.reducer)
    return reduce_rows(answer.rows, query.reducer, query.reduced)


def derived(value: Scalar | tuple[Scalar, ...], *sources: Value, unit: str = "") -> Value:
    """A value worked out from cited ones: it carries all their citations."""
    return Value(value, tuple(dict.fromkeys(cite for source in sources for cite in source.cites)), unit)


def reduce_rows(rows: Sequence[Row], reducer: Reducer, field: str | None) -> Scalar:
    """The reducers, shared by every store that returns rows. Rows without the field don't count."""
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
    """The reducers of metrics, over all cells that hold a value; first and last are those of the earliest and the
    latest window that holds any, in the first series that does."""
    values = grid.values
    held = ~np.isnan(values)
    if reducer == "count":
        return int(held.sum())
    if not held.any():
        return None
    match reducer:
        case "first" | "last":
            columns = np.flatnonzero(held.any(axis=0))
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
    """Where evidence is kept. Any store gives the same answer to the same question."""

    name: str

    def ask(self, query: Query) -> Answer:
        """Answer one query; Missing where no plane that could show it was read."""
        ...


@runtime_checkable
class BatchStore(Protocol):
    """A store that answers several questions in fewer passes than one each."""

    def ask_many(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """The answers, in the order of asking."""
        ...

    def expect(self, queries: Iterable[Query]) -> None:
        """Announce questions that will be asked later."""
        ...


def ask_many(store: Store, queries: Sequence[Query]) -> Sequence[Answer]:
    """The answers to several queries, in their order; together where the store can."""
    return store.ask_many(queries) if isinstance(store, BatchStore) else [store.ask(query) for query in queries]
