"""The history of jobs and nodes as the agent on the controller reports it: a sentence, a tab, Slurm's own record."""

from __future__ import annotations

import re

from trackside.catalog.job_states import ALL_STATES, is_over
from trackside.catalog.slurm.values import signed_reason
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_JOB = re.compile(
    r"(?:^|: )(?P<sentence>job (?P<id>\d{1,12}(?:[_+]\d{1,8})?)(?:_\[[^\t\]]{1,500}\])? (?P<verb>submitted|requeued|started|"
    r"suspended|resumed|updated|waits|ended)\b(?P<rest>[^\t]{0,3000}))\tJobId=\d"
)
_ENDED = re.compile(r" (?P<state>[A-Z_]{4,20})(?:, exit code (?P<code>\d{1,5}))?(?:, signal (?P<signal>\d{1,5}))?")
_WAITS = re.compile(r"(?:^|,)(?: waits)? for (?P<reason>[^\t]{1,300}?)(?:, before for .*)?\Z")
_NODE = re.compile(
    r"(?:^|: )(?P<sentence>node (?P<name>[\w.-]{1,80}) (?:is (?P<state>[A-Z_]{2,24}[A-Z_+*~#!%$@^-]{0,120})(?:: "
    r"(?P<reason>[^\t]{1,1000}?))?|booted))\tNodeName="
)
_OVER = frozenset(filter(is_over, ALL_STATES))
_VERBS = {"waits": "waiting"}


def state_change(line: Line) -> Event | None:
    """The event of a line about a job or a node."""
    return _job_change(line) or _node_change(line)


PARSER = Parser(
    "slurm_history", "Slurm's jobs and nodes over time, as the agent reports them", "system", planes=("scheduler",)
)


@PARSER.pattern(
    rb"job [0-9][^ \t\n\r]{0,520} (submitted|requeued|started|suspended|resumed|updated|waits|ended)"
    rb"[^\t\n\r]*\tJobId=[0-9]",
    safety="Only with Slurm's own record after the sentence; accounting's additions are a record, not a state change.",
    matches=(
        "job 7 submitted, waits for Resources\tJobId=7 JobName=train\tUserId=alice(1001)",
        "job 60_[4-9] waits for JobArrayTaskLimit, before for Priority\tJobId=60 ArrayJobId=60 ArrayTaskId=4-9",
        "job 60_3 started on n[1-2]\tJobId=64 ArrayJobId=60 ArrayTaskId=3 JobName=train",
        "job 7 updated: TimeLimit 01:00:00 -> 02:00:00\tJobId=7 JobName=train",
        "job 7 ended FAILED, exit code 0, signal 9\tJobId=7 JobName=train",
        "job 73+1 ended TIMEOUT, exit code 0\tJobId=74 HetJobId=73 HetJobOffset=1 JobName=train",
    ),
    avoids=(
        "job 7 ended FAILED, exit code 1",
        "job 7 accounted for as FAILED\tJobID=7\tJobIDRaw=7\tState=FAILED",
        "job 7 ended WELL, I think\tJobId=7 JobName=train",
        "[2026-11-21T07:53:47.1] [7.batch] done with job",
    ),
)
def _job_change(line: Line) -> Event | None:
    match = _JOB.search(line.text)
    if match is None:
        return None
    sentence, job, verb, details = match["sentence"], match["id"], match["verb"], match["rest"]
    if verb == "ended":
        ended = _ENDED.match(details)
        if ended is None or ended["state"] not in _OVER:
            return None
        code, signal = (int(ended[name]) if ended[name] else None for name in ("code", "signal"))
        state = ended["state"].lower()
        return line.event(
            "job_state", EventRole.OBSERVATION, job=job, text=sentence, state=state, exit_code=code, signal=signal
        )
    waiting = _WAITS.search(details) if verb in ("submitted", "requeued", "waits") else None
    return line.event(
        "job_state",
        EventRole.OBSERVATION,
        text=sentence,
        job=job,
        state=_VERBS.get(verb, verb),
        nodes=details.removeprefix(" on ") if verb == "started" and details.startswith(" on ") else None,
        reason=waiting["reason"] if waiting else details.removeprefix(": ") if verb == "updated" else None,
    )


@PARSER.pattern(
    rb"node [^ \t\n\r]{1,80} (is [A-Z]|booted)[^\t\n\r]*\tNodeName=",
    safety="A state that comes with its record; DRAIN says that no new work comes, not that any was lost.",
    matches=(
        "node n3 is DOWN+NOT_RESPONDING: Not responding [slurm@1795312000]\tNodeName=n3 Arch=x86_64",
        "node n4 is IDLE+DRAIN: bad fan [root@1795312000]\tNodeName=n4 Arch=x86_64",
        "node n4 is IDLE\tNodeName=n4 Arch=x86_64",
        "node n4 booted\tNodeName=n4 Arch=x86_64",
    ),
    avoids=("node n3 is DOWN: for the night", "[2026-11-21T07:58:20.1] node n3 returned to service"),
)
def _node_change(line: Line) -> Event | None:
    match = _NODE.search(line.text)
    if match is None:
        return None
    sentence, name, raw = match["sentence"], match["name"], match["state"]
    if raw is None:
        return line.event("node_state", EventRole.ROOT, node=name, text=sentence, state="rebooted")
    state = _state_of(raw)
    role = {"down": EventRole.ROOT, "drain": EventRole.CONFIRMATION}.get(state, EventRole.OBSERVATION)
    reason = signed_reason(match["reason"])[0]
    return line.event(
        "node_state", role, node=name, text=sentence, state=state, reason=reason if state != "up" else None
    )


def _state_of(raw: str) -> str:
    """The state of a node in events, from Slurm's own with its flags."""
    words = re.split(r"[+*~#!%$@^-]", raw)
    if "DOWN" in words or "ERROR" in words:
        return "down"
    if "NOT_RESPONDING" in words or raw.endswith("*"):
        return "not_responding"
    return "drain" if {"DRAIN", "FAIL"} & set(words) else "up"
