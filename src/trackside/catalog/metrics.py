"""Every metric once: unit, kind, labels, meaning. Foreign names are mapped to these in :mod:`trackside.catalog.dialects`.

Names follow the Prometheus conventions: base units, ``_total`` for counters, ``_ratio`` for 0..1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "sticky", "flags"]
"""gauge: a level. counter: only rises, but restarts at 0. sticky: keeps its last value until the exporter restarts,
so that only a change says anything. flags: bits of an integer."""

DESCRIPTIVE = frozenset({"job", "gpu_uuid", "gpu_model", "pci", "source", "user", "driver"})
"""Labels that describe a curve's owner for a while; all others are part of its identity."""


@dataclass(frozen=True, slots=True)
class Metric:
    """``labels``: those that it may carry beside node and gpu. ``collect``: how to get it, where it's often missing."""

    unit: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    collect: str = ""


_PROFILING = "dcgm-exporter gives it when its counters file lists {} (profiling fields are off by default)"


def _profiled(field: str, meaning: str) -> Metric:
    return Metric("ratio", "gauge", meaning, collect=_PROFILING.format(field))


METRICS: Mapping[str, Metric] = {
    "gpu_engine_active_ratio": _profiled(
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "share of time any kernel was resident; a busy-wait counts as well"
    ),
    "gpu_utilization_ratio": Metric(
        "ratio", "gauge", "NVML utilisation: share of time with a kernel resident; proves no work"
    ),
    "gpu_sm_active_ratio": _profiled(
        "DCGM_FI_PROF_SM_ACTIVE", "share of SM cycles with at least one warp assigned: the measure of work"
    ),
    "gpu_sm_occupancy_ratio": _profiled("DCGM_FI_PROF_SM_OCCUPANCY", "resident warps over the most possible"),
    "gpu_tensor_active_ratio": _profiled("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "share of cycles the tensor pipe was busy"),
    "gpu_dram_active_ratio": _profiled("DCGM_FI_PROF_DRAM_ACTIVE", "share of cycles device memory moved data"),
    "gpu_memory_used_bytes": Metric("bytes", "gauge", "device memory in use by all processes"),
    "gpu_memory_free_bytes": Metric("bytes", "gauge", "device memory not in use"),
    "gpu_memory_total_bytes": Metric("bytes", "gauge", "device memory in all"),
    "gpu_temperature_celsius": Metric("C", "gauge", "GPU core temperature"),
    "gpu_memory_temperature_celsius": Metric("C", "gauge", "device memory temperature"),
    "gpu_power_watts": Metric("W", "gauge", "power draw"),
    "gpu_power_limit_watts": Metric("W", "gauge", "power limit in force"),
    "gpu_energy_joules_total": Metric("J", "counter", "energy since the driver was loaded"),
    "gpu_sm_clock_hertz": Metric("Hz", "gauge", "SM clock"),
    "gpu_sm_clock_max_hertz": Metric("Hz", "gauge", "highest SM clock of this GPU"),
    "gpu_memory_clock_hertz": Metric("Hz", "gauge", "memory clock"),
    "gpu_throttle_reasons": Metric("flags", "flags", "why clocks are held down; bits in trackside.catalog.throttle"),
    "gpu_throttle_seconds_total": Metric("s", "counter", "time clocks were held down", ("reason",)),
    "gpu_pstate": Metric("state", "gauge", "performance state, 0 the highest"),
    "gpu_xid_last": Metric("code", "sticky", "last Xid seen since the exporter started; 0 for none"),
    "gpu_ecc_correctable_total": Metric("errors", "counter", "correctable ECC errors since the driver was loaded"),
    "gpu_ecc_uncorrectable_total": Metric("errors", "counter", "uncorrectable ECC errors since the driver was loaded"),
    "gpu_ecc_correctable_lifetime_total": Metric("errors", "counter", "correctable ECC errors of the GPU's life"),
    "gpu_ecc_uncorrectable_lifetime_total": Metric("errors", "counter", "uncorrectable ECC errors of the GPU's life"),
    "gpu_rows_remapped_correctable_total": Metric("rows", "counter", "memory rows remapped for correctable errors"),
    "gpu_rows_remapped_uncorrectable_total": Metric("rows", "counter", "memory rows remapped for uncorrectable errors"),
    "gpu_row_remap_pending": Metric("bool", "gauge", "a remapping waits for a reset"),
    "gpu_row_remap_failed": Metric("bool", "gauge", "a remapping failed: the GPU must be replaced"),
    "gpu_pages_retired_total": Metric("pages", "counter", "memory pages retired", ("cause",)),
    "gpu_nvlink_errors_total": Metric("errors", "counter", "NVLink errors", ("kind", "link")),
    "gpu_nvlink_tx_bytes_per_second": Metric("B/s", "gauge", "NVLink bytes sent"),
    "gpu_nvlink_rx_bytes_per_second": Metric("B/s", "gauge", "NVLink bytes received"),
    "gpu_pcie_tx_bytes_per_second": Metric("B/s", "gauge", "PCIe bytes sent by the GPU"),
    "gpu_pcie_rx_bytes_per_second": Metric("B/s", "gauge", "PCIe bytes received by the GPU"),
    "gpu_pcie_replays_total": Metric("replays", "counter", "PCIe packets sent again"),
    "gpu_health": Metric("code", "gauge", "health roll-up of the monitor: 0 pass, 10 warn, 20 fail"),
    "host_cpu_seconds_total": Metric("s", "counter", "CPU time of all cores by mode", ("mode", "cpu")),
    "host_cpu_busy_ratio": Metric("ratio", "gauge", "share of CPU time not idle"),
    "host_cpus": Metric("cpus", "gauge", "logical CPUs"),
    "host_load1": Metric("tasks", "gauge", "run queue and uninterruptible tasks, 1-minute average"),
    "host_memory_total_bytes": Metric("bytes", "gauge", "host memory in all"),
    "host_memory_available_bytes": Metric("bytes", "gauge", "host memory a new process could have"),
    "host_oom_kills_total": Metric("kills", "counter", "processes killed by the kernel for want of memory"),
    "host_pressure_seconds_total": Metric("s", "counter", "time tasks stalled", ("resource", "level")),
    "host_disk_busy_seconds_total": Metric("s", "counter", "time a disk was busy", ("device",)),
    "host_disk_read_bytes_total": Metric("bytes", "counter", "bytes read from a disk", ("device",)),
    "host_disk_written_bytes_total": Metric("bytes", "counter", "bytes written to a disk", ("device",)),
    "host_filesystem_free_bytes": Metric("bytes", "gauge", "space left", ("mountpoint",)),
    "host_filesystem_total_bytes": Metric("bytes", "gauge", "space in all", ("mountpoint",)),
    "host_network_tx_bytes_total": Metric("bytes", "counter", "bytes sent", ("device",)),
    "host_network_rx_bytes_total": Metric("bytes", "counter", "bytes received", ("device",)),
    "host_infiniband_tx_bytes_total": Metric("bytes", "counter", "bytes sent on a port", ("device", "port")),
    "host_infiniband_rx_bytes_total": Metric("bytes", "counter", "bytes received on a port", ("device", "port")),
    "host_boot_time_seconds": Metric("time", "gauge", "POSIX time of the last boot"),
    "host_time_seconds": Metric("time", "gauge", "the node's own clock when it was sampled"),
    "scrape_up": Metric("bool", "gauge", "whether the exporter answered", ("target",)),
    "training_loss": Metric("", "gauge", "training loss"),
    "training_gradient_norm": Metric("", "gauge", "gradient norm"),
    "training_learning_rate": Metric("", "gauge", "learning rate"),
    "training_step": Metric("steps", "gauge", "steps done"),
    "training_step_seconds": Metric("s", "gauge", "wall time of a step; of one rank's own work where rank is given"),
    "training_samples_per_second": Metric("samples/s", "gauge", "throughput"),
    "training_tokens_per_second": Metric("tokens/s", "gauge", "throughput"),
    "training_data_loading_ratio": Metric("ratio", "gauge", "share of a step spent waiting for data"),
    "training_model_flops_utilization_ratio": Metric("ratio", "gauge", "model FLOPs over the hardware's peak"),
    "training_all_reduce_seconds": Metric("s", "gauge", "time of gradient synchronisation a step"),
    "trackside_cuda_kernel_launches_total": Metric("launches", "counter", "kernel launches since the process started"),
    "trackside_cuda_api_seconds_total": Metric("s", "counter", "time in CUDA API calls", ("api",)),
    "trackside_cuda_api_calls_total": Metric("calls", "counter", "CUDA API calls", ("api",)),
    "trackside_cuda_memcpy_bytes_total": Metric("bytes", "counter", "bytes copied", ("direction",)),
    "trackside_nccl_collectives_started_total": Metric("collectives", "counter", "collectives begun", ("op", "comm")),
    "trackside_nccl_collectives_completed_total": Metric("collectives", "counter", "collectives done", ("op", "comm")),
    "trackside_nccl_collective_seconds_total": Metric("s", "counter", "time in collectives", ("op", "comm")),
    "trackside_nccl_communicators": Metric("communicators", "gauge", "live communicators"),
    "trackside_gpu_process_attached": Metric("bool", "gauge", "1 while a process holds a CUDA context"),
    "trackside_tracer_attached": Metric("bool", "gauge", "whether tracing saw this process at all"),
    "trackside_tracer_lost_events_total": Metric("events", "counter", "events the tracer could not keep"),
    "trackside_collector_success": Metric("bool", "gauge", "whether a collector worked", ("collector",)),
    "trackside_collector_seconds": Metric("s", "gauge", "time a collector took", ("collector",)),
}
"""our name -> what it is"""
