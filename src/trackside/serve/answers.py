"""What a question of :mod:`trackside.query` is answered with over HTTP: bounded, and null where nothing was sampled."""

from __future__ import annotations

import math

import msgspec

from trackside.evidence import Frame, Grid, MissingAnswer, Store, reduced
from trackside.model import Event, Scalar
from trackside.query import Query, QueryError, Row
from trackside.serve.problems import Problem
from trackside.show.document import MAX_TEXT_CHARS, Json, plain

MOST_WINDOWS = 10_000
MOST_CELLS = 500_000
"""Values of one grid."""
MOST_QUERY = 2_000
"""Characters of one question."""


class RowDoc(msgspec.Struct, frozen=True, kw_only=True):
    """An event or a record. ``time``: POSIX seconds, null where its input gives none."""

    kind: str
    plane: str
    path: str
    line: int
    offset: int
    time: float | None
    rank: int | None
    node: str | None
    role: str | None
    text: str
    fields: dict[str, Json | list[Json]]


class RowsDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="rows"):
    """The rows that answer a question, in time and file order; none is a real none. ``total`` counts all of them."""

    query: str
    total: int
    rows: list[RowDoc]


class SeriesDoc(msgspec.Struct, frozen=True, kw_only=True):
    """One curve; ``values`` are those of the windows that end at ``times``, null where nothing was sampled."""

    labels: dict[str, str]
    values: list[float | None]


class GridDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="grid"):
    """The curves that answer a question. ``query`` has its windows as numbers; ``samples`` counts what they are of."""

    query: str
    unit: str
    step_s: float
    samples: int
    times: list[float]
    """Ends of the windows, POSIX seconds."""
    series: list[SeriesDoc]


class ValueDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="value"):
    """The one value that a question with a reducer is answered with, as a citation holds it."""

    query: str
    value: Json
    unit: str


class MissingDoc(msgspec.Struct, frozen=True, kw_only=True, tag_field="answer", tag="missing"):
    """The question has no answer here: not measured, not given, or refused. That is never "none"."""

    query: str
    reason: str


AnswerDoc = RowsDoc | GridDoc | ValueDoc | MissingDoc


def parsed(text: str) -> Query:
    """A question that can be answered within bounds. Raises Problem."""
    try:
        query = Query.parse(text)
    except QueryError as error:
        raise Problem(422, _cut(str(error)), "docs/http-api.md describes the questions") from error
    if query.subject != "metric":
        return query
    whole = query.span is not None or None not in (query.window, query.step)
    if not whole:
        raise Problem(
            422, "a metric is asked for some time", "add .over('run', 'avg') or .during(START, END).rollup(STEP, 'avg')"
        )
    if query.window is not None and query.step is not None:
        start, end = query.window
        if end <= start or (end - start) / query.step > MOST_WINDOWS:
            raise Problem(422, f"{start!r} to {end!r} is not 1 to {MOST_WINDOWS:,} windows of {query.step:g} s",
                          "ask for a longer step, or less time")  # fmt: skip
    return query


def answered(store: Store, query: Query, limit: int) -> AnswerDoc:
    """A store's answer; of rows, the first ``limit``. Raises Problem where it is too large."""
    answer = store.ask(query.rows)
    if isinstance(answer, MissingAnswer):
        return MissingDoc(query=str(query), reason=answer.reason)
    if query.reducer is not None:
        try:
            value = reduced(answer, query)
        except QueryError as error:
            raise Problem(422, str(error), "events and records have other reducers than metrics") from error
        unit = answer.unit if isinstance(answer, Grid) and query.reducer != "count" else ""
        asked = answer.query.reduce(query.reducer, query.reduced)
        return ValueDoc(query=str(asked), value=plain(value), unit=unit)
    if isinstance(answer, Frame):
        return RowsDoc(query=str(answer.query), total=len(answer), rows=[_row(row) for row in answer.rows[:limit]])
    return _grid(answer)


def _grid(grid: Grid) -> GridDoc:
    if grid.values.size > MOST_CELLS:
        raise Problem(
            422,
            f"{len(grid):,} series of {len(grid.times):,} windows are more than {MOST_CELLS:,} values",
            "name a label with .where(node='...'), take them together with .by('node', how='median'), or a longer step",
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
                values=[value if math.isfinite(value) else None for value in grid.values[place].tolist()],
            )
            for place, series in enumerate(grid.series)
        ],
    )


def _row(row: Row) -> RowDoc:
    event = row if isinstance(row, Event) else None
    fields: dict[str, Json | list[Json]] = {}
    for name, value in row.fields.items():
        fields[name] = [_scalar(each) for each in value] if isinstance(value, tuple) else _scalar(value)
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


def _scalar(value: Scalar) -> Json:
    value = plain(value)
    if isinstance(value, int) and value.bit_length() > 63:
        return _cut(str(value))  # more than most readers of JSON hold
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "..."
