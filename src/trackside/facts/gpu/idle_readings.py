"""How often readings of utilisation, which are of the last second, find the GPUs at rest in the time of work.

Gaps between kernels that are shorter than a reading, however many, leave every reading somewhere in between. Idle times
of seconds leave readings at rest about as often as the GPUs idle.
"""

from __future__ import annotations

from dataclasses import dataclass

from trackside.evidence import Evidence, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.duty import DutyCycle
from trackside.query import metric


@dataclass(frozen=True)
class Limits:
    """What counts as at rest."""

    at_rest: float = 0.1
    """Utilisation, which the driver takes over the last second at most, of a GPU that did nothing."""


@dataclass(frozen=True)
class IdleReadings:
    """The share of windows in which a reading found a GPU at rest."""

    share: Value
    window: Value
    """Seconds of a window."""
    expected: float
    """The share to expect of readings at random moments, if all idle time were longer than a reading."""


@fact({"lowest": metric("gpu_utilization_ratio").over("run", "min")}, needs=("lowest",), limits=Limits())
def idle_readings(evidence: Evidence, duty: DutyCycle, limits: Limits) -> Maybe[IdleReadings]:
    """Of the lowest reading of each window."""
    grid = evidence.grid("lowest")
    if grid is None or duty.busy is None:
        return NO_READING
    part = grid.during(duty.start, duty.end)
    low = part.value("median")
    known, whole = int((part.values >= 0).sum()), int((grid.values >= 0).sum())
    if low.value is None or not known:
        return NO_READING
    share = derived(round(float((part.values <= limits.at_rest).sum() / known), 3), low, unit="share")
    expected = 1 - duty.busy.number ** (grid.samples / whole)  # any one of a window's readings
    return IdleReadings(share, derived(grid.step, low, unit="s"), expected)


NO_READING = Missing("no reading of utilisation in the time of work")
