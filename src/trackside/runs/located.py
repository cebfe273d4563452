"""Where a store keeps a job: its records, its logs, those of the run before it, and the folders they came from.

Which log is whose depends on which other jobs there are (:mod:`trackside.runs.logs`), so the records of all jobs that a
log could belong to instead are looked up with it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
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

SAME_NAME = 200
"""Jobs of the same name, the latest before it, that may be the run that it continues; and of one output file."""
HOST = "(CASE WHEN regexp_full_match({0}, '[0-9.]+') THEN {0} ELSE lower(split_part({0}, '.', 1)) END)"
"""SQL for a node as nodes are compared."""
Told = tuple[int, int, Record]
"""A record, after its input and its ordinal there."""


@dataclass(frozen=True, slots=True)
class Located:
    """One job in a store. ``logs`` are its own, its parent's, and others that might have been; ``records`` those of all
    their jobs; ``home`` the inputs that came in one folder with the job's records or logs."""

    run: Run
    ids: frozenset[str]
    home: frozenset[int]
    records: tuple[Told, ...]
    logs: tuple[StoredInput, ...]


def inputs_of(snapshot: Snapshot) -> list[StoredInput]:
    """All inputs, in the order in which they were first seen."""
    rows = snapshot.rows(f"SELECT {INPUT} FROM {snapshot.table('inputs')} ORDER BY place")
    return [input_of(row) for row in rows]


def marks(values: Collection[object]) -> str:
    """So many parameters of an SQL list; an empty list has one that nothing equals."""
    return ", ".join("?" * len(values)) or "NULL"


def ends(root: str, end: str) -> bool:
    """Whether a folder's path ends in these whole parts; every path ends in none."""
    return not end or f"/{root.strip('/')}".endswith(f"/{end.strip('/')}")


def short_names(roots: Collection[str]) -> dict[str, str]:
    """Each folder by as much of the end of its path as tells it from the others."""
    names = {}
    for root in roots:
        parts = root.strip("/").split("/")
        tails = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        names[root] = next((tail for tail in tails if sum(ends(other, tail) for other in roots) == 1), root)
    return names


def named_job(each: StoredInput) -> Event:
    """Stands for a log's lines that name its job, where the lines themselves need not be read."""
    return Event("host", Position(each.path, 0), "log", fields={"job": each.owner})


class Locator:
    """Finds jobs in one snapshot. ``given``: paths of inputs that are known to concern the job that is asked for;
    ``owners``: those of logs whose job is known -> its id."""

    def __init__(
        self, snapshot: Snapshot, given: Collection[str] = (), owners: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._snapshot, self._given, self._owners = snapshot, frozenset(given), owners
        self.inputs = inputs_of(snapshot)
        self._logs = [each for each in self.inputs if each.is_log]
        self._numbers_of = {each.id: frozenset(re.findall(r"\d{1,10}", each.path)) for each in self._logs}

    def located(self, job: str) -> Located:
        """A job by any spelling of its id. Raises SeveralRuns or NoSuchRun."""
        family = self._family(job)
        near = self._near(family, job)
        run = self._resolved(self._with_rivals(family, near), near, job, ())
        ids = frozenset({run.id or job, *run.aliases, job})
        of_it = {input_ for input_, _, record in family if {str(record.get("id")), str(record.get("raw_id"))} & ids}
        roots = {each.root for each in self.inputs if each.id in of_it or each.path in run.log_paths}
        home = frozenset(each.id for each in self.inputs if each.root in roots or each.path in self._given)
        also = home.union(each.id for each in near)
        logs = [each for each in self._logs if each.id in also]
        records = self._with_rivals(family, logs)
        run = self._resolved(records, logs, job, [each.path for each in logs if each.id in home])
        if not of_it and not run.log_paths and not self._labelled(ids):
            raise NoSuchRun(
                f"no job {job} in the store; 'trackside runs --store {self._snapshot.directory.path}' lists them"
            )
        return Located(run, ids, home, tuple(records), tuple(logs))

    def chosen(self) -> Run:
        """The run that the whole store is about. Raises SeveralRuns where there are several."""
        return self._resolved(self.records("kind = 'job'"), self._logs, None, None)

    def records(
        self, where: str, parameters: Sequence[object] = (), tail: str = "", inputs: Collection[int] | None = None
    ) -> list[Told]:
        """Records by a condition over their columns."""
        source = self._snapshot.table("records", inputs)
        rows: list[tuple[Any, ...]] = self._snapshot.rows(
            f"SELECT input, seq, {RECORD} FROM {source} WHERE {where} {tail}", parameters
        )
        return [(row[0], row[1], record_of(row[2:])) for row in rows]

    def _resolved(
        self, records: Iterable[Told], logs: Iterable[StoredInput], job: str | None, home: Collection[str] | None
    ) -> Run:
        store = MemoryStore()
        paths = []
        for *_, record in records:
            store.add_record(record)
        for each in logs:
            paths.append(each.path)
            if each.owner is not None:
                store.add_event(named_job(each))
        return resolve(store, job, paths, home, self._owners).run

    def _family(self, job: str) -> list[Told]:
        """The records of a job, of those it waits for, of namesakes before it, and of whoever writes to its file."""
        told = self._by_id({job})
        parents = {parent for *_, record in told for parent in record.many("parents")}
        told += self._by_id(parents) if parents else []
        names = {str(name) for *_, record in told if (name := record.get("name")) is not None}
        starts = [start for *_, record in told if isinstance(start := record.get("start"), (int, float))]
        if names and starts:
            told += self._same_work(
                told,
                self.records(
                    f"kind = 'job' AND name IN ({marks(names)}) AND \"end\" <= ?",
                    (*names, max(starts)),
                    f'ORDER BY "end" DESC LIMIT {SAME_NAME}',
                ),
            )
        paths = {str(path) for *_, record in told for key in ("std_out", "std_err") if (path := record.get(key))}
        outputs = {leaf_of(path) for path in paths if "%" not in leaf_of(path)}
        if outputs:
            told += self.records(
                f"kind = 'job' AND list_has_any(string_split(outputs, '/'), [{marks(outputs)}])",
                tuple(outputs),
                f"LIMIT {SAME_NAME}",
            )
        return _once(told)

    def _same_work(self, told: Sequence[Told], namesakes: Iterable[Told]) -> list[Told]:
        """Those that came in a folder with the job's, or were submitted from the same: many jobs are called "train"."""
        root_of = {each.id: each.root for each in self.inputs}
        roots = {root_of.get(input_) for input_, *_ in told}
        folders = {record.get("work_dir") for *_, record in told} - {None}
        return [each for each in namesakes if root_of.get(each[0]) in roots or each[2].get("work_dir") in folders]

    def _by_id(self, ids: Collection[str]) -> list[Told]:
        plain = {plain_id(each) for each in ids} | set(ids)
        whole = {found[0] for each in plain if (found := re.match(r"\d+", each))} | plain
        return self.records(
            f"kind = 'job' AND (job IN ({marks(plain)}) OR raw_id IN ({marks(plain)})"
            f" OR array_id IN ({marks(whole)}) OR number IN ({marks(whole)}))",
            (*plain, *plain, *whole, *whole),
        )

    def _near(self, family: Iterable[Told], job: str) -> list[StoredInput]:
        """Logs that may be these jobs': by a number in their path, their name, or a line in them."""
        ids = {job, plain_id(job)}
        outputs: set[str] = set()
        for *_, record in family:
            told = Job(str(record.get("id")), [record], {str(record.get("id")), str(record.get("raw_id"))})
            ids |= told.names
            outputs |= outputs_of(told)
        numbers = {number for each in ids for number in re.findall(r"\d+", each)}
        return [
            each
            for each in self._logs
            if each.owner in ids or self._numbers_of[each.id] & numbers or leaf_of(each.path) in outputs
        ]

    def _with_rivals(self, family: Sequence[Told], logs: Iterable[StoredInput]) -> list[Told]:
        """The records, and those of other jobs that these logs may belong to."""
        ids = set()
        for each in logs:
            ids |= {number for number in self._numbers_of[each.id] if len(number) >= 3}
            ids |= {owner for owner in (each.owner, self._owners.get(each.path)) if owner is not None}
        return _once([*family, *self._by_id(ids)]) if ids else list(family)

    def _labelled(self, jobs: Collection[str]) -> bool:
        """Whether any curve carries the job's id."""
        series = self._snapshot.table("series")
        return bool(self._snapshot.rows(f"SELECT 1 FROM {series} WHERE job IN ({marks(jobs)}) LIMIT 1", tuple(jobs)))


def _once(told: Iterable[Told]) -> list[Told]:
    """Each record once, in order."""
    return [each for _, each in sorted({each[:2]: each for each in told}.items())]
