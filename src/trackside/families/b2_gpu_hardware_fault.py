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
from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe
from trackside.facts.gpu.activity import GpuActivity
from trackside.facts.gpus import of_ranks, one_name_each
from trackside.facts.hardware.health import HardwareFault, HardwareHealth
from trackside.facts.hardware.repeated_xids import RepeatedXid
from trackside.facts.hardware.reports import HardwareReports
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import followed_by
from trackside.facts.ranks import ranks_of
from trackside.facts.training.learning import Trajectory
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, absent, action, found
from trackside.model import Event, Record, Run


@dataclass(frozen=True)
class Limits:
    """When a fault belongs to the run."""

    before_start_s: float = 60.0
    """Clocks of kernel log and scheduler may differ by as much; earlier faults are not the run's."""
    after_end_s: float = 120.0
    """A dying GPU is often reported while the job is torn down (Slurm's KillWait is 30 s)."""
    clock_slack_s: float = 120.0
    """dmesg -T drifts against the wall clock; failures this near to a fault are taken as its consequence."""
    coincident_s: float = 2100.0
    """From a counter's rise to the run's end, where nothing tells whether work went on meanwhile: peers wait up to
    30 minutes for a lost GPU (PyTorch's longest default time-out), and some minutes go by in tear-down."""


MAX_CLAIMS = 6
"""Claims of one kind that are worth reading: a failed switch makes many GPUs report."""

ENDED = Sentence("the run ended badly: {state}")
ENDED_WELL = Sentence("the run ended well all the same: {state}")
TOO_EARLY = Sentence("on {gpus} that was before the run began, at {when}")
TOO_LATE = Sentence("on {gpus} that was after the run had ended, at {when}")
NOT_THEN = Sentence("the run's own failure does not coincide with it")
UNDATED = Sentence("when node {node} was taken out isn't recorded: it may have been before the run or long after")
HARDWARE = Sentence("the hardware failed under the job; this is no code fix")
LATENT = Sentence(
    "the counter lies before this run and did not move: it does not change the verdict, but the GPU may fail outright"
)
WHICH_PART = Sentence("which part failed, and whether a reset cures it")
NO_CLOCK = Sentence("whether it fell into the run: the kernel log carries no wall-clock times")
ADVISED = Sentence("for this Xid NVIDIA advises: {advice}")
DRAIN = Sentence("drain the node, reset or replace the GPU, and rerun on healthy hardware from the last checkpoint")
DRAIN_COMMAND = Sentence("scontrol update nodename={node} state=drain reason='GPU fault'")
TEST_GPU = Sentence("run the vendor's diagnostics on this GPU before it gets another long job")
APPLICATION = Sentence("the kernel reported only Xids that usually blame the application, such as {xid}: {line}")
NONE = Sentence("the kernel log holds {count} Xids")


@dataclass(frozen=True)
class _Case:
    """The facts of one run, as the steps below weigh them."""

    reports: HardwareReports
    health: HardwareHealth
    ending: Ending
    trajectory: Maybe[Trajectory]
    exceptions: Maybe[Exceptions]
    activity: Maybe[GpuActivity]
    run: Run
    limits: Limits

    @property
    def points(self) -> tuple[Event, ...]:
        return self.trajectory.points if isinstance(self.trajectory, Trajectory) else ()


def judge(
    reports: HardwareReports,
    health: HardwareHealth,
    repeated: RepeatedXid,
    ending: Ending,
    trajectory: Maybe[Trajectory],
    exceptions: Maybe[Exceptions],
    activity: Maybe[GpuActivity],
    run: Run,
    limits: Limits,
) -> Finding | Missing:
    """Hardware-class faults in the run's window that no training point follows; the others are latent."""
    if not reports.given and not health.measured:
        return Missing(NOT_GIVEN)
    case = _Case(reports, health, ending, trajectory, exceptions, activity, run, limits)
    faults, well = [*reports.faults, *health.faults], ending.completed
    active = [fault for fault in faults if well is None and _active(case, fault)]
    if active:
        return _found(case, active)
    if faults:
        finding = _found(case, faults)
        why = _outside(case, faults) or [ENDED_WELL(state=well) if well is not None else _not_then(case, faults)]
        return replace(finding, latent=True, variant="latent", shows=(*finding.shows, *why), signal=None)
    if repeated.again is not None:
        shows, at, gpu = repeated.again
        return found(Certainty.POSSIBLE, "unknown", [shows], actions=[action(TEST_GPU)], at=at, variant="latent",
                     gpus=(gpu,), latent=True)  # fmt: skip
    return _old(health) or _ruled_out(case)


# -- whether a fault belongs to the run


def _active(case: _Case, fault: HardwareFault) -> bool:
    """Whether it lies in the run's window and no work of the run came after it."""
    run, limits, points = case.run, case.limits, case.points
    if isinstance(fault.row, Record):  # the scheduler's, of the run's time if it has a time
        return fault.time is not None or run.end is None
    if fault.time is None or fault.until is None:
        return not isinstance(fault.row, Event) or followed_by(fault.row, points) is None
    inside = run.start is None or fault.until >= run.start - limits.before_start_s
    inside &= run.end is None or fault.time <= run.end + limits.after_end_s
    if not inside:
        return False
    if isinstance(fault.row, Event):
        return followed_by(fault.row, points) is None
    later = fault.until + limits.clock_slack_s
    stamped = [point.time for point in points if point.time is not None]
    if stamped:
        return max(stamped) <= later
    worked = case.activity.worked_after(later) if isinstance(case.activity, GpuActivity) else None
    if worked is None and run.end is not None and not case.ending.running:
        return run.end - fault.until <= limits.coincident_s
    return not worked


def _outside(case: _Case, faults: Sequence[HardwareFault]) -> list[Claim]:
    """Which of these came before the run began or after its end; none if one may have come in its time."""
    run = case.run
    early: dict[str, HardwareFault] = {}
    late: dict[str, HardwareFault] = {}
    for fault in faults:
        before = run.start is not None and fault.until is not None and fault.until < run.start
        if not before and not (run.end is not None and fault.time is not None and fault.time > run.end):
            return []
        (early if before else late).setdefault(str(fault.gpu or fault.node or "a GPU"), fault)
    sides = ((TOO_EARLY, "start", run.start, early), (TOO_LATE, "end", run.end, late))
    return [_outside_claim(case, *side) for side in sides if side[3]]


def _outside_claim(
    case: _Case, sentence: Sentence, name: str, bound: float | None, faults: Mapping[str, HardwareFault]
) -> Claim:
    source = next(iter(next(iter(faults.values())).claim.values.values()))
    job, when = case.ending.job, derived(bound, source, unit="time")
    if job is not None and job.get(name) == bound:
        when = case.ending.jobs.value(job, name, "time")
    return sentence(gpus=derived(tuple(faults), source), when=when)


def _not_then(case: _Case, faults: Sequence[HardwareFault]) -> Claim:
    """Why none of these is the failure's cause: it came at another time, or nobody recorded when."""
    undated = [fault.row for fault in faults if isinstance(fault.row, Record) and fault.time is None]
    return NOT_THEN() if len(undated) < len(faults) else UNDATED(node=case.reports.nodes.value(undated[0], "name"))


# -- the finding


def _found(case: _Case, faults: Sequence[HardwareFault]) -> Finding:
    best = max(faults, key=lambda fault: fault.certainty.strength)
    planes, bad, run = {fault.plane for fault in faults}, case.ending.abnormal, case.run
    pids = {row.get("pid") for row in case.ending.launchers.events} - {None}
    same_process = any(fault.row is not None and fault.row.get("pid") in pids for fault in faults)
    placed = best.time is not None or len(planes) > 1 or same_process
    certainty = best.certainty
    if certainty is Certainty.ESTABLISHED and (not placed or bad is None):
        certainty = Certainty.SUPPORTED
    if certainty is Certainty.SUPPORTED and len(planes) > 1:
        certainty = Certainty.ESTABLISHED
    rows = [fault.row for fault in faults if isinstance(fault.row, Event)]
    ranks = ranks_of(rows, case.ending.launchers)
    gpus = one_name_each([(fault.node, fault.gpu) for fault in faults if fault.gpu], run) or of_ranks(run, ranks)
    nodes = tuple(sorted({f.node for f in faults if f.node})) or (run.nodes if len(run.nodes) == 1 else ())
    return found(
        certainty,
        "infrastructure",
        [*(fault.claim for fault in _few_of_each(faults)), *([ENDED(state=bad)] if bad is not None else [])],
        implies=[HARDWARE()],
        cannot_decide=[WHICH_PART()] if placed else [WHICH_PART(), NO_CLOCK()],
        actions=_actions(faults, nodes),
        since=_since(case, faults),
        at=best.at,
        variant="active",
        ranks=ranks,
        nodes=nodes,
        gpus=gpus,
    )


def _actions(faults: Sequence[HardwareFault], nodes: Sequence[str]) -> list[Action]:
    source = next(iter(faults[0].claim.values.values()))
    actions = [action(DRAIN, DRAIN_COMMAND, node=derived(",".join(nodes), source)) if nodes else action(DRAIN)]
    numbered = next((fault for fault in faults if fault.number is not None), None)
    if numbered is not None and numbered.number is not None:
        advice = derived(xid(numbered.number).action, numbered.claim.values["xid"])
        actions.insert(0, action(ADVISED, advice=advice))
    return actions


def _few_of_each(faults: Sequence[HardwareFault]) -> list[HardwareFault]:
    """The first witness of each kind and number in words, so that a storm of one Xid is shown once; of each GPU in
    figures."""
    first: dict[tuple[object, ...], HardwareFault] = {}
    for fault in faults:
        number = fault.number or (fault.row.get("sxid") if fault.row is not None else None)
        first.setdefault((fault.sign, number, fault.gpu if fault.plane == "metric" else None), fault)
    counts: dict[str, int] = defaultdict(int)
    few = []
    for fault in first.values():
        counts[fault.sign] += 1
        few += [fault] if counts[fault.sign] <= MAX_CLAIMS else []
    return few


def _since(case: _Case, faults: Sequence[HardwareFault]) -> float | None:
    """The fault's time, or that of a failure so near to it that only the clocks distinguish them.

    Times of words are to the second; those of figures only say between which samples it was.
    """
    dated = [fault for fault in faults if fault.time is not None and not isinstance(fault.row, Record)]
    exact = [fault for fault in dated if fault.plane != "metric"] or dated
    times = [fault.time for fault in exact if fault.time is not None]
    if not times:
        return None
    start, until = min(times), max(fault.until or 0.0 for fault in exact if fault.time == min(times))
    slack = case.limits.clock_slack_s
    exceptions = [] if isinstance(case.exceptions, Missing) else [case.exceptions.frame]
    for frame in (case.reports.errors, *exceptions, case.ending.launchers, case.ending.exits):
        near = [row.time for row in frame.events if row.time is not None]
        times += [time for time in near if start - slack <= time <= until + slack]
    return min(times)


# -- no fault of this run


def _old(health: HardwareHealth) -> Finding | None:
    """Counters and flags that stood before the run: a GPU to look at, whatever the verdict."""
    gpus = tuple(dict.fromkeys(name for _, names in health.old for name in names))
    if not gpus:
        return None
    nodes = dict.fromkeys(name.rpartition(":")[0] for name in gpus)
    return found(
        Certainty.SUPPORTED,
        "infrastructure",
        [claim for claim, _ in health.old],
        implies=[LATENT()],
        actions=[action(TEST_GPU)],
        variant="latent",
        nodes=tuple(node for node in nodes if node),
        gpus=gpus,
        latent=True,
    )


def _ruled_out(case: _Case) -> Finding | Missing:
    """Absent with the figures that show it; missing if neither the kernel nor a counter was read."""
    xids = case.reports.xids
    because: list[Claim] = []
    if xids:
        row = xids.events[-1]
        because.append(APPLICATION(xid=xids.value(row, "xid"), line=xids.value(row, "text")))
    because += [*case.health.application[-1:], *case.health.clean]
    if not xids and "kernel" in xids.covered:
        because.append(NONE(count=xids.reduce("count")))
    return absent(*because) if because else Missing(NOT_GIVEN)


NOT_GIVEN = "neither a kernel log nor error counters of the run's GPUs were given"

FAMILY = Family(
    code="B2",
    id="gpu-hardware-fault",
    title="GPU hardware fault",
    pictured=("ecc", "timeline"),
    judge=judge,
    limits=Limits(),
    explains=("A1", "A2", "C1", "C2", "F1", "F3", "H2", "H3"),
    rivals=("A1", "H2", "F1"),
    collect=(
        "dmesg -T or journalctl -k of the job's nodes (Xid lines are not visible inside containers)",
        "nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT of the job's nodes",
        "DCGM_FI_DEV_XID_ERRORS, DCGM_FI_DEV_ECC_DBE_VOL_TOTAL and DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS "
        "over the run",
    ),
)
