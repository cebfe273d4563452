"""Load of the run's hosts: CPUs, and tasks that waited for a CPU or for storage.

Waiting is the kernel's pressure stall information: the share of time in which some task waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts import maths
from trackside.facts.fact import fact
from trackside.facts.gpus import count_of, value_or_none
from trackside.finding import Claim, Sentence
from trackside.query import Query, metric


def _pressure(resource: str) -> Query:
    query = metric("host_pressure_seconds_total").where(resource=resource, level="some")
    return query.over("run", "increase").by("node", how="max")


HOST_LOAD: Mapping[str, Query] = {
    "cpu_busy": metric("host_cpu_busy_ratio").over("run", "avg"),
    "cpu_idle": metric("host_cpu_seconds_total").where(mode="idle").over("run", "increase").by("node", how="avg"),
    "cpu_pressure": _pressure("cpu"),
    "io_pressure": _pressure("io"),
}
"""The queries behind :class:`HostLoad`."""

CPUS_BUSY = Sentence("host CPUs were {busy} busy (median)")
TASKS_WAITED: Mapping[str, Sentence] = {
    "cpu": Sentence(
        "at least one process of a host waited for a CPU {share} of the time ({wait} per {window}, median of {hosts})"
    ),
    "io": Sentence(
        "at least one process of a host waited for storage {share} of the time ({wait} per {window}, median of {hosts})"
    ),
}
NODE_TASKS_WAITED = Sentence(
    "at least one process on {node} waited for a CPU {share} of the time ({wait} per {window}, median)"
)
NODE_WAITED: Mapping[str, Sentence] = {
    "cpu": NODE_TASKS_WAITED,
    "io": Sentence(
        "at least one process on {node} waited for storage {share} of the time ({wait} per {window}, median)"
    ),
}
"""The same for the only host, or for the one that waited most if the hosts form two groups."""
NODE_TASKS_WAITED_MORE = Sentence(
    "at least one process on {node} waited for a CPU {share} of the time ({wait} per {window}, median), on the median "
    "host {others}"
)


@dataclass(frozen=True)
class Limits:
    """Thresholds for load."""

    saturated_cpu: float = 0.9
    """Busy share of CPU time, mean over the time of work."""
    pressure_share: float = 0.3
    """Share of time in which tasks waited for CPU or storage."""
    pressure_ratio: float = 2.0
    """Pressure of a node relative to the median node."""


@dataclass(frozen=True, eq=False)
class HostLoad:
    """The load of the hosts, as sampled: the name of a query -> its answer."""

    grids: Mapping[str, Grid]
    limits: Limits

    def saturated(self, start: float, end: float) -> tuple[Claim, ...]:
        """The saturated resources in (start, end]: CPU or storage."""
        busy = self._cpu_busy(start, end)
        claims = [CPUS_BUSY(busy=busy)] if busy is not None and busy.number >= self.limits.saturated_cpu else []
        for name in TASKS_WAITED:
            grid = self.grids.get(f"{name}_pressure")
            part = None if grid is None else grid.during(start, end)
            wait = value_or_none(part, "median")
            if part is not None and wait is not None and wait.number >= self.limits.pressure_share * part.step:
                claims.append(_waited(name, part, wait))
        return tuple(claims)

    def lacks_cpus(self, start: float, end: float) -> bool:
        """Whether the CPUs were saturated in (start, end]."""
        busy, grid = self._cpu_busy(start, end), self.grids.get("cpu_pressure")
        wait = None if grid is None else value_or_none(grid.during(start, end), "median")
        waits = grid is not None and wait is not None and wait.number >= self.limits.pressure_share * grid.step
        return waits or (busy is not None and busy.number >= self.limits.saturated_cpu)

    def _cpu_busy(self, start: float, end: float) -> Value | None:
        """Busy share of CPU time (median); None if it was not sampled."""
        busy, idle = self.grids.get("cpu_busy"), self.grids.get("cpu_idle")
        if busy is not None:
            return value_or_none(busy.during(start, end), "median", "share")
        spare = None if idle is None else value_or_none(idle.during(start, end), "median")
        if idle is None or spare is None:
            return None
        return derived(round(1 - spare.number / idle.step, 3), spare, unit="share")

    def contended(self, nodes: Sequence[str]) -> tuple[Claim, ...]:
        """The claim that tasks of this single node wait for a CPU while those of other nodes do not."""
        grid, limits = self.grids.get("cpu_pressure"), self.limits
        if grid is None or len(nodes) != 1:
            return ()
        own_wait, typical_wait = grid.where(node=nodes[0]).value("median"), grid.value("median")
        if own_wait.value is None or own_wait.number < limits.pressure_share * grid.step:
            return ()
        if len(grid) > 2 and own_wait.number < limits.pressure_ratio * typical_wait.number:
            return ()
        share, others = (
            derived(round(value.number / grid.step, 3), value, unit="share") for value in (own_wait, typical_wait)
        )
        values = {
            "node": derived(nodes[0], own_wait), "share": share, "wait": own_wait,
            "window": derived(grid.step, own_wait, unit="s"),
        }  # fmt: skip
        return (NODE_TASKS_WAITED_MORE(**values, others=others) if len(grid) > 2 else NODE_TASKS_WAITED(**values),)


def _waited(resource: str, part: Grid, wait: Value) -> Claim:
    """The claim that processes waited for a resource: on the median host, or on a host that is named."""
    levels = [maths.median(row.tolist()) for row in part.values]
    node = part.series[max(range(len(levels)), key=levels.__getitem__)].get("node")
    is_named = node is not None and (len(part) == 1 or maths.split_level(levels) is not None)
    if is_named:
        wait = part.where(node=str(node)).value("median")
    share = derived(round(wait.number / part.step, 3), wait, unit="share")
    values = {"share": share, "wait": wait, "window": derived(part.step, wait, unit="s")}
    if is_named:
        return NODE_WAITED[resource](**values, node=derived(str(node), wait))
    return TASKS_WAITED[resource](**values, hosts=count_of(len(part), "host", wait))


@fact(HOST_LOAD, limits=Limits())
def host_load(evidence: Evidence, limits: Limits) -> HostLoad:
    """Needs no particular input; empty for what was not sampled."""
    return HostLoad({name: grid for name in HOST_LOAD if (grid := evidence.grid(name)) is not None}, limits)
