"""A job as Slurm tells of it now: its records, its nodes, where its output is, and whether it still goes on.

What Slurm says is handed to the readers as it came. A command or server that fails, hangs or refuses leaves a row that
says so; so does a job that accounting doesn't show. Nothing of that is ever taken for an absence.
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
from trackside.read.format import CollectingSink, Source
from trackside.read.walk import GuardedPath
from trackside.runs.attempts import attempts_of
from trackside.runs.jobs import Job, Jobs, collect
from trackside.runs.parents import same_work
from trackside.site.outputs import outputs
from trackside.site.slurm_commands import Commands
from trackside.site.slurm_options import SlurmOptions
from trackside.site.slurm_replies import Replies, Reply, Slurm, failed, job_id
from trackside.site.slurmrestd import Rest

MOST_JOBS = 64
"""Tasks of an array, or parts of a job, whose output and steps are looked for."""
MOST_PARENTS = 8
NAMESAKE_S = 86400.0
"""How long before a job's start the one must have ended that it may continue: same name, user and folder."""


@dataclass(frozen=True, slots=True)
class SlurmAnswer:
    """What Slurm tells of a job. ``start``, ``end``, ``nodes``: of all its attempts; an end only once it is over."""

    job: str
    replies: tuple[Reply, ...] = ()
    rows: tuple[Input, ...] = ()
    """What could not be asked or read, and why."""
    files: tuple[GuardedPath, ...] = ()
    """Of output, that are here and readable: the job's, then its parents'."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """Paths of the files that are one job's alone, as they are shown when read -> its id."""
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Paths of output that are not here, or not to be read -> the ids of the job whose they are."""
    stage: Stage = "unknown"
    parents: tuple[str, ...] = ()
    """Jobs whose records were taken along: those it waited for, or the last of its name."""
    cluster: str = ""
    names: tuple[str, ...] = ()
    """All ids that mean the job: ``60_3`` and its raw ``64``."""
    nodes: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None

    @property
    def logs(self) -> tuple[str, ...]:
        return tuple(each.path for each in self.files)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The replies to be read, new each time."""
        return tuple(reply.source() for reply in self.replies)

    @property
    def known(self) -> bool:
        """Whether anybody had a record of the job."""
        return bool(self.names)

    @property
    def going(self) -> bool | None:
        """Whether it still waits or runs; None where nobody could say."""
        return None if self.stage == "unknown" else self.stage == "going"


class SeveralClusters(UsageError, ValueError):
    """More than one of the clusters has a job of this id."""

    def __init__(self, job: str, clusters: Sequence[str]) -> None:
        super().__init__(
            f"job {job} is on the clusters {' and '.join(clusters)}; choose one with --cluster, or in slurm.clusters"
        )


def live(options: SlurmOptions, job: str, environ: Mapping[str, str] = os.environ) -> SlurmAnswer:
    """Ask Slurm for a job: ``4242``, ``60_3``, ``73+0``, or one of its steps.

    Raises ValueError for what is no job's id or a URL that can't be used, SeveralClusters for a choice to be made.
    """
    id_ = job_id(job)
    if options.mode == "rest" and not options.url:
        raise ValueError("slurm.mode is rest, and no slurm.url is set")
    asked = [_Asking(each, id_) for each in _clusters(options, environ)]
    for each in asked:
        each.ask()
    found = [each for each in asked if each.mine]
    if len(found) > 1:
        raise SeveralClusters(id_, [each.slurm.cluster for each in found])
    if not found:
        return SlurmAnswer(id_, rows=tuple(row for each in asked for row in [*each.rows, *each.strangers()]))
    found[0].follow()
    answer = found[0].answer()
    elsewhere = [row for each in asked if each is not found[0] for row in each.rows]  # they could have it too
    return replace(answer, rows=(*answer.rows, *elsewhere))


def _clusters(options: SlurmOptions, environ: Mapping[str, str]) -> list[Slurm]:
    if options.rest:
        return [Rest(options)]
    return [Commands(options, cluster, environ) for cluster in options.clusters or ("",)]


@dataclass(slots=True)
class _Asking:
    """One cluster asked for one job: what it said so far."""

    slurm: Slurm
    id: str
    replies: list[Reply] = field(default_factory=list)
    rows: list[Input] = field(default_factory=list)
    found: CollectingSink = field(default_factory=CollectingSink)
    files: list[GuardedPath] = field(default_factory=list)
    claims: dict[str, set[str]] = field(default_factory=dict)
    """Paths of files -> the jobs that write to them."""
    elsewhere: dict[str, tuple[str, ...]] = field(default_factory=dict)
    parents: list[str] = field(default_factory=list)
    scripts: dict[str, str] = field(default_factory=dict)
    accounted: bool = False
    """Accounting answered."""
    controlled: bool = False
    """The controller answered."""
    remembered: bool = False
    """And knew the job."""

    def ask(self) -> None:
        """Both of Slurm's daemons for the job."""
        self.accounted = self._take(self.slurm.accounting([self.id]))
        before = len(self.replies)
        self.controlled = self._take(self.slurm.controller(self.id))
        self.remembered = len(self.replies) > before

    def follow(self) -> None:
        """What the job leads to: its steps, nodes, output and parents."""
        mine = self.mine
        if not any(row.get("source") == "sacct" for job in mine for row in job.rows) and self.accounted:
            self.rows.append(self._stranger("accounting"))
        if self.remembered and self._stage() == "going":
            # What hangs once is not asked again for each task.
            all(self._take(self.slurm.steps(job.id)) for job in mine[:MOST_JOBS])
        nodes = self._nodes()
        if nodes and self.controlled:
            self._take(self.slurm.nodes(nodes))
        self._outputs(mine[:MOST_JOBS])
        parents = self._parents()
        self.parents = [job.id for job in parents]
        self._outputs(parents)

    def answer(self) -> SlurmAnswer:
        mine, stage = self.mine, self._stage()
        starts = [start for job in mine if (start := job.time("start")) is not None]
        ends = [end for job in mine if (end := job.time("end", last=True)) is not None]
        return SlurmAnswer(
            self.id,
            tuple(self.replies),
            (*self.rows, *self._runaways()),
            tuple(dict.fromkeys(self.files)),
            {path.lstrip("/"): next(iter(ids)) for path, ids in self.claims.items() if len(ids) == 1},
            self.elsewhere,
            stage,
            tuple(self.parents),
            next((str(name) for job in mine if (name := job.first("cluster"))), self.slurm.cluster),
            tuple(sorted({name for job in mine for name in job.names})),
            tuple(self._nodes()),
            min(starts, default=None),
            max(ends, default=None) if stage in ("ended", "settled") else None,
        )

    @property
    def mine(self) -> list[Job]:
        """The job; or the tasks of an array, the parts of a job, where their common number was given."""
        return _meant(collect(self.found.records), [self.id])

    def strangers(self) -> list[Input]:
        """Rows of those who answered and know no such job."""
        return [
            self._stranger(who)
            for who, answered in (("accounting", self.accounted), ("the controller", self.controlled))
            if answered
        ]

    # -- taking replies

    def _take(self, replies: Replies) -> bool:
        """Read the replies; whether one of them, or an empty list, shows that the question was answered."""
        answered = not replies
        for each in replies:
            if isinstance(each, Input):
                self.rows.append(each)
                continue
            found = CollectingSink()
            row = read_source(each.source(), found)
            if row.plane != "scheduler" and each.data.strip():
                begins = plain(each.data[:60].decode("utf-8", "replace"))
                note = f"no answer that Slurm gives; it begins with {begins!r}"
                self.rows.append(failed(each.path, SourceUnavailable("broken", note)))
            elif row.status == "unreadable":
                self.rows.append(row)
            else:
                answered = True
                self.found.records += found.records
                self.replies += [each] if row.rows else []
        return answered

    def _stranger(self, who: str) -> Input:
        where = f" of cluster {self.slurm.cluster}" if self.slurm.cluster else ""
        if who == "accounting":
            why = (
                "it never was here, began seconds ago, or is hidden from other users than its own (PrivateData): "
                "check the id and the cluster, or ask as its owner or an operator"
            )
        else:
            why = "it ended more than some minutes ago (MinJobAge), or is another user's (PrivateData)"
        note = f"shows {_user()} no such job: {why}"
        return Input(f"{who}{where}: job {self.id}", None, "empty", note, plane="scheduler")

    # -- what the records say

    def _stage(self) -> Stage:
        if not self.mine or self._hidden():
            return "unknown"
        if any(not _over(job, ("sacct", "scontrol", "squeue")) for job in self.mine) and not self._forgotten():
            return "going"
        if self.accounted and not all(_over(job, ("sacct",)) for job in self.mine) and not self._forgotten():
            return "ended"
        return "settled"

    def _forgotten(self) -> bool:
        """Whether the controller knows nothing of a job that accounting has as going on: its end was never told."""
        return self.controlled and not self.remembered

    def _hidden(self) -> bool:
        """The same, where the controller may only be hiding another user's job."""
        users = {str(job.first("user")) for job in self.mine}
        going = any(not _over(job, ("sacct",)) for job in self.mine)
        return self._forgotten() and going and users != {_user()} and os.geteuid() != 0

    def _runaways(self) -> list[Input]:
        if not self._forgotten() or all(_over(job, ("sacct",)) for job in self.mine):
            return []
        note = "accounting has it as not yet over, and the controller "
        if self._hidden():
            note += f"doesn't show it to {_user()}: whether it goes on is unknown; ask as its owner or an operator"
        else:
            note += "knows no such job: its end was never accounted for"
        return [Input(f"job {self.id}", None, "partial", note)]

    def _nodes(self) -> list[str]:
        return list(dict.fromkeys(node for job in self.mine for row in job.rows for node in row.many("nodes")))

    def _outputs(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            unnamed = not any(row.get("std_out") for row in job.rows)
            found = outputs(job, self._script(job) if unnamed and self.accounted else "")
            self.files += found.files
            for path in found.paths:
                self.claims.setdefault(path, set()).add(job.id)
            self.rows += found.rows
            self.elsewhere |= dict.fromkeys((row.path for row in found.rows), tuple(sorted(job.names)))

    def _script(self, job: Job) -> str:
        """The batch script, which is one for all tasks of an array."""
        number = re.split(r"[_+]", job.id)[0]
        if number not in self.scripts:
            self.scripts[number] = self.slurm.script(number)
        return self.scripts[number]

    # -- what it continues

    def _parents(self) -> list[Job]:
        """The jobs that it was told to wait for, with their records; else the last of its name."""
        wanted = list(dict.fromkeys(parent for job in self.mine for parent in job.parents))[:MOST_PARENTS]
        if not wanted:
            return self._namesake()
        if self.accounted:
            self._take(self.slurm.accounting(wanted))
        elif self.controlled:
            for parent in wanted:
                self._take(self.slurm.controller(parent))
        return _meant(collect(self.found.records), wanted)[:MOST_PARENTS]

    def _namesake(self) -> list[Job]:
        """The job of the same name, user and folder that ended last before this one began."""
        if len(self.mine) != 1 or not self.accounted:
            return []
        [job] = self.mine
        start, name, user = job.time("start"), job.first("name"), job.first("user")
        if start is None or name is None or user is None or "_" in job.id or len(attempts_of(job.rows)) > 1:
            return []
        listed = _Asking(self.slurm, self.id)
        listed._take(self.slurm.namesakes(str(name), str(user), start - NAMESAKE_S, start))
        before = [
            (end, other.id)
            for other in collect(listed.found.records)
            if other.id not in job.names and "_" not in other.id and same_work(job, other)
            if (end := other.time("end", last=True)) is not None and start - NAMESAKE_S <= end <= start
        ]
        if not before:
            return []
        last = max(before)[1]
        self._take(self.slurm.accounting([last]))
        found = collect(self.found.records).named(last)
        return [found] if found is not None else []


def _meant(jobs: Jobs, ids: Iterable[str]) -> list[Job]:
    """The jobs of these ids, each once: all tasks or parts where it is their common number."""
    found = [job for id_ in ids for job in [jobs.named(id_), *jobs.parts(id_)] if job is not None]
    return list({job.id: job for job in found}.values())


def _over(job: Job, sources: Sequence[str]) -> bool:
    """Whether the last attempt that these sources tell of is over and no other is to follow, as on a requeue."""
    told = attempts_of([row for row in job.rows if row.get("source") in sources])
    return bool(told) and told[-1].over and told[-1].state != "REQUEUED"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return f"uid {os.geteuid()}"
