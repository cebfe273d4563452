"""What a GPU is asked, call by call. Each probe gives (metric, labels of its own, value) triples.

Some things hardly change: they are asked every few minutes and given at each reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from trackside.agent.nvml.fields import LINK_COUNTERS, MOST_LINKS
from trackside.agent.source import Labels

Given = tuple[str, Labels, float]
Ask = Callable[[Any, Any], Iterator[Given]]
"""nvidia-ml-py and a handle -> what the GPU says. Raises NVMLError."""
SELDOM_S, RARELY_S = 60.0, 600.0


@dataclass(frozen=True, slots=True)
class Probe:
    """``after_s``: how long an answer is good."""

    name: str
    ask: Ask
    metrics: tuple[str, ...]
    after_s: float = 0.0


def _one(
    function: str, metric: str, scale: float = 1.0, *arguments: int, after_s: float = 0.0, kind: str = ""
) -> Probe:
    """A function that gives one number."""
    labels = (("kind", kind),) if kind else ()

    def ask(api: Any, handle: Any) -> Iterator[Given]:
        yield metric, labels, getattr(api, function)(handle, *arguments) * scale

    asked = kind or ", ".join(map(str, arguments))
    return Probe(f"{function}({asked})" if asked else function, ask, (metric,), after_s)


def _share(function: str, metric: str) -> Probe:
    """A function that gives a share in per cent, and over which time."""

    def ask(api: Any, handle: Any) -> Iterator[Given]:
        yield metric, (), getattr(api, function)(handle)[0] / 100

    return Probe(function, ask, (metric,))


def _memory(api: Any, handle: Any) -> Iterator[Given]:
    try:
        memory = api.nvmlDeviceGetMemoryInfo(handle, api.nvmlMemory_v2)
        yield "gpu_memory_reserved_bytes", (), memory.reserved
    except api.NVMLError_FunctionNotFound:  # drivers before 510 count what is reserved as used
        memory = api.nvmlDeviceGetMemoryInfo(handle)
    yield "gpu_memory_used_bytes", (), memory.used
    yield "gpu_memory_free_bytes", (), memory.free
    yield "gpu_memory_total_bytes", (), memory.total


def _utilization(api: Any, handle: Any) -> Iterator[Given]:
    rates = api.nvmlDeviceGetUtilizationRates(handle)
    yield "gpu_utilization_ratio", (), rates.gpu / 100
    yield "gpu_memory_utilization_ratio", (), rates.memory / 100


def _reasons(api: Any, handle: Any) -> Iterator[Given]:
    try:
        bits = api.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except api.NVMLError_FunctionNotFound:  # its name before driver 535
        bits = api.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    yield "gpu_throttle_reasons", (), bits


def _bar1(api: Any, handle: Any) -> Iterator[Given]:
    memory = api.nvmlDeviceGetBAR1MemoryInfo(handle)
    yield "gpu_bar1_used_bytes", (), memory.bar1Used
    yield "gpu_bar1_total_bytes", (), memory.bar1Total


def _power_range(api: Any, handle: Any) -> Iterator[Given]:
    low, high = api.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    yield "gpu_power_limit_range_watts", (("kind", "min"),), low / 1000
    yield "gpu_power_limit_range_watts", (("kind", "max"),), high / 1000


def _banks(api: Any, handle: Any) -> Iterator[Given]:
    counts = api.nvmlDeviceGetRowRemapperHistogram(handle)
    for level in ("max", "high", "partial", "low", "none"):
        yield "gpu_row_remap_banks", (("level", level),), getattr(counts, level)


def _sram(api: Any, handle: Any) -> Iterator[Given]:
    status = api.c_nvmlEccSramErrorStatus_v1_t()
    api.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    yield "gpu_sram_threshold_exceeded", (), min(status.bThresholdExceeded, 1)


def _fabric(api: Any, handle: Any) -> Iterator[Given]:
    info = api.c_nvmlGpuFabricInfo_v2_t()
    api.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    if info.state != api.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
        yield "gpu_fabric_state", (), info.state


def _faulty_links(api: Any, handle: Any) -> Iterator[Given]:
    """Errors link by link, of those links that have any."""
    for link in range(MOST_LINKS):
        try:
            if not api.nvmlDeviceGetNvLinkState(handle, link):
                continue
        except api.NVMLError as error:
            if error.value in (api.NVML_ERROR_INVALID_ARGUMENT, api.NVML_ERROR_NOT_SUPPORTED):
                return  # behind the last one
            raise
        for counter, kind in LINK_COUNTERS:
            if count := api.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter):
                yield "gpu_nvlink_errors_total", (("kind", kind), ("link", str(link))), count


FAULTY_LINKS = Probe("nvmlDeviceGetNvLinkErrorCounter", _faulty_links, ("gpu_nvlink_errors_total",), SELDOM_S)
"""Asked where the errors of all links together are more than none."""

PROBES: tuple[Probe, ...] = (
    Probe(
        "nvmlDeviceGetMemoryInfo",
        _memory,
        (
            "gpu_memory_used_bytes",
            "gpu_memory_free_bytes",
            "gpu_memory_total_bytes",
            "gpu_memory_reserved_bytes",
        ),
    ),
    Probe("nvmlDeviceGetUtilizationRates", _utilization, ("gpu_utilization_ratio", "gpu_memory_utilization_ratio")),
    _share("nvmlDeviceGetEncoderUtilization", "gpu_encoder_utilization_ratio"),
    _share("nvmlDeviceGetDecoderUtilization", "gpu_decoder_utilization_ratio"),
    _one("nvmlDeviceGetClockInfo", "gpu_sm_clock_hertz", 1e6, 1),
    _one("nvmlDeviceGetClockInfo", "gpu_memory_clock_hertz", 1e6, 2),
    Probe("nvmlDeviceGetCurrentClocksEventReasons", _reasons, ("gpu_throttle_reasons",)),
    _one("nvmlDeviceGetTemperature", "gpu_temperature_celsius", 1.0, 0),
    _one("nvmlDeviceGetMarginTemperature", "gpu_temperature_margin_celsius"),
    _one("nvmlDeviceGetPowerUsage", "gpu_power_watts", 1e-3),
    _one("nvmlDeviceGetEnforcedPowerLimit", "gpu_power_limit_watts", 1e-3),
    _one("nvmlDeviceGetPerformanceState", "gpu_pstate"),
    _one("nvmlDeviceGetCurrPcieLinkGeneration", "gpu_pcie_link_generation"),
    _one("nvmlDeviceGetCurrPcieLinkWidth", "gpu_pcie_link_width"),
    Probe("nvmlDeviceGetRowRemapperHistogram", _banks, ("gpu_row_remap_banks",), SELDOM_S),
    Probe("nvmlDeviceGetSramEccErrorStatus", _sram, ("gpu_sram_threshold_exceeded",), SELDOM_S),
    Probe("nvmlDeviceGetGpuFabricInfoV", _fabric, ("gpu_fabric_state",), SELDOM_S),
    Probe("nvmlDeviceGetBAR1MemoryInfo", _bar1, ("gpu_bar1_used_bytes", "gpu_bar1_total_bytes"), SELDOM_S),
    _one("nvmlDeviceGetMaxClockInfo", "gpu_sm_clock_max_hertz", 1e6, 1, after_s=RARELY_S),
    _one("nvmlDeviceGetMaxClockInfo", "gpu_memory_clock_max_hertz", 1e6, 2, after_s=RARELY_S),
    *(
        _one("nvmlDeviceGetTemperatureThreshold", "gpu_temperature_limit_celsius", 1.0, at, after_s=RARELY_S, kind=kind)
        for at, kind in enumerate(("shutdown", "slowdown", "memory_operating", "operating"))
    ),
    Probe("nvmlDeviceGetPowerManagementLimitConstraints", _power_range, ("gpu_power_limit_range_watts",), RARELY_S),
    _one(
        "nvmlDeviceGetPowerManagementDefaultLimit",
        "gpu_power_limit_range_watts",
        1e-3,
        after_s=RARELY_S,
        kind="default",
    ),
    _one("nvmlDeviceGetMaxPcieLinkGeneration", "gpu_pcie_link_generation_max", after_s=RARELY_S),
    _one("nvmlDeviceGetMaxPcieLinkWidth", "gpu_pcie_link_width_max", after_s=RARELY_S),
)

# NVML watches the bus for 20 ms a call. GPUs with GPM are asked there; these have nothing else.
THROUGHPUT = (
    _one("nvmlDeviceGetPcieThroughput", "gpu_pcie_tx_bytes_per_second", 1e3, 0),
    _one("nvmlDeviceGetPcieThroughput", "gpu_pcie_rx_bytes_per_second", 1e3, 1),
)


def probes_of(api: Any, handle: Any) -> tuple[Probe, ...]:
    """What this GPU is asked."""
    try:
        profiled = bool(api.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except api.NVMLError:
        profiled = False
    return PROBES if profiled else (*PROBES, *THROUGHPUT)
