"""Ranks that met, keep their GPUs busy and never do a step: they wait in their first collectives. Pure, on arrays.

The log holds no step although it tells of the ranks' start, the GPUs are pinned from then to the end, and nothing that
would move in a step moves. Work that merely prints nothing moves data and computes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trackside.evidence import Evidence, Value, derived
from trackside.facts.gpu.activity import Flags, GpuActivity, middle
from trackside.facts.gpu.signals import Limits
from trackside.facts.gpu.standstill import distinct, stepped
from trackside.facts.gpu.traffic import traffic
from trackside.facts.logs.silence import several_ranks
from trackside.facts.training.learning import training_points
from trackside.finding import Claim, claim
from trackside.model import Run


@dataclass(frozen=True)
class Unstarted:
    """No step was done in all the time that the GPUs were busy."""

    since: float
    sure: bool
    """Whether it was measured that nothing moves; else the GPUs only work too little to tell."""
    shows: tuple[Claim, ...]


def unstarted(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Unstarted | None:
    """None where a step was done, anything moves, the log does not tell of several ranks, or it was not for long."""
    met = _met(evidence)
    if met is None or training_points(evidence["progress"]) or stepped(evidence) > -np.inf:
        return None
    if not several_ranks(evidence, run) or seen.busy is None or int(seen.users.sum()) < 2:
        return None
    done = evidence.grid("collectives")
    if seen.basis == "launches" or (done is not None and done.value("sum").value):
        return None
    crowd = middle(seen.busy[seen.users], axis=0)
    with np.errstate(invalid="ignore"):
        busy: Flags = seen.seen & (crowd >= limits.pinned)
    if not busy.any():
        return None
    start, end = float(seen.times[busy.argmax()]) - seen.step, float(seen.times[seen.seen][-1])
    length = float(busy.sum()) * seen.step
    if length < max(limits.least_s, limits.most * (end - start), 0.5 * float(seen.seen.sum()) * seen.step):
        return None
    moved = traffic(evidence, seen, start, end)
    little = [] if distinct(evidence, seen, busy, limits) else _little(evidence, seen, start, end)
    if moved.moving or not (moved.none or little):
        return None
    grid = evidence.grid(seen.busy_by or "engine")
    assert grid is not None
    whole = grid.during(start, end).value("median", unit="share")
    pinned = claim("pinned_on", busy=whole, seconds=derived(length, whole, unit="s"))
    first = claim("no_step", count=evidence["progress"].reduce("count"), line=met)
    return Unstarted(start, moved.none, (first, pinned, *moved.resting, *little))


def _met(evidence: Evidence) -> Value | None:
    """The log's word that ranks had begun to meet."""
    for name in ("ready", "communicators", "inits"):
        for row in evidence[name].events[:1]:
            return evidence[name].value(row, "text")
    return None


def _little(evidence: Evidence, seen: GpuActivity, start: float, end: float) -> list[Claim]:
    """SM activity, else power, that is no more than what spinning alone comes to."""
    sm, power = evidence.grid("sm"), evidence.grid("power")
    if sm is not None:
        return [claim("little_sm", sm=sm.during(start, end).value("median", unit="share"))]
    return [claim("little_power", power=power.during(start, end).value("median"))] if power is not None else []
