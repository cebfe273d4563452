"""Rows held in memory: what one ``diagnose`` of files needs, and what tests use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from trackside.model import Event, Plane, Record
from trackside.query import Frame, Missing, Query, Row, Window


class MemoryStore:
    """Events and records by kind. ``planes`` are those that at least one input was read for."""

    name = "files"

    def __init__(
        self, events: Iterable[Event] = (), records: Iterable[Record] = (), planes: Iterable[Plane] = ()
    ) -> None:
        self._rows: dict[tuple[str, str], list[Row]] = defaultdict(list)
        self.planes: set[Plane] = set(planes)
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

    def narrowed(self, keep: Callable[[Row], bool]) -> MemoryStore:
        """A store of the rows that pass, with the same planes read."""
        store = MemoryStore(planes=self.planes)
        for key, rows in self._rows.items():
            store._rows[key] = [row for row in rows if keep(row)]
        return store

    def ask(self, query: Query, window: Window | None = None) -> Frame | Missing:
        """See :class:`trackside.query.Store`."""
        covered = tuple(plane for plane in query.planes if plane in self.planes)
        if not covered:
            return Missing(query, f"no {' or '.join(query.planes)} input was given")
        rows = self._rows.get((query.subject, query.kind), [])
        found = [row for row in rows if all(row.get(name) == value for name, value in query.filters)]
        if window is not None:
            found = [row for row in found if _inside(row, window)]
        return Frame(query, self.name, tuple(found), window, covered)


def _inside(row: Row, window: Window) -> bool:
    time = row.time if isinstance(row, Event) else None
    return time is None or window[0] <= time <= window[1]
