"""Was host memory why a process was killed: the kernel's count of such kills, and how little was left. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trackside.evidence import Evidence, Value, derived
from trackside.facts.hardware.memory import HOST_MEMORY, Peak, drawn, scarcest
from trackside.facts.logs.deaths import of_run
from trackside.facts.logs.ending import last_job
from trackside.finding import Claim, claim
from trackside.model import Run

if TYPE_CHECKING:  # arrays: only runs with metrics need them
    from trackside.facts.hardware.counters import Change

SHORT = 0.06
"""Share of a node's memory left, below which it was short: the kernel kills at about nothing, samples come seconds
before."""
AMPLE = 0.2
"""Share left at the worst moment, above which the node was not short."""
NEAR_S = 120.0
"""Between a kill and what is told of it: clocks differ, launchers take up to a minute to notice."""
SLACK_S = 5.0
"""By how much a line of the kernel's may be stamped before the sample that counts it: they are read one by one."""
AT_LIMIT = 0.9
"""Share of the memory that the job had asked for, at which it was about to pass it: samples come seconds before."""
SCOPES: Mapping[str, Literal["node", "job"]] = {"host": "node", "cgroup": "job", "container": "job"}
"""Whose memory ran out, by the kernel's own word; Slurm counts kills of either kind."""
HOST_SAYS: Mapping[str, str] = {
    "oom_counted": "the kernel's count of kills for want of memory on node {node} rose by {by}, "
    "from {before} to {after}",
    "host_short": "host memory of node {node} ran down to {low} available of {total}",
    "host_ample": "host memory of node {node} was not short in any sample: at least {low} of {total} was available",
    "host_ample_all": "no node was short of host memory in any sample: {node}, which had the least, kept {low} of "
    "{total}",
    "none_counted": "the kernels of {nodes} counted no kill for want of memory",
    "cgroup_reached": "the job's own processes held {used} on node {node}, and it had asked for {limit} there",
    "asked_reached": "memory in use on node {node} grew by {grown} from the run's start on, and the job had asked "
    "for {limit} there",
    "rss_reached": "the job's largest process had reached {rss} of the {limit} that the job had asked for on a node",
}
"""Sentences of the claims that are made here."""


@dataclass(frozen=True, slots=True)
class Host:
    """What metrics tell of the host memory of the nodes in question."""

    kills: tuple[Change, ...] = ()
    """Kills that the kernel counted about that time."""
    low: Peak | None = None
    """The node with the least memory left."""
    scope: Literal["node", "job"] | None = None
    """Whose memory ran out, where the kernel says."""
    limit: Claim | None = None
    """That the job came to what it had asked for."""
    others: bool = False
    """Kills were counted, and the kernel's own lines give them to other jobs."""
    anywhere: bool = False
    """Which of several nodes it was isn't known, so that all were looked at."""

    @property
    def short(self) -> bool:
        """Whether a node ran out, as far as samples show."""
        return self.low is not None and self.low.share is not None and self.low.share <= SHORT

    @property
    def ample(self) -> bool:
        """Whether none came near to it."""
        return self.low is not None and self.low.share is not None and self.low.share >= AMPLE

    @property
    def own_limit(self) -> bool:
        """Whether it was the job's own limit, not the node's memory: the kernel's word, else what samples show."""
        if self.scope is not None:
            return self.scope == "job"
        return self.ample or (self.limit is not None and not self.short)

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
            key = "host_short" if self.short else "host_ample_all" if self.anywhere else "host_ample"
            said.append(claim(key, node=node, low=self.low.value, total=self.low.capacity))
        return said if self.limit is None else [*said, self.limit]


def host(evidence: Evidence, run: Run, nodes: Sequence[str], moment: float | None) -> Host:
    """Of these nodes (of all, without any) about a moment (at any time of the run, without one).

    The evidence must hold the asks of HOST_MEMORY, and ``kills``, ``jobs`` and ``steps``.
    """
    scope = _scope(evidence, run, nodes)
    if not any(evidence.has(name) for name in HOST_MEMORY):
        return Host(scope=scope, limit=_resident(evidence, run))
    from trackside.facts.hardware.counters import rises

    counted = [change for change in rises(evidence.grid("oom_count")) if _there(change, run, nodes, moment)]
    kills = [change for change in counted if not _of_others(change, evidence, run)]
    low = scarcest(evidence, run, nodes)
    if low is not None and moment is not None and low.share is not None and low.share <= SHORT:
        low = low if abs(low.at - moment) <= 5 * NEAR_S else None  # it was short at another time
    limit = _asked(evidence, run, low) or _resident(evidence, run)
    return Host(tuple(kills), low, scope, limit, len(kills) < len(counted), not nodes and len(run.nodes) > 1)


def unharmed(evidence: Evidence, run: Run) -> list[Claim]:
    """What shows that host memory killed nothing: no kill was counted, and no sample was short of memory."""
    counts = evidence.grid("oom_count")
    room = host(evidence, run, [], None)
    if room.kills or room.others or room.short or counts is None:
        return room.claims if room.ample and not room.kills else []
    nodes = len({series.get("node") for series in counts.series})
    watched = derived(nodes, counts.value("last"), unit="node" if nodes == 1 else "nodes")
    return [claim("none_counted", nodes=watched), *room.claims]


def _scope(evidence: Evidence, run: Run, nodes: Sequence[str]) -> Literal["node", "job"] | None:
    """What the kernel's own lines say of the run's kills on these nodes."""
    rows = [row for row in evidence["kills"].events if of_run(row, run)]
    rows = [row for row in rows if row.node is None or not nodes or row.node in nodes]
    told = {SCOPES[scope] for row in rows if (scope := str(row.get("scope"))) in SCOPES}
    return told.pop() if len(told) == 1 else None


def _limit(evidence: Evidence, run: Run) -> Value | None:
    """Bytes that the job had asked for on each of its nodes."""
    job = last_job(evidence["jobs"])
    asked = job.get("req_mem_bytes") if job is not None else None
    if job is None or not isinstance(asked, (int, float)) or not asked or not run.nodes:
        return None
    return derived(asked / len(run.nodes), evidence["jobs"].value(job, "req_mem_bytes", "bytes"), unit="bytes")


def _asked(evidence: Evidence, run: Run, low: Peak | None) -> Claim | None:
    """How near the job came to what it had asked for, by its cgroup; else by the growth of memory in use on the
    scarcest node, which may be other jobs'."""
    limit = _limit(evidence, run)
    used = _own(evidence, run, low.name) if low is not None and limit is not None else None
    if low is not None and limit is not None and used is not None:
        node = derived(low.name, low.value)
        near = used.number >= AT_LIMIT * limit.number
        return claim("cgroup_reached", used=used, node=node, limit=limit) if near else None
    grown = drawn(evidence, run, low) if low is not None and limit is not None else None
    if low is None or limit is None or grown is None or grown.number < AT_LIMIT * limit.number:
        return None
    return claim("asked_reached", node=derived(low.name, low.value), grown=grown, limit=limit)


def _own(evidence: Evidence, run: Run, node: str) -> Value | None:
    """The most memory, caches aside, that the job's cgroup held on a node; None where it was not sampled."""
    grid = evidence.grid("job_memory")
    names = {f"job_{name}" for name in (run.id, *run.aliases) if name}
    own = [] if grid is None else [each.get("cgroup") for each in grid.series if each.get("node") == node]
    name = next((each for each in own if each in names), None)
    return None if grid is None or name is None else grid.where(cgroup=name, node=node).value("max")


def _resident(evidence: Evidence, run: Run) -> Claim | None:
    """The same by the largest process that Slurm saw."""
    limit, steps = _limit(evidence, run), evidence["steps"]
    sized = [row for row in steps.records if isinstance(row.get("max_rss_bytes"), (int, float))]
    if limit is None or not sized:
        return None
    rss = max((steps.value(row, "max_rss_bytes", "bytes") for row in sized), key=lambda value: value.number)
    return None if rss.number < AT_LIMIT * limit.number else claim("rss_reached", rss=rss, limit=limit)


def _of_others(change: Change, evidence: Evidence, run: Run) -> bool:
    """Whether the node's kernel names the processes that it counted, and all are other jobs'."""
    node, first = change.series.get("node"), change.since - SLACK_S
    rows = [row for row in evidence["kills"].events if row.node == node and row.time is not None and row.time >= first]
    return len(rows) >= change.by.number and not any(of_run(row, run) for row in rows)


def _there(change: Change, run: Run, nodes: Sequence[str], moment: float | None) -> bool:
    if nodes and change.series.get("node") not in nodes:
        return False
    first = last = moment
    if moment is None:
        first, last = run.start, run.end
    early = last is None or change.since <= last + NEAR_S
    return early and (first is None or change.until >= first - NEAR_S)
