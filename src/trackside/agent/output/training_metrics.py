"""Training progress printed by a job, as metrics for dashboards while the job runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from trackside.model import Event

METRICS: Mapping[str, str] = {
    "step": "training_step",
    "epoch": "training_epoch",
    "loss": "training_loss",
    "grad_norm": "training_gradient_norm",
    "lr": "training_learning_rate",
    "step_time_s": "training_step_seconds",
    "data_time_s": "training_data_loading_seconds",
}
"""Field of a progress event -> metric."""
RATES: Mapping[str, str] = {"samples/s": "training_samples_per_second", "tokens/s": "training_tokens_per_second"}
"""Throughput unit -> metric."""
INF_IF_NONFINITE = frozenset(("training_loss", "training_gradient_norm"))
"""Metrics reported as inf if the printed value is not finite."""
ALL = (*METRICS.values(), *RATES.values())


def training_metrics(events: Iterable[Event]) -> dict[str, float]:
    """Metric -> its last value in these events."""
    values: dict[str, float] = {}
    for event in events:
        if event.kind != "progress" or event.fields.get("split", "train") != "train":
            continue
        fields = {METRICS[name]: value for name, value in event.fields.items() if name in METRICS}
        if rate := RATES.get(str(event.fields.get("throughput_unit", ""))):
            fields[rate] = event.fields.get("throughput")
        for metric, value in fields.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                if math.isfinite(value):
                    values[metric] = float(value)
                elif metric in INF_IF_NONFINITE:
                    values[metric] = math.inf
    return values
