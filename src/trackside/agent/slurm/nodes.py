"""The nodes of a controller, from one look to the next: whether each is in service, and since when it isn't."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.catalog.slurm.values import signed_reason, time

_HEAD = re.compile(r"(?:^| )(NodeName|State|BootTime)=(\S*)")
_REASON = re.compile(r"   Reason=(.*)")
_MARKS = str.maketrans("", "", "*~#!%$@^-")
_CLASSES = (
    ("DOWN", "down"), ("FAIL", "failing"), ("DRAIN", "drain"), ("NOT_RESPONDING", "not_responding"), ("MAINT", "maint"),
    ("POWERED_DOWN", "powered_down"), ("POWERING_DOWN", "powered_down"), ("POWERING_UP", "powering_up"),
    ("RESERVED", "reserved"), ("FUTURE", "future"), ("UNKNOWN", "unknown"), ("ERROR", "down"),
    ("ALLOCATED", "allocated"), ("COMPLETING", "allocated"), ("MIXED", "mixed"), ("PLANNED", "idle"), ("IDLE", "idle"),
)  # fmt: skip
"""Words of a state, the ones that say most first."""
OUT = frozenset({"down", "failing", "drain", "draining", "not_responding"})
"""States of a node that takes no work."""
REBOOT_S = 60.0
"""Boot times are worked out from a clock, and wander by a second or so."""


@dataclass(frozen=True, slots=True)
class Change:
    """A line of a node. ``time``: POSIX seconds."""

    node: str
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class _Node:
    state: str
    raw: str
    reason: str
    booted: float


class Nodes:
    """What is known of each node, and how long it was in each state since the look began."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Node] = {}
        self._looked = 0.0
        self.seconds: dict[tuple[str, str], float] = {}
        """(node, state) -> seconds"""

    def look(self, blocks: Iterable[Sequence[str]], now: float, most_s: float) -> list[Change]:
        """What changed. The time since the last look counts for the state that was found then, ``most_s`` at most."""
        found: list[Change] = []
        past = min(now - self._looked, most_s) if self._looked else 0.0
        self._looked = now
        met: dict[str, _Node] = {}
        for lines in blocks:
            name, node = _node(lines)
            known = self._nodes.get(name)
            was = node.state if known is None else known.state
            self.seconds[name, was] = self.seconds.get((name, was), 0.0) + past
            met[name] = node
            record = "\t".join(line.strip() for line in lines)
            found += [Change(name, at, f"{text}\t{record}") for at, text in _changes(name, known, node, now)]
        for name, state in [each for each in self.seconds if each[0] not in met]:
            del self.seconds[name, state]
        self._nodes = met
        return found

    def states(self) -> Counter[str]:
        """How many nodes are in each state."""
        return Counter(each.state for each in self._nodes.values())

    def available(self) -> dict[str, bool]:
        """Node -> whether it takes work."""
        return {name: each.state not in OUT for name, each in self._nodes.items()}


def _node(lines: Sequence[str]) -> tuple[str, _Node]:
    heads = {name: value for line in reversed(lines) for name, value in reversed(_HEAD.findall(line.strip()))}
    reason = next((found[1].strip() for line in lines if (found := _REASON.match(line))), "")
    raw = heads.get("State", "UNKNOWN")
    return heads.get("NodeName", ""), _Node(_state(raw), raw, reason, time(heads.get("BootTime")) or 0.0)


def _state(raw: str) -> str:
    words = raw.translate(_MARKS).split("+")
    state = next((state for word, state in _CLASSES if word in words), "unknown")
    busy = {"ALLOCATED", "MIXED", "COMPLETING"} & set(words)
    if state == "drain" and busy:
        return "draining"
    return "not_responding" if raw.endswith("*") and state not in OUT else state


def _changes(name: str, known: _Node | None, node: _Node, now: float) -> Iterable[tuple[float, str]]:
    """When and what. Of a node that is met first, only that it takes no work; work comes and goes without a word."""
    if known is not None and known.booted and node.booted > known.booted + REBOOT_S:
        yield min(node.booted, now), f"node {name} booted"
    out, was_out = node.state in OUT, known is not None and known.state in OUT
    if not out and not was_out:
        return
    if known is not None and (known.state, known.reason) == (node.state, node.reason):
        return
    new = known is None or known.reason != node.reason
    since = signed_reason(node.reason)[2] if out and new else None
    yield min(since or now, now), f"node {name} is {node.raw}" + (f": {node.reason}" if out and node.reason else "")
