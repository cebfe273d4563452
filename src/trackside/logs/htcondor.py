"""HTCondor: events of a job's log, in its output or in the messages of a wrapper."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.logs.job_report import notice
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

HOLD_REASONS: Mapping[int, str] = {
    1: "cancelled",
    34: "out_of_memory",
    46: "time_limit",
    47: "time_limit",
}
"""HoldReasonCode -> reason of a notice: held by a user, over the memory limit, over allowed_job_duration or
allowed_execute_duration. Others are policies of the job or the pool, or failures of the system."""
_HOLD_TEXTS = (
    (re.compile(r"\b(?:gone over (?:the )?memory limit|out-of-memory event)\b"), "out_of_memory"),
    (
        re.compile(
            r"\b(?:exceeded allowed_(?:job|execute)_duration|allowed (?:job|execute) duration"
            r"|failed to complete in \d{1,5} ?h|exceed\w* (?:the )?(?:max\w* )?(?:wall ?(?:clock)? ?time|run ?time))",
            re.IGNORECASE,
        ),
        "time_limit",
    ),
    (re.compile(r"\b[Vv]ia condor_hold\b"), "cancelled"),
)
EVENT = re.compile(
    r"^(?P<event>\d{3}) \((?P<job>\d{1,10})\.(?P<process>\d{1,9})\.\d{3}\) "
    r"(?P<time>(?:\d{4}-)?\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d)(?:\.\d{1,6})?(?:Z|[+-]\d\d:?\d\d)? (?P<text>\S.{0,400})"
)
"""The first line of an event: its number, the job, the time (without a year in the old format), a sentence."""


def hold_reason(text: str, code: int | None) -> str | None:
    """The reason of a notice for which a job was held; None if it is another one."""
    if code is not None and code in HOLD_REASONS:
        return HOLD_REASONS[code]
    return next((reason for regex, reason in _HOLD_TEXTS if regex.search(text)), None)


PARSER = Parser("htcondor", "HTCondor", "system")


@PARSER.pattern(
    rb"\n?(004|009|012|022) \([0-9]{1,10}\.[0-9]{1,9}\.[0-9]{3}\) ",
    EVENT,
    safety="An event of HTCondor's own log with its number and the job's id.",
    matches=(
        "012 (512.000.000) 2026-05-04 10:00:00 Job was held.\n\tJob has gone over memory limit of 16384 megabytes.\n\tCode 34 Subcode 0",
        "004 (512.003.000) 05/04 10:00:00 Job was evicted.",
        "009 (512.000.000) 2026-05-04 10:00:00 Job was aborted by the user.\n\tvia condor_rm (by user ana)",
    ),
    avoids=("012 (512.000.000) at noon", "001 (512.000.000) 2026-05-04 10:00:00 Job executing on host: <10.0.0.7>"),
)
def _event(line: Line, match: re.Match[str]) -> Iterator[Event]:
    job = job_id(match)
    details = []
    for below in line.following(6):
        if not below.full.startswith(("\t", "    ")):
            break
        details.append(below.text.strip())
    text = " ".join(details)
    if match["event"] == "004":
        yield from notice(line, "preemption", job)
    elif match["event"] == "009":
        by = re.search(r"\(by user ([\w.@-]{1,80})\)", text)
        yield from notice(line, "cancelled", job, None if by is None else by[1])
    elif match["event"] == "012":
        code = re.search(r"\bCode (\d{1,4})\b", text)
        reason = hold_reason(text, int(code[1]) if code else None)
        if reason is not None:
            yield from notice(line, reason, job)
    elif match["event"] == "022":
        yield line.event("scheduler_notice", EventRole.CONFIRMATION, reason="node_failure", job=job)


def job_id(match: re.Match[str]) -> str:
    """``512`` of process 0, ``512_3`` of process 3."""
    process = int(match["process"])
    return f"{int(match['job'])}_{process}" if process else str(int(match["job"]))
