"""A job according to Slurm now: its records, its nodes, its output files, and whether it is still going.

Slurm's replies are passed to the readers unchanged. A command or server that fails, hangs or refuses leaves a row that
says so, and so does a job that accounting does not show. None of these counts as absence.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from trackside.catalog.job_states import Stage
from trackside.errors import UsageError
from trackside.http.unavailable import SourceUnavailable, plain
from trackside.model import Input
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.walk import GuardedPath
from trackside.runs.attempts import attempts_of
from trackside.runs.jobs import Job, JobIndex, collect_jobs
from trackside.runs.parents import same_work
from trackside.site.outputs import outputs
from trackside.site.slurm_commands import SlurmCommands
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import Replies, Reply, Slurm, failed_row, job_id
from trackside.site.slurmrestd import SlurmRest

MAX_JOBS = 64
"""Tasks of an array, or parts of a job, whose output and steps are queried."""
MAX_PARENTS = 8
MAX_NAMESAKE_GAP_S = 86400.0
"""A namesake may be the continued job if it ended at most this long before: same name, user and folder."""


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    """What Slurm knows about a job. ``start``, ``end``, ``nodes``: over all attempts; no end before the job is over."""

    job: str
    replies: tuple[Reply, ...] = ()
    rows: tuple[Input, ...] = ()
    """What could not be queried or read, and why."""
    files: tuple[GuardedPath, ...] = ()
    """Readable output files on this machine: the job's, then its parents'."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Paths of files that belong to one job only, as shown when read -> the job's id."""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths of output that is not on this machine, or not readable -> the ids of its job."""
    stage: Stage = "unknown"
    parents: tuple[str, ...] = ()
    """Jobs whose records are included: those it waited for, or the last of its name."""
    cluster: str = ""
    names: tuple[str, ...] = ()
    """All ids that mean the job: ``60_3`` and its raw ``64``."""
    nodes: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None

    @property
    def logs(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files)

    @property
    def sources(self) -> tuple[InputSource, ...]:
        """The replies as sources to read, new ones at each call."""
        return tuple(reply.source() for reply in self.replies)

    @property
    def is_known(self) -> bool:
        """Whether Slurm has a record of the job."""
        return bool(self.names)

    @property
    def is_going(self) -> bool | None:
        """Whether the job is waiting or running; None if unknown."""
        return None if self.stage == "unknown" else self.stage == "going"


class SeveralClusters(UsageError, ValueError):
    """Several clusters have a job with this id."""

    def __init__(self, job: str, clusters: Sequence[str]) -> None:
        super().__init__(
            f"job {job} is on the clusters {' and '.join(clusters)}; choose one with --cluster, or in slurm.clusters"
        )


def query_slurm(options: SlurmOptions, job: str, environ: Mapping[str, str] = os.environ) -> SlurmAnswer:
    """Query Slurm about a job: ``4242``, ``60_3``, ``73+0``, or one of its steps.

    Raises ValueError for an invalid job id or an unusable URL, SeveralClusters if one must be chosen.
    """
    id_ = job_id(job)
    if options.mode == "rest" and not options.url:
        raise ValueError("slurm.mode is rest, but slurm.url is not set")
    queries = [_ClusterQuery(query, id_) for query in _clusters(options, environ)]
    for query in queries:
        query.query_job()
    matching = [query for query in queries if query.jobs]
    if len(matching) > 1:
        raise SeveralClusters(id_, [query.slurm.cluster for query in matching])
    if not matching:
        return SlurmAnswer(
            id_, rows=tuple(row for query in queries for row in [*query.rows, *query.unknown_job_rows()])
        )
    matching[0].query_references()
    answer = matching[0].answer()
    # Another cluster may have a job with this id too.
    other_rows = [row for query in queries if query is not matching[0] for row in query.rows]
    return replace(answer, rows=(*answer.rows, *other_rows))


def _clusters(options: SlurmOptions, environ: Mapping[str, str]) -> list[Slurm]:
    if options.rest:
        return [SlurmRest(options)]
    return [SlurmCommands(options, cluster, environ) for cluster in options.clusters or ("",)]


@dataclass(slots=True)
class _ClusterQuery:
    """The queries to one cluster about one job, and their replies so far."""

    slurm: Slurm
    id: str
    replies: list[Reply] = field(default_factory=list)
    rows: list[Input] = field(default_factory=list)
    collected: CollectingSink = field(default_factory=CollectingSink)
    files: list[GuardedPath] = field(default_factory=list)
    writers: dict[str, set[str]] = field(default_factory=dict)
    """Paths of files -> the jobs that write to them."""
    elsewhere: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    accounting_answered: bool = False
    """Whether accounting answered."""
    controller_answered: bool = False
    """Whether the controller answered."""
    controller_knows: bool = False
    """Whether the controller knew the job."""

    def query_job(self) -> None:
        """Query both of Slurm's daemons about the job."""
        self.accounting_answered = self._read_replies(self.slurm.accounting([self.id]))
        before = len(self.replies)
        self.controller_answered = self._read_replies(self.slurm.controller(self.id))
        self.controller_knows = len(self.replies) > before

    def query_references(self) -> None:
        """Query what the job refers to: its steps, nodes, output and parents."""
        jobs = self.jobs
        if not any(row.get("source") == "sacct" for job in jobs for row in job.rows) and self.accounting_answered:
            self.rows.append(self._unknown_job_row("accounting"))
        if self.controller_knows and self._stage() == "going":
            # After one timeout the other tasks are not queried.
            all(self._read_replies(self.slurm.steps(job.id)) for job in jobs[:MAX_JOBS])
        nodes = self._nodes()
        if nodes and self.controller_answered:
            self._read_replies(self.slurm.nodes(nodes))
        self._find_outputs(jobs[:MAX_JOBS])
        parents = self._parents()
        self.parents = [job.id for job in parents]
        self._find_outputs(parents)

    def answer(self) -> SlurmAnswer:
        jobs, stage = self.jobs, self._stage()
        starts = [start for job in jobs if (start := job.time("start")) is not None]
        ends = [end for job in jobs if (end := job.time("end", last=True)) is not None]
        return SlurmAnswer(
            self.id,
            tuple(self.replies),
            (*self.rows, *self._runaway_rows()),
            tuple(dict.fromkeys(self.files)),
            {path.lstrip("/"): next(iter(ids)) for path, ids in self.writers.items() if len(ids) == 1},
            self.elsewhere,
            stage,
            tuple(self.parents),
            next((str(name) for job in jobs if (name := job.first("cluster"))), self.slurm.cluster),
            tuple(sorted({name for job in jobs for name in job.names})),
            tuple(self._nodes()),
            min(starts, default=None),
            max(ends, default=None) if stage in ("ended", "settled") else None,
        )

    @property
    def jobs(self) -> list[Job]:
        """The job; or the tasks of an array, or the parts of a job, if their common number was given."""
        return _jobs_of_ids(collect_jobs(self.collected.records), [self.id])

    def unknown_job_rows(self) -> list[Input]:
        """Rows of the daemons that answered and know no such job."""
        return [
            self._unknown_job_row(daemon)
            for daemon, answered in (
                ("accounting", self.accounting_answered),
                ("the controller", self.controller_answered),
            )
            if answered
        ]

    # -- replies

    def _read_replies(self, replies: Replies) -> bool:
        """Read the replies; whether one of them, or an empty list, shows that the query was answered."""
        answered = not replies
        for reply in replies:
            if isinstance(reply, Input):
                self.rows.append(reply)
                continue
            collected = CollectingSink()
            row = read_source(reply.source(), collected)
            if row.plane != "scheduler" and reply.data.strip():
                begins = plain(reply.data[:60].decode("utf-8", "replace"))
                note = f"not a reply of Slurm; it begins with {begins!r}"
                self.rows.append(failed_row(reply.path, SourceUnavailable("broken", note)))
            elif row.status == "unreadable":
                self.rows.append(row)
            else:
                answered = True
                self.collected.records += collected.records
                self.replies += [reply] if row.rows else []
        return answered

    def _unknown_job_row(self, daemon: str) -> Input:
        where = f" of cluster {self.slurm.cluster}" if self.slurm.cluster else ""
        if daemon == "accounting":
            reason = (
                "it never existed here, started seconds ago, or is hidden from other users (PrivateData); "
                "check the id and the cluster, or ask as its owner or an operator"
            )
        else:
            reason = "it ended more than a few minutes ago (MinJobAge), or is another user's (PrivateData)"
        note = f"shows {_user()} no such job: {reason}"
        return Input(f"{daemon}{where}: job {self.id}", None, "empty", note, plane="scheduler")

    # -- conclusions from the records

    def _stage(self) -> Stage:
        if not self.jobs or self._is_hidden():
            return "unknown"
        if any(not _is_over(job, ("sacct", "scontrol", "squeue")) for job in self.jobs) and not self._is_forgotten():
            return "going"
        if (
            self.accounting_answered
            and not all(_is_over(job, ("sacct",)) for job in self.jobs)
            and not self._is_forgotten()
        ):
            return "ended"
        return "settled"

    def _is_forgotten(self) -> bool:
        """Whether the controller does not know a job that is running according to accounting, which missed its end."""
        return self.controller_answered and not self.controller_knows

    def _is_hidden(self) -> bool:
        """Whether the controller may know the job and not show it, because it is another user's."""
        users = {str(job.first("user")) for job in self.jobs}
        going = any(not _is_over(job, ("sacct",)) for job in self.jobs)
        return self._is_forgotten() and going and users != {_user()} and os.geteuid() != 0

    def _runaway_rows(self) -> list[Input]:
        if not self._is_forgotten() or all(_is_over(job, ("sacct",)) for job in self.jobs):
            return []
        note = "accounting shows it as not over, but the controller "
        if self._is_hidden():
            note += f"does not show it to {_user()}, so its state is unknown; ask as its owner or an operator"
        else:
            note += "no longer has it: accounting never received its end"
        return [Input(f"job {self.id}", None, "partial", note)]

    def _nodes(self) -> list[str]:
        return list(dict.fromkeys(node for job in self.jobs for row in job.rows for node in row.many("nodes")))

    def _find_outputs(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            unnamed = not any(row.get("std_out") for row in job.rows)
            job_outputs = outputs(job, self._script(job) if unnamed and self.accounting_answered else "")
            self.files += job_outputs.files
            for path in job_outputs.paths:
                self.writers.setdefault(path, set()).add(job.id)
            self.rows += job_outputs.rows
            self.elsewhere |= dict.fromkeys((row.path for row in job_outputs.rows), tuple(sorted(job.names)))

    def _script(self, job: Job) -> str:
        """The batch script, which is the same for all tasks of an array."""
        number = re.split(r"[_+]", job.id)[0]
        if number not in self.scripts:
            self.scripts[number] = self.slurm.script(number)
        return self.scripts[number]

    # -- the continued job

    def _parents(self) -> list[Job]:
        """The jobs that it depends on, with their records; else the last job of its name."""
        parent_ids = list(dict.fromkeys(parent for job in self.jobs for parent in job.parents))[:MAX_PARENTS]
        if not parent_ids:
            return self._last_of_same_name()
        if self.accounting_answered:
            self._read_replies(self.slurm.accounting(parent_ids))
        elif self.controller_answered:
            for parent in parent_ids:
                self._read_replies(self.slurm.controller(parent))
        return _jobs_of_ids(collect_jobs(self.collected.records), parent_ids)[:MAX_PARENTS]

    def _last_of_same_name(self) -> list[Job]:
        """The job of the same name, user and folder that was the last to end before this one started."""
        if len(self.jobs) != 1 or not self.accounting_answered:
            return []
        [job] = self.jobs
        start, name, user = job.time("start"), job.first("name"), job.first("user")
        if start is None or name is None or user is None or "_" in job.id or len(attempts_of(job.rows)) > 1:
            return []
        same_name_query = _ClusterQuery(self.slurm, self.id)
        same_name_query._read_replies(self.slurm.jobs_named(str(name), str(user), start - MAX_NAMESAKE_GAP_S, start))
        candidates = [
            (end, other.id)
            for other in collect_jobs(same_name_query.collected.records)
            if other.id not in job.names and "_" not in other.id and same_work(job, other)
            if (end := other.time("end", last=True)) is not None and start - MAX_NAMESAKE_GAP_S <= end <= start
        ]
        if not candidates:
            return []
        last = max(candidates)[1]
        self._read_replies(self.slurm.accounting([last]))
        last_job = collect_jobs(self.collected.records).find(last)
        return [last_job] if last_job is not None else []


def _jobs_of_ids(jobs: JobIndex, ids: Iterable[str]) -> list[Job]:
    """The jobs with these ids, each once; a common number means all its tasks or parts."""
    matching = [job for id_ in ids for job in [jobs.find(id_), *jobs.parts(id_)] if job is not None]
    return list({job.id: job for job in matching}.values())


def _is_over(job: Job, sources: Sequence[str]) -> bool:
    """Whether the last attempt in these sources is over and no other follows, as after a requeue."""
    attempts = attempts_of([row for row in job.rows if row.get("source") in sources])
    return bool(attempts) and attempts[-1].over and attempts[-1].state != "REQUEUED"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name
        return f"uid {os.geteuid()}"
