"""Rows held in memory with the run's metrics: what one ``diagnose`` needs, and what tests use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trackside.evidence import NO_METRIC_INPUT, SOURCE_UNANSWERED, UNABLE_TO_CHECK, Frame, Grid, MissingAnswer
from trackside.model import Event, Plane, Position, Record
from trackside.query import Query, Row

if TYPE_CHECKING:
    from trackside.stores.metric_backend import RunMetrics


class MemoryStore:
    """Events and records by kind. ``planes``: those that at least one input was read for.

    If a source of a plane did not answer, or only in part, the plane's rows may be incomplete: an empty answer then
    does not mean that nothing happened.
    """

    name = "files"

    def __init__(
        self, events: Iterable[Event] = (), records: Iterable[Record] = (), planes: Iterable[Plane] = ()
    ) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self.planes: set[Plane] = set(planes)
        self._unavailable_sources: dict[Plane, tuple[str, str]] = {}
        """Plane -> (source that did not answer, reason)."""
        self.metrics: RunMetrics | None = None
        """The run's metrics; None if no input held a metric."""
        for event in events:
            self.add_event(event)
        for record in records:
            self.add_record(record)

    def add_event(self, event: Event) -> None:
        """Add an event; its plane counts as read, unless the event reports a source that did not answer."""
        if event.kind == SOURCE_UNANSWERED:
            self._unavailable_sources.setdefault(event.plane, (event.at.path, event.text))
        else:
            self.planes.add(event.plane)
        self._rows["events", event.kind].append(event)

    def add_record(self, record: Record) -> None:
        """Add a record; its plane counts as read."""
        self.planes.add(record.plane)
        self._rows["record", record.kind].append(record)

    def all_rows(self) -> Iterable[Row]:
        """Every row, by kind, in the order of arrival."""
        for rows in self._rows.values():
            yield from rows

    def ask(self, query: Query) -> Frame | Grid | MissingAnswer:
        if query.subject == "metric":
            return self._ask_metrics([query])[0]
        read_planes = tuple(plane for plane in query.planes if plane in self.planes)
        candidates = self._rows.get((query.subject, query.kind), [])
        matches = tuple(row for row in candidates if all(row.get(name) == value for name, value in query.filters))
        if (
            not matches
            and query.kind != SOURCE_UNANSWERED
            and (unavailable := self._unavailable_answer(query)) is not None
        ):
            return unavailable
        if not read_planes and not matches:
            return MissingAnswer(f"no {' or '.join(query.planes)} input was given", query)
        return Frame(query, self.name, matches, read_planes)

    def ask_many(self, queries: Sequence[Query]) -> list[Frame | Grid | MissingAnswer]:
        """Answer several queries, in order; metric queries go to the backend together."""
        metric_answers = iter(self._ask_metrics([query for query in queries if query.subject == "metric"]))
        return [next(metric_answers) if query.subject == "metric" else self.ask(query) for query in queries]

    def expect(self, queries: Iterable[Query]) -> None:
        """Announce queries: see :meth:`trackside.stores.metric_backend.MetricBackend.expect`."""
        if self.metrics is not None:
            self.metrics.expect(query for query in queries if query.subject == "metric")

    def _ask_metrics(self, queries: Sequence[Query]) -> Sequence[Grid | MissingAnswer]:
        if self.metrics is None:
            return [self._unavailable_answer(query) or MissingAnswer(NO_METRIC_INPUT, query) for query in queries]
        answers = self.metrics.ask_many(queries, self.name)
        for answer in answers:
            if (
                isinstance(answer, MissingAnswer)
                and answer.source
                and answer.query.kind not in self.metrics.unavailable
            ):
                self.add_unavailable_source("metric", answer.source, answer.reason.removeprefix(UNABLE_TO_CHECK))
        return [
            self._unavailable_answer(answer.query) or answer if isinstance(answer, MissingAnswer) else answer
            for answer in answers
        ]

    def _unavailable_answer(self, query: Query) -> MissingAnswer | None:
        """The MissingAnswer if a source of the query's planes did not answer; else None."""
        source_reason = next(
            (self._unavailable_sources[plane] for plane in query.planes if plane in self._unavailable_sources), None
        )
        return (
            None
            if source_reason is None
            else MissingAnswer(f"{UNABLE_TO_CHECK}{source_reason[1]}", query, source=source_reason[0])
        )

    def add_unavailable_source(self, plane: Plane, source: str, reason: str, concerns_all: bool = True) -> None:
        """Record, once, that a source of a plane did not answer, or only in part.

        ``concerns_all``: whether the source might hold any rows of the plane, so that no absence may be concluded.
        """
        position = Position(source, 0)
        if not any(row.at == position and row.plane == plane for row in self._rows["events", SOURCE_UNANSWERED]):
            fields = {"source": source, "reason": reason}
            event = Event(SOURCE_UNANSWERED, position, plane, reason, fields=fields)
            if concerns_all:
                self.add_event(event)
            else:
                self._rows["events", SOURCE_UNANSWERED].append(event)
