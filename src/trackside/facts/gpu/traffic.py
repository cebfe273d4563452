"""Whether data moves on GPUs that look busy: tensor-pipe arithmetic, device memory, NVLink.

A kernel that only spins in a collective keeps the engine and a few SMs active, but computes nothing and moves no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import GpuActivity, nan_mean, nan_median
from trackside.facts.gpus import align
from trackside.finding import Claim, Sentence
from trackside.query import Query, metric

TRAFFIC: Mapping[str, Query] = {
    "tensor": metric("gpu_tensor_active_ratio").over("run", "avg"),
    "dram": metric("gpu_dram_active_ratio").over("run", "avg"),
    "copy": metric("gpu_memory_utilization_ratio").over("run", "avg"),
    "nvlink": metric("gpu_nvlink_tx_bytes_per_second").over("run", "avg").by("node", "gpu", how="sum"),
}
"""The queries behind :class:`GpuTraffic`."""

TRAFFIC_CLAIMS: Mapping[str, Sentence] = {
    "dram": Sentence("GPU memory was moving data {level} of the time (mean)"),
    "copy": Sentence("GPU memory was read or written {level} of the time (mean)"),
    "tensor": Sentence("tensor cores were busy {level} of the time (mean)"),
    "nvlink": Sentence("each GPU sent {level} over NVLink (mean)"),
}
LITTLE_TRAFFIC = Sentence("GPU memory was moving data only {level} of the time (mean)")


@dataclass(frozen=True)
class TrafficThresholds:
    """Thresholds for a signal's mean over a time, for the typical GPU."""

    active_from: float
    """At this level or above, work makes progress."""
    idle_up_to: float
    """At this level or below, it does not."""
    conclusive: bool = True
    """Whether this signal alone shows that nothing moves."""


SIGNALS: Mapping[str, TrafficThresholds] = {
    # a hundredth of an H100's device memory is 33 GB/s; flags that are polled stay cached
    "dram": TrafficThresholds(0.01, 0.006),
    # whole per cents of time in which device memory was read or written
    "copy": TrafficThresholds(0.015, 0.005),
    # models in FP32 use none
    "tensor": TrafficThresholds(0.005, 0.001, conclusive=False),
    # gradients of ten million parameters every two seconds; none on one link
    "nvlink": TrafficThresholds(1e7, 1e6, conclusive=False),
}
"""Query -> its thresholds, in the order in which the queries are stated."""


@dataclass(frozen=True)
class Traffic:
    """What moves and what does not, as claims."""

    active: tuple[Claim, ...]
    idle: tuple[Claim, ...]
    nothing_moves: bool
    """Whether nothing moves: a conclusive signal is idle, and no sampled signal is active."""


@dataclass(frozen=True, eq=False)
class GpuTraffic:
    """How much data the GPUs moved, and how busy their tensor cores were."""

    evidence: Evidence
    activity: GpuActivity

    def between(self, start: float, end: float) -> Traffic:
        """Traffic of the GPUs in use in (start, end]."""
        moving: list[Claim] = []
        resting: list[Claim] = []
        at_rest = False
        activity = self.activity
        windows = (activity.times > start) & (activity.times <= end)
        for name, signal in SIGNALS.items():
            grid = self.evidence.grid(name)
            if grid is None or not windows.any():
                continue
            level = float(nan_median(nan_mean(align(grid, activity.gpus, activity.times)[activity.in_use][:, windows])))
            if np.isnan(level):
                continue
            unit = "share" if grid.unit == "ratio" else grid.unit
            value = derived(round(level, 4), grid.during(start, end).value("avg", unit=unit), unit=unit)
            if level >= signal.active_from:
                moving.append(TRAFFIC_CLAIMS[name](level=value))
            elif level <= signal.idle_up_to:
                resting.append((LITTLE_TRAFFIC if name == "dram" else TRAFFIC_CLAIMS[name])(level=value))
                at_rest |= signal.conclusive
        return Traffic(tuple(moving), tuple(resting), at_rest and not moving)


@fact(TRAFFIC)
def gpu_traffic(evidence: Evidence, activity: GpuActivity) -> GpuTraffic:
    """Needs GPU activity; empty for what was not sampled."""
    return GpuTraffic(evidence, activity)
