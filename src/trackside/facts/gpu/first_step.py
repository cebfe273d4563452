"""Ranks that connected and keep their GPUs busy, but never complete a step: they wait in their first collectives.

The log shows the ranks' start but no step; the GPUs are pinned from then to the end; and nothing that would move in a
step moves. Work that merely prints nothing would move data and compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.evidence import Missing, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import FLOORS, Flags, GpuActivity, nan_median
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim, Sentence

LOOKED_BUSY = Sentence("the GPUs looked busy the whole time: {busy} over {seconds} (median)")
NO_STEP = Sentence("the ranks had connected ({line}), but no training step was logged")
LITTLE_SM = Sentence("SM activity was {sm} (median), as when GPUs only wait in a collective")
LITTLE_POWER = Sentence("power was {power} (median), as when GPUs only wait in a collective")


@dataclass(frozen=True)
class Limits:
    """When GPUs were pinned for long."""

    min_busy_share: float = 0.9
    """Share of the windows that counts as the whole time."""
    min_lasting_share: float = 0.5
    """Minimum share of the sampled time that it must last."""


@dataclass(frozen=True, eq=False)
class FirstStepHang:
    """Ranks that kept their GPUs busy without ever completing a step."""

    since: float
    sure: bool
    """Whether measurements show that nothing moves; otherwise the GPUs only work little."""
    claims: tuple[Claim, ...]


STEP_DONE = Missing("a training step was completed")
START_UNKNOWN = Missing(
    "no line that shows that several ranks started was recognized, or no metric shows when their GPUs were busy"
)
WORK_DONE = Missing("kernels, collectives or data traffic show that work was done")
BUSY_TOO_SHORT = Missing("the GPUs were not busy for long enough")


@fact(limits=Limits())
def first_step_hang(activity: GpuActivity, stall: GpuStall, silence: Silence, limits: Limits) -> Maybe[FirstStepHang]:
    """Needs a log that shows the start of several ranks and no step, and GPUs that are busy for long while no data
    moves; otherwise missing."""
    rendezvous, progress = silence.first_line("ready", "communicators", "inits"), silence.signs["progress"]
    if silence.points or stall.stepped > -np.inf:
        return STEP_DONE
    if rendezvous is None or not silence.several_ranks or activity.busy is None or int(activity.working_gpus.sum()) < 2:
        return START_UNKNOWN
    collectives = activity.grid("collectives")
    if activity.basis == "launches" or (collectives is not None and collectives.value("sum").value):
        return WORK_DONE
    typical_busy = nan_median(activity.busy[activity.working_gpus], axis=0)
    with np.errstate(invalid="ignore"):
        busy: Flags = activity.observed & (typical_busy >= FLOORS.pinned)
    if not busy.any():
        return BUSY_TOO_SHORT
    start, end = float(activity.times[busy.argmax()]) - activity.step, float(activity.times[activity.observed][-1])
    busy_s, watched_s = float(busy.sum()) * activity.step, float(activity.observed.sum()) * activity.step
    if busy_s < max(
        silence.limits.min_silence_s, limits.min_busy_share * (end - start), limits.min_lasting_share * watched_s
    ):
        return BUSY_TOO_SHORT
    traffic = stall.traffic.between(start, end)
    little_work = [] if stall.beyond_spinning(busy) else _little_work(activity, start, end)
    if traffic.active or not (traffic.nothing_moves or little_work):
        return WORK_DONE
    level = activity.grids[activity.busy_by or "engine"].during(start, end).value("median", unit="share")
    pinned = LOOKED_BUSY(busy=level, seconds=derived(busy_s, level, unit="s"))
    first = NO_STEP(count=progress.reduce("count"), line=rendezvous)
    return FirstStepHang(start, traffic.nothing_moves, (first, pinned, *traffic.idle, *little_work))


def _little_work(activity: GpuActivity, start: float, end: float) -> list[Claim]:
    """SM activity, else power, that is no higher than spinning alone produces."""
    sm, power = activity.grid("sm"), activity.grid("power")
    if sm is not None:
        return [LITTLE_SM(sm=sm.during(start, end).value("median", unit="share"))]
    return [LITTLE_POWER(power=power.during(start, end).value("median"))] if power is not None else []
