"""Nodes that the monitor lost: all of their samples stopped, or they rebooted.

If only one exporter falls silent, monitoring is at fault. A node counts as silent only if all of its samples stop while
those of its peers continue; likewise a GPU of a node. Silence alone does not show whether the node or only its network
was lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact, or_none
from trackside.facts.hardware.counters import rises
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim, Sentence
from trackside.model import Run, TimeRange
from trackside.query import Query, metric

NOT_SAMPLED = Sentence("node {node} has no samples after {since}, while other nodes were still sampled")
SCRAPES_FAILED = Sentence("node {node} has no samples after {since}, and {witness:plain} scrapes of it failed")
NODE_REBOOTED = Sentence("node {node} rebooted at {time}")
SAMPLED_TO_END = Sentence(
    "{nodes} were sampled until the end of the run",
    running="{nodes} are still being sampled",
)
NOT_SAMPLED_BUT_UP = Sentence(
    ("node {node} was not sampled after {since}, but the run continued or ended normally: the node was up"),
    running="node {node} was not sampled after {since}, but the run continues: the node is up",
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
"""Metrics of which every node exporter reports at least one."""
Presence = NDArray[np.bool_]
"""One flag per window: whether it was sampled."""
GAP_WINDOWS = 3.0
"""Minimum gap in windows of two scrapes each; a busy node misses one or two scrapes."""
GAP_RHYTHMS = 3.0
"""Minimum gap as a multiple of the longest earlier gap."""
GAP_S = 90.0
"""Minimum gap whatever the scrape interval: an exporter restarts within a minute."""


@dataclass(frozen=True)
class Limits:
    """When a reboot belongs to the run, and when training after a silence shows that the node was alive."""

    boot_s: float = 60.0
    """Minimum change of the boot time that counts as a reboot. Boot times are computed from clock and uptime, and vary
    by about a second; they also change when a clock is set."""
    around_end_s: float = 600.0
    """A reboot up to this long after the run's end concerns the run. SlurmdTimeout is 300 s by default: a node is
    declared down up to that long after it fell silent, and the record of the job's end may be either time."""
    continued_s: float = 120.0
    """Maximum difference between the clocks of log and monitor; later training shows that the node was alive."""


@dataclass(frozen=True, slots=True)
class SilentEntity:
    """A node or GPU whose samples stopped."""

    name: str
    since: Value
    """Time of its last sample; cites what was not sampled afterwards."""
    witness: Value
    """Samples of its peers meanwhile or, if ``refused``, failed scrapes of it."""
    refused: bool
    until: float | None
    """When its samples resumed; None if it stayed silent to the end of the data."""


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that was lost, by its samples."""

    node: Value
    since: float
    claims: tuple[Claim, ...]
    rebooted: bool = False


@dataclass(frozen=True, eq=False)
class NodePresence:
    """Which nodes were sampled, and which stopped."""

    grids: tuple[Grid, ...]
    """The grids of :data:`SAMPLED` and of answered scrapes that were sampled."""
    boots: Grid | None
    silence: Silence
    run: Run
    limits: Limits

    @cached_property
    def end_s(self) -> float | None:
        """When the run ended: as recorded, else when its output was last written."""
        if self.run.end is not None or self.silence.ending.running:
            return self.run.end
        times = [row.get("last_time") for row in self.silence.signs["logs"].events]
        return max((float(time) for time in times if isinstance(time, (int, float))), default=None)

    @cached_property
    def silent(self) -> tuple[SilentEntity, ...]:
        """The nodes whose samples had stopped before the run ended."""
        return () if self.end_s is None else tuple(silent_entities(self.grids, "node", self.end_s))

    @cached_property
    def lost(self) -> tuple[LostNode, ...]:
        """The nodes that were lost: silent ones without further training, and rebooted ones."""
        lost: dict[str, LostNode] = {}
        for silent in self.silent:
            since = silent.since.number
            if self._last_point > since + self.limits.continued_s and silent.name not in self.reboots:
                continue
            node, sentence = derived(silent.name, silent.since), SCRAPES_FAILED if silent.refused else NOT_SAMPLED
            claim = sentence(node=node, since=silent.since, witness=silent.witness)
            lost[silent.name] = LostNode(node, since, (claim,))
        for name, boot in self.reboots.items():
            known_node = lost.get(name, boot)
            earlier = () if known_node is boot else known_node.claims
            lost[name] = LostNode(
                known_node.node, min(known_node.since, boot.since), (*earlier, *boot.claims), rebooted=True
            )
        return tuple(lost.values())

    @cached_property
    def reboots(self) -> Mapping[str, LostNode]:
        """The nodes that rebooted during the run."""
        reboots, start, end = {}, self.run.start, self.run.end
        for change in rises(self.boots):
            booted, name = change.after.number, change.series.get("node") or ""
            is_inside = (start is None or booted > start) and (end is None or booted <= end + self.limits.around_end_s)
            rebooted_later = end is not None and change.since > end  # the node was still there when the run had ended
            if change.by.number > self.limits.boot_s and is_inside and not rebooted_later:
                time = derived(booted, change.before, change.after, unit="time")
                node = derived(name, time)
                reboots[name] = LostNode(node, min(booted, change.since), (NODE_REBOOTED(node=node, time=time),), True)
        return reboots

    @cached_property
    def alive(self) -> tuple[Claim, ...]:
        """Evidence that no node was lost: all were sampled, or one was not although the run continued."""
        claims = []
        first = next((grid for grid in self.grids if grid.query.kind in SAMPLED), None)
        if first is not None and self.end_s is not None and len(first) > 1 and not self.silent:
            claims.append(SAMPLED_TO_END(nodes=derived(len(first), first.value("count"), unit="nodes")))
        claims += [
            NOT_SAMPLED_BUT_UP(node=derived(entity.name, entity.since), since=entity.since)
            for entity in self.silent[:1]
        ]
        return tuple(claims)

    @property
    def _last_point(self) -> float:
        """Time of the last stamped logged step; minus infinity if there is none."""
        training = or_none(self.silence.trajectory)
        points = () if training is None else training.points
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
def node_presence(evidence: Evidence, silence: Silence, run: Run, limits: Limits) -> NodePresence:
    """Needs samples of any exporter; otherwise missing."""
    grids = tuple(grid for name in ("up", *SAMPLED) if (grid := evidence.grid(name)) is not None)
    return NodePresence(grids, evidence.grid("boots"), silence, run, limits)


def nodes_with_gaps(grids: Sequence[Grid]) -> tuple[str, ...]:
    """The nodes with a GPU that was missing for a while between its first sample and the node's last."""
    nodes: dict[str, None] = {}
    for grid in grids:
        sampled = ~np.isnan(grid.values)
        count = np.arange(sampled.shape[1])
        first, last = sampled.argmax(axis=1), np.where(sampled, count, 0).max(axis=1, initial=0)
        names = np.array([name for (name,) in grid.labels("node")])
        latest = {name: int(last[names == name].max()) for name in dict.fromkeys(names.tolist())}
        missing = np.array([latest[name] for name in names.tolist()]) - first + 1 - sampled.sum(axis=1)
        nodes |= dict.fromkeys(names[sampled.any(axis=1) & (missing >= GAP_WINDOWS)].tolist())
    return tuple(nodes)


def silent_entities(grids: Sequence[Grid], label: str, before: float) -> list[SilentEntity]:
    """Those, by this label, whose samples of any kind stopped from a time up to ``before`` while others continued.

    ``grids``: counts of samples, and ``scrape_up``, where a zero is a failed scrape.
    """
    grids = [grid for grid in grids if len(grid)]
    if not grids:
        return []
    times, step = grids[0].times, grids[0].step
    sampled = _by_name(grids, label, answered=True)
    failed = _by_name(grids, label, answered=False)
    n_sampled = np.sum(list(sampled.values()), axis=0)
    silent = []
    for name, presence in sampled.items():
        bounds = _gap(presence, times - step, before, step)
        if bounds is None:
            continue
        start, stop, min_windows = bounds
        watched = np.flatnonzero(((n_sampled > presence) | failed[name])[start:stop])
        if len(watched) > 1 and watched[-1] + 1 >= min_windows:
            until = float(times[stop]) if stop < len(times) else None
            silent.append(
                _silent_entity(grids, label, name, (float(times[start]) - step, float(times[stop - 1])), until)
            )
    return silent


def _by_name(grids: Sequence[Grid], label: str, answered: bool) -> Mapping[str, Presence]:
    """Whether each was sampled; with ``answered`` False: whether a scrape of it failed and none succeeded."""
    presence: dict[str, Presence] = {}
    for grid in grids:
        up = grid.query.kind == "scrape_up"
        with np.errstate(invalid="ignore"):
            sampled = (grid.values > 0) if up else ~np.isnan(grid.values)
            sampled = sampled if answered else (grid.values == 0) & up
        for row, (name,) in enumerate(grid.labels(label)):
            if name:
                presence[name] = presence[name] | sampled[row] if name in presence else sampled[row]
    return {name: row for name, row in presence.items() if row.any() or not answered}


def _gap(presence: Presence, starts: NDArray[np.float64], before: float, step: float) -> tuple[int, int, float] | None:
    """The last gap that began before a time, as windows [start, stop), and the minimum length of a gap."""
    sampled = np.flatnonzero(presence)
    early = sampled[starts[sampled] <= before]
    if not len(early):
        return None
    start = int(early[-1]) + 1
    stop = int(sampled[len(early)]) if len(early) < len(sampled) else len(presence)
    usual = int(np.diff(early).max(initial=1)) - 1
    min_windows = max(GAP_WINDOWS, GAP_RHYTHMS * usual, GAP_S / step)
    return (start, stop, min_windows) if stop - start >= min_windows else None


def _silent_entity(grids: Sequence[Grid], label: str, name: str, span: TimeRange, until: float | None) -> SilentEntity:
    counts, all_counts, failed_scrapes = [], [], []
    for grid in grids:
        up, part = grid.query.kind == "scrape_up", grid.during(*span)
        if (name,) in grid.labels(label):
            own_part = part.where(**{label: name})
            counts.append(own_part.value("max" if up else "count"))
            failed_scrapes += [own_part.value("count")] if up else []
        all_counts += [] if up else [part.value("count")]
    best = max(all_counts, key=lambda value: value.number, default=None)
    refused = best is None or not best.number
    witness = max(failed_scrapes, key=lambda value: value.number) if refused or best is None else best
    return SilentEntity(name, derived(span[0], *counts, unit="time"), witness, refused, until)
