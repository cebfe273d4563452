"""Find the run that the inputs are about, and keep only its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from trackside.catalog.natural import natural
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.evidence import UNANSWERED
from trackside.model import Event, Record, Run, Scalar
from trackside.query import Row
from trackside.runs import clock
from trackside.runs.attempts import Told, attempts_of, final, numbered
from trackside.runs.clock import Span
from trackside.runs.jobs import Job, Jobs, collect, plain_id
from trackside.runs.logs import assign, ids_inside
from trackside.runs.parents import last_of_chain, parent_of
from trackside.runs.ranks import Ranks, Tasks
from trackside.stores.memory import MemoryStore

_SIZES = ("host", "distributed_init", "distributed_ready", "nccl_init")
_FRAMEWORKS = ("training_plan", "training_start", "training_end")
_DUMPS = ("flight_recorder", "flight_recorder_group")
"""Kinds of records that may name the job that they are of."""
_EXITS = ("process_exit", "launcher_failure")


@dataclass(frozen=True, slots=True)
class Adjust:
    """Puts the run's log events and its parent's points on the scheduler's clock, and counts ranks over all nodes."""

    logs: frozenset[str]
    offset: float
    span: Span | None
    ranks: Ranks
    tasks: Tasks

    def __call__(self, event: Event) -> Event:
        """The event as it stands in the narrowed store."""
        if event.at.path in self.logs:
            return self.tasks.ranked(self.ranks.globally(clock.shifted(event, self.offset, self.span)))
        return clock.shifted(event, self.offset, None)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The run, and the store narrowed to it."""

    run: Run
    store: MemoryStore
    adjust: Adjust
    """To be applied to the training points of its logs and its parent's, which are kept elsewhere."""


def resolve(
    store: MemoryStore,
    job: str | None = None,
    paths: Iterable[str] = (),
    home: Collection[str] | None = None,
    owners: Mapping[str, str] = MappingProxyType({}),
) -> Resolved:
    """Find the run; ``paths`` are files with training points beyond those that have rows in the store.

    ``home``: the logs that came in one folder with the run's; None: all did. ``owners``: logs whose job is
    known -> its id. Raises SeveralRuns or NoSuchRun.
    """
    rows = list(store.all_rows())
    events = [row for row in rows if isinstance(row, Event) and row.plane == "log" and row.kind != UNANSWERED]
    files = list(dict.fromkeys([*(event.at.path for event in events), *paths]))
    jobs = collect(row for row in rows if isinstance(row, Record))
    free = set(assign(jobs, files, ids_inside(events), owners))
    if not len(jobs):  # stacks of a job's processes are all that there is
        for id_ in sorted(
            {str(named) for row in rows if row.kind == "stack" and (named := row.get("job")) is not None}
        ):
            jobs.add(id_)
    chosen = _asked(jobs, job) if job is not None else _choose(jobs)
    told = attempts_of(chosen.rows)
    parent, parent_by = parent_of(chosen, jobs, len(numbered(told)))
    before = jobs.named(parent) if parent is not None and parent_by != "requeue" else None
    # A log that nobody claims is the run's, unless a job beside it and its parent has logs as well.
    beside = set(files if home is None else home)
    alone = beside.isdisjoint(path for each in jobs if each is not chosen and each is not before for path in each.logs)
    claimed = {*chosen.logs, *(free & beside if alone else ())}
    logs = tuple(path for path in files if path in claimed)
    mine = [event for event in events if event.at.path in set(logs)]
    span = _span(told)
    last = final(told) or Told(())
    tasks = Tasks(mine, _world(mine) or _whole(last.get("n_gpus")), _whole(last.get("n_tasks")))
    adjust = Adjust(frozenset(logs), clock.offset_of(_times(mine), span), span, Ranks(mine), tasks)
    run = replace(
        _run(chosen, told, mine, adjust.ranks),
        parent=parent,
        parent_by=parent_by,
        log_paths=logs,
        parent_log_paths=tuple(before.logs) if before is not None else (),
        clock_offset_s=adjust.offset,
    )
    others = frozenset(files) - adjust.logs
    return Resolved(run, _narrow(rows, store, chosen, others, adjust), adjust)


def _whole(value: Scalar) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _asked(jobs: Jobs, asked: str) -> Job:
    """The job that ``--job`` names: by any spelling of its id, its array's, or one of its steps'."""
    id_ = plain_id(asked)
    exact = jobs.named(asked.strip()) or jobs.named(id_)
    if exact is not None:
        return exact
    tasks = jobs.parts(id_)
    if len(tasks) == 1:
        return tasks[0]
    if tasks:
        raise SeveralRuns(_listed(tasks))
    if not len(jobs):
        return Job(id_, names={id_})
    raise NoSuchRun(
        f"no job {asked} in the inputs" + (f"; they hold {', '.join(_listed(jobs)[:20])}" if len(jobs) else "")
    )


def _choose(jobs: Jobs) -> Job:
    """The job that the inputs are about: the only one, or the last of a chain, among those that most is known of.

    A job that only a listing of the whole cluster shows doesn't compete with one that has a log or an accounting row.
    """
    logged = [job for job in jobs if job.logs]
    accounted = [job for job in jobs if job.has("sacct") and "[" not in job.id]
    both = [job for job in logged if job.has("sacct")]
    strong = [*accounted, *(job for job in logged if not job.has("sacct"))]
    for pool in (strong, both, logged) if logged else (accounted,):
        if pool and (last := last_of_chain(pool, jobs)) is not None:
            return last
    if strong:
        raise SeveralRuns(_listed(both or logged or accounted))
    for source in ("scontrol", "jobcomp", "squeue"):
        pool = [job for job in jobs if job.has(source) and "[" not in job.id]
        if pool:
            if (last := last_of_chain(pool, jobs)) is not None:
                return last
            raise SeveralRuns(_listed(pool))
    return next(iter(jobs), Job(""))


def _listed(jobs: Iterable[Job]) -> list[str]:
    return sorted((job.id for job in jobs), key=natural)


def _run(job: Job, told: Sequence[Told], mine: Sequence[Event], ranks: Ranks) -> Run:
    """The facts of a job's last attempt, completed from its log."""
    last = final(told) or Told(())
    signals = frozenset(n for e in mine if e.kind in _EXITS and isinstance(n := e.get("signal"), int))
    submits = [time for each in told if (time := each.time("submit")) is not None]

    def text(name: str) -> str | None:
        value = last.get(name) if last.get(name) is not None else job.first(name)
        return None if value is None else str(value)

    gpus = last.get("n_gpus")
    return Run(
        id=job.id or None,
        name=text("name"),
        user=text("user"),
        cluster=text("cluster"),
        disposition=last.state,
        exit_code=last.exit_code(signals) if last.over else None,
        signal=last.signal if last.over else None,
        submit=min(submits, default=None),
        start=last.time("start"),
        end=last.end,
        time_limit_s=last.time("time_limit_s"),
        nodes=last.nodes,
        n_ranks=_world(mine) or ranks.count or None,
        n_gpus=gpus if isinstance(gpus, int) else None,
        attempts=numbered(told, signals),
        framework=_framework(mine),
        aliases=tuple(sorted(job.names - {job.id}, key=natural)),
    )


def _world(mine: Iterable[Event]) -> int | None:
    """The largest world that the log tells of; the launcher's and the group's word before NCCL's."""
    sizes = dict.fromkeys(_SIZES, 0)
    for event in mine:
        if event.kind in sizes:
            told = event.get("world_size") if event.kind != "nccl_init" else event.get("nranks")
            sizes[event.kind] = max(sizes[event.kind], told if isinstance(told, int) else 0)
    return max(sizes["host"], sizes["distributed_init"], sizes["distributed_ready"]) or sizes["nccl_init"] or None


def _framework(mine: Iterable[Event]) -> str | None:
    names = Counter(str(e.get("framework")) for e in mine if e.kind in _FRAMEWORKS and e.get("framework"))
    return names.most_common(1)[0][0] if names else None


def _span(told: Sequence[Told]) -> Span | None:
    """From the first start to the last end of the job's attempts."""
    starts = [start for each in told if (start := each.time("start")) is not None]
    last = final(told)
    return (min(starts), last.end if last is not None else None) if starts else None


def _times(mine: Iterable[Event]) -> list[float]:
    """The first and last times of the logs."""
    told = (event.get(name) for event in mine if event.kind == "log_activity" for name in ("first_time", "last_time"))
    return [float(time) for time in told if isinstance(time, (int, float))]


def _narrow(rows: Iterable[Row], store: MemoryStore, job: Job, others: frozenset[str], adjust: Adjust) -> MemoryStore:
    """The rows of the run. ``others`` are logs of other jobs, its parent's among them: what that one raised or loaded
    is not this one's."""
    narrow = MemoryStore(planes=store.planes)
    for row in rows:
        if isinstance(row, Record):
            told = row.get("job")
            if row.kind == "job" or (row.kind == "step" and str(told) not in job.names):
                continue
            if told is not None and row.kind in _DUMPS and job.id and str(told) not in job.names:
                continue
            narrow.add_record(row)
        elif row.plane == "log":
            if row.at.path not in others:
                narrow.add_event(adjust(row))
        elif _concerns(row, job):
            narrow.add_event(row)
    for attempt in attempts_of(job.rows):
        for record in reversed(attempt.rows):  # the most final word last
            narrow.add_record(record)
    return narrow


def _concerns(event: Event, job: Job) -> bool:
    """Whether a row that is in no job's log is about this job: its nodes' states are, other jobs' fates are not."""
    if event.plane == "trace":
        told = event.get("job")
        return told is None or not job.id or bool({str(told), plain_id(str(told))} & job.names)
    if event.plane != "scheduler":
        return True
    if event.kind == "log_activity":
        return False  # the controller's log is no sign of the job's life
    about = event.get("job")
    return (
        about is None
        or event.kind == "node_state"
        or not job.id
        or bool({str(about), plain_id(str(about))} & job.names)
    )
