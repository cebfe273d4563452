"""GPU hardware fault: Xid, uncorrectable memory error or a failed row remap under the job.

Meaning
-------
A GPU, its memory or its link degraded or failed while the job ran on it. That is the hardware's fault, not the
code's. A quieter case is latent: a fault that lies before the run or that the run survived; it marks a GPU to look
at, and does not change the verdict.

What it looks like
------------------
In the kernel log an Xid of the hardware class (uncontained or double-bit ECC, fallen off the bus, row-remap
failure, NVLink, GSP), or a fatal SXid of an NVSwitch, when the run failed. In metrics the count of uncorrectable ECC
errors or of rows remapped for them rises, the flag of a failed remap is set, the gauge of the last Xid changes to such
a number, or one GPU is no longer sampled while the others of its node are. In the job's log CUDA's own
"uncorrectable ECC error encountered". At the scheduler a node drained for such a reason while the run was
there or within minutes of its end, before it was in service again.

Not this when
-------------
Only Xids that usually blame the application were seen (illegal access, MMU fault, channel reset, clean-up), unless
they come again and again on one GPU under different processes. The fault lies long before the run, or training
went on after it, or the run ended well: then it is latent, and so is a counter that stood above zero and did not
rise. A counter that is restarted with its exporter did not rise. A health flag alone is incidental. The GPU
belongs to another job on the node: by its label, by what the scheduler records, or because it did nothing while the
run's GPUs worked and only memory in use tells whose they were.

Impact
------
The run is lost since its last checkpoint, and so is every run that is placed on this GPU.

Do next
-------
Drain the node, reset or replace the GPU, and rerun on healthy hardware from the last checkpoint.

What it cannot tell
-------------------
Without a kernel log and GPU metrics: Xids don't show inside a container. Which part failed, and whether a reset
cures it. An Xid that comes again while the gauge still shows the same number.

References
----------
NVIDIA, Xid errors and GPU memory error management; NVIDIA Fabric Manager user guide; NVIDIA DCGM, field identifiers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trackside.catalog.xid import xid
from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts.gpu.signals import ACTIVITY
from trackside.facts.gpus import of_ranks, one_name_each
from trackside.facts.hardware.health import HEALTH, MEASURED, SAYS, Fault, Health, health
from trackside.facts.hardware.witnesses import WITNESS_SAYS, witnesses
from trackside.facts.logs.ending import ENDING, abnormal_end, completed, last_job, still_running
from trackside.facts.logs.order import followed_by
from trackside.facts.ranks import ranks_of
from trackside.facts.training.learning import training_points
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Record, Run
from trackside.query import events, record


@dataclass(frozen=True)
class Limits:
    """When a fault belongs to the run, and when an innocent code becomes suspicious."""

    before_start_s: float = 60.0
    """Clocks of kernel log and scheduler may differ by as much; earlier faults are not the run's."""
    after_end_s: float = 120.0
    """A dying GPU is often reported while the job is torn down (Slurm's KillWait is 30 s)."""
    clock_slack_s: float = 120.0
    """dmesg -T drifts against the wall clock; failures this near to a fault are taken as its consequence."""
    coincident_s: float = 2100.0
    """From a counter's rise to the run's end, where nothing tells whether work went on meanwhile: peers wait up to
    30 minutes for a lost GPU (PyTorch's longest default time-out), and some minutes go by in tear-down."""
    repeats: int = 3
    """Different processes that hit the same application-class Xid on one GPU before the GPU is suspected."""


COLLECT = (
    "dmesg -T or journalctl -k of the job's nodes (Xid lines are not visible inside containers)",
    "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT of the job's nodes",
    "DCGM_FI_DEV_XID_ERRORS, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL and DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS over the run",
)
SHOWN = 6
"""Claims of one kind that are worth reading: a failed switch makes many GPUs report."""


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """Hardware-class faults in the run's window that no training point follows; the others are latent."""
    measured = health(evidence, run)
    suspects = {fault.gpu for fault in measured.faults}
    told = [*witnesses(evidence, run, suspects), *measured.faults]
    well = completed(evidence)
    points = training_points(evidence["progress"])
    active = [fault for fault in told if well is None and _active(fault, points, run, limits, evidence)]
    if active:
        return _found(evidence, run, limits, active)
    if told:
        finding = _found(evidence, run, limits, told)
        why = _outside(evidence, run, told) or [
            claim("ended_well", state=well) if well is not None else _not_then(evidence, told)
        ]
        return replace(finding, latent=True, variant="latent", shows=(*finding.shows, *why), signal=None)
    repeated = _repeated(evidence["xids"], limits)
    if repeated is not None:
        return repeated
    return _old(measured) or _ruled_out(evidence, measured)


def _outside(evidence: Evidence, run: Run, told: Sequence[Fault]) -> list[Claim]:
    """Which of these came before the run began or after its end; none where one may have come in its time."""
    found: dict[str, dict[str, Fault]] = {"too_early": {}, "too_late": {}}
    for fault in told:
        early = run.start is not None and fault.until is not None and fault.until < run.start
        if not early and not (run.end is not None and fault.time is not None and fault.time > run.end):
            return []
        found["too_early" if early else "too_late"].setdefault(str(fault.gpu or fault.node or "a GPU"), fault)
    return [_beside(evidence, run, key, faults) for key, faults in found.items() if faults]


def _beside(evidence: Evidence, run: Run, key: str, faults: Mapping[str, Fault]) -> Claim:
    source = next(iter(next(iter(faults.values())).claim.values.values()))
    name, bound = ("start", run.start) if key == "too_early" else ("end", run.end)
    job, jobs = last_job(evidence["jobs"]), evidence["jobs"]
    when = derived(bound, source, unit="time")
    if job is not None and job.get(name) == bound:
        when = jobs.value(job, name, "time")
    return claim(key, gpus=derived(tuple(faults), source), when=when)


def _not_then(evidence: Evidence, told: Sequence[Fault]) -> Claim:
    """Why none of these is the failure's cause: it came at another time, or when isn't told."""
    undated = [fault.row for fault in told if isinstance(fault.row, Record) and fault.time is None]
    if len(undated) < len(told):
        return claim("not_then")
    return claim("undated", node=evidence["nodes"].value(undated[0], "name"))


def _old(measured: Health) -> Finding | None:
    """Counters and flags that stood before the run: a GPU to look at, whatever the verdict."""
    gpus = tuple(dict.fromkeys(name for _, names in measured.old for name in names))
    if not gpus:
        return None
    nodes = dict.fromkeys(name.rpartition(":")[0] for name in gpus)
    return found(
        Certainty.SUPPORTED,
        "infrastructure",
        [each for each, _ in measured.old],
        implies=[claim("latent")],
        actions=[action("test_gpu")],
        variant="latent",
        nodes=tuple(node for node in nodes if node),
        gpus=gpus,
        latent=True,
    )


def _ruled_out(evidence: Evidence, measured: Health) -> Finding:
    """Absent with the figures that show it; unknown where neither the kernel nor a counter was read."""
    xids = evidence["xids"]
    because: list[Claim] = []
    if xids:
        row = xids.events[-1]
        because.append(claim("application", xid=xids.value(row, "xid"), line=xids.value(row, "text")))
    because += [*measured.application[-1:], *measured.clean]
    if not xids and "kernel" in xids.covered:
        because.append(claim("none", count=xids.reduce("count")))
    if not because:
        return unknown(["neither a kernel log nor error counters of the run's GPUs were given"], COLLECT)
    return absent(*because)


def _active(fault: Fault, points: Sequence[Event], run: Run, limits: Limits, evidence: Evidence) -> bool:
    """Whether it lies in the run's window and no work of the run came after it."""
    if isinstance(fault.row, Record):  # the scheduler's, of the run's time if it has a time
        return fault.time is not None or run.end is None
    if fault.time is None or fault.until is None:
        return not isinstance(fault.row, Event) or followed_by(fault.row, points) is None
    inside = run.start is None or fault.until >= run.start - limits.before_start_s
    inside &= run.end is None or fault.time <= run.end + limits.after_end_s
    if not inside:
        return inside
    if isinstance(fault.row, Event):
        return followed_by(fault.row, points) is None
    later = fault.until + limits.clock_slack_s
    stamped = [point.time for point in points if point.time is not None]
    if stamped:
        return max(stamped) <= later
    from trackside.facts.hardware.hardware import worked_after  # arrays: only a fault that was measured gets here

    worked = worked_after(evidence, run, later)
    if worked is None and run.end is not None and not still_running(evidence):
        return run.end - fault.until <= limits.coincident_s
    return not worked


def _found(evidence: Evidence, run: Run, limits: Limits, told: Sequence[Fault]) -> Finding:
    best = max(told, key=lambda fault: fault.certainty.strength)
    planes = {fault.plane for fault in told}
    bad = abnormal_end(evidence)
    certainty = best.certainty
    placed = best.time is not None or len(planes) > 1 or _same_process(evidence, told)
    if certainty is Certainty.ESTABLISHED and (not placed or bad is None):
        certainty = Certainty.SUPPORTED
    if certainty is Certainty.SUPPORTED and len(planes) > 1:
        certainty = Certainty.ESTABLISHED
    shows = [fault.claim for fault in _some_of_each(told)]
    if bad is not None:
        shows.append(claim("ended", state=bad))
    rows = [fault.row for fault in told if isinstance(fault.row, Event)]
    unsure = [claim("which_part")] + ([] if placed else [claim("no_clock")])
    ranks = ranks_of(rows, evidence["launchers"])
    gpus = one_name_each([(fault.node, fault.gpu) for fault in told if fault.gpu], run) or of_ranks(run, ranks)
    nodes = tuple(sorted({f.node for f in told if f.node})) or (run.nodes if len(run.nodes) == 1 else ())
    return found(
        certainty,
        "infrastructure",
        shows,
        implies=[claim("hardware")],
        cannot_decide=unsure,
        actions=_actions(told, nodes),
        since=_since(evidence, told, limits),
        at=best.at,
        variant="active",
        ranks=ranks,
        nodes=nodes,
        gpus=gpus,
    )


def _actions(told: Sequence[Fault], nodes: Sequence[str]) -> list[Action]:
    source = next(iter(told[0].claim.values.values()))
    actions = [action("drain", "drain_command", node=derived(",".join(nodes), source)) if nodes else action("drain")]
    numbered = next((fault for fault in told if fault.number is not None), None)
    if numbered is not None and numbered.number is not None:
        line = numbered.claim.values["xid"]
        actions.insert(0, action("advised", advice=derived(xid(numbered.number).action, line)))
    return actions


def _some_of_each(told: Sequence[Fault]) -> list[Fault]:
    """The first witness of each kind and number in words, so that a storm of one Xid is told once; of each GPU in
    figures."""
    first: dict[tuple[object, ...], Fault] = {}
    for fault in told:
        number = fault.number or (fault.row.get("sxid") if fault.row is not None else None)
        first.setdefault((fault.claim.key, number, fault.gpu if fault.plane == "metric" else None), fault)
    counts: dict[str, int] = defaultdict(int)
    kept = []
    for fault in first.values():
        counts[fault.claim.key] += 1
        kept += [fault] if counts[fault.claim.key] <= SHOWN else []
    return kept


def _same_process(evidence: Evidence, told: Sequence[Fault]) -> bool:
    """Whether a fault names a process that the launcher names, too."""
    pids = {row.get("pid") for row in evidence["launchers"].events} - {None}
    return any(fault.row is not None and fault.row.get("pid") in pids for fault in told)


def _since(evidence: Evidence, told: Sequence[Fault], limits: Limits) -> float | None:
    """The fault's time, or that of a failure so near to it that only the clocks tell them apart.

    Times of words are to the second; those of figures only say between which samples it was.
    """
    told = [fault for fault in told if fault.time is not None and not isinstance(fault.row, Record)]
    exact = [fault for fault in told if fault.plane != "metric"] or told
    times = [fault.time for fault in exact if fault.time is not None]
    if not times:
        return None
    start, until = min(times), max(fault.until or 0.0 for fault in exact if fault.time == min(times))
    for name in ("errors", "exceptions", "launchers", "exits"):
        near = [row.time for row in evidence[name].events if row.time is not None]
        times += [time for time in near if start - limits.clock_slack_s <= time <= until + limits.clock_slack_s]
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
    pictured=("ecc", "timeline"),
    asks={
        **ENDING,
        **HEALTH,
        **ACTIVITY,
        "xids": events("xid"),
        "switches": events("sxid"),
        "lost": events("gpu_lost"),
        "errors": events("cuda_error"),
        "exceptions": events("exception"),
        "nodes": record("node"),
        "progress": events("progress"),
    },
    needs=(("xids", "errors", "nodes", *MEASURED),),
    limits=Limits(),
    explains=("A1", "A2", "C1", "C2", "F1", "F3", "H2", "H3"),
    rivals=("A1", "H2", "F1"),
    collect=COLLECT,
    says={
        **SAYS,
        **WITNESS_SAYS,
        "ended": "the run ended badly: {state}",
        "ended_well": "the run ended well all the same: {state}",
        "too_early": "on {gpus} that was before the run began, at {when}",
        "too_late": "on {gpus} that was after the run had ended, at {when}",
        "not_then": "the run's own failure does not coincide with it",
        "undated": "when node {node} was taken out isn't recorded: it may have been before the run or long after",
        "hardware": "the hardware failed under the job; this is no code fix",
        "latent": "the counter lies before this run and did not move: it does not change the verdict, but the GPU may "
        "fail outright",
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
