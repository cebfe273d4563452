"""The runs that a store holds, one row each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from trackside.model import Plane
from trackside.runs.attempts import Told as Attempted
from trackside.runs.attempts import attempts_of, final
from trackside.runs.jobs import Job, Jobs, collect
from trackside.runs.located import HOST, Locator, Told, named_job, short_names
from trackside.runs.logs import assign, folder_of, ids_inside
from trackside.runs.places import host_of
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot

HOUR_S = 3600
_Stretch = tuple[int, int]
"""First and last of some hours on end, counted from 1970."""
_ORDER: tuple[Plane, ...] = ("scheduler", "log", "metric", "kernel", "collective", "trace")


@dataclass(frozen=True, slots=True)
class Listed:
    """One run: times are POSIX seconds; ``planes`` are those that the store has something of it on."""

    id: str
    name: str | None = None
    state: str | None = None
    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    n_gpus: int | None = None
    planes: tuple[Plane, ...] = ()
    verdict: str | None = None
    """The latest, in short, of one that was judged."""


def listing(snapshot: Snapshot) -> list[Listed]:
    """All runs, those that began first first. What names no job is listed by the folder it was ingested from."""
    locator = Locator(snapshot)
    logs = [each for each in locator.inputs if each.is_log]
    told = locator.records("kind = 'job'")
    jobs = collect(record for *_, record in told)
    free = set(assign(jobs, [each.path for each in logs], ids_inside(named_job(each) for each in logs if each.owner)))
    _alone(locator, jobs, told, free)
    seen = _Seen(snapshot)
    beside = [each for each in locator.inputs if "collective" in each.planes]
    found = [_listed(job, seen, beside) for job in jobs]
    found += [each for each in seen.labelled.values() if jobs.named(each.id) is None]
    found += _folders(locator.inputs, free)
    return sorted(found, key=lambda each: (each.start is None, each.start or 0.0, each.id))


def _listed(job: Job, seen: _Seen, beside: Sequence[StoredInput]) -> Listed:
    last = final(attempts_of(job.rows)) or Attempted(())
    start, end = last.time("start"), last.end
    planes: set[Plane] = {"scheduler"} if job.rows else set()
    planes |= {"log"} if job.logs else set()
    if start is not None:
        planes |= seen.on(last.nodes, start, end)
    measured = seen.labelled_as(job.names)
    planes |= {"metric"} if measured is not None else set()
    folders = {folder_of(path) for path in job.logs}
    planes |= {"collective"} if any(folder_of(each.path) in folders for each in beside) else set()
    gpus, name = last.get("n_gpus"), job.first("name")
    ordered = tuple(plane for plane in _ORDER if plane in planes)
    if not job.rows and measured is not None:  # its logs alone tell none of it
        return replace(measured, id=job.id, planes=ordered)
    return Listed(
        job.id,
        None if name is None else str(name),
        last.state,
        start,
        end,
        last.nodes,
        gpus if isinstance(gpus, int) else None,
        ordered,
    )


def _alone(locator: Locator, jobs: Jobs, told: Sequence[Told], free: set[str]) -> None:
    """Logs that nobody claims are those of the only job that their folder tells of."""
    root_of = {each.id: each.root for each in locator.inputs}
    root_of_log = {each.path: each.root for each in locator.inputs if each.is_log}
    owners: dict[str, set[Job]] = {}
    for input_, _, record in told:
        job = jobs.named(str(record.get("id")))
        if job is not None and input_ in root_of:
            owners.setdefault(root_of[input_], set()).add(job)
    for job in jobs:
        for path in job.logs:
            owners.setdefault(root_of_log[path], set()).add(job)
    for path in sorted(free):
        there = owners.get(root_of_log[path], set())
        if len(there) == 1:
            next(iter(there)).logs.append(path)
            free.discard(path)


def _folders(inputs: Sequence[StoredInput], free: Collection[str]) -> list[Listed]:
    """Folders with logs of which none is any job's."""
    by_root: dict[str, list[StoredInput]] = {}
    for each in inputs:
        by_root.setdefault(each.root, []).append(each)
    names = short_names(by_root)
    return [
        Listed(names[root], "(folder)", planes=tuple(p for p in _ORDER if any(p in each.planes for each in there)))
        for root, there in by_root.items()
        if any(each.is_log for each in there) and all(each.path in free for each in there if each.is_log)
    ]


class _Seen:
    """When something was measured or written about a node."""

    def __init__(self, snapshot: Snapshot) -> None:
        spans, series, events = (snapshot.table(name) for name in ("spans", "series", "events"))
        self._metric = _stretches(
            snapshot,
            f"""SELECT {HOST.format("s.node")} AS host, min(p.first_ms) // {HOUR_S * 1000} AS begin,
                       max(p.last_ms) // {HOUR_S * 1000} AS stop
                FROM {spans} p JOIN {series} s USING (series) WHERE p.count > 0 AND s.node IS NOT NULL
                GROUP BY host, p.input""",
        )
        self._kernel = _stretches(
            snapshot,
            f"""SELECT DISTINCT {HOST.format("node")} AS host, CAST(floor(time / {HOUR_S}) AS BIGINT) AS begin,
                       begin AS stop
                FROM {events} WHERE plane = 'kernel' AND node IS NOT NULL AND time IS NOT NULL""",
        )
        self.labelled = {
            job: Listed(
                job, None, None, first / 1000, last / 1000, tuple(sorted(nodes or ())), gpus or None, ("metric",)
            )
            for job, first, last, nodes, gpus in snapshot.rows(
                f"""SELECT s.job, min(p.first_ms), max(p.last_ms), list(DISTINCT s.node) FILTER (s.node IS NOT NULL),
                           count(DISTINCT (s.node, json_extract_string(s.labels, '$.gpu')))
                               FILTER (json_extract_string(s.labels, '$.gpu') IS NOT NULL)
                FROM {spans} p JOIN {series} s USING (series) WHERE p.count > 0 AND s.job IS NOT NULL GROUP BY s.job"""
            )
        }
        """What was measured by the job's id."""

    def labelled_as(self, names: Collection[str]) -> Listed | None:
        """What was measured of a job under any of its ids."""
        return next((self.labelled[name] for name in sorted(names) if name in self.labelled), None)

    def on(self, nodes: Sequence[str], start: float, end: float | None) -> set[Plane]:
        """The planes on which these nodes were seen in that time."""
        hosts = [host_of(node) for node in nodes]
        seen: tuple[tuple[Plane, Mapping[str, list[_Stretch]]], ...] = (
            ("metric", self._metric), ("kernel", self._kernel)
        )  # fmt: skip
        return {plane for plane, known in seen if any(_within(known.get(host, ()), start, end) for host in hosts)}


def _stretches(snapshot: Snapshot, source: str) -> Mapping[str, list[_Stretch]]:
    """By host, the stretches of hours without a gap, in order; ``source``: SQL for host, begin, stop, in any order."""
    before = "PARTITION BY host ORDER BY begin, stop ROWS BETWEEN UNBOUNDED PRECEDING AND"
    rows = snapshot.rows(
        f"""SELECT host, min(begin) AS begin, max(stop) FROM (
                SELECT *, sum(gap) OVER ({before} CURRENT ROW) AS stretch FROM (
                    SELECT *, CAST(begin > max(stop) OVER ({before} 1 PRECEDING) + 1 AS INTEGER) AS gap
                    FROM ({source})))
            GROUP BY host, coalesce(stretch, 0) ORDER BY host, begin"""
    )
    found: dict[str, list[_Stretch]] = {}
    for host, begin, stop in rows:
        found.setdefault(host, []).append((begin, stop))
    return found


def _within(known: Sequence[_Stretch], start: float, end: float | None) -> bool:
    first = start // HOUR_S
    place = bisect_left(known, first, key=lambda stretch: stretch[1])
    return place < len(known) and (end is None or max(first, known[place][0]) <= end // HOUR_S)
