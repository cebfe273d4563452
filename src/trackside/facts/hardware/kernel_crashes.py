"""Crashes of the kernel on the run's nodes, by their kernel logs.

After a panic a node is down; after an oops or a BUG it may go on without the task that met it.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Frame
from trackside.facts.fact import fact
from trackside.model import Event, Run
from trackside.query import events


@dataclass(frozen=True)
class Limits:
    """When a crash belongs to the run."""

    max_clock_difference_s: float = 120.0
    """Maximum difference between the clocks of the kernel log and the scheduler."""


@dataclass(frozen=True, eq=False)
class KernelCrashes:
    """The crashes during the run; those without a time or a node count too."""

    frame: Frame
    rows: tuple[Event, ...]

    @property
    def panics(self) -> tuple[Event, ...]:
        """Crashes after which the node was down."""
        return tuple(row for row in self.rows if row.get("what") == "panic")


@fact({"crashes": events("kernel_crash")}, limits=Limits())
def kernel_crashes(evidence: Evidence, run: Run, limits: Limits) -> KernelCrashes:
    """Needs no particular input; empty without a kernel log."""
    frame, slack = evidence["crashes"], limits.max_clock_difference_s

    def concerns_run(row: Event) -> bool:
        if row.node is not None and run.nodes and row.node not in run.nodes:
            return False
        if row.time is None:
            return True
        is_after_start = run.start is None or row.time >= run.start - slack
        return is_after_start and (run.end is None or row.time <= run.end + slack)

    return KernelCrashes(frame, tuple(row for row in frame.events if concerns_run(row)))
