"""Out of GPU memory.

Meaning
-------
Loading the model, a forward or backward pass or the optimizer's first step requests more memory than the GPU
has left, and the framework raises an out-of-memory error. The job's own memory use is the cause, not the
hardware. If other processes hold the memory, the verdict is still B1, but it says how much. The owner is then the
infrastructure only if the error names processes that are not the job's, or samples show them before it began.

What it looks like
------------------
torch.OutOfMemoryError or its older spellings with the size of the request, the GPU's capacity and what is
free; TensorFlow's ResourceExhaustedError, XLA's RESOURCE_EXHAUSTED, CUBLAS_STATUS_ALLOC_FAILED. A single
request may be larger than the whole GPU: then the sampled memory never comes close to the limit. Otherwise the
GPU's memory climbs to its capacity, while its error counters stay clean. Without a log only the
framework's count of failed allocations or the memory series can show it; a series that climbed to the top and
fell when the run failed is only a hint.

Not this family when
--------------------
- The error was handled and training continued, for example with a smaller batch.
- Host memory ran out (DefaultCPUAllocator, SIGKILL): that is a signal kill.
- A warning only gives advice about memory.
- Memory is near the top all the time without an error: a caching allocator does that.

Impact
------
The run ends. A rerun with the same settings usually ends in the same way, unless another process held the memory or a
batch was unusually long.

Do next
-------
Use a smaller micro-batch with more accumulation, activation checkpointing, sharded optimizer and parameters, or
shorter sequences. If much memory is reserved but not allocated: `export
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (before PyTorch 2.1: `max_split_size_mb:128`). If another process
is on the GPU (`nvidia-smi`), end it.

What it cannot decide
---------------------
Which of these settings to change: Trackside does not analyze the training configuration. The size of a single
request, if only metrics were given: it does not show in samples.

References
----------
- [PyTorch: CUDA memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)
- [JAX: GPU memory allocation](https://docs.jax.dev/en/latest/gpu_memory_allocation.html)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, all_missing
from trackside.facts.gpus import nodes_of
from trackside.facts.hardware.counters import Change
from trackside.facts.hardware.health import HardwareHealth
from trackside.facts.hardware.memory import GpuMemory, Peak
from trackside.facts.logs.ending import Ending, exit_signal
from trackside.facts.logs.gpu_memory_errors import GpuMemoryErrors
from trackside.facts.training.phase import Phase
from trackside.family import Family
from trackside.finding import Action, Certainty, Claim, Finding, Sentence, ShellCommand, absent, action, present
from trackside.model import Run


@dataclass(frozen=True)
class Limits:
    """When memory counts as another process's, or as fragmented."""

    fragmented_share: float = 0.1
    """Reserved but not allocated, as a share of the GPU's memory: PyTorch's own message advises expandable segments if
    this is 'large'; a tenth exceeds its allocator's normal rounding."""
    neighbor_share: float = 0.1
    """Used by other processes, as a share of the GPU's memory: several CUDA contexts alone take about 2% each."""
    near_share: float = 0.9
    """The GPU counts as nearly full if at least this share of its memory is in use: the allocator frees memory before
    it fails, and samples miss the last seconds."""
    full_share: float = 0.97
    """The GPU counts as full if at least this share of its memory is in use and only the memory series shows it."""


RAN_OUT = Sentence("out of GPU memory")
RAN_OUT_IN = Sentence("out of GPU memory in the {phase} pass")
RAN_OUT_AT_LOADING = Sentence("out of GPU memory while the model or data were loaded")
RAN_OUT_FOR_REQUEST = Sentence("out of GPU memory: a request for {requested} failed")
NCCL_FAILED = Sentence("NCCL could not allocate {requested} of GPU memory: the GPU was full, or CUDA failed")
RAN_OUT_FRAGMENTED = Sentence("out of GPU memory: free memory was fragmented")
RAN_OUT_WITH_NEIGHBOR = Sentence("out of GPU memory: another process holds part of the GPU")
RAN_OUT_WITH_OTHERS = Sentence("out of GPU memory: other processes held {other} of the GPU's {total}")
ALLOCATIONS_FAILED = Sentence("GPU memory allocations failed as the run failed")
MEMORY_CLIMBED = Sentence("the memory of GPU {gpu} climbed to {peak} of {total}")
PEAK_BELOW_TOTAL = Sentence(
    "the sampled memory of GPU {gpu} peaked at {peak} of {total}: the failed allocation itself never shows in samples"
)
NOTHING_USED = Sentence("no sample shows that GPU memory was in use")
USED_AT_MOST = Sentence("the fullest GPU, {gpu}, used at most {peak} of {total}")
USED_BY_OTHER_PROCESS = Sentence(
    "another process used {other} of the {total} of GPU {gpu} before the job began, and kept it"
)
ONLY_MEMORY_CURVE = Sentence(
    "GPU memory may have run out: the memory metric alone does not distinguish that from a full cache"
)
FAILURES_COUNTED = Sentence("the framework counted {by} more failed GPU allocations, from {before} to {after}")
ONLY_FAILURE_COUNT = Sentence(
    "GPU allocations failed as the run failed; a job may catch that and fail for another reason"
)
NO_ERROR_OUTPUT = Sentence("whether an allocation failed: no output with an error was given")
READ_OUTPUT = Sentence("read the job's own output for an out-of-memory error")
NEEDS_TOO_MUCH = Sentence("what the job uses and what it requested do not fit on the GPU together")
JOB_OR_NEIGHBOR = Sentence(
    "the GPU did not have the memory that was requested: the job needs more than there is, or another process holds "
    "part of it"
)
FREE_NOT_USABLE = Sentence(
    "the request did not fit although {free} were free: free memory was not in one piece, or was taken meanwhile"
)
MAY_BE_FRAGMENTED = Sentence(
    "{requested} did not fit although {free} were free and {unused} were reserved but unused: the memory was fragmented"
)
MEMORY_FRAGMENTED = Sentence("the allocator had reserved enough memory, but only in small pieces")
WOULD_FIT_ALONE = Sentence("the request would have fit on the GPU without the other processes")
HOLDER_UNKNOWN = Sentence(
    "whose processes held the rest of the GPU: other ranks of this job, an earlier run of it, or somebody else's"
)
SETTING_UNKNOWN = Sentence("which setting to change: Trackside does not analyze the training configuration")
USE_LESS_MEMORY = Sentence(
    "use less GPU memory: a smaller micro-batch with more accumulation steps, activation checkpointing, shorter "
    "sequences or smaller images, and on several GPUs sharded optimizer and parameters"
)
USE_LESS_ON_ONE_GPU = Sentence(
    "use less GPU memory: a smaller micro-batch with more accumulation steps, activation checkpointing, shorter "
    "sequences or smaller images"
)
LOAD_LESS = Sentence(
    "use a smaller model, or load this one with less GPU memory: in half precision or quantized, sharded over GPUs, or "
    "partly kept on the host"
)
SEE_OTHER_PROCESSES = Sentence("check whether another process holds memory of the GPU")
SHRINK_TENSOR = Sentence(
    "find the tensor of {requested} at the line of the traceback: a smaller batch, shorter sequences or smaller images "
    "shrink it; sharding does not"
)
TEST_NCCL = Sentence("if the GPU was not full, rerun with NCCL's messages in the log")
SHOW_NCCL = ShellCommand("export NCCL_DEBUG=INFO")
GPU_OR_CUDA = Sentence("whether the GPU was full: the error does not say how much memory was free")
LIBRARY_ERROR = Sentence(
    "whether memory ran out: cuBLAS reports the same after an index out of range and with CUDA libraries that do not "
    "match; CUDA_LAUNCH_BLOCKING and a run on the CPU tell"
)
USE_SEGMENTS = Sentence("against fragmentation, enable expandable segments in the job script")
SET_SEGMENTS = ShellCommand("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
LIMIT_SPLITS = Sentence("against fragmentation, set this in the job script")
SET_SPLIT_SIZE = ShellCommand(
    "export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128  # from PyTorch 2.1 on: expandable_segments:True"
)
RAN_OUT_BEFORE_LOADING = Sentence(
    "out of GPU memory at the first use of the GPU: another process probably holds the memory"
)
ALREADY_IN_USE = Sentence(
    "the first use of the GPU failed, before a model was loaded: most likely another process already used its memory"
)
SHRINK_TENSOR_AT = Sentence(
    "find the tensor of {requested} at {place} or in what it calls: a smaller batch, shorter sequences or smaller "
    "images shrink it; sharding does not"
)
FIRST_USE = re.compile(r"\bset_device\b|\b_?lazy_init\b|\b_cuda_init\b")
"""Functions that only open a context on the GPU."""
FIND_OTHER_PROCESSES = Sentence("find the other processes on the GPU, and end those that do not belong there")
SHOW_PROCESSES = ShellCommand(
    "{on_node} nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv"
)
NO_OOM_ERROR = Sentence("no out-of-memory error of a GPU in the log")


def judge(
    errors: Maybe[GpuMemoryErrors],
    memory: Maybe[GpuMemory],
    health: HardwareHealth,
    phase: Phase,
    ending: Ending,
    run: Run,
    limits: Limits,
) -> Finding | Missing:
    """The first out-of-memory error that was not handled; without any error in the log, metrics."""
    if (nothing := all_missing(errors, memory)) is not None:
        return nothing
    gpu_memory = None if isinstance(memory, Missing) else memory
    no_error = isinstance(errors, Missing) or not (errors.roots or errors.exceptions)
    if no_error and gpu_memory is not None and (hint := _by_metrics(gpu_memory, ending, run, limits)) is not None:
        return hint
    if isinstance(errors, Missing):
        return Missing("no job log was given, and no GPU memory filled up as the run failed")
    if errors.handled_claim is not None:
        return absent(errors.handled_claim)
    if not errors.unhandled:
        peak = None if gpu_memory is None else gpu_memory.fullest()
        sentence = USED_AT_MOST if peak is not None and peak.value.number > 0 else NOTHING_USED
        at_most = [] if peak is None or peak.capacity is None else [sentence(**_peak_values(peak))]
        return absent(NO_OOM_ERROR(count=errors.all.reduce("count")), *at_most)
    return _error_finding(errors, gpu_memory, health, phase, ending, run, limits)


def _error_finding(
    errors: GpuMemoryErrors,
    memory: GpuMemory | None,
    health: HardwareHealth,
    phase: Phase,
    ending: Ending,
    run: Run,
    limits: Limits,
) -> Finding:
    """The finding about errors that ended the run. The job's own memory use is the cause, unless the request would have
    fit without another process on the GPU."""
    curve = None if memory is None else memory.fullest(errors.gpus)
    is_near = curve is not None and curve.share is not None and curve.share >= limits.near_share
    peak = {} if curve is None or curve.share is None else _peak_values(curve)
    count = None if memory is None else memory.late_failure
    fragmented = errors.fragmentation_claim(limits.fragmented_share)
    printed, sampled = errors.neighbor(limits.neighbor_share), _used_by_neighbor(errors, memory, curve, run, limits)
    is_crowded = printed is not None and errors.fits_alone
    # Ranks of one job may share a GPU.
    of_strangers = is_crowded and errors.names_strangers and run.n_ranks in (None, 1)
    to_blame = of_strangers or (sampled is not None and sampled[1])
    neighbors = [claim for claim in (printed, sampled and sampled[0]) if claim is not None]
    progress_claim, bad_end = phase.last_progress_claim(errors.cause), ending.bad_end
    own_use = [
        MEMORY_FRAGMENTED() if fragmented is not None else _reason(errors),
        *([PEAK_BELOW_TOTAL(**peak)] if peak and not is_near else []),
    ]
    claims = [
        errors.claims[0],
        *neighbors,
        fragmented,
        *errors.claims[1:2],
        errors.unused_claim if fragmented is None else None,
        *errors.claims[2:],
        MEMORY_CLIMBED(**peak) if is_near else None,
        progress_claim,
        None if count is None else _failure_count(count),
        *health.unchanged,
        bad_end,
    ]
    if errors.by_nccl and "requested_bytes" in errors.sizes:
        return _nccl_finding(errors, [claim for claim in claims if claim is not None])
    first_use = any(FIRST_USE.search(str(row.get("frame"))) for row in errors.memory_exceptions.events)
    first_use = first_use and not to_blame and progress_claim is None
    defragment = action(LIMIT_SPLITS, SET_SPLIT_SIZE) if errors.names_split_size else action(USE_SEGMENTS, SET_SEGMENTS)
    advice = [_use_less(errors, run)]
    if errors.cause.get("phase") == "load" and progress_claim is None:
        advice = [*([] if neighbors else [action(SEE_OTHER_PROCESSES, SHOW_PROCESSES)]), action(LOAD_LESS)]
    if fragmented is not None:
        advice.insert(0, defragment)
    elif errors.fitted_by_sum and not is_crowded:
        advice.append(defragment)
    is_library_error = errors.cause.get("backend") == "cublas"
    swallowed = ending.completed is not None or (bad_end is None and not errors.sized)
    return present(
        Certainty.SUPPORTED if swallowed or is_library_error else Certainty.ESTABLISHED,
        "infrastructure" if to_blame else "job",
        [claim for claim in claims if claim is not None],
        headline=RAN_OUT_WITH_OTHERS(other=printed.values["other"], total=printed.values["total"])
        if printed is not None and errors.fits_alone
        else RAN_OUT_WITH_NEIGHBOR()
        if to_blame
        else RAN_OUT_BEFORE_LOADING()
        if first_use
        else _headline(errors, fragmented is not None, trained=progress_claim is not None),
        implies=[WOULD_FIT_ALONE()] if to_blame or is_crowded else [ALREADY_IN_USE()] if first_use else own_use,
        cannot_decide=[LIBRARY_ERROR()]
        if is_library_error
        else [HOLDER_UNKNOWN()]
        if first_use or (is_crowded and not to_blame)
        else [SETTING_UNKNOWN()],
        actions=[action(FIND_OTHER_PROCESSES, SHOW_PROCESSES)]
        if first_use
        else [action(FIND_OTHER_PROCESSES, SHOW_PROCESSES), *advice]
        if neighbors
        else advice,
        since=errors.cause.time,
        at=errors.cause.at,
        ranks=errors.ranks,
        nodes=errors.nodes,
        gpus=errors.gpus or errors.indices,
        exception=errors.exception,
    )


def _use_less(errors: GpuMemoryErrors, run: Run) -> Action:
    """How to use less memory, as far as it helps with this request."""
    requested, total = errors.bytes("requested_bytes"), errors.bytes("total_bytes")
    if total and requested > total:
        requested_bytes, place = errors.sizes["requested_bytes"], errors.place
        if place is not None:
            return action(SHRINK_TENSOR_AT, requested=requested_bytes, place=place)
        return action(SHRINK_TENSOR, requested=requested_bytes)
    return action(USE_LESS_ON_ONE_GPU if (run.n_ranks or run.n_gpus) == 1 else USE_LESS_MEMORY)


def _nccl_finding(errors: GpuMemoryErrors, claims: list[Claim]) -> Finding:
    """The finding about a small request of NCCL that failed: the error does not show that memory ran out."""
    return present(
        Certainty.SUPPORTED,
        "job",
        claims,
        headline=NCCL_FAILED(requested=errors.sizes["requested_bytes"]),
        cannot_decide=[GPU_OR_CUDA()],
        actions=[action(FIND_OTHER_PROCESSES, SHOW_PROCESSES), action(TEST_NCCL, SHOW_NCCL)],
        since=errors.cause.time,
        at=errors.cause.at,
        ranks=errors.ranks,
        nodes=errors.nodes,
        gpus=errors.gpus or errors.indices,
        exception=errors.exception,
    )


def _reason(errors: GpuMemoryErrors) -> Claim:
    """Why the request did not fit, by the sizes that the error names."""
    free = errors.sizes.get("free_bytes")
    if free is None or not errors.fitted_by_sum:
        return NEEDS_TOO_MUCH() if "total_bytes" in errors.sizes else JOB_OR_NEIGHBOR()
    requested = errors.sizes["requested_bytes"]
    if free.number >= requested.number:
        return FREE_NOT_USABLE(free=free)
    sizes = [errors.sizes[name] for name in ("reserved_bytes", "allocated_bytes")]
    unused = derived(sizes[0].number - sizes[1].number, *sizes, unit="bytes")
    return MAY_BE_FRAGMENTED(requested=requested, free=free, unused=unused)


def _headline(errors: GpuMemoryErrors, in_pieces: bool, trained: bool) -> Claim:
    """What ran out, with the reason, the phase or the size that the error names."""
    if in_pieces:
        return RAN_OUT_FRAGMENTED()
    if errors.cause.get("phase") in ("forward", "backward"):
        return RAN_OUT_IN(phase=errors.frame.value(errors.cause, "phase"))
    if errors.cause.get("phase") == "load" and not trained:
        return RAN_OUT_AT_LOADING()
    requested = errors.sizes.get("requested_bytes")
    return RAN_OUT() if requested is None else RAN_OUT_FOR_REQUEST(requested=requested)


def _used_by_neighbor(
    errors: GpuMemoryErrors, memory: GpuMemory | None, curve: Peak | None, run: Run, limits: Limits
) -> tuple[Claim, bool] | None:
    """Memory of a failing GPU that another process used before, during and after the run, and whether the request would
    have fit without it."""
    if memory is None or curve is None or curve.capacity is None:
        return None
    used_before = memory.used_before
    gpu = max(
        (gpu for gpu in errors.gpus or run.gpus if gpu in used_before),
        key=lambda gpu: used_before[gpu].number,
        default=None,
    )
    if gpu is None:
        return None
    total, other_bytes = memory.capacity(gpu) or curve.capacity, used_before[gpu]
    if other_bytes.number < limits.neighbor_share * total.number:
        return None
    peak, requested = memory.fullest([gpu]) or curve, errors.bytes("requested_bytes")
    fits_alone = peak.value.number - other_bytes.number + requested <= total.number
    sizes_known = "requested_bytes" in errors.sizes or len(used_before) < len(run.gpus)
    return USED_BY_OTHER_PROCESS(
        gpu=derived(gpu, other_bytes), other=other_bytes, total=total
    ), fits_alone and sizes_known


def _by_metrics(memory: GpuMemory, ending: Ending, run: Run, limits: Limits) -> Finding | None:
    """Without an error in the log: failed allocations counted by the framework, or memory that climbed to the top, as
    the run failed."""
    job, bad_end = ending.job, ending.bad_end
    if (
        job is None
        or bad_end is None
        or job.get("state") != "FAILED"
        or exit_signal(job) is not None
        or run.end is None
    ):
        return None
    count, peak = memory.late_failure, memory.fullest()
    full = peak is not None and peak.share is not None and peak.share >= limits.full_share
    top = peak if peak is not None and full and memory.climbed_late(peak) else None
    if count is None and top is None:
        return None
    gpus = () if top is None else (top.name,)
    shows = [
        *([] if count is None else [_failure_count(count)]),
        *([] if top is None else [MEMORY_CLIMBED(**_peak_values(top))]),
    ]
    return present(
        Certainty.POSSIBLE if count is None else Certainty.SUPPORTED,
        "job",
        [*shows, bad_end],
        headline=(RAN_OUT if count is None else ALLOCATIONS_FAILED)(),
        implies=[(ONLY_MEMORY_CURVE if count is None else ONLY_FAILURE_COUNT)()],
        cannot_decide=[NO_ERROR_OUTPUT(), SETTING_UNKNOWN()],
        actions=[action(READ_OUTPUT), action(USE_LESS_MEMORY)],
        since=count.since if count is not None else top.at if top is not None else None,
        nodes=nodes_of(gpus),
        gpus=gpus,
    )


def _failure_count(count: Change) -> Claim:
    return FAILURES_COUNTED(by=count.by, before=count.before, after=count.after)


def _peak_values(peak: Peak) -> dict[str, Value]:
    """GPU, most used and capacity, as the values of a claim."""
    assert peak.capacity is not None
    return {"gpu": derived(peak.name, peak.value), "peak": peak.value, "total": peak.capacity}


FAMILY = Family(
    code="B1",
    id="cuda-oom",
    title="Out of GPU memory",
    example=("cuda-oom-then-watchdog", "memory"),
    judge=judge,
    limits=Limits(),
    explains=("A2", "C1", "C2", "F3", "A1", "H2"),
    rivals=("A1", "A2"),
    collect=(
        "every rank's output with its tracebacks",
        "DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE of the job's GPUs over the run",
    ),
)
