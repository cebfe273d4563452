"""Our own names: what the agent traces, and any file that is written in them."""

from __future__ import annotations

from trackside.catalog.dialect import Dialect, Foreign
from trackside.catalog.labels import DEVICE, OWNER, PLACE, Label
from trackside.catalog.metrics import COMMON, METRICS

_ELSEWHERE = frozenset({"gpu_health", "gpu_recovery_action"})
"""Names of ours that another source has too; AMD's ``gpu_health`` is the other way round."""

DIALECT = Dialect(
    id="trackside",
    title="Trackside",
    names={name: Foreign(name) for name in METRICS if not name.startswith("training_") and name not in _ELSEWHERE},
    labels={
        **PLACE,
        **OWNER,
        "job": Label("job", "job"),
        **DEVICE,
        "name": Label("gpu_model"),
        "gpu_i_id": Label("mig"),
        "rank": Label("rank", "number"),
        "pid": Label("pid", "number"),
        **{
            label: Label(label)
            for label in sorted({*COMMON, *(each for metric in METRICS.values() for each in metric.labels)})
            if label not in {*PLACE, *OWNER, *DEVICE, "job", "rank", "pid"}
        },
    },
)
