"""Nodes that the monitor lost: of which nothing at all was sampled any more, and that were started anew.

From silence alone it can't be known whether the node was gone or only its network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Grid, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.hardware.counters import rises
from trackside.facts.hardware.presence import Gap, Silent, silent_nodes
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import Query, metric

SILENT = Sentence("nothing was sampled on node {node} after {since}, while {witness:plain} samples came from elsewhere")
REFUSED = Sentence("nothing was sampled on node {node} after {since}, and {witness:plain} scrapes of it failed")
REBOOTED = Sentence("node {node} was started anew at {time}")
WATCHED = Sentence(
    "{nodes} were sampled, and none of them fell silent by the run's end",
    running="{nodes} are sampled, and none of them has fallen silent",
)
MONITORING = Sentence(
    "node {node} was not sampled after {since}, but the run went on or ended well: it lived",
    running="node {node} was not sampled after {since}, but the run goes on: it lives",
)

SAMPLED: Mapping[str, Query] = {
    name: metric(name).over("around", "count").by("node", how="sum")
    for name in (
        "host_memory_available_bytes",
        "host_load1",
        "host_cpu_busy_ratio",
        "gpu_memory_used_bytes",
        "gpu_temperature_celsius",
        "gpu_utilization_ratio",
        "gpu_sm_active_ratio",
    )
}
"""Metrics of which every exporter of a node gives one."""


@dataclass(frozen=True)
class Limits:
    """What counts as a reboot in the run, and as training after a silence."""

    boot_s: float = 60.0
    """Boot times are worked out from clock and uptime, and wander by a second or so."""
    around_end_s: float = 600.0
    """SlurmdTimeout is 300 s by default: a node is declared down up to that long after it fell silent, and the
    record of the job's end may be either moment."""
    went_on_s: float = 120.0
    """Clocks of log and monitor may differ by as much; training later than that shows that the node lived."""


@dataclass(frozen=True, slots=True)
class GoneNode:
    """A node that was lost, by what was sampled of it."""

    node: Value
    since: float
    claims: tuple[Claim, ...]
    rebooted: bool = False


@dataclass(frozen=True, eq=False)
class NodePresence:
    """Which nodes were sampled, and which no more."""

    grids: tuple[Grid, ...]
    """Of :data:`SAMPLED`, and of scrapes that were answered; those that were sampled."""
    boots: Grid | None
    ending: Ending
    silence: Maybe[Silence]
    run: Run
    limits: Limits

    @cached_property
    def over(self) -> float | None:
        """When the run was over: as recorded, else when its output was written last."""
        if self.run.end is not None or self.ending.running or isinstance(self.silence, Missing):
            return self.run.end
        times = [row.get("last_time") for row in self.silence.signs["logs"].events]
        return max((float(time) for time in times if isinstance(time, (int, float))), default=None)

    @cached_property
    def silent(self) -> tuple[Silent, ...]:
        """The nodes of which nothing at all was sampled any more by the run's end."""
        return tuple(silent_nodes(self.grids, self.over, Gap())) if self.grids and self.over is not None else ()

    @cached_property
    def gone(self) -> tuple[GoneNode, ...]:
        """The nodes that were lost: silent ones on which no training went on, and rebooted ones."""
        gone: dict[str, GoneNode] = {}
        for silent in self.silent:
            since = silent.since.number
            if self._last_point > since + self.limits.went_on_s and silent.name not in self.reboots:
                continue
            node, says = derived(silent.name, silent.since), REFUSED if silent.refused else SILENT
            claim = says(node=node, since=silent.since, witness=silent.witness)
            gone[silent.name] = GoneNode(node, since, (claim,))
        for name, boot in self.reboots.items():
            other = gone.get(name, boot)
            earlier = () if other is boot else other.claims
            gone[name] = GoneNode(other.node, min(other.since, boot.since), (*earlier, *boot.claims), rebooted=True)
        return tuple(gone.values())

    @cached_property
    def reboots(self) -> Mapping[str, GoneNode]:
        """The nodes that started anew while the run was there."""
        reboots, start, end = {}, self.run.start, self.run.end
        for change in rises(self.boots):
            booted, name = change.after.number, change.series.get("node") or ""
            inside = (start is None or booted > start) and (end is None or booted <= end + self.limits.around_end_s)
            after = end is not None and change.since > end  # it was still there when the run had ended
            if change.by.number > self.limits.boot_s and inside and not after:
                time = derived(booted, change.before, change.after, unit="time")
                node = derived(name, time)
                reboots[name] = GoneNode(node, min(booted, change.since), (REBOOTED(node=node, time=time),), True)
        return reboots

    @cached_property
    def alive(self) -> tuple[Claim, ...]:
        """What shows that no node was lost: all were sampled, or one was not although the run went on."""
        claims = []
        first = next((grid for grid in self.grids if grid.query.kind in SAMPLED), None)
        if first is not None and self.over is not None and len(first) > 1 and not self.silent:
            claims.append(WATCHED(nodes=derived(len(first), first.value("count"), unit="nodes")))
        claims += [MONITORING(node=derived(one.name, one.since), since=one.since) for one in self.silent[:1]]
        return tuple(claims)

    @property
    def _last_point(self) -> float:
        """When training printed its last stamped point; minus infinity if nothing did."""
        trajectory = Missing("") if isinstance(self.silence, Missing) else self.silence.trajectory
        points = () if isinstance(trajectory, Missing) else trajectory.points
        return max((point.time for point in points if point.time is not None), default=float("-inf"))


@fact(
    {
        "up": metric("scrape_up").over("around", "max").by("node", how="max"),
        **SAMPLED,
        "boots": metric("host_boot_time_seconds").over("around", "last"),
    },
    needs=(("up", *SAMPLED, "boots"),),
    limits=Limits(),
)
def node_presence(
    evidence: Evidence, ending: Ending, silence: Maybe[Silence], run: Run, limits: Limits
) -> NodePresence:
    """Of what was sampled; missing if nothing was."""
    grids = tuple(grid for name in ("up", *SAMPLED) if (grid := evidence.grid(name)) is not None)
    return NodePresence(grids, evidence.grid("boots"), ending, silence, run, limits)
