"""A batch system's report of a job's end: the notice, state and record that all parsers of such reports share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.catalog.records import RECORDS
from trackside.catalog.slurm.fields import SlurmValue, without_forecasts
from trackside.logs import exits
from trackside.logs.line import Line
from trackside.logs.stamp import find_time, posix
from trackside.model import Event, EventRole, Record

REPORT = "job_report"
_FIELDS = frozenset(RECORDS["job"].fields)
STATES: Mapping[str, str] = {
    "time_limit": "TIMEOUT",
    "deadline": "DEADLINE",
    "preemption": "PREEMPTED",
    "requeue": "REQUEUED",
    "node_failure": "NODE_FAIL",
    "out_of_memory": "OUT_OF_MEMORY",
    "cancelled": "CANCELLED",
    "launch_failure": "BOOT_FAIL",
}
"""Reason of a scheduler's notice -> state of the job's record."""
MAX_REPORT_LINES = 2_000
"""Lines of one report."""
_UNITS = {"": 0, "B": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?) ?([KMGT]?)i?(B?)\b", re.IGNORECASE)
_CLOCK = re.compile(r"(?:(\d{1,4})[-:](?=\d{1,3}:\d\d:\d\d))?(\d{1,5}):(\d\d):(\d\d)")


def notice(line: Line, reason: str, job: str | None = None, by: str | None = None) -> Iterator[Event]:
    """The scheduler's notice that it ended the job for this reason; for a memory limit, also the kill."""
    exits.note_ending(line, reason)
    if reason == "out_of_memory":
        yield line.event("oom_kill", EventRole.ROOT, scope="cgroup")
    yield line.event("scheduler_notice", EventRole.ROOT, reason=reason, job=job, by=by)


def state_of(reason: str | None, exit_code: int | None, signal: int | None = None) -> str | None:
    """The state of a job that ended for this reason, else with this exit code; None if neither is known."""
    if reason is not None:
        return STATES.get(reason, "FAILED")
    if exit_code is None and not signal:
        return None
    return "FAILED" if exit_code or signal else "COMPLETED"


def parse_size(text: str | None) -> int | None:
    """The bytes of ``16 GB``, ``1953 MB`` or ``409600kb``; None for any other text."""
    match = _SIZE.match((text or "").strip())
    return int(float(match[1]) * 1024 ** _UNITS[match[2].upper()]) if match else None


def parse_duration(text: str | None) -> float | None:
    """The seconds of ``24:00:10``, ``1-00:00:12`` or ``86442 sec.``; None for any other text."""
    text = (text or "").strip()
    if match := _CLOCK.match(text):
        return int(match[1] or 0) * 86_400.0 + int(match[2]) * 3_600 + int(match[3]) * 60 + int(match[4])
    match = re.match(r"\d{1,12}(?:\.\d{1,6})?", text)
    return float(match[0]) if match else None


_MONTH_FIRST = re.compile(r"(\d\d)/(\d\d)/(20\d\d) (\d\d):(\d\d):(\d\d)")


def parse_time(text: str | None) -> float | None:
    """The POSIX seconds of a date and time in a form of :mod:`trackside.logs.stamp`, or of ``11/28/2026 19:17:27``; None
    for any other text."""
    if not text:
        return None
    if match := _MONTH_FIRST.match(text):
        month, day, year, hour, minute, second = map(int, match.groups())
        return posix(year, month, day, hour, minute, second)
    return find_time(text)


def record_of(report: Event, id_: str) -> Record:
    """The record of the job that a report is about."""
    fields: dict[str, SlurmValue | None] = {name: value for name, value in report.fields.items() if name in _FIELDS}
    hosts = report.get("hosts")
    nodes = tuple(hosts.split(",")) if isinstance(hosts, str) and hosts else ()
    fields |= {"id": id_, "raw_id": id_ if id_.isdecimal() else None, "nodes": nodes, "n_nodes": len(nodes) or None}
    return Record("job", report.at, "scheduler", without_forecasts(fields), report.text)
