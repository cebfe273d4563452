"""Which GPUs differ from the others while a run stands still: those that the others wait for.

A GPU that waits in a collective keeps a kernel resident and does no work. The one that it waits for is cold, is no
longer sampled, has entered fewer collectives, or goes on with something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid
from trackside.facts.gpu.activity import Flags, GpuActivity, Matrix, gpu_of, level, middle, summed
from trackside.model import Run

Why = Literal["", "cold", "gone", "behind", "absent", "computing", "first"]


@dataclass(frozen=True)
class Limits:
    """By what a GPU at rest is told from one that waits."""

    spinning: float = 0.8
    """Engine activity of a GPU that waits in a collective: a kernel is resident all the time."""
    cold: float = 0.1
    """Engine activity of a GPU on which nothing runs."""
    spinning_power: float = 1.3
    """Power over the lowest of all GPUs, where engine activity was not sampled: 85 W beside 60 W idle (public
    nvidia-smi output of a hang on A100s)."""
    cold_power: float = 1.15
    """Power over the lowest of all GPUs up to which nothing runs."""
    recent_windows: int = 10
    """Windows before a standstill in which a GPU must have been sampled to count as gone since."""
    earlier_windows: int = 3
    """Windows by which a GPU must have stopped before the median one to have stopped first: scrapes jitter by one."""


@dataclass(frozen=True)
class OutlierGpus:
    """The GPUs in use by what they do, as flags (G,)."""

    spinning: Flags
    cold: Flags
    gone: Flags
    """No longer sampled."""
    working: Flags
    odd: Flags
    """Those that the others wait for, as far as they tell."""
    why: Why
    """What sets them apart; empty if nothing does."""


def outlier_gpus(
    activity: GpuActivity, counters: Mapping[str, Grid], run: Run, windows: NDArray[np.intp], limits: Limits,
    less: Flags | None = None,
) -> OutlierGpus:  # fmt: skip
    """Who does what in these windows of a standstill.

    ``counters``: collectives ``entered`` and ``left``, of those that were traced; ``less``: GPUs that are known not to
    work in these windows.
    """
    states = _states(activity, windows, limits, less)
    until = float(activity.times[windows[-1]])
    entered, left = (_latest(counters.get(name), run, activity, until) for name in ("entered", "left"))
    odd, why = _odd(activity, states, entered, left, limits)
    return OutlierGpus(*states, odd, why)


def _states(
    activity: GpuActivity, windows: NDArray[np.intp], limits: Limits, less: Flags | None
) -> tuple[Flags, Flags, Flags, Flags]:
    """(spinning, cold, gone, still working) of the GPUs in use."""
    users = activity.users
    known = activity.known[:, windows].any(axis=1)
    working = users & (activity.working[:, windows].mean(axis=1) > 0.5)
    if less is not None:
        working &= ~less
    before = slice(max(0, int(windows[0]) - limits.recent_windows), int(windows[0]))
    gone = users & ~known & activity.known[:, before].any(axis=1)
    none = np.zeros(len(users), dtype=bool)
    spinning, cold = none, none
    with np.errstate(invalid="ignore"):
        if activity.busy is not None:
            busy = middle(activity.busy[:, windows], axis=1)
            spinning, cold = busy >= limits.spinning, busy <= limits.cold
        elif activity.power is not None:
            lowest = np.fmin.reduce(-level(-activity.power))
            power = middle(activity.power[:, windows], axis=1)
            spinning, cold = power > limits.spinning_power * lowest, power <= limits.cold_power * lowest
    return users & known & spinning & ~working, users & known & cold & ~working, gone, working


def _odd(
    activity: GpuActivity, states: tuple[Flags, Flags, Flags, Flags], entered: Matrix | None, left: Matrix | None,
    limits: Limits,
) -> tuple[Flags, Why]:  # fmt: skip
    """Those that the others wait for, by the best witness there is; and which one that is."""
    spinning, cold, gone, working = states
    users = activity.users
    count, none = int(users.sum()), np.zeros(len(users), dtype=bool)
    if count < 2:
        return none, ""
    waits = spinning.any() or (working.any() and activity.basis == "utilisation")  # which can't tell the two apart
    down: tuple[tuple[Flags, Why], ...] = ((cold, "cold"), (gone, "gone"))
    for flags, why in down:
        if flags.any() and waits and 2 * int(flags.sum()) <= count:
            return flags, why
    few = _by_collectives(users, entered, left)
    if activity.basis != "utilisation":
        few.append((working, "computing"))
    for flags, why in few:
        if flags.any() and 2 * int(flags.sum()) < count:
            return flags & users, why
    worked = activity.working & users[:, None]
    stops = np.where(worked.any(axis=1), worked.shape[1] - 1 - worked[:, ::-1].argmax(axis=1), -1)
    early = users & (stops + limits.earlier_windows <= np.median(stops[users]))
    return (early, "first") if early.any() and 4 * int(early.sum()) <= count else (none, "")


def _by_collectives(users: Flags, entered: Matrix | None, left: Matrix | None) -> list[tuple[Flags, Why]]:
    """GPUs that had entered fewer collectives than most, and those that are in none while most are in one."""
    few: list[tuple[Flags, Why]] = []
    if entered is None:
        return few
    known = users & ~np.isnan(entered)
    if not known.any():
        return few
    with np.errstate(invalid="ignore"):
        most = known & (entered == np.nanmax(entered[known]))
        if 2 * int(most.sum()) > int(known.sum()):
            few.append((known & ~most, "behind"))
        if left is not None:
            waiting = known & (entered > left)
            if 2 * int(waiting.sum()) > int(known.sum()):
                few.append((known & ~waiting, "absent"))
    return few


def _latest(grid: Grid | None, run: Run, activity: GpuActivity, until: float) -> Matrix | None:
    """(G,) The last value of a counter up to a moment."""
    if grid is None:
        return None
    placed = [gpu_of(series, run.gpus, run.n_ranks) for series in grid.series]
    values = summed(grid, placed, activity.gpus, activity.times)[:, activity.times <= until]
    held = ~np.isnan(values)
    place = np.where(held.any(axis=1), values.shape[1] - 1 - held[:, ::-1].argmax(axis=1), 0)
    latest: Matrix = np.take_along_axis(values, place[:, None], axis=1)[:, 0]
    return latest
