"""Requeues and preemptions: attempts that the scheduler ended to give the nodes away or to start the job again."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Value
from trackside.facts.fact import fact
from trackside.facts.logs.ending import Ending
from trackside.model import Event, Record
from trackside.query import events


@dataclass(frozen=True, eq=False)
class Requeues:
    """What shows that the scheduler took the nodes back, or sent the job to the queue again."""

    attempts: tuple[Record, ...]
    """Records of attempts that ended so."""
    notices: tuple[Event, ...]
    """The scheduler's notices in the output."""
    change: Value | None
    """The first such state in the controller's log."""
    restarts: Value | None
    """How often the job was restarted, if it was."""
    request: Value | None
    """The application's last request to be requeued."""
    preempted: bool
    """Whether a job of higher priority evicted it."""

    @property
    def by_scheduler(self) -> bool:
        """Whether anything but the application's own request shows it."""
        return bool(self.attempts or self.notices) or self.change is not None or self.restarts is not None

    @property
    def first_time(self) -> float | None:
        """When the first attempt ended so, POSIX seconds."""
        times = [*(row.get("end") for row in self.attempts), *(row.time for row in self.notices)]
        return min((float(time) for time in times if isinstance(time, (int, float))), default=None)


@fact({"changes": events("job_state"), "requests": events("requeue_requested")})
def requeues(evidence: Evidence, ending: Ending) -> Requeues:
    """Of records, notices and the controller's log; nothing is needed."""
    jobs, changes, requests = ending.jobs, evidence["changes"], evidence["requests"]
    attempts = [row for row in jobs.records if row.get("state") in ("PREEMPTED", "REQUEUED", "SPECIAL_EXIT")]
    notices = [row for row in ending.notices.events if row.get("reason") in ("preemption", "requeue")]
    change = next((row for row in changes.events if row.get("state") in ("requeued", "preempted")), None)
    again = [row for row in jobs.records if isinstance(row.get("restarts"), int) and row.get("restarts")]
    preempted = any(row.get("state") == "PREEMPTED" for row in attempts)
    return Requeues(
        tuple(attempts),
        tuple(notices),
        None if change is None else changes.value(change, "state"),
        jobs.value(again[-1], "restarts") if again else None,
        requests.value(requests.events[-1], "text") if requests else None,
        preempted or any(row.get("reason") == "preemption" for row in notices),
    )
