"""Logs that report hardware failures under a run: the kernel's, CUDA errors in the job's log, the scheduler's.

Xids of GPUs that are known to belong to another job are dropped, and of several CUDA errors the first counts. The same
application-class Xid under several processes on one GPU suggests that the GPU is faulty. Errors of its memory may have
corrupted later results.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Frame, derived
from trackside.facts.fact import fact
from trackside.facts.gpus import gpus_at_address, may_belong_to_run
from trackside.facts.hardware.health import HardwareFault, HardwareHealth
from trackside.facts.logs.drained_nodes import DrainedNodes
from trackside.finding import Certainty, Claim, Sentence
from trackside.model import Event, EventRole, Position, Record, Run
from trackside.query import events, record

XID_REPORTED = Sentence("the kernel reported Xid {xid} ({name}): {line}")
SWITCH_FAILED = Sentence("the NVSwitch at PCI address {pci} reported the fatal SXid {sxid}: {line}")
GPU_UNREACHABLE = Sentence("a GPU became unreachable: {line}")
CUDA_HARDWARE_ERROR = Sentence("CUDA reported a hardware error: {line}")
NODE_DRAINED = Sentence("node {node} was drained: {reason}")
NODE_DRAINED_FOR_XID = Sentence("node {node} was drained for Xid {xid} ({name}): {reason}")
NODE_DOWN = Sentence("node {node} was set down: {reason}")
NODE_DOWN_FOR_XID = Sentence("node {node} was set down for Xid {xid} ({name}): {reason}")
XID_REPEATED = Sentence("{count} processes hit Xid {xid} on the same GPU {gpu}: the GPU itself may be at fault")
MEMORY_XID = Sentence("the kernel reported Xid {xid}, a memory error: {line}")
HARDWARE_CUDA_ERRORS = {
    "uncorrectable ECC error": Certainty.SUPPORTED,
    "uncorrectable NVLink error": Certainty.SUPPORTED,
    "device lost": Certainty.SUPPORTED,
    "hardware stack error": Certainty.POSSIBLE,
}
"""CUDA errors that only hardware causes, with their certainty without kernel log lines."""
GPU_DRAIN_REASON = re.compile(
    r"\bs?xid\b|\becc\b|\bdbe\b|row.?remap|f[ae]ll(?:en)? off|nvlink|nvswitch|uncorrectable|gpu.{0,12}\blost\b",
    re.IGNORECASE,
)
XID_IN_DRAIN_REASON = re.compile(r"\bxid[ :#=-]{0,3}(\d{1,3})\b", re.IGNORECASE)
GPU_IN_DRAIN_REASON = re.compile(r"\bgpu[ _#:-]{0,2}(\d{1,2})\b(?! ?(?:of|/|gpu|xid))", re.IGNORECASE)
"""The index of a GPU in a drain reason, such as "gpu2 lost"."""
MEMORY_XIDS = (48, 64, 94, 95, 140)
"""Xids of memory errors: double-bit, remap failed, contained, uncontained, unrecovered."""
MAX_MEASURED = 2
"""Maximum number of measured memory errors in the claims."""


@dataclass(frozen=True)
class Limits:
    """When an application-class Xid makes the GPU suspicious, and clock tolerance."""

    min_processes: int = 3
    """Number of processes that hit the same application-class Xid on one GPU before the GPU is suspected."""
    max_clock_difference_s: float = 120.0
    """Maximum difference between the clocks of log, kernel and monitor."""


@dataclass(frozen=True, eq=False)
class HardwareReports:
    """Hardware failures reported in logs."""

    xids: Frame
    nodes: Frame
    """The scheduler's records of nodes."""
    errors: Frame
    """CUDA errors in the job's log."""
    faults: tuple[HardwareFault, ...]
    """The kernel's first, then the job log's, then the scheduler's drain reasons."""
    has_input: bool
    """Whether any log was read that can report hardware faults."""
    health: HardwareHealth
    drained: DrainedNodes
    run: Run
    limits: Limits

    @property
    def has_kernel_log(self) -> bool:
        """Whether the kernel log of a node was read, so that a GPU fault would show in it."""
        return "kernel" in self.xids.covered

    @cached_property
    def repeated_xid(self) -> tuple[Claim, Position, str] | None:
        """The only GPU on which several processes hit the same application-class Xid: (claim, last position, PCI
        address of the GPU)."""
        hits: dict[tuple[str, int], dict[object, Event]] = defaultdict(dict)
        for row in self.xids.events:
            number, pid = row.get("xid"), row.get("pid")
            if isinstance(number, int) and pid is not None and xid(number).blame in ("application", "either"):
                hits[str(row.get("pci")), number].setdefault(pid, row)
        repeated = {key: list(rows.values()) for key, rows in hits.items() if len(rows) >= self.limits.min_processes}
        for (pci, number), rows in repeated.items():
            if not any(other_number == number and other_pci != pci for other_pci, other_number in repeated):
                count = derived(len(rows), *(self.xids.value(row, "text") for row in rows))
                last, other_pci = (self.xids.value(rows[-1], name) for name in ("xid", "pci"))
                return XID_REPEATED(count=count, xid=last, gpu=other_pci), rows[-1].at, pci
        return None

    @cached_property
    def own_xids(self) -> tuple[Event, ...]:
        """The Xids that may be of the run's GPUs."""
        return tuple(row for row in self.xids.events if row not in self.foreign_xids)

    @cached_property
    def foreign_xids(self) -> tuple[Event, ...]:
        """The Xids of GPUs that are known not to be the run's."""
        addressed = self.health.addressed
        return tuple(
            row
            for row in self.xids.events
            if row.get("pci") is not None
            and any(addressed)
            and not may_belong_to_run(str(row.get("pci")), row.node, addressed, self.run)
        )

    def memory_errors(self, time: float | None) -> list[Claim]:
        """GPU memory errors up to ``time`` (POSIX seconds), else up to the run's end."""
        run, slack = self.run, self.limits.max_clock_difference_s
        latest = time + slack if time is not None else run.end
        lines = []
        for row in self.xids.events:
            in_time = row.time is not None and (run.start is None or row.time >= run.start - slack)
            own_gpu = row.get("pci") is None or may_belong_to_run(
                str(row.get("pci")), row.node, self.health.addressed, run
            )
            if (
                row.get("xid") in MEMORY_XIDS
                and own_gpu
                and in_time
                and (latest is None or (row.time or 0.0) <= latest)
            ):
                lines.append(MEMORY_XID(xid=self.xids.value(row, "xid"), line=self.xids.value(row, "text")))
        measured = [fault for fault in self.health.faults if fault.sign != "vanished"]
        measured = [fault for fault in measured if fault.number is None or fault.number in MEMORY_XIDS]
        early = [fault for fault in measured if latest is None or fault.time is None or fault.time <= latest]
        return [*lines[:1], *(fault.claim for fault in early[:MAX_MEASURED])]


@fact(
    {
        "xids": events("xid"),
        "switches": events("sxid"),
        "lost": events("gpu_lost"),
        "errors": events("cuda_error"),
        "nodes": record("node"),
    },
    limits=Limits(),
)
def hardware_reports(
    evidence: Evidence, health: HardwareHealth, drained: DrainedNodes, run: Run, limits: Limits
) -> HardwareReports:
    """Needs no particular input; empty if no log reports a failure. Metrics help to identify the GPU."""
    suspects = {fault.gpu for fault in health.faults}
    kernel: list[HardwareFault] = []
    for name in ("xids", "switches", "lost"):
        frame = evidence[name]
        for row in frame.events:
            also_xid = name == "lost" and any(xid_row.at == row.at for xid_row in evidence["xids"].events)
            if row.role not in (EventRole.CONFIRMATION, EventRole.ROOT) or also_xid:
                continue
            sure = Certainty.ESTABLISHED if row.plane == "kernel" else Certainty.SUPPORTED
            pci = None if name == "switches" else row.get("pci")  # a switch is no GPU
            if pci is not None and any(health.addressed):
                if not may_belong_to_run(str(pci), row.node, health.addressed, run):
                    continue
                pci = _one_of(gpus_at_address(str(pci), row.node, health.addressed), suspects) or pci
            kernel.append(_reported_fault(row, *_kernel_claim(name, frame, row), sure, pci))
    errors = evidence["errors"]
    job = [
        _reported_fault(
            row,
            "cuda",
            CUDA_HARDWARE_ERROR(line=errors.value(row, "text")),
            HARDWARE_CUDA_ERRORS[str(row.get("name"))],
            row.get("pci"),
        )
        for row in errors.events
        if row.get("name") in HARDWARE_CUDA_ERRORS and row.role is EventRole.ROOT
    ]
    has_input = any(evidence.has(name) for name in ("xids", "errors", "nodes"))
    faults = (*kernel, *job[:1], *_drain_faults(drained, run))
    return HardwareReports(evidence["xids"], evidence["nodes"], errors, faults, has_input, health, drained, run, limits)


def _one_of(gpus: Set[str], suspects: Set[str | None]) -> str | None:
    """The GPU at an address: the only one; else, of several nodes, the only one with other signs of a fault."""
    meant = gpus if len(gpus) == 1 else gpus & suspects
    return next(iter(meant)) if len(meant) == 1 else None


def _reported_fault(row: Event, sign: str, claim: Claim, certainty: Certainty, gpu: object) -> HardwareFault:
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


def _kernel_claim(name: str, frame: Frame, row: Event) -> tuple[str, Claim]:
    line = frame.value(row, "text")
    number = row.get("xid")
    if name == "xids" and isinstance(number, int):
        value = frame.value(row, "xid")
        return "xid", XID_REPORTED(xid=value, name=derived(xid(number).name, value), line=line)
    if name == "switches":
        return "switch", SWITCH_FAILED(pci=frame.value(row, "pci"), sxid=frame.value(row, "sxid", "code"), line=line)
    return "lost", GPU_UNREACHABLE(line=line)


def _drain_faults(drained: DrainedNodes, run: Run) -> Iterator[HardwareFault]:
    """Nodes of the run that were drained or set down for a GPU fault during the run or soon after."""
    for _, row, node, reason in drained.reports:
        if reason is None or not GPU_DRAIN_REASON.search(str(reason.value)):
            continue
        time = row.get("reason_time") if isinstance(row, Record) else row.time
        when = float(time) if isinstance(time, (int, float)) else None
        name = str(node.value)
        index = GPU_IN_DRAIN_REASON.search(str(reason.value))
        gpu = f"{name}:{int(index[1])}" if index is not None else None
        if gpu is not None and run.gpus and run.gpus_by != "all" and gpu not in run.gpus:
            continue  # another job's
        match = XID_IN_DRAIN_REASON.search(str(reason.value))
        number = int(match[1]) if match is not None else None
        is_down = row.get("state") == "down" and not (isinstance(row, Record) and "drain" in row.many("flags"))
        claim = (NODE_DOWN if is_down else NODE_DRAINED)(node=node, reason=reason)
        if number is not None:
            xid_value = derived(number, reason)
            sentence = NODE_DOWN_FOR_XID if is_down else NODE_DRAINED_FOR_XID
            claim = sentence(node=node, xid=xid_value, name=derived(xid(number).name, reason), reason=reason)
        sign = "set_down" if is_down else "drained"
        yield HardwareFault(sign, claim, Certainty.SUPPORTED, row.plane, row.at, when, when, name, gpu, number, row)
