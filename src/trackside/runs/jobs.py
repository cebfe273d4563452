"""The jobs in the inputs: the records of each, grouped under one id."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from trackside.model import Record, Scalar

OTHER_SYSTEMS = ("lsf", "pbs", "grid_engine", "htcondor", "flux", "kubernetes", "sagemaker")
"""Batch systems other than Slurm."""
SOURCES = ("sacct", "jobcomp", "scontrol", "seff", "slurm_mail", *OTHER_SYSTEMS, "squeue", "slurmctld")
"""Sources of job records, the most final first."""
_STEP_SUFFIX = re.compile(r"\.(?:batch|extern|interactive|\d+|[A-Za-z]\w*)\Z")
_ID_WITH_RAW_ID = re.compile(r"(\d+[_+]\d+)\((\d+)\)\Z")


@dataclass(slots=True, eq=False)
class Job:
    """One job: its records from all sources (``rows``), all spellings of its id, the paths of its logs."""

    id: str
    rows: list[Record] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """The ids that mean this job: ``60_3`` and its raw ``64``; ``73+0`` and ``73``."""
    logs: list[str] = field(default_factory=list)

    def has(self, source: str) -> bool:
        """Whether this source has a record of the job."""
        return any(row.get("source") == source for row in self.rows)

    @property
    def started(self) -> bool:
        """Whether the job ever ran, according to its logs and records."""
        return bool(self.logs) or any(row.get("start") is not None for row in self.rows)

    def first(self, name: str) -> Scalar:
        """A field from the first source that has it."""
        for source in SOURCES:
            for row in self.rows:
                if row.get("source") == source and (value := row.get(name)) is not None:
                    return value
        return None

    def time(self, name: str, last: bool = False) -> float | None:
        """The earliest (``last``: latest) value of a time in all records, POSIX seconds."""
        times = [float(value) for row in self.rows if isinstance(value := row.get(name), (int, float))]
        return None if not times else max(times) if last else min(times)

    @property
    def parents(self) -> tuple[str, ...]:
        """Ids of the jobs that this job depends on."""
        return tuple(dict.fromkeys(parent for row in self.rows for parent in row.many("parents")))


def plain_id(text: str) -> str:
    """A job id without its step: ``7.batch`` is ``7``; ``60_3(64)`` is ``60_3``."""
    text = text.strip()
    match = _ID_WITH_RAW_ID.match(text)
    return match[1] if match else _STEP_SUFFIX.sub("", text)


class JobIndex:
    """All jobs, found by any of their ids."""

    def __init__(self) -> None:
        self._all: dict[str, Job] = {}
        self._names: dict[str, Job] = {}
        self._parts: dict[str, list[Job]] = {}

    def __iter__(self) -> Iterator[Job]:
        return iter(self._all.values())

    def __len__(self) -> int:
        return len(self._all)

    def add(self, id_: str) -> Job:
        """The job with this id; added if it is new."""
        job = self._all.get(id_)
        if job is None:
            job = self._all[id_] = self._names[id_] = Job(id_, names={id_})
            number = re.split(r"[_+]", id_, maxsplit=1)[0]
            if number != id_:
                self._parts.setdefault(number, []).append(job)
        return job

    def assign_records_without_id(self) -> None:
        """Give the records without an id to the only job that has one."""
        without_id = self._all.get("")
        if without_id is not None and len(self._all) == 2:
            job = next(job for job in self._all.values() if job is not without_id)
            job.rows += without_id.rows
            del self._all[""], self._names[""]

    def add_alias(self, job: Job, name: str) -> None:
        """Make another id mean this job too."""
        job.names.add(name)
        self._names.setdefault(name, job)

    def find(self, id_: str) -> Job | None:
        """The job that an id means, in any spelling."""
        return self._all.get(id_) or self._names.get(id_)

    def parts(self, number: str) -> list[Job]:
        """The array tasks or het parts under a job number."""
        return self._parts.get(number, [])


def collect_jobs(records: Iterable[Record]) -> JobIndex:
    """The jobs in these records, in order of first appearance."""
    rows = [row for row in records if row.kind == "job"]
    # A part of a record may lack the id: it is about the only job.
    rows = [row for row in rows if row.get("id") is not None] or rows
    id_of_raw: dict[str, str] = {}
    for row in rows:
        id_, raw = _id_of(row), row.get("raw_id")
        # The last task of an array has the array's own number as its raw id: that number means the array.
        if raw is not None and raw != id_ and raw != row.get("array_id") and "[" not in id_:
            id_of_raw.setdefault(str(raw), id_)
    jobs = JobIndex()
    for row in rows:
        id_ = _id_of(row)
        job = jobs.add(id_of_raw.get(id_, id_))
        job.rows.append(row)
        if row.get("raw_id") is not None and row.get("raw_id") != row.get("array_id"):
            jobs.add_alias(job, str(row.get("raw_id")))
    return jobs


def _id_of(row: Record) -> str:
    """The id that a record gives, or an empty text."""
    id_ = row.get("id")
    return "" if id_ is None else str(id_)
