"""nvidia_gpu_prometheus_exporter and Princeton's fork for jobstats: ``nvidia_gpu_...``, readings of NVML.

The original metrics are in percent, milliwatts and MHz. The fork's metrics from NVML's performance monitoring (GPM,
Hopper and newer) are named percent but are 0..1. ``ordinal`` is NVML's index, as in nvidia-smi and DCGM;
``minor_number`` is the number of /dev/nvidia*, which may differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label

_PERCENT, _MHZ, _MILLI = 0.01, 1e6, 1e-3

_NAMES: Mapping[str, ForeignMetric] = {
    "num_devices": ForeignMetric("gpu_visible_gpus"),
    "memory_used_bytes": ForeignMetric("gpu_memory_used_bytes"),
    "memory_total_bytes": ForeignMetric("gpu_memory_total_bytes"),
    "duty_cycle": ForeignMetric("gpu_utilization_ratio", _PERCENT),
    "power_usage_milliwatts": ForeignMetric("gpu_power_watts", _MILLI),
    "temperature_celsius": ForeignMetric("gpu_temperature_celsius"),
    "fanspeed_percent": ForeignMetric("gpu_fan_speed_ratio", _PERCENT),
    "clock": ForeignMetric(
        "gpu_clock_hertz",
        _MHZ,
        cases=(({"type": "sm"}, "gpu_sm_clock_hertz"), ({"type": "mem"}, "gpu_memory_clock_hertz")),
    ),
    "clock_event_reason": ForeignMetric("gpu_throttle_reasons"),
    "ecc_errors": ForeignMetric(
        "gpu_ecc_correctable_total",
        cases=(
            ({"error": "uncorrected", "counter": "volatile"}, "gpu_ecc_uncorrectable_total"),
            ({"error": "uncorrected", "counter": "aggregate"}, "gpu_ecc_uncorrectable_lifetime_total"),
            ({"error": "corrected", "counter": "aggregate"}, "gpu_ecc_correctable_lifetime_total"),
        ),
    ),
    "graphics_util_percent": ForeignMetric("gpu_engine_active_ratio", guess="ratio"),
    "sm_util_percent": ForeignMetric("gpu_sm_active_ratio", guess="ratio"),
    "sm_occupancy_percent": ForeignMetric("gpu_sm_occupancy_ratio", guess="ratio"),
    "any_tensor_util_percent": ForeignMetric("gpu_tensor_active_ratio", guess="ratio"),
    "dram_bw_util_percent": ForeignMetric("gpu_dram_active_ratio", guess="ratio"),
    "integer_util": ForeignMetric("gpu_pipe_active_ratio", labels={"kind": "int"}, guess="ratio"),
    "fp64_util_percent": ForeignMetric("gpu_pipe_active_ratio", labels={"kind": "fp64"}, guess="ratio"),
    "fp32_util_percent": ForeignMetric("gpu_pipe_active_ratio", labels={"kind": "fp32"}, guess="ratio"),
    "fp16_util_percent": ForeignMetric("gpu_pipe_active_ratio", labels={"kind": "fp16"}, guess="ratio"),
    "pcie_tx_per_sec": ForeignMetric("gpu_pcie_tx_bytes_per_second"),
    "pcie_rx_per_sec": ForeignMetric("gpu_pcie_rx_bytes_per_second"),
    "nvlink_total_tx_per_sec": ForeignMetric("gpu_nvlink_tx_bytes_per_second"),
    "nvlink_total_rx_per_sec": ForeignMetric("gpu_nvlink_rx_bytes_per_second"),
}

DIALECT = Dialect(
    id="nvidia-gpu-prometheus-exporter",
    title="nvidia_gpu_prometheus_exporter (jobstats)",
    names={f"nvidia_gpu_{name}": foreign for name, foreign in _NAMES.items()},
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        "ordinal": Label("gpu", "index"),
        **GPU_LABELS,
        "name": Label("gpu_model"),
        "gpu_i_id": Label("mig"),
        "type": Label("kind"),
    },
    unneeded=("nvidia_gpu_jobUid", "nvidia_gpu_last_error"),
)
