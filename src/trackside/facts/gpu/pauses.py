"""What the GPUs of a run did in a pause of its training, and their longest rest between two times of work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import COUNTED, MAX_CITED, TITLES, Flags, GpuActivity
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpu.stall_claims import Why
from trackside.facts.gpus import of_gpu
from trackside.finding import Claim, Sentence

REST = Sentence("the GPUs did no work meanwhile ({signal}: {level}, and {before} until then; medians)")
LITTLE = Sentence("the GPUs did far less meanwhile ({signal}: {level}, and {before} until then; medians)")
ODD_COLD = Sentence("GPU {gpus} was cold while the others waited for it ({signal}: {level})")
ODD = Sentence("GPU {gpus} stood apart from the others meanwhile")

PROOF = ("launches", "collectives", "sm")
"""Signals that tell rest from work by themselves; power does beside a silence of the log."""


@dataclass(frozen=True)
class Limits:
    """What tells work from rest in a pause."""

    windows: int = 3
    """That lie wholly in a pause, below which they tell nothing of it."""
    worked_share: float = 0.5
    """Of a pause's windows with work, above which the GPUs worked on."""
    edge_share: float = 0.1
    """Of a pause's windows with work that is still a rest: its ends may hold some."""


@dataclass(frozen=True)
class PauseWork:
    """What the GPUs did in a pause. ``worked``: they went on with work."""

    worked: bool
    claims: tuple[Claim, ...] = ()
    gpus: tuple[str, ...] = ()
    """Those that the others waited for, as far as they tell."""


@dataclass(frozen=True)
class GpuRest:
    """The longest rest between two times of work; POSIX seconds and seconds."""

    since: float
    until: float
    next_s: float
    """The next longest rest."""
    worked_s: float
    """Work before it."""
    claims: tuple[Claim, ...]
    gpus: tuple[str, ...]

    @property
    def length(self) -> Value:
        """Its seconds."""
        sources = [value for claim in self.claims for value in claim.values.values()]
        return derived(self.until - self.since, *sources, unit="s")


@dataclass(frozen=True, eq=False)
class GpuPauses:
    """Times in which the GPUs were watched and did no work, between two times of work."""

    activity: GpuActivity
    stall: GpuStall
    limits: Limits

    def during(self, since: float, until: float) -> PauseWork | None:
        """What they did in a pause of the training (POSIX seconds); None if too little of it was watched."""
        activity = self.activity
        windows = np.flatnonzero(
            activity.observed & (activity.times - activity.step >= since) & (activity.times <= until)
        )
        if len(windows) < self.limits.windows or activity.basis in (None, "utilisation"):
            return None
        less = activity.reduced(windows) & activity.worked
        if activity.active[windows].mean() > self.limits.worked_share and 2 * int(less.sum()) <= int(
            activity.worked.sum()
        ):
            return PauseWork(True)
        start, end = float(activity.times[windows[0]]) - activity.step, float(activity.times[windows[-1]])
        return PauseWork(False, *self._shown(windows, start, end, less))

    @cached_property
    def longest(self) -> GpuRest | None:
        """The longest rest, of signals that tell rest from work by themselves."""
        activity = self.activity
        rests = sorted(activity.pauses, key=lambda span: span[1] - span[0], reverse=True)
        if not rests or activity.basis not in PROOF:
            return None
        first, stop = rests[0]
        second = (rests[1][1] - rests[1][0]) * activity.step if len(rests) > 1 else 0.0
        since, until = float(activity.times[first]) - activity.step, float(activity.times[stop - 1])
        shows, gpus = self._shown(np.arange(first, stop), since, until)
        worked = int(activity.active[:first].sum()) * activity.step
        return GpuRest(since, until, second, worked, shows, gpus) if shows else None

    @cached_property
    def longest_s(self) -> Value | None:
        """Seconds of the longest rest between two times of work; None if nothing tells work from rest."""
        activity = self.activity
        grid = activity.grid(activity.basis) if activity.basis in PROOF else None
        if grid is None or not activity.active.any():
            return None
        return derived(activity.longest_pause_s, grid.value("count"), unit="s")

    def _shown(
        self, windows: NDArray[np.intp], start: float, end: float, less: Flags | None = None
    ) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
        """(what shows the rest, the GPUs that stood apart in it)."""
        activity = self.activity
        grid = activity.grid(activity.basis)
        if grid is None or activity.basis is None:
            return (), ()
        unit = "" if grid.unit in COUNTED else None
        level = grid.during(start, end).value("median", unit=unit)
        before = grid.during(0.0, start).value("median", unit=unit)
        if level.value is None or before.value is None:
            return (), ()
        rested = less is None or activity.active[windows].mean() <= self.limits.edge_share
        signal = derived(TITLES[activity.basis], level)
        shows = [(REST if rested else LITTLE)(signal=signal, level=level, before=before)]
        outliers = self.stall.outliers(windows, less)
        gpus = activity.named(outliers.outliers)
        name = activity.busy_by or "power"
        busy = activity.grid(name)
        if gpus and busy is not None:
            shows.append(_apart(name, busy.during(start, end), gpus, outliers.sign))
        return tuple(shows), gpus


@fact(limits=Limits())
def gpu_pauses(activity: GpuActivity, stall: GpuStall, limits: Limits) -> GpuPauses:
    """Of the GPUs' activity."""
    return GpuPauses(activity, stall, limits)


def _apart(name: str, during: Grid, gpus: tuple[str, ...], why: Why) -> Claim:
    own = [of_gpu(during, gpu).value("median", unit="") for gpu in gpus[:MAX_CITED]]
    levels = [value for value in own if value.value is not None]
    if why == "cold" and levels:
        most = max(levels, key=lambda value: value.number)
        return ODD_COLD(gpus=derived(gpus, *levels), signal=derived(TITLES[name], most), level=most)
    return ODD(gpus=derived(gpus, *own))
