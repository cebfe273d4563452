"""Had the GPUs been put to work when a run died: kernel launches, work, and memory beyond a context. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from trackside.evidence import Evidence, Value, derived
from trackside.facts.hardware.memory import fullest
from trackside.finding import Claim, claim
from trackside.model import Run
from trackside.query import Query, metric

CONTEXT_SHARE = 0.03
"""Of a card's memory: a CUDA context takes under 2 % of it (the catalogue's A1), what the driver keeps included."""
CONTEXT_BYTES = 1 << 30
"""The same on small cards: contexts take 300 to 600 MB."""
IDLE = 0.02
"""SM activity, engine activity or utilisation of a GPU that runs nothing but a monitor's kernels."""
FEW = 1000
"""Kernel launches a GPU: initialising a library gives a handful, a single training step thousands."""
LAUNCHED: Mapping[str, Query] = {
    "launched": metric("trackside_cuda_kernel_launches_total").over("run", "last").by("node", "gpu", "rank", how="sum"),
}
"""The tracer's counts as they stand: they begin with the process, and a crash within seconds leaves one sample."""
UNTOUCHED: Mapping[str, str] = {
    "launches": "the GPUs were given {launches} kernel launches in all",
    "no_work": "no GPU was busy for more than {most} of a window's time",
    "none_held": "no GPU held any memory ({peak} of {total})",
    "context_only": "no GPU held more than {peak} of {total}, which is {share}: a context at most",
    "loaded": "GPU {gpu} held up to {peak} of {total} by then: something had been loaded",
}
"""Sentences of the claims that are made here."""


def untouched(evidence: Evidence, run: Run) -> list[Claim]:
    """How far the GPUs had been put to use when the run died at its start; none where nothing tells, or they worked."""
    found: list[Claim] = []
    launches, busy = evidence.grid("launches"), evidence.grid("engine") or evidence.grid("utilisation")
    busy = evidence.grid("sm") or busy
    total = launches.value("sum", unit="") if launches is not None else None
    if total is None or total.value is None:
        launches = evidence.grid("launched")
        total = launches.value("sum", unit="") if launches is not None and len(launches.times) == 1 else None
    most = busy.value("max", unit="share") if busy is not None else None
    if launches is not None and total is not None and total.value is not None:
        if total.number > FEW * len(launches):
            return []
        found.append(claim("launches", launches=total))
    elif most is not None and most.value is not None:
        if most.number > IDLE:
            return []
        found.append(claim("no_work", most=most))
    peak = fullest(evidence, run)
    if peak is None or peak.capacity is None:
        return found
    values = {"peak": peak.value, "total": peak.capacity}
    if peak.value.number <= max(CONTEXT_BYTES, CONTEXT_SHARE * peak.capacity.number):
        if not peak.value.number:
            return [*found, claim("none_held", **values)]
        share = derived(peak.share or 0.0, peak.value, peak.capacity, unit="share")
        return [*found, claim("context_only", share=share, **values)]
    return [*found, claim("loaded", gpu=derived(peak.name, peak.value), **values)] if found else []


def worked_s(evidence: Evidence, run: Run) -> Value | None:
    """Seconds for which the run's GPUs worked; None where nothing that proves work was sampled."""
    if not any(evidence.has(name) for name in ("launches", "sm", "power")):
        return None
    from trackside.facts.gpu.activity import activity  # arrays: only where something was measured

    told = activity(evidence, run)
    if told is None or told.basis in (None, "utilisation"):
        return None
    if run.gpus_by == "all" and not told.users.all():
        return None  # those that worked may be another's
    grids = [evidence.grid(name) for name in ("launches", "sm", "power")]
    source = next(grid for grid in grids if grid is not None).value("max")
    return derived(int(told.active.sum()) * told.step, source, unit="s")
