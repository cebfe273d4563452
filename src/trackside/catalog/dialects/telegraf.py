"""Telegraf's nvidia_smi input, through any output that joins measurement and field: ``nvidia_smi_utilization_gpu``.

Fields are those of ``nvidia-smi -q -x`` in its units (MiB, percent, MHz, W; the PCIe rates in KB/s, reasons in
microseconds). Text fields, such as the flag of a failed remap, are not served as numbers. Names shared with
nvidia_gpu_exporter mean the same and are defined there. Values of MIG instances (``nvidia_smi_mig_...``) don't name
their GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.dialects.nvidia_gpu_exporter import DIALECT as EXPORTER
from trackside.catalog.dialects.nvidia_smi import FIELDS

_MHZ, _KB, _US = 1e6, 1e3, 1e-6

_SAME = (
    "fan.speed", "memory.total", "memory.used", "memory.free", "memory.reserved", "utilization.gpu",
    "utilization.memory", "utilization.encoder", "utilization.decoder", "utilization.jpeg", "utilization.ofa",
    "pcie.link.gen.current", "pcie.link.width.current", "remapped_rows.correctable", "remapped_rows.uncorrectable",
    "temperature.gpu", "temperature.memory", "power.draw", "power.draw.average", "power.limit", "clocks.current.sm",
    "clocks.current.memory", "clocks.current.video",
)  # fmt: skip
"""Fields with the same name as in nvidia-smi's queries, except for the dots."""
_OWN: Mapping[str, ForeignMetric] = {
    "clocks_current_graphics": ForeignMetric("gpu_clock_hertz", _MHZ, {"kind": "graphics"}),
    "temperature_gpu_tlimit": ForeignMetric("gpu_temperature_margin_celsius"),
    "retired_pages_multiple_single_bit": ForeignMetric("gpu_pages_retired_total", labels={"cause": "single_bit"}),
    "retired_pages_double_bit": ForeignMetric("gpu_pages_retired_total", labels={"cause": "double_bit"}),
    "pcie_tx_util": ForeignMetric("gpu_pcie_tx_bytes_per_second", _KB),
    "pcie_rx_util": ForeignMetric("gpu_pcie_rx_bytes_per_second", _KB),
    "power_limit_default": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "default"}),
    "power_limit_min": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "min"}),
    "power_limit_max": ForeignMetric("gpu_power_limit_range_watts", labels={"kind": "max"}),
}
_REASONS = {
    "sw_power_cap": "sw_power_cap", "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown", "hw_power_brake": "hw_power_brake_slowdown", "sync_boost": "sync_boost",
}  # fmt: skip
_COUNTED: Mapping[str, ForeignMetric] = {
    f"clocks_event_reasons_counters_{field}": ForeignMetric("gpu_throttle_seconds_total", _US, {"reason": reason})
    for field, reason in _REASONS.items()
}
_ECC: Mapping[str, ForeignMetric] = {
    f"ecc_errors_{span}_{place}_{kind}": ForeignMetric(
        "gpu_ecc_location_total",
        labels={"location": place, "kind": kind + ("_lifetime" if span == "aggregate" else "")},
    )
    for span in ("volatile", "aggregate")
    for place in ("dram", "sram")
    for kind in ("correctable", "uncorrectable")
}


def _names() -> Mapping[str, ForeignMetric]:
    renamed = {field.replace(".", "_"): FIELDS[field] for field in _SAME}
    names = {f"nvidia_smi_{name}": foreign for name, foreign in {**renamed, **_OWN, **_COUNTED, **_ECC}.items()}
    return {name: foreign for name, foreign in names.items() if name not in EXPORTER.names}


DIALECT = Dialect(id="telegraf", title="Telegraf (nvidia_smi)", names=_names(), labels=EXPORTER.labels)
