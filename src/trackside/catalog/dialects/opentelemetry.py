"""OpenTelemetry's semantic conventions for hardware (``hw.*``): dotted names, and names as exported to Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Case, Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label

_GPU = {"hw_type": "gpu"}


def _of_gpu(metric: str) -> tuple[Case, ...]:
    return ((_GPU, metric),)


_TASKS: tuple[Case, ...] = (
    ({"hw_gpu_task": "encoder"}, "gpu_encoder_utilization_ratio"),
    ({"hw_gpu_task": "decoder"}, "gpu_decoder_utilization_ratio"),
)
_ERRORS: tuple[Case, ...] = tuple(
    (_GPU | {"error_type": kind}, f"gpu_ecc_{name}_total")
    for kind, name in {"corrected": "correctable", "uncorrected": "uncorrectable"}.items()
)
_NAMES: Mapping[tuple[str, str], ForeignMetric] = {
    ("hw.gpu.utilization", "_ratio"): ForeignMetric("gpu_utilization_ratio", cases=_TASKS),
    ("hw.gpu.memory.utilization", "_ratio"): ForeignMetric("gpu_memory_used_ratio"),
    ("hw.gpu.memory.usage", "_bytes"): ForeignMetric("gpu_memory_used_bytes"),
    ("hw.gpu.memory.limit", "_bytes"): ForeignMetric("gpu_memory_total_bytes"),
    ("hw.gpu.io", "_bytes_total"): ForeignMetric("gpu_io_bytes_total"),
    ("hw.errors", "_total"): ForeignMetric("host_errors_total", cases=_ERRORS),
    ("hw.temperature", "_celsius"): ForeignMetric("host_temperature_celsius", cases=_of_gpu("gpu_temperature_celsius")),
    ("hw.power", "_watts"): ForeignMetric("host_power_watts", cases=_of_gpu("gpu_power_watts")),
    ("hw.energy", "_joules_total"): ForeignMetric("host_energy_joules_total", cases=_of_gpu("gpu_energy_joules_total")),
}
"""(dotted name, suffix added by the Prometheus exporter) -> mapping"""

DIALECT = Dialect(
    id="opentelemetry",
    title="OpenTelemetry hardware conventions",
    names={
        **{name: foreign for (name, _), foreign in _NAMES.items()},
        **{name.replace(".", "_") + suffix: foreign for (name, suffix), foreign in _NAMES.items()},
    },
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        **GPU_LABELS,
        "hw_id": Label("gpu", "name"),
        "hw_name": Label("device"),
        "hw_model": Label("gpu_model"),
        "hw_driver_version": Label("driver"),
        "hw_type": Label("component"),
        "error_type": Label("kind"),
        "hw_sensor_location": Label("sensor"),
        "network_io_direction": Label("direction"),
        "direction": Label("direction"),
    },
)
