"""Did the GPUs of a run do nothing from its start on? Pure, on arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.activity import GpuActivity, level
from trackside.facts.gpu.rated import rated_power
from trackside.facts.gpu.signals import Limits, nodes_of
from trackside.finding import Claim, claim
from trackside.model import Run


@dataclass(frozen=True)
class Idle:
    """No GPU of the run did any work from its start on."""

    seen: GpuActivity
    seconds: Value
    """How long that was watched."""
    context_only: bool | None
    """Whether no GPU held more memory than a CUDA context takes; None where memory was not sampled."""
    attached: bool | None
    """Whether a process ever held a context; None where that was not traced."""
    shows: tuple[Claim, ...]


def all_along(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Idle | None:
    """GPUs that were watched for most of the run and never worked; None where one did, or too little was watched.

    Launches alone say nothing: a tracer that saw none may have seen nothing.
    """
    watched = np.flatnonzero(seen.seen)
    if (
        seen.users.any()
        or len(watched) < max(limits.windows, 0.5 * len(seen.times))
        or not _cold(evidence, seen, limits)
    ):
        return None
    shows: list[Claim] = []
    for name in ("sm", "engine", "utilisation", "launches", "collectives"):
        grid = evidence.grid(name)
        counted = name in ("launches", "collectives")
        most = grid.value("sum" if counted else "max", unit="") if grid is not None else None
        if most is not None and most.value is not None:
            shows.append(claim(f"cold_{name}", most=most))
    power = evidence.grid("power")
    if not shows and power is not None:
        shows.append(claim("cold_power", most=power.value("max")))
    if not shows:
        return None
    sources = [value for each in shows for value in each.values.values()]
    seconds = derived(len(watched) * seen.step, *sources, unit="s")
    shows.insert(0, claim("all_cold", seconds=seconds, **_counted(seen, sources)))
    traced, attached, memory = (evidence.grid(name) for name in ("tracer", "attached", "memory"))
    if evidence.grid("collectives") is None and traced is not None:
        key = "no_collective" if evidence.grid("launches") is not None else "no_launch"
        shows.append(claim(key, traced=traced.value("count", unit="samples")))
    held = None if attached is None else bool(np.nanmax(attached.values) > 0)
    if attached is not None and not held:
        shows.append(claim("no_process", attached=attached.value("max", unit="")))
    small = _context_only(evidence, limits)
    if memory is not None:
        shows.append(claim("context_only" if small else "memory_idle", memory=memory.value("max")))
    return Idle(seen, seconds, small, held, tuple(shows))


def _counted(seen: GpuActivity, sources: Sequence[Value]) -> dict[str, Value]:
    """How many GPUs on how many nodes."""
    gpus, nodes = len(seen.gpus), len(nodes_of(seen.gpus)) or 1
    return {
        "count": derived(gpus, *sources, unit="GPU" if gpus == 1 else "GPUs"),
        "nodes": derived(nodes, *sources, unit="node" if nodes == 1 else "nodes"),
    }


def _cold(evidence: Evidence, seen: GpuActivity, limits: Limits) -> bool:
    """Whether what was sampled shows that no GPU was busy."""
    if seen.busy is not None:
        return bool(np.nanmax(level(seen.busy), initial=0.0) <= limits.cold)
    if seen.sm is not None:
        return True
    if seen.power is None:
        return False
    limit = rated_power(evidence.grid("power_limit"), evidence.grid("power"), seen.gpus, seen.times)
    most = np.fmax.reduce(limit, axis=1)
    return not np.isnan(most).any() and bool(np.nanmax(level(seen.power) / most, initial=0.0) <= limits.idle_power)


def _context_only(evidence: Evidence, limits: Limits) -> bool | None:
    memory, capacity = evidence.grid("memory"), evidence.grid("capacity")
    if memory is None:
        return None
    whole = float(np.nanmin(capacity.values)) if capacity is not None else SMALLEST_CARD
    return float(np.nanmax(memory.values)) <= limits.context_share * whole


SMALLEST_CARD = 24 * 2**30
"""Bytes of the smallest card in use for training, where its size was not sampled."""


def forming(evidence: Evidence, run: Run, idle: Idle) -> bool:
    """Whether GPUs that never worked are those of ranks that were to meet: a start of several ranks in the log, or
    several nodes; on one node a job that printed nothing of the kind is stuck by itself."""
    if len(idle.seen.gpus) < 2:
        return False
    begun = evidence["inits"].events or [row for row in evidence["hosts"].events if row.get("command") == "torchrun"]
    return bool(begun) or max(len(run.nodes), len(nodes_of(idle.seen.gpus))) > 1
