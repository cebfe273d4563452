"""Column headings of ``dcgmi dmon``: DCGM's short names of its fields, in DCGM's units."""

from __future__ import annotations

from trackside.catalog.dialect import Dialect
from trackside.catalog.dialects.dcgm import FIELDS
from trackside.catalog.labels import GPU_LABELS, MACHINE_LABELS, Label

DIALECT = Dialect(
    id="dcgmi-dmon",
    title="dcgmi dmon",
    names={field.short: field.foreign for field in FIELDS if field.short},
    labels={**MACHINE_LABELS, **GPU_LABELS, "mig": Label("mig"), "gpu_i_id": Label("mig")},
)
