"""Changes of the controller's nodes between readings: whether each is in service, and since when it is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.catalog.slurm.values import signed_reason, time

_HEAD = re.compile(r"(?:^| )(NodeName|State|BootTime)=(\S*)")
_REASON = re.compile(r"   Reason=(.*)")
_MARKS = str.maketrans("", "", "*~#!%$@^-")
_STATES = (
    ("DOWN", "down"), ("FAIL", "failing"), ("DRAIN", "drain"), ("NOT_RESPONDING", "not_responding"), ("MAINT", "maint"),
    ("POWERED_DOWN", "powered_down"), ("POWERING_DOWN", "powered_down"), ("POWERING_UP", "powering_up"),
    ("RESERVED", "reserved"), ("FUTURE", "future"), ("UNKNOWN", "unknown"), ("ERROR", "down"),
    ("ALLOCATED", "allocated"), ("COMPLETING", "allocated"), ("MIXED", "mixed"), ("PLANNED", "idle"), ("IDLE", "idle"),
)  # fmt: skip
"""Words in a state, most important first, and the state that they mean."""
OUT_OF_SERVICE = frozenset({"down", "failing", "drain", "draining", "not_responding"})
"""States of a node that takes no jobs."""
REBOOT_S = 60.0
"""Minimum change of the boot time: Slurm computes it from the clock, so it varies by a second or so."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """A line about a node. ``time``: POSIX seconds."""

    node: str
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class _Node:
    state: str
    raw: str
    reason: str
    booted: float


class NodeChangeTracker:
    """The nodes as of the last reading, and the time that each spent in each state since the agent started."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._updated_at = 0.0
        self.seconds: dict[tuple[str, str], float] = {}
        """(node, state) -> seconds"""

    def update(self, blocks: Iterable[Sequence[str]], now: float, max_s: float) -> list[NodeEvent]:
        """The changes since the last reading. The time since then, up to ``max_s``, is added to each
        node's state at the last reading."""
        events: list[NodeEvent] = []
        elapsed_s = min(now - self._updated_at, max_s) if self._updated_at else 0.0
        self._updated_at = now
        nodes: dict[str, _Node] = {}
        for lines in blocks:
            name, node = _node(lines)
            previous = self._nodes.get(name)
            last_state = node.state if previous is None else previous.state
            self.seconds[name, last_state] = self.seconds.get((name, last_state), 0.0) + elapsed_s
            nodes[name] = node
            record = "\t".join(line.strip() for line in lines)
            events += [
                NodeEvent(name, time_s, f"{text}\t{record}") for time_s, text in _changes(name, previous, node, now)
            ]
        for name, state in [key for key in self.seconds if key[0] not in nodes]:
            del self.seconds[name, state]
        self._nodes = nodes
        return events

    def states(self) -> Counter[str]:
        """State -> number of nodes."""
        return Counter(node.state for node in self._nodes.values())

    def available(self) -> dict[str, bool]:
        """Node -> whether it takes jobs."""
        return {name: node.state not in OUT_OF_SERVICE for name, node in self._nodes.items()}


def _node(lines: Sequence[str]) -> tuple[str, _Node]:
    fields = {name: value for line in reversed(lines) for name, value in reversed(_HEAD.findall(line.strip()))}
    reason = next((match[1].strip() for line in lines if (match := _REASON.match(line))), "")
    raw = fields.get("State", "UNKNOWN")
    return fields.get("NodeName", ""), _Node(_state(raw), raw, reason, time(fields.get("BootTime")) or 0.0)


def _state(raw: str) -> str:
    words = raw.translate(_MARKS).split("+")
    state = next((state for word, state in _STATES if word in words), "unknown")
    is_busy = {"ALLOCATED", "MIXED", "COMPLETING"} & set(words)
    if state == "drain" and is_busy:
        return "draining"
    return "not_responding" if raw.endswith("*") and state not in OUT_OF_SERVICE else state


def _changes(name: str, previous: _Node | None, node: _Node, now: float) -> Iterable[tuple[float, str]]:
    """(time, sentence) of each change. A node seen for the first time is reported only if it is out of service; changes
    between idle and allocated are not reported."""
    if previous is not None and previous.booted and node.booted > previous.booted + REBOOT_S:
        yield min(node.booted, now), f"node {name} booted"
    is_out, was_out = node.state in OUT_OF_SERVICE, previous is not None and previous.state in OUT_OF_SERVICE
    if not is_out and not was_out:
        return
    if previous is not None and (previous.state, previous.reason) == (node.state, node.reason):
        return
    is_new_reason = previous is None or previous.reason != node.reason
    since = signed_reason(node.reason)[2] if is_out and is_new_reason else None
    yield min(since or now, now), f"node {name} is {node.raw}" + (f": {node.reason}" if is_out and node.reason else "")
