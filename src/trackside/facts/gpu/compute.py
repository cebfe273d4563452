"""Did the GPUs of a run do real work, and did they stay clean: what a healthy run shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.signals import ACTIVITY, STILL_GOING, STILL_SAYS, watched
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.gpus import of_gpu
from trackside.facts.hardware.health import CLEAN, COUNTED, SAYS, clean, unclean
from trackside.finding import Claim, claim
from trackside.model import Run
from trackside.query import Query

if TYPE_CHECKING:
    from trackside.facts.gpu.activity import Flags, GpuActivity
    from trackside.facts.gpu.duty import Duty


COMPUTE: Mapping[str, Query] = {**CLEAN, **COUNTED}
"""What tells, beside the asks of :data:`trackside.facts.gpu.signals.STANDSTILL`."""
COMPUTE_SAYS: Mapping[str, str] = {
    **STILL_SAYS,
    **SAYS,
    "worked": "the GPUs worked: SM activity {sm} (mean)",
    "worked_some": "the GPUs in use worked: SM activity {sm} (mean)",
    "unused": "{idle} of the {held} that the run held did nothing in all that time: {gpus}",
    "launched": "{count} kernels were launched",
    "stood_in_launches": "the GPUs worked: {level} kernels were launched",
    "stood_in_collectives": "the GPUs worked: {level} collectives were completed",
    "stood_in_power": "the GPUs drew more power than at rest: {level} (median)",
    "no_activity": "whether the GPUs did the work: nothing that was measured tells work from waiting",
    "no_sm_launches": "how well the GPUs were used: SM activity was not measured, only kernel launches",
    "no_sm_collectives": "how well the GPUs were used: SM activity was not measured, only collectives",
    "no_sm_power": "whether the GPUs worked or waited: SM activity was not measured, and a busy-wait draws power, too",
    "only_busy": "whether the GPUs worked or waited: they were busy {busy} of the time (mean), which proves no work",
    "no_counters": "whether the hardware stayed clean: no error counters were given",
    "part": "what all GPUs did: {seen} of {held} were measured up to the run's end",
}
"""Sentences of the claims that are made here."""
COMPUTE_GOING: Mapping[str, str] = {
    **STILL_GOING,
    "unused": "{idle} of the {held} that the run holds did nothing so far: {gpus}",
    "part": "what all GPUs did: {seen} of {held} were measured",
}
"""The same of a run that goes on."""


@dataclass(frozen=True)
class Limits:
    """What counts as slow."""

    slow_duty: float = 0.6
    """Mean engine activity under which the GPUs idle noticeably."""
    slow_sm: float = 0.2
    """Mean SM activity under which they hardly work."""
    windows: int = 5
    """Windows of GPU activity below which a mean is chance."""


@dataclass(frozen=True)
class Work:
    """What the GPUs show of the run: work, and clean hardware."""

    measured: bool = False
    shows: tuple[Claim, ...] = ()
    """Work that was done."""
    slow: bool = False
    against: Claim | None = None
    """Why it can't be called healthy: no work, or a standstill."""
    clean: tuple[Claim, ...] = ()
    unclean: tuple[Claim, ...] = ()
    """Counters of errors that rose while the run was there."""
    unused: Claim | None = None
    """GPUs of the run that did nothing while others of it worked."""
    unsure: tuple[Claim, ...] = ()
    """What was not measured: SM activity, GPUs that were left out, counters."""
    whole: bool = True
    """Whether all of the run's GPUs were measured up to its end."""

    @property
    def complete(self) -> bool:
        """Work and clean hardware were shown of the whole run; what only stands in for work a busy-wait may do, too."""
        return bool(self.clean and self.whole and any(each.key in ("worked", "worked_some") for each in self.shows))


def examined(evidence: Evidence, run: Run, limits: Limits, ended_well: bool) -> Work:
    """Real compute by SM activity, or what stands in for it; no work at all, or a standstill, speaks against health."""
    healthy, ill = tuple(clean(evidence, run)), tuple(unclean(evidence, run))
    counted = () if healthy or ill else (claim("no_counters"),)
    seen = watched(evidence, run)
    if seen is None:
        return Work(bool(healthy or ill), clean=healthy, unclean=ill, unsure=(claim("no_activity"), *counted))
    from trackside.facts.gpu.duty import duty
    from trackside.facts.gpu.signals import all_along, at_end

    idle = all_along(evidence, run, seen)
    if idle is not None:
        return Work(True, against=idle.claims[0])
    still = at_end(evidence, run, seen, Rest()) if not ended_well else None
    if still is not None and still.sure:
        return Work(True, against=still.claims[0])
    spent = duty(evidence, seen, limits.windows)
    unused = _unused(evidence, run, seen)
    shows, unsure = _worked(evidence, seen, spent, unused is not None)
    slow = spent is not None and (
        (spent.busy is not None and spent.busy.number < limits.slow_duty)
        or (spent.sm is not None and spent.sm.number < limits.slow_sm)
    )
    part = _part(evidence, run, seen)
    told = [each for each in (*unsure, part, *counted) if each is not None]
    return Work(True, tuple(shows), slow, None, healthy, ill, unused, tuple(told), part is None)


def _worked(evidence: Evidence, seen: GpuActivity, spent: Duty | None, partly: bool) -> tuple[list[Claim], list[Claim]]:
    """(what shows work, what that leaves open); ``partly``: some GPUs did nothing."""
    if spent is not None and spent.sm is not None and seen.users.any():
        sm = spent.sm if not partly else _of_users(evidence, seen, spent, spent.sm)
        shows = [claim("worked_some" if partly else "worked", sm=sm)]
        return shows + _launched(evidence, seen), []
    if seen.users.any() and seen.basis in ("launches", "collectives", "power"):
        level = _level(evidence, seen, seen.basis)
        return [claim(f"stood_in_{seen.basis}", level=level)], [claim(f"no_sm_{seen.basis}")]
    if spent is not None and spent.busy is not None:
        return [], [claim("no_activity"), claim("only_busy", busy=spent.busy)]
    return [], [claim("no_activity")]


def _launched(evidence: Evidence, seen: GpuActivity) -> list[Claim]:
    return [claim("launched", count=_level(evidence, seen, "launches"))] if seen.launches is not None else []


def _of_users(evidence: Evidence, seen: GpuActivity, spent: Duty, sm: Value) -> Value:
    """The mean SM activity of the GPUs in use, cited by these."""
    grid = evidence.grid("sm")
    assert grid is not None
    assert sm.value is not None
    some = [of_gpu(grid, gpu).during(spent.start, spent.end).value("avg") for gpu in seen.named(seen.users)[:CITED]]
    return derived(sm.value, *some)


CITED = 8
"""GPUs of which each is cited."""


def _unused(evidence: Evidence, run: Run, seen: GpuActivity) -> Claim | None:
    """GPUs that did nothing while others worked, where it is known that the run held them."""
    if run.gpus_by in (None, "all", "occupancy") or not seen.users.any() or seen.busy is None:
        return None
    grid = evidence.grid(seen.busy_by or "")
    if grid is None or any(mig for (mig,) in grid.labels("mig")):
        return None
    import numpy as np

    from trackside.facts.gpu.activity import level

    with np.errstate(invalid="ignore"):
        cold = level(seen.busy) <= Rest().cold
    watched_all = (~np.isnan(seen.busy)).sum(axis=1) >= 0.5 * seen.seen.sum()
    idle: Flags = cold & watched_all & ~seen.users
    if not idle.any():
        return None
    gpus = seen.named(idle)
    most = [of_gpu(grid, gpu).value("max", unit="") for gpu in gpus[:CITED]]
    return claim("unused", idle=derived(len(gpus), *most), held=derived(len(seen.gpus), *most, unit="GPUs"),
                 gpus=derived(gpus, *most))  # fmt: skip


def _part(evidence: Evidence, run: Run, seen: GpuActivity) -> Claim | None:
    """GPUs of the run that were not measured, or not up to its end; None where all were."""
    from trackside.facts.trust.coverage import STALE_S, sampled_within

    end, span = float(seen.times[-1]), max(STALE_S, 3 * seen.step)
    late = seen.watched[:, seen.times > end - span]
    measured = set(seen.named(row for row, sampled in enumerate(late) if sampled.any()))
    for counters in (evidence.grid(name) for name in CLEAN):
        if counters is not None:
            measured &= sampled_within(counters, end - span, end)
            break
    count = len(measured)
    held = run.n_gpus or 0
    grid = next(grid for name in ACTIVITY if (grid := evidence.grid(name)) is not None)
    if any(mig for (mig,) in grid.labels("mig")):
        held = 0  # instances are counted, not GPUs
    if count >= max(held, len(seen.gpus)):
        return None
    samples = grid.value("count")
    whole = derived(max(held, len(seen.gpus)), samples, unit="GPUs")
    return claim("part", seen=derived(count, samples), held=whole)


def _level(evidence: Evidence, seen: GpuActivity, name: str) -> Value:
    """How much was launched or completed in all; the power drawn by the GPUs in use while they worked."""
    from trackside.facts.gpu.activity import middle

    grid = evidence.grid(name)
    assert grid is not None
    if name != "power" or seen.power is None:
        return grid.value("sum", unit="")
    level = float(middle(seen.power[seen.working & seen.users[:, None]]))
    return derived(round(level, 1), grid.value("median"), unit=grid.unit)
