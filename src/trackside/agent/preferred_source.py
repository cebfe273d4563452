"""Which source sends a value that several sources can read: each GPU value is sent once.

A source leaves out the series that the preferred source gave last, for as long as that one works. Series are compared
by metric and labels, without purely descriptive labels.
"""

from __future__ import annotations

from functools import lru_cache

from trackside.agent.source import Context, Labels
from trackside.catalog.metrics import DESCRIPTIVE_LABELS

DCGM_EXPORTER, KERNEL_LOG = "dcgm_exporter", "kernel_log"
"""Ids of the sources that are preferred to the NVML sources."""
SeriesKey = tuple[str, Labels]


@lru_cache(maxsize=1 << 14)
def series_key(metric: str, labels: Labels) -> SeriesKey:
    """The series that a sample belongs to."""
    return metric, tuple(pair for pair in labels if pair[0] not in DESCRIPTIVE_LABELS)


def dcgm_exporter_series(context: Context) -> frozenset[SeriesKey]:
    """The series that the dcgm-exporter source gave last."""
    return frozenset(series_key(sample.metric, sample.labels) for sample in context.newest().get(DCGM_EXPORTER, ()))


def is_kernel_read(context: Context) -> bool:
    """Whether the kernel log is read; it gives more detail of an Xid than NVML."""
    return KERNEL_LOG in context.newest()
