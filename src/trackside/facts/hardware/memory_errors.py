"""Memory errors of the run's GPUs up to a moment: they may have spoilt what was computed after them."""

from __future__ import annotations

from dataclasses import dataclass

from trackside.facts.fact import fact
from trackside.facts.gpus import ours
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.hardware.reports import HardwareReports
from trackside.finding import Claim, Sentence
from trackside.model import Run

OF_MEMORY = (48, 64, 94, 95, 140)
"""Xids of memory errors: double-bit, remap failed, contained, uncontained, unrecovered."""
CLOCKS_S = 120.0
"""By which the clocks of log, kernel and monitor may differ."""
MAX_CLAIMS = 2
"""Measured errors that are named."""

XID_BEFORE = Sentence("the kernel had reported Xid {xid}, a memory error: {line}")


@dataclass(frozen=True, eq=False)
class MemoryErrors:
    """What the kernel and counters report of GPU memory."""

    reports: HardwareReports
    health: HardwareHealth
    run: Run

    def before(self, moment: float | None) -> list[Claim]:
        """Those up to a moment (POSIX seconds), else up to the run's end; None: to the run's end."""
        run, xids = self.run, self.reports.xids
        latest = moment + CLOCKS_S if moment is not None else run.end
        lines = []
        for row in xids.events:
            known = row.time is not None and (run.start is None or row.time >= run.start - CLOCKS_S)
            mine = row.get("pci") is None or ours(str(row.get("pci")), row.node, self.health.addressed, run)
            if row.get("xid") in OF_MEMORY and mine and known and (latest is None or (row.time or 0.0) <= latest):
                lines.append(XID_BEFORE(xid=xids.value(row, "xid"), line=xids.value(row, "text")))
        measured = [fault for fault in self.health.faults if fault.sign != "vanished"]
        measured = [fault for fault in measured if fault.number is None or fault.number in OF_MEMORY]
        early = [fault for fault in measured if latest is None or fault.time is None or fault.time <= latest]
        return [*lines[:1], *(fault.claim for fault in early[:MAX_CLAIMS])]


@fact()
def memory_errors(reports: HardwareReports, health: HardwareHealth, run: Run) -> MemoryErrors:
    """Of Xids and counters; nothing is needed."""
    return MemoryErrors(reports, health, run)
