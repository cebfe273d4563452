"""Finds which run continues which: by dependencies, requeues, and consecutive jobs of one name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from trackside.runs.jobs import Job, JobIndex
from trackside.runs.logs import folder_of

MAX_TURN_GAP_S = 60.0
"""Maximum seconds from one job's end to the start of the next, if that one was waiting for it."""


def parents_among(job: Job, jobs: JobIndex) -> list[Job]:
    """The jobs with records or logs that this job depends on."""
    parents = []
    for id_ in job.parents:
        parent = jobs.find(id_)
        parents += [parent] if parent is not None else jobs.parts(id_)
    return [parent for parent in parents if parent is not job]


def ancestors(job: Job, jobs: JobIndex) -> set[str]:
    """Ids of all jobs before this one in its dependency chain."""
    ids: set[str] = set()
    queue = [job]
    while queue:
        for parent in parents_among(queue.pop(), jobs):
            if parent.id not in ids:
                ids.add(parent.id)
                queue.append(parent)
    return ids - {job.id}


def last_of_chain(pool: Sequence[Job], jobs: JobIndex) -> Job | None:
    """The one job that comes after all others of the pool; None if they form no chain.

    A job that never started (still waiting, or cancelled in the queue) is skipped if another one did.
    """
    started = [job for job in pool if job.started] or list(pool)
    if len(started) == 1:
        return started[0]
    ids_waited_for = {parent.id for job in started for parent in parents_among(job, jobs)}
    for job in started:
        if job.id in ids_waited_for:
            continue
        before = ancestors(job, jobs)
        if all(other is job or other.id in before for other in started):
            return job
    return _last_by_turn(started)


def _last_by_turn(pool: Sequence[Job]) -> Job | None:
    """The last job of the pool if each waited for the one before; else None."""
    ordered = sorted(pool, key=lambda job: job.time("start") or 0.0)
    return ordered[-1] if ordered and all(waited_for(later, earlier) for earlier, later in pairwise(ordered)) else None


def waited_for(later: Job, earlier: Job) -> bool:
    """Whether the later job waited for the earlier one of its name and folder, as a singleton or a chain does."""
    end, start, submit = earlier.time("end", last=True), later.time("start"), later.time("submit")
    if end is None or start is None or not 0 <= start - end <= MAX_TURN_GAP_S or not same_work(later, earlier):
        return False
    return submit is None or submit < end


def same_work(job: Job, other: Job) -> bool:
    """Whether two jobs have the same name, and nothing shows different folders."""
    name = job.first("name")
    if name is None or name != other.first("name"):
        return False
    log_folders = [{folder_of(path) for path in logs} for logs in (job.logs, other.logs)]
    if all(log_folders) and not log_folders[0] & log_folders[1]:
        return False
    folders = job.first("work_dir"), other.first("work_dir")
    return None in folders or folders[0] == folders[1]


def parent_of(job: Job, jobs: JobIndex, attempts: int) -> tuple[str | None, str | None]:
    """(id of the run that this one continues, how it was found).

    In order: a dependency on a job in the inputs; an earlier attempt under the same id; a dependency on a job that is
    not in the inputs; the last job of the same name that ended before this one started.
    """
    parents = parents_among(job, jobs)
    if parents:
        return max(parents, key=lambda parent: parent.time("end", last=True) or 0.0).id, "dependency"
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
