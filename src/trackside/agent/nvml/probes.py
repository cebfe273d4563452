"""The NVML calls that read a GPU. Each probe yields (metric, further labels, value).

Values that hardly change are read every few minutes and repeated in each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from trackside.agent.nvml.fields import LINK_COUNTERS, MAX_LINKS
from trackside.agent.source import Labels

ProbeValue = tuple[str, Labels, float]
ProbeReader = Callable[[Any, Any], Iterator[ProbeValue]]
"""(nvidia-ml-py, handle) -> values. Raises NVMLError."""
SLOW_S, STATIC_S = 60.0, 600.0
"""How long values that change slowly, and values that hardly ever change, are reused."""


@dataclass(frozen=True, slots=True)
class NvmlProbe:
    """One NVML call. ``reuse_s``: how long its values are reused."""

    name: str
    read: ProbeReader
    metrics: tuple[str, ...]
    reuse_s: float = 0.0


def _number_probe(
    function: str, metric: str, scale: float = 1.0, *arguments: int, reuse_s: float = 0.0, kind: str = ""
) -> NvmlProbe:
    """A probe of a function that returns one number."""
    labels = (("kind", kind),) if kind else ()

    def read(api: Any, handle: Any) -> Iterator[ProbeValue]:
        yield metric, labels, getattr(api, function)(handle, *arguments) * scale

    label = kind or ", ".join(map(str, arguments))
    return NvmlProbe(f"{function}({label})" if label else function, read, (metric,), reuse_s)


def _percentage_probe(function: str, metric: str) -> NvmlProbe:
    """A probe of a function that returns a percentage and its sampling period."""

    def read(api: Any, handle: Any) -> Iterator[ProbeValue]:
        yield metric, (), getattr(api, function)(handle)[0] / 100

    return NvmlProbe(function, read, (metric,))


def _memory(api: Any, handle: Any) -> Iterator[ProbeValue]:
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2)
        yield "gpu_memory_reserved_bytes", (), memory.reserved
    except api.NVMLError_FunctionNotFound:  # drivers before 510 count reserved memory as used
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    yield "gpu_memory_used_bytes", (), memory.used
    yield "gpu_memory_free_bytes", (), memory.free
    yield "gpu_memory_total_bytes", (), memory.total


def _utilization(api: Any, handle: Any) -> Iterator[ProbeValue]:
    rates = api.nvmlDeviceGetUtilizationRates(handle)
    yield "gpu_utilization_ratio", (), rates.gpu / 100
    yield "gpu_memory_utilization_ratio", (), rates.memory / 100


def _reasons(api: Any, handle: Any) -> Iterator[ProbeValue]:
    try:
        bits = api.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except api.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    yield "gpu_throttle_reasons", (), bits


def _bar1(api: Any, handle: Any) -> Iterator[ProbeValue]:
    memory = api.nvmlDeviceGetBAR1MemoryInfo(handle)
    yield "gpu_bar1_used_bytes", (), memory.bar1Used
    yield "gpu_bar1_total_bytes", (), memory.bar1Total


def _power_range(api: Any, handle: Any) -> Iterator[ProbeValue]:
    low, high = api.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    yield "gpu_power_limit_range_watts", (("kind", "min"),), low / 1000
    yield "gpu_power_limit_range_watts", (("kind", "max"),), high / 1000


def _banks(api: Any, handle: Any) -> Iterator[ProbeValue]:
    counts = api.nvmlDeviceGetRowRemapperHistogram(handle)
    for level in ("max", "high", "partial", "low", "none"):
        yield "gpu_row_remap_banks", (("level", level),), getattr(counts, level)


def _sram(api: Any, handle: Any) -> Iterator[ProbeValue]:
    status = api.c_nvmlEccSramErrorStatus_v1_t()
    api.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    yield "gpu_sram_threshold_exceeded", (), min(status.bThresholdExceeded, 1)


def _fabric(api: Any, handle: Any) -> Iterator[ProbeValue]:
    info = api.c_nvmlGpuFabricInfo_v2_t()
    api.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if info.state != api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        yield "gpu_fabric_state", (), info.state


def _faulty_links(api: Any, handle: Any) -> Iterator[ProbeValue]:
    """Errors of each link that has any."""
    for link in range(MAX_LINKS):
        try:
            if not api.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except api.NVMLError as error:
            if error.value in (api.NVML_ERROR_INVALID_ARGUMENT, api.NVML_ERROR_NOT_SUPPORTED):
                return  # past the last link
            raise
        for counter, kind in LINK_COUNTERS:
            if count := api.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter):
                yield "gpu_nvlink_errors_total", (("kind", kind), ("link", str(link))), count


FAULTY_LINKS = NvmlProbe("nvmlDeviceGetNvLinkErrorCounter", _faulty_links, ("gpu_nvlink_errors_total",), SLOW_S)
"""Read if the total of all links is not 0."""

PROBES: tuple[NvmlProbe, ...] = (
    NvmlProbe(
        "nvmlDeviceGetMemoryInfo",
        _memory,
        (
            "gpu_memory_used_bytes",
            "gpu_memory_free_bytes",
            "gpu_memory_total_bytes",
            "gpu_memory_reserved_bytes",
        ),
    ),
    NvmlProbe("nvmlDeviceGetUtilizationRates", _utilization, ("gpu_utilization_ratio", "gpu_memory_utilization_ratio")),
    _percentage_probe("nvmlDeviceGetEncoderUtilization", "gpu_encoder_utilization_ratio"),
    _percentage_probe("nvmlDeviceGetDecoderUtilization", "gpu_decoder_utilization_ratio"),
    _number_probe("nvmlDeviceGetClockInfo", "gpu_sm_clock_hertz", 1e6, 1),
    _number_probe("nvmlDeviceGetClockInfo", "gpu_memory_clock_hertz", 1e6, 2),
    NvmlProbe("nvmlDeviceGetCurrentClocksEventReasons", _reasons, ("gpu_throttle_reasons",)),
    _number_probe("nvmlDeviceGetTemperature", "gpu_temperature_celsius", 1.0, 0),
    _number_probe("nvmlDeviceGetMarginTemperature", "gpu_temperature_margin_celsius"),
    _number_probe("nvmlDeviceGetPowerUsage", "gpu_power_watts", 1e-3),
    _number_probe("nvmlDeviceGetEnforcedPowerLimit", "gpu_power_limit_watts", 1e-3),
    _number_probe("nvmlDeviceGetPerformanceState", "gpu_pstate"),
    _number_probe("nvmlDeviceGetCurrPcieLinkGeneration", "gpu_pcie_link_generation"),
    _number_probe("nvmlDeviceGetCurrPcieLinkWidth", "gpu_pcie_link_width"),
    NvmlProbe("nvmlDeviceGetRowRemapperHistogram", _banks, ("gpu_row_remap_banks",), SLOW_S),
    NvmlProbe("nvmlDeviceGetSramEccErrorStatus", _sram, ("gpu_sram_threshold_exceeded",), SLOW_S),
    NvmlProbe("nvmlDeviceGetGpuFabricInfoV", _fabric, ("gpu_fabric_state",), SLOW_S),
    NvmlProbe("nvmlDeviceGetBAR1MemoryInfo", _bar1, ("gpu_bar1_used_bytes", "gpu_bar1_total_bytes"), SLOW_S),
    _number_probe("nvmlDeviceGetMaxClockInfo", "gpu_sm_clock_max_hertz", 1e6, 1, reuse_s=STATIC_S),
    _number_probe("nvmlDeviceGetMaxClockInfo", "gpu_memory_clock_max_hertz", 1e6, 2, reuse_s=STATIC_S),
    *(
        _number_probe(
            "nvmlDeviceGetTemperatureThreshold",
            "gpu_temperature_limit_celsius",
            1.0,
            index,
            reuse_s=STATIC_S,
            kind=kind,
        )
        for index, kind in enumerate(("shutdown", "slowdown", "memory_operating", "operating"))
    ),
    NvmlProbe("nvmlDeviceGetPowerManagementLimitConstraints", _power_range, ("gpu_power_limit_range_watts",), STATIC_S),
    _number_probe(
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "gpu_power_limit_range_watts",
        1e-3,
        reuse_s=STATIC_S,
        kind="default",
    ),
    _number_probe("nvmlDeviceGetMaxPcieLinkGeneration", "gpu_pcie_link_generation_max", reuse_s=STATIC_S),
    _number_probe("nvmlDeviceGetMaxPcieLinkWidth", "gpu_pcie_link_width_max", reuse_s=STATIC_S),
)

# NVML measures the bus for 20 ms per call. GPUs with GPM report it there; others have only these calls.
THROUGHPUT = (
    _number_probe("nvmlDeviceGetPcieThroughput", "gpu_pcie_tx_bytes_per_second", 1e3, 0),
    _number_probe("nvmlDeviceGetPcieThroughput", "gpu_pcie_rx_bytes_per_second", 1e3, 1),
)


def probes_of(api: Any, handle: Any) -> tuple[NvmlProbe, ...]:
    """The probes of this GPU."""
    try:
        has_gpm = bool(api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except api.NVMLError:
        has_gpm = False
    return PROBES if has_gpm else (*PROBES, *THROUGHPUT)
