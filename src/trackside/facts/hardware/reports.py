"""Who says in words that hardware failed under a run: the kernel, CUDA in the job's log, the scheduler.

Xids of GPUs that are known to be another job's are left out, and of several CUDA errors the first is taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from dataclasses import dataclass

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Frame, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import at_bus, ours
from trackside.facts.hardware.health import HardwareFault, HardwareHealth
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, Role, Run
from trackside.query import events, record

XID = Sentence("the kernel reported Xid {xid} ({name}): {line}")
SWITCH = Sentence("an NVSwitch reported a fatal error: {line}")
LOST = Sentence("a GPU could no longer be reached: {line}")
CUDA = Sentence("CUDA itself blamed the hardware: {line}")
DRAINED = Sentence("node {node} was taken out for {reason}")
IN_JOB_LOG = {
    "uncorrectable ECC error": Certainty.SUPPORTED,
    "uncorrectable NVLink error": Certainty.SUPPORTED,
    "device lost": Certainty.SUPPORTED,
    "hardware stack error": Certainty.POSSIBLE,
}
"""CUDA errors that only hardware brings about, and how much they carry without the kernel's word."""
DRAINED_FOR = re.compile(
    r"\bs?xid\b|\becc\b|\bdbe\b|row.?remap|fallen off|nvlink|nvswitch|uncorrectable|gpu.{0,12}\blost\b", re.IGNORECASE
)
NAMED_GPU = re.compile(r"\bgpu[ _#:-]{0,2}(\d{1,2})\b(?! ?(?:of|/|gpu|xid))", re.IGNORECASE)
"""The index of a GPU in a drain reason, such as "gpu2 lost"."""


@dataclass(frozen=True, eq=False)
class HardwareReports:
    """What was reported in words."""

    xids: Frame
    nodes: Frame
    """The scheduler's records of nodes."""
    errors: Frame
    """CUDA errors in the job's log."""
    faults: tuple[HardwareFault, ...]
    """Kernel first, then the job's log, then the scheduler's drain reasons."""
    given: bool
    """Whether anything was read that reports faults of hardware in words."""


@fact({
    "xids": events("xid"),
    "switches": events("sxid"),
    "lost": events("gpu_lost"),
    "errors": events("cuda_error"),
    "nodes": record("node"),
})  # fmt: skip
def hardware_reports(evidence: Evidence, health: HardwareHealth, drained: DrainedNodes, run: Run) -> HardwareReports:
    """Of what was read; figures help to tell which GPU is meant."""
    suspects = {fault.gpu for fault in health.faults}
    kernel: list[HardwareFault] = []
    for name in ("xids", "switches", "lost"):
        frame = evidence[name]
        for row in frame.events:
            if row.role not in (Role.CONFIRMATION, Role.ROOT) or (name == "lost" and _also_xid(row, evidence["xids"])):
                continue
            sure = Certainty.ESTABLISHED if row.plane == "kernel" else Certainty.SUPPORTED
            pci = row.get("pci")
            if pci is not None and name != "switches" and any(health.addressed):
                if not ours(str(pci), row.node, health.addressed, run):
                    continue
                pci = _one_of(at_bus(str(pci), row.node, health.addressed), suspects) or pci
            kernel.append(_reported(row, *_kernel_claim(name, frame, row), sure, pci))
    errors = evidence["errors"]
    job = [
        _reported(row, "cuda", CUDA(line=errors.value(row, "text")), IN_JOB_LOG[str(row.get("name"))], row.get("pci"))
        for row in errors.events
        if row.get("name") in IN_JOB_LOG and row.role is Role.ROOT
    ]
    given = any(evidence.has(name) for name in ("xids", "errors", "nodes"))
    faults = (*kernel, *job[:1], *_drained(drained, run))
    return HardwareReports(evidence["xids"], evidence["nodes"], errors, faults, given)


def _one_of(gpus: Set[str], suspects: Set[str | None]) -> str | None:
    """The GPU at an address: the only one, else, of several nodes, the only one that is suspected by other signs."""
    meant = gpus if len(gpus) == 1 else gpus & suspects
    return next(iter(meant)) if len(meant) == 1 else None


def _reported(row: Event, sign: str, claim: Claim, certainty: Certainty, gpu: object) -> HardwareFault:
    number = row.get("xid")
    return HardwareFault(
        sign,
        claim,
        certainty,
        row.plane,
        row.at,
        row.time,
        row.time,
        row.node,
        str(gpu) if gpu is not None else None,
        number if isinstance(number, int) else None,
        row,
    )


def _also_xid(row: Event, xids: Frame) -> bool:
    return any(other.at == row.at for other in xids.events)


def _kernel_claim(name: str, frame: Frame, row: Event) -> tuple[str, Claim]:
    line = frame.value(row, "text")
    number = row.get("xid")
    if name == "xids" and isinstance(number, int):
        value = frame.value(row, "xid")
        return "xid", XID(xid=value, name=derived(xid(number).mnemonic, value), line=line)
    return ("switch", SWITCH(line=line)) if name == "switches" else ("lost", LOST(line=line))


def _drained(drained: DrainedNodes, run: Run) -> Iterator[HardwareFault]:
    """Nodes of the run that were taken out for a GPU fault while it ran, or soon after."""
    nodes = drained.frame
    for row in drained.rows:
        reason, time = str(row.get("reason") or ""), row.get("reason_time")
        if not DRAINED_FOR.search(reason):
            continue
        when = float(time) if isinstance(time, (int, float)) else None
        index = NAMED_GPU.search(reason)
        gpu = f"{row.get('name')}:{int(index[1])}" if index is not None else None
        if gpu is not None and run.gpus and run.gpus_by != "all" and gpu not in run.gpus:
            continue  # another job's
        claim = DRAINED(node=nodes.value(row, "name"), reason=nodes.value(row, "reason"))
        name = str(row.get("name"))
        yield HardwareFault("drained", claim, Certainty.SUPPORTED, row.plane, row.at, when, when, name, gpu, row=row)
