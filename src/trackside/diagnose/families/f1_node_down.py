"""Node down: a node of the run failed or was taken away under it.

Meaning
-------
The cluster lost a node while the job ran on it. The controller ends the job before any exception can fire;
the training was fine until then.

What it looks like
------------------
Slurm's NODE_FAIL or BOOT_FAIL, "Node failure on", "DUE TO NODE FAILURE", a node of the run reported down,
not responding or rebooted at the run's end. The log often just stops.

Not this when
-------------
The node was drained after the job had ended, or drained while the job went on to its own end. Another job's
node is down. A GPU of that node failed in the same moment: then the GPU is the cause and this its consequence.

Impact
------
Everything since the last checkpoint.

Do next
-------
Rerun on other nodes; have the node looked at before it returns.

What it cannot tell
-------------------
Why the node failed: hardware, kernel, network or an operator. Its own records say that.

References
----------
Slurm documentation, job state codes and node state codes.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.diagnose.ending import ENDING, last_job
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import curve
from trackside.model import Certainty, Claim, Event, Finding, Record, Run
from trackside.query import derived, events, record


@dataclass(frozen=True)
class Limits:
    """What counts as at the run's end."""

    around_end_s: float = 600.0
    """SlurmdTimeout is 300 s by default: a node is declared down up to that long after it fell silent, and the
    record of the job's end may be either moment."""


LOST = ("down", "not_responding", "rebooted")
COLLECT = (
    "sacct for the final state, and scontrol show node of the run's nodes",
    "slurmctld.log around the run's end",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The scheduler's state, its notices, then the nodes' states at the run's end."""
    jobs, notices = evidence["jobs"], evidence["notices"]
    failed = [row for row in jobs.records if row.get("state") in ("NODE_FAIL", "BOOT_FAIL")]
    told = [row for row in notices.events if row.get("reason") == "node_failure"]
    states = _lost_nodes(evidence, run, limits)
    last = last_job(jobs)
    over = last is not None and last.get("state") == "COMPLETED"
    if not failed and not told and (not states or last is None or last.get("state") in ("COMPLETED", "RUNNING")):
        return _absent(evidence)
    shows: list[Claim] = []
    nodes: list[str] = []
    for row in failed[:1]:
        shows.append(claim("state", state=jobs.value(row, "state")))
        if row.get("failed_node"):
            shows.append(claim("failed", node=jobs.value(row, "failed_node")))
            nodes.append(str(row.get("failed_node")))
    shows += [claim("notice", line=notices.value(event, "text")) for event in told[:1]]
    for event in told:
        nodes += [event.node] if event.node and "failure on" in event.text.lower() else []
    shows += states
    nodes += [str(value.value) for each in states for key, value in each.values.items() if key == "node"]
    named = [each.values["node"] for each in shows if "node" in each.values]
    named += [derived(event.node, notices.value(event, "text")) for event in told if event.node in nodes]
    points = curve(evidence["progress"])
    if points.fell and points.rows:
        shows.append(claim("healthy_until", place=points.place(-1), loss=points.loss(-1)))
    return found(
        Certainty.ESTABLISHED if failed or told else Certainty.SUPPORTED,
        "infrastructure",
        shows,
        implies=[claim("recovered" if over else "lost")],
        cannot_decide=[claim("why")],
        actions=[action("rerun")] + ([action("look", "show_node", node=named[0])] if named else []),
        since=_since(failed, told),
        at=told[0].at if told else None,
        nodes=tuple(dict.fromkeys(nodes)),
        variant="recovered" if over else None,
    )


def _since(failed: list[Record], told: list[Event]) -> float | None:
    times = [row.get("end") for row in failed] + [event.time for event in told]
    known = [float(time) for time in times if isinstance(time, (int, float))]
    return min(known) if known else None


def _lost_nodes(evidence: Evidence, run: Run, limits: Limits) -> list[Claim]:
    """Nodes of the run that were lost within a margin of its end, each as a claim."""
    claims: dict[str, Claim] = {}
    events_, records = evidence["node_states"], evidence["nodes"]
    for row in events_.events:
        name = row.node
        if name in run.nodes and row.get("state") in LOST and _at_end(row.time, run, limits):
            claims[str(name)] = claim("node_event", node=events_.value(row, "node"), state=events_.value(row, "state"))
    for record_ in records.records:
        name = str(record_.get("name"))
        down = record_.get("state") == "down" or "not_responding" in record_.many("flags")
        moment = record_.get("reason_time")
        when = float(moment) if isinstance(moment, (int, float)) else None
        if name in run.nodes and down and when is not None and _at_end(when, run, limits) and name not in claims:
            values = {"node": records.value(record_, "name"), "state": records.value(record_, "state")}
            if record_.get("reason"):
                claims[name] = claim("node_reason", **values, reason=records.value(record_, "reason"))
            else:
                claims[name] = claim("node_event", **values)
    return list(claims.values())


def _at_end(time: float | None, run: Run, limits: Limits) -> bool:
    if time is None or run.end is None:
        return run.end is None
    return (run.start or run.end) <= time and abs(time - run.end) <= limits.around_end_s


def _absent(evidence: Evidence) -> Finding:
    jobs = evidence["jobs"]
    last = last_job(jobs)
    if last is not None:
        return absent(claim("other_state", state=jobs.value(last, "state")))
    if evidence.has("notices") and evidence["ends"]:
        return absent(claim("ended_itself", line=evidence["ends"].value(evidence["ends"].events[-1], "text")))
    return unknown(["no scheduler record of the job or its nodes was given"], COLLECT)


FAMILY = Family(
    code="F1",
    id="node-down",
    title="Node down: a node of the run failed under it",
    asks={
        **ENDING,
        "nodes": record("node"),
        "node_states": events("node_state"),
        "progress": events("progress"),
    },
    needs=(("jobs", "notices"),),
    says={
        "state": "the scheduler recorded {state}",
        "failed": "the node that failed is {node}",
        "notice": "the notice reads: {line}",
        "node_event": "node {node} was {state} at the run's end",
        "node_reason": "node {node} was {state} at the run's end, for the reason {reason}",
        "healthy_until": "training was healthy until {place}, with a loss of {loss}",
        "lost": "the cluster lost a node under the job; the code is not at fault",
        "recovered": "the cluster lost a node under the job, which ran again and completed",
        "why": "why the node failed",
        "rerun": "rerun on other nodes from the last checkpoint",
        "look": "have the node looked at before it takes work again",
        "show_node": "scontrol show node {node}",
        "other_state": "the scheduler recorded {state} and no node of the run as lost at its end",
        "ended_itself": "the run came to its own end: {line}",
    },
    judge=judge,
    limits=Limits(),
    explains=("F2", "C1", "C2", "A2", "H3", "H1"),
    rivals=("B2",),
    collect=COLLECT,
)
