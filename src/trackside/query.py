"""Queries for evidence: a closed algebra and its text form.

    events(kind)[.where(field=value, ...)]
    record(kind)[.where(field=value, ...)]
    metric(name)[.where(label=value, ...)].during(start, end).rollup(step, how)[.by(labels, how=...)]

followed, to reduce the answer to one value that can be cited, by one of ``.count()``, ``.first(field)``,
``.last(field)``, ``.min(field)``, ``.max(field)``, ``.distinct(field)`` for rows, or of ``.count()``, ``.first()``,
``.last()``, ``.min()``, ``.max()``, ``.avg()``, ``.median()``, ``.sum()`` for metrics. ``str(query)`` is the text form
and ``Query.parse`` reads it back; a citation holds that text, so that anybody can run it again.

A fact requests a metric ``.over("run", how)``: the store knows the run's window and its sample interval, and
answers with a grid whose query has both as numbers. Windows are ``(t - step, t]`` with t a multiple of step.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from trackside.catalog.events import EVENTS
from trackside.catalog.metrics import METRICS
from trackside.catalog.records import RECORDS
from trackside.errors import UsageError
from trackside.model import Event, Plane, Record, Scalar, TimeRange

Row = Event | Record
Reducer = Literal["count", "first", "last", "min", "max", "distinct", "avg", "median", "sum"]
REDUCERS: tuple[Reducer, ...] = ("count", "first", "last", "min", "max", "distinct", "avg", "median", "sum")
Span = Literal["run", "tail", "around"]
"""Part of a run. run: from start to end, in at most about 1,500 windows. tail: its last half hour at the sample
interval. around: the run and ten minutes before and after."""
SPANS: tuple[Span, ...] = ("run", "tail", "around")
Rollup = Literal["avg", "min", "max", "sum", "count", "last", "increase", "onset"]
ROLLUPS: tuple[Rollup, ...] = ("avg", "min", "max", "sum", "count", "last", "increase", "onset")
"""increase: growth of a counter since the previous window, a restart at 0 counted as growth from 0. onset: for a sticky
gauge or flags, the value in windows where it changed, else no value."""
Aggregate = Literal["avg", "min", "max", "sum", "median"]
AGGREGATES: tuple[Aggregate, ...] = ("avg", "min", "max", "sum", "median")


MAX_QUERY_WINDOWS = 1_000_000
"""Windows in one query."""
_MIN_STEP_S, _MAX_TIME_S = 0.001, 2.0**53 / 1000
"""Times are stored in milliseconds: the shortest step, and the latest time that a float represents exactly."""


class QueryError(UsageError, ValueError):
    """The text is not a query, or names a kind that is not in the catalog."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query. Build it with :func:`events`, :func:`record` or :func:`metric`."""

    subject: Literal["events", "record", "metric"]
    kind: str
    filters: tuple[tuple[str, Scalar], ...] = ()
    step: float | None = None
    rollup_how: Rollup | None = None
    group: tuple[str, ...] = ()
    group_how: Aggregate | None = None
    reducer: Reducer | None = None
    reduced: str | None = None
    span: Span | None = None
    window: TimeRange | None = None

    def where(self, **filters: Scalar) -> Query:
        """Keep rows whose fields, or series whose labels, equal these values."""
        added = tuple(pair for pair in filters.items() if pair not in self.filters)
        return _check(replace(self, filters=self.filters + added))

    def over(self, span: Span, how: Rollup) -> Query:
        """For metrics: a part of the run, in windows that the store chooses, each reduced to one value."""
        return _check(replace(self, span=span, rollup_how=how))

    def during(self, start: float, end: float) -> Query:
        """For metrics: the windows that end in ``(start, end]``, POSIX seconds."""
        return _check(replace(self, window=(_number(start), _number(end))))

    def rollup(self, step: float, how: Rollup) -> Query:
        """For metrics: windows of ``step`` seconds, each reduced to one value."""
        return _check(replace(self, step=_number(step), rollup_how=how))

    def by(self, *labels: str, how: Aggregate) -> Query:
        """For metrics: aggregate over all labels but these."""
        return _check(replace(self, group=labels, group_how=how))

    def reduce(self, reducer: Reducer, field: str | None = None) -> Query:
        """Reduce the rows to one value."""
        return _check(replace(self, reducer=reducer, reduced=field))

    @property
    def rows(self) -> Query:
        """This query without its reducer."""
        return replace(self, reducer=None, reduced=None)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes that may answer."""
        if self.subject == "events":
            return EVENTS[self.kind].planes
        if self.subject == "record":
            return (RECORDS[self.kind].plane,)
        return ("metric",)

    def __str__(self) -> str:
        text = f"{self.subject}({self.kind})"
        filter_texts = [f"{name}={value!r}" for name, value in self.filters]
        if len(dict(self.filters)) < len(filter_texts):  # two values for one field: no row has both
            text += "".join(f".where({filter_text})" for filter_text in filter_texts)
        elif filter_texts:
            text += ".where(" + ", ".join(filter_texts) + ")"
        if self.window is not None:
            text += f".during({self.window[0]!r}, {self.window[1]!r})"
        if self.span is not None:
            text += f".over({self.span!r}, {self.rollup_how!r})"
        elif self.rollup_how is not None:
            text += f".rollup({self.step!r}, {self.rollup_how!r})"
        if self.group_how is not None:
            text += ".by(" + ", ".join([*map(repr, self.group), f"how={self.group_how!r}"]) + ")"
        if self.reducer is not None:
            text += f".{self.reducer}({self.reduced or ''})"
        return text

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read the text form back. Raises QueryError; nothing in the text is executed."""
        head = re.match(r"(events|record|metric)\(([\w:]+)\)", text)
        if head is None:
            raise QueryError(f"not a query: {text!r}; expected events(KIND), record(KIND) or metric(NAME)")
        query = _check(cls(head[1], head[2]))  # type: ignore[arg-type]
        rest = text[head.end() :]
        while rest:
            call = _CALL.match(rest)
            if call is None:
                raise QueryError(f"cannot read {rest!r} in query {text!r}")
            query = _apply(query, call[1], call[2])
            rest = rest[call.end() :]
        return query


_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_CALL = re.compile(rf"\.(\w+)\(((?:{_STRING}|[^()'\"])*)\)", re.DOTALL)


def _apply(query: Query, name: str, arguments: str) -> Query:
    if name in REDUCERS:
        if not re.fullmatch(r"\w*", arguments):
            raise QueryError(f"{name}() takes a field name, not {arguments!r}")
        return query.reduce(name, arguments or None)
    try:
        call = ast.parse(f"f({arguments})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = [ast.literal_eval(node) for node in call.args]
        named = {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
        assert len(named) == len(call.keywords)
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError) as error:
        raise QueryError(f"cannot read the arguments of .{name}({arguments})") from error
    if not all(_plain(value) for value in (*values, *named.values())):
        raise QueryError(f"cannot read the arguments of .{name}({arguments}): expected strings and finite numbers")
    if name == "where" and not values and "" not in named:
        return query.where(**named)
    if name in ("rollup", "during", "over") and len(values) == 2 and not named:
        step: Callable[..., Query] = getattr(query, name)
        return step(*values)
    if name == "by" and set(named) == {"how"} and named["how"] is not None:
        return query.by(*values, how=named["how"])
    raise QueryError(f"unknown query step .{name}({arguments})")


def _check(query: Query) -> Query:
    kinds = {"events": EVENTS, "record": RECORDS, "metric": METRICS}[query.subject]
    if query.kind not in kinds:
        subject = {"events": "kind of event", "record": "kind of record", "metric": "metric"}[query.subject]
        raise QueryError(f"unknown {subject} {query.kind!r}; known: {', '.join(sorted(kinds))}")
    if query.rollup_how not in ROLLUPS and (query.rollup_how is not None or query.span or query.step):
        raise QueryError(f"unknown rollup {query.rollup_how!r}; known: {', '.join(ROLLUPS)}")
    if query.span is not None and query.span not in SPANS:
        raise QueryError(f"unknown span {query.span!r}; known: {', '.join(SPANS)}")
    if query.group_how not in AGGREGATES and (query.group_how is not None or query.group):
        raise QueryError(f"unknown aggregate {query.group_how!r}; known: {', '.join(AGGREGATES)}")
    for name, value in query.filters:
        if not _plain(value):
            raise QueryError(f"{name} must be compared with a string or a finite number, not with this {_type(value)}")
        if query.subject == "metric" and not isinstance(value, str):
            raise QueryError(f"the label {name} must be compared with a string, not with this {_type(value)}")
    if query.subject != "metric":
        if any(part is not None for part in (query.window, query.span, query.rollup_how, query.group_how)):
            raise QueryError(f"during, rollup, over and by are for metrics, not for {query.subject}")
        return query
    if query.reduced is not None:
        raise QueryError(f"{query.reducer}() of a metric takes no field: {query.reduced!r}")
    if not all(isinstance(label, str) for label in query.group):
        raise QueryError("labels to group by must be strings")
    if query.span is not None and (query.window is not None or query.step is not None):
        raise QueryError("over() sets the windows, so during() and rollup() cannot be used with it")
    _check_windows(query)
    return query


def _plain(value: object) -> bool:
    """Whether the value is a scalar; a number must survive being written and read back."""
    if isinstance(value, int):
        return value.bit_length() <= 64
    return value is None or isinstance(value, str) or (isinstance(value, float) and math.isfinite(value))


def _type(value: object) -> str:
    return type(value).__name__


def _check_windows(query: Query) -> None:
    start, end = query.window or (0.0, 0.0)
    if not (abs(start) <= _MAX_TIME_S and abs(end) <= _MAX_TIME_S):
        raise QueryError(f"invalid time range: {start!r} to {end!r}")
    if query.step is None:
        return
    if not _MIN_STEP_S <= query.step <= _MAX_TIME_S:
        raise QueryError(f"a step must be finite and at least a millisecond, not {query.step!r}")
    if (end - start) / query.step > MAX_QUERY_WINDOWS:
        raise QueryError(f"more than {MAX_QUERY_WINDOWS:,} windows of {query.step:g} s between {start!r} and {end!r}")


def _number(value: object) -> float:
    """The value as a float; QueryError unless it is a finite number."""
    if isinstance(value, (int, float)) and _plain(value):
        return float(value)
    raise QueryError(f"expected a finite number of seconds, not this {_type(value)}")


def events(kind: str) -> Query:
    """A query for events of a kind in :data:`trackside.catalog.events.EVENTS`."""
    return _check(Query("events", kind))


def record(kind: str) -> Query:
    """A query for records of a kind in :data:`trackside.catalog.records.RECORDS`."""
    return _check(Query("record", kind))


def metric(name: str) -> Query:
    """A query for a metric in :data:`trackside.catalog.metrics.METRICS`."""
    return _check(Query("metric", name))
