"""What the GPUs of a run did in a pause of its training, and their longest rest between two times of work. Pure, on
arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.gpu.activity import Flags, GpuActivity, middle, spells
from trackside.facts.gpu.apart import apart
from trackside.facts.gpu.signals import Limits as Rest
from trackside.facts.gpus import of_gpu
from trackside.facts.pace.stalls import Limits, Stall, meanwhile
from trackside.finding import Claim, claim
from trackside.model import Run

LEAST = 3
"""Windows that lie wholly in a pause, below which they tell nothing of it."""
WORKED = 0.5
"""Share of a pause's windows with work, above which the GPUs worked on."""
EDGES = 0.1
"""Share of a pause's windows with work that is still a rest: its ends may hold some."""
PROOF = ("launches", "collectives", "sm")
"""Signals that tell rest from work by themselves; power does beside a silence of the log."""
NAMES = {"sm": "SM activity", "power": "power", "engine": "engine activity", "utilisation": "utilisation",
         "launches": "kernel launches a window", "collectives": "collectives a window"}  # fmt: skip


@dataclass(frozen=True)
class During:
    """What the GPUs did in a pause. ``worked``: they went on with work."""

    worked: bool
    shows: tuple[Claim, ...] = ()
    gpus: tuple[str, ...] = ()
    """Those that the others waited for, as far as they tell."""


@dataclass(frozen=True)
class Pause:
    """The longest rest between two times of work."""

    stall: Stall
    shows: tuple[Claim, ...]
    gpus: tuple[str, ...]


def during(evidence: Evidence, run: Run, seen: GpuActivity, since: float, until: float) -> During | None:
    """Of a pause (POSIX seconds); None where too little of it was watched."""
    windows = np.flatnonzero(seen.seen & (seen.times - seen.step >= since) & (seen.times <= until))
    if len(windows) < LEAST or seen.basis in (None, "utilisation"):
        return None
    less = _less(seen, windows)
    if seen.active[windows].mean() > WORKED and 2 * int(less.sum()) <= int(seen.users.sum()):
        return During(True)
    start, end = float(seen.times[windows[0]]) - seen.step, float(seen.times[windows[-1]])
    shows, gpus = _told(evidence, run, seen, windows, start, end, less)
    return During(False, shows, gpus)


def _less(seen: GpuActivity, windows: NDArray[np.intp]) -> Flags:
    """(G,) GPUs that do far less in these windows than while they worked before: those that spin in a collective."""
    signal = seen.signal(seen.basis or "")
    before = np.flatnonzero(seen.active[: windows[0]])
    if signal is None or not len(before):
        return np.zeros(len(seen.gpus), dtype=bool)
    with np.errstate(invalid="ignore"):
        less: Flags = middle(signal[:, windows], axis=1) <= Rest().less * middle(signal[:, before], axis=1)
    return less & seen.users


def longest(evidence: Evidence, run: Run, seen: GpuActivity, limits: Limits) -> Pause | None:
    """The longest rest, where it is a stall: long, longer than any other by far, and after as much work."""
    if seen.basis not in PROOF:
        return None
    rests = sorted(_rests(seen), key=lambda span: span[1] - span[0], reverse=True)
    if not rests:
        return None
    first, stop = rests[0]
    length = (stop - first) * seen.step
    second = (rests[1][1] - rests[1][0]) * seen.step if len(rests) > 1 else 0.0
    since, until = float(seen.times[first]) - seen.step, float(seen.times[stop - 1])
    storage, blocked = (meanwhile(evidence, run, name, since, until, limits) for name in ("storage", "tasks"))
    worked = int(seen.active[:first].sum()) * seen.step
    least = limits.caused_s if storage else limits.least_s
    if length < least or length < limits.again * second or worked < min(length, limits.least_s):
        return None
    windows = np.arange(first, stop)
    shows, gpus = _told(evidence, run, seen, windows, since, until)
    if not shows:
        return None
    sources = [value for each in shows for value in each.values.values()]
    seconds = derived(length, *sources, unit="s")
    return Pause(Stall(since, until, seconds, storage, blocked), shows, gpus)


def most(evidence: Evidence, seen: GpuActivity) -> Value | None:
    """Seconds of the longest rest between two times of work; None where nothing tells work from rest."""
    grid = evidence.grid(seen.basis) if seen.basis in PROOF else None
    if grid is None or not seen.active.any():
        return None
    windows = max((stop - start for start, stop in _rests(seen)), default=0)
    return derived(windows * seen.step, grid.value("count"), unit="s")


def _rests(seen: GpuActivity) -> list[tuple[int, int]]:
    """The stretches of windows [start, stop) in which the GPUs were watched and did no work, between two that did."""
    active = np.flatnonzero(seen.active)
    if len(active) < 2:
        return []
    flags = ~seen.active & seen.seen
    flags[: active[0]] = flags[active[-1] :] = False
    return spells(flags)


def _told(
    evidence: Evidence,
    run: Run,
    seen: GpuActivity,
    windows: NDArray[np.intp],
    start: float,
    end: float,
    less: Flags | None = None,
) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
    """(what shows the rest, the GPUs that stood apart in it)."""
    grid = evidence.grid(seen.basis or "")
    if grid is None:
        return (), ()
    unit = "" if grid.unit in ("launches", "collectives") else None
    level = grid.during(start, end).value("median", unit=unit)
    before = grid.during(0.0, start).value("median", unit=unit)
    if level.value is None or before.value is None:
        return (), ()
    key = "rest" if less is None or seen.active[windows].mean() <= EDGES else "little"
    shows = [claim(key, signal=derived(NAMES[seen.basis or ""], level), level=level, before=before)]
    aside = apart(evidence, run, seen, windows, Rest(), less)
    gpus = seen.named(aside.odd)
    busy = evidence.grid(seen.busy_by or "power")
    if gpus and busy is not None:
        shows.append(_odd(busy, gpus, aside.why, start, end))
    return tuple(shows), gpus


def _odd(grid: Grid, gpus: tuple[str, ...], why: str, start: float, end: float) -> Claim:
    own = [of_gpu(grid, gpu).during(start, end).value("median", unit="") for gpu in gpus[:8]]
    told = [value for value in own if value.value is not None]
    if why == "cold" and told:
        most_ = max(told, key=lambda value: value.number)
        kind = {"gpu_engine_active_ratio": "engine activity", "gpu_utilization_ratio": "utilisation"}
        signal = derived(kind.get(grid.query.kind, "power"), most_)
        return claim("odd_cold", gpus=derived(gpus, *told), signal=signal, level=most_)
    return claim("odd", gpus=derived(gpus, *own))
