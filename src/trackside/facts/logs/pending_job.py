"""A job that has not begun: why it waits, since when, and for what.

Several sources may hold records of one job: what the record of the last attempt leaves out is taken from the last that
has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.catalog.job_states import WAITING
from trackside.catalog.pending_reasons import Reason, pending_reason
from trackside.evidence import Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending


@dataclass(frozen=True)
class PendingJob:
    """Why the job waits."""

    id: Value
    state: Value
    reason: Value | None
    known: Reason | None
    """What is known of the reason."""
    dependency: Value | None
    """The jobs that it waits for."""
    submitted: Value | None
    """When it was submitted, POSIX seconds."""


@fact()
def pending_job(ending: Ending) -> Maybe[PendingJob]:
    """Of the scheduler's records; missing if the job does not wait."""
    job, jobs = ending.job, ending.jobs
    if job is None or job.get("state") not in WAITING:
        return Missing("the job has begun, or no record of it was given")
    rows = (*jobs.records, job)

    def last(field: str, unit: str = "") -> Value | None:
        row = next((row for row in reversed(rows) if row.get(field) is not None), None)
        return None if row is None else jobs.value(row, field, unit)

    reason = last("reason")
    known = None if reason is None else pending_reason(str(reason.value))
    id_, state = jobs.value(job, "id"), jobs.value(job, "state")
    return PendingJob(id_, state, reason, known, last("dependency"), last("submit", "time"))
