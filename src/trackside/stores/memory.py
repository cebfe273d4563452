"""Rows held in memory, and the run's metrics beside them: what one ``diagnose`` needs, and what tests use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trackside.model import Event, Plane, Record
from trackside.query import NOT_GIVEN, Frame, Grid, Missing, Query, Row

if TYPE_CHECKING:
    from trackside.stores.curves import RunMetrics


class MemoryStore:
    """Events and records by kind. ``planes`` are those that at least one input was read for."""

    name = "files"

    def __init__(
        self, events: Iterable[Event] = (), records: Iterable[Record] = (), planes: Iterable[Plane] = ()
    ) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self.planes: set[Plane] = set(planes)
        self.metrics: RunMetrics | None = None
        """The run's curves; None where no input held a metric."""
        for event in events:
            self.add_event(event)
        for record in records:
            self.add_record(record)

    def add_event(self, event: Event) -> None:
        """Keep one event; its plane counts as read."""
        self.planes.add(event.plane)
        self._rows["events", event.kind].append(event)

    def add_record(self, record: Record) -> None:
        """Keep one record; its plane counts as read."""
        self.planes.add(record.plane)
        self._rows["record", record.kind].append(record)

    def all_rows(self) -> Iterable[Row]:
        """Every row, by kind, in the order of arrival."""
        for rows in self._rows.values():
            yield from rows

    def ask(self, query: Query) -> Frame | Grid | Missing:
        """See :class:`trackside.query.Store`."""
        if query.subject == "metric":
            return self._measured([query])[0]
        covered = tuple(plane for plane in query.planes if plane in self.planes)
        if not covered:
            return Missing(query, f"no {' or '.join(query.planes)} input was given")
        rows = self._rows.get((query.subject, query.kind), [])
        found = tuple(row for row in rows if all(row.get(name) == value for name, value in query.filters))
        return Frame(query, self.name, found, covered)

    def ask_many(self, queries: Sequence[Query]) -> list[Frame | Grid | Missing]:
        """Several at once, in order: those of metrics go to their engine together."""
        measured = iter(self._measured([query for query in queries if query.subject == "metric"]))
        return [next(measured) if query.subject == "metric" else self.ask(query) for query in queries]

    def expect(self, queries: Iterable[Query]) -> None:
        """These will be asked: see :meth:`trackside.stores.curves.Batching.expect`."""
        if self.metrics is not None:
            self.metrics.expect(query for query in queries if query.subject == "metric")

    def _measured(self, queries: Sequence[Query]) -> Sequence[Grid | Missing]:
        if self.metrics is None:
            return [Missing(query, NOT_GIVEN) for query in queries]
        return self.metrics.ask_many(queries, self.name)
