"""Sun, Univa and Altair Grid Engine: limits that end a job, and its mail at the end of a job."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.signals import signal_number
from trackside.logs.job_report import notice, parse_duration, parse_size, parse_time, state_of
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_LIMITS = {"h_rt": "time_limit", "h_cpu": "time_limit", "h_vmem": "out_of_memory", "h_rss": "out_of_memory"}
MAX_MAIL_LINES = 24
"""Lines of the mail below its subject."""
_FIELD = re.compile(r"^\s{1,8}(?P<key>[A-Z][A-Za-z ]{2,20}?)\s{0,20}= (?P<value>\S.{0,200})")
_SUBJECT = re.compile(
    r"^(?:Subject: )?(?:Job (?P<job>\d{1,12})|Job-array task (?P<array>\d{1,12})\.(?P<task>\d{1,9}))"
    r" \((?P<name>[^)\n]{1,300})\) (?P<end>Complete|Aborted)\s*$"
)

PARSER = Parser("grid-engine", "Grid Engine", "system")


@PARSER.pattern(
    rb"(exceeded hard wallclock time|exceeds job (?:master )?hard limit)",
    r"\bjob (?P<job>\d{1,12})(?:\.\d{1,9})? (?:exceeded hard wallclock time\b|exceeds job (?:master )?hard limit \"(?P<limit>\w{2,10})\")",
    safety="The execution daemon's message with a job id.",
    matches=(
        "05/03/2026 21:08:39|worker|n4|W|job 48.1 exceeded hard wallclock time - initiate terminate method",
        'W|job 48 exceeds job hard limit "h_vmem" of queue "gpu.q@n4" (17.1 > limit:16.0) - sending SIGKILL',
    ),
    avoids=("the job exceeded hard wallclock time last week",),
)
def _limit_notice(line: Line, match: re.Match[str]) -> Iterator[Event]:
    reason = "time_limit" if match["limit"] is None else _LIMITS.get(match["limit"])
    if reason is not None:
        yield from notice(line, reason, match["job"])


@PARSER.pattern(
    rb"Job(-array task)? [0-9.]{1,22} \([^)\n]{1,300}\) (Complete|Aborted)",
    _SUBJECT,
    safety="The first line of the mail's body, with the fields below it.",
    matches=(
        "Job 811 (train.sh) Aborted\n Exit Status      = 137\n Signal           = KILL\n",
        "Job-array task 812.4 (sweep) Complete\n User             = ana\n Exit Status      = 0\n",
    ),
    avoids=("Job 811 (train.sh) Complete", "Job 9 (nightly) Aborted after lunch"),
)
def _mail(line: Line, match: re.Match[str]) -> Event | None:
    values: dict[str, str] = {}
    last, failure = line.number, ""
    for below in line.following(MAX_MAIL_LINES):
        field = _FIELD.match(below.text)
        if field is not None:
            values[field["key"].lower()] = field["value"].strip()
        elif below.text.startswith(("failed ", "job ", "Exit Status")):
            failure = f"{failure} {below.text.strip()}".strip()
        elif below.text.strip():
            break
        last = below.number
    if not values:
        return None
    get = values.get
    status = re.match(r"\d{1,3}\b", get("exit status", ""))
    code = int(status[0]) if status else None
    signal = signal_number(get("signal", "").removeprefix("unknown signal"))
    start, end = parse_time(get("start time")), parse_time(get("end time"))
    return line.event(
        "job_report",
        EventRole.ROOT,
        time=end,
        source="grid_engine",
        job=match["job"] or f"{match['array']}_{match['task']}",
        name=match["name"],
        user=get("user"),
        state=state_of(None, code, signal) or ("COMPLETED" if match["end"] == "Complete" else "FAILED"),
        exit_code=code,
        signal=signal,
        reason=failure or None,
        start=start,
        end=end,
        elapsed_s=parse_duration(get("wallclock time")),
        max_rss_bytes=parse_size(get("max vmem")),
        hosts=get("host"),
        above=True,
        lines=last - line.number + 1,
    )
