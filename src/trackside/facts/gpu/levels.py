"""Levels of the run's metrics over its time: what two runs are compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trackside.evidence import Evidence, Grid
from trackside.facts.fact import fact
from trackside.query import metric

LEVELS = (
    "gpu_sm_active_ratio", "gpu_engine_active_ratio", "gpu_utilization_ratio", "gpu_sm_clock_hertz", "gpu_power_watts",
    "gpu_temperature_celsius", "gpu_memory_used_bytes", "training_tokens_per_second", "training_samples_per_second",
    "training_step_seconds",
)  # fmt: skip
"""The metrics."""


@dataclass(frozen=True, eq=False)
class MetricLevels:
    """Averages over windows of the run, by metric, of those that were sampled."""

    grids: Mapping[str, Grid]


@fact({name: metric(name).over("run", "avg") for name in LEVELS})
def metric_levels(evidence: Evidence) -> MetricLevels:
    """Of what was sampled; nothing is needed."""
    return MetricLevels({name: grid for name in LEVELS if (grid := evidence.grid(name)) is not None})
