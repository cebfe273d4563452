"""Whether the run's GPUs were idle from its start on.

They must have been sampled for most of the run. Missing launches alone prove nothing: the tracer may have missed them.
Memory shows whether more than a CUDA context was ever loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import COUNT_SIGNALS, FLOORS, GpuActivity, level
from trackside.facts.gpu.power_limits import IDLE_POWER, PowerLimits
from trackside.facts.gpus import count_of, nodes_of, value_or_none
from trackside.facts.hardware.memory import CONTEXT_SHARE
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import Query, metric

IDLE: Mapping[str, Query] = {
    "memory": metric("gpu_memory_used_bytes").over("run", "avg"),
    "capacity": metric("gpu_memory_total_bytes").over("run", "max"),
    "attached": metric("trackside_gpu_process_attached").over("run", "max"),
    "tracer": metric("trackside_tracer_attached").over("run", "max"),
}
"""The queries behind :class:`IdleGpus`."""

NEVER_ABOVE: Mapping[str, Sentence] = {
    "sm": Sentence("SM activity never rose above {most}"),
    "engine": Sentence("engine activity never rose above {most}"),
    "utilization": Sentence("utilization never rose above {most}"),
    "launches": Sentence("kernel launches in the whole run: {most}", running="kernel launches so far: {most}"),
    "collectives": Sentence(
        "collectives completed in the whole run: {most}", running="collectives completed so far: {most}"
    ),
    "power": Sentence("no GPU drew more than {most}"),
}
NO_WORK_DONE = Sentence("{count} on {nodes} did no work for {seconds}, from the start")
NO_LAUNCH = Sentence(
    "Trackside's tracer was attached and saw neither a kernel launch nor a collective in {traced}",
    running="Trackside's tracer is attached and has seen neither a kernel launch nor a collective in {traced}",
)
NO_COLLECTIVE = Sentence(
    "Trackside's tracer was attached and saw no collective in {traced}",
    running="Trackside's tracer is attached and has seen no collective in {traced}",
)
NO_PROCESS = Sentence(
    "no process ever opened a GPU context",
    running="no process has opened a GPU context yet",
)
NO_MEMORY_USED = Sentence("no GPU memory was in use")
CONTEXT_ONLY = Sentence("no GPU used more than {memory} of memory, which is at most a CUDA context")
MEMORY_IDLE = Sentence("up to {memory} of GPU memory was in use")
SMALLEST_GPU_BYTES = 24 * 2**30
"""Bytes of the smallest GPU in use for training, used if the GPU's size was not sampled."""


@dataclass(frozen=True)
class Limits:
    """When GPUs count as idle."""

    min_windows: int = 3
    """Minimum number of sampled windows."""
    min_sampled_share: float = 0.5
    """Minimum share of the run's windows that were sampled."""


@dataclass(frozen=True, eq=False)
class IdleGpus:
    """GPUs that did no work from the start of the run on."""

    activity: GpuActivity
    seconds: Value
    """How long the GPUs were observed."""
    context_only: bool | None
    """Whether no GPU had more memory in use than a CUDA context needs; None if memory was not sampled."""
    attached: bool | None
    """Whether a process ever had a context; None if that was not traced."""
    forming: bool
    """Whether the ranks on these GPUs were about to form a process group: the log shows a start of several ranks, or
    there are several nodes. On one node, a job that printed no such line is stuck by itself."""
    claims: tuple[Claim, ...]
    """The claims that they did no work."""


WORKED = Missing("the GPUs worked")
NOT_SHOWN_IDLE = Missing("no sampled metric shows that the GPUs were idle")
TOO_LITTLE_SAMPLED = Missing("too little of the run was sampled to say whether the GPUs worked")


@fact(IDLE, limits=Limits())
def idle_gpus(
    evidence: Evidence, activity: GpuActivity, powers: PowerLimits, silence: Silence, run: Run, limits: Limits
) -> Maybe[IdleGpus]:
    """Needs samples of most of the run, in which no GPU worked; otherwise missing."""
    watched = int(activity.observed.sum())
    enough = max(limits.min_windows, limits.min_sampled_share * len(activity.times))
    if activity.working_gpus.any():
        return WORKED
    if watched < enough:
        return TOO_LITTLE_SAMPLED
    shows = _levels(activity)
    if not shows or not _is_idle(activity, powers):
        return NOT_SHOWN_IDLE
    sources = [value for claim in shows for value in claim.values.values()]
    run_s = np.inf if run.start is None or run.end is None else run.end - run.start
    seconds = derived(min(watched * activity.step, run_s), *sources, unit="s")
    gpus, nodes = activity.gpus, nodes_of(activity.gpus)
    count, on_nodes = count_of(len(gpus), "GPU", *sources), count_of(len(nodes) or 1, "node", *sources)
    levels, shows = shows, [NO_WORK_DONE(seconds=seconds, count=count, nodes=on_nodes)]
    traced, attached, memory = (evidence.grid(name) for name in ("tracer", "attached", "memory"))
    if activity.grid("collectives") is None and traced is not None:
        sentence = NO_COLLECTIVE if activity.grid("launches") is not None else NO_LAUNCH
        shows.append(sentence(traced=traced.value("count", unit="samples")))
    has_context = None if attached is None else bool(np.nanmax(attached.values) > 0)
    if attached is not None and not has_context:
        shows.append(NO_PROCESS(attached=attached.value("max", unit="")))
    context_only = _context_only(evidence)
    if memory is not None:
        most = memory.value("max")
        shows.append((MEMORY_IDLE if not context_only else CONTEXT_ONLY if most.value else NO_MEMORY_USED)(memory=most))
    forming = len(gpus) > 1 and (bool(silence.starts) or max(len(run.nodes), len(nodes)) > 1)
    return IdleGpus(activity, seconds, context_only, has_context, forming, (*shows, *levels))


def _levels(activity: GpuActivity) -> list[Claim]:
    """The maximum of each signal; of power only if no other signal was sampled."""
    shows: list[Claim] = []
    for name in ("sm", "engine", "utilization", *COUNT_SIGNALS):
        counted = name in COUNT_SIGNALS
        highest = value_or_none(activity.grid(name), "sum" if counted else "max", "" if counted else None)
        if highest is not None:
            shows.append(NEVER_ABOVE[name](most=highest))
    power = activity.grid("power")
    return shows or ([NEVER_ABOVE["power"](most=power.value("max"))] if power is not None else [])


def _is_idle(activity: GpuActivity, powers: PowerLimits) -> bool:
    """Whether the samples show that no GPU was busy."""
    if activity.busy is not None:
        return bool(np.nanmax(level(activity.busy), initial=0.0) <= FLOORS.cold)
    if activity.sm is not None:
        return True
    if activity.power is None:
        return False
    limits = powers.by_gpu
    drawn = level(activity.power) / limits
    return not np.isnan(limits).any() and bool(np.nanmax(drawn, initial=0.0) <= IDLE_POWER)


def _context_only(evidence: Evidence) -> bool | None:
    memory, capacity = evidence.grid("memory"), evidence.grid("capacity")
    if memory is None:
        return None
    capacity_bytes = float(np.nanmin(capacity.values)) if capacity is not None else SMALLEST_GPU_BYTES
    return float(np.nanmax(memory.values)) <= CONTEXT_SHARE * capacity_bytes
