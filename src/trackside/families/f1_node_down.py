"""Node failure.

Meaning
-------
The cluster lost a node while the job ran on it. The controller ends the job before any exception is raised; the
training was fine until then.

What it looks like
------------------
Slurm's NODE_FAIL or BOOT_FAIL, "Node failure on", "DUE TO NODE FAILURE", a node of the run reported down, not
responding or rebooted at the run's end, a kernel panic. The log often just stops. In metrics all samples of that
node stop, host and GPUs alike, while those of the other nodes continue; its boot time may change afterwards.

Not this family when
--------------------
- The node was drained after the job had ended, or while the job continued to its own end.
- The node of another job is down.
- A GPU of that node failed at the same time: then the GPU is the cause, and the node its consequence.
- One exporter fell silent while another of the same node, or training, continued: that is a monitoring gap.
- Only a GPU health flag is set: that is not a node state.

Impact
------
All work since the last checkpoint.

Do next
-------
Drain the node until it is checked (`scontrol update nodename=NODE state=drain reason='node failure'`), and rerun on
other nodes (`sbatch --exclude=NODE`).

What it cannot decide
---------------------
Why the node failed: hardware, kernel, network or an operator; its own logs show that. From silence alone,
whether the node or only its network was lost.

References
----------
- [Slurm: job state codes](https://slurm.schedmd.com/job_state_codes.html)
- [Slurm: node state codes](https://slurm.schedmd.com/sinfo.html#SECTION_NODE-STATE-CODES)
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from trackside.catalog.job_states import WAITING_STATES
from trackside.evidence import Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing
from trackside.facts.hardware.kernel_crashes import KernelCrashes
from trackside.facts.hardware.node_presence import LostNode, NodePresence
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.facts.logs.ending import RECORDED, Ending
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Event, Record, Run
from trackside.remedies import DRAIN, RESUBMIT_ELSEWHERE


@dataclass(frozen=True)
class Limits:
    """When a node was lost at the run's end."""

    around_end_s: float = 600.0
    """A node lost up to this long before the run's end may have ended it. SlurmdTimeout is 300 s by default: a node is
    declared down up to that long after it fell silent, and the record of the job's end may be either time."""


LOST_STATES = ("down", "not_responding", "rebooted")
"""Node states that its jobs do not survive."""

NODE_FAILED = Sentence("a node failed while the job was running")
NODE_FAILED_RERUN = Sentence("a node failed while the job was running; the job ran again and completed")
FAILED_NODE = Sentence("the failed node is {node}")
SCHEDULER_NOTICE = Sentence("the scheduler's notice: {line}")
NODE_STATE = Sentence("node {node} was {state} when the run ended", running="node {node} is {state}")
NODE_REASON = Sentence(
    "node {node} was {state} when the run ended; reason: {reason}",
    running="node {node} is {state}; reason: {reason}",
)
REASON_OF_NODE = Sentence("the scheduler's reason for taking node {node} out of service: {reason}")
HEALTHY_UNTIL = Sentence("training progressed until {place}; the loss had fallen to {loss}")
NODE_LOST = Sentence("the cluster lost a node while the job was running; the code is not at fault")
LOST_AND_RERUN = Sentence("the cluster lost a node while the job was running; the job ran again and completed")
FAILURE_UNEXPLAINED = Sentence("why the node failed")
PANIC_ALONE = Sentence("a node's kernel crashed")
PANIC_LINE = Sentence("the kernel of {node} crashed: {line}")
PANIC_LINE_ONLY = Sentence("the kernel crashed: {line}")
PANIC_MEANS = Sentence("the node is at fault, its hardware or its kernel; no job is known to have run on it")
PANIC_UNEXPLAINED = Sentence("what made the kernel crash: hardware, a driver or the kernel itself")
RERUN_ELSEWHERE = Sentence("rerun on other nodes with the same options, from the last checkpoint if there is one")
KEEP_OUT_OF_SERVICE = Sentence("keep {node} out of service until it is checked")
DRAIN_RETURNED = Sentence("drain {node}, which is back in service, until it is checked (needs a Slurm administrator)")
DRAIN_CRASHED = Sentence("drain the node until it is checked (needs a Slurm administrator)")
NOTHING_TO_RESUBMIT = Sentence("nothing to resubmit: the job ran again and completed")
LISTED_AGAIN = Sentence("nothing to resubmit: the scheduler lists it as {state}")
WHICH_NODE = Sentence("which node failed")
FIND_NODE = Sentence("see which node failed, and keep it out of service until it is checked")
NODE_EVENTS = ShellCommand("{sacctmgr} -n show event nodes={all_nodes} start={run_start}")
RERUN_WITHOUT = Sentence("rerun without that node, with the same options, from the last checkpoint if there is one")
READ_KERNEL_LOG = Sentence(
    "once the node is back, and before it takes jobs again, read its kernel log from before the failure"
)
KERNEL_LOG_THEN = ShellCommand(
    "{node_shell} \"sudo journalctl _TRANSPORT=kernel --since '{log_since}' --until '{log_until}'\""
)
"""Of all boots; ``journalctl -k`` would show the present boot only."""
LAST_KERNEL_LOG = ShellCommand("{node_shell} 'sudo journalctl _TRANSPORT=kernel -n 200'")
BEFORE_S, AFTER_S = 1800.0, 120.0
"""Seconds before and after the failure for which the kernel log is shown."""
OTHER_STATE = Sentence(
    "the scheduler recorded {state}, which is not a node failure",
    running="the scheduler lists it as {state}, which is not a node failure",
)


MACHINE_REASON = re.compile(r"not responding|unexpectedly rebooted", re.IGNORECASE)
"""Reasons that Slurm itself records for a lost node: they do not say why."""
MAX_NODE_CHARS = 150
"""A longer list of nodes is not put into a command."""


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """One source's report that a node was lost, with the node and the time if known, and the reason that a person or a
    health check gave."""

    claims: tuple[Claim, ...]
    node: Value | None = None
    since: float | None = None
    rebooted: bool = False
    reason: Value | None = None


def judge(
    ending: Ending,
    nodes: DrainedNodes,
    presence: Maybe[NodePresence],
    crashes: KernelCrashes,
    trajectory: Maybe[Trajectory],
    run: Run,
    limits: Limits,
) -> Finding | Missing:
    """The scheduler's state, its notices, the nodes' states at the run's end, the kernel's panic, then the monitor's
    data.

    Node states and the monitor count only if the job did not continue.
    """
    panics = _panics(crashes)
    if ending.missing_end is not None and (nothing := all_missing(ending.missing_end, presence)) is not None:
        return _panic_alone(crashes, panics) if panics else nothing
    lost_nodes = () if isinstance(presence, Missing) else presence.lost
    recorded, noticed = _by_records(ending), _by_notices(ending)
    drained = _by_node_states(nodes, run, limits)
    is_dated = bool(lost_nodes) or (bool(drained) and ending.job is not None)
    signs: list[NodeLoss | LostNode] = [*drained, *lost_nodes]
    state = None if ending.state is None else ending.state.value
    alive = ending.completed is not None or state == "RUNNING"
    if not (recorded or noticed) and (alive or not (is_dated or panics)):
        return _ruled_out(ending, presence)
    witnesses, completed = [*recorded, *noticed, *signs, *panics], state == "COMPLETED"
    names = [witness.node for witness in (*noticed, *recorded, *signs, *panics) if witness.node is not None]
    first = next((witness.node for witness in (*recorded, *signs, *panics, *noticed) if witness.node is not None), None)
    rebooted = any(witness.rebooted for witness in signs) and ending.abnormal is not None
    planes = {cite.plane for witness in (*signs, *panics) for claim in witness.claims for cite in claim.cites}
    since = _since(witnesses, bool(lost_nodes), trajectory, limits)
    reason = next((sign.reason for sign in drained if sign.reason is not None), None)
    notice = next((row for row in ending.notices.events if row.get("reason") == "node_failure"), None)
    return present(
        Certainty.ESTABLISHED if recorded or noticed or rebooted or len(planes) > 1 else Certainty.SUPPORTED,
        "infrastructure",
        [*(claim for witness in witnesses for claim in witness.claims), *_health_before(trajectory)],
        headline=(NODE_FAILED_RERUN if completed else NODE_FAILED)(),
        implies=[LOST_AND_RERUN() if completed else NODE_LOST()],
        cannot_decide=[
            *([WHICH_NODE()] if first is None and len(run.nodes) > 1 else []),
            *([PANIC_UNEXPLAINED()] if panics else [] if reason is not None else [FAILURE_UNEXPLAINED()]),
        ],
        actions=[
            *([] if first is None else [_keep_out(first, reason, nodes, since)]),  # of the owner, who acts first
            *(_find_node(ending, run) if first is None else []),
            _next_run(ending, first, completed),
            *([] if first is None or panics else [_read_kernel_log(first, since, run)]),
        ],
        since=since,
        at=None if notice is None else notice.at,
        nodes=tuple(dict.fromkeys(str(node.value) for node in names)),
        variant="recovered" if completed else None,
    )


def _keep_out(node: Value, reason: Value | None, nodes: DrainedNodes, since: float | None) -> Action:
    """How to keep jobs from the node; the reason that somebody gave it is left as it is."""
    if nodes.returned(str(node.value), since):
        return action(DRAIN_RETURNED, DRAIN, node=node, reason=derived("node failure", node))
    commands = [] if reason is not None else [DRAIN]
    return action(KEEP_OUT_OF_SERVICE, *commands, node=node, reason=derived("node failure", node))


def _next_run(ending: Ending, node: Value | None, completed: bool) -> Action:
    """What to do about the job itself; nothing if it ran again or will."""
    if completed:
        return action(NOTHING_TO_RESUBMIT)
    if ending.state is not None and (ending.running or ending.state.value in WAITING_STATES):
        return action(LISTED_AGAIN, state=ending.state)
    return action(RERUN_ELSEWHERE if node is not None else RERUN_WITHOUT, *RESUBMIT_ELSEWHERE)


def _find_node(ending: Ending, run: Run) -> list[Action]:
    """How to see which of several nodes failed; nothing if there is only one or Slurm's records are not known."""
    nodes = sorted({*run.nodes, *(node for attempt in run.attempts for node in attempt.nodes)})
    starts = [time for time in (run.start, *(attempt.start for attempt in run.attempts)) if time is not None]
    names = ",".join(nodes)
    if len(nodes) < 2 or not ending.jobs or not starts or len(names) > MAX_NODE_CHARS:
        return []
    source = ending.jobs.value(ending.jobs.records[0], "state")
    since = dt.datetime.fromtimestamp(min(starts), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
    texts = {
        "sacctmgr": "TZ=UTC sacctmgr" if run.has_time_zone else "sacctmgr",
        "all_nodes": shlex.quote(names),
        "run_start": since,
    }
    return [action(FIND_NODE, NODE_EVENTS, **{name: derived(text, source) for name, text in texts.items()})]


def _panics(crashes: KernelCrashes) -> list[NodeLoss]:
    """The kernel's panics, one per node."""
    frame, losses = crashes.frame, dict[str | None, NodeLoss]()
    for row in crashes.panics:
        line = frame.value(row, "text")
        node = frame.value(row, "node") if row.node else None
        claim = PANIC_LINE_ONLY(line=line) if node is None else PANIC_LINE(node=node, line=line)
        losses.setdefault(row.node, NodeLoss((claim,), node, row.time))
    return list(losses.values())


def _panic_alone(crashes: KernelCrashes, panics: Sequence[NodeLoss]) -> Finding:
    """A panic without any record of a job."""
    node = next((loss.node for loss in panics if loss.node is not None), None)
    return present(
        Certainty.SUPPORTED,
        "infrastructure",
        [claim for loss in panics for claim in loss.claims],
        headline=PANIC_ALONE(),
        implies=[PANIC_MEANS()],
        cannot_decide=[PANIC_UNEXPLAINED()],
        actions=[action(DRAIN_CRASHED, DRAIN, reason=derived("kernel panic", panics[0].claims[0].values["line"]))],
        since=panics[0].since,
        at=crashes.panics[0].at,
        nodes=() if node is None else (str(node.value),),
    )


def _read_kernel_log(node: Value, since: float | None, run: Run) -> Action:
    """How to read the node's kernel log around the failure, or its end if the time is not known."""
    if since is None:
        return action(READ_KERNEL_LOG, LAST_KERNEL_LOG)
    template = "%Y-%m-%d %H:%M UTC" if run.has_time_zone else "%Y-%m-%d %H:%M"  # else as printed: the node's own time
    log_since, log_until = (
        derived(dt.datetime.fromtimestamp(since + shift, dt.UTC).strftime(template), node)
        for shift in (-BEFORE_S, AFTER_S)
    )
    return action(READ_KERNEL_LOG, KERNEL_LOG_THEN, log_since=log_since, log_until=log_until)


def _by_records(ending: Ending) -> list[NodeLoss]:
    """The scheduler's state of an attempt; the first one has the claims."""
    jobs = ending.jobs
    witnesses: list[NodeLoss] = []
    for row in (row for row in jobs.records if row.get("state") in ("NODE_FAIL", "BOOT_FAIL")):
        node = jobs.value(row, "failed_node") if row.get("failed_node") else None
        claims = (RECORDED(state=jobs.value(row, "state")), *(() if node is None else (FAILED_NODE(node=node),)))
        end = row.get("end")
        since = float(end) if isinstance(end, (int, float)) else None
        witnesses.append(NodeLoss(() if witnesses else claims, None if witnesses else node, since))
    return witnesses


def _by_notices(ending: Ending) -> list[NodeLoss]:
    """The scheduler's notices; the first one has the claims."""
    notices = ending.notices
    witnesses: list[NodeLoss] = []
    for row in (row for row in notices.events if row.get("reason") == "node_failure"):
        line = notices.value(row, "text")
        is_named = row.parser == "slurmctld" or "failure on" in row.text.lower()
        node = derived(row.node, line) if row.node and is_named else None
        witnesses.append(NodeLoss(() if witnesses else (SCHEDULER_NOTICE(line=line),), node, row.time))
    return witnesses


def _by_node_states(nodes: DrainedNodes, run: Run, limits: Limits) -> list[NodeLoss]:
    """The run's nodes that the scheduler declared lost at its end: by its log, else by its node records."""

    def at_end(time: float | None) -> bool:
        if time is None or run.end is None:
            return run.end is None
        since, until = run.end - limits.around_end_s, run.end + nodes.margin_s
        return (run.start or run.end) <= time and since <= time <= until

    states, records = nodes.states, nodes.frame
    lost: dict[str, NodeLoss] = {}
    for row in states.events:
        if row.node in run.nodes and row.get("state") in LOST_STATES and at_end(row.time):
            node, state = states.value(row, "node"), states.value(row, "state")
            reason = _given_reason(states, row)
            claim = NODE_STATE(node=node, state=state)
            if reason is not None:
                claim = NODE_REASON(node=node, state=state, reason=reason)
            lost[str(row.node)] = NodeLoss((claim,), node, reason=reason)
    for record in nodes.rows:
        name, time = str(record.get("name")), numeric_field(record, "reason_time")
        down = record.get("state") == "down" or "not_responding" in record.many("flags")
        down |= record.get("state") is None and MACHINE_REASON.search(str(record.get("reason"))) is not None
        if name in run.nodes and down and time is not None and at_end(time):
            node, state = records.value(record, "name"), records.value(record, "state")
            claim = NODE_STATE(node=node, state=state)
            if record.get("reason"):
                claim = NODE_REASON(node=node, state=state, reason=records.value(record, "reason"))
            if record.get("state") is None:  # sinfo -R prints no state
                claim = REASON_OF_NODE(node=node, reason=records.value(record, "reason"))
            lost.setdefault(name, NodeLoss((claim,), node, reason=_given_reason(records, record)))
    return list(lost.values())


def _given_reason(frame: Frame, row: Event | Record) -> Value | None:
    """The reason of a node's state that a person or a health check gave; None for Slurm's own."""
    text = str(row.get("reason") or "")
    return None if not text or MACHINE_REASON.search(text) else frame.value(row, "reason")


def _health_before(trajectory: Maybe[Trajectory]) -> list[Claim]:
    """The claim that training was healthy until then, if it was."""
    if isinstance(trajectory, Missing) or not trajectory.curve.has_fallen or not trajectory.curve.rows:
        return []
    return [HEALTHY_UNTIL(place=trajectory.curve.place(-1), loss=trajectory.curve.loss(-1))]


def _since(
    witnesses: Sequence[NodeLoss | LostNode], lost_nodes: bool, trajectory: Maybe[Trajectory], limits: Limits
) -> float | None:
    """When the node was lost. The monitor sees the silence before the controller declares the node down. Without a
    monitor, it may have been right after the last logged step; peers report errors long before the controller
    does."""
    noticed = min((witness.since for witness in witnesses if witness.since is not None), default=None)
    if noticed is None:
        return None
    points = () if isinstance(trajectory, Missing) else trajectory.points
    times = [point.time for point in points if point.time is not None]
    last_point = max((time for time in times if time <= noticed), default=None)
    if lost_nodes or last_point is None or noticed - last_point > limits.around_end_s:
        return noticed
    return last_point


def _ruled_out(ending: Ending, presence: Maybe[NodePresence]) -> Finding | Missing:
    """Another state, else the run's own end; and that the nodes were sampled to the end."""
    because = [] if ending.state is None else [OTHER_STATE(state=ending.state)]
    if not because and ending.own_end is not None:
        because.append(ending.own_end)
    because += [] if isinstance(presence, Missing) else presence.alive
    if because:
        return absent(*because)
    return Missing("no scheduler record of the job or its nodes, and no metric of several nodes was given")


FAMILY = Family(
    code="F1",
    id="node-down",
    title="Node failure",
    example=("node-down", "ranks"),
    judge=judge,
    limits=Limits(),
    explains=("F2", "C1", "C2", "A2", "H3", "H1"),
    rivals=("B2",),
    collect=(
        "sacct for the final state, and scontrol show node of the run's nodes",
        "slurmctld.log around the run's end",
        "node_exporter's metrics and Prometheus's metric up of all nodes of the job, until ten minutes after its end: "
        "they show whether a node went away",
    ),
)
