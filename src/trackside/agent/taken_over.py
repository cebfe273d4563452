"""What one source gives in place of others: a GPU's values are sent once, whoever can read them.

A source that others stand back for need not know of it: they leave out what it gave last, for as long as it works.
Values are told apart as curves are: by metric and labels, without those that only describe.
"""

from __future__ import annotations

from functools import lru_cache

from trackside.agent.source import Context, Labels
from trackside.catalog.metrics import DESCRIPTIVE

DCGM_EXPORTER, KERNEL_LOG = "dcgm_exporter", "kernel_log"
"""Ids of the sources that NVML's stand back for."""
Curve = tuple[str, Labels]


@lru_cache(maxsize=1 << 14)
def curve(metric: str, labels: Labels) -> Curve:
    """Which curve a sample belongs to."""
    return metric, tuple(pair for pair in labels if pair[0] not in DESCRIPTIVE)


def taken_over(context: Context) -> frozenset[Curve]:
    """Curves that a dcgm-exporter gives."""
    return frozenset(curve(each.metric, each.labels) for each in context.newest().get(DCGM_EXPORTER, ()))


def is_kernel_read(context: Context) -> bool:
    """Whether the kernel's log is, which says more of an Xid than NVML."""
    return KERNEL_LOG in context.newest()
