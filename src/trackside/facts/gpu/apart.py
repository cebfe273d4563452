"""Which GPUs stand apart while a run stands still: those that the others wait for. Pure.

A GPU that waits in a collective keeps a kernel resident and does no work. The one that it waits for is cold, is no
longer sampled, has entered fewer collectives, or goes on with something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid
from trackside.facts.gpu.activity import Flags, GpuActivity, Matrix, gpu_of, level, middle, summed
from trackside.facts.gpu.signals import Limits
from trackside.model import Run

Why = Literal["", "cold", "gone", "behind", "absent", "computing", "first"]


@dataclass(frozen=True)
class Apart:
    """The GPUs in use by what they do, as flags (G,)."""

    spinning: Flags
    cold: Flags
    gone: Flags
    """No longer sampled."""
    working: Flags
    odd: Flags
    """Those that the others wait for, as far as they tell."""
    why: Why
    """What sets them apart; empty where nothing does."""


def apart(
    evidence: Evidence,
    run: Run,
    seen: GpuActivity,
    windows: NDArray[np.intp],
    limits: Limits,
    less: Flags | None = None,
) -> Apart:
    """Who does what in these windows of a standstill; ``less``: GPUs that are known not to work in them."""
    spinning, cold, gone, working = _states(seen, windows, limits, less)
    odd, why = _odd(evidence, run, seen, (spinning, cold, gone, working), float(seen.times[windows[-1]]))
    return Apart(spinning, cold, gone, working, odd, why)


RECENT = 10
"""Windows before a standstill in which a GPU must have been sampled to count as gone since."""


def _states(
    seen: GpuActivity, windows: NDArray[np.intp], limits: Limits, less: Flags | None
) -> tuple[Flags, Flags, Flags, Flags]:
    """(spinning, cold, gone, still working) of the GPUs in use."""
    users = seen.users
    known = seen.known[:, windows].any(axis=1)
    working = users & (seen.working[:, windows].mean(axis=1) > 0.5)
    if less is not None:
        working &= ~less
    gone = users & ~known & seen.known[:, max(0, int(windows[0]) - RECENT) : int(windows[0])].any(axis=1)
    none = np.zeros(len(users), dtype=bool)
    spinning, cold = none, none
    with np.errstate(invalid="ignore"):
        if seen.busy is not None:
            busy = middle(seen.busy[:, windows], axis=1)
            spinning, cold = busy >= limits.spinning, busy <= limits.cold
        elif seen.power is not None:
            lowest = np.fmin.reduce(-level(-seen.power))
            power = middle(seen.power[:, windows], axis=1)
            spinning, cold = power > limits.spinning_power * lowest, power <= limits.cold_power * lowest
    return users & known & spinning & ~working, users & known & cold & ~working, gone, working


def _odd(
    evidence: Evidence, run: Run, seen: GpuActivity, states: tuple[Flags, Flags, Flags, Flags], until: float
) -> tuple[Flags, Why]:
    """Those that the others wait for, by the best witness there is; and which one that is."""
    spinning, cold, gone, working = states
    users = seen.users
    count, none = int(users.sum()), np.zeros(len(users), dtype=bool)
    if count < 2:
        return none, ""
    waits = spinning.any() or (working.any() and seen.basis == "utilisation")  # which can't tell the two apart
    down: tuple[tuple[Flags, Why], ...] = ((cold, "cold"), (gone, "gone"))
    for flags, why in down:
        if flags.any() and waits and 2 * int(flags.sum()) <= count:
            return flags, why
    few: list[tuple[Flags, Why]] = [*_counted(evidence, run, seen, until)]
    if seen.basis != "utilisation":
        few.append((working, "computing"))
    for flags, why in few:
        if flags.any() and 2 * int(flags.sum()) < count:
            return flags & users, why
    worked = seen.working & users[:, None]
    stops = np.where(worked.any(axis=1), worked.shape[1] - 1 - worked[:, ::-1].argmax(axis=1), -1)
    early = users & (stops + EARLIER <= np.median(stops[users]))
    return (early, "first") if early.any() and 4 * int(early.sum()) <= count else (none, "")


EARLIER = 3
"""Windows by which a GPU must have stopped before the median one to have stopped first: scrapes jitter by one."""


def _counted(evidence: Evidence, run: Run, seen: GpuActivity, until: float) -> list[tuple[Flags, Why]]:
    """GPUs that had entered fewer collectives than most, and those that are in none while most are in one."""
    entered, left = (_latest(evidence.grid(name), run, seen, until) for name in ("entered", "left"))
    found: list[tuple[Flags, Why]] = []
    if entered is None:
        return found
    known = seen.users & ~np.isnan(entered)
    if not known.any():
        return found
    with np.errstate(invalid="ignore"):
        most = known & (entered == np.nanmax(entered[known]))
        if 2 * int(most.sum()) > int(known.sum()):
            found.append((known & ~most, "behind"))
        if left is not None:
            waiting = known & (entered > left)
            if 2 * int(waiting.sum()) > int(known.sum()):
                found.append((known & ~waiting, "absent"))
    return found


def _latest(grid: Grid | None, run: Run, seen: GpuActivity, until: float) -> Matrix | None:
    """(G,) The last value of a counter up to a moment."""
    if grid is None:
        return None
    values = summed(grid, [gpu_of(each, run.gpus, run.n_ranks) for each in grid.series], seen.gpus, seen.times)
    values = values[:, seen.times <= until]
    held = ~np.isnan(values)
    place = np.where(held.any(axis=1), values.shape[1] - 1 - held[:, ::-1].argmax(axis=1), 0)
    latest: Matrix = np.take_along_axis(values, place[:, None], axis=1)[:, 0]
    return latest
