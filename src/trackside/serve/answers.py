"""HTTP answers to queries of :mod:`trackside.query`: of bounded size, and null where nothing was sampled."""

from __future__ import annotations

import math

import msgspec

from trackside.evidence import Frame, Grid, MissingAnswer, Store, reduce_answer
from trackside.model import Event, Scalar
from trackside.query import Query, QueryError, Row
from trackside.serve.problems import HttpProblem
from trackside.show.document import MAX_TEXT_CHARS, JsonScalar, plain

MAX_WINDOWS = 10_000
MAX_CELLS = 500_000
"""Values in one grid."""
MAX_QUERY_CHARS = 2_000
"""Characters in one query."""


class RowDoc(msgspec.Struct, frozen=True, kw_only=True):
    """An event or a record."""

    kind: str
    """Kind of the event or record."""
    plane: str
    """Kind of data: log, metric, scheduler, kernel, collective or trace."""
    path: str
    """The input that holds it."""
    line: int
    """Line in the input, from 1; 0 if it has no lines."""
    offset: int
    """Byte offset in the input."""
    time: float | None
    """POSIX seconds; null if the input shows no time."""
    rank: int | None
    """Rank that printed it; null if not known."""
    node: str | None
    """Node that it comes from; null if not known."""
    role: str | None
    """Role of a log line: root, cascade, confirmation, teardown, advice or fact; null for a record."""
    text: str
    """The line or record as text, up to 1,000 characters."""
    fields: dict[str, JsonScalar | list[JsonScalar]]
    """Its fields by name."""


class RowsDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="rows"):
    """The rows that match a query, in time and file order; an empty list means none."""

    query: str
    """The query that was answered."""
    total: int
    """Number of rows that match."""
    rows: list[RowDoc]
    """The first rows, as many as ``limit`` allows."""


class SeriesDoc(msgspec.Struct, frozen=True, kw_only=True):
    """One series."""

    labels: dict[str, str]
    """Labels of the series."""
    values: list[float | None]
    """One value for each of ``times``; null where nothing was sampled."""


class GridDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="grid"):
    """The series that match a query."""

    query: str
    """The query that was answered, with its time range and step as numbers."""
    unit: str
    """Unit of the values."""
    step_s: float
    """Length of a window, seconds."""
    samples: int
    """Number of measurements in all windows."""
    times: list[float]
    """Ends of the windows, POSIX seconds."""
    series: list[SeriesDoc]
    """The series that match."""


class ValueDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="value"):
    """The value of a query with a reducer, as a citation holds it."""

    query: str
    """The query that was answered."""
    value: JsonScalar
    """The value."""
    unit: str
    """Unit of the value; empty if it has none."""


class MissingDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="missing"):
    """The query has no answer: not measured, not given, or refused. That never means "none"."""

    query: str
    """The query that has no answer."""
    reason: str
    """Why: not measured, not given, or refused."""


AnswerDoc = RowsDoc | GridDoc | ValueDoc | MissingDoc


def parse_query(text: str) -> Query:
    """A query that can be answered within the limits. Raises HttpProblem."""
    try:
        query = Query.parse(text)
    except QueryError as error:
        raise HttpProblem(422, _cut(str(error)), "docs/http-api.md describes queries") from error
    if query.subject != "metric":
        return query
    has_time_range = query.span is not None or None not in (query.window, query.step)
    if not has_time_range:
        raise HttpProblem(
            422,
            "a metric query needs a time range",
            "add .over('run', 'avg') or .during(START, END).rollup(STEP, 'avg')",
        )
    if query.window is not None and query.step is not None:
        start, end = query.window
        if end <= start or (end - start) / query.step > MAX_WINDOWS:
            raise HttpProblem(422, f"{start!r} to {end!r} is not 1 to {MAX_WINDOWS:,} windows of {query.step:g} s",
                          "use a longer step, or a shorter time range")  # fmt: skip
    return query


def answer_query(store: Store, query: Query, limit: int) -> AnswerDoc:
    """A store's answer; at most ``limit`` rows. Raises HttpProblem if it is too large."""
    answer = store.ask(query.rows)
    if isinstance(answer, MissingAnswer):
        return MissingDoc(query=str(query), reason=answer.reason)
    if query.reducer is not None:
        try:
            value = reduce_answer(answer, query)
        except QueryError as error:
            raise HttpProblem(422, str(error), "rows and metrics have different reducers") from error
        unit = answer.unit if isinstance(answer, Grid) and query.reducer != "count" else ""
        resolved_query = answer.query.reduce(query.reducer, query.reduced)
        return ValueDoc(query=str(resolved_query), value=plain(value), unit=unit)
    if isinstance(answer, Frame):
        return RowsDoc(query=str(answer.query), total=len(answer), rows=[_row(row) for row in answer.rows[:limit]])
    return _grid(answer)


def _grid(grid: Grid) -> GridDoc:
    if grid.values.size > MAX_CELLS:
        raise HttpProblem(
            422,
            f"{len(grid):,} series of {len(grid.times):,} windows are more than {MAX_CELLS:,} values",
            "select a label with .where(node='...'), aggregate with .by('node', how='median'), or use a longer step",
        )
    return GridDoc(
        query=str(grid.query),
        unit=grid.unit,
        step_s=grid.step,
        samples=grid.samples,
        times=grid.times.tolist(),
        series=[
            SeriesDoc(
                labels=dict(series.labels),
                values=[value if math.isfinite(value) else None for value in grid.values[index].tolist()],
            )
            for index, series in enumerate(grid.series)
        ],
    )


def _row(row: Row) -> RowDoc:
    event = row if isinstance(row, Event) else None
    fields: dict[str, JsonScalar | list[JsonScalar]] = {}
    for name, value in row.fields.items():
        fields[name] = [_scalar(item) for item in value] if isinstance(value, tuple) else _scalar(value)
    return RowDoc(
        kind=row.kind,
        plane=row.plane,
        path=row.at.path,
        line=row.at.line,
        offset=row.at.offset,
        time=None if event is None or event.time is None or not math.isfinite(event.time) else event.time,
        rank=None if event is None else event.rank,
        node=None if event is None else event.node,
        role=None if event is None else event.role.value,
        text=_cut(row.text),
        fields=fields,
    )


def _scalar(value: Scalar) -> JsonScalar:
    value = plain(value)
    if isinstance(value, int) and value.bit_length() > 63:
        return _cut(str(value))  # larger than most JSON parsers support
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "..."
