"""Transitional: the facts of GPUs, for families that still ask by themselves."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.evidence import Evidence
from trackside.facts.gpu.activity import ACTIVITY, NEED, GpuActivity, activity
from trackside.facts.gpu.idle import IDLE
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


def watched(evidence: Evidence, run: Run) -> GpuActivity | None:
    """What the run's GPUs did, window by window; None where no metric tells."""
    return activity(evidence, run)


def at_end(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Standstill | None:
    """:meth:`GpuStall.at_end`."""
    traffic, powers = GpuTraffic(evidence, seen), PowerLimits(evidence.grid("power_limit"), seen)
    silence = silence_of(evidence, run, Quiet())
    return GpuStall(evidence, seen, traffic, powers, silence, run, limits).at_end()
