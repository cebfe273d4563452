"""Finds where a store holds a job: its records, its logs, those of the run before it, and the folders they came from.

Which log belongs to which job depends on the other jobs (:mod:`trackside.runs.logs`), so the records of all jobs that
may own a log are looked up too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from trackside.errors import NoSuchRun
from trackside.model import Event, Position, Record, Run
from trackside.runs.jobs import Job, plain_id
from trackside.runs.logs import leaf_of, outputs_of
from trackside.runs.resolve import resolve
from trackside.stores.embedded.rows import INPUT, RECORD, StoredInput, input_of, record_of
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory import MemoryStore

MAX_NAMESAKES = 200
"""Jobs of one name, the latest first, that are considered as the continued run; and jobs with one output file."""
HOST = "(CASE WHEN regexp_full_match({0}, '[0-9.]+') THEN {0} ELSE lower(split_part({0}, '.', 1)) END)"
"""SQL for a node's name, spelled as nodes are compared: lower case, without the domain; addresses as they are."""
LOST_ROWS = "rows of it were lost with a damaged file of the store"
"""Note on an input that is incomplete since the store was rebuilt."""
RecordRow = tuple[int, int, Record]
"""(input, sequence number in it, record)."""


@dataclass(frozen=True, slots=True)
class JobLocation:
    """One job in a store. ``logs``: its own, its parent's, and others that it may own; ``records``: those of all these
    jobs; ``home``: the inputs that came in one folder with the job's records or logs."""

    run: Run
    ids: frozenset[str]
    home: frozenset[int]
    records: tuple[RecordRow, ...]
    logs: tuple[StoredInput, ...]


def inputs_of(snapshot: Snapshot) -> list[StoredInput]:
    """All inputs, in the order in which they were first read; one that lost rows with a damaged file is partial."""
    rows = snapshot.rows(f"SELECT {INPUT} FROM {snapshot.table('inputs')} ORDER BY place")
    incomplete = set(snapshot.manifest.incomplete)
    return [_without_lost_rows(input_of(row)) if row[0] in incomplete else input_of(row) for row in rows]


def _without_lost_rows(stored: StoredInput) -> StoredInput:
    remedy = "" if stored.root.startswith("received/") else "; ingest it again"  # what was pushed exists nowhere else
    return replace(stored, row=replace(stored.row, status="partial", note=LOST_ROWS + remedy))


def parameter_marks(values: Collection[object]) -> str:
    """As many SQL parameter marks as there are values; NULL, which equals nothing, if there are none."""
    return ", ".join("?" * len(values)) or "NULL"


def has_suffix(root: str, suffix: str) -> bool:
    """Whether a folder's path ends in these path components. An empty suffix matches every path."""
    return not suffix or f"/{root.strip('/')}".endswith(f"/{suffix.strip('/')}")


def short_names(roots: Collection[str]) -> dict[str, str]:
    """The shortest end of each folder's path that distinguishes it from the others."""
    names = {}
    for root in roots:
        parts = root.strip("/").split("/")
        tails = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[root] = next((tail for tail in tails if sum(has_suffix(other, tail) for other in roots) == 1), root)
    return names


def job_event(log: StoredInput) -> Event:
    """An event that stands for the lines of a log that name its job, so that the lines need not be read."""
    return Event("host", Position(log.path, 0), "log", fields={"job": log.owner})


class Locator:
    """Finds jobs in one snapshot. ``known_paths``: paths of inputs known to concern the job;
    ``owners``: path of a log whose job is known -> the job's id."""

    def __init__(
        self, snapshot: Snapshot, known_paths: Collection[str] = (), owners: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._snapshot, self._known_paths, self._owners = snapshot, frozenset(known_paths), owners
        self.inputs = inputs_of(snapshot)
        self._logs = [input_ for input_ in self.inputs if input_.is_log]
        self._numbers_of = {log.id: frozenset(re.findall(r"\d{1,10}", log.path)) for log in self._logs}

    def locate(self, job: str) -> JobLocation:
        """A job by any spelling of its id. Raises SeveralRuns or NoSuchRun."""
        related = self._related_records(job)
        near_logs = self._candidate_logs(related, job)
        run = self._resolve(self._add_rivals(related, near_logs), near_logs, job, ())
        ids = frozenset({run.id or job, *run.aliases, job})
        own_input_ids = {
            input_ for input_, _, record in related if {str(record.get("id")), str(record.get("raw_id"))} & ids
        }
        roots = {input_.root for input_ in self.inputs if input_.id in own_input_ids or input_.path in run.log_paths}
        home = frozenset(
            input_.id for input_ in self.inputs if input_.root in roots or input_.path in self._known_paths
        )
        candidate_ids = home.union(input_.id for input_ in near_logs)
        logs = [input_ for input_ in self._logs if input_.id in candidate_ids]
        records = self._add_rivals(related, logs)
        run = self._resolve(records, logs, job, [input_.path for input_ in logs if input_.id in home])
        if not own_input_ids and not run.log_paths and not self._has_labels(ids):
            raise NoSuchRun(
                f"no job {job} in the store; 'trackside runs --store {self._snapshot.directory.path}' lists them"
            )
        return JobLocation(run, ids, home, tuple(records), tuple(logs))

    def only_run(self) -> Run:
        """The only run of the store. Raises SeveralRuns if there are several."""
        return self._resolve(self.records("kind = 'job'"), self._logs, None, None)

    def records(
        self, where: str, parameters: Sequence[object] = (), tail: str = "", inputs: Collection[int] | None = None
    ) -> list[RecordRow]:
        """Records that match an SQL condition on their columns."""
        source = self._snapshot.table("records", inputs)
        rows: list[tuple[Any, ...]] = self._snapshot.rows(
            f"SELECT input, seq, {RECORD} FROM {source} WHERE {where} {tail}", parameters
        )
        return [(row[0], row[1], record_of(row[2:])) for row in rows]

    def _resolve(
        self, records: Iterable[RecordRow], logs: Iterable[StoredInput], job: str | None, home: Collection[str] | None
    ) -> Run:
        """The run that these records and logs show; see :func:`trackside.runs.resolve.resolve`."""
        store = MemoryStore()
        paths = []
        for *_, record in records:
            store.add_record(record)
        for log in logs:
            paths.append(log.path)
            if log.owner is not None:
                store.add_event(job_event(log))
        return resolve(store, job, paths, home, self._owners).run

    def _related_records(self, job: str) -> list[RecordRow]:
        """The records of a job, of the jobs it depends on, of jobs with its output file, and of earlier namesakes."""
        rows = self._records_by_id({job})
        parents = {parent for *_, record in rows for parent in record.many("parents")}
        rows += self._records_by_id(parents) if parents else []
        names = {str(name) for *_, record in rows if (name := record.get("name")) is not None}
        starts = [start for *_, record in rows if isinstance(start := record.get("start"), (int, float))]
        if names and starts:
            rows += self._keep_same_work(
                rows,
                self.records(
                    f"kind = 'job' AND name IN ({parameter_marks(names)}) AND \"end\" <= ?",
                    (*names, max(starts)),
                    f'ORDER BY "end" DESC LIMIT {MAX_NAMESAKES}',
                ),
            )
        paths = {str(path) for *_, record in rows for key in ("std_out", "std_err") if (path := record.get(key))}
        outputs = {leaf_of(path) for path in paths if "%" not in leaf_of(path)}
        if outputs:
            rows += self.records(
                f"kind = 'job' AND list_has_any(string_split(outputs, '/'), [{parameter_marks(outputs)}])",
                tuple(outputs),
                f"LIMIT {MAX_NAMESAKES}",
            )
        return _unique(rows)

    def _keep_same_work(self, rows: Sequence[RecordRow], namesakes: Iterable[RecordRow]) -> list[RecordRow]:
        """The namesakes from the ingested folder or work directory of ``rows``: many jobs are called "train"."""
        root_of = {input_.id: input_.root for input_ in self.inputs}
        roots = {root_of.get(input_) for input_, *_ in rows}
        folders = {record.get("work_dir") for *_, record in rows} - {None}
        return [row for row in namesakes if root_of.get(row[0]) in roots or row[2].get("work_dir") in folders]

    def _records_by_id(self, ids: Collection[str]) -> list[RecordRow]:
        """The records of the jobs with these ids, in any spelling, with the tasks of arrays."""
        plain = {plain_id(id_) for id_ in ids} | set(ids)
        numbers = {match[0] for id_ in plain if (match := re.match(r"\d+", id_))} | plain
        return self.records(
            f"kind = 'job' AND (job IN ({parameter_marks(plain)}) OR raw_id IN ({parameter_marks(plain)})"
            f" OR array_id IN ({parameter_marks(numbers)}) OR number IN ({parameter_marks(numbers)}))",
            (*plain, *plain, *numbers, *numbers),
        )

    def _candidate_logs(self, related: Iterable[RecordRow], job: str) -> list[StoredInput]:
        """Logs that may belong to these jobs: by a number in the path, the job's name, or a line inside."""
        ids = {job, plain_id(job)}
        outputs: set[str] = set()
        for *_, record in related:
            job_rows = Job(str(record.get("id")), [record], {str(record.get("id")), str(record.get("raw_id"))})
            ids |= job_rows.names
            outputs |= outputs_of(job_rows)
        numbers = {number for id_ in ids for number in re.findall(r"\d+", id_)}
        return [
            log
            for log in self._logs
            if log.owner in ids or self._numbers_of[log.id] & numbers or leaf_of(log.path) in outputs
        ]

    def _add_rivals(self, related: Sequence[RecordRow], logs: Iterable[StoredInput]) -> list[RecordRow]:
        """The related records, and those of other jobs that may own these logs."""
        ids = set()
        for log in logs:
            ids |= {number for number in self._numbers_of[log.id] if len(number) >= 3}
            ids |= {owner for owner in (log.owner, self._owners.get(log.path)) if owner is not None}
        return _unique([*related, *self._records_by_id(ids)]) if ids else list(related)

    def _has_labels(self, jobs: Collection[str]) -> bool:
        """Whether any series carries the job's id."""
        series = self._snapshot.table("series")
        return bool(
            self._snapshot.rows(f"SELECT 1 FROM {series} WHERE job IN ({parameter_marks(jobs)}) LIMIT 1", tuple(jobs))
        )


def _unique(rows: Iterable[RecordRow]) -> list[RecordRow]:
    """Each record once, in order."""
    return [row for _, row in sorted({row[:2]: row for row in rows}.items())]
