"""Mails and summaries about a job's end, alone in a file: seff, and the mails of Slurm, LSF, PBS and Grid Engine."""

from __future__ import annotations

import io
import re

from trackside.catalog.events import last_line_of
from trackside.logs.job_report import REPORT, record_of
from trackside.logs.line import FileContext
from trackside.logs.scan import scan, scan_text
from trackside.model import Event
from trackside.read.format import HEAD_BYTES, Format, InputSource, Match, Result, Sink

_HINT = re.compile(
    r"^(?:Subject: .{0,80})?(?:Job ID: \d|PBS Job Id: \d|Job(?:-array task)? [\d.]+:? [(<])|Job_id=\d", re.MULTILINE
)
_MAIL = re.compile(
    r"^(?:(?:From|To|Cc|Date|Subject|Sender|Reply-To|Message-I[dD]|Return-Path|Received|Content-[\w-]+|MIME-Version|X-[\w-]+)"
    r":|From |-{8,}\s*$|PS:$|Read file <|\s*$)"
)
_ABOUT_THE_END = frozenset(
    {REPORT, "log_activity", "counted_lines", "scheduler_notice", "oom_kill", "process_exit", "unread_error"}
)


def _sniff(source: InputSource) -> Match | None:
    text = source.text
    if len(source.head) >= HEAD_BYTES or _HINT.search(text) is None:
        return None
    events = scan_text(text)
    reports = _reports(events)
    if not reports or any(event.kind not in _ABOUT_THE_END for event in events):
        return None
    inside = {number for report in reports for number in range(report.at.line, last_line_of(report) + 1)}
    lines = enumerate(text.splitlines(), 1)
    if any(number not in inside and _MAIL.match(line) is None for number, line in lines):
        return None
    return Match(0.9, ", ".join(sorted({str(report.get("source")) for report in reports})))


def _reports(events: list[Event]) -> list[Event]:
    return [event for event in events if event.kind == REPORT]


def _read(source: InputSource, sink: Sink) -> Result:
    events: list[Event] = []
    scan(io.BytesIO(source.whole()), events.append, FileContext(source.path))
    reports = _reports(events)
    for report in reports:
        sink.record(record_of(report, str(report.get("job") or "")))
    return Result(len(reports))


FORMAT = Format(
    "job-reports",
    "mails and summaries about a job's end (seff, Slurm, LSF, PBS, Grid Engine)",
    "scheduler",
    _sniff,
    _read,
)
