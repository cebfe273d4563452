"""GPU hardware fault: Xid, uncorrectable memory error or a failed row remap under the job.

Meaning
-------
A GPU, its memory or its link degraded or failed while the job ran on it. That is the hardware's fault, not the
code's. A quieter case is latent: a fault that lies before the run or that the run survived; it marks a GPU to look
at, and does not change the verdict.

What it looks like
------------------
In the kernel log an Xid of the hardware class (uncontained or double-bit ECC, fallen off the bus, row-remap
failure, NVLink, GSP), or a fatal SXid of an NVSwitch, when the run failed. In the job's log CUDA's own
"uncorrectable ECC error encountered". At the scheduler a node drained for such a reason.

Not this when
-------------
Only Xids that usually blame the application were seen (illegal access, MMU fault, channel reset, clean-up), unless
they come again and again on one GPU under different processes. The fault lies long before the run, or training
went on after it, or the run ended well: then it is latent. A health flag alone is incidental.

Impact
------
The run is lost since its last checkpoint, and so is every run that is placed on this GPU.

Do next
-------
Drain the node, reset or replace the GPU, and rerun on healthy hardware from the last checkpoint.

What it cannot tell
-------------------
Without a kernel log: Xids don't show inside a container. Which part failed, and whether a reset cures it.

References
----------
NVIDIA, Xid errors and GPU memory error management; NVIDIA Fabric Manager user guide.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trackside.catalog.xid import xid
from trackside.diagnose.ending import ENDING, abnormal_end, completed, last_job
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found, unknown
from trackside.diagnose.learning import training_points
from trackside.diagnose.order import followed_by
from trackside.diagnose.ranks import rank_of
from trackside.model import Certainty, Claim, Event, Finding, Record, Role, Run, Value
from trackside.query import Frame, derived, events, record


@dataclass(frozen=True)
class Limits:
    """When a fault belongs to the run, and when an innocent code becomes suspicious."""

    before_start_s: float = 60.0
    """Clocks of kernel log and scheduler may differ by as much; earlier faults are not the run's."""
    after_end_s: float = 120.0
    """A dying GPU is often reported while the job is torn down (Slurm's KillWait is 30 s)."""
    clock_slack_s: float = 120.0
    """dmesg -T drifts against the wall clock; failures this near to a fault are taken as its consequence."""
    drained_after_s: float = 3600.0
    """Health checks run every few minutes up to hourly."""
    repeats: int = 3
    """Different processes that hit the same application-class Xid on one GPU before the GPU is suspected."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One witness of broken hardware."""

    row: Event | Record
    claim: Claim
    certainty: Certainty
    time: float | None


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
COLLECT = (
    "dmesg -T or journalctl -k of the job's nodes (Xid lines are not visible inside containers)",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT of the job's nodes",
)


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Hardware-class faults in the run's window that no training point follows; the others are latent."""
    told = _faults(evidence, run, limits)
    well = completed(evidence)
    points = training_points(evidence["progress"])
    active = [fault for fault in told if well is None and _active(fault, points, run, limits)]
    if active:
        return _found(evidence, run, limits, active)
    if told:
        finding = _found(evidence, run, limits, told)
        why = claim("ended_well", state=well) if well is not None else claim("not_then")
        return replace(finding, latent=True, variant="latent", shows=(*finding.shows, why), signal=None)
    repeated = _repeated(evidence["xids"], limits)
    if repeated is not None:
        return repeated
    xids = evidence["xids"]
    if xids:
        row = xids.events[-1]
        return absent(claim("application", xid=xids.value(row, "xid"), line=xids.value(row, "text")))
    if "kernel" not in xids.covered:
        return unknown(["no kernel log of the run's nodes was given"], COLLECT)
    return absent(claim("none", count=xids.reduce("count")))


def _faults(evidence: Evidence, run: Run, limits: Limits) -> list[Fault]:
    """Every witness: kernel first, then the job's log, then the scheduler's drain reasons."""
    kernel: list[Fault] = []
    for name in ("xids", "switches", "lost"):
        frame = evidence[name]
        for row in frame.events:
            if row.role in (Role.CONFIRMATION, Role.ROOT) and not (name == "lost" and _also_xid(row, evidence)):
                sure = Certainty.ESTABLISHED if row.plane == "kernel" else Certainty.SUPPORTED
                kernel.append(Fault(row, _kernel_claim(name, frame, row), sure, row.time))
    errors = evidence["errors"]
    job = [
        Fault(row, claim("cuda", line=errors.value(row, "text")), IN_JOB_LOG[str(row.get("name"))], row.time)
        for row in errors.events
        if row.get("name") in IN_JOB_LOG and row.role is Role.ROOT
    ]
    return [*kernel, *job[:1], *_drained(evidence, run, limits)]


def _also_xid(row: Event, evidence: Evidence) -> bool:
    return any(each.at == row.at for each in evidence["xids"].events)


def _kernel_claim(name: str, frame: Frame, row: Event) -> Claim:
    line = frame.value(row, "text")
    number = row.get("xid")
    if name == "xids" and isinstance(number, int):
        told = frame.value(row, "xid")
        return claim("xid", xid=told, name=derived(xid(number).mnemonic, told), line=line)
    return claim("switch" if name == "switches" else "lost", line=line)


def _drained(evidence: Evidence, run: Run, limits: Limits) -> list[Fault]:
    """Nodes of the run that were taken out for a GPU fault while it ran, or soon after."""
    nodes, found_ = evidence["nodes"], []
    job = last_job(evidence["jobs"])
    end = run.end if run.end is not None else (job.get("end") if job is not None else None)
    for row in nodes.records:
        reason, time = str(row.get("reason") or ""), row.get("reason_time")
        mine = not run.nodes or row.get("name") in run.nodes
        if not mine or not DRAINED_FOR.search(reason):
            continue
        late = isinstance(time, (int, float)) and isinstance(end, (int, float)) and time > end + limits.drained_after_s
        if not late:
            told = claim("drained", node=nodes.value(row, "name"), reason=nodes.value(row, "reason"))
            found_.append(
                Fault(row, told, Certainty.SUPPORTED, float(time) if isinstance(time, (int, float)) else None)
            )
    return found_


def _active(fault: Fault, points: Sequence[Event], run: Run, limits: Limits) -> bool:
    """Whether it lies in the run's window and no training point came after it."""
    time, row = fault.time, fault.row
    if isinstance(row, Event) and followed_by(row, points) is not None:
        return False
    if time is None:
        return True
    slack = limits.drained_after_s if isinstance(row, Record) else limits.after_end_s
    after_start = run.start is None or time >= run.start - limits.before_start_s
    return after_start and (run.end is None or time <= run.end + slack)


def _found(evidence: Evidence, run: Run, limits: Limits, told: Sequence[Fault]) -> Finding:
    best = max(told, key=lambda fault: fault.certainty.strength)
    rows = [fault.row for fault in told]
    bad = abnormal_end(evidence)
    certainty = best.certainty
    placed = best.time is not None or len({row.plane for row in rows}) > 1 or _same_process(evidence, rows)
    if certainty is Certainty.ESTABLISHED and (not placed or bad is None):
        certainty = Certainty.SUPPORTED
    if certainty is Certainty.SUPPORTED and len({row.plane for row in rows}) > 1:
        certainty = Certainty.ESTABLISHED
    shows = [fault.claim for fault in _one_of_each(told)]
    if bad is not None:
        shows.append(claim("ended", state=bad))
    nodes = _nodes(rows, run)
    actions = [action("drain")]
    if nodes:
        source = next(iter(told[0].claim.values.values()))
        actions = [action("drain", "drain_command", node=derived(",".join(nodes), source))]
    number = best.row.get("xid")
    if isinstance(number, int):
        line = evidence["xids"].value(best.row, "xid")
        actions.insert(0, action("advised", advice=derived(xid(number).action, line)))
    events_ = [row for row in rows if isinstance(row, Event)]
    ranks = {rank for row in events_ if (rank := rank_of(row, evidence["launchers"])) is not None}
    return found(
        certainty,
        "infrastructure",
        shows,
        implies=[claim("hardware")],
        cannot_decide=[claim("which_part")] + ([] if placed else [claim("no_clock")]),
        actions=actions,
        since=_since(evidence, told, limits),
        at=best.row.at,
        variant="active",
        ranks=tuple(sorted(ranks)),
        nodes=nodes,
        gpus=tuple(sorted({str(row.get("pci")).partition(".")[0] for row in rows if row.get("pci")})),
    )


def _one_of_each(told: Sequence[Fault]) -> list[Fault]:
    """The first witness of each kind and number, so that a storm of one Xid is told once."""
    first: dict[tuple[str, object], Fault] = {}
    for fault in told:
        first.setdefault((fault.claim.key, fault.row.get("xid") or fault.row.get("sxid")), fault)
    return list(first.values())


def _same_process(evidence: Evidence, rows: Sequence[Event | Record]) -> bool:
    """Whether a fault names a process that the launcher names, too."""
    pids = {row.get("pid") for row in evidence["launchers"].events} - {None}
    return any(row.get("pid") in pids for row in rows)


def _nodes(rows: Sequence[Event | Record], run: Run) -> tuple[str, ...]:
    names = {str(name) for row in rows if (name := row.get("node") or (row.kind == "node" and row.get("name")))}
    return tuple(sorted(names)) or (run.nodes if len(run.nodes) == 1 else ())


def _since(evidence: Evidence, told: Sequence[Fault], limits: Limits) -> float | None:
    """The fault's time, or that of a failure so near to it that only the clocks tell them apart."""
    times = [fault.time for fault in told if fault.time is not None and isinstance(fault.row, Event)]
    if not times:
        return None
    start = min(times)
    for name in ("errors", "exceptions", "launchers", "exits"):
        near = [row.time for row in evidence[name].events if row.time is not None]
        times += [time for time in near if abs(time - start) <= limits.clock_slack_s]
    return min(times)


def _repeated(xids: Frame, limits: Limits) -> Finding | None:
    """The same application-class Xid on one GPU under several processes: a GPU to look at."""
    seen: dict[tuple[str, int], dict[object, Event]] = defaultdict(dict)
    for row in xids.events:
        number, pid = row.get("xid"), row.get("pid")
        if isinstance(number, int) and pid is not None and xid(number).blame in ("application", "either"):
            seen[str(row.get("pci")), number].setdefault(pid, row)
    many = {key: rows for key, rows in seen.items() if len(rows) >= limits.repeats}
    for (pci, number), rows in many.items():
        if not any(other == number and gpu != pci for gpu, other in many):
            lines: list[Value] = [xids.value(row, "text") for row in rows.values()]
            last = list(rows.values())[-1]
            count = derived(len(rows), *lines)
            return found(
                Certainty.POSSIBLE,
                "unknown",
                [claim("again", count=count, xid=xids.value(last, "xid"), gpu=xids.value(last, "pci"))],
                actions=[action("test_gpu")],
                at=last.at,
                variant="latent",
                gpus=(pci,),
                latent=True,
            )
    return None


FAMILY = Family(
    code="B2",
    id="gpu-hardware-fault",
    title="GPU hardware fault",
    asks={
        **ENDING,
        "xids": events("xid"),
        "switches": events("sxid"),
        "lost": events("gpu_lost"),
        "errors": events("cuda_error"),
        "exceptions": events("exception"),
        "nodes": record("node"),
        "progress": events("progress"),
    },
    needs=(("xids", "errors", "nodes"),),
    limits=Limits(),
    explains=("A1", "A2", "C1", "C2", "F1", "F3", "H2", "H3"),
    rivals=("A1", "H2", "F1"),
    collect=COLLECT,
    says={
        "xid": "the kernel reported Xid {xid} ({name}): {line}",
        "switch": "an NVSwitch reported a fatal error: {line}",
        "lost": "a GPU could no longer be reached: {line}",
        "cuda": "CUDA itself blamed the hardware: {line}",
        "drained": "node {node} was taken out for {reason}",
        "ended": "the run ended badly: {state}",
        "ended_well": "the run ended well all the same: {state}",
        "not_then": "the run's own failure does not coincide with it",
        "hardware": "the hardware failed under the job; this is no code fix",
        "which_part": "which part failed, and whether a reset cures it",
        "no_clock": "whether it fell into the run: the kernel log carries no wall-clock times",
        "advised": "for this Xid NVIDIA advises: {advice}",
        "drain": "drain the node, reset or replace the GPU, and rerun on healthy hardware from the last checkpoint",
        "drain_command": "scontrol update nodename={node} state=drain reason='GPU fault'",
        "again": "{count} processes hit Xid {xid} on the same GPU {gpu}: the GPU itself may be at fault",
        "test_gpu": "run the vendor's diagnostics on this GPU before it gets another long job",
        "application": "the kernel reported only Xids that usually blame the application, such as {xid}: {line}",
        "none": "the kernel log holds {count} Xids",
    },
    judge=judge,
)
