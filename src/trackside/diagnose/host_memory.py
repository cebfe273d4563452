"""Was host memory why a process was killed: the kernel's count of such kills, and how little was left. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.diagnose.family import Evidence, claim
from trackside.diagnose.memory import HOST_MEMORY, Peak, scarcest
from trackside.model import Claim, Run
from trackside.query import derived

if TYPE_CHECKING:  # arrays: only runs with metrics need them
    from trackside.diagnose.counters import Change

SHORT = 0.06
"""Share of a node's memory left, below which it was short: the kernel kills at about nothing, samples come seconds
before."""
AMPLE = 0.2
"""Share left at the worst moment, above which the node was not short."""
NEAR_S = 120.0
"""Between a kill and what is told of it: clocks differ, launchers take up to a minute to notice."""
HOST_SAYS: Mapping[str, str] = {
    "oom_counted": "the kernel's count of kills for want of memory on node {node} rose by {by}, "
    "from {before} to {after}",
    "host_short": "host memory of node {node} ran down to {low} available of {total}",
    "host_ample": "host memory of node {node} was not short: at least {low} of {total} was available",
}
"""Sentences of the claims that are made here."""


@dataclass(frozen=True, slots=True)
class Host:
    """What metrics tell of the host memory of the nodes in question."""

    kills: tuple[Change, ...] = ()
    """Kills that the kernel counted about that time."""
    low: Peak | None = None
    """The node with the least memory left."""

    @property
    def short(self) -> bool:
        """Whether a node ran out, as far as samples show."""
        return self.low is not None and self.low.share is not None and self.low.share <= SHORT

    @property
    def ample(self) -> bool:
        """Whether none came near to it."""
        return self.low is not None and self.low.share is not None and self.low.share >= AMPLE

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where memory was short, or a process was killed for it."""
        names = [change.series.get("node") for change in self.kills] + (
            [self.low.name] if self.low and self.short else []
        )
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def claims(self) -> list[Claim]:
        """What to say of it."""
        said = []
        for change in self.kills[:2]:
            node = derived(change.series.get("node") or "", change.after)
            said.append(claim("oom_counted", node=node, by=change.by, before=change.before, after=change.after))
        if self.low is not None and self.low.capacity is not None and (self.short or self.ample):
            node = derived(self.low.name, self.low.value)
            key = "host_short" if self.short else "host_ample"
            said.append(claim(key, node=node, low=self.low.value, total=self.low.capacity))
        return said


def host(evidence: Evidence, run: Run, nodes: Sequence[str], moment: float | None) -> Host:
    """Of these nodes (of all, without any) about a moment (at any time of the run, without one)."""
    if not any(evidence.has(name) for name in HOST_MEMORY):
        return Host()
    from trackside.diagnose.counters import rises

    kills = [change for change in rises(evidence.grid("oom_count")) if _there(change, run, nodes, moment)]
    low = scarcest(evidence, run, nodes)
    if low is not None and moment is not None and low.share is not None and low.share <= SHORT:
        low = low if abs(low.at - moment) <= 5 * NEAR_S else None  # it was short at another time
    return Host(tuple(kills), low)


def _there(change: Change, run: Run, nodes: Sequence[str], moment: float | None) -> bool:
    if nodes and change.series.get("node") not in nodes:
        return False
    first = last = moment
    if moment is None:
        first, last = run.start, run.end
    early = last is None or change.since <= last + NEAR_S
    return early and (first is None or change.until >= first - NEAR_S)
