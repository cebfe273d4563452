"""Flux: exceptions of a job and the exits of its tasks, as ``flux run`` and ``flux job attach`` print them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from trackside.catalog.signals import Exit, read_code, signal_number
from trackside.logs import exits
from trackside.logs.job_report import notice
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

EXCEPTIONS: Mapping[str, str] = {
    "timeout": "time_limit",
    "cancel": "cancelled",
    "node-failure": "node_failure",
    "preempt": "preemption",
}
"""Type of a fatal exception -> reason of a notice."""

PARSER = Parser("flux", "Flux", "system")


def reason_of(type_: str, note: str) -> str | None:
    """Why a fatal exception of this type ended the job; None if it only says that the job failed."""
    if type_ in ("exec", "node-failure") and re.search(r"lost contact|node failure|broker .{0,60}lost", note):
        return "node_failure"
    return EXCEPTIONS.get(type_)


@PARSER.pattern(
    rb"job\.exception type=",
    r"\bjob\.exception type=(?P<type>[\w-]{2,30}) severity=(?P<severity>\d)(?P<note>.{0,400})",
    safety="Only severity 0 ends the job.",
    matches=(
        "7200.113s: job.exception type=timeout severity=0 resource allocation expired",
        "61.204s: job.exception type=cancel severity=0 interrupted by ctrl-C",
    ),
    avoids=("job.exception type=timeout severity=2 late", "3.1s: job.exception type=exec severity=0 shell_init"),
)
def _fatal_exception(line: Line, match: re.Match[str]) -> Iterator[Event]:
    reason = reason_of(match["type"], match["note"])
    if match["severity"] == "0" and reason is not None:
        yield from notice(line, reason)


@PARSER.pattern(
    rb"flux-job: task\(s\) ",
    r"flux-job: task\(s\) (?:exited with exit code (?P<code>\d{1,3})|(?P<death>[A-Z][A-Za-z ]{3,40}))",
    safety="Flux reports the worst exit of all tasks.",
    matches=("flux-job: task(s) exited with exit code 1", "flux-job: task(s) Killed"),
    avoids=("flux-job: task(s) Running",),
)
def _worst_exit(line: Line, match: re.Match[str]) -> Event | None:
    if match["code"]:
        return exits.process_exit(line, read_code(int(match["code"])), "flux")
    number = signal_number(match["death"].strip())
    return None if number is None else exits.process_exit(line, Exit(signal=number), "flux")


@PARSER.pattern(
    rb"flux-shell\[[0-9]{1,7}\]: ERROR: oom: ",
    r"ERROR: oom: Memory cgroup out of memory: killed (?P<count>\d{1,6}) tasks?",
    safety="The shell plugin that watches the job's memory cgroup.",
    matches=("230.4s: flux-shell[1]: ERROR: oom: Memory cgroup out of memory: killed 1 task on n7.",),
    avoids=("230.4s: flux-shell[1]: ERROR: oom: memory.peak = 444.9G",),
)
def _oom_kill(line: Line, match: re.Match[str]) -> Event:
    return line.event("oom_kill", EventRole.ROOT, scope="cgroup", count=int(match["count"]))
