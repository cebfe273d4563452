"""Who says in words that hardware failed under a run: the kernel, CUDA in the job's log, the scheduler. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Frame, derived
from trackside.facts.gpus import at_bus, ours
from trackside.facts.hardware.health import MEASURED, Fault
from trackside.facts.logs.drained_nodes import of_the_run
from trackside.finding import Certainty, Claim, claim
from trackside.model import Event, Role, Run

WITNESS_SAYS: Mapping[str, str] = {
    "xid": "the kernel reported Xid {xid} ({name}): {line}",
    "switch": "an NVSwitch reported a fatal error: {line}",
    "lost": "a GPU could no longer be reached: {line}",
    "cuda": "CUDA itself blamed the hardware: {line}",
    "drained": "node {node} was taken out for {reason}",
}
"""Sentences of the claims that are made here."""
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


def witnesses(evidence: Evidence, run: Run, suspects: Set[str | None]) -> list[Fault]:
    """Every witness in words: kernel first, then the job's log, then the scheduler's drain reasons.

    ``suspects``: GPUs that figures speak against.
    """
    grids = [evidence.grid(name) for name in (*MEASURED, "seen_memory")]
    kernel: list[Fault] = []
    for name in ("xids", "switches", "lost"):
        frame = evidence[name]
        for row in frame.events:
            if row.role not in (Role.CONFIRMATION, Role.ROOT) or (name == "lost" and _also_xid(row, evidence)):
                continue
            sure = Certainty.ESTABLISHED if row.plane == "kernel" else Certainty.SUPPORTED
            pci = row.get("pci")
            if pci is not None and name != "switches" and any(grids):
                if not ours(str(pci), row.node, grids, run):
                    continue
                pci = _one_of(at_bus(str(pci), row.node, grids), suspects) or pci
            kernel.append(_told(row, _kernel_claim(name, frame, row), sure, pci))
    errors = evidence["errors"]
    job = [
        _told(row, claim("cuda", line=errors.value(row, "text")), IN_JOB_LOG[str(row.get("name"))], row.get("pci"))
        for row in errors.events
        if row.get("name") in IN_JOB_LOG and row.role is Role.ROOT
    ]
    return [*kernel, *job[:1], *_drained(evidence, run)]


def _one_of(gpus: Set[str], suspects: Set[str | None]) -> str | None:
    """The GPU at an address: the only one, else, of several nodes, the only one that is suspected by other signs."""
    meant = gpus if len(gpus) == 1 else gpus & suspects
    return next(iter(meant)) if len(meant) == 1 else None


def _told(row: Event, told: Claim, certainty: Certainty, gpu: object) -> Fault:
    number = row.get("xid")
    return Fault(
        told,
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


def _also_xid(row: Event, evidence: Evidence) -> bool:
    return any(each.at == row.at for each in evidence["xids"].events)


def _kernel_claim(name: str, frame: Frame, row: Event) -> Claim:
    line = frame.value(row, "text")
    number = row.get("xid")
    if name == "xids" and isinstance(number, int):
        told = frame.value(row, "xid")
        return claim("xid", xid=told, name=derived(xid(number).mnemonic, told), line=line)
    return claim("switch" if name == "switches" else "lost", line=line)


def _drained(evidence: Evidence, run: Run) -> Iterator[Fault]:
    """Nodes of the run that were taken out for a GPU fault while it ran, or soon after."""
    nodes = evidence["nodes"]
    for row in of_the_run(evidence, run):
        reason, time = str(row.get("reason") or ""), row.get("reason_time")
        if not DRAINED_FOR.search(reason):
            continue
        when = float(time) if isinstance(time, (int, float)) else None
        index = NAMED_GPU.search(reason)
        gpu = f"{row.get('name')}:{int(index[1])}" if index is not None else None
        if gpu is not None and run.gpus and run.gpus_by != "all" and gpu not in run.gpus:
            continue  # another job's
        told = claim("drained", node=nodes.value(row, "name"), reason=nodes.value(row, "reason"))
        name = str(row.get("name"))
        yield Fault(told, Certainty.SUPPORTED, row.plane, row.at, when, when, name, gpu, row=row)
