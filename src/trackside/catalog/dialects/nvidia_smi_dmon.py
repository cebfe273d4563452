"""Columns of ``nvidia-smi dmon`` and ``pmon``, prefixed with the tool's name: ``dmon.sm``, ``pmon.fb``.

``sm`` and ``mem`` are NVML's utilization despite their names; only the GPM columns (``--gpm-metrics``) measure work.
Units are those of the second heading line; "MB" of memory means MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, Foreign
from trackside.catalog.dialects.nvidia_smi import GPM
from trackside.catalog.labels import GPU_LABELS, MACHINE_LABELS, Label

_PERCENT, _MIB, _MHZ, _MB_S = 0.01, float(1 << 20), 1e6, 1e6

_DMON: Mapping[str, Foreign] = {
    "pwr": Foreign("gpu_power_watts"),
    "temp": Foreign("gpu_temperature_celsius"),
    "gtemp": Foreign("gpu_temperature_celsius"),
    "mtemp": Foreign("gpu_memory_temperature_celsius"),
    "sm": Foreign("gpu_utilization_ratio", _PERCENT),
    "mem": Foreign("gpu_memory_utilization_ratio", _PERCENT),
    "enc": Foreign("gpu_encoder_utilization_ratio", _PERCENT),
    "dec": Foreign("gpu_decoder_utilization_ratio", _PERCENT),
    "jpg": Foreign("gpu_media_utilization_ratio", _PERCENT, {"kind": "jpeg"}),
    "ofa": Foreign("gpu_media_utilization_ratio", _PERCENT, {"kind": "optical_flow"}),
    "mclk": Foreign("gpu_memory_clock_hertz", _MHZ),
    "pclk": Foreign("gpu_sm_clock_hertz", _MHZ),
    "pviol": Foreign("gpu_throttle_ratio", _PERCENT, {"reason": "sw_power_cap"}),
    "tviol": Foreign("gpu_throttle_active", labels={"reason": "thermal"}),
    "fb": Foreign("gpu_memory_used_bytes", _MIB),
    "bar1": Foreign("gpu_bar1_used_bytes", _MIB),
    "sbecc": Foreign("gpu_ecc_correctable_lifetime_total"),
    "dbecc": Foreign("gpu_ecc_uncorrectable_lifetime_total"),
    "pci": Foreign("gpu_pcie_replays_total"),
    "rxpci": Foreign("gpu_pcie_rx_bytes_per_second", _MB_S),
    "txpci": Foreign("gpu_pcie_tx_bytes_per_second", _MB_S),
    **GPM,
}

_PMON: Mapping[str, Foreign] = {
    "sm": Foreign("gpu_process_utilization_ratio", _PERCENT),
    "mem": Foreign("gpu_process_memory_utilization_ratio", _PERCENT),
    "fb": Foreign("gpu_process_memory_used_bytes", _MIB),
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
