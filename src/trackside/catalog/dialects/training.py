"""Metrics of the training process: ``training_*``, and PyTorch's allocator statistics.

Here ``job`` may be a Slurm job if it is a number; the scraper's own ``job`` is a word.
"""

from __future__ import annotations

from collections.abc import Mapping

from trackside.catalog.dialect import Dialect, Foreign
from trackside.catalog.labels import GPU_LABELS, JOB_LABELS, MACHINE_LABELS, Label
from trackside.catalog.metrics import METRICS

_OTHER: Mapping[str, Foreign] = {
    "training_model_flops_utilization": Foreign("training_model_flops_utilization_ratio", guess="ratio"),
    "training_mfu": Foreign("training_model_flops_utilization_ratio", guess="ratio"),
    "training_data_loading_ratio": Foreign("training_data_loading_ratio", guess="ratio"),
    "training_batch_efficiency": Foreign("training_batch_efficiency_ratio", guess="ratio"),
    "training_all_reduce_time_seconds": Foreign("training_all_reduce_seconds"),
    "training_data_loading_time_seconds": Foreign("training_data_loading_seconds"),
    "training_checkpoint_duration_seconds": Foreign("training_checkpoint_seconds"),
    "training_step_time_seconds": Foreign("training_step_seconds"),
    "training_step_duration_seconds": Foreign("training_step_seconds"),
    "training_loss_spike_detected": Foreign("training_loss_spike"),
    "training_grad_norm": Foreign("training_gradient_norm"),
    "training_global_step": Foreign("training_step"),
    "training_steps_total": Foreign("training_step"),
    "training_current_step": Foreign("training_step"),
    "training_current_epoch": Foreign("training_epoch"),
}
_ALLOCATOR: Mapping[str, Foreign] = {
    "allocated_bytes.all.current": Foreign("training_memory_allocated_bytes"),
    "reserved_bytes.all.current": Foreign("training_memory_reserved_bytes"),
    "active_bytes.all.peak": Foreign("training_memory_peak_bytes", labels={"kind": "active"}),
    "allocated_bytes.all.peak": Foreign("training_memory_peak_bytes", labels={"kind": "allocated"}),
    "reserved_bytes.all.peak": Foreign("training_memory_peak_bytes", labels={"kind": "reserved"}),
    "num_alloc_retries": Foreign("training_memory_retries_total"),
    "num_ooms": Foreign("training_memory_ooms_total"),
}

DIALECT = Dialect(
    id="training",
    title="training layer",
    names={
        **{metric: Foreign(metric) for metric in METRICS if metric.startswith("training_")},
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
