"""Nodes of the run that the scheduler gave up: by its log, or by its records of nodes."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.finding import Claim, Sentence
from trackside.model import Record, Run
from trackside.query import events

NODE_EVENT = Sentence("node {node} was {state} at the run's end", running="node {node} is {state}")
NODE_REASON = Sentence(
    "node {node} was {state} at the run's end, for the reason {reason}",
    running="node {node} is {state}, for the reason {reason}",
)

LOST = ("down", "not_responding", "rebooted")
"""States of a node that its jobs don't outlive."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that was given up."""

    node: Value
    claim: Claim


@dataclass(frozen=True, eq=False)
class NodeStates:
    """The states of the run's nodes."""

    frame: Frame
    """What the scheduler's log says of nodes."""
    records: DrainedNodes
    run: Run

    def lost(self, before_s: float) -> tuple[LostNode, ...]:
        """The nodes that were lost at the run's end, or up to ``before_s`` before it."""
        lost: dict[str, LostNode] = {}
        for row in self.frame.events:
            if row.node in self.run.nodes and row.get("state") in LOST and self._at_end(row.time, before_s):
                node = self.frame.value(row, "node")
                lost[str(row.node)] = LostNode(node, NODE_EVENT(node=node, state=self.frame.value(row, "state")))
        for record in self.records.rows:
            name, moment = str(record.get("name")), record.get("reason_time")
            down = record.get("state") == "down" or "not_responding" in record.many("flags")
            if name in lost or name not in self.run.nodes or not down or not isinstance(moment, (int, float)):
                continue
            if self._at_end(float(moment), before_s):
                lost[name] = self._recorded(record)
        return tuple(lost.values())

    def _recorded(self, record: Record) -> LostNode:
        """A node by its record, with the reason if one is given."""
        frame = self.records.frame
        values = {"node": frame.value(record, "name"), "state": frame.value(record, "state")}
        if not record.get("reason"):
            return LostNode(values["node"], NODE_EVENT(**values))
        return LostNode(values["node"], NODE_REASON(**values, reason=frame.value(record, "reason")))

    def _at_end(self, time: float | None, before_s: float) -> bool:
        start, end = self.run.start, self.run.end
        if time is None or end is None:
            return end is None
        return (start or end) <= time and end - before_s <= time <= end + self.records.margin_s


@fact({"node_states": events("node_state")})
def node_states(evidence: Evidence, records: DrainedNodes, run: Run) -> NodeStates:
    """Of the scheduler's log and records; nothing is needed."""
    return NodeStates(evidence["node_states"], records, run)
