"""The same Xid of the application class on one GPU under several processes: then the GPU itself may be at fault."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from trackside.catalog.xid import xid
from trackside.evidence import Value, derived
from trackside.facts.fact import fact
from trackside.facts.hardware.reports import HardwareReports
from trackside.finding import Claim, Sentence
from trackside.model import Event, Position

AGAIN = Sentence("{count} processes hit Xid {xid} on the same GPU {gpu}: the GPU itself may be at fault")


@dataclass(frozen=True)
class Limits:
    """When an innocent code becomes suspicious."""

    repeats: int = 3
    """Different processes that hit the same application-class Xid on one GPU before the GPU is suspected."""


@dataclass(frozen=True, eq=False)
class RepeatedXid:
    """An Xid that came again and again on one GPU, and on no other."""

    again: tuple[Claim, Position, str] | None
    """(what shows it, where it came last, the GPU's PCI address)"""


@fact(limits=Limits())
def repeated_xid(reports: HardwareReports, limits: Limits) -> RepeatedXid:
    """The first such GPU."""
    xids = reports.xids
    hits: dict[tuple[str, int], dict[object, Event]] = defaultdict(dict)
    for row in xids.events:
        number, pid = row.get("xid"), row.get("pid")
        if isinstance(number, int) and pid is not None and xid(number).blame in ("application", "either"):
            hits[str(row.get("pci")), number].setdefault(pid, row)
    many = {key: rows for key, rows in hits.items() if len(rows) >= limits.repeats}
    for (pci, number), rows in many.items():
        if not any(other == number and gpu != pci for gpu, other in many):
            lines: list[Value] = [xids.value(row, "text") for row in rows.values()]
            last = list(rows.values())[-1]
            count = derived(len(rows), *lines)
            claim = AGAIN(count=count, xid=xids.value(last, "xid"), gpu=xids.value(last, "pci"))
            return RepeatedXid((claim, last.at, pci))
    return RepeatedXid(None)
