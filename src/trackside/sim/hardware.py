"""GPU models: values from data sheets, and of an idle GPU in a rack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One product. Powers in watts, clocks in MHz, temperatures in Celsius, rates in bytes per second."""

    name: str
    """As the driver spells it."""
    memory_mib: int
    reserved_mib: int
    """Reserved by the driver; neither free nor used."""
    tdp: float
    idle: float
    """Power with no process on the GPU."""
    context_idle: float
    """Power while a process has a context and does nothing: clocks stay up."""
    clock_max: int
    clock_idle: int
    memory_clock: int
    memory_clock_idle: int
    sms: int
    nvlink: float
    nvlinks: int
    pcie: float
    temperature_full: float
    """Core temperature at full power and 27 C at the inlet."""
    slowdown: float
    """Core temperature at which hardware thermal slowdown begins."""
    context_mib: int = 520
    """Memory of an empty CUDA context with its libraries."""
    lag_s: float = 45.0
    """Time constant of the core temperature."""


MODELS: Mapping[str, GpuModel] = {
    "A100-40GB": GpuModel(
        "NVIDIA A100-SXM4-40GB", 40960, 576, 400, 52, 60, 1410, 210, 1215, 1215, 108, 300e9, 12, 25e9, 64, 87
    ),
    "A100-80GB": GpuModel(
        "NVIDIA A100-SXM4-80GB", 81920, 596, 400, 54, 62, 1410, 210, 1593, 1593, 108, 300e9, 12, 25e9, 66, 87
    ),
    "H100-80GB": GpuModel(
        "NVIDIA H100 80GB HBM3", 81559, 551, 700, 70, 116, 1980, 345, 2619, 2619, 132, 450e9, 18, 55e9, 64, 90
    ),
    "H200-141GB": GpuModel(
        "NVIDIA H200", 143771, 605, 700, 76, 120, 1980, 345, 3201, 3201, 132, 450e9, 18, 55e9, 62, 90
    ),
    "B200-180GB": GpuModel(
        "NVIDIA B200", 183359, 720, 1000, 140, 190, 1965, 120, 3996, 3996, 148, 900e9, 18, 55e9, 60, 92
    ),
    "L40S-48GB": GpuModel("NVIDIA L40S", 46068, 608, 350, 34, 75, 2520, 210, 9001, 405, 142, 0.0, 0, 25e9, 68, 92),
    "V100-32GB": GpuModel(
        "Tesla V100-SXM2-32GB", 32768, 450, 300, 40, 56, 1530, 135, 877, 877, 80, 150e9, 6, 12e9, 62, 87
    ),
}
"""name in a scenario -> model"""

INLET_CELSIUS = 27.0
"""Inlet temperature, in Celsius, at which ``temperature_full`` is stated."""
