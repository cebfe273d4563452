"""Metrics of the training process: ``training_*``, and PyTorch's allocator statistics.

Here ``job`` may be a Slurm job if it is a number; the scraper's own ``job`` is a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, ForeignMetric
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label
from trackside.catalog.metrics import METRICS

_OTHER: Mapping[str, ForeignMetric] = {
    "training_model_flops_utilization": ForeignMetric("training_model_flops_utilization_ratio", guess="ratio"),
    "training_mfu": ForeignMetric("training_model_flops_utilization_ratio", guess="ratio"),
    "training_data_loading_ratio": ForeignMetric("training_data_loading_ratio", guess="ratio"),
    "training_batch_efficiency": ForeignMetric("training_batch_efficiency_ratio", guess="ratio"),
    "training_all_reduce_time_seconds": ForeignMetric("training_all_reduce_seconds"),
    "training_data_loading_time_seconds": ForeignMetric("training_data_loading_seconds"),
    "training_checkpoint_duration_seconds": ForeignMetric("training_checkpoint_seconds"),
    "training_step_time_seconds": ForeignMetric("training_step_seconds"),
    "training_step_duration_seconds": ForeignMetric("training_step_seconds"),
    "training_loss_spike_detected": ForeignMetric("training_loss_spike"),
    "training_grad_norm": ForeignMetric("training_gradient_norm"),
    "training_global_step": ForeignMetric("training_step"),
    "training_steps_total": ForeignMetric("training_step"),
    "training_current_step": ForeignMetric("training_step"),
    "training_current_epoch": ForeignMetric("training_epoch"),
}
_ALLOCATOR: Mapping[str, ForeignMetric] = {
    "allocated_bytes.all.current": ForeignMetric("training_memory_allocated_bytes"),
    "reserved_bytes.all.current": ForeignMetric("training_memory_reserved_bytes"),
    "active_bytes.all.peak": ForeignMetric("training_memory_peak_bytes", labels={"kind": "active"}),
    "allocated_bytes.all.peak": ForeignMetric("training_memory_peak_bytes", labels={"kind": "allocated"}),
    "reserved_bytes.all.peak": ForeignMetric("training_memory_peak_bytes", labels={"kind": "reserved"}),
    "num_alloc_retries": ForeignMetric("training_memory_retries_total"),
    "num_ooms": ForeignMetric("training_memory_ooms_total"),
}

DIALECT = Dialect(
    id="training",
    title="training layer",
    names={
        **{metric: ForeignMetric(metric) for metric in METRICS if metric.startswith("training_")},
        **_OTHER,
        **_ALLOCATOR,
    },
    labels={
        **MACHINE_LABELS,
        **JOB_LABELS,
        "job": Label("job", "job"),
        **GPU_LABELS,
        "rank": Label("rank", "number"),
        "global_rank": Label("rank", "number"),
        "pid": Label("pid", "number"),
        "kind": Label("kind"),
    },
)
