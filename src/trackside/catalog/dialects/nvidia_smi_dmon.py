"""Columns of ``nvidia-smi dmon`` and ``pmon``, prefixed with the tool's name: ``dmon.sm``, ``pmon.fb``.

``sm`` and ``mem`` are NVML's utilization despite their names; only the GPM columns (``--gpm-metrics``) measure work.
Units are those of the second heading line; "MB" of memory means MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.dialects.nvidia_smi import GPM
from trackside.catalog.labels import GPU_LABELS, MACHINE_LABELS, Label

_PERCENT, _MIB, _MHZ, _MB_S = 0.01, float(1 << 20), 1e6, 1e6

_DMON: Mapping[str, ForeignMetric] = {
    "pwr": ForeignMetric("gpu_power_watts"),
    "temp": ForeignMetric("gpu_temperature_celsius"),
    "gtemp": ForeignMetric("gpu_temperature_celsius"),
    "mtemp": ForeignMetric("gpu_memory_temperature_celsius"),
    "sm": ForeignMetric("gpu_utilization_ratio", _PERCENT),
    "mem": ForeignMetric("gpu_memory_utilization_ratio", _PERCENT),
    "enc": ForeignMetric("gpu_encoder_utilization_ratio", _PERCENT),
    "dec": ForeignMetric("gpu_decoder_utilization_ratio", _PERCENT),
    "jpg": ForeignMetric("gpu_media_utilization_ratio", _PERCENT, {"kind": "jpeg"}),
    "ofa": ForeignMetric("gpu_media_utilization_ratio", _PERCENT, {"kind": "optical_flow"}),
    "mclk": ForeignMetric("gpu_memory_clock_hertz", _MHZ),
    "pclk": ForeignMetric("gpu_sm_clock_hertz", _MHZ),
    "pviol": ForeignMetric("gpu_throttle_ratio", _PERCENT, {"reason": "sw_power_cap"}),
    "tviol": ForeignMetric("gpu_throttle_active", labels={"reason": "thermal"}),
    "fb": ForeignMetric("gpu_memory_used_bytes", _MIB),
    "bar1": ForeignMetric("gpu_bar1_used_bytes", _MIB),
    "sbecc": ForeignMetric("gpu_ecc_correctable_lifetime_total"),
    "dbecc": ForeignMetric("gpu_ecc_uncorrectable_lifetime_total"),
    "pci": ForeignMetric("gpu_pcie_replays_total"),
    "rxpci": ForeignMetric("gpu_pcie_rx_bytes_per_second", _MB_S),
    "txpci": ForeignMetric("gpu_pcie_tx_bytes_per_second", _MB_S),
    **GPM,
}

_PMON: Mapping[str, ForeignMetric] = {
    "sm": ForeignMetric("gpu_process_utilization_ratio", _PERCENT),
    "mem": ForeignMetric("gpu_process_memory_utilization_ratio", _PERCENT),
    "fb": ForeignMetric("gpu_process_memory_used_bytes", _MIB),
}

DIALECT = Dialect(
    id="nvidia-smi-dmon",
    title="nvidia-smi dmon and pmon",
    names={
        **{f"dmon.{column}": foreign for column, foreign in _DMON.items()},
        **{f"pmon.{column}": foreign for column, foreign in _PMON.items()},
    },
    labels={
        **MACHINE_LABELS,
        **GPU_LABELS,
        "pid": Label("pid", "number"),
        "mig": Label("mig"),
        "gpu_i_id": Label("mig"),
    },
)
