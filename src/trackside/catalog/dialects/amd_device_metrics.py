"""AMD's device metrics exporter, with and without the prefix ``amd_`` that is often added to its names.

AMD's equivalents of NVIDIA's measurements map to the same metrics: XGMI to NVLink, hot spot (junction) temperature to
the GPU's temperature, vector ALU activity to SM activity.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label

_PERCENT, _MIB, _MHZ, _KIB = 0.01, float(1 << 20), 1e6, 1024.0
_TYPES = {"system": "sm", "gfx": "sm", "memory": "memory"}
"""Clock types with a metric of their own; written as here, or as ``GPU_CLOCK_TYPE_SYSTEM``."""
_CLOCKS, _MAX_CLOCKS = (
    tuple(
        ({"clock_type": spelling}, f"gpu_{name}_clock{suffix}_hertz")
        for clock_type, name in _TYPES.items()
        for spelling in (clock_type, f"GPU_CLOCK_TYPE_{clock_type.upper()}")
    )
    for suffix in ("", "_max")
)
_KINDS = {f"GPU_CLOCK_TYPE_{kind.upper()}": kind for kind in ("video", "data", "soc", "fabric", "dce", "pcie")}
_VIOLATIONS = {
    "processor_hot_residency": "processor_hot",
    "ppt_residency": "package_power",
    "socket_thermal_residency": "socket_thermal",
    "vr_thermal_residency": "vr_thermal",
    "hbm_thermal_residency": "hbm_thermal",
    "gfx_clock_below_host_limit_power": "host_limit_power",
    "gfx_clock_below_host_limit_thermal": "host_limit_thermal",
    "gfx_clock_below_host_limit_total": "host_limit",
    "low_utilization": "low_utilization",
}

_NAMES: Mapping[str, ForeignMetric] = {
    "gpu_nodes_total": ForeignMetric("gpu_visible_gpus"),
    "gpu_gfx_activity": ForeignMetric("gpu_utilization_ratio", _PERCENT),
    "gpu_umc_activity": ForeignMetric("gpu_memory_utilization_ratio", _PERCENT),
    "gpu_prof_gui_util_percent": ForeignMetric("gpu_engine_active_ratio", _PERCENT),
    "gpu_prof_sm_active": ForeignMetric("gpu_sm_active_ratio", _PERCENT),
    "gpu_prof_occupancy_percent": ForeignMetric("gpu_sm_occupancy_ratio", _PERCENT),
    "gpu_prof_tensor_active_percent": ForeignMetric("gpu_tensor_active_ratio", _PERCENT),
    "gpu_edge_temperature": ForeignMetric("gpu_temperature_celsius"),
    "gpu_junction_temperature": ForeignMetric("gpu_temperature_celsius"),
    "gpu_memory_temperature": ForeignMetric("gpu_memory_temperature_celsius"),
    "gpu_hbm_temperature": ForeignMetric("gpu_memory_temperature_celsius"),
    "gpu_package_power": ForeignMetric("gpu_power_watts"),
    "gpu_average_package_power": ForeignMetric("gpu_power_watts"),
    "gpu_power_usage": ForeignMetric("gpu_power_watts"),
    "gpu_energy_consumed": ForeignMetric("gpu_energy_joules_total", 1e-6),
    "gpu_clock": ForeignMetric("gpu_clock_hertz", _MHZ, cases=_CLOCKS),
    "gpu_max_clock": ForeignMetric("gpu_clock_max_hertz", _MHZ, cases=_MAX_CLOCKS),
    "gpu_total_vram": ForeignMetric("gpu_memory_total_bytes", _MIB),
    "gpu_used_vram": ForeignMetric("gpu_memory_used_bytes", _MIB),
    "gpu_free_vram": ForeignMetric("gpu_memory_free_bytes", _MIB),
    "gpu_ecc_correct_total": ForeignMetric("gpu_ecc_correctable_total"),
    "gpu_ecc_uncorrect_total": ForeignMetric("gpu_ecc_uncorrectable_total"),
    "gpu_health": ForeignMetric("gpu_healthy"),
    "gpu_afid_errors": ForeignMetric("gpu_ras_event_last"),
    "gpu_xgmi_link_tx": ForeignMetric("gpu_nvlink_tx_bytes_total", _KIB),
    "gpu_xgmi_link_rx": ForeignMetric("gpu_nvlink_rx_bytes_total", _KIB),
    "pcie_bandwidth": ForeignMetric("gpu_pcie_bytes_per_second", 125e3),
    "pcie_tx": ForeignMetric("gpu_pcie_tx_bytes_total"),
    "pcie_rx": ForeignMetric("gpu_pcie_rx_bytes_total"),
    "pcie_replay_count": ForeignMetric("gpu_pcie_replays_total"),
    "pcie_nack_sent_count": ForeignMetric("gpu_pcie_errors_total", labels={"kind": "nack_sent"}),
    "pcie_nack_received_count": ForeignMetric("gpu_pcie_errors_total", labels={"kind": "nack_received"}),
    **{
        f"gpu_violation_{name}_percentage": ForeignMetric("gpu_throttle_ratio", _PERCENT, {"reason": reason})
        for name, reason in _VIOLATIONS.items()
    },
}

DIALECT = Dialect(
    id="amd-device-metrics",
    title="AMD device metrics exporter",
    names={prefix + name: foreign for prefix in ("", "amd_") for name, foreign in _NAMES.items()},
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        **GPU_LABELS,
        "card_series": Label("gpu_model"),
        "card_model": Label("gpu_model"),
        "gpu_partition_id": Label("mig", "part"),
        "link_index": Label("link", "index"),
        "clock_type": Label("kind", values=_KINDS),
        "driver_version": Label("driver"),
    },
)
