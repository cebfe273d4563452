"""Selects what a store holds about one job, so that a store of thousands of jobs answers as fast as a folder of one.

A folder of ordinary size that the job's records or logs came from is taken as a whole, as if it were passed to
``diagnose``. From larger folders, and from all others, only rows that name the job, or its nodes during the job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import msgspec

from trackside.catalog.streams import host_of, is_stream, is_stream_of
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.logs.series import PointSeries
from trackside.logs.stored_series import SeriesState, StoredPoint
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Run, TimeRange
from trackside.runs.listing import list_runs
from trackside.runs.locator import (
    HOST,
    JobLocation,
    Locator,
    RecordRow,
    has_suffix,
    job_event,
    parameter_marks,
    short_names,
)
from trackside.runs.logs import folder_of
from trackside.stores.embedded.duck import SeriesFilter
from trackside.stores.embedded.rows import EVENT, POINT, StoredInput, event_of, point_of
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore

MAX_WHOLE_INPUTS = 1_000
MAX_WHOLE_ROWS = 100_000
MAX_WHOLE_SERIES = 50_000
"""A job's folders are taken as a whole up to this many inputs, rows (without those of logs), and series."""
BEFORE_S, AFTER_S = 7 * 86400.0, 86400.0
"""Seconds before a job's start and after its end within which rows about its nodes concern it."""
MAX_ZONE_OFFSET_S = 15 * 3600.0
"""Seconds by which the clocks of metrics and of the scheduler may differ."""


@dataclass(slots=True)
class JobData:
    """What a store holds about one job. ``job``: its id, as spelled in the rows of ``store``."""

    job: str | None
    ids: frozenset[str] = frozenset()
    """All ids that mean the job."""
    store: MemoryStore = field(default_factory=MemoryStore)
    trajectories: Trajectories = field(default_factory=Trajectories)
    paths: tuple[str, ...] = ()
    """Logs whose rows were not read: they belong to other jobs, or to none."""
    home: frozenset[str] | None = None
    """The logs from the folders of the job's records or logs; None if all logs are."""
    inputs: list[Input] = field(default_factory=list)
    series_filter: SeriesFilter = field(default_factory=SeriesFilter)


@dataclass(frozen=True, slots=True)
class _Condition:
    """An SQL condition with its parameters, and the inputs it is limited to."""

    text: str
    parameters: tuple[object, ...] = ()
    inputs: frozenset[int] | None = None


def find_job_data(
    snapshot: Snapshot,
    job: str | None,
    known_paths: Collection[str] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
) -> JobData:
    """What the store holds about a job. ``job``: its id, or the folder it was ingested from; None for the only run.

    ``known_paths``: paths of inputs known to concern the job; ``owners``: path of a log -> its known job id.
    Raises SeveralRuns or NoSuchRun.
    """
    return _Finder(snapshot, known_paths, owners).find(job)


class _Finder:
    """Finds what a snapshot holds about a job."""

    def __init__(self, snapshot: Snapshot, known_paths: Collection[str], owners: Mapping[str, str]) -> None:
        self._snapshot, self._known_paths = snapshot, frozenset(known_paths)
        self._locator = Locator(snapshot, known_paths, owners)
        self._inputs = self._locator.inputs

    def find(self, job: str | None) -> JobData:
        """See :func:`find_job_data`."""
        if job is None:
            run = self._only_run()
            return self._find_in_folder("") if run.id is None else self._find_job(run.id)
        try:
            return self._find_job(job)
        except NoSuchRun:
            if not any(has_suffix(input_.root, job) for input_ in self._inputs):
                raise
        return self._find_in_folder(job)

    def _only_run(self) -> Run:
        """The only run of the store, or the last of a chain. Raises SeveralRuns if there are others."""
        listed = list_runs(self._snapshot)
        try:
            run = self._locator.only_run()
        except SeveralRuns:
            raise SeveralRuns([summary.id for summary in listed], in_store=True) from None
        known = {run.id, *run.aliases}
        if any(summary.id not in known and "scheduler" not in summary.planes for summary in listed) and len(listed) > 1:
            raise SeveralRuns([summary.id for summary in listed], in_store=True)
        return run

    def _find_in_folder(self, name: str) -> JobData:
        """Everything that was ingested from the one folder whose path ends in ``name``."""
        inputs = [
            input_ for input_ in self._inputs if has_suffix(input_.root, name) or input_.path in self._known_paths
        ]
        roots = sorted({input_.root for input_ in inputs if input_.path not in self._known_paths})
        if len(roots) > 1:
            raise SeveralRuns(sorted(short_names(roots).values()), in_store=True)
        return self._read_inputs(inputs)

    def _read_inputs(self, inputs: Sequence[StoredInput]) -> JobData:
        """Everything in these inputs; none of them names a job."""
        ids = frozenset(input_.id for input_ in inputs)
        data = JobData(None, inputs=[input_.row for input_ in inputs])
        everything = _Condition(f"input IN ({_sql_list(ids)})", inputs=ids)
        self._add_rows(data.store, everything, everything, ())
        self._add_steps(data.trajectories, inputs)
        data.store.planes = {plane for input_ in inputs for plane in input_.planes}
        data.series_filter = SeriesFilter(f"p.input IN ({_sql_list(ids)})")
        self._note_lost_rows(data, ids)
        return data

    def _find_job(self, job: str) -> JobData:
        """What the store holds about the job with this id."""
        location = self._locator.locate(job)
        run = location.run
        duplicate_ids = self._pushed_duplicates(location)
        logs = [log for log in location.logs if log.path in {*run.log_paths, *run.parent_log_paths}]
        logs = [log for log in logs if log.id not in duplicate_ids]
        read_ids = {log.id for log in logs}
        others = [log for log in location.logs if log.id not in read_ids | duplicate_ids]
        home = [input_ for input_ in self._inputs if input_.id in location.home]
        is_small = len(home) <= MAX_WHOLE_INPUTS and sum(map(_row_count, home)) <= MAX_WHOLE_ROWS
        events, records = self._conditions(location, home, read_ids, is_small)
        data = JobData(run.id or job, frozenset(location.ids), paths=tuple(log.path for log in others))
        data.home = frozenset(log.path for log in location.logs if log.id in location.home)
        row_inputs = self._add_rows(data.store, events, records, location.records) | read_ids
        for log in others:
            if log.owner is not None:
                data.store.add_event(job_event(log))
        self._add_steps(data.trajectories, logs)
        skipped = duplicate_ids if is_small else duplicate_ids | {log.id for log in others}
        data.inputs = [
            input_.row
            for input_ in self._inputs
            if input_.id not in skipped and (input_.id in row_inputs or input_.id in location.home)
        ]
        data.store.planes = {
            plane
            for input_ in self._inputs
            if input_.id in row_inputs or input_.id in location.home
            for plane in input_.planes
        }
        data.series_filter = self._series_filter(location)
        self._note_lost_rows(data, row_inputs | location.home | {log.id for log in location.logs})
        return data

    def _note_lost_rows(self, data: JobData, ids: Collection[int]) -> None:
        """Record the inputs that lost rows with a damaged file as sources that answered only in part. ``ids``: inputs
        that concern the job; so do samples of its series, and logs of the site, of which nothing may be left."""
        incomplete = [input_ for input_ in self._inputs if input_.id in self._snapshot.manifest.incomplete]
        if not incomplete:
            return
        spans, series = self._snapshot.table("spans"), self._snapshot.table("series")
        known = self._inputs_where(f"{spans} p SEMI JOIN {series} s USING (series)")
        unknown = self._inputs_where(f"{spans} p ANTI JOIN {series} s USING (series)")
        scope = data.series_filter
        selected = self._inputs_where(f"{spans} p JOIN {series} s USING (series) WHERE {scope.where}", scope.parameters)
        for input_ in incomplete:
            is_of_site = not input_.is_log and input_.planes != ("metric",)
            has_unknown_series = "metric" in input_.planes and (input_.id not in known or input_.id in unknown)
            if input_.id in ids or input_.id in selected or is_of_site or has_unknown_series:
                for plane in input_.planes:
                    data.store.add_unavailable_source(plane, input_.path, input_.row.note)

    def _inputs_where(self, spans: str, parameters: Sequence[object] = ()) -> set[int]:
        """The inputs of some spans, which are an SQL source named ``p``."""
        return {number for (number,) in self._snapshot.rows(f"SELECT DISTINCT p.input FROM {spans}", parameters)}

    def _pushed_duplicates(self, location: JobLocation) -> set[int]:
        """Ids of pushed line streams whose files are inputs themselves: the files hold all their lines."""
        files = [log.path for log in location.logs if not is_stream(log.path)]
        return {
            log.id
            for log in location.logs
            if any(is_stream_of(log.path, job, file) for job in location.ids for file in files)
        }

    def _conditions(
        self, location: JobLocation, home: Sequence[StoredInput], read_ids: Collection[int], is_small: bool
    ) -> tuple[_Condition, _Condition]:
        """Conditions for the events and the records that concern the job, in addition to ``location.records``.

        ``is_small``: whether the job's folders are taken as a whole.
        """
        run, at_home = location.run, {input_.id for input_ in home}
        logs = _sql_list(read_ids)
        ids = tuple(sorted(location.ids))
        hosts = _hosts(run)
        start, end = _span(run)
        on_nodes = f"({HOST.format('node')} IN ({parameter_marks(hosts)}) AND (time IS NULL OR time BETWEEN ? AND ?))"
        events = (
            f"input IN ({logs}) OR (plane <> 'log' AND (job IN ({parameter_marks(ids)}) OR (job IS NULL AND {on_nodes})"
        )
        parameters: list[object] = [*ids, *hosts, start - BEFORE_S, end + AFTER_S]
        records = f"input IN ({logs}) OR (kind = 'step' AND job IN ({parameter_marks(ids)}))"
        records += f" OR (kind = 'node' AND {HOST.format('node')} IN ({parameter_marks(hosts)}))"
        if is_small:
            # Kernel lines in another job's log belong to no job alone; that job's own lines belong to it.
            other_inputs = {input_.id for input_ in home if not input_.is_log}
            events += f" OR input IN ({_sql_list(at_home)}))) OR input IN ({_sql_list(other_inputs)})"
            records += f" OR input IN ({_sql_list(at_home)})"
        else:
            events += "))"
            folders = {folder_of(log.path) for log in location.logs if log.id in read_ids}
            long_names = [name for name in location.ids if len(name) >= 3]
            near_inputs = {
                input_.id
                for input_ in home
                if folder_of(input_.path) in folders or any(name in input_.path for name in long_names)
            }
            records += f" OR (kind NOT IN ('job', 'step', 'node') AND input IN ({_sql_list(near_inputs)}))"
        return _Condition(events, tuple(parameters)), _Condition(records, (*ids, *hosts))

    def _add_rows(
        self, store: MemoryStore, events: _Condition, records: _Condition, extra_records: Iterable[RecordRow]
    ) -> set[int]:
        """Add rows to a store in reading order; returns the ids of the inputs they came from."""
        snapshot = self._snapshot
        source = snapshot.table("events", events.inputs)
        sql = f"SELECT input, seq, {EVENT} FROM {source} WHERE {events.text}"
        rows: dict[tuple[int, int], Event | Record] = {}
        for columns in snapshot.rows(sql, events.parameters):
            rows[columns[0], columns[1]] = event_of(columns[2:])
        record_rows = self._locator.records(records.text, records.parameters, inputs=records.inputs)
        input_ids = {input_ for input_, _ in rows} | {input_ for input_, *_ in record_rows}
        for input_, seq, record in (*record_rows, *extra_records):
            rows[input_, seq] = record
        order = {stored.id: index for index, stored in enumerate(self._inputs)}
        for _, row in sorted(rows.items(), key=lambda item: (order.get(item[0][0], len(order)), item[0][1])):
            if isinstance(row, Event):
                store.add_event(row)
            else:
                store.add_record(row)
        return input_ids

    def _add_steps(self, trajectories: Trajectories, inputs: Iterable[StoredInput]) -> None:
        """Add the logged steps of these logs."""
        training_logs = {log.id: log for log in inputs if log.training}
        if not training_logs:
            return
        source = self._snapshot.table("points", training_logs)
        points: dict[tuple[int, str, str], list[StoredPoint]] = {}
        order = "ORDER BY input, parser, held, ordinal"
        sql = f"SELECT input, path, parser, ordinal, pinned, held, loss, step, time, {POINT} FROM {source}"
        for row in self._snapshot.rows(f"{sql} WHERE input IN ({_sql_list(training_logs)}) {order}"):
            input_, path, parser, ordinal, pinned, is_held, loss, step, time, *rest = row
            stored_point = StoredPoint(ordinal, pinned, is_held, loss, step, time, partial(_event_at, rest))
            points.setdefault((input_, path, parser), []).append(stored_point)
        for log in inputs:
            for stored_counts in (
                msgspec.json.decode(log.training, type=list[dict[str, object]]) if log.training else ()
            ):
                path = str(stored_counts.pop("path"))
                state = msgspec.convert(stored_counts, SeriesState)
                trajectories.add_series(PointSeries.restore(path, state, points.get((log.id, path, state.parser), ())))

    def _series_filter(self, location: JobLocation) -> SeriesFilter:
        """The series of the job's folders if these are few; else those with its label or of its nodes then."""
        spans = self._snapshot.table("spans", location.home)
        ((count,),) = self._snapshot.rows(
            f"SELECT count(DISTINCT series) FROM {spans} WHERE input IN ({_sql_list(location.home)})"
        )
        ids, hosts = tuple(sorted(location.ids)), _hosts(location.run)
        start, end = _span(location.run)
        at_home = f"p.input IN ({_sql_list(location.home)})"
        if count > MAX_WHOLE_SERIES:
            at_home += " AND s.node IS NULL" if hosts else ""
        on_nodes = f"{HOST.format('s.node')} IN ({parameter_marks(hosts)}) AND p.last_ms >= ? AND p.first_ms <= ?"
        return SeriesFilter(
            f"(({at_home}) OR s.job IN ({parameter_marks(ids)}) OR ({on_nodes}))",
            (*ids, *hosts, (start - MAX_ZONE_OFFSET_S) * 1000, (end + MAX_ZONE_OFFSET_S) * 1000),
        )


def _event_at(row: Sequence[Any]) -> Event:
    """The event of a stored point."""
    return point_of(row).event


def _row_count(input_: StoredInput) -> int:
    """Rows to read with this input; 0 for a log or metrics."""
    return 0 if input_.is_log or input_.planes == ("metric",) else input_.row.rows


def _sql_list(ids: Iterable[int]) -> str:
    """Ids for SQL's ``IN (...)``; NULL, which equals nothing, if there are none."""
    return ", ".join(map(str, sorted(ids))) or "NULL"


def _hosts(run: Run) -> tuple[str, ...]:
    """The nodes of all attempts of the run, spelled as hosts are compared."""
    nodes = {*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)}
    return tuple(sorted({host_of(node) for node in nodes}))


def _span(run: Run) -> TimeRange:
    """From the first attempt's start to the last one's end in POSIX seconds; unbounded where unknown."""
    starts = [start for start in (run.start, *(attempt.start for attempt in run.attempts)) if start is not None]
    return min(starts, default=-1e11), run.end if run.end is not None else 1e11
