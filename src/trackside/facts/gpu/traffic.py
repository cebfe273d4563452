"""Does anything move on GPUs that look busy: arithmetic of the tensor pipes, device memory, NVLink? Pure, on arrays.

A kernel that only spins in a collective keeps engine and a few SMs active; it computes nothing and moves no data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, derived
from trackside.facts.gpu.activity import GpuActivity, mean, middle
from trackside.facts.gpus import aligned
from trackside.finding import Claim, claim


@dataclass(frozen=True)
class Sign:
    """Mean over a while, per GPU."""

    moves: float
    """From here on something advances."""
    rests: float
    """Up to here nothing does."""
    alone: bool = True
    """Whether rest of this alone says that nothing moves."""


SIGNS: Mapping[str, Sign] = {
    "dram": Sign(0.01, 0.006),  # a hundredth of an H100's device memory is 33 GB/s; flags that are polled stay cached
    "copy": Sign(0.015, 0.005),  # whole per cents of time in which device memory was read or written
    "tensor": Sign(0.005, 0.001, alone=False),  # models in FP32 use none
    "nvlink": Sign(1e7, 1e6, alone=False),  # gradients of ten million parameters every two seconds; none on one link
}
"""Ask of :data:`trackside.facts.gpu.signals.STANDSTILL` -> its levels."""


@dataclass(frozen=True)
class Traffic:
    """What moves and what does not, as claims."""

    moving: tuple[Claim, ...]
    resting: tuple[Claim, ...]
    none: bool
    """Whether nothing moves: something that alone tells is at rest, and nothing that was sampled is not."""


def traffic(evidence: Evidence, seen: GpuActivity, start: float, end: float) -> Traffic:
    """Of the GPUs in use, in (start, end]."""
    moving: list[Claim] = []
    resting: list[Claim] = []
    told = False
    rows = seen.users if seen.users.any() else np.ones(len(seen.gpus), dtype=bool)
    windows = (seen.times > start) & (seen.times <= end)
    for name, sign in SIGNS.items():
        grid = evidence.grid(name)
        if grid is None or not windows.any():
            continue
        level = float(middle(mean(aligned(grid, seen.gpus, seen.times)[rows][:, windows])))
        if np.isnan(level):
            continue
        unit = "share" if grid.unit == "ratio" else grid.unit
        value = derived(round(level, 4), grid.during(start, end).value("avg", unit=unit), unit=unit)
        if level >= sign.moves:
            moving.append(claim(f"moves_{name}", level=value))
        elif level <= sign.rests:
            resting.append(claim(f"rests_{name}", level=value))
            told |= sign.alone
    return Traffic(tuple(moving), tuple(resting), told and not moving)
