"""Did the GPUs of a run stand still up to its end, after they had worked? Pure, on arrays.

A pause that ends is no standstill, and neither is one that the run has had before.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, derived
from trackside.facts.gpu.activity import FLOORS, Flags, GpuActivity, Matrix, level, middle, spells
from trackside.facts.gpu.apart import apart
from trackside.facts.gpu.rated import rated_power
from trackside.facts.gpu.signals import Limits
from trackside.facts.gpu.still import Still
from trackside.facts.gpu.traffic import traffic
from trackside.facts.gpus import aligned
from trackside.facts.logs.silence import last_sign
from trackside.finding import Claim, claim
from trackside.model import Run


def at_end(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits, beside: bool = False) -> Still | None:
    """The standstill that lasts to the end of the samples, after a time of work; None where there is none.

    ``beside``: other evidence says that the run was stuck, so that a few windows are enough.
    """
    active = np.flatnonzero(seen.active)
    if not len(active):
        return None
    rest = np.flatnonzero(seen.seen & (np.arange(len(seen.times)) > active[-1]))
    enough = max(2, min(limits.windows, math.ceil(limits.readings / seen.readings)))
    if len(rest) < enough or (seen.basis == "power" and _slower_clocks(evidence, seen, active, rest)):
        return _one_cold(evidence, run, seen, limits)
    until = float(seen.times[rest[-1]])
    after = max(float(seen.times[active[-1]]), float(seen.times[rest[0]]) - seen.step)  # a gap between tells nothing
    heard = max(_heard(evidence), stepped(evidence))
    length = until - max(after, heard)
    duration = until - float(seen.times[0]) + seen.step
    least = enough * seen.step
    sure = length >= max(limits.least_s, limits.pauses * longest_pause(seen))
    if not sure and length < (least if beside else max(limits.short_s, limits.share * duration, least)):
        return None
    inside = rest[seen.times[rest] > heard]
    span = after, max(heard, float(seen.times[rest[0]])), until
    return _still(evidence, run, seen, span, length, inside, sure, limits)


def within(evidence: Evidence, run: Run, seen: GpuActivity, start: float, limits: Limits) -> Still | None:
    """A standstill that began when the log went silent, where the GPUs alone don't tell waiting from work.

    They must work less than before it, or some of them must stand apart.
    """
    windows = np.flatnonzero(seen.seen & (seen.times - seen.step >= start))
    if len(windows) < limits.windows or seen.basis in ("launches", "collectives"):
        return None
    until, start = float(seen.times[windows[-1]]), max(start, float(seen.times[windows[0]]) - seen.step)
    less = _less(seen, windows, limits)
    still = _still(evidence, run, seen, (start, start, until), until - start, windows, True, limits, less)
    return still if still.odd or (less.any() and 2 * int((less & seen.users).sum()) > int(seen.users.sum())) else None


def _less(seen: GpuActivity, windows: NDArray[np.intp], limits: Limits) -> Flags:
    """(G,) GPUs that are busy in these windows and do far less than in the ones before."""
    signal = seen.sm if seen.basis == "sm" else seen.power if seen.basis == "power" else None
    before = np.flatnonzero(seen.active[: windows[0]])
    if signal is None or not len(before):
        return np.zeros(len(seen.gpus), dtype=bool)
    with np.errstate(invalid="ignore"):
        now = middle(signal[:, windows], axis=1)
        less: Flags = now <= limits.less * middle(signal[:, before], axis=1)
        if seen.basis == "sm":
            less &= ~(now > FLOORS.unmistakable_sm)  # an evaluation on one rank works less than a step, and works
    return less


def _one_cold(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Still | None:
    """A few GPUs that went cold for good while all others stay pinned, where utilisation alone tells: it can't say
    whether these work on (see :func:`trackside.facts.gpu.activity.activity` for signals that can)."""
    users, end = seen.users, np.flatnonzero(seen.seen)
    if seen.busy is None or seen.basis != "utilisation" or not len(end) or int(users.sum()) < 2:
        return None
    with np.errstate(invalid="ignore"):
        warm = seen.busy > limits.cold
    last = np.where(warm.any(axis=1), warm.shape[1] - 1 - warm[:, ::-1].argmax(axis=1), -1)
    late = users & (last >= 0) & (end[-1] - last >= max(limits.windows, limits.least_s / seen.step))
    if not late.any() or 2 * int(late.sum()) > int(users.sum()):
        return None
    start = float(seen.times[last[late].max()])
    if max(_heard(evidence), stepped(evidence)) > start + 2 * seen.step:
        return None
    others = users & ~late
    windows = np.flatnonzero(seen.seen & (seen.times > start))
    if not float(middle(seen.busy[others][:, windows])) >= limits.pinned:
        return None
    return within(evidence, run, seen, start, limits)


def _slower_clocks(evidence: Evidence, seen: GpuActivity, active: NDArray[np.intp], rest: NDArray[np.intp]) -> bool:
    """Whether clocks fell when power did: then the GPUs work on, only slower."""
    grid = evidence.grid("clock")
    if grid is None:
        return False
    clocks = aligned(grid, seen.gpus, seen.times)[seen.users]
    return bool(middle(clocks[:, rest]) < SLOWER * middle(clocks[:, active]))


SLOWER = 0.9
"""SM clock over what it was while the GPUs drew the power of work; a card that waits in a kernel keeps its clock."""


def _still(
    evidence: Evidence, run: Run, seen: GpuActivity, span: tuple[float, float, float], length: float,
    windows: NDArray[np.intp], sure: bool, limits: Limits, less: Flags | None = None,
) -> Still:  # fmt: skip
    after, since, until = span
    inner = windows[1 if len(windows) > 4 else 0 : -1 if len(windows) > 1 else None]  # may hold work or the tear-down
    names = ("launches", "collectives", "sm", seen.busy_by or "engine", "power")
    told = [
        value
        for name in names
        if (grid := evidence.grid(name)) is not None
        and (value := grid.during(after, until).value("median")).value is not None
    ]
    return Still(
        evidence, seen, since, after, until, derived(length, *told, unit="s"), sure,
        apart(evidence, run, seen, inner, limits, less), _held(evidence, seen, inner, limits),
    )  # fmt: skip


def longest_pause(seen: GpuActivity) -> float:
    """Seconds of the longest rest between two times of work."""
    active = np.flatnonzero(seen.active)
    if len(active) < 2:
        return 0.0
    resting = (~seen.active)[active[0] : active[-1]] & seen.seen[active[0] : active[-1]]
    return max((stop - start for start, stop in spells(resting)), default=0) * seen.step


def _heard(evidence: Evidence) -> float:
    """Time of the last stamped training point, evaluation or save."""
    sign = last_sign(evidence, ("progress", "evaluations", "saves"))
    return float(sign.value) if sign is not None and isinstance(sign.value, (int, float)) else -np.inf


def stepped(evidence: Evidence) -> float:
    """When the gauge of steps done last rose; minus infinity where it never did."""
    grid = evidence.grid("steps")
    if grid is None:
        return -np.inf
    most = np.fmax.reduce(grid.values, axis=0)
    held = np.flatnonzero(~np.isnan(most))
    rose = held[1:][np.diff(most[held]) > 0]
    return float(grid.times[rose[-1]]) if len(rose) else -np.inf


def _held(evidence: Evidence, seen: GpuActivity, inside: NDArray[np.intp], limits: Limits) -> bool | None:
    """Whether most GPUs in use keep the memory that they had while they worked."""
    grid = evidence.grid("memory")
    if grid is None:
        return None
    memory = aligned(grid, seen.gpus, seen.times)[seen.users]
    most, now = level(memory), middle(memory[:, inside], axis=1)
    known = ~np.isnan(now) & ~np.isnan(most)
    if not known.any():
        return None
    return bool((now[known] >= limits.held * most[known]).mean() > 0.5)


def worked_on(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Claim | None:
    """GPUs that worked up to the end of the run, at the level that they had; None where they may only have waited
    busily all the while, or the last part was not watched."""
    name = seen.basis
    grid = evidence.grid(name) if name is not None else None
    if (
        grid is None
        or name == "utilisation"
        or int(seen.active.sum()) < limits.windows
        or not to_the_end(run, seen, limits)
    ):
        return None
    last = float(seen.times[seen.active][-1])
    unit = "" if grid.unit in ("launches", "collectives") else None
    before, late = grid.during(0.0, last - 10 * seen.step), grid.during(last - 10 * seen.step, last)
    usual, figure = before.value("median", unit=unit), late.value("median", unit=unit)
    if figure.value is None or seen.times[seen.seen][-1] - last > limits.windows * seen.step:
        return None
    if usual.value is not None and figure.number < limits.less * usual.number:
        return None
    told = [claim(f"to_the_end_{name}", level=figure)]
    if not distinct(evidence, seen, seen.active & (seen.times > last - 10 * seen.step), limits):
        told = list(traffic(evidence, seen, last - 10 * seen.step, last).moving)
    return told[0] if told else None


def to_the_end(run: Run, seen: GpuActivity, limits: Limits) -> bool:
    """Whether the GPUs were watched up to the run's end, or to so little before it that no standstill would fit in."""
    if run.end is None:
        return True
    length = run.end - (run.start if run.start is not None else float(seen.times[0]))
    return run.end - float(seen.times[seen.seen][-1]) < max(3 * seen.step, min(limits.least_s, limits.share * length))


def distinct(evidence: Evidence, seen: GpuActivity, windows: Flags, limits: Limits) -> bool:
    """Whether GPUs that look at work in these windows do more than ones that only spin: on more SMs, or at more power;
    launches and collectives are work as they are."""
    if seen.basis not in ("sm", "power") or not windows.any():
        return seen.basis in ("launches", "collectives")
    users = seen.users
    if seen.basis == "sm":
        assert seen.sm is not None
        spins = seen.busy is not None and float(middle(seen.busy[users][:, windows])) >= limits.pinned
        return not spins or float(middle(seen.sm[users][:, windows])) > limits.spinning_sm
    assert seen.power is not None
    drawn: Matrix = middle(seen.power[users][:, windows], axis=1)
    limits_of = rated_power(evidence.grid("power_limit"), evidence.grid("power"), seen.gpus, seen.times)
    most = np.fmax.reduce(limits_of[users], axis=1)
    if not np.isnan(most).any():
        return bool(middle((drawn / most)[None, :]) > limits.idle_power)
    lowest = np.fmin.reduce(-level(-seen.power))
    return bool(middle((drawn / lowest)[None, :]) > limits.spinning_ratio)
