"""slurmctld's own log: node states, job states, and why the controller ends or moves work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trackside.catalog.hostlist import expand
from trackside.logs.line import Line
from trackside.logs.pattern import Parser
from trackside.model import Event, EventRole

_JOB = re.compile(r"JobId=(?P<id>\d{1,12}(?:[_+]\d{1,10})?)")
_UID = re.compile(r"(?:uid|UID)[ =](\d{1,10})")
_NODES = re.compile(r"(?:NodeList=|\bon )([\w.,\[\]-]{1,2000})")
_NODE_SET = re.compile(
    r"(?:update_node: |drain_nodes: )node (?P<node>[\w.-]{1,80}) (?:state set to (?P<state>\w{2,"
    r"24})|reason set to: (?P<reason>.{1,300}))"
)
_NODE_SETTING = re.compile(
    r"[Ss]etting node (?P<node>[\w.-]{1,80}) (?:state )?to (?P<state>\w{2,24})(?:[ ,]+(?:with "
    r")?reason ?[:=] ?(?P<reason>.{1,300}))?"
)
_DRAINED = re.compile(
    r"(?P<reason>[Pp]rolog or job env setup failure|epilog error|[Pp]rolog failure) on (?:node "
    r")?(?P<node>[\w.-]{1,80}), (?:draining|setting)"
)
_TASK_FAILED = re.compile(
    r"slurmd error running JobId=\S{1,40} on node\(s\)=(?P<node>[\w.,\[\]-]{1,300}): (?P<reason>.{1,200})"
)
_FAILED_NODE = re.compile(r"(?:on failed node|failure of node|missing from batch node) (?P<node>[\w.-]{1,80})")
_JOB_END = re.compile(
    r"_job_complete: JobId=\S{1,40} (?:WEXITSTATUS (?P<code>\d{1,3})|WTERMSIG (?P<signal>\d{1,3})|(?P<oom>OOM failure))"
)
_UP_STATES = frozenset({"IDLE", "RESUME", "UNDRAIN", "POWER_UP"})
MAX_NODES = 256
"""Nodes of one line that get an event each."""
MAX_LINES_TO_STATE = 4
"""Lines from a node's reason to its state: what happens to its jobs may be logged between them."""
REPORTED = "\0"
"""Stands for a reason that was reported with its state, at the reason's line."""
MAX_REASONS = 10_000
"""Nodes whose reason is remembered until the line with their state."""

_NOTICES: tuple[tuple[str, str, str | None], ...] = (
    ("Time limit exhausted for ", "time_limit", "timeout"),
    ("has been requeued to reclaim resources", "preemption", "preempted"),
    ("has been killed to reclaim resources", "preemption", "preempted"),
    ("had to be killed", "preemption", "preempted"),
    ("due to failure of node", "node_failure", "requeued"),
    ("on failed node", "node_failure", None),
    ("missing from batch node", "node_failure", None),
    ("REQUEST_KILL_JOB", "cancelled", "cancelled"),
    ("per user/system request", "requeue", "requeued"),
    ("dependency can't be satisfied", "dependency", "cancelled"),
    ("exceeded deadline", "deadline", "cancelled"),
    ("Killing non-startable", "launch_failure", "failed"),
    ("Prolog launch failure", "launch_failure", None),
)
"""text -> (reason of the notice, the job's state after it)"""


def _job_id(line: Line) -> str | None:
    """The id of the first job that a line names, or None."""
    match = _JOB.search(line.text)
    return match["id"] if match else None


PARSER = Parser("slurmctld", "slurmctld's log", "system", planes=("scheduler",))


@PARSER.pattern(
    rb"(Time limit exhausted for|to reclaim resources|had to be killed|due to failure of node|on "
    rb"failed node|missing from batch node|REQUEST_KILL_JOB|per user/system request|dependency "
    rb"can't be satisfied|exceeded deadline|Killing non-startable|Prolog launch failure)",
    safety="The controller's reason for a job's end; REQUEST_KILL_JOB is what scancel sends.",
    matches=(
        "[2026-11-21T07:58:20.1] Killing JobId=19 on failed node n3",
        "[2026-11-21T07:58:20.1] requeue job JobId=21 due to failure of node n3",
        "[2026-11-21T07:58:20.1] Time limit exhausted for JobId=16",
        "[2026-11-21T07:58:20.1] preempted JobId=31 has been requeued to reclaim resources for JobId=32",
        "[2026-11-21T07:58:20.1] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=60_4 uid 1001",
        "[2026-11-21T07:58:20.1] _kill_dependent: Job dependency can't be satisfied, cancelling JobId=44",
    ),
    avoids=("[2026-11-21T07:58:20.1] sched: _hold_job_rec: hold on JobId=28 by uid 0", "REQUEST_KILL_JOB"),
)
def _job_notice(line: Line) -> Iterator[Event]:
    notice = next(((reason, state) for text, reason, state in _NOTICES if text in line.text), None)
    job = _job_id(line)
    if notice is None or job is None:
        return
    reason, state = notice
    node, uid = _FAILED_NODE.search(line.text), _UID.search(line.text)
    yield line.event(
        "scheduler_notice",
        EventRole.ROOT,
        node=node["node"] if node else None,
        reason=reason,
        job=job,
        by=uid[1] if uid else None,
    )
    if state is not None:
        yield line.event("job_state", EventRole.OBSERVATION, job=job, state=state)


@PARSER.pattern(
    rb"_job_complete: JobId=[^ \n\r]{1,40} (WEXITSTATUS|WTERMSIG|OOM failure)",
    safety="The batch script's exit; the 'done' line after it adds nothing.",
    matches=(
        "[2026-11-21T07:53:47.1] _job_complete: JobId=8 WEXITSTATUS 143",
        "[2026-11-21T07:53:47.1] _job_complete: JobId=65_1(66) WTERMSIG 9",
        "[2026-11-21T07:53:47.1] _job_complete: JobId=9 OOM failure",
    ),
    avoids=("[2026-11-21T07:53:47.1] _job_complete: JobId=8 done",),
)
def _job_end(line: Line) -> Event | None:
    match, job = _JOB_END.search(line.text), _job_id(line)
    if match is None or job is None:
        return None
    code = int(match["code"]) if match["code"] else None
    return line.event(
        "job_state", EventRole.OBSERVATION, job=job, state="completed" if code == 0 else "failed", exit_code=code
    )


@PARSER.pattern(
    rb"(Requeuing JobId=|sched: Allocate JobId=|_start_job: Started JobId=|"
    rb"_slurm_rpc_allocate_resources JobId=|_slurm_rpc_submit_batch_(het_)?job: JobId=)",
    safety="Submission, start and requeue of a job: facts, not causes.",
    matches=(
        "[2026-11-21T07:53:47.1] sched: Allocate JobId=19 NodeList=n[2-3] #CPUs=4 Partition=batch",
        "[2026-11-21T07:53:47.1] sched/backfill: _start_job: Started JobId=21 in batch on n[2,4]",
        "[2026-11-21T07:53:47.1] _slurm_rpc_submit_batch_job: JobId=21 InitPrio=4294 usec=300",
        "[2026-11-21T07:53:47.1] Requeuing JobId=21",
    ),
    avoids=("[2026-11-21T07:53:47.1] Recovered JobId=21 Assoc=4",),
)
def _job_event(line: Line) -> Event | None:
    job, text = _job_id(line), line.text
    if job is None:
        return None
    if "Requeuing JobId=" in text:
        return line.event("job_state", EventRole.OBSERVATION, job=job, state="requeued")
    if "_start_job: Started" in text or "sched: Allocate" in text or "_slurm_rpc_allocate_resources" in text:
        nodes = _NODES.search(text)
        return line.event(
            "job_state", EventRole.OBSERVATION, job=job, state="started", nodes=nodes[1] if nodes else None
        )
    return line.event("job_state", EventRole.OBSERVATION, job=job, state="submitted")


@PARSER.pattern(
    rb"ode(s)? [^ \n\r]{1,200} (not responding|returned to service|now responding|unexpectedly rebooted)",
    r"\b[Nn]odes? (?P<nodes>[\w.,\[\]-]{1,2000}) (?P<what>not responding, setting DOWN|not "
    r"responding|returned to service|now responding|unexpectedly rebooted)",
    safety="'not responding' alone comes and goes: an observation until the node is set DOWN.",
    matches=(
        "[2026-11-21T07:58:20.1] error: Nodes g[3-4] not responding, setting DOWN",
        "[2026-11-21T07:58:20.1] node n3 returned to service",
        "[2026-11-21T07:58:20.1] validate_node_specs: Node g3 unexpectedly rebooted boot_time=1 last response=2",
    ),
    avoids=("[2026-11-21T07:58:20.1] the node does not respond",),
)
def _node_response(line: Line, match: re.Match[str]) -> Iterator[Event]:
    states = {"not responding": "not_responding", "unexpectedly rebooted": "rebooted"}
    state = "down" if "setting DOWN" in match["what"] else states.get(match["what"], "up")
    role = EventRole.OBSERVATION if state in ("up", "not_responding") else EventRole.ROOT
    reason = None if state == "up" else match["what"]
    for name in expand(match["nodes"], MAX_NODES):
        yield line.event("node_state", role, node=name, state=state, reason=reason)


@PARSER.pattern(
    rb"(node [^ \n\r]{1,80} (state set to|reason set to:) |[Ss]etting node [^ \n\r]{1,80} (state )?to [A-Z])",
    safety="Set by an admin or a health check; the reason is theirs.",
    matches=(
        "[2026-11-21T07:57:47.1] update_node: node n3 state set to DOWN",
        "[2026-11-21T07:57:47.1] drain_nodes: node n4 state set to DRAIN",
        "[2026-11-21T07:57:47.1] update_node: node n3 state set to IDLE",
        (
            "[2026-11-21T07:57:47.1] update_node: node n3 reason set to: bad fan\n"
            "[2026-11-21T07:57:47.1] update_node: node n3 state set to DRAINING"
        ),
        (
            "[2026-11-21T07:57:47.1] error: Setting node gpu1 state to INVAL with reason:gres/gpu count "
            "reported lower than configured (7 < 8)"
        ),
    ),
    avoids=(
        "[2026-11-21T07:57:47.1] update_node: node n3 reason set to: bad fan",
        "[2026-11-21T07:57:47.1] update_node: node n3 state set to FUTURE",
    ),
)
def _node_update(line: Line) -> Event | None:
    """A node's state that an admin or a script set, at the line of its reason, which is the one before or close by."""
    match = _NODE_SET.search(line.text) or _NODE_SETTING.search(line.text)
    if match is None:
        return None
    group = match.groupdict()
    reasons: dict[str, str] = line.notes("slurmctld")
    if group.get("reason") and not group.get("state"):
        node_state = _state_below(line, match["node"])
        if node_state is None:
            if len(reasons) < MAX_REASONS:
                reasons[match["node"]] = match["reason"]
            return None
        reasons[match["node"]] = REPORTED
        return line.event("node_state", EventRole.ROOT, node=match["node"], state=node_state, reason=match["reason"])
    state, reason = match["state"].upper(), group.get("reason") or reasons.get(match["node"])
    if state in _UP_STATES:
        reasons.pop(match["node"], None)
        return line.event("node_state", EventRole.OBSERVATION, node=match["node"], state="up")
    node_state = _lost_state(state)
    if node_state is None or reasons.get(match["node"]) == REPORTED:
        reasons.pop(match["node"], None)
        return None
    return line.event("node_state", EventRole.ROOT, node=match["node"], state=node_state, reason=reason)


def _lost_state(state: str) -> str | None:
    """Our name of a state in which a node takes no jobs; None for another."""
    return "drain" if state.startswith(("DRAIN", "INVAL")) else "down" if state.startswith(("DOWN", "FAIL")) else None


def _state_below(line: Line, node: str) -> str | None:
    """The state that the controller set together with the reason on this line."""
    matches = (_NODE_SET.search(other.text) for other in line.following(MAX_LINES_TO_STATE))
    states = (match["state"] for match in matches if match is not None and match["node"] == node and match["state"])
    return next((_lost_state(state.upper()) for state in states), None)


@PARSER.pattern(
    rb"(draining the node|slurmd error running JobId=)",
    safety="A prolog, an epilog or an unkillable task took the node out of service before or after the job, not "
    "during it.",
    matches=(
        (
            "[2026-11-21T07:57:47.1] error: validate_node_specs: Prolog or job env setup failure on node "
            "n4, draining the node"
        ),
        "[2026-11-21T07:57:47.1] error: job_epilog_complete: JobId=25 epilog error on n4, draining the node",
        "[2026-11-21T07:57:47.1] error: slurmd error running JobId=26 on node(s)=n4: Kill task failed",
    ),
    avoids=("[2026-11-21T07:57:47.1] draining the node for maintenance",),
)
def _node_drain(line: Line) -> Event | None:
    match = _DRAINED.search(line.text) or _TASK_FAILED.search(line.text)
    if match is None:
        return None
    return line.event(
        "node_state",
        EventRole.CONFIRMATION,
        node=match["node"],
        state="drain",
        reason=match["reason"].strip(),
        job=_job_id(line),
    )
