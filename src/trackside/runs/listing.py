"""Lists the runs in a store, one row each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trackside.catalog.streams import host_of
from trackside.model import Plane
from trackside.runs.attempts import AttemptRows, attempts_of, final_attempt
from trackside.runs.jobs import Job, JobIndex, collect_jobs
from trackside.runs.locator import HOST, Locator, RecordRow, job_event, short_names
from trackside.runs.logs import assign_logs, folder_of, ids_in_lines
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot

HOUR_S = 3600
_HourRange = tuple[int, int]
"""The first and the last of consecutive hours, counted from 1970."""
_ORDER: tuple[Plane, ...] = ("scheduler", "log", "metric", "kernel", "collective", "trace")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run: times are POSIX seconds; ``planes`` are the kinds of data that the store has about it."""

    id: str
    name: str | None = None
    state: str | None = None
    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    n_gpus: int | None = None
    planes: tuple[Plane, ...] = ()
    verdict: str | None = None
    """The latest stored verdict, in short; None if the run was never diagnosed."""


def list_runs(snapshot: Snapshot) -> list[RunSummary]:
    """All runs, earliest start first. Inputs that name no job are listed by the folder they were ingested from."""
    locator = Locator(snapshot)
    logs = [input_ for input_ in locator.inputs if input_.is_log]
    rows = locator.records("kind = 'job'")
    jobs = collect_jobs(record for *_, record in rows)
    free_logs = set(
        assign_logs(
            jobs, [input_.path for input_ in logs], ids_in_lines(job_event(input_) for input_ in logs if input_.owner)
        )
    )
    jobs.assign_records_without_id()
    _assign_logs_by_folder(locator, jobs, rows, free_logs)
    activity = _NodeActivity(snapshot)
    collective_inputs = [input_ for input_ in locator.inputs if "collective" in input_.planes]
    summaries = [_summary(job, activity, collective_inputs) for job in jobs]
    summaries += [summary for summary in activity.labeled.values() if jobs.find(summary.id) is None]
    summaries += _folder_summaries(locator.inputs, free_logs)
    return sorted(summaries, key=lambda summary: (summary.start is None, summary.start or 0.0, summary.id))


def _summary(job: Job, activity: _NodeActivity, collective_inputs: Sequence[StoredInput]) -> RunSummary:
    """The row of a job."""
    last = final_attempt(attempts_of(job.rows)) or AttemptRows(())
    start, end = last.time("start"), last.end
    planes: set[Plane] = {"scheduler"} if job.rows else set()
    planes |= {"log"} if job.logs else set()
    if start is not None:
        planes |= activity.planes_on(last.nodes, start, end)
    from_metrics = activity.summary_from_labels(job.names)
    planes |= {"metric"} if from_metrics is not None else set()
    folders = {folder_of(path) for path in job.logs}
    planes |= {"collective"} if any(folder_of(input_.path) in folders for input_ in collective_inputs) else set()
    gpus, name = last.get("n_gpus"), job.first("name")
    ordered = tuple(plane for plane in _ORDER if plane in planes)
    if not job.rows and from_metrics is not None:  # the logs of a job have no nodes, times or GPUs
        return replace(from_metrics, id=job.id, planes=ordered)
    return RunSummary(
        job.id,
        None if name is None else str(name),
        last.state,
        start,
        end,
        last.nodes,
        gpus if isinstance(gpus, int) else None,
        ordered,
    )


def _assign_logs_by_folder(locator: Locator, jobs: JobIndex, rows: Sequence[RecordRow], free_logs: set[str]) -> None:
    """Give unassigned logs to the only job in their folder."""
    root_of = {input_.id: input_.root for input_ in locator.inputs}
    root_of_log = {input_.path: input_.root for input_ in locator.inputs if input_.is_log}
    owners: dict[str, set[Job]] = {}
    for input_, _, record in rows:
        job = jobs.find(str(record.get("id")))
        if job is not None and input_ in root_of:
            owners.setdefault(root_of[input_], set()).add(job)
    for job in jobs:
        for path in job.logs:
            owners.setdefault(root_of_log[path], set()).add(job)
    for path in sorted(free_logs):
        jobs_in_folder = owners.get(root_of_log[path], set())
        if len(jobs_in_folder) == 1:
            next(iter(jobs_in_folder)).logs.append(path)
            free_logs.discard(path)


def _folder_summaries(inputs: Sequence[StoredInput], free_logs: Collection[str]) -> list[RunSummary]:
    """A row for each folder whose logs belong to no job."""
    by_root: dict[str, list[StoredInput]] = {}
    for input_ in inputs:
        by_root.setdefault(input_.root, []).append(input_)
    names = short_names(by_root)
    return [
        RunSummary(
            names[root],
            "(folder)",
            planes=tuple(p for p in _ORDER if any(p in input_.planes for input_ in folder_inputs)),
        )
        for root, folder_inputs in by_root.items()
        if any(input_.is_log for input_ in folder_inputs)
        and all(input_.path in free_logs for input_ in folder_inputs if input_.is_log)
    ]


class _NodeActivity:
    """When metrics or kernel lines of each node were recorded, and what labels of jobs the metrics carry."""

    def __init__(self, snapshot: Snapshot) -> None:
        spans, series, events = (snapshot.table(name) for name in ("spans", "series", "events"))
        self._metric = _hour_ranges(
            snapshot,
            f"""SELECT {HOST.format("s.node")} AS host, min(p.first_ms) // {HOUR_S * 1000} AS begin,
                       max(p.last_ms) // {HOUR_S * 1000} AS stop
                FROM {spans} p JOIN {series} s USING (series) WHERE p.count > 0 AND s.node IS NOT NULL
                GROUP BY host, p.input""",
        )
        self._kernel = _hour_ranges(
            snapshot,
            f"""SELECT DISTINCT {HOST.format("node")} AS host, CAST(floor(time / {HOUR_S}) AS BIGINT) AS begin,
                       begin AS stop
                FROM {events} WHERE plane = 'kernel' AND node IS NOT NULL AND time IS NOT NULL""",
        )
        self.labeled = {
            job: RunSummary(
                job, None, None, first / 1000, last / 1000, tuple(sorted(nodes or ())), gpus or None, ("metric",)
            )
            for job, first, last, nodes, gpus in snapshot.rows(
                f"""SELECT s.job, min(p.first_ms), max(p.last_ms), list(DISTINCT s.node) FILTER (s.node IS NOT NULL),
                           count(DISTINCT (s.node, json_extract_string(s.labels, '$.gpu')))
                               FILTER (json_extract_string(s.labels, '$.gpu') IS NOT NULL)
                FROM {spans} p JOIN {series} s USING (series) WHERE p.count > 0 AND s.job IS NOT NULL GROUP BY s.job"""
            )
        }
        """Job label -> what the metrics show."""

    def summary_from_labels(self, names: Collection[str]) -> RunSummary | None:
        """The row of a job as the labels of the metrics show it, under any of its ids; None if none carries one."""
        return next((self.labeled[name] for name in sorted(names) if name in self.labeled), None)

    def planes_on(self, nodes: Sequence[str], start: float, end: float | None) -> set[Plane]:
        """The kinds of data about these nodes between two times (POSIX seconds; no end: until now)."""
        hosts = [host_of(node) for node in nodes]
        ranges_by_plane: tuple[tuple[Plane, Mapping[str, list[_HourRange]]], ...] = (
            ("metric", self._metric), ("kernel", self._kernel)
        )  # fmt: skip
        return {
            plane
            for plane, ranges in ranges_by_plane
            if any(_has_activity(ranges.get(host, ()), start, end) for host in hosts)
        }


def _hour_ranges(snapshot: Snapshot, source: str) -> Mapping[str, list[_HourRange]]:
    """Host -> its ranges of consecutive hours, in order; ``source``: SQL for host, begin, stop, in any order."""
    before = "PARTITION BY host ORDER BY begin, stop ROWS BETWEEN UNBOUNDED PRECEDING AND"
    rows = snapshot.rows(
        f"""SELECT host, min(begin) AS begin, max(stop) FROM (
                SELECT *, sum(gap) OVER ({before} CURRENT ROW) AS range_number FROM (
                    SELECT *, CAST(begin > max(stop) OVER ({before} 1 PRECEDING) + 1 AS INTEGER) AS gap
                    FROM ({source})))
            GROUP BY host, coalesce(range_number, 0) ORDER BY host, begin"""
    )
    ranges: dict[str, list[_HourRange]] = {}
    for host, begin, stop in rows:
        ranges.setdefault(host, []).append((begin, stop))
    return ranges


def _has_activity(ranges: Sequence[_HourRange], start: float, end: float | None) -> bool:
    """Whether any of the hours lies between two times; ``ranges``: in order."""
    first = start // HOUR_S
    index = bisect_left(ranges, first, key=lambda hours: hours[1])
    return index < len(ranges) and (end is None or max(first, ranges[index][0]) <= end // HOUR_S)
