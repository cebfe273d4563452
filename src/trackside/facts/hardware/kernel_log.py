"""Whether the kernel's log of a node was given, so that a fault of a GPU would show in it."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence
from trackside.facts.fact import fact
from trackside.query import events


@dataclass(frozen=True)
class KernelLog:
    """The kernel's log."""

    given: bool


@fact({"xids": events("xid")})
def kernel_log(evidence: Evidence) -> KernelLog:
    """By the planes that were read; nothing is needed."""
    return KernelLog("kernel" in evidence["xids"].covered)
