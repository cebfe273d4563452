"""How far the GPUs had been used when a run died: kernel launches, work, and memory beyond a context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import ACTIVITY, GpuActivity
from trackside.facts.gpus import value_or_none
from trackside.facts.hardware.memory import CONTEXT_SHARE, GpuMemory
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import metric

KERNELS_LAUNCHED = Sentence("{launches} kernels were launched in total")
NO_LAUNCH = Sentence("no kernel was launched")
BARELY_BUSY = Sentence("no GPU was busy for more than {most} of any {window} interval")
NEVER_BUSY = Sentence("no GPU was ever busy")
NO_MEMORY_USED = Sentence("no GPU memory was in use")
CONTEXT_ONLY = Sentence("no GPU used more than {peak} of {total} ({share}), which is at most a CUDA context")
MEMORY_LOADED = Sentence("GPU {gpu} had used up to {peak} of {total}: something had been loaded")


@dataclass(frozen=True)
class Limits:
    """Thresholds for a GPU that was given no work."""

    context_bytes: float = float(1 << 30)
    """1 GiB: twice what a CUDA context needs on small GPUs (300 to 600 MB)."""
    idle_share: float = 0.02
    """SM activity, engine activity or utilization of a GPU that runs only a monitor's kernels."""
    max_launches: int = 1000
    """Kernel launches per GPU: initializing a library takes a handful, one training step thousands."""


@dataclass(frozen=True, eq=False)
class StartupUse:
    """How much of its GPUs a run had used when it died: kernel launches, work and memory."""

    launches: Value | None
    """Total number of kernel launches."""
    launching: int
    """Number of series that count them: GPUs or ranks."""
    max_busy: Value | None
    """The maximum activity of any GPU in a window, as a share."""
    window_s: float
    memory: Maybe[GpuMemory]
    work_s: Value | None
    """Seconds for which the run's GPUs worked; None if no sampled signal proves work."""
    limits: Limits

    @cached_property
    def untouched(self) -> tuple[Claim, ...]:
        """How little the GPUs had been used when the run died at its start; empty if they worked or nothing shows
        it."""
        claims: list[Claim] = []
        if self.launches is not None:
            if self.launches.number > self.limits.max_launches * self.launching:
                return ()
            claims.append((KERNELS_LAUNCHED if self.launches.number else NO_LAUNCH)(launches=self.launches))
        elif self.max_busy is not None:
            if self.max_busy.number > self.limits.idle_share:
                return ()
            sentence = BARELY_BUSY if self.max_busy.number else NEVER_BUSY
            claims.append(sentence(most=self.max_busy, window=derived(self.window_s, self.max_busy, unit="s")))
        peak = None if isinstance(self.memory, Missing) else self.memory.fullest()
        if peak is None or peak.capacity is None:
            return tuple(claims)
        values = {"peak": peak.value, "total": peak.capacity}
        if peak.value.number <= max(self.limits.context_bytes, CONTEXT_SHARE * peak.capacity.number):
            if not peak.value.number:
                return *claims, NO_MEMORY_USED(**values)
            share = derived(peak.share or 0.0, peak.value, peak.capacity, unit="share")
            return *claims, CONTEXT_ONLY(share=share, **values)
        return (*claims, MEMORY_LOADED(gpu=derived(peak.name, peak.value), **values)) if claims else ()

    def trained(self, min_s: float) -> Value | None:
        """The seconds of GPU work, if they were long enough to be training."""
        return self.work_s if self.work_s is not None and self.work_s.number >= min_s else None


@fact(
    {
        **ACTIVITY,
        "launched": metric("trackside_cuda_kernel_launches_total").over("run", "last").by("node", "gpu", "rank",
                                                                                          how="sum"),
    },
    limits=Limits(),
)  # fmt: skip
def startup_use(
    evidence: Evidence, memory: Maybe[GpuMemory], activity: Maybe[GpuActivity], run: Run, limits: Limits
) -> StartupUse:
    """Needs no particular input; empty for what was not sampled.

    The raw counts of the tracer start with the process: a crash within seconds leaves one sample of them.
    """
    launches, counters = evidence.grid("launches"), evidence.grid("launched")
    total = value_or_none(launches, "sum", unit="")
    if total is None and counters is not None and len(counters.times) == 1:
        launches, total = counters, value_or_none(counters, "sum", unit="")
    busy = evidence.grid("sm") or evidence.grid("engine") or evidence.grid("utilization")
    highest = value_or_none(busy, "max", unit="share")
    work_s = None if isinstance(activity, Missing) else _seconds_worked(evidence, activity, run)
    return StartupUse(
        total,
        0 if launches is None else len(launches),
        highest,
        0.0 if busy is None else busy.step,
        memory,
        work_s,
        limits,
    )


def _seconds_worked(evidence: Evidence, activity: GpuActivity, run: Run) -> Value | None:
    """Seconds for which the GPUs worked, by a metric that proves work."""
    grid = next((grid for name in ("launches", "sm", "power") if (grid := evidence.grid(name)) is not None), None)
    if grid is None or activity.basis in (None, "utilization"):
        return None
    if run.gpus_by == "all" and not activity.working_gpus.all():
        return None  # the GPUs that worked may be another job's
    return derived(int(activity.active.sum()) * activity.step, grid.value("max"), unit="s")
