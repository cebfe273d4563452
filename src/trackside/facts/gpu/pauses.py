"""What the GPUs did in a pause of training, and their longest pause between two times of work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import COUNT_SIGNALS, MAX_CITED, TITLES, Flags, GpuActivity
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpu.stall_claims import OutlierSign
from trackside.facts.gpus import grid_of_gpu
from trackside.finding import Claim, Sentence

NO_WORK = Sentence("{signal} in that time: {level}, before it {before} (medians)")
LESS_WORK = Sentence("the GPUs did far less in that time ({signal}: {level}, before it {before}; medians)")
OUTLIER_IDLE = Sentence("the others waited for {gpus}, idle in that time ({signal} {level})")
OUTLIER = Sentence("{gpus} behaved differently from the others in that time")

PROVING_SIGNALS = ("launches", "collectives", "sm")
"""Signals that distinguish idle from work by themselves; power does together with a silent log."""


@dataclass(frozen=True)
class Limits:
    """What distinguishes work from idleness in a pause."""

    min_windows: int = 3
    """Minimum number of windows fully inside a pause."""
    worked_share: float = 0.5
    """The GPUs kept working if more than this share of the pause's windows has work."""
    edge_share: float = 0.1
    """It is a pause if at most this share of its windows has work: its edges may contain some."""


@dataclass(frozen=True)
class PauseWork:
    """What the GPUs did in a pause. ``kept_working``: they went on."""

    kept_working: bool
    claims: tuple[Claim, ...] = ()
    gpus: tuple[str, ...] = ()
    """The GPUs that the others waited for, if known."""


@dataclass(frozen=True)
class LongestPause:
    """The longest pause between two times of work; POSIX seconds and seconds."""

    since: float
    until: float
    next_s: float
    """Length of the second-longest pause."""
    worked_s: float
    """Seconds of work before the pause."""
    claims: tuple[Claim, ...]
    gpus: tuple[str, ...]

    @property
    def length(self) -> Value:
        """Seconds of the pause."""
        sources = [value for claim in self.claims for value in claim.values.values()]
        return derived(self.until - self.since, *sources, unit="s")


@dataclass(frozen=True, eq=False)
class GpuPauses:
    """Times without GPU work between two times of work, while the GPUs were sampled."""

    activity: GpuActivity
    stall: GpuStall
    limits: Limits

    def during(self, since: float, until: float) -> PauseWork | None:
        """What the GPUs did in a pause of training (POSIX seconds); None if too little of it was sampled."""
        activity = self.activity
        windows = np.flatnonzero(
            activity.observed & (activity.times - activity.step >= since) & (activity.times <= until)
        )
        if len(windows) < self.limits.min_windows or activity.basis in (None, "utilization"):
            return None
        reduced = activity.reduced(windows) & activity.working_gpus
        if activity.active[windows].mean() > self.limits.worked_share and 2 * int(reduced.sum()) <= int(
            activity.working_gpus.sum()
        ):
            return PauseWork(True)
        start, end = float(activity.times[windows[0]]) - activity.step, float(activity.times[windows[-1]])
        return PauseWork(False, *self._shown(windows, start, end, reduced))

    @cached_property
    def longest(self) -> LongestPause | None:
        """The longest pause, by signals that distinguish idle from work by themselves."""
        activity = self.activity
        pauses = sorted(activity.pauses, key=lambda span: span[1] - span[0], reverse=True)
        if not pauses or activity.basis not in PROVING_SIGNALS:
            return None
        first, stop = pauses[0]
        second = (pauses[1][1] - pauses[1][0]) * activity.step if len(pauses) > 1 else 0.0
        since, until = float(activity.times[first]) - activity.step, float(activity.times[stop - 1])
        shows, gpus = self._shown(np.arange(first, stop), since, until)
        work_s = int(activity.active[:first].sum()) * activity.step
        return LongestPause(since, until, second, work_s, shows, gpus) if shows else None

    @cached_property
    def longest_s(self) -> Value | None:
        """Seconds of the longest pause between two times of work; None if no signal shows it."""
        activity = self.activity
        grid = activity.grid(activity.basis) if activity.basis in PROVING_SIGNALS else None
        if grid is None or not activity.active.any():
            return None
        return derived(activity.longest_pause_s, grid.value("count"), unit="s")

    def _shown(
        self, windows: NDArray[np.intp], start: float, end: float, reduced: Flags | None = None
    ) -> tuple[tuple[Claim, ...], tuple[str, ...]]:
        """(claims that show the pause, the outlier GPUs in it)."""
        activity = self.activity
        grid = activity.grid(activity.basis)
        if grid is None or activity.basis is None:
            return (), ()
        unit = "" if grid.unit in COUNT_SIGNALS else None
        level = grid.during(start, end).value("median", unit=unit)
        before = grid.during(0.0, start).value("median", unit=unit)
        if level.value is None or before.value is None:
            return (), ()
        no_work = reduced is None or activity.active[windows].mean() <= self.limits.edge_share
        title = TITLES[activity.basis]
        counted = f"{title} per {activity.step:g} s" if activity.basis in COUNT_SIGNALS else title
        signal = derived(counted, level)
        shows = [(NO_WORK if no_work else LESS_WORK)(signal=signal, level=level, before=before)]
        outliers = self.stall.outliers(windows, reduced)
        gpus = activity.named(outliers.outliers)
        name = activity.busy_by or "power"
        busy = activity.grid(name)
        if gpus and busy is not None:
            shows.append(_outlier_claim(name, busy.during(start, end), gpus, outliers.sign))
        return tuple(shows), gpus


@fact(limits=Limits())
def gpu_pauses(activity: GpuActivity, stall: GpuStall, limits: Limits) -> GpuPauses:
    """Needs GPU activity."""
    return GpuPauses(activity, stall, limits)


def _outlier_claim(name: str, during: Grid, gpus: tuple[str, ...], sign: OutlierSign) -> Claim:
    medians = [grid_of_gpu(during, gpu).value("median") for gpu in gpus[:MAX_CITED]]
    levels = [value for value in medians if value.value is not None]
    if sign == "cold" and levels:
        highest = max(levels, key=lambda value: value.number)
        return OUTLIER_IDLE(gpus=derived(gpus, *levels), signal=derived(TITLES[name], highest), level=highest)
    return OUTLIER(gpus=derived(gpus, *medians))
