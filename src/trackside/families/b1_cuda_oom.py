"""CUDA out of memory: a rank asked for more GPU memory than the card has left.

Meaning
-------
Loading the model, a forward or backward pass or the optimizer's first step asks for more memory than the GPU
can give, and the framework raises an out-of-memory error. It is a limit of the workload's memory plan, not a
fault of the hardware.

What it looks like
------------------
torch.OutOfMemoryError or its older spellings with the size of the request, the card's capacity and what is free;
TensorFlow's ResourceExhaustedError, XLA's RESOURCE_EXHAUSTED, CUBLAS_STATUS_ALLOC_FAILED. A single request
may be larger than the whole card: then the sampled memory curve never gets near the limit. Otherwise the memory
curve of the GPU climbs to the card's capacity, while its error counters stay clean. Without a log only the framework's
own count of failed allocations or the curve can tell, and that it climbed to the top and fell when the run failed is a
hint, no more.

Not this when
-------------
It was caught and training went on (a smaller batch is tried). Host memory ran out (DefaultCPUAllocator,
SIGKILL): that is a signal kill. Advice about memory is no error. Another process held the memory before the job
came: then the plan may be sound. A curve that is near the top all the time is a caching allocator at work.

Impact
------
The run ends; every rerun with the same settings ends at the same place.

Do next
-------
Smaller micro-batch with more accumulation, activation checkpointing, sharding of the optimizer and the
parameters, a shorter sequence. With much memory reserved but not allocated, expandable segments. With another
process on the GPU, find and end it.

What it cannot tell
-------------------
Which of these knobs is the right one: the training configuration is not in the telemetry. What a single request asked
for, where only curves were given: it never shows in samples.

References
----------
PyTorch notes on CUDA memory management; TensorFlow and XLA allocator messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Frame, derived
from trackside.facts.gpus import of_gpu, of_ranks
from trackside.facts.hardware.health import CLEAN, CLEAN_SAYS, clean
from trackside.facts.hardware.memory import GPU_MEMORY, Peak, capacity_of, during, fullest, taken_before
from trackside.facts.logs.ending import ENDING, abnormal_end, completed, exit_signal, last_job
from trackside.facts.logs.exceptions import earliest_first, last_words
from trackside.facts.logs.order import followed_by, points_before
from trackside.facts.ranks import named, ranks_of
from trackside.facts.training.learning import number, training_points
from trackside.family import Family
from trackside.finding import Certainty, Claim, Culprit, Finding, absent, action, claim, found, unknown
from trackside.model import Event, Role, Run
from trackside.query import events, metric

if TYPE_CHECKING:  # arrays: only runs with metrics need them
    from trackside.facts.hardware.counters import Change


@dataclass(frozen=True)
class Limits:
    """When memory that is not free is somebody else's, or only in pieces."""

    fragmented_share: float = 0.1
    """Reserved but not allocated, as a share of the card: PyTorch's own message advises expandable segments
    where this is 'large'; a tenth of the card is more than its allocator's normal rounding."""
    neighbour_share: float = 0.1
    """Held by other processes, as a share of the card: several CUDA contexts alone take about 2 % each
    (the catalogue's A1)."""
    near: float = 0.9
    """Share of the card at which the curve is near its top: the allocator gives back before it fails, and samples
    miss the last seconds."""
    full: float = 0.97
    """The same where nothing but the curve tells of it."""
    late_s: float = 600.0
    """Before the run's end: a curve that reached its top earlier was a cache, which fills up and stays."""


COLLECT = (
    "every rank's output with its tracebacks",
    "DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE of the job's GPUs over the run",
)
SIZES = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "other_process_bytes")


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The first out-of-memory error that nothing shows to have been handled."""
    frame, name = _witnesses(evidence)
    points = training_points(evidence["progress"])
    roots = [row for row in frame.events if row.role is Role.ROOT]
    crashed = abnormal_end(evidence) is not None
    own = earliest_first(last_words(roots, points, crashed=crashed))
    if (
        not own
        and not roots
        and not evidence["exceptions"]
        and (hint := _by_figures(evidence, run, limits)) is not None
    ):
        return hint
    if not own and not evidence.has("memory"):
        return unknown(["no job log was given, and no memory curve that climbed to the top as the run failed"], COLLECT)
    if not own:
        if roots and (after := followed_by(roots[-1], points)) is not None:
            point = evidence["progress"].value(after, "text")
            return absent(claim("handled", line=frame.value(roots[-1], "text"), point=point))
        return absent(claim("none", count=evidence["memory"].reduce("count")), *_fullest(evidence, run))
    ends = [row for row in evidence["ends"].events if row.get("status") != "aborted"]
    done = followed_by(own[-1], ends)
    if done is not None and not crashed:
        point = evidence["ends"].value(done, "text")
        return absent(claim("handled", line=frame.value(own[-1], "text"), point=point))
    return _found(evidence, run, limits, frame, own, name == "exceptions")


def _witnesses(evidence: Evidence) -> tuple[Frame, str]:
    """The sized events; the exceptions about GPU memory where there are no such events."""
    sized = evidence["memory"]
    if any(row.role is Role.ROOT for row in sized.events):
        return sized, "memory"
    told = evidence["exceptions"].where(lambda row: row.get("about") == "oom")
    return (told, "exceptions") if told else (sized, "memory")


def _found(evidence: Evidence, run: Run, limits: Limits, frame: Frame, own: Sequence[Event], unsized: bool) -> Finding:
    cause = own[0]
    ranks = named(frame, own)
    line = frame.value(cause, "text")
    shows: list[Claim] = [claim("oom", line=line) if ranks is None else claim("oom_on", line=line, ranks=ranks)]
    told = {field: frame.value(cause, field, "bytes") for field in SIZES if number(cause, field) is not None}
    size = {field: value.number for field, value in told.items()}
    if "requested_bytes" in told and "total_bytes" in told:
        key = "larger" if size["requested_bytes"] > size["total_bytes"] else "asked"
        shows.append(claim(key, requested=told["requested_bytes"], total=told["total_bytes"]))
    elif "requested_bytes" in told:
        shows.append(claim("asked_only", requested=told["requested_bytes"]))
    phase = cause.get("phase")
    if phase not in (None, "unknown"):
        shows.append(claim("phase", phase=frame.value(cause, "phase")))
    before = points_before(training_points(evidence["progress"]), cause)
    if before:
        shows.append(claim("after_point", point=evidence["progress"].value(before[-1], "text")))
    culprit: Culprit = "job"
    implies, actions = [claim("memory_plan")], [action("less")]
    gpus = of_ranks(run, ranks_of(own)) or _named_gpus(own, run)
    curve = fullest(evidence, run, gpus)
    if curve is not None and curve.capacity is not None and curve.share is not None:
        near = curve.share >= limits.near
        (shows if near else implies).append(_curve_claim("near" if near else "below", curve))
    shows += clean(evidence)
    if (counted := _counted(evidence, run, limits)) is not None:
        shows.append(_count_claim(counted))
    total = size.get("total_bytes", 0.0)
    if total and _in_pieces(size) > limits.fragmented_share * total:
        values = {"reserved": told["reserved_bytes"], "allocated": told["allocated_bytes"]}
        shows.append(claim("fragmented", **values))
        actions.append(action("segments"))
    if total and size.get("other_process_bytes", 0.0) > limits.neighbour_share * total:
        shows.append(claim("neighbour", other=told["other_process_bytes"], total=told["total_bytes"]))
        actions.insert(0, action("who", "smi"))
        if run.n_ranks in (None, 1) and _would_fit(size):
            culprit, implies = "infrastructure", [claim("not_alone")]
    squatted = _taken(evidence, run, limits, gpus, curve, size.get("requested_bytes"))
    if squatted is not None:
        shows.append(squatted[0])
        actions = [action("who", "smi"), *[each for each in actions if each.key != "who"]]
        if squatted[1]:
            culprit, implies = "infrastructure", [claim("not_alone")]
    bad = abnormal_end(evidence)
    if bad is not None:
        shows.append(claim("ended", line=bad))
    swallowed = completed(evidence) is not None
    return found(
        Certainty.SUPPORTED if swallowed or (bad is None and unsized) else Certainty.ESTABLISHED,
        culprit,
        shows,
        implies=implies,
        cannot_decide=[claim("which_knob")],
        actions=actions,
        since=cause.time,
        at=cause.at,
        ranks=ranks_of(own),
        nodes=tuple(sorted({row.node for row in own if row.node})),
        gpus=gpus or tuple(sorted({str(row.get("gpu")) for row in own if row.get("gpu") is not None})),
        exception=_exception(evidence, cause),
    )


def _named_gpus(own: Sequence[Event], run: Run) -> tuple[str, ...]:
    """The GPUs that the errors name by index, where the node is told or there is but one."""
    nodes = {row.node or (run.nodes[0] if len(run.nodes) == 1 else "") for row in own}
    found = {f"{row.node or next(iter(nodes))}:{row.get('gpu')}" for row in own if row.get("gpu") is not None}
    return tuple(name for name in run.gpus if name in found)


def _curve_claim(key: str, peak: Peak) -> Claim:
    assert peak.capacity is not None
    values = {"gpu": derived(peak.name, peak.value), "peak": peak.value, "total": peak.capacity}
    return claim(key, **values)


def _fullest(evidence: Evidence, run: Run) -> list[Claim]:
    """The fullest GPU, where that is told."""
    peak = fullest(evidence, run)
    return [] if peak is None or peak.capacity is None else [_curve_claim("at_most", peak)]


def _taken(
    evidence: Evidence, run: Run, limits: Limits, gpus: Sequence[str], curve: Peak | None, requested: float | None
) -> tuple[Claim, bool] | None:
    """Memory of a failing GPU that somebody else held all the while, and whether the job would have fitted without."""
    held = taken_before(evidence, run)
    named_ = [name for name in (gpus or run.gpus) if name in held]
    if not named_ or curve is None or curve.capacity is None:
        return None
    name = max(named_, key=lambda name: held[name].number)
    total, other = capacity_of(evidence, run, name) or curve.capacity, held[name]
    if other.number < limits.neighbour_share * total.number:
        return None
    peak = fullest(evidence, run, [name]) or curve
    alone = peak.value.number - other.number + (requested or 0.0) <= total.number
    told = claim("taken", gpu=derived(name, other), other=other, total=total)
    return told, alone and (requested is not None or len(held) < len(run.gpus))


def _by_figures(evidence: Evidence, run: Run, limits: Limits) -> Finding | None:
    """Without a word of the job's own: allocations that its framework counted as failed, or a curve that climbed to the
    top, as the run failed."""
    job, bad = last_job(evidence["jobs"]), abnormal_end(evidence)
    if job is None or bad is None or job.get("state") != "FAILED" or exit_signal(job) is not None or run.end is None:
        return None
    counted, peak = _counted(evidence, run, limits), fullest(evidence, run)
    shows = [] if counted is None else [_count_claim(counted)]
    at_top = peak if peak is not None and _reached_the_top(evidence, run, limits, peak) else None
    if at_top is not None:
        shows.append(_curve_claim("near", at_top))
    if not shows:
        return None
    gpus = (at_top.name,) if at_top is not None else ()
    return found(
        Certainty.POSSIBLE if counted is None else Certainty.SUPPORTED,
        "job",
        [*shows, claim("ended", line=bad)],
        implies=[claim("only_a_curve" if counted is None else "only_a_count")],
        cannot_decide=[claim("no_words"), claim("which_knob")],
        actions=[action("look"), action("less")],
        since=counted.since if counted is not None else at_top.at if at_top is not None else None,
        nodes=tuple(dict.fromkeys(node for name in gpus if (node := name.rpartition(":")[0]))),
        gpus=gpus,
    )


def _counted(evidence: Evidence, run: Run, limits: Limits) -> Change | None:
    """The framework's count of failed allocations, where it rose shortly before the run's end."""
    if not evidence.has("failed"):
        return None
    from trackside.facts.hardware.counters import rises

    late = [change for change in rises(evidence.grid("failed")) if run.end and change.until >= run.end - limits.late_s]
    return late[-1] if late else None


def _count_claim(change: Change) -> Claim:
    return claim("counted", by=change.by, before=change.before, after=change.after)


def _reached_the_top(evidence: Evidence, run: Run, limits: Limits, peak: Peak) -> bool:
    """Whether the curve came to its top late in the run, unlike that of a cache."""
    if peak.share is None or peak.share < limits.full or run.end is None or peak.at < run.end - limits.late_s:
        return False
    long = run.start is not None and run.end - run.start > 2 * limits.late_s
    return not long or _climbed(evidence, run, peak)


def _climbed(evidence: Evidence, run: Run, peak: Peak) -> bool:
    """Whether the GPU held clearly less in the middle of its run than at its peak."""
    grid = evidence.grid("used")
    middle = of_gpu(during(grid, run), peak.name).value("median").value if grid is not None else None
    return isinstance(middle, (int, float)) and middle < 0.9 * peak.value.number


def _in_pieces(size: dict[str, float]) -> float:
    """Bytes that the allocator holds and nobody uses; 0 where that would not have been enough either."""
    spare = size.get("reserved_bytes", 0.0) - size.get("allocated_bytes", 0.0)
    return spare if "allocated_bytes" in size and spare >= size.get("requested_bytes", 0.0) else 0.0


def _would_fit(size: dict[str, float]) -> bool:
    """Whether the process would have had room on a card of its own."""
    held = max(size.get("reserved_bytes", 0.0), size.get("allocated_bytes", 0.0))
    return held + size.get("requested_bytes", 0.0) < size["total_bytes"]


def _exception(evidence: Evidence, cause: Event) -> tuple[str, str] | None:
    """The Python exception that carried the error: at the same line, else the first about GPU memory."""
    told = [row for row in evidence["exceptions"].events if row.get("about") == "oom"]
    told.sort(key=lambda row: (row.at.path, row.at.line) != (cause.at.path, cause.at.line))
    return (str(told[0].get("type")), str(told[0].get("message") or "")) if told else None


FAMILY = Family(
    code="B1",
    id="cuda-oom",
    title="CUDA out of memory",
    pictured=("cuda-oom-then-watchdog", "memory"),
    asks={
        **ENDING,
        "memory": events("cuda_oom"),
        "exceptions": events("exception"),
        "progress": events("progress"),
        **GPU_MEMORY,
        **CLEAN,
        "failed": metric("training_memory_ooms_total").over("around", "last"),
    },
    needs=(("memory", "used", "failed"),),
    limits=Limits(),
    explains=("A2", "C1", "C2", "F3", "A1", "H2"),
    rivals=("A1", "A2"),
    collect=COLLECT,
    says={
        **CLEAN_SAYS,
        "near": "the memory of GPU {gpu} climbed to {peak} of {total}",
        "below": "the sampled memory of GPU {gpu} peaked at {peak} of {total}: a request that is too large fails at "
        "once and never shows in samples",
        "at_most": "the fullest GPU, {gpu}, held {peak} of {total} at most",
        "taken": "another process held {other} of the {total} of GPU {gpu} before the job began, and kept it",
        "only_a_curve": "the run may have run out of GPU memory: the curve alone cannot tell it from a cache that "
        "filled up",
        "counted": "the framework's count of allocations that failed for want of memory rose by {by}, from {before} "
        "to {after}",
        "only_a_count": "allocations failed for want of GPU memory as the run failed; a job may catch that and fail "
        "of something else",
        "no_words": "what the job said of its end: no output with an error was given",
        "look": "read the job's own output for an out-of-memory error",
        "oom": "GPU memory ran out: {line}",
        "oom_on": "GPU memory ran out on {ranks}: {line}",
        "asked": "it asked for {requested} on a card of {total}",
        "larger": "one request of {requested} is larger than the whole card of {total}",
        "asked_only": "it asked for {requested}",
        "phase": "it fell in this phase: {phase}",
        "after_point": "training had reached: {point}",
        "fragmented": "the allocator had reserved {reserved} and used only {allocated} of it: "
        "the free memory was in pieces",
        "neighbour": "other processes held {other} of the card's {total}",
        "ended": "the run ended badly: {line}",
        "memory_plan": "the workload's memory plan does not fit the card; it is no hardware fault, and a rerun "
        "with the same settings ends at the same place",
        "not_alone": "alone on the card the job would have had room: another process held the memory",
        "which_knob": "which setting to change: the training configuration is not in the telemetry",
        "less": "lower the memory a GPU needs: smaller micro-batch with more accumulation, activation checkpointing, "
        "sharding of optimizer and parameters, or shorter sequences",
        "segments": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "who": "find out whose processes are on the GPU and end what does not belong there",
        "smi": "nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
        "handled": "it was caught and the run went on: {line}; afterwards: {point}",
        "none": "the log holds {count:out-of-memory errors} of a GPU",
    },
    judge=judge,
)
