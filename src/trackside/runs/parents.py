"""Which run continues which: dependencies, requeues, and jobs of one name that took turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from trackside.runs.jobs import Job, Jobs
from trackside.runs.logs import folder_of

TURN_S = 60.0
"""Seconds between one job's end and the next one's start, where a queue was waiting for just that."""


def parents_among(job: Job, jobs: Jobs) -> list[Job]:
    """The jobs with records or logs that this one was told to wait for."""
    found = []
    for id_ in job.parents:
        parent = jobs.named(id_)
        found += [parent] if parent is not None else jobs.parts(id_)
    return [parent for parent in found if parent is not job]


def ancestors(job: Job, jobs: Jobs) -> set[str]:
    """Ids of all jobs before this one in its chain of dependencies."""
    seen: set[str] = set()
    waiting = [job]
    while waiting:
        for parent in parents_among(waiting.pop(), jobs):
            if parent.id not in seen:
                seen.add(parent.id)
                waiting.append(parent)
    return seen - {job.id}


def last_of_chain(pool: Sequence[Job], jobs: Jobs) -> Job | None:
    """The one job of the pool that comes after all others, or None if they are no chain.

    A job that never started (still waiting, or cancelled in the queue) is passed over where another did.
    """
    ran = [job for job in pool if job.started] or list(pool)
    if len(ran) == 1:
        return ran[0]
    awaited = {parent.id for job in ran for parent in parents_among(job, jobs)}
    for job in ran:
        if job.id in awaited:
            continue
        before = ancestors(job, jobs)
        if all(other is job or other.id in before for other in ran):
            return job
    return _last_in_turn(ran)


def _last_in_turn(pool: Sequence[Job]) -> Job | None:
    ordered = sorted(pool, key=lambda job: job.time("start") or 0.0)
    return ordered[-1] if ordered and all(took_turn(later, earlier) for earlier, later in pairwise(ordered)) else None


def took_turn(later: Job, earlier: Job) -> bool:
    """Whether one waited in the queue for the other of the same name and folder, as a singleton or a chain does."""
    end, start, submit = earlier.time("end", last=True), later.time("start"), later.time("submit")
    if end is None or start is None or not 0 <= start - end <= TURN_S or not same_work(later, earlier):
        return False
    return submit is None or submit < end


def same_work(one: Job, other: Job) -> bool:
    """Same job name, and nothing that speaks against the same folder."""
    name = one.first("name")
    if name is None or name != other.first("name"):
        return False
    where = [{folder_of(path) for path in job.logs} for job in (one, other)]
    if all(where) and not where[0] & where[1]:
        return False
    folders = one.first("work_dir"), other.first("work_dir")
    return None in folders or folders[0] == folders[1]


def parent_of(job: Job, jobs: Jobs, attempts: int) -> tuple[str | None, str | None]:
    """(id of the run that this one continues, how that was found).

    A dependency on a job at hand says most; then earlier attempts under the same id; then a dependency on a job of
    which nothing else is known; then the last job of the same name that ended before this one began.
    """
    known = parents_among(job, jobs)
    if known:
        return max(known, key=lambda each: each.time("end", last=True) or 0.0).id, "dependency"
    if attempts > 1:
        return job.id, "requeue"
    if job.parents:
        return job.parents[-1], "dependency"
    start = job.time("start")
    if start is None or not job.logs:
        return None, None
    before = [
        (end, other.id)
        for other in jobs
        if other is not job and other.logs and same_work(job, other)
        if (end := other.time("end", last=True)) is not None and end <= start
        if "_" not in job.id and "_" not in other.id
    ]
    return (max(before)[1], "order") if before else (None, None)
