"""Rows held in memory, and the run's metrics beside them: what one ``diagnose`` needs, and what tests use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from trackside.evidence import NOT_GIVEN, UNABLE, UNANSWERED, Frame, Grid, MissingAnswer
from trackside.model import Event, Plane, Position, Record
from trackside.query import Query, Row

if TYPE_CHECKING:
    from trackside.stores.curves import RunMetrics


class MemoryStore:
    """Events and records by kind. ``planes`` are those that at least one input was read for.

    Where something that was asked for a plane did not answer, or not wholly, that plane's rows are what is known, and
    no row is no answer: what was not seen may be there.
    """

    name = "files"

    def __init__(
        self, events: Iterable[Event] = (), records: Iterable[Record] = (), planes: Iterable[Plane] = ()
    ) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self.planes: set[Plane] = set(planes)
        self._unanswered: dict[Plane, tuple[str, str]] = {}
        """(what did not answer, why), by plane."""
        self.metrics: RunMetrics | None = None
        """The run's curves; None where no input held a metric."""
        for event in events:
            self.add_event(event)
        for record in records:
            self.add_record(record)

    def add_event(self, event: Event) -> None:
        """Keep one event; its plane counts as read, unless it says that it was not."""
        if event.kind == UNANSWERED:
            self._unanswered.setdefault(event.plane, (event.at.path, event.text))
        else:
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

    def ask(self, query: Query) -> Frame | Grid | MissingAnswer:
        if query.subject == "metric":
            return self._measured([query])[0]
        covered = tuple(plane for plane in query.planes if plane in self.planes)
        rows = self._rows.get((query.subject, query.kind), [])
        found = tuple(row for row in rows if all(row.get(name) == value for name, value in query.filters))
        if not found and query.kind != UNANSWERED and (silent := self._silent(query)) is not None:
            return silent
        if not covered and not found:
            return MissingAnswer(f"no {' or '.join(query.planes)} input was given", query)
        return Frame(query, self.name, found, covered)

    def ask_many(self, queries: Sequence[Query]) -> list[Frame | Grid | MissingAnswer]:
        """Several at once, in order: those of metrics go to their engine together."""
        measured = iter(self._measured([query for query in queries if query.subject == "metric"]))
        return [next(measured) if query.subject == "metric" else self.ask(query) for query in queries]

    def expect(self, queries: Iterable[Query]) -> None:
        """These will be asked: see :meth:`trackside.stores.curves.Curves.expect`."""
        if self.metrics is not None:
            self.metrics.expect(query for query in queries if query.subject == "metric")

    def _measured(self, queries: Sequence[Query]) -> Sequence[Grid | MissingAnswer]:
        if self.metrics is None:
            return [self._silent(query) or MissingAnswer(NOT_GIVEN, query) for query in queries]
        answers = self.metrics.ask_many(queries, self.name)
        for answer in answers:
            if isinstance(answer, MissingAnswer) and answer.source and answer.query.kind not in self.metrics.failed:
                self.add_unavailable_source("metric", answer.source, answer.reason.removeprefix(UNABLE))
        return [self._silent(each.query) or each if isinstance(each, MissingAnswer) else each for each in answers]

    def _silent(self, query: Query) -> MissingAnswer | None:
        """Why a question with no answer can't be taken for a "none"; None where it can."""
        found = next((self._unanswered[plane] for plane in query.planes if plane in self._unanswered), None)
        return None if found is None else MissingAnswer(f"{UNABLE}{found[1]}", query, source=found[0])

    def add_unavailable_source(self, plane: Plane, source: str, reason: str, whole: bool = True) -> None:
        """Note, once, that what was asked for this plane did not answer, or not wholly.

        ``whole``: whether it might have held anything of the plane, so that no absence is made of any.
        """
        at = Position(source, 0)
        if not any(row.at == at and row.plane == plane for row in self._rows["events", UNANSWERED]):
            fields = {"source": source, "reason": reason}
            event = Event(UNANSWERED, at, plane, reason, fields=fields)
            if whole:
                self.add_event(event)
            else:
                self._rows["events", UNANSWERED].append(event)
