"""What of a store concerns one job, so that a store of thousands of jobs is as soon asked as a folder of one.

A folder of ordinary size that the job's records or logs came from is taken whole, as if it had been given to
``diagnose``; of larger ones, and of all others, only the rows that name the job, or its nodes while it was there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from trackside.catalog.streams import is_stream, is_stream_of
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.logs.series import PointSeries, SeriesState, StoredPoint
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Run
from trackside.runs.located import HOST, Located, Locator, Told, ends, marks, named_job, short_names
from trackside.runs.logs import folder_of
from trackside.runs.places import host_of
from trackside.stores.embedded.duck import SeriesFilter
from trackside.stores.embedded.rows import EVENT, POINT, StoredInput, event_of, point_of
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore

WHOLE_INPUTS = 1_000
WHOLE_ROWS = 100_000
WHOLE_SERIES = 50_000
"""A job's folders are taken whole up to so many inputs, rows beside those of logs, and series."""
BEFORE_S, AFTER_S = 7 * 86400.0, 86400.0
"""How long before its start and after its end rows about a job's nodes still concern it."""
ZONES_S = 15 * 3600.0
"""By how much the clocks of metrics and of the scheduler may differ."""


@dataclass(slots=True)
class Found:
    """What concerns one job. ``job``: its id, as it is to be asked for among ``store``'s rows."""

    job: str | None
    store: MemoryStore = field(default_factory=MemoryStore)
    trajectories: Trajectories = field(default_factory=Trajectories)
    paths: tuple[str, ...] = ()
    """Logs whose rows were left where they are: they are other jobs', or nobody's."""
    home: frozenset[str] | None = None
    """The logs that came in one folder with the job's records or logs; None: all did."""
    inputs: list[Input] = field(default_factory=list)
    scope: SeriesFilter = field(default_factory=SeriesFilter)


@dataclass(frozen=True, slots=True)
class _Where:
    """An SQL condition with its parameters, and the inputs it is limited to."""

    text: str
    parameters: tuple[object, ...] = ()
    inputs: frozenset[int] | None = None


def find(
    snapshot: Snapshot,
    job: str | None,
    given: Collection[str] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> Found:
    """What concerns a job, by its id, or by the folder it was ingested from; without, what all is about.

    ``given``: paths of inputs that are known to concern it; ``owners``: those of logs whose job is known -> its id.
    Raises SeveralRuns or NoSuchRun.
    """
    return _Finder(snapshot, given, owners).found(job)


class _Finder:
    def __init__(self, snapshot: Snapshot, given: Collection[str], owners: Mapping[str, str]) -> None:
        self._snapshot, self._given = snapshot, frozenset(given)
        self._locator = Locator(snapshot, given, owners)
        self._inputs = self._locator.inputs

    def found(self, job: str | None) -> Found:
        if job is None:
            run = self._locator.chosen()
            return self._folder("") if run.id is None else self._of(run.id)
        try:
            return self._of(job)
        except NoSuchRun:
            if not any(ends(each.root, job) for each in self._inputs):
                raise
        return self._folder(job)

    def _folder(self, name: str) -> Found:
        """All that was ingested from one folder, whose path ends so."""
        there = [each for each in self._inputs if ends(each.root, name) or each.path in self._given]
        roots = sorted({each.root for each in there if each.path not in self._given})
        if len(roots) > 1:
            raise SeveralRuns(sorted(short_names(roots).values()))
        return self._whole(there)

    def _whole(self, inputs: Sequence[StoredInput]) -> Found:
        """All that some inputs hold; none of them names a job."""
        ids = frozenset(each.id for each in inputs)
        found = Found(None, inputs=[each.row for each in inputs])
        everything = _Where(f"input IN ({_numbers(ids)})", inputs=ids)
        self._fill(found.store, everything, everything, ())
        self._train(found.trajectories, inputs)
        found.store.planes = {plane for each in inputs for plane in each.planes}
        found.scope = SeriesFilter(f"p.input IN ({_numbers(ids)})")
        return found

    def _of(self, job: str) -> Found:
        told = self._locator.located(job)
        run = told.run
        twice = self._sent(told)
        logs = [each for each in told.logs if each.path in {*run.log_paths, *run.parent_log_paths}]
        logs = [each for each in logs if each.id not in twice]
        read = {each.id for each in logs}
        others = [each for each in told.logs if each.id not in read | twice]
        home = [each for each in self._inputs if each.id in told.home]
        small = len(home) <= WHOLE_INPUTS and sum(map(_row_count, home)) <= WHOLE_ROWS
        events, records = self._conditions(told, home, read, small)
        found = Found(run.id or job, paths=tuple(each.path for each in others))
        found.home = frozenset(each.path for each in told.logs if each.id in told.home)
        met = self._fill(found.store, events, records, told.records) | read
        for each in others:
            if each.owner is not None:
                found.store.add_event(named_job(each))
        self._train(found.trajectories, logs)
        theirs = twice if small else twice | {each.id for each in others}
        found.inputs = [
            each.row for each in self._inputs if each.id not in theirs and (each.id in met or each.id in told.home)
        ]
        found.store.planes = {
            plane for each in self._inputs if each.id in met or each.id in told.home for plane in each.planes
        }
        found.scope = self._scope(told)
        return found

    def _sent(self, told: Located) -> set[int]:
        """Streams of lines that were sent of files which are there themselves: these have all, and each once."""
        files = [each.path for each in told.logs if not is_stream(each.path)]
        return {
            each.id
            for each in told.logs
            if any(is_stream_of(each.path, job, file) for job in told.ids for file in files)
        }

    def _conditions(
        self, told: Located, home: Sequence[StoredInput], read: Collection[int], small: bool
    ) -> tuple[_Where, _Where]:
        """Which events and which records concern the job, beside the records that told of it."""
        run, at_home = told.run, {each.id for each in home}
        logs = _numbers(read)
        ids = tuple(sorted(told.ids))
        hosts = _hosts(run)
        start, end = _span(run)
        there = f"({HOST.format('node')} IN ({marks(hosts)}) AND (time IS NULL OR time BETWEEN ? AND ?))"
        events = f"input IN ({logs}) OR (plane <> 'log' AND (job IN ({marks(ids)}) OR (job IS NULL AND {there})"
        parameters: list[object] = [*ids, *hosts, start - BEFORE_S, end + AFTER_S]
        records = f"input IN ({logs}) OR (kind = 'step' AND job IN ({marks(ids)}))"
        records += f" OR (kind = 'node' AND {HOST.format('node')} IN ({marks(hosts)}))"
        if small:
            # Kernel lines in another job's log are nobody's alone; that job's own lines are.
            whole = {each.id for each in home if not each.is_log}
            events += f" OR input IN ({_numbers(at_home)}))) OR input IN ({_numbers(whole)})"
            records += f" OR input IN ({_numbers(at_home)})"
        else:
            events += "))"
            folders = {folder_of(each.path) for each in told.logs if each.id in read}
            long = [name for name in told.ids if len(name) >= 3]
            beside = {
                each.id for each in home if folder_of(each.path) in folders or any(name in each.path for name in long)
            }
            records += f" OR (kind NOT IN ('job', 'step', 'node') AND input IN ({_numbers(beside)}))"
        return _Where(events, tuple(parameters)), _Where(records, (*ids, *hosts))

    def _fill(self, store: MemoryStore, events: _Where, records: _Where, also: Iterable[Told]) -> set[int]:
        """Put rows into a store in the order in which they were read; gives the inputs they are of."""
        snapshot = self._snapshot
        source = snapshot.table("events", events.inputs)
        sql = f"SELECT input, seq, {EVENT} FROM {source} WHERE {events.text}"
        rows: dict[tuple[int, int], Event | Record] = {}
        for row in snapshot.rows(sql, events.parameters):
            rows[row[0], row[1]] = event_of(row[2:])
        told = self._locator.records(records.text, records.parameters, inputs=records.inputs)
        met = {input_ for input_, _ in rows} | {input_ for input_, *_ in told}
        for input_, seq, record in (*told, *also):
            rows[input_, seq] = record
        places = {each.id: place for place, each in enumerate(self._inputs)}
        for _, one in sorted(rows.items(), key=lambda item: (places.get(item[0][0], len(places)), item[0][1])):
            if isinstance(one, Event):
                store.add_event(one)
            else:
                store.add_record(one)
        return met

    def _train(self, trajectories: Trajectories, inputs: Iterable[StoredInput]) -> None:
        """Take the training points of some logs."""
        trained = {each.id: each for each in inputs if each.training}
        if not trained:
            return
        source = self._snapshot.table("points", trained)
        points: dict[tuple[int, str, str], list[StoredPoint]] = {}
        order = "ORDER BY input, parser, held, ordinal"
        sql = f"SELECT input, path, parser, ordinal, pinned, held, loss, step, time, {POINT} FROM {source}"
        for row in self._snapshot.rows(f"{sql} WHERE input IN ({_numbers(trained)}) {order}"):
            input_, path, parser, ordinal, pinned, held, loss, step, time, *rest = row
            away = StoredPoint(ordinal, pinned, held, loss, step, time, partial(_event_at, rest))
            points.setdefault((input_, path, parser), []).append(away)
        for each in inputs:
            for told in msgspec.json.decode(each.training, type=list[dict[str, object]]) if each.training else ():
                path = str(told.pop("path"))
                state = msgspec.convert(told, SeriesState)
                trajectories.take(PointSeries.restored(path, state, points.get((each.id, path, state.parser), ())))

    def _scope(self, told: Located) -> SeriesFilter:
        """Curves of the job's folders if these are few; else those with its label, and those of its nodes meanwhile."""
        spans = self._snapshot.table("spans", told.home)
        ((count,),) = self._snapshot.rows(
            f"SELECT count(DISTINCT series) FROM {spans} WHERE input IN ({_numbers(told.home)})"
        )
        ids, hosts = tuple(sorted(told.ids)), _hosts(told.run)
        start, end = _span(told.run)
        at_home = f"p.input IN ({_numbers(told.home)})"
        if count > WHOLE_SERIES:
            at_home += " AND s.node IS NULL" if hosts else ""
        there = f"{HOST.format('s.node')} IN ({marks(hosts)}) AND p.last_ms >= ? AND p.first_ms <= ?"
        return SeriesFilter(
            f"(({at_home}) OR s.job IN ({marks(ids)}) OR ({there}))",
            (*ids, *hosts, (start - ZONES_S) * 1000, (end + ZONES_S) * 1000),
        )


def _event_at(row: Sequence[Any]) -> Event:
    return point_of(row).event


def _row_count(each: StoredInput) -> int:
    """Rows that are read with it; of a log or of metrics, none are counted."""
    return 0 if each.is_log or each.planes == ("metric",) else each.row.rows


def _numbers(ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(ids))) or "NULL"


def _hosts(run: Run) -> tuple[str, ...]:
    """The run's nodes, and those of its earlier attempts, as hosts are compared."""
    nodes = {*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)}
    return tuple(sorted({host_of(node) for node in nodes}))


def _span(run: Run) -> tuple[float, float]:
    """From the first attempt's start to the last one's end; all time where that isn't known."""
    starts = [start for start in (run.start, *(attempt.start for attempt in run.attempts)) if start is not None]
    return min(starts, default=-1e11), run.end if run.end is not None else 1e11
