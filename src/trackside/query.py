"""HOW IS EVIDENCE ASKED FOR: a closed algebra, its text form, the answers, and the Store protocol.

    events(kind)[.where(field=value, ...)]
    record(kind)[.where(field=value, ...)]
    metric(name)[.where(...)].rollup(step, how)[.by(labels, how)]

and, to reduce rows to one value that can be cited, one of ``.count()``, ``.first(field)``, ``.last(field)``,
``.min(field)``, ``.max(field)``, ``.distinct(field)``. ``str(query)`` is the text form and
``Query.parse`` reads it back; a citation holds that text, so that anybody can ask again.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from trackside.catalog.events import EVENTS
from trackside.catalog.records import RECORDS
from trackside.model import Cite, Event, Plane, Record, Scalar, Value

Row = Event | Record
Reducer = Literal["count", "first", "last", "min", "max", "distinct"]
REDUCERS: tuple[Reducer, ...] = ("count", "first", "last", "min", "max", "distinct")
Window = tuple[float, float]


class QueryError(ValueError):
    """The text is no query, or names a kind that the catalogue doesn't hold."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question. Build it with :func:`events`, :func:`record` or :func:`metric`."""

    subject: Literal["events", "record", "metric"]
    kind: str
    filters: tuple[tuple[str, Scalar], ...] = ()
    step: float | None = None
    rollup_how: str | None = None
    group: tuple[str, ...] = ()
    group_how: str | None = None
    reducer: Reducer | None = None
    reduced: str | None = None

    def where(self, **filters: Scalar) -> Query:
        """Keep rows whose fields equal these values."""
        return replace(self, filters=self.filters + tuple(filters.items()))

    def rollup(self, step: float, how: str) -> Query:
        """For metrics: windows of ``step`` seconds, reduced by avg, min, max, sum, count, last or stddev."""
        return replace(self, step=step, rollup_how=how)

    def by(self, *labels: str, how: str) -> Query:
        """For metrics: aggregate over all labels but these."""
        return replace(self, group=labels, group_how=how)

    def reduce(self, reducer: Reducer, field: str | None = None) -> Query:
        """Reduce the rows to one value."""
        return replace(self, reducer=reducer, reduced=field)

    @property
    def rows(self) -> Query:
        """The same question without its reducer."""
        return replace(self, reducer=None, reduced=None)

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The planes that could answer."""
        if self.subject == "events":
            return EVENTS[self.kind].planes
        if self.subject == "record":
            return (RECORDS[self.kind].plane,)
        return ("metric",)

    def __str__(self) -> str:
        text = f"{self.subject}({self.kind})"
        if self.filters:
            text += ".where(" + ", ".join(f"{name}={value!r}" for name, value in self.filters) + ")"
        if self.rollup_how is not None:
            text += f".rollup({self.step!r}, {self.rollup_how!r})"
        if self.group_how is not None:
            text += ".by(" + ", ".join([*map(repr, self.group), f"how={self.group_how!r}"]) + ")"
        if self.reducer is not None:
            text += f".{self.reducer}({self.reduced or ''})"
        return text

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read the text form back. Raises QueryError; nothing in the text is ever executed."""
        head = re.match(r"(events|record|metric)\(([\w:]+)\)", text)
        if head is None:
            raise QueryError(f"not a query: {text!r}; expected events(KIND), record(KIND) or metric(NAME)")
        query = _checked(cls(head[1], head[2]))  # type: ignore[arg-type]
        rest = text[head.end() :]
        while rest:
            call = _CALL.match(rest)
            if call is None:
                raise QueryError(f"can't read {rest!r} in query {text!r}")
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
    except (SyntaxError, ValueError, AssertionError, RecursionError, MemoryError) as error:
        raise QueryError(f"can't read the arguments of .{name}({arguments})") from error
    if name == "where" and not values:
        return query.where(**named)
    if name == "rollup" and len(values) == 2 and not named:
        return query.rollup(*values)
    if name == "by" and set(named) == {"how"}:
        return query.by(*values, how=named["how"])
    raise QueryError(f"no such step in a query: .{name}({arguments})")


def _checked(query: Query) -> Query:
    known = {"events": EVENTS, "record": RECORDS}.get(query.subject)
    if known is not None and query.kind not in known:
        raise QueryError(f"no kind {query.kind!r} of {query.subject}; known: {', '.join(sorted(known))}")
    return query


def events(kind: str) -> Query:
    """Ask for events of a kind in :data:`trackside.catalog.events.EVENTS`."""
    return _checked(Query("events", kind))


def record(kind: str) -> Query:
    """Ask for records of a kind in :data:`trackside.catalog.records.RECORDS`."""
    return _checked(Query("record", kind))


def metric(name: str) -> Query:
    """Ask for a metric by our name."""
    return Query("metric", name)


@dataclass(frozen=True, slots=True)
class Missing:
    """The question could not be answered: not measured, not given, or refused. Never "none"."""

    query: Query
    reason: str


@dataclass(frozen=True, slots=True)
class Frame:
    """The rows that answer a query, in time and file order; an empty frame is a real "none".

    A frame knows its query and store, so that every value taken from it carries its citation.
    """

    query: Query
    store: str
    rows: tuple[Row, ...] = ()
    window: Window | None = None
    covered: tuple[Plane, ...] = ()
    """The planes that were read and could have shown such rows."""

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
        return replace(self, rows=tuple(row for row in self.rows if keep(row)))

    def cite(self, row: Row, field: str) -> Cite:
        """Citation of one field of one row, by the row's place."""
        at = row.at
        query = Query(self.query.subject, self.query.kind).where(file=at.path, line=at.line, offset=at.offset)
        time = row.time if isinstance(row, Event) else None
        return Cite(
            plane=row.plane,
            store=self.store,
            query=str(query.reduce("first", field)),
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
        value = reduce_rows(self.rows, reducer, field)
        plane: Plane = self.rows[0].plane if self.rows else (self.covered or self.query.planes)[0]
        query = self.query.reduce(reducer, field)
        where = str(self.rows[0].at) if self.rows else ", ".join(self.covered) or "inputs"
        return Value(value, (Cite(plane, self.store, str(query), where, value, unit, window=self.window),), unit)


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
    numbers = [float(v) for v in values if isinstance(v, (int, float)) and not math.isnan(v)]
    if not numbers:
        return None
    return min(numbers) if reducer == "min" else max(numbers)


class Store(Protocol):
    """Where evidence is kept. Any store gives the same answer to the same question."""

    name: str

    def ask(self, query: Query, window: Window | None = None) -> Frame | Missing:
        """Answer one query; Missing where no plane that could show it was read."""
        ...
