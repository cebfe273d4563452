"""Transitional: the facts of GPUs, for families that still ask by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.evidence import Evidence, Missing
from trackside.facts.gpu.activity import ACTIVITY, NEED, GpuActivity, activity
from trackside.facts.gpu.first_step import FirstStepHang, first_step_hang
from trackside.facts.gpu.first_step import Limits as FirstStep
from trackside.facts.gpu.idle import IDLE, IdleGpus, idle_gpus
from trackside.facts.gpu.idle import Limits as Idle
from trackside.facts.gpu.power_limits import PowerLimits
from trackside.facts.gpu.stall import STALL, GpuStall, Limits
from trackside.facts.gpu.standstill import Standstill
from trackside.facts.gpu.traffic import TRAFFIC, GpuTraffic
from trackside.facts.gpus import nodes_of
from trackside.facts.logs.silence import SILENCE, Quiet, silence_of
from trackside.model import Run
from trackside.query import Query, metric

__all__ = ["ACTIVITY", "NEED", "STANDSTILL", "Limits", "nodes_of"]

STANDSTILL: Mapping[str, Query] = {
    **SILENCE,
    **ACTIVITY,
    "power_limit": metric("gpu_power_limit_watts").over("run", "max"),
    **TRAFFIC,
    **STALL,
    **IDLE,
}
"""What tells whether a run stood still, and who kept it."""
STILL_SAYS: Mapping[str, str] = {"running": "the scheduler lists it as {state}"}
"""Sentences that are still said by their key."""
STILL_GOING: Mapping[str, str] = {}


def watched(evidence: Evidence, run: Run) -> GpuActivity | None:
    """What the run's GPUs did, window by window; None where no metric tells."""
    return activity(evidence, run)


def stall_of(evidence: Evidence, run: Run, seen: GpuActivity) -> GpuStall:
    """:class:`GpuStall`."""
    traffic, powers = GpuTraffic(evidence, seen), PowerLimits(evidence.grid("power_limit"), seen)
    return GpuStall(evidence, seen, traffic, powers, silence_of(evidence, run, Quiet()), run, Limits())


def at_end(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Standstill | None:
    """:meth:`GpuStall.at_end`."""
    return stall_of(evidence, run, seen).at_end()


def all_along(evidence: Evidence, run: Run, seen: GpuActivity) -> IdleGpus | None:
    """:class:`IdleGpus`."""
    powers = PowerLimits(evidence.grid("power_limit"), seen)
    idle = idle_gpus(evidence, seen, powers, silence_of(evidence, run, Quiet()), run, Idle())
    return None if isinstance(idle, Missing) else idle


def unstarted(evidence: Evidence, run: Run, seen: GpuActivity) -> FirstStepHang | None:
    """:class:`FirstStepHang`."""
    stuck = first_step_hang(seen, stall_of(evidence, run, seen), silence_of(evidence, run, Quiet()), FirstStep())
    return None if isinstance(stuck, Missing) else stuck
