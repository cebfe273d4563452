"""Trackside's own names: metrics of the agent, and any file that uses these names."""

from __future__ import annotations

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label
from trackside.catalog.metrics import COMMON_LABELS, METRICS

_AMBIGUOUS = frozenset({"gpu_health", "gpu_recovery_action"})
"""Names that another source uses too; AMD's ``gpu_health`` has the opposite meaning."""

DIALECT = Dialect(
    id="trackside",
    title="Trackside",
    names={
        name: ForeignMetric(name) for name in METRICS if not name.startswith("training_") and name not in _AMBIGUOUS
    },
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        "job": Label("job", "job"),
        **GPU_LABELS,
        "name": Label("gpu_model"),
        "gpu_i_id": Label("mig"),
        "rank": Label("rank", "number"),
        "pid": Label("pid", "number"),
        **{
            label: Label(label)
            for label in sorted(
                {*COMMON_LABELS, *(metric_label for metric in METRICS.values() for metric_label in metric.labels)}
            )
            if label not in {*MACHINE_LABELS, *JOB_LABELS, *GPU_LABELS, "job", "rank", "pid"}
        },
    },
)
