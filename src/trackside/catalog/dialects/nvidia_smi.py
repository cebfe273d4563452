"""nvidia-smi's query fields (``--query-gpu``, ``--query-compute-apps``), and similar names for figures that only its other
layouts print (``pci.*``, ``gpm.*``). Factors are for numbers without a unit (``--format=csv,nounits``).

Source: ``nvidia-smi --help-query-gpu`` of drivers 590 and 595, including the older spellings that it lists after "or".
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label

_PERCENT, _MIB, _MHZ, _US = 0.01, float(1 << 20), 1e6, 1e-6

_PLAIN: Mapping[str, ForeignMetric] = {
    "pcie.link.gen.current": ForeignMetric("gpu_pcie_link_generation"),
    "pcie.link.gen.max": ForeignMetric("gpu_pcie_link_generation_max"),
    "pcie.link.width.current": ForeignMetric("gpu_pcie_link_width"),
    "pcie.link.width.max": ForeignMetric("gpu_pcie_link_width_max"),
    "gpu_recovery_action": ForeignMetric("gpu_recovery_action"),
    "fan.speed": ForeignMetric("gpu_fan_speed_ratio", _PERCENT),
    "pstate": ForeignMetric("gpu_pstate"),
    "clocks_event_reasons.active": ForeignMetric("gpu_throttle_reasons"),
    "memory.total": ForeignMetric("gpu_memory_total_bytes", _MIB),
    "memory.reserved": ForeignMetric("gpu_memory_reserved_bytes", _MIB),
    "memory.used": ForeignMetric("gpu_memory_used_bytes", _MIB),
    "memory.free": ForeignMetric("gpu_memory_free_bytes", _MIB),
    "utilization.gpu": ForeignMetric("gpu_utilization_ratio", _PERCENT),
    "utilization.memory": ForeignMetric("gpu_memory_utilization_ratio", _PERCENT),
    "utilization.encoder": ForeignMetric("gpu_encoder_utilization_ratio", _PERCENT),
    "utilization.decoder": ForeignMetric("gpu_decoder_utilization_ratio", _PERCENT),
    "utilization.jpeg": ForeignMetric("gpu_media_utilization_ratio", _PERCENT, {"kind": "jpeg"}),
    "utilization.ofa": ForeignMetric("gpu_media_utilization_ratio", _PERCENT, {"kind": "optical_flow"}),
    "ecc.errors.corrected.volatile.total": ForeignMetric("gpu_ecc_correctable_total"),
    "ecc.errors.corrected.aggregate.total": ForeignMetric("gpu_ecc_correctable_lifetime_total"),
    "ecc.errors.uncorrected.volatile.total": ForeignMetric("gpu_ecc_uncorrectable_total"),
    "ecc.errors.uncorrected.aggregate.total": ForeignMetric("gpu_ecc_uncorrectable_lifetime_total"),
    "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded": ForeignMetric("gpu_sram_threshold_exceeded"),
    "retired_pages.single_bit_ecc.count": ForeignMetric("gpu_pages_retired_total", labels={"cause": "single_bit"}),
    "retired_pages.double_bit.count": ForeignMetric("gpu_pages_retired_total", labels={"cause": "double_bit"}),
    "retired_pages.pending": ForeignMetric("gpu_pages_pending"),
    "remapped_rows.correctable": ForeignMetric("gpu_rows_remapped_correctable_total"),
    "remapped_rows.uncorrectable": ForeignMetric("gpu_rows_remapped_uncorrectable_total"),
    "remapped_rows.pending": ForeignMetric("gpu_row_remap_pending"),
    "remapped_rows.failure": ForeignMetric("gpu_row_remap_failed"),
    "temperature.gpu": ForeignMetric("gpu_temperature_celsius"),
    "temperature.gpu.tlimit": ForeignMetric("gpu_temperature_margin_celsius"),
    "temperature.memory": ForeignMetric("gpu_memory_temperature_celsius"),
    "power.draw": ForeignMetric("gpu_power_watts"),
    "power.draw.average": ForeignMetric("gpu_power_watts"),
    "power.draw.instant": ForeignMetric("gpu_power_watts"),
    "power.limit": ForeignMetric("gpu_power_limit_watts"),
    "enforced.power.limit": ForeignMetric("gpu_power_limit_watts"),
    "power.default_limit": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "default"}),
    "power.min_limit": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "min"}),
    "power.max_limit": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "max"}),
    "clocks.current.graphics": ForeignMetric("gpu_sm_clock_hertz", _MHZ),
    "clocks.current.sm": ForeignMetric("gpu_sm_clock_hertz", _MHZ),
    "clocks.current.memory": ForeignMetric("gpu_memory_clock_hertz", _MHZ),
    "clocks.current.video": ForeignMetric("gpu_clock_hertz", _MHZ, {"kind": "video"}),
    "clocks.applications.graphics": ForeignMetric("gpu_sm_clock_requested_hertz", _MHZ),
    "clocks.max.sm": ForeignMetric("gpu_sm_clock_max_hertz", _MHZ),
    "clocks.max.memory": ForeignMetric("gpu_memory_clock_max_hertz", _MHZ),
    "fabric.state": ForeignMetric("gpu_fabric_state"),
    **{
        f"remapped_rows.histogram.{level}": ForeignMetric("gpu_row_remap_banks", labels={"level": level})
        for level in ("max", "high", "partial", "low", "none")
    },
}

_OLDER: Mapping[str, str] = {
    "clocks_throttle_reasons.active": "clocks_event_reasons.active",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
    "remapped_rows.sbe": "remapped_rows.correctable",
    "remapped_rows.dbe": "remapped_rows.uncorrectable",
    "gpu.power.draw.average": "power.draw.average",
    "gpu.power.draw.instant": "power.draw.instant",
    "gpu.power.requested_limit": "power.limit",
    "gpu.power.current_limit": "enforced.power.limit",
    "gpu.power.default_limit": "power.default_limit",
    "gpu.power.min_limit": "power.min_limit",
    "gpu.power.max_limit": "power.max_limit",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.video": "clocks.current.video",
    "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.max.mem": "clocks.max.memory",
}

_REASONS = (
    "gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown",
    "hw_power_brake_slowdown", "sw_thermal_slowdown", "sync_boost",
)  # fmt: skip
_TIMED = ("sw_power_cap", "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_THROTTLES: Mapping[str, ForeignMetric] = {
    **{
        f"clocks_{word}_reasons.{reason}": ForeignMetric("gpu_throttle_active", labels={"reason": reason})
        for word in ("event", "throttle")
        for reason in _REASONS
    },
    **{
        f"clocks_event_reasons_counters.{reason}": ForeignMetric("gpu_throttle_seconds_total", _US, {"reason": reason})
        for reason in _TIMED
    },
}

_LOCATIONS: Mapping[str, str] = {
    "device_memory": "dram", "dram": "dram", "register_file": "register", "l1_cache": "l1", "l2_cache": "l2",
    "texture_memory": "texture", "cbu": "cbu", "sram": "sram", "sram.parity": "sram_parity",
    "sram.secded": "sram_secded", "sram.l2": "sram_l2", "sram.sm": "sram_sm", "sram.mcu": "sram_mcu",
    "sram.pcie": "sram_pcie", "sram.other": "sram_other",
}  # fmt: skip
_ECC: Mapping[str, ForeignMetric] = {
    f"ecc.errors.{kind}.{span}.{name}": ForeignMetric(
        "gpu_ecc_location_total",
        labels={
            "location": place,
            "kind": ("un" if kind == "uncorrected" else "")
            + ("correctable_lifetime" if span == "aggregate" else "correctable"),
        },
    )
    for kind in ("corrected", "uncorrected")
    for span in ("volatile", "aggregate")
    for name, place in _LOCATIONS.items()
}

FIELDS: Mapping[str, ForeignMetric] = {
    **_PLAIN,
    **{old: _PLAIN[new] for old, new in _OLDER.items()},
    **_THROTTLES,
    **_ECC,
}
"""Fields of ``--query-gpu``"""

GPM: Mapping[str, ForeignMetric] = {
    "gract": ForeignMetric("gpu_engine_active_ratio", _PERCENT),
    "smutil": ForeignMetric("gpu_sm_active_ratio", _PERCENT),
    "smocc": ForeignMetric("gpu_sm_occupancy_ratio", _PERCENT),
    "mmaact": ForeignMetric("gpu_tensor_active_ratio", _PERCENT),
    "dram": ForeignMetric("gpu_dram_active_ratio", _PERCENT),
    "intutil": ForeignMetric("gpu_pipe_active_ratio", _PERCENT, {"kind": "int"}),
    "fp64": ForeignMetric("gpu_pipe_active_ratio", _PERCENT, {"kind": "fp64"}),
    "fp32": ForeignMetric("gpu_pipe_active_ratio", _PERCENT, {"kind": "fp32"}),
    "fp16": ForeignMetric("gpu_pipe_active_ratio", _PERCENT, {"kind": "fp16"}),
    "pcitx": ForeignMetric("gpu_pcie_tx_bytes_per_second", _MIB),
    "pcirx": ForeignMetric("gpu_pcie_rx_bytes_per_second", _MIB),
    "nvltx": ForeignMetric("gpu_nvlink_tx_bytes_per_second", _MIB),
    "nvlrx": ForeignMetric("gpu_nvlink_rx_bytes_per_second", _MIB),
}
"""Columns of ``dmon --gpm-metrics``; ratios are in percent."""

# Printed only by -q, -q -x or dmon, not by query fields. KB/s is NVML's unit.
_OTHER_LAYOUTS: Mapping[str, ForeignMetric] = {
    "pci.replay_counter": ForeignMetric("gpu_pcie_replays_total"),
    "pci.tx_util": ForeignMetric("gpu_pcie_tx_bytes_per_second", 1e3),
    "pci.rx_util": ForeignMetric("gpu_pcie_rx_bytes_per_second", 1e3),
    **{f"gpm.{column}": foreign for column, foreign in GPM.items()},
    "bar1.total": ForeignMetric("gpu_bar1_total_bytes", _MIB),
    "bar1.used": ForeignMetric("gpu_bar1_used_bytes", _MIB),
    "bar1.free": ForeignMetric("gpu_bar1_free_bytes", _MIB),
    "used_gpu_memory": ForeignMetric("gpu_process_memory_used_bytes", _MIB),
    "used_memory": ForeignMetric("gpu_process_memory_used_bytes", _MIB),
}

DIALECT = Dialect(
    id="nvidia-smi",
    title="nvidia-smi",
    names={**FIELDS, **_OTHER_LAYOUTS},
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        **GPU_LABELS,
        "gpu_bus_id": Label("pci", "pci"),
        "name": Label("gpu_model"),
        "gpu_name": Label("gpu_model"),
        "mig": Label("mig"),
        "gpu_i_id": Label("mig"),
        "pid": Label("pid", "number"),
        "driver_version": Label("driver"),
    },
)
