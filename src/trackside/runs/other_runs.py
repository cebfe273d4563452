"""Other runs in the inputs: jobs and logs that were set aside, and logs of no job that look like separate runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from trackside.catalog.events import OUTCOMES
from trackside.catalog.job_states import ACTIVE_STATES, ENDING_STATES, WAITING_STATES
from trackside.model import Event, Position
from trackside.runs.jobs import Job
from trackside.runs.logs import leaf_of

KIND = "other_run"
_PART = re.compile(r"rank|node|worker|host|gpu|attempt_\d", re.IGNORECASE)
"""In the path of a log: it is a part of a run that writes several."""
MAX_COMPARED_LOGS = 50
MAX_JOBS_BY_RECORD = 20
"""Of more jobs, as in the accounting of a day, those without a log are not named."""
LISTED_STATES = ACTIVE_STATES | ENDING_STATES | WAITING_STATES
_SEPARATE = re.compile(r"nohup")
"""In a file's name: the output of one command, unless the name says of which part of a run."""


def set_aside(jobs: Iterable[Job], chosen: Job, free_logs: Collection[str], own_logs: Collection[str]) -> list[Event]:
    """One event for each other job that has a log or, of a few, ended badly by its record; and for each log that
    belongs to no job and was not used."""
    others = [job for job in jobs if job is not chosen]
    failed = [job for job in others if not job.logs and job.id and _ended_badly(job)]
    events = [_event(job.logs[0], job.id) for job in others if job.logs]
    if len(others) <= MAX_JOBS_BY_RECORD:
        events += [_event(job.rows[-1].at.path, job.id) for job in failed]
    return [*events, *(_event(path) for path in sorted(free_logs) if path not in own_logs)]


def _ended_badly(job: Job) -> bool:
    """Whether a record has a state that is neither a good end nor that of a job that may go on, and none a good end."""
    states = {str(row.get("state")) for row in job.rows if row.get("state") is not None}
    return bool(states - LISTED_STATES) and "COMPLETED" not in states


def separate_logs(
    paths: Sequence[str],
    rows: Sequence[Event],
    steps: Callable[[str], Sequence[Event]],
    differing: Event | None = None,
) -> list[Event]:
    """One event for each of the run's logs if they look like separate runs: each shows training or an end, and one
    ends before the next begins without continuing its steps; or their names say so; or one has other losses at the
    same steps. ``steps``: gives the logged steps of a log; ``differing``: one with another loss."""
    ranked = {row.at.path for row in rows if row.rank is not None}
    logs = [path for path in paths if path not in ranked and _PART.search(path) is None]
    if not 2 <= len(logs) <= MAX_COMPARED_LOGS:
        return []
    points = {path: steps(path) for path in logs}
    ends = {row.at.path for row in rows if row.kind in OUTCOMES}
    logs = [path for path in logs if path in ends or points[path]]
    spans = dict(_spans(row for row in rows if row.kind == "log_activity"))
    dated = sorted((path for path in logs if path in spans), key=spans.__getitem__)
    named = [path for path in logs if _SEPARATE.search(leaf_of(path))]
    separate_paths = {
        path
        for before, after in pairwise(dated)
        if spans[before][1] < spans[after][0] and not _continues(points[before], points[after])
        for path in (before, after)
    }
    separate_paths |= set(named) if len(named) > 1 else set()
    if differing is not None and differing.at.path in logs:
        others = [path for path in logs if path != differing.at.path]
        separate_paths |= {differing.at.path, max(others, key=lambda path: len(points[path]))} if others else set()
    return [_event(path, used=True) for path in paths if path in separate_paths]


def _event(path: str, job: str | None = None, *, used: bool = False) -> Event:
    fields: dict[str, str | bool] = {} if job is None else {"job": job}
    return Event(KIND, Position(path, 0), "log", parser="runs", fields={**fields, "used": used})


def _spans(rows: Iterable[Event]) -> Iterator[tuple[str, tuple[float, float]]]:
    for row in rows:
        first, last = row.get("first_time"), row.get("last_time")
        if isinstance(first, (int, float)) and isinstance(last, (int, float)):
            yield row.at.path, (first, last)


def _continues(before: Sequence[Event], after: Sequence[Event]) -> bool:
    """Whether the later log's steps go on from the earlier one's."""
    starts = [
        next((step for row in rows if isinstance(step := row.get("step"), (int, float))), None)
        for rows in (before, after)
    ]
    return starts[0] is not None and starts[1] is not None and starts[1] > starts[0]
