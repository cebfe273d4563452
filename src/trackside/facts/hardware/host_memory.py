"""Host memory of the run's nodes: the kernel's count of OOM kills, the memory left, and how close the job came to its
requested memory.

Counted kills name no process: on a shared node they may belong to another job, unless the kernel's log lines name the
job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import count_of, nodes_of_ranks, value_or_none
from trackside.facts.hardware.counters import Change, rises
from trackside.facts.hardware.memory import Peak, during
from trackside.facts.logs.oom_kills import OomKills, Scope, belongs_to_run
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import metric

KILLS_COUNTED = Sentence("the kernel's out-of-memory kill count on node {node} rose by {by}, from {before} to {after}")
HOST_SHORT = Sentence("available host memory on node {node} fell to {low} of {total}")
HOST_AMPLE = Sentence("lowest sample of available host memory on node {node}: {low} of {total}")
HOST_AMPLE_ALL = Sentence("lowest sample of available host memory on any node: {low} of {total} (on {node})")
NO_KILL_COUNTED = Sentence("no out-of-memory kills were counted on {nodes}")
CGROUP_NEAR_LIMIT = Sentence(
    "the job used {used} of host memory on node {node}, of the {limit} that it requested per node"
)
GROWTH_NEAR_LIMIT = Sentence(
    "memory in use on node {node} grew by {grown} during the run; the job requested {limit} per node"
)
RSS_NEAR_LIMIT = Sentence("the job's largest process used {rss} of the {limit} that the job requested per node")


@dataclass(frozen=True)
class Limits:
    """Thresholds for short and ample memory, and time tolerances."""

    short_share: float = 0.06
    """A node was short of memory if less than this share was left: the kernel kills at about zero, and samples are
    seconds older."""
    ample_share: float = 0.2
    """The node was not short if at least this share was always left."""
    near_s: float = 120.0
    """Between a kill and the log lines about it: clocks differ, and launchers take up to a minute to notice."""
    slack_s: float = 5.0
    """How much earlier a kernel line may be stamped than the sample that counts it: they are read one after the
    other."""
    at_limit_share: float = 0.9
    """The job was about to exceed the requested memory if it used at least this share: samples are seconds older."""


@dataclass(frozen=True, slots=True)
class HostShortage:
    """Host-memory samples of some nodes around a time."""

    kills: tuple[Change, ...] = ()
    """Kills that the kernel counted around that time."""
    low: Peak | None = None
    """The node with the least memory left."""
    scope: Scope | None = None
    """Whose memory ran out, if the kernel says."""
    limit: Claim | None = None
    """The claim that the job reached its requested memory."""
    others: bool = False
    """Whether kills were counted that the kernel's lines attribute to other jobs."""
    anywhere: bool = False
    """Whether the node is unknown, so that all of several nodes were checked."""
    limits: Limits = Limits()

    @property
    def short(self) -> bool:
        """Whether a node ran out of memory, according to samples."""
        share = None if self.low is None else self.low.share
        return share is not None and share <= self.limits.short_share

    @property
    def ample(self) -> bool:
        """Whether no node came close to running out."""
        share = None if self.low is None else self.low.share
        return share is not None and share >= self.limits.ample_share

    @property
    def own_limit(self) -> bool:
        """Whether the job's own limit was hit, not the node's memory: by the kernel's lines, else by samples."""
        if self.scope is not None:
            return self.scope == "job"
        return self.ample or (self.limit is not None and not self.short)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes that were short of memory or had a process killed for it."""
        names = [change.series.get("node") for change in self.kills]
        names += [self.low.name] if self.low and self.short else []
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims to display."""
        claims = []
        for change in self.kills[:2]:
            node = derived(change.series.get("node") or "", change.after)
            claims.append(KILLS_COUNTED(node=node, by=change.by, before=change.before, after=change.after))
        if self.low is not None and self.low.capacity is not None and (self.short or self.ample):
            sentence = HOST_SHORT if self.short else HOST_AMPLE_ALL if self.anywhere else HOST_AMPLE
            claims.append(
                sentence(node=derived(self.low.name, self.low.value), low=self.low.value, total=self.low.capacity)
            )
        return tuple(claims if self.limit is None else [*claims, self.limit])


@dataclass(frozen=True, eq=False)
class HostMemory:
    """The host memory of the run's nodes."""

    available: Grid | None
    total: Grid | None
    counts: Grid | None
    """OOM kills counted by the kernels."""
    job_memory: Grid | None
    """Bytes used by the jobs' cgroups, without caches."""
    kills: OomKills
    run: Run
    limits: Limits

    def near(self, nodes: tuple[str, ...], time: float | None) -> HostShortage:
        """The shortage on these nodes (on all, if empty) around ``time`` (at any time of the run, if None)."""
        limits, scope = self.limits, self.kills.scope(nodes)
        if all(grid is None for grid in (self.available, self.total, self.counts, self.job_memory)):
            return HostShortage(scope=scope, limit=self._resident, limits=limits)
        counted = [change for change in rises(self.counts) if self._matches(change, nodes, time)]
        kills = tuple(change for change in counted if not self._of_others(change))
        scarcest = self._scarcest(nodes)
        if (
            scarcest is not None
            and time is not None
            and scarcest.share is not None
            and scarcest.share <= limits.short_share
        ):
            # Memory that was short at another time does not explain this death.
            scarcest = scarcest if abs(scarcest.at - time) <= 5 * limits.near_s else None
        limit_claim, anywhere = self._limit_claim(scarcest) or self._resident, not nodes and len(self.run.nodes) > 1
        return HostShortage(kills, scarcest, scope, limit_claim, len(kills) < len(counted), anywhere, limits)

    def at(self, row: Event | None, ranks: tuple[int, ...] = ()) -> HostShortage:
        """The shortage on the node of an event, else on the nodes of these ranks, else on all nodes; at the time of the
        event, or at the run's end."""
        node = None if row is None or row.node not in self.run.nodes else row.node
        time = row.time if row is not None and row.time else self.run.end
        return self.near(nodes_of_ranks(self.run, ranks) if node is None else (node,), time)

    @property
    def counts_every_node(self) -> bool:
        """Whether the kills of all nodes of the run were counted."""
        counted = set() if self.counts is None else {series.get("node") for series in self.counts.series}
        return counted >= set(self.run.nodes)

    @cached_property
    def counter_evidence(self) -> tuple[Claim, ...]:
        """Evidence that no process was killed for host memory: no counted kill, and no sample short of memory."""
        shortage = self.near((), None)
        if shortage.kills or shortage.others or shortage.short or self.counts is None:
            return shortage.claims if shortage.ample and not shortage.kills else ()
        nodes = {series.get("node") for series in self.counts.series}
        watched = count_of(len(nodes), "node", self.counts.value("last"))
        return NO_KILL_COUNTED(nodes=watched), *shortage.claims

    @cached_property
    def _limit(self) -> Value | None:
        """Requested bytes per node."""
        ending, run = self.kills.ending, self.run
        requested = None if ending.job is None else ending.job.get("req_mem_bytes")
        if ending.job is None or not isinstance(requested, (int, float)) or not requested or not run.nodes:
            return None
        requested_value = ending.jobs.value(ending.job, "req_mem_bytes", "bytes")
        return derived(requested / len(run.nodes), requested_value, unit="bytes")

    def _limit_claim(self, scarcest: Peak | None) -> Claim | None:
        """The claim that the job came close to its requested memory, by its cgroup; else by the growth of memory in use
        on the scarcest node, which may belong to other jobs."""
        limit = self._limit
        if scarcest is None or limit is None:
            return None
        node, min_bytes = derived(scarcest.name, scarcest.value), self.limits.at_limit_share * limit.number
        if (used := self._held_by_job(scarcest.name)) is not None:
            return CGROUP_NEAR_LIMIT(used=used, node=node, limit=limit) if used.number >= min_bytes else None
        grown = self._memory_growth(scarcest)
        if grown is None or grown.number < min_bytes:
            return None
        return GROWTH_NEAR_LIMIT(node=node, grown=grown, limit=limit)

    def _held_by_job(self, node: str) -> Value | None:
        """Maximum memory, without caches, of the job's cgroup on a node; None if it was not sampled."""
        grid, names = self.job_memory, {f"job_{name}" for name in (self.run.id, *self.run.aliases) if name}
        if grid is None:
            return None
        cgroups = (series.get("cgroup") for series in grid.series if series.get("node") == node)
        cgroup_name = next((cgroup for cgroup in cgroups if cgroup in names), None)
        return None if cgroup_name is None else grid.where(cgroup=cgroup_name, node=node).value("max")

    @cached_property
    def _resident(self) -> Claim | None:
        """The claim that the largest process that Slurm recorded came close to the requested memory."""
        limit, steps = self._limit, self.kills.steps
        sized = [row for row in steps.records if isinstance(row.get("max_rss_bytes"), (int, float))]
        if limit is None or not sized:
            return None
        rss = max((steps.value(row, "max_rss_bytes", "bytes") for row in sized), key=lambda value: value.number)
        return None if rss.number < self.limits.at_limit_share * limit.number else RSS_NEAR_LIMIT(rss=rss, limit=limit)

    def _scarcest(self, nodes: Sequence[str]) -> Peak | None:
        """The node, of these or of all, with the least memory left during the run."""
        if self.available is None:
            return None
        grid = during(self.available, self.run)
        least = np.fmin.reduce(grid.values, axis=1, initial=np.inf)
        rows = [row for row, series in enumerate(grid.series) if not nodes or series.get("node") in nodes]
        row = min(rows, key=lambda row: least[row], default=None)
        if row is None or not np.isfinite(least[row]):
            return None
        name = grid.series[row].get("node") or ""
        capacity = None if self.total is None else value_or_none(self.total.where(node=name), "max")
        time = float(grid.times[int(np.nanargmin(grid.values[row]))])
        return Peak(name, grid.one(row).value("min"), capacity, time)

    def _memory_growth(self, scarcest: Peak) -> Value | None:
        """Bytes by which the memory left on a node fell, from the first samples of the run to the minimum."""
        assert self.available is not None
        available = during(self.available.where(node=scarcest.name), self.run)
        first = value_or_none(
            available.during(
                float(available.times[0]) - available.step, float(available.times[min(2, len(available.times) - 1)])
            ),
            "max",
        )
        if first is None:
            return None
        return derived(max(0.0, first.number - scarcest.value.number), first, scarcest.value, unit="bytes")

    def _of_others(self, change: Change) -> bool:
        """Whether the node's kernel names the processes that it counted, and all belong to other jobs."""
        node, first = change.series.get("node"), change.since - self.limits.slack_s
        rows = [
            row for row in self.kills.frame.events
            if row.node == node and row.time is not None and row.time >= first
        ]  # fmt: skip
        return len(rows) >= change.by.number and not any(belongs_to_run(row, self.run) for row in rows)

    def _matches(self, change: Change, nodes: Sequence[str], time: float | None) -> bool:
        """Whether a counter rose on these nodes around a time, or during the run."""
        if nodes and change.series.get("node") not in nodes:
            return False
        first, last = (time, time) if time is not None else (self.run.start, self.run.end)
        began_in_time = last is None or change.since <= last + self.limits.near_s
        return began_in_time and (first is None or change.until >= first - self.limits.near_s)


@fact(
    {
        "available": metric("host_memory_available_bytes").over("around", "min"),
        "total": metric("host_memory_total_bytes").over("around", "max"),
        "counts": metric("host_oom_kills_total").over("around", "last"),
        "job_memory": metric("host_cgroup_memory_bytes").where(kind="anon").over("run", "max"),
    },
    limits=Limits(),
)
def host_memory(evidence: Evidence, kills: OomKills, run: Run, limits: Limits) -> HostMemory:
    """Needs no particular input; empty without samples of memory and log lines about kills."""
    available, total = evidence.grid("available"), evidence.grid("total")
    return HostMemory(available, total, evidence.grid("counts"), evidence.grid("job_memory"), kills, run, limits)
