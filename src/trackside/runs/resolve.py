"""Finds the run that the inputs are about, and selects its rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from trackside.catalog.events import OUTCOMES
from trackside.catalog.natural import natural_key
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.evidence import SOURCE_UNANSWERED
from trackside.logs.job_report import record_of
from trackside.logs.trajectory import Trajectories
from trackside.model import AppendedRuns, Event, Record, Run, Scalar
from trackside.query import Row
from trackside.runs import clock
from trackside.runs.appended import FileRuns, is_in_last_job, is_in_last_run, runs_by_file
from trackside.runs.attempts import AttemptRows, attempts_of, final_attempt, numbered_attempts
from trackside.runs.clock import JobTimes
from trackside.runs.jobs import OTHER_SYSTEMS, Job, JobIndex, collect_jobs, plain_id
from trackside.runs.logs import assign_logs, guess_id, ids_in_lines
from trackside.runs.other_runs import set_aside
from trackside.runs.parents import last_of_chain, parent_of
from trackside.runs.ranks import Ranks, Tasks
from trackside.stores.memory import MemoryStore

NO_STEPS = Trajectories()
_SIZE_KINDS = ("host", "distributed_init", "distributed_ready", "nccl_init")
_FRAMEWORK_KINDS = ("training_plan", "training_start", "training_end")
_DUMP_KINDS = ("flight_recorder", "flight_recorder_group")
"""Kinds of records that may name their job."""
_EXIT_KINDS = ("process_exit", "launcher_failure")


@dataclass(frozen=True, slots=True)
class EventAdjustment:
    """Shifts the run's log events and its parent's points to the scheduler's clock, and makes ranks global.

    ``offset``: seconds to add; ``span``: the job's start and end.
    """

    logs: frozenset[str]
    offset: float
    span: JobTimes | None
    ranks: Ranks
    tasks: Tasks

    def __call__(self, event: Event) -> Event:
        """The event as the store of the run holds it."""
        if event.at.path in self.logs:
            dated = clock.date_stop(clock.shift_event(event, self.offset, self.span), self.span)
            return self.tasks.to_task_rank(self.ranks.to_global_rank(dated))
        return clock.shift_event(event, self.offset, None)


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """The run, and a store with only its rows."""

    run: Run
    store: MemoryStore
    adjust: EventAdjustment
    """Apply it to the logged steps of the run's logs and its parent's, which are stored elsewhere."""
    appended: Mapping[str, FileRuns]
    """By path of a log: its runs, if it holds several, or reports of jobs."""
    keeps_steps: bool = False
    """Whether the runs in a log are attempts of one job, which go on from each other's steps."""
    others: Sequence[Event] = ()
    """The jobs and logs that were set aside."""
    free_logs: frozenset[str] = frozenset()
    """Logs of the run that name no job: they lie in its folder."""


def resolve(
    store: MemoryStore,
    job: str | None = None,
    paths: Iterable[str] = (),
    home: Collection[str] | None = None,
    owners: Mapping[str, str] = MappingProxyType({}),
    steps: Trajectories = NO_STEPS,
) -> ResolvedRun:
    """Find the run; ``paths``: files with logged steps, in addition to those with rows in the store.

    ``home``: the logs that came in one folder with the run's; None: all did. ``owners``: path of a log whose job is
    known -> the job's id. ``steps``: the logged steps of the logs. Raises SeveralRuns or NoSuchRun.
    """
    rows = list(store.all_rows())
    events = [row for row in rows if isinstance(row, Event) and row.plane == "log" and row.kind != SOURCE_UNANSWERED]
    files = list(dict.fromkeys([*(event.at.path for event in events), *paths]))
    appended = runs_by_file(events, steps)
    jobs = collect_jobs([*(row for row in rows if isinstance(row, Record)), *_reported_records(rows, appended)])
    ids = ids_in_lines(event for event in events if is_in_last_job(event.at, appended))
    free_logs = set(assign_logs(jobs, files, ids, owners))
    jobs.assign_records_without_id()
    if not len(jobs):  # the only evidence is stacks of a job's processes
        for id_ in sorted(
            {str(named) for row in rows if row.kind == "stack" and (named := row.get("job")) is not None}
        ):
            jobs.add(id_)
    run_job = _named_job(jobs, job) if job is not None else _choose_job(jobs)
    attempts = attempts_of(run_job.rows)
    parent, parent_by = parent_of(run_job, jobs, len(numbered_attempts(attempts)))
    parent_job = jobs.find(parent) if parent is not None and parent_by != "requeue" else None
    # An unassigned log belongs to the run, unless another job (except its parent) in the same folder has logs too.
    home_logs = set(files if home is None else home)
    is_only_job = home_logs.isdisjoint(
        path for other in jobs if other is not run_job and other is not parent_job for path in other.logs
    )
    run_paths = {*run_job.logs, *(free_logs & home_logs if is_only_job else ())}
    logs = tuple(path for path in files if path in run_paths)
    keeps_steps = len(numbered_attempts(attempts)) > 1
    is_own = _run_filter(appended, keeps_steps)
    own_logs = set(logs)
    run_events = [event for event in events if event.at.path in own_logs and is_own(event)]
    span = _span(attempts)
    last = final_attempt(attempts) or AttemptRows(())
    tasks = Tasks(
        run_events, _world_size(run_events) or _as_integer(last.get("n_gpus")), _as_integer(last.get("n_tasks"))
    )
    adjust = EventAdjustment(frozenset(logs), clock.offset_of(_times(run_events), span), span, Ranks(run_events), tasks)
    run = replace(
        _build_run(run_job, attempts, run_events, adjust.ranks),
        parent=parent,
        parent_by=parent_by,
        log_paths=logs,
        parent_log_paths=tuple(parent_job.logs) if parent_job is not None else (),
        clock_offset_s=adjust.offset,
        has_time_zone=_has_time_zone(attempts, _dated_events(run_events, rows), adjust.offset),
        appended=_most_runs(logs, appended),
        other_jobs=_other_jobs(run_job, logs, ids),
    )
    others = frozenset(files) - adjust.logs
    rows = [_begin_with_last_run(row, run_events, appended) for row in rows if isinstance(row, Record) or is_own(row)]
    narrow_store = _narrow_store(rows, store, run_job, others, adjust)
    set_aside_events = set_aside(jobs, run_job, free_logs, run_paths)
    free_own_logs = frozenset(free_logs & own_logs)
    return ResolvedRun(run, narrow_store, adjust, appended, keeps_steps, set_aside_events, free_own_logs)


def _run_filter(appended: Mapping[str, FileRuns], keeps_steps: bool) -> Callable[[Event], bool]:
    """A test: does an event of the logs belong to the last run?

    Lines about the host count for the whole job, whichever of its programs printed them. What the attempts of one job
    did before the last is part of its history (``keeps_steps``), but how they ended is not.
    """

    def is_own(event: Event) -> bool:
        if event.kind == "host" or (keeps_steps and event.kind not in OUTCOMES):
            return is_in_last_job(event.at, appended)
        return is_in_last_run(event.at, appended)

    return is_own


def _begin_with_last_run(row: Row, run_events: Sequence[Event], appended: Mapping[str, FileRuns]) -> Row:
    """The row; if a log holds several runs, its activity begins with the last one."""
    runs = appended.get(row.at.path)
    if row.kind != "log_activity" or not isinstance(row, Event) or runs is None or len(runs.runs) == 1:
        return row
    times = [event.time for event in run_events if event.at.path == row.at.path and event.time is not None]
    return replace(row, fields={**row.fields, "first_time": min(times, default=None)})


def _most_runs(paths: Iterable[str], appended: Mapping[str, FileRuns]) -> AppendedRuns | None:
    """The runs of the log that holds the most of them; None if no log holds several."""
    several = [path for path in paths if path in appended and len(appended[path].runs) > 1]
    path = max(several, key=lambda path: len(appended[path].runs), default=None)
    if path is None:
        return None
    runs = appended[path]
    return AppendedRuns(path, runs.runs, runs.has_more, runs.unknown_start)


def _other_jobs(job: Job, logs: Iterable[str], ids_by_log: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The other jobs that the logs name; none if a record or a file's name says which one it is."""
    if job.rows:
        return ()
    named = {id_ for path in logs if job.id in (ids := ids_by_log.get(path, ()))[:1] for id_ in ids}
    return tuple(sorted(named - job.names, key=natural_key))


def _reported_records(rows: Iterable[Row], appended: Mapping[str, FileRuns]) -> Iterator[Record]:
    """Records of the jobs whose output reports their end, unless another record of the job was given."""
    recorded = {str(row.get("id")) for row in rows if isinstance(row, Record) and row.kind == "job"}
    for path, runs in appended.items():
        if runs.report is None:
            continue
        job = runs.report.get("job")
        id_ = str(job) if job is not None else guess_id(path) or ""
        if id_ not in recorded and (id_ or not recorded):
            yield record_of(runs.report, id_)


def _as_integer(value: Scalar) -> int | None:
    """The value if it is an integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _named_job(jobs: JobIndex, wanted_id: str) -> Job:
    """The job that ``--job`` names: by any spelling of its id, its array's id, or the id of one of its steps."""
    id_ = plain_id(wanted_id)
    exact = jobs.find(wanted_id.strip()) or jobs.find(id_)
    if exact is not None:
        return exact
    tasks = jobs.parts(id_)
    if len(tasks) == 1:
        return tasks[0]
    if tasks:
        raise SeveralRuns(_sorted_ids(tasks))
    if not len(jobs):
        return Job(id_, names={id_})
    raise NoSuchRun(
        f"no job {wanted_id} in the inputs" + (f"; they hold {', '.join(_sorted_ids(jobs)[:20])}" if len(jobs) else "")
    )


def _choose_job(jobs: JobIndex) -> Job:
    """The job that the inputs are about: among those with the most evidence, the only one, or the last of a chain.

    A job that appears only in a listing of the whole cluster does not compete with one that has a log or an accounting
    row.
    """
    logged = [job for job in jobs if job.logs]
    accounted = [job for job in jobs if job.has("sacct") and "[" not in job.id]
    both = [job for job in logged if job.has("sacct")]
    strong = [*accounted, *(job for job in logged if not job.has("sacct"))]
    for pool in (strong, both, logged) if logged else (accounted,):
        if pool and (last := last_of_chain(pool, jobs)) is not None:
            return last
    if strong:
        raise SeveralRuns(_sorted_ids(both or logged or accounted))
    for source in ("scontrol", "jobcomp", "seff", "slurm_mail", *OTHER_SYSTEMS, "squeue"):
        pool = [job for job in jobs if job.has(source) and "[" not in job.id]
        if pool:
            if (last := last_of_chain(pool, jobs)) is not None:
                return last
            raise SeveralRuns(_sorted_ids(pool))
    return next(iter(jobs), Job(""))


def _sorted_ids(jobs: Iterable[Job]) -> list[str]:
    """The ids of the jobs, numbers in them in order of size."""
    return sorted((job.id for job in jobs), key=natural_key)


def _build_run(job: Job, attempts: Sequence[AttemptRows], run_events: Sequence[Event], ranks: Ranks) -> Run:
    """The run: a job's last attempt, completed from its log."""
    last = final_attempt(attempts) or AttemptRows(())
    signals = frozenset(
        number for event in run_events if event.kind in _EXIT_KINDS and isinstance(number := event.get("signal"), int)
    )
    submits = [time for attempt in attempts if (time := attempt.time("submit")) is not None]

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
        n_ranks=_world_size(run_events) or ranks.count or None,
        n_gpus=gpus if isinstance(gpus, int) else None,
        attempts=numbered_attempts(attempts, signals),
        framework=_framework(run_events),
        aliases=tuple(sorted(job.names - {job.id}, key=natural_key)),
    )


def _world_size(run_events: Iterable[Event]) -> int | None:
    """The largest world size in the log, as a launcher or a process group prints it, else as NCCL does."""
    sizes = dict.fromkeys(_SIZE_KINDS, 0)
    for event in run_events:
        if event.kind in sizes:
            size = event.get("world_size") if event.kind != "nccl_init" else event.get("nranks")
            sizes[event.kind] = max(sizes[event.kind], size if isinstance(size, int) else 0)
    return max(sizes["host"], sizes["distributed_init"], sizes["distributed_ready"]) or sizes["nccl_init"] or None


def _framework(run_events: Iterable[Event]) -> str | None:
    """The framework that most events about training name."""
    names = Counter(str(e.get("framework")) for e in run_events if e.kind in _FRAMEWORK_KINDS and e.get("framework"))
    return names.most_common(1)[0][0] if names else None


def _span(attempts: Sequence[AttemptRows]) -> JobTimes | None:
    """From the first start to the last end of the job's attempts, POSIX seconds; None if none started."""
    starts = [start for attempt in attempts if (start := attempt.time("start")) is not None]
    last = final_attempt(attempts)
    return (min(starts), last.end if last is not None else None) if starts else None


def _times(run_events: Iterable[Event]) -> list[float]:
    """The first and last time of each log, POSIX seconds."""
    values = (
        event.get(name) for event in run_events if event.kind == "log_activity" for name in ("first_time", "last_time")
    )
    return [float(time) for time in values if isinstance(time, (int, float))]


def _dated_events(run_events: Sequence[Event], rows: Iterable[Row]) -> Sequence[Event]:
    """The events of the run's logs if one has a time, else all events: ``dmesg -T`` prints local times, too."""
    if any(event.time is not None for event in run_events):
        return run_events
    return [row for row in rows if isinstance(row, Event)]


def _has_time_zone(attempts: Sequence[AttemptRows], run_events: Sequence[Event], offset: float) -> bool:
    """Whether a record or, if its times were not shifted to the scheduler's, a log gives the zone of the run's times;
    true also without any time."""
    records = [row for attempt in attempts for row in attempt.rows if row.get("start") is not None]
    if any(row.get("zoned") for row in records):
        return True
    zoned = any(event.kind in ("log_activity", "kernel_log") and event.get("zoned") for event in run_events)
    return (zoned and not offset) or not (records or any(event.time is not None for event in run_events))


def _narrow_store(
    rows: Iterable[Row], store: MemoryStore, job: Job, others: frozenset[str], adjust: EventAdjustment
) -> MemoryStore:
    """A store with the rows of the run. ``others``: logs of other jobs, including its parent's: an error or a
    checkpoint load there is not this run's."""
    narrow = MemoryStore(planes=store.planes)
    for row in rows:
        if isinstance(row, Record):
            job_id = row.get("job")
            if row.kind == "job" or (row.kind == "step" and str(job_id) not in job.names):
                continue
            if job_id is not None and row.kind in _DUMP_KINDS and job.id and str(job_id) not in job.names:
                continue
            narrow.add_record(row)
        elif row.plane == "log":
            if row.at.path not in others:
                narrow.add_event(adjust(row))
        elif _concerns(row, job):
            narrow.add_event(row)
    for attempt in attempts_of(job.rows):
        for record in reversed(attempt.rows):  # the most final one last
            narrow.add_record(record)
    return narrow


def _concerns(event: Event, job: Job) -> bool:
    """Whether an event outside any job's log concerns this job: states of nodes do, other jobs' ends do not."""
    if event.plane == "trace":
        job_id = event.get("job")
        return job_id is None or not job.id or bool({str(job_id), plain_id(str(job_id))} & job.names)
    if event.plane != "scheduler":
        return True
    if event.kind == "log_activity":
        return False  # activity in the controller's log does not show that the job is alive
    job_id = event.get("job")
    return (
        job_id is None
        or event.kind == "node_state"
        or not job.id
        or bool({str(job_id), plain_id(str(job_id))} & job.names)
    )
