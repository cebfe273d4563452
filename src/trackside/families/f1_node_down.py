"""Node failure.

Meaning
-------
The cluster lost a node while the job ran on it. The controller ends the job before any exception is raised; the
training was fine until then.

What it looks like
------------------
Slurm's NODE_FAIL or BOOT_FAIL, "Node failure on", "DUE TO NODE FAILURE", a node of the run reported down, not
responding or rebooted at the run's end. The log often just stops. In metrics all samples of that node stop,
host and GPUs alike, while those of the other nodes continue; its boot time may change afterwards.

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
from collections.abc import Sequence
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing
from trackside.facts.hardware.node_presence import LostNode, NodePresence
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.facts.logs.ending import RECORDED, Ending
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Run
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
HEALTHY_UNTIL = Sentence("training progressed until {place}; the loss had fallen to {loss}")
NODE_LOST = Sentence("the cluster lost a node while the job was running; the code is not at fault")
LOST_AND_RERUN = Sentence("the cluster lost a node while the job was running; the job ran again and completed")
FAILURE_UNEXPLAINED = Sentence("why the node failed")
RERUN_ELSEWHERE = Sentence("rerun on other nodes with the same options, from the last checkpoint if there is one")
KEEP_OUT_OF_SERVICE = Sentence("keep {node} out of service until it is checked")
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


@dataclass(frozen=True, slots=True)
class NodeLoss:
    """One source's report that a node was lost, with the node and the time if known."""

    claims: tuple[Claim, ...]
    node: Value | None = None
    since: float | None = None
    rebooted: bool = False


def judge(
    ending: Ending,
    nodes: DrainedNodes,
    presence: Maybe[NodePresence],
    trajectory: Maybe[Trajectory],
    run: Run,
    limits: Limits,
) -> Finding | Missing:
    """The scheduler's state, its notices, the nodes' states at the run's end, then the monitor's data.

    Node states and the monitor count only if the job did not continue.
    """
    if ending.missing_end is not None and (nothing := all_missing(ending.missing_end, presence)) is not None:
        return nothing
    lost_nodes = () if isinstance(presence, Missing) else presence.lost
    recorded, noticed = _by_records(ending), _by_notices(ending)
    drained = _by_node_states(nodes, run, limits)
    is_dated = bool(lost_nodes) or (bool(drained) and ending.job is not None)
    signs: list[NodeLoss | LostNode] = [*drained, *lost_nodes]
    state = None if ending.state is None else ending.state.value
    alive = ending.completed is not None or state == "RUNNING"
    if not (recorded or noticed) and (alive or not is_dated):
        return _ruled_out(ending, presence)
    witnesses, completed = [*recorded, *noticed, *signs], state == "COMPLETED"
    names = [witness.node for witness in (*noticed, *recorded, *signs) if witness.node is not None]
    first = next((witness.node for witness in (*recorded, *signs, *noticed) if witness.node is not None), None)
    rebooted = any(witness.rebooted for witness in signs) and ending.abnormal is not None
    planes = {cite.plane for witness in signs for claim in witness.claims for cite in claim.cites}
    since = _since(witnesses, bool(lost_nodes), trajectory, limits)
    notice = next((row for row in ending.notices.events if row.get("reason") == "node_failure"), None)
    return present(
        Certainty.ESTABLISHED if recorded or noticed or rebooted or len(planes) > 1 else Certainty.SUPPORTED,
        "infrastructure",
        [*(claim for witness in witnesses for claim in witness.claims), *_health_before(trajectory)],
        headline=(NODE_FAILED_RERUN if completed else NODE_FAILED)(),
        implies=[LOST_AND_RERUN() if completed else NODE_LOST()],
        cannot_decide=[FAILURE_UNEXPLAINED()],
        actions=[
            *([] if first is None else [_keep_out(first)]),  # of the owner, who acts first
            action(RERUN_ELSEWHERE, *RESUBMIT_ELSEWHERE),
            *([] if first is None else [_read_kernel_log(first, since, run)]),
        ],
        since=since,
        at=None if notice is None else notice.at,
        nodes=tuple(dict.fromkeys(str(node.value) for node in names)),
        variant="recovered" if completed else None,
    )


def _keep_out(node: Value) -> Action:
    return action(KEEP_OUT_OF_SERVICE, DRAIN, node=node, reason=derived("node failure", node))


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
        node = derived(row.node, line) if row.node and "failure on" in row.text.lower() else None
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
            node = states.value(row, "node")
            lost[str(row.node)] = NodeLoss((NODE_STATE(node=node, state=states.value(row, "state")),), node)
    for record in nodes.rows:
        name, time = str(record.get("name")), numeric_field(record, "reason_time")
        down = record.get("state") == "down" or "not_responding" in record.many("flags")
        if name in run.nodes and down and time is not None and at_end(time):
            node, state = records.value(record, "name"), records.value(record, "state")
            claim = NODE_STATE(node=node, state=state)
            if record.get("reason"):
                claim = NODE_REASON(node=node, state=state, reason=records.value(record, "reason"))
            lost.setdefault(name, NodeLoss((claim,), node))
    return list(lost.values())


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
        "node_exporter's metrics and the scrape health (up) of all its nodes, until ten minutes after the run's end",
    ),
)
