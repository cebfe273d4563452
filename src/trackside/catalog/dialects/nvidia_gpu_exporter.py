"""nvidia_gpu_exporter: nvidia-smi's query fields as ``nvidia_smi_...``, in base units. Series have only a UUID; the
index is the value of ``nvidia_smi_index``, model and driver are labels of ``nvidia_smi_gpu_info``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.dialects.nvidia_smi import FIELDS
from trackside.catalog.labels import JOB_LABELS, MACHINE_LABELS, Label
from trackside.catalog.metrics import METRICS

_SUFFIXES = {"bytes": "_bytes", "ratio": "_ratio", "W": "_watts", "Hz": "_clock_hz", "s": "_seconds"}
"""Unit -> suffix of the names in this unit; other names have no suffix."""
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


def _name(field: str, metric: str) -> str:
    snake = _CAMEL.sub("_", field).lower().replace(".", "_")
    return f"nvidia_smi_{snake}{_SUFFIXES.get(METRICS[metric].unit, '')}"


# Distinct readings that users of nvidia-smi often confuse; this exporter serves both.
_DISTINCT: Mapping[str, ForeignMetric] = {
    "clocks.current.graphics": ForeignMetric("gpu_clock_hertz", labels={"kind": "graphics"}),
    "power.draw.instant": ForeignMetric("gpu_power_instant_watts"),
}
_OWN: Mapping[str, ForeignMetric] = {
    "nvidia_smi_gpu_info": ForeignMetric("gpu_present"),
    "nvidia_smi_index": ForeignMetric("gpu_index"),
    "nvidia_smi_count": ForeignMetric("gpu_visible_gpus"),
    "nvidia_smi_compute_apps": ForeignMetric("gpu_processes"),
    "nvidia_smi_compute_app_used_memory_bytes": ForeignMetric("gpu_process_memory_used_bytes"),
    "nvidia_smi_last_collect_success": ForeignMetric("exporter_success", labels={"collector": "nvidia-smi"}),
    "nvidia_smi_compute_apps_last_collect_success": ForeignMetric(
        "exporter_success", labels={"collector": "compute-apps"}
    ),
}

DIALECT = Dialect(
    id="nvidia-gpu-exporter",
    title="nvidia_gpu_exporter",
    names={
        **{
            _name(field, foreign.metric): ForeignMetric(foreign.metric, labels=foreign.labels)
            for field, foreign in FIELDS.items()
        },
        **{_name(field, foreign.metric): foreign for field, foreign in _DISTINCT.items()},
        **_OWN,
    },
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        "index": Label("gpu", "index"),
        "uuid": Label("gpu_uuid"),
        "name": Label("gpu_model"),
        "pci_bus_id": Label("pci", "pci"),
        "pid": Label("pid", "number"),
        "driver_version": Label("driver"),
    },
)
