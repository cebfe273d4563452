"""Host memory of the run's nodes: the kernel's count of kills for want of it, how little was left, and how near the job
came to what it had asked for.

Counted kills name no process: on a shared node they may be another job's, unless the kernel's own lines name the job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import counted, nodes_of_ranks, sampled
from trackside.facts.hardware.counters import Change, rises
from trackside.facts.hardware.memory import Peak, during
from trackside.facts.logs.oom_kills import OomKills, Scope, of_run
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import metric

OOM_COUNTED = Sentence(
    "the kernel's count of kills for want of memory on node {node} rose by {by}, from {before} to {after}"
)
HOST_SHORT = Sentence("host memory of node {node} ran down to {low} available of {total}")
HOST_AMPLE = Sentence("host memory of node {node} was not short in any sample: at least {low} of {total} was available")
HOST_AMPLE_ALL = Sentence(
    "no node was short of host memory in any sample: {node}, which had the least, kept {low} of {total}"
)
NONE_COUNTED = Sentence("the kernels of {nodes} counted no kill for want of memory")
CGROUP_REACHED = Sentence("the job's own processes held {used} on node {node}, and it had asked for {limit} there")
ASKED_REACHED = Sentence(
    "memory in use on node {node} grew by {grown} from the run's start on, and the job had asked for {limit} there"
)
RSS_REACHED = Sentence(
    "the job's largest process had reached {rss} of the {limit} that the job had asked for on a node"
)


@dataclass(frozen=True)
class Limits:
    """What counts as short, as ample, and as the same time."""

    short_share: float = 0.06
    """Of a node's memory left, below which it was short: the kernel kills at about nothing, samples come seconds
    before."""
    ample_share: float = 0.2
    """Left at the worst moment, above which the node was not short."""
    near_s: float = 120.0
    """Between a kill and the lines about it: clocks differ, launchers take up to a minute to notice."""
    slack_s: float = 5.0
    """By how much a line of the kernel's may be stamped before the sample that counts it: they are read one by one."""
    at_limit_share: float = 0.9
    """Of the memory that the job had asked for, at which it was about to pass it: samples come seconds before."""


@dataclass(frozen=True, slots=True)
class HostShortage:
    """What was sampled of the host memory of some nodes about a moment."""

    kills: tuple[Change, ...] = ()
    """Kills that the kernel counted about that time."""
    low: Peak | None = None
    """The node with the least memory left."""
    scope: Scope | None = None
    """Whose memory ran out, where the kernel says."""
    limit: Claim | None = None
    """That the job came to what it had asked for."""
    others: bool = False
    """Kills were counted, and the kernel's own lines give them to other jobs."""
    anywhere: bool = False
    """Which of several nodes it was isn't known, so that all were looked at."""
    limits: Limits = Limits()

    @property
    def short(self) -> bool:
        """Whether a node ran out, as far as samples show."""
        share = None if self.low is None else self.low.share
        return share is not None and share <= self.limits.short_share

    @property
    def ample(self) -> bool:
        """Whether none came near to it."""
        share = None if self.low is None else self.low.share
        return share is not None and share >= self.limits.ample_share

    @property
    def own_limit(self) -> bool:
        """Whether it was the job's own limit, not the node's memory: the kernel's word, else what samples show."""
        if self.scope is not None:
            return self.scope == "job"
        return self.ample or (self.limit is not None and not self.short)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where memory was short, or a process was killed for it."""
        names = [change.series.get("node") for change in self.kills]
        names += [self.low.name] if self.low and self.short else []
        return tuple(dict.fromkeys(name for name in names if name))

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What to say of it."""
        claims = []
        for change in self.kills[:2]:
            node = derived(change.series.get("node") or "", change.after)
            claims.append(OOM_COUNTED(node=node, by=change.by, before=change.before, after=change.after))
        if self.low is not None and self.low.capacity is not None and (self.short or self.ample):
            says = HOST_SHORT if self.short else HOST_AMPLE_ALL if self.anywhere else HOST_AMPLE
            claims.append(
                says(node=derived(self.low.name, self.low.value), low=self.low.value, total=self.low.capacity)
            )
        return tuple(claims if self.limit is None else [*claims, self.limit])


@dataclass(frozen=True, eq=False)
class HostMemory:
    """The host memory of the run's nodes."""

    available: Grid | None
    total: Grid | None
    counts: Grid | None
    """Kills for want of memory, as the kernels counted them."""
    job_memory: Grid | None
    """Bytes that jobs' cgroups held, caches aside."""
    kills: OomKills
    run: Run
    limits: Limits

    def near(self, nodes: tuple[str, ...], moment: float | None) -> HostShortage:
        """Of these nodes (of all, without any) about a moment (at any time of the run, without one)."""
        limits, scope = self.limits, self.kills.scope(nodes)
        if all(grid is None for grid in (self.available, self.total, self.counts, self.job_memory)):
            return HostShortage(scope=scope, limit=self._resident, limits=limits)
        counted = [change for change in rises(self.counts) if self._matches(change, nodes, moment)]
        kills = tuple(change for change in counted if not self._of_others(change))
        low = self._scarcest(nodes)
        if low is not None and moment is not None and low.share is not None and low.share <= limits.short_share:
            low = low if abs(low.at - moment) <= 5 * limits.near_s else None  # it was short at another time
        reached, anywhere = self._reached(low) or self._resident, not nodes and len(self.run.nodes) > 1
        return HostShortage(kills, low, scope, reached, len(kills) < len(counted), anywhere, limits)

    def at(self, row: Event | None, ranks: tuple[int, ...] = ()) -> HostShortage:
        """Of the node of an event, else of the nodes of these ranks, else of all, at the time of the event, or at the
        run's end."""
        node = None if row is None or row.node not in self.run.nodes else row.node
        moment = row.time if row is not None and row.time else self.run.end
        return self.near(nodes_of_ranks(self.run, ranks) if node is None else (node,), moment)

    @cached_property
    def cleared(self) -> tuple[Claim, ...]:
        """What shows that host memory killed nothing: no kill was counted, and no sample was short of memory."""
        shortage = self.near((), None)
        if shortage.kills or shortage.others or shortage.short or self.counts is None:
            return shortage.claims if shortage.ample and not shortage.kills else ()
        nodes = {series.get("node") for series in self.counts.series}
        watched = counted(len(nodes), "node", self.counts.value("last"))
        return NONE_COUNTED(nodes=watched), *shortage.claims

    @cached_property
    def _limit(self) -> Value | None:
        """Bytes that the job had asked for on each of its nodes."""
        ending, run = self.kills.ending, self.run
        requested = None if ending.job is None else ending.job.get("req_mem_bytes")
        if ending.job is None or not isinstance(requested, (int, float)) or not requested or not run.nodes:
            return None
        requested_value = ending.jobs.value(ending.job, "req_mem_bytes", "bytes")
        return derived(requested / len(run.nodes), requested_value, unit="bytes")

    def _reached(self, low: Peak | None) -> Claim | None:
        """That the job came near to what it had asked for, by its cgroup; else by the growth of memory in use on the
        scarcest node, which may be other jobs'."""
        limit = self._limit
        if low is None or limit is None:
            return None
        node, min_bytes = derived(low.name, low.value), self.limits.at_limit_share * limit.number
        if (used := self._held_by_job(low.name)) is not None:
            return CGROUP_REACHED(used=used, node=node, limit=limit) if used.number >= min_bytes else None
        grown = self._memory_growth(low)
        if grown is None or grown.number < min_bytes:
            return None
        return ASKED_REACHED(node=node, grown=grown, limit=limit)

    def _held_by_job(self, node: str) -> Value | None:
        """The most memory, caches aside, that the job's cgroup held on a node; None where it was not sampled."""
        grid, names = self.job_memory, {f"job_{name}" for name in (self.run.id, *self.run.aliases) if name}
        if grid is None:
            return None
        cgroups = (series.get("cgroup") for series in grid.series if series.get("node") == node)
        own = next((cgroup for cgroup in cgroups if cgroup in names), None)
        return None if own is None else grid.where(cgroup=own, node=node).value("max")

    @cached_property
    def _resident(self) -> Claim | None:
        """That the largest process that Slurm saw came near to what the job had asked for."""
        limit, steps = self._limit, self.kills.steps
        sized = [row for row in steps.records if isinstance(row.get("max_rss_bytes"), (int, float))]
        if limit is None or not sized:
            return None
        rss = max((steps.value(row, "max_rss_bytes", "bytes") for row in sized), key=lambda value: value.number)
        return None if rss.number < self.limits.at_limit_share * limit.number else RSS_REACHED(rss=rss, limit=limit)

    def _scarcest(self, nodes: Sequence[str]) -> Peak | None:
        """The node, of these or of all, that had the least memory left while the run was there."""
        if self.available is None:
            return None
        grid = during(self.available, self.run)
        least = np.fmin.reduce(grid.values, axis=1, initial=np.inf)
        rows = [row for row, series in enumerate(grid.series) if not nodes or series.get("node") in nodes]
        row = min(rows, key=lambda row: least[row], default=None)
        if row is None or not np.isfinite(least[row]):
            return None
        name = grid.series[row].get("node") or ""
        capacity = None if self.total is None else sampled(self.total.where(node=name), "max")
        at = float(grid.times[int(np.nanargmin(grid.values[row]))])
        return Peak(name, grid.one(row).value("min"), capacity, at)

    def _memory_growth(self, low: Peak) -> Value | None:
        """Bytes by which the memory left on a node fell, from the first samples of the run to its lowest."""
        assert self.available is not None
        available = during(self.available.where(node=low.name), self.run)
        first = sampled(
            available.during(
                float(available.times[0]) - available.step, float(available.times[min(2, len(available.times) - 1)])
            ),
            "max",
        )
        if first is None:
            return None
        return derived(max(0.0, first.number - low.value.number), first, low.value, unit="bytes")

    def _of_others(self, change: Change) -> bool:
        """Whether the node's kernel names the processes that it counted, and all are other jobs'."""
        node, first = change.series.get("node"), change.since - self.limits.slack_s
        rows = [
            row for row in self.kills.frame.events
            if row.node == node and row.time is not None and row.time >= first
        ]  # fmt: skip
        return len(rows) >= change.by.number and not any(of_run(row, self.run) for row in rows)

    def _matches(self, change: Change, nodes: Sequence[str], moment: float | None) -> bool:
        """Whether a counter rose on these nodes about a moment, or in the run."""
        if nodes and change.series.get("node") not in nodes:
            return False
        first, last = (moment, moment) if moment is not None else (self.run.start, self.run.end)
        early = last is None or change.since <= last + self.limits.near_s
        return early and (first is None or change.until >= first - self.limits.near_s)


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
    """Of what was sampled, and of words about kills; nothing is needed."""
    available, total = evidence.grid("available"), evidence.grid("total")
    return HostMemory(available, total, evidence.grid("counts"), evidence.grid("job_memory"), kills, run, limits)
