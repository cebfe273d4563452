"""Batch systems' reports of a job's end within its output: which lines of the file are the last job's, and its record.

Output is often appended to one file, so a file may hold several jobs; the last one decides. A record from the batch
system itself overrides the report in the output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trackside.catalog.events import last_line_of
from trackside.logs.job_report import REPORT
from trackside.model import Event, Position

_OF_A_JOB = frozenset({"training_start", "training_plan", "training_end", "exception", "launcher_failure", "cuda_oom"})
"""Kinds of events after the last report that show that another job was appended, which has no report."""
MAX_TRAILING_LINES = 40
"""More lines than this after the last report are another job's output; fewer may be notes of the batch system."""
_APPENDING = frozenset({"lsf", "pbs"})
"""Sources of reports that the batch system itself adds to the output: what is above them is over."""


@dataclass(frozen=True, slots=True)
class LastJob:
    """The last job of a file: its lines begin after ``after``; ``report`` is None if it has none."""

    after: int
    report: Event | None


def last_jobs(events: Iterable[Event]) -> dict[str, LastJob]:
    """The last job of each file that holds reports, by path. ``events``: those of the job logs."""
    reports: dict[str, list[Event]] = {}
    last_lines: dict[str, int] = {}
    for event in events:
        if event.kind == REPORT:
            reports.setdefault(event.at.path, []).append(event)
        elif event.kind in _OF_A_JOB:
            last_lines[event.at.path] = max(last_lines.get(event.at.path, 0), event.at.line)
        elif event.kind == "log_activity":
            trailing = event.at.line - MAX_TRAILING_LINES
            last_lines[event.at.path] = max(last_lines.get(event.at.path, 0), trailing)
    return {path: _last_job(sorted(rows, key=_line), last_lines.get(path, 0)) for path, rows in reports.items()}


def is_of_last_job(position: Position, jobs: Mapping[str, LastJob]) -> bool:
    """Whether a line is not from an earlier job of its file."""
    job = jobs.get(position.path)
    return job is None or position.line == 0 or position.line > job.after


def _line(event: Event) -> int:
    return event.at.line


def _last_job(reports: list[Event], last_line: int) -> LastJob:
    last = reports[-1]
    if last.get("above") is not True:
        return LastJob(last.at.line - 1, last)
    appended = [report for report in reports if report.get("source") in _APPENDING]
    if last_line > last_line_of(last):
        return LastJob(last_line_of(appended[-1]) if appended else 0, None)
    before = [report for report in appended if report is not last]
    return LastJob(last_line_of(before[-1]) if before else 0, last)
