"""Node down: a node of the run failed or was taken away under it.

Meaning
-------
The cluster lost a node while the job ran on it. The controller ends the job before any exception can fire;
the training was fine until then.

What it looks like
------------------
Slurm's NODE_FAIL or BOOT_FAIL, "Node failure on", "DUE TO NODE FAILURE", a node of the run reported down,
not responding or rebooted at the run's end. The log often just stops. In metrics nothing at all is sampled on that node
any more, host and GPUs alike, while the other nodes are; its boot time may change after it.

Not this when
-------------
The node was drained after the job had ended, or drained while the job went on to its own end. Another job's
node is down. A GPU of that node failed in the same moment: then the GPU is the cause and this its consequence. One
exporter fell silent while another of the same node went on, or training did: that is monitoring. A flag of a GPU's
health is no node's state.

Impact
------
Everything since the last checkpoint.

Do next
-------
Rerun on other nodes; have the node looked at before it returns.

What it cannot tell
-------------------
Why the node failed: hardware, kernel, network or an operator. Its own records say that. From silence alone: whether
the node was gone or only its network.

References
----------
Slurm documentation, job state codes and node state codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, derived
from trackside.facts.logs.ending import (
    ENDING,
    OWN_END_SAYS,
    abnormal_end,
    completed,
    last_job,
    own_end,
    still_running,
)
from trackside.facts.logs.taken_out import NOTICED_S, TORN_DOWN_S, of_the_run
from trackside.facts.training.learning import curve, training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Record, Run
from trackside.query import Query, events, metric, record

if TYPE_CHECKING:  # arrays: only runs with metrics need them
    from trackside.facts.hardware.presence import Silent


@dataclass(frozen=True)
class Limits:
    """What counts as at the run's end."""

    around_end_s: float = 600.0
    """SlurmdTimeout is 300 s by default: a node is declared down up to that long after it fell silent, and the
    record of the job's end may be either moment."""
    boot_s: float = 60.0
    """Boot times are worked out from clock and uptime, and wander by a second or so."""
    went_on_s: float = 120.0
    """Clocks of log and monitor may differ by as much; training later than that shows that the node lived."""


PRESENCE = (
    "host_memory_available_bytes",
    "host_load1",
    "host_cpu_busy_ratio",
    "gpu_memory_used_bytes",
    "gpu_temperature_celsius",
    "gpu_utilization_ratio",
    "gpu_sm_active_ratio",
)
"""Metrics of which every exporter of a node gives one."""
SEEN: Mapping[str, Query] = {
    "up": metric("scrape_up").over("around", "max").by("node", how="max"),
    **{name: metric(name).over("around", "count").by("node", how="sum") for name in PRESENCE},
    "boots": metric("host_boot_time_seconds").over("around", "last"),
}
"""What tells that a node was there."""
LOST = ("down", "not_responding", "rebooted")
COLLECT = (
    "sacct for the final state, and scontrol show node of the run's nodes",
    "slurmctld.log around the run's end",
    "node_exporter's metrics and the scrape health (up) of all the run's nodes, to ten minutes after its end",
)


Gone = tuple[float, list[Claim]]
"""Since when the monitor missed a node, and what shows it."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The scheduler's state, its notices, the nodes' states at the run's end, then what the monitor saw of them."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    failed = [row for row in jobs.records if row.get("state") in ("NODE_FAIL", "BOOT_FAIL")]
    told = [row for row in notices.events if row.get("reason") == "node_failure"]
    states = _lost_nodes(evidence, run, limits)
    silent = _silent(evidence, run)
    gone = _gone(evidence, run, limits, silent)
    last = last_job(jobs)
    alive = completed(evidence) is not None or (last is not None and last.get("state") == "RUNNING")
    if not failed and not told and (alive or not ((states and last is not None) or gone)):
        return _absent(evidence, run, silent)
    shows = _words(evidence, failed, told)
    shown = [*states, *(each for _, claims in gone for each in claims)]
    shows += shown
    nodes = [event.node for event in told if event.node and "failure on" in event.text.lower()]
    named = [each.values["node"] for each in shows if "node" in each.values]
    named += [derived(event.node, notices.value(event, "text")) for event in told if event.node in nodes]
    nodes += [str(value.value) for value in named]
    points = curve(evidence["progress"])
    if points.fell and points.rows:
        shows.append(claim("healthy_until", place=points.place(-1), loss=points.loss(-1)))
    over = last is not None and last.get("state") == "COMPLETED"
    rebooted = any(each.key == "rebooted" for each in shown) and abnormal_end(evidence) is not None
    sure = failed or told or rebooted or len({cite.plane for each in shown for cite in each.cites}) > 1
    return found(
        Certainty.ESTABLISHED if sure else Certainty.SUPPORTED,
        "infrastructure",
        shows,
        implies=[claim("recovered" if over else "lost")],
        cannot_decide=[claim("why")],
        actions=[action("rerun")] + ([action("look", "show_node", node=named[0])] if named else []),
        since=_since(evidence, failed, told, gone, limits),
        at=told[0].at if told else None,
        nodes=tuple(dict.fromkeys(nodes)),
        variant="recovered" if over else None,
    )


def _words(evidence: Evidence, failed: list[Record], told: list[Event]) -> list[Claim]:
    """The scheduler's own words for it."""
    jobs, shows = evidence["jobs"], []
    for row in failed[:1]:
        shows.append(claim("state", state=jobs.value(row, "state")))
        if row.get("failed_node"):
            shows.append(claim("failed", node=jobs.value(row, "failed_node")))
    return shows + [claim("notice", line=evidence["notices"].value(event, "text")) for event in told[:1]]


def _since(
    evidence: Evidence, failed: list[Record], told: list[Event], gone: list[Gone], limits: Limits
) -> float | None:
    """When the node was lost. The monitor sees it fall silent before the controller gives it up; without one, it may
    have been as soon as the last training point was printed, and its peers complain long before the controller does."""
    times = [row.get("end") for row in failed] + [event.time for event in told] + [since for since, _ in gone]
    known = [float(time) for time in times if isinstance(time, (int, float))]
    if not known:
        return None
    noticed = min(known)
    points = [row.time for row in training_points(evidence["progress"]) if row.time is not None]
    lived = max((time for time in points if time <= noticed), default=None)
    if gone or lived is None or noticed - lived > limits.around_end_s:
        return noticed
    return lived


def _silent(evidence: Evidence, run: Run) -> list[Silent]:
    """The nodes of which nothing at all was sampled any more by the run's end."""
    grids = [grid for name in ("up", *PRESENCE) if (grid := evidence.grid(name)) is not None]
    end = _over(evidence, run)
    if not grids or end is None:
        return []
    from trackside.facts.hardware.presence import Gap, silent_nodes

    return silent_nodes(grids, end, Gap())


def _over(evidence: Evidence, run: Run) -> float | None:
    """When the run was over: as recorded, else when its output was written last."""
    if run.end is not None or still_running(evidence):
        return run.end
    times = [row.get("last_time") for row in evidence["logs"].events]
    return max((float(time) for time in times if isinstance(time, (int, float))), default=None)


def _gone(evidence: Evidence, run: Run, limits: Limits, silent: list[Silent]) -> list[Gone]:
    """The nodes that were lost by what the monitor saw: silent ones on which no training went on, and rebooted ones."""
    boots = _boots(evidence, run, limits)
    stamped = [point.time for point in training_points(evidence["progress"]) if point.time is not None]
    found_: dict[str, Gone] = {}
    for each in silent:
        since = each.since.number
        if stamped and max(stamped) > since + limits.went_on_s and each.name not in boots:
            continue
        node = derived(each.name, each.since)
        found_[each.name] = (
            since,
            [claim("refused" if each.refused else "silent", node=node, since=each.since, witness=each.witness)],
        )
    for name, (time, booted) in boots.items():
        since, claims = found_.get(name, (time, []))
        found_[name] = min(since, time), [*claims, booted]
    return list(found_.values())


def _boots(evidence: Evidence, run: Run, limits: Limits) -> dict[str, tuple[float, Claim]]:
    """Nodes that started anew while the run was there: when, and what shows it."""
    grid = evidence.grid("boots")
    if grid is None:
        return {}
    from trackside.facts.hardware.counters import rises

    found_ = {}
    for change in rises(grid):
        booted, node = change.after.number, change.series.get("node") or ""
        inside = run.start is None or booted > run.start
        if change.by.number > limits.boot_s and inside and (run.end is None or booted <= run.end + limits.around_end_s):
            if run.end is not None and change.since > run.end:
                continue  # it was still there when the run had ended
            time = derived(booted, change.before, change.after, unit="time")
            found_[node] = min(booted, change.since), claim("rebooted", node=derived(node, time), time=time)
    return found_


def _lost_nodes(evidence: Evidence, run: Run, limits: Limits) -> list[Claim]:
    """Nodes of the run that were lost within a margin of its end, each as a claim."""
    claims: dict[str, Claim] = {}
    events_, records = evidence["node_states"], evidence["nodes"]
    after = _noticed(evidence)
    for row in events_.events:
        name = row.node
        if name in run.nodes and row.get("state") in LOST and _at_end(row.time, run, limits, after):
            claims[str(name)] = claim("node_event", node=events_.value(row, "node"), state=events_.value(row, "state"))
    for record_ in of_the_run(evidence, run):
        name = str(record_.get("name"))
        down = record_.get("state") == "down" or "not_responding" in record_.many("flags")
        moment = record_.get("reason_time")
        when = float(moment) if isinstance(moment, (int, float)) else None
        if name in run.nodes and down and when is not None and _at_end(when, run, limits, after) and name not in claims:
            values = {"node": records.value(record_, "name"), "state": records.value(record_, "state")}
            if record_.get("reason"):
                claims[name] = claim("node_reason", **values, reason=records.value(record_, "reason"))
            else:
                claims[name] = claim("node_event", **values)
    return list(claims.values())


def _noticed(evidence: Evidence) -> float:
    """How long after the run's end a node may be given up for having been lost in it. Of a run that failed by itself
    the controller may not know yet; one that it ended for a lost node ended when it knew, and what befalls a node after
    a cancellation, a time limit or a preemption explains none of these."""
    last = last_job(evidence["jobs"])
    return NOTICED_S if last is None or last.get("state") == "FAILED" else TORN_DOWN_S


def _at_end(time: float | None, run: Run, limits: Limits, after: float) -> bool:
    if time is None or run.end is None:
        return run.end is None
    return (run.start or run.end) <= time and run.end - limits.around_end_s <= time <= run.end + after


def _absent(evidence: Evidence, run: Run, silent: list[Silent]) -> Finding:
    jobs = evidence["jobs"]
    last = last_job(jobs)
    because = [claim("other_state", state=jobs.value(last, "state"))] if last is not None else []
    closing = own_end(evidence)
    if not because and evidence.has("notices") and closing is not None:
        because.append(closing)
    grid = next((grid for name in PRESENCE if (grid := evidence.grid(name)) is not None), None)
    if grid is not None and _over(evidence, run) is not None and len(grid) > 1 and not silent:
        because.append(claim("watched", nodes=derived(len(grid), grid.value("count"), unit="nodes")))
    because += [claim("monitoring", node=derived(each.name, each.since), since=each.since) for each in silent[:1]]
    if because:
        return absent(*because)
    return unknown(["no scheduler record of the job or its nodes, and no metric of several nodes was given"], COLLECT)


FAMILY = Family(
    code="F1",
    id="node-down",
    title="Node down: a node of the run failed under it",
    pictured=("node-down", "ranks"),
    asks={
        **ENDING,
        "nodes": record("node"),
        "node_states": events("node_state"),
        "progress": events("progress"),
        "logs": events("log_activity"),
        **SEEN,
    },
    needs=(("jobs", "notices", *SEEN),),
    says={
        "state": "the scheduler recorded {state}",
        "failed": "the node that failed is {node}",
        "notice": "the notice reads: {line}",
        "node_event": "node {node} was {state} at the run's end",
        "node_reason": "node {node} was {state} at the run's end, for the reason {reason}",
        "silent": "nothing was sampled on node {node} after {since}, while {witness:plain} samples came from elsewhere",
        "rebooted": "node {node} was started anew at {time}",
        "watched": "{nodes} were sampled, and none of them fell silent by the run's end",
        "refused": "nothing was sampled on node {node} after {since}, and {witness:plain} scrapes of it failed",
        "monitoring": "node {node} was not sampled after {since}, but the run went on or ended well: it lived",
        "healthy_until": "training was healthy until {place}, with a loss of {loss}",
        "lost": "the cluster lost a node under the job; the code is not at fault",
        "recovered": "the cluster lost a node under the job, which ran again and completed",
        "why": "why the node failed",
        "rerun": "rerun on other nodes from the last checkpoint",
        "look": "have the node looked at before it takes work again",
        "show_node": "scontrol show node {node}",
        "other_state": "the scheduler recorded {state} and no node of the run as lost at its end",
        **OWN_END_SAYS,
    },
    going={
        "node_event": "node {node} is {state}",
        "node_reason": "node {node} is {state}, for the reason {reason}",
        "watched": "{nodes} are sampled, and none of them has fallen silent",
        "monitoring": "node {node} was not sampled after {since}, but the run goes on: it lives",
        "other_state": "the scheduler has it as {state} and no node of the run as lost",
    },
    judge=judge,
    limits=Limits(),
    explains=("F2", "C1", "C2", "A2", "H3", "H1"),
    rivals=("B2",),
    collect=COLLECT,
)
