"""Which metrics tell what the GPUs did and whether they stood still, as asks; the array work is done elsewhere, so that
a diagnosis without metrics needs no arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence
from trackside.facts.logs.silence import SILENCE, Quiet
from trackside.model import Run
from trackside.query import Query, Rollup, metric

if TYPE_CHECKING:
    from trackside.facts.gpu.activity import GpuActivity


def _by_gpu(name: str, how: Rollup) -> Query:
    return metric(name).over("run", how).by("node", "gpu", "rank", how="sum")


ACTIVITY: Mapping[str, Query] = {
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
    "utilisation": metric("gpu_utilization_ratio").over("run", "avg"),
    "power": metric("gpu_power_watts").over("run", "avg"),
    "launches": _by_gpu("trackside_cuda_kernel_launches_total", "increase"),
    "collectives": _by_gpu("trackside_nccl_collectives_completed_total", "increase"),
}
"""What tells what the GPUs did; a family spreads it into its asks."""
NEED = ("sm", "engine", "utilisation", "launches")
"""Asks any one of which can tell rest from work; for a family's needs."""
STANDSTILL: Mapping[str, Query] = {
    **SILENCE,
    **ACTIVITY,
    "power_limit": metric("gpu_power_limit_watts").over("run", "max"),
    "clock": metric("gpu_sm_clock_hertz").over("run", "avg"),
    "tensor": metric("gpu_tensor_active_ratio").over("run", "avg"),
    "dram": metric("gpu_dram_active_ratio").over("run", "avg"),
    "copy": metric("gpu_memory_utilization_ratio").over("run", "avg"),
    "nvlink": metric("gpu_nvlink_tx_bytes_per_second").over("run", "avg").by("node", "gpu", how="sum"),
    "memory": metric("gpu_memory_used_bytes").over("run", "avg"),
    "capacity": metric("gpu_memory_total_bytes").over("run", "max"),
    "steps": metric("training_step").over("run", "max"),
    "entered": _by_gpu("trackside_nccl_collectives_started_total", "last"),
    "left": _by_gpu("trackside_nccl_collectives_completed_total", "last"),
    "attached": metric("trackside_gpu_process_attached").over("run", "max"),
    "tracer": metric("trackside_tracer_attached").over("run", "max"),
}
"""What tells whether a run stood still, and who kept it."""


@dataclass(frozen=True)
class Limits(Quiet):
    """When GPUs that do no work are a standstill; and, of :class:`Quiet`, when a log that says nothing is one."""

    pauses: float = 2.0
    """Times the longest pause that the run came back from."""
    windows: int = 3
    """Windows at rest, below which a scrape that came late looks the same."""
    readings: int = 6
    """Or so many samples of each GPU, where a window holds more than two."""
    short_s: float = 120.0
    """For a run too short for ``least_s``, where it is ``share`` of its duration."""
    spinning: float = 0.8
    """Engine activity of a GPU that waits in a collective: a kernel is resident all the time."""
    pinned: float = 0.9
    """The same, where GPUs that spin keep so many SMs that nothing else tells them from work."""
    cold: float = 0.1
    """Engine activity of a GPU on which nothing runs."""
    spinning_power: float = 1.3
    """Power over the lowest of all GPUs, where engine activity was not sampled: 85 W beside 60 W idle (public
    nvidia-smi output of a hang on A100s)."""
    cold_power: float = 1.15
    """Power over the lowest of all GPUs up to which nothing runs."""
    less: float = 0.7
    """Of the SM activity or power before, at which a GPU waits if its run's log has gone silent: a collective that
    spins keeps up to a fifth of the card's SMs."""
    held: float = 0.5
    """Share of its working level of memory that a GPU still holds while its process lives."""
    context_share: float = 0.03
    """Of a card's memory that a CUDA context with its libraries takes: 300 to 700 MiB of 24 to 80 GiB."""
    idle_power: float = 0.3
    """Of the power limit that an idle card draws at most: 16 of 72 W (L4), 116 of 700 W (H100 with a context); and one
    that spins, 85 of 400 W."""
    spinning_ratio: float = 4.0
    """The same over the lowest power of all GPUs, where the limit was not sampled: a context alone draws up to
    2.2 times an idle card's power (L40S), and spinning adds a seventh of the rest."""
    spinning_sm: float = 0.2
    """SM activity that spinning alone comes to: one or two SMs a channel, 32 channels at most, of 100 and more."""
    most: float = 0.9
    """Share of the windows that counts as all the while."""


def watched(evidence: Evidence, run: Run) -> GpuActivity | None:
    """What the run's GPUs did, window by window; None where no metric tells."""
    if not any(evidence.has(name) for name in ACTIVITY):
        return None
    from trackside.facts.gpu.activity import activity

    return activity(evidence, run)


def nodes_of(gpus: Iterable[str]) -> tuple[str, ...]:
    """The nodes of these GPUs (``node:index``), each once."""
    return tuple(dict.fromkeys(node for gpu in gpus if (node := gpu.rpartition(":")[0])))


STILL_SAYS: Mapping[str, str] = {
    "running": "the scheduler lists it as {state}",
    "rest_launches": "{now} kernel launches were made in the last {seconds}, of {whole} in the whole run",
    "rest_collectives": "{now} collectives were completed in the last {seconds}, of {whole} in the whole run",
    "rest_sm": "SM activity was {now} in the last {seconds} (median of the GPUs) and {before} until then",
    "rest_power": "the GPUs drew {now} in the last {seconds} (median) and {before} until then",
    "rest_busy": "the GPUs were busy for {now} of the last {seconds} (median) and for {before} until then",
    "spin": "busy without work: {count}, {signal} {busy}, which is waiting and no health",
    "spin_power": "drawing more than idle ones do, without work: {count}, {power}",
    "odd_cold": "GPU {gpus} went cold: {signal} {level}",
    "odd_gone": "GPU {gpus} gave no sample any more, the others {samples:plain}",
    "odd_behind": "GPU {gpus} had entered fewer collectives than the others: {mine} of {theirs}",
    "odd_absent": "GPU {gpus} was in no collective while the others were in one: {mine} entered, {theirs} left",
    "odd_computing": "GPU {gpus} went on with other work",
    "odd_first": "GPU {gpus} stopped before the others",
    "pinned_on": "the GPUs were busy all the while: {busy} over {seconds} (median)",
    "no_step": "the ranks had met ({line}), and the log holds {count:training points}",
    "little_sm": "their SM activity was {sm} (median), what waiting in a collective alone comes to",
    "little_power": "they drew {power} (median), no more than GPUs that wait busily",
    "moves_dram": "their memory moved data {level} of the time (mean)",
    "moves_copy": "their memory was read or written {level} of the time (mean)",
    "moves_tensor": "their tensor pipes were busy {level} of the time (mean)",
    "moves_nvlink": "each sent {level} over NVLink (mean)",
    "rests_dram": "their memory moved data {level} of the time (mean): next to nothing is read or written",
    "rests_copy": "their memory was read or written {level} of the time (mean)",
    "rests_tensor": "their tensor pipes were busy {level} of the time (mean)",
    "rests_nvlink": "each sent {level} over NVLink (mean)",
    "memory_held": "the memory stays held: {memory} (median of the GPUs)",
    "to_the_end_launches": "kernels were launched up to the end: {level} a window (median)",
    "to_the_end_collectives": "collectives were completed up to the end: {level} a window (median)",
    "to_the_end_sm": "the GPUs worked up to the end: SM activity {level} (median)",
    "to_the_end_power": "the GPUs drew the power of work up to the end: {level} (median)",
    "cold_sm": "SM activity never rose above {most}",
    "cold_engine": "engine activity never rose above {most}",
    "cold_utilisation": "utilisation never rose above {most}",
    "cold_power": "no GPU drew more than {most}",
    "cold_launches": "kernel launches made in all: {most}",
    "cold_collectives": "collectives completed in all: {most}",
    "all_cold": "{count} on {nodes} did no work in {seconds}, from the start on",
    "no_launch": "no kernel launch and no collective of the run was ever seen, though its processes were traced "
    "({traced})",
    "no_collective": "no collective of the run was ever seen, though its processes were traced ({traced})",
    "no_process": "no process ever held a context on a GPU ({attached})",
    "context_only": "no GPU held more than {memory} of memory, a context at most",
    "memory_idle": "up to {memory} of GPU memory was held",
}
"""Sentences of the claims of :mod:`trackside.facts.gpu.still` and :mod:`trackside.facts.gpu.idle`."""
STILL_GOING: Mapping[str, str] = {
    "rest_launches": "{now} kernel launches were made in the last {seconds}, of {whole} so far",
    "rest_collectives": "{now} collectives were completed in the last {seconds}, of {whole} so far",
    "to_the_end_launches": "kernels are being launched: {level} a window (median)",
    "to_the_end_collectives": "collectives are being completed: {level} a window (median)",
    "to_the_end_sm": "the GPUs are at work: SM activity {level} (median)",
    "to_the_end_power": "the GPUs draw the power of work: {level} (median)",
    "cold_launches": "kernel launches made so far: {most}",
    "cold_collectives": "collectives completed so far: {most}",
    "no_launch": "no kernel launch and no collective of the run has been seen, though its processes are traced "
    "({traced})",
    "no_collective": "no collective of the run has been seen, though its processes are traced ({traced})",
    "no_process": "no process has held a context on a GPU yet ({attached})",
}
"""The same of a run that goes on."""
