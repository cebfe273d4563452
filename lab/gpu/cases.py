"""The five trainings: the fault of each, the expected verdict, and the load of its GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class GpuCase:
    """``load``: settings of the stand-in NVML from the beginning, and from the fault on (after a third of the time)."""

    how: str
    folder: str
    expected: Mapping[str, Any]
    story: str
    mark: str
    """A pattern that the log contains if the fault happened."""
    load: tuple[Mapping[str, str | int], Mapping[str, str | int]]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_cuda: bool = False
    needs_end: bool = False
    """Whether it runs until it is ended."""


_WORK: Mapping[str, str | int] = {
    "utilization": "98~1",
    "memory_utilization": 45,
    "sm_active": "85~3",
    "tensor_active": "40~3",
    "dram_active": "40~3",
    "graphics_active": 99,
    "power": "640~15",
    "clock_sm": 1755,
    "throttle": 4,
    "temperature": "62~1",
}
REST: Mapping[str, str | int] = {
    "utilization": 0,
    "memory_utilization": 0,
    "sm_active": 0,
    "tensor_active": 0,
    "dram_active": 0,
    "graphics_active": 0,
    "power": 118,
    "clock_sm": 1980,
    "throttle": 0,
    "temperature": 38,
}
"""A GPU that nobody uses."""
_BURSTS: Mapping[str, str | int] = {
    **_WORK,
    "utilization": "15~15",
    "sm_active": "8~2",
    "tensor_active": 4,
    "graphics_active": 10,
    "power": "180~10",
}
_BLOCKED: Mapping[str, str | int] = {**_WORK, "sm_active": "55~3", "graphics_active": 70, "power": "430~10"}

CASES: tuple[GpuCase, ...] = (
    GpuCase(
        "healthy",
        "g1/gpu-healthy",
        {"family": "G1", "culprit": "none"},
        "A language model trains on one GPU and ends when its time is over. Nothing was injected.",
        "training finished after",
        (_WORK, _WORK),
    ),
    GpuCase(
        "starved",
        "d1/gpu-starved",
        {"family": "D1", "culprit": "job"},
        "The same training, but each step first spends two seconds of Python on its input while the GPU waits.",
        "training finished after",
        (_BURSTS, _BURSTS),
    ),
    GpuCase(
        "blocking",
        "d2/gpu-launch-blocking",
        {"family": "D2", "variant": "launch-blocking", "culprit": "job"},
        "The same training with CUDA_LAUNCH_BLOCKING=1, which the log shows in force.",
        "CUDA_LAUNCH_BLOCKING=1",
        (_BLOCKED, _BLOCKED),
        environment={"CUDA_LAUNCH_BLOCKING": "1"},
    ),
    GpuCase(
        "idle",
        "c3/gpu-idle-hang",
        {"family": "C3", "culprit": "job"},
        "The same training waits for a queue that nobody fills, from a third of its time on, until it is ended from "
        "outside. It keeps its memory on the GPU.",
        r"(?s)\A(?!.*training finished).*iter \d+/",
        (_WORK, REST),
        needs_end=True,
    ),
    GpuCase(
        "oom",
        "b1/gpu-out-of-memory",
        {"family": "B1", "culprit": "job", "exception": "torch.OutOfMemoryError"},
        "The same training asks for ever more device memory, 4 GiB at a time, from a third of its time on.",
        "CUDA out of memory",
        (_WORK, {**_WORK, "memory_used": "78GiB"}),
        needs_cuda=True,
    ),
)
