"""Summaries of a Slurm job that has ended: ``seff``, often at the end of the output, and the subject of Slurm's mail."""

from __future__ import annotations

import re

from trackside.catalog.job_states import ALL_STATES, is_over
from trackside.logs.job_report import parse_duration, parse_size
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

MAX_SEFF_LINES = 24
"""Lines of seff's output below the job id."""
_SEFF = re.compile(
    r"^(?P<key>Array Job ID|Cluster|User/Group|State|Nodes|Cores(?: per node)?|CPU \w+|Job Wall-clock time|Memory \w+|GPU .{1,20})"
    r": (?P<value>\S.{0,160})"
)
_STATE = re.compile(
    r"(?P<state>[A-Z_]{4,20})(?: \(exit code (?P<code>\d{1,5})\))?(?: \(signal (?P<signal>\d{1,3})\))?$"
)
_TASK = re.compile(r"\d{1,12}_\d{1,9}$")

PARSER = Parser("slurm-summary", "seff and Slurm's mail", "system")


@PARSER.pattern(
    rb"Job ID: [0-9]{1,12}",
    r"^Job ID: (?P<job>\d{1,12})\s*$",
    safety="With seff's fields below it and a final state: a job that calls seff itself is still running.",
    matches=("Job ID: 4711\nCluster: hpc\nUser/Group: ana/lab\nState: TIMEOUT (exit code 0)\nNodes: 1\n",),
    avoids=("Job ID: 4711", "Job ID: 4711\nState: RUNNING\n"),
)
def _seff(line: Line, match: re.Match[str]) -> Event | None:
    values: dict[str, str] = {}
    last = line.number
    for below in line.following(MAX_SEFF_LINES):
        field = _SEFF.match(below.text)
        if field is None:
            break
        values[field["key"]] = field["value"].strip()
        last = below.number
    state = _STATE.match(values.get("State", ""))
    if state is None or state["state"] not in ALL_STATES or not is_over(state["state"]):
        return None
    task = _TASK.match(values.get("Array Job ID", ""))
    used, requested = values.get("Memory Utilized"), values.get("Memory Efficiency", "").partition(" of ")[2]
    return line.event(
        "job_report",
        EventRole.ROOT,
        source="seff",
        job=task[0] if task else match["job"],
        user=values.get("User/Group", "").partition("/")[0] or None,
        state=state["state"],
        exit_code=int(state["code"]) if state["code"] else None,
        signal=int(state["signal"]) if state["signal"] else None,
        elapsed_s=parse_duration(values.get("Job Wall-clock time")),
        max_rss_bytes=parse_size(used) or None,
        req_mem_bytes=parse_size(requested) or None,
        above=True,
        lines=last - line.number + 1,
    )


@PARSER.pattern(
    rb"(Slurm|SLURM) (Array Task |Array Summary )?Job_id=",
    r"\b(?:Slurm|SLURM) (?:Array (?:Task|Summary) )?Job_id=(?P<job>\d{1,12}(?:_\d{1,9})?)(?:_\*)?(?: \(\d{1,12}\))? "
    r"Name=(?P<name>\S.{0,300}?) (?P<event>Ended|Failed|Requeued|TimeLimit reached|Reached time limit)\b(?P<rest>.{0,200})",
    safety="A mail that the job began, or nears its limit, is not its end.",
    matches=(
        "Slurm Job_id=4711 Name=train Ended, Run time 00:10:00, COMPLETED, ExitCode 0",
        "Subject: SLURM Job_id=4711 Name=train Failed, Run time 1-00:00:12, TIMEOUT",
        "Slurm Array Task Job_id=12_3 (15) Name=sweep Failed, Run time 00:00:04, FAILED, ExitCode 1",
    ),
    avoids=(
        "Slurm Job_id=4711 Name=train Began, Queued time 00:00:01",
        "Slurm Job_id=4711 Name=train Reached 90% of time limit, Run time 21:36:00",
    ),
)
def _mail(line: Line, match: re.Match[str]) -> Event | None:
    words = [word.strip() for word in match["rest"].split(",")]
    state = next((word for word in words if word in ALL_STATES), None)
    if state is None:
        state = {"Failed": "FAILED", "Requeued": "REQUEUED", "Ended": None}.get(match["event"], "TIMEOUT")
    if state is None or not is_over(state):
        return None
    code = re.search(r"\bExitCode (\d{1,5})\b", match["rest"])
    run_time = re.search(r"\bRun time ([\d:-]{5,20})", match["rest"])
    return line.event(
        "job_report",
        EventRole.ROOT,
        source="slurm_mail",
        job=match["job"],
        name=match["name"],
        state=state,
        exit_code=int(code[1]) if code else None,
        elapsed_s=parse_duration(run_time[1]) if run_time else None,
        above=True,
        lines=1,
    )
