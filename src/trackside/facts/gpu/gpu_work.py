"""Whether the GPUs of a run did real work and had no hardware errors: the GPU evidence of a healthy run.

SM activity, or a substitute signal, shows work. No work at all, or a stall at the end of a run that did not end well,
contradicts health. So do GPUs that were idle while others worked, and error counters that rose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import FLOORS, MAX_CITED, Flags, GpuActivity, level, nan_median
from trackside.facts.gpu.duty import DutyCycle
from trackside.facts.gpu.idle import IdleGpus
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpus import grid_of_gpu
from trackside.facts.hardware.health import RISES, HardwareHealth
from trackside.facts.trust.coverage import STALE_S, sampled_gpus
from trackside.finding import Claim, Sentence
from trackside.model import Run

COMPUTED = Sentence("the GPUs computed: SM activity {sm} (median GPU, averaged over {seconds} of training)")
SOME_COMPUTED = Sentence(
    "the GPUs in use computed: SM activity {sm} (median of them, averaged over {seconds} of training)"
)
GPUS_UNUSED = Sentence(
    "{idle} of the {allocated} allocated did nothing during the whole run: {gpus}",
    running="{idle} of the {allocated} allocated have done nothing so far: {gpus}",
)
KERNELS_LAUNCHED = Sentence("{count} kernels were launched")
SUBSTITUTE_CLAIMS: Mapping[str, Sentence] = {
    "launches": Sentence("the GPUs computed: {level} kernels were launched"),
    "collectives": Sentence("the GPUs computed: {level} collectives completed"),
    "power": Sentence("the GPUs drew more power than idle GPUs: {level} (median)"),
}
NO_ACTIVITY = Sentence("whether the GPUs computed or waited: no metric that distinguishes them was given")
SM_UNKNOWN: Mapping[str, Sentence] = {
    "launches": Sentence("how well the GPUs were used: SM activity was not measured, only kernel launches"),
    "collectives": Sentence("how well the GPUs were used: SM activity was not measured, only collectives"),
    "power": Sentence("whether the GPUs computed or waited: SM activity was not measured, and waiting draws power too"),
}
ONLY_UTILIZATION = Sentence("whether the GPUs computed or waited: utilization (median GPU: {busy}) does not show it")
NO_COUNTERS = Sentence("whether the hardware had errors: no error counters were given")
PARTLY_MEASURED = Sentence(
    "what all GPUs did: only {measured} of {allocated} were measured until the end of the run",
    running="what all GPUs did: only {measured} of {allocated} were measured",
)


@dataclass(frozen=True)
class Limits:
    """Thresholds for a slow run."""

    slow_duty: float = 0.6
    """The GPUs idle noticeably if their mean engine activity is lower."""
    slow_sm: float = 0.2
    """They hardly work if their mean SM activity is lower."""
    min_readings: int = 5
    """Minimum number of samples of GPU activity for a reliable mean."""
    min_sampled_share: float = 0.5
    """Minimum share of the observed windows with samples of a GPU before it counts as idle."""


@dataclass(frozen=True)
class GpuWork:
    """GPU evidence of work and of clean hardware."""

    measured: bool = False
    claims: tuple[Claim, ...] = ()
    """The work that was done."""
    computed: bool = False
    """Whether SM activity shows the work; a busy-wait can produce the substitute signals, too."""
    slow: bool = False
    contradiction: Claim | None = None
    """Why the run is not healthy: no work, or a stall."""
    clean: tuple[Claim, ...] = ()
    unclean: tuple[Claim, ...] = ()
    """Error counters that rose during the run."""
    unused: Claim | None = None
    """GPUs of the run that were idle while others worked."""
    open_questions: tuple[Claim, ...] = ()
    """What was not measured: SM activity, some of the GPUs, counters."""
    all_measured: bool = True
    """Whether all of the run's GPUs were measured up to its end."""

    @property
    def complete(self) -> bool:
        """Whether work and clean hardware were shown for the whole run."""
        return bool(self.clean) and self.all_measured and self.computed


@fact(limits=Limits())
def gpu_work(
    activity: Maybe[GpuActivity], idle: Maybe[IdleGpus], stall: Maybe[GpuStall], duty: Maybe[DutyCycle],
    health: HardwareHealth, run: Run, limits: Limits,
) -> GpuWork:  # fmt: skip
    """Needs no particular input; what was not measured becomes an open question."""
    clean, unclean = health.unchanged_meanwhile, health.risen
    no_counters = () if clean or unclean else (NO_COUNTERS(),)
    if isinstance(activity, Missing):
        return GpuWork(
            bool(clean or unclean), clean=clean, unclean=unclean, open_questions=(NO_ACTIVITY(), *no_counters)
        )
    if not isinstance(idle, Missing):
        return GpuWork(True, contradiction=idle.claims[0])
    if not isinstance(stall, Missing) and stall.hung is not None:
        return GpuWork(True, contradiction=stall.hung.claims[0])
    reliable_duty = None if isinstance(duty, Missing) or duty.readings < limits.min_readings else duty
    unused = _unused_gpus(activity, run, limits)
    shows, unsure = _work_claims(activity, reliable_duty, unused is not None)
    unmeasured = _unmeasured_gpus(activity, health, run)
    return GpuWork(
        True,
        shows,
        computed=reliable_duty is not None and reliable_duty.sm is not None and bool(activity.working_gpus.any()),
        slow=reliable_duty is not None and _is_slow(reliable_duty, limits),
        clean=clean,
        unclean=unclean,
        unused=unused,
        open_questions=(*unsure, *([unmeasured] if unmeasured is not None else []), *no_counters),
        all_measured=unmeasured is None,
    )


def _is_slow(duty_cycle: DutyCycle, limits: Limits) -> bool:
    pairs = (duty_cycle.busy, limits.slow_duty), (duty_cycle.sm, limits.slow_sm)
    return any(level is not None and level.number < minimum for level, minimum in pairs)


def _work_claims(
    activity: GpuActivity, duty_cycle: DutyCycle | None, partly: bool
) -> tuple[tuple[Claim, ...], tuple[Claim, ...]]:
    """(claims that show work, claims about what that leaves open); ``partly``: some GPUs were idle."""
    if duty_cycle is not None and duty_cycle.sm is not None and activity.working_gpus.any():
        seconds = derived(duty_cycle.seconds, duty_cycle.sm, unit="s")
        work_claim = (SOME_COMPUTED if partly else COMPUTED)(sm=duty_cycle.sm, seconds=seconds)
        launched = () if activity.launches is None else (KERNELS_LAUNCHED(count=_level(activity, "launches")),)
        return (work_claim, *launched), ()
    if activity.working_gpus.any() and activity.basis in SUBSTITUTE_CLAIMS:
        name = str(activity.basis)
        return (SUBSTITUTE_CLAIMS[name](level=_level(activity, name)),), (SM_UNKNOWN[name](),)
    if duty_cycle is not None and duty_cycle.busy is not None:
        return (), (NO_ACTIVITY(), ONLY_UTILIZATION(busy=duty_cycle.busy))
    return (), (NO_ACTIVITY(),)


def _unused_gpus(activity: GpuActivity, run: Run, limits: Limits) -> Claim | None:
    """GPUs that were idle while others worked, if it is known that they were allocated to the run."""
    if run.gpus_by in (None, "all", "occupancy") or not activity.working_gpus.any() or activity.busy is None:
        return None
    grid = activity.grid(activity.busy_by)
    if grid is None or any(mig for (mig,) in grid.labels("mig")):
        return None
    with np.errstate(invalid="ignore"):
        cold = level(activity.busy) <= FLOORS.cold
    watched = (~np.isnan(activity.busy)).sum(axis=1) >= limits.min_sampled_share * activity.observed.sum()
    idle: Flags = cold & watched & ~activity.working_gpus
    if not idle.any():
        return None
    gpus = activity.named(idle)
    maxima = [grid_of_gpu(grid, gpu).value("max", unit="") for gpu in gpus[:MAX_CITED]]
    n_gpus = derived(len(activity.gpus), *maxima, unit="GPUs")
    return GPUS_UNUSED(idle=derived(len(gpus), *maxima), allocated=n_gpus, gpus=derived(gpus, *maxima))


def _unmeasured_gpus(activity: GpuActivity, health: HardwareHealth, run: Run) -> Claim | None:
    """GPUs of the run that were not measured, or not up to its end; None if all were."""
    end, last_s = float(activity.times[-1]), max(STALE_S, 3 * activity.step)
    last_samples = activity.watched[:, activity.times > end - last_s]
    measured = set(activity.named(row for row, sampled in enumerate(last_samples) if sampled.any()))
    sampled = next((health.counters[name] for name in RISES if name in health.counters), None)
    if sampled is not None:
        measured &= sampled_gpus(sampled, end - last_s, end)
    grid = next(iter(activity.grids.values()))
    instances = any(mig for (mig,) in grid.labels("mig"))  # MIG: instances are counted instead of GPUs
    n_gpus = max(0 if instances else run.n_gpus or 0, len(activity.gpus))
    if len(measured) >= n_gpus:
        return None
    samples = grid.value("count")
    return PARTLY_MEASURED(measured=derived(len(measured), samples), allocated=derived(n_gpus, samples, unit="GPUs"))


def _level(activity: GpuActivity, name: str) -> Value:
    """Total launches or collectives; for power, the level of the GPUs in use while they worked."""
    grid = activity.grids[name]
    if name != "power" or activity.power is None:
        return grid.value("sum", unit="")
    drawn = float(nan_median(activity.power[activity.working & activity.working_gpus[:, None]]))
    return derived(round(drawn, 1), grid.value("median"), unit=grid.unit)
