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
may be larger than the whole card: then the sampled memory curve never gets near the limit.

Not this when
-------------
It was caught and training went on (a smaller batch is tried). Host memory ran out (DefaultCPUAllocator,
SIGKILL): that is a signal kill. Advice about memory is no error.

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
Which of these knobs is the right one: the training configuration is not in the telemetry.

References
----------
PyTorch notes on CUDA memory management; TensorFlow and XLA allocator messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trackside.diagnose.ending import ENDING, abnormal_end, completed
from trackside.diagnose.exceptions import earliest_first, last_words
from trackside.diagnose.family import Evidence, Family, absent, action, claim, found
from trackside.diagnose.learning import number, training_points
from trackside.diagnose.order import followed_by, points_before
from trackside.diagnose.ranks import named, ranks_of
from trackside.model import Certainty, Claim, Culprit, Event, Finding, Role, Run
from trackside.query import Frame, events


@dataclass(frozen=True)
class Limits:
    """When memory that is not free is somebody else's, or only in pieces."""

    fragmented_share: float = 0.1
    """Reserved but not allocated, as a share of the card: PyTorch's own message advises expandable segments
    where this is 'large'; a tenth of the card is more than its allocator's normal rounding."""
    neighbour_share: float = 0.1
    """Held by other processes, as a share of the card: several CUDA contexts alone take about 2 % each
    (the catalogue's A1)."""


COLLECT = ("every rank's output with its tracebacks",)
SIZES = ("requested_bytes", "total_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "other_process_bytes")


def judge(evidence: Evidence, run: Run, limits: Limits) -> Finding:
    """The first out-of-memory error that nothing shows to have been handled."""
    frame, name = _witnesses(evidence)
    points = training_points(evidence["progress"])
    roots = [row for row in frame.events if row.role is Role.ROOT]
    crashed = abnormal_end(evidence) is not None
    own = earliest_first(last_words(roots, points, crashed=crashed))
    if not own:
        if roots and (after := followed_by(roots[-1], points)) is not None:
            point = evidence["progress"].value(after, "text")
            return absent(claim("handled", line=frame.value(roots[-1], "text"), point=point))
        return absent(claim("none", count=evidence["memory"].reduce("count")))
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
        gpus=tuple(sorted({str(row.get("gpu")) for row in own if row.get("gpu") is not None})),
        exception=_exception(evidence, cause),
    )


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
    asks={
        **ENDING,
        "memory": events("cuda_oom"),
        "exceptions": events("exception"),
        "progress": events("progress"),
    },
    needs=("memory",),
    limits=Limits(),
    explains=("A2", "C1", "C2", "F3", "A1", "H2"),
    rivals=("A1", "A2"),
    collect=COLLECT,
    says={
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
        "none": "{count} out-of-memory errors of a GPU are in the log",
    },
    judge=judge,
)
