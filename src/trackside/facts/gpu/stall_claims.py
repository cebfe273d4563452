"""A stall of a run's GPUs, the evidence for it, and the outlier GPUs in it: those that the others wait for.

A GPU that waits in a collective keeps a kernel resident and does no work. The GPU that it waits for is cold, is no
longer sampled, has entered fewer collectives, or does other work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived
from trackside.facts.gpu.activity import (
    COUNT_SIGNALS,
    FLOORS,
    MAX_CITED,
    TITLES,
    Flags,
    GpuActivity,
    Matrix,
    last_true,
    lowest_level,
    nan_median,
    sum_by_gpu,
)
from trackside.facts.gpus import count_of, grid_of_gpu, value_or_none
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import Reducer

OutlierSign = Literal["", "cold", "gone", "behind", "absent", "computing", "first"]
WORK_BEFORE_AND_NOW: Mapping[str, Sentence] = {
    "launches": Sentence(
        "{now} kernel launches in the last {seconds}, {before} in the {work} of work before that",
    ),
    "collectives": Sentence(
        "{now} collectives completed in the last {seconds}, {before} in the {work} of work before that",
    ),
    "sm": Sentence("SM activity was {now} in the last {seconds}, {before} before that (medians of the GPUs)"),
    "power": Sentence("power was {now} in the last {seconds}, {before} before that (medians of the GPUs)"),
    "busy": Sentence("the GPUs were busy for {now} of the last {seconds}, for {before} before that (medians)"),
}
SPINNING = Sentence(
    "{count} only waited in a spinning kernel, without computing: {signal} {busy} (the lowest of their medians)"
)
SPINNING_POWER = Sentence(
    "{count} drew {power} (the lowest of their medians) without computing, more than idle GPUs draw"
)
SPINNING_ALONE: Mapping[str, Sentence] = {
    "activity": Sentence("{count} only waited in a spinning kernel, without computing: {signal} {busy} (median)"),
    "power": Sentence("{count} drew {power} (median) without computing, more than idle GPUs draw"),
}
"""The sentences about a single GPU."""
OUTLIER_CLAIMS: Mapping[str, Sentence] = {
    "cold": Sentence("GPU {gpus} went idle ({signal} {level}), while the others waited"),
    "gone": Sentence("GPU {gpus} stopped being sampled, while the others were still sampled"),
    "behind": Sentence("GPU {gpus} entered fewer collectives than the others: {own} versus {others}"),
    "absent": Sentence(
        "GPU {gpus} was in no collective while the others were in one: {own} entered, {others} completed"
    ),
    "computing": Sentence("GPU {gpus} kept computing something else"),
    "first": Sentence("GPU {gpus} stopped before the others"),
}
MEMORY_HELD = Sentence("GPU memory stays allocated: {memory} (median of the GPUs)")


@dataclass(frozen=True)
class Limits:
    """What distinguishes an idle GPU from a waiting one."""

    min_spinning_activity: float = 0.8
    """Engine activity of a GPU that waits in a collective: a kernel is resident all the time."""
    spinning_power: float = 1.3
    """A GPU spins if it draws at least this many times the power of the lowest GPU, if engine activity was not sampled:
    85 W versus 60 W idle (public nvidia-smi output of a hang on A100s)."""
    cold_power: float = 1.15
    """Nothing runs on a GPU that draws at most this many times the power of the lowest GPU."""
    recent_windows: int = 10
    """Windows before a stall in which a GPU must have been sampled to count as lost since then."""
    earlier_windows: int = 3
    """Windows by which a GPU must have stopped before the median one to have stopped first: scrapes jitter by one."""


@dataclass(frozen=True)
class OutlierGpus:
    """The GPUs in use by state, as flags (G,)."""

    spinning: Flags
    cold: Flags
    unsampled: Flags
    """No longer sampled."""
    working: Flags
    outliers: Flags
    """The GPUs that the others wait for, if known."""
    sign: OutlierSign
    """What distinguishes them; empty if there are none."""


@dataclass(frozen=True, eq=False)
class Stall:
    """The GPUs did no work from a time up to the end of the samples."""

    activity: GpuActivity
    grids: Mapping[str, Grid] = field(repr=False)
    """All series that may show it."""
    since: float
    """When it had begun at the latest: at the end of the last window with work, or at a later logged step; POSIX
    seconds."""
    after: float
    """End of the last window with work."""
    until: float
    seconds: Value
    sure: bool
    """Whether it is long enough by itself; otherwise only for a short run, or with other evidence."""
    gpus: OutlierGpus
    memory_held: bool
    """Whether most GPUs keep their memory, as far as it was sampled."""
    ended: float | None = None
    """The end of the run, POSIX seconds; None if it is not known."""

    @property
    def outliers(self) -> tuple[str, ...]:
        """The GPUs that the others wait for, if known."""
        return self.activity.named(self.gpus.outliers)

    @property
    def sign(self) -> OutlierSign:
        """What distinguishes the outliers; empty if there are none."""
        return self.gpus.sign

    @property
    def busy_waiting(self) -> bool:
        """Whether GPUs spin, which only a collective (or an endless kernel) causes."""
        return bool(self.gpus.spinning.any())

    @property
    def traced(self) -> bool:
        """Whether collectives were counted during the stall."""
        return self._figure("collectives", "sum") is not None

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """The evidence that there was no work, and the outlier GPUs."""
        shows = [*self._outlier_claims(), *self._waiting_claims(), *self._counts()]
        memory = self._figure("memory") if self.memory_held else None
        return (*shows, MEMORY_HELD(memory=memory)) if memory is not None else tuple(shows)

    def _counts(self) -> list[Claim]:
        """Launches and collectives; SM activity always; other activity levels only without counts."""
        shows: list[Claim] = []
        for name in COUNT_SIGNALS:
            now, before, grid = self._figure(name, "sum"), self._figure(name, "sum", before=True), self.grids.get(name)
            if now is not None and before is not None and grid is not None:
                work = derived(self.after - self._worked_from(grid), before, unit="s")
                claim = WORK_BEFORE_AND_NOW[name]
                shows.append(claim(now=now, before=before, seconds=self._seconds(now), work=work))
        for name, kind in (("sm", "sm"), ("power", "power"), ("engine", "busy"), ("utilization", "busy")):
            now, before = self._figure(name), self._figure(name, before=True)
            if now is not None and before is not None and (name == "sm" or not shows):
                shows.append(WORK_BEFORE_AND_NOW[kind](now=now, before=before, seconds=self._seconds(now)))
        return shows

    def _seconds(self, figure: Value) -> Value:
        """How long the stall lasted: up to the end of the run, where the last window may not end."""
        after_end = 0.0 if self.ended is None else max(0.0, self.until - self.ended)
        return derived(self.seconds.number - after_end, figure, unit="s")

    def _figure(self, name: str, reducer: Reducer = "median", before: bool = False) -> Value | None:
        """A metric's level during the stall, or during the work before it; None if it was not sampled."""
        grid = self.grids.get(name)
        if grid is None:
            return None
        part = grid.during(self._worked_from(grid), self.after) if before else grid.during(self.after, self.until)
        return value_or_none(part, reducer, "" if grid.unit in COUNT_SIGNALS else None)

    def _worked_from(self, grid: Grid) -> float:
        """When work was first seen: the startup before it is no level to compare with."""
        times, active = self.activity.times, self.activity.active
        work_times = times[active & (times <= self.after)]
        return float(work_times[0]) - self.activity.step if len(work_times) else float(grid.times[0]) - grid.step

    def _lowest_level(self, name: str, rows: Flags) -> Value | None:
        """The median during the stall of that one of some GPUs whose median is the lowest."""
        grid, values, times = self.grids.get(name), self.activity.signal(name), self.activity.times
        if grid is None or values is None or not rows.any():
            return None
        medians = nan_median(values[rows][:, (times > self.after) & (times <= self.until)], axis=1)
        if np.isnan(medians).all():
            return None
        lowest = self.activity.named(rows)[int(np.nanargmin(medians))]
        return value_or_none(grid_of_gpu(grid.during(self.after, self.until), lowest), "median")

    def _waiting_claims(self) -> list[Claim]:
        count, name = int(self.gpus.spinning.sum()), self.activity.busy_by or "power"
        level = self._lowest_level(name, self.gpus.spinning)
        if not count or level is None:
            return []
        number = count_of(count, "GPU", level)
        if name == "power":
            return [(SPINNING_POWER if count > 1 else SPINNING_ALONE["power"])(count=number, power=level)]
        level = replace(level, unit="share")
        sentence = SPINNING if count > 1 else SPINNING_ALONE["activity"]
        return [sentence(count=number, busy=level, signal=derived(TITLES[name], level))]

    def _outlier_claims(self) -> list[Claim]:
        if not self.outliers:
            return []
        if self.sign in ("behind", "absent"):
            return [self._by_collectives()]
        preferred = "power" if self.sign == "gone" else self.activity.busy_by or "power"
        name = next(name for name in (preferred, "sm", "power", "launches", "memory") if name in self.grids)
        during = self.grids[name].during(self.after, self.until)
        reducer: Reducer = "count" if self.sign == "gone" else "median"
        unit = "" if self.sign == "gone" or name in COUNT_SIGNALS else None
        values = [grid_of_gpu(during, gpu).value(reducer, unit=unit) for gpu in self.outliers[:MAX_CITED]]
        gpus = derived(self.outliers, *values)
        if self.sign == "cold":
            highest = max(values, key=lambda value: value.number if value.value is not None else -1.0)
            return [OUTLIER_CLAIMS["cold"](gpus=gpus, level=highest, signal=derived(TITLES[name], highest))]
        if self.sign == "gone":
            return [OUTLIER_CLAIMS["gone"](gpus=gpus, samples=during.value("count", unit="samples"))]
        return [OUTLIER_CLAIMS[self.sign](gpus=gpus)]

    def _by_collectives(self) -> Claim:
        entered, left = self.grids["entered"], self.grids.get("left")
        own = [grid_of_gpu(entered, gpu).value("last", unit="") for gpu in self.outliers[:MAX_CITED]]
        gpus = derived(self.outliers, *own)
        if self.sign == "behind" or left is None:
            return OUTLIER_CLAIMS["behind"](gpus=gpus, own=own[0], others=entered.value("max", unit=""))
        done = grid_of_gpu(left, self.outliers[0]).value("last", unit="")
        return OUTLIER_CLAIMS["absent"](gpus=gpus, own=own[0], others=done)


def outlier_gpus(
    activity: GpuActivity, counters: Mapping[str, Grid], run: Run, windows: NDArray[np.intp], limits: Limits,
    reduced: Flags | None = None,
) -> OutlierGpus:  # fmt: skip
    """The state of each GPU in these windows of a stall.

    ``counters``: collectives ``entered`` and ``left``, if they were traced. ``reduced``: GPUs that are known not to
    work in these windows.
    """
    users = activity.working_gpus
    sampled = activity.known[:, windows].any(axis=1)
    working = users & (activity.working[:, windows].mean(axis=1) > 0.5)
    if reduced is not None:
        working &= ~reduced
    before = slice(max(0, int(windows[0]) - limits.recent_windows), int(windows[0]))
    unsampled = users & ~sampled & activity.known[:, before].any(axis=1)
    spinning = cold = np.zeros(len(users), dtype=bool)
    with np.errstate(invalid="ignore"):
        if activity.busy is not None:
            busy = nan_median(activity.busy[:, windows], axis=1)
            spinning, cold = busy >= limits.min_spinning_activity, busy <= FLOORS.cold
        elif activity.power is not None:
            lowest, power = lowest_level(activity.power), nan_median(activity.power[:, windows], axis=1)
            spinning, cold = power > limits.spinning_power * lowest, power <= limits.cold_power * lowest
    idle = users & sampled & ~working
    states = idle & spinning, idle & cold, unsampled, working
    until = float(activity.times[windows[-1]])
    entered, left = (_latest(counters.get(name), run, activity, until) for name in ("entered", "left"))
    return OutlierGpus(*states, *_outliers(activity, states, entered, left, limits))


def _outliers(
    activity: GpuActivity, states: tuple[Flags, Flags, Flags, Flags], entered: Matrix | None, left: Matrix | None,
    limits: Limits,
) -> tuple[Flags, OutlierSign]:  # fmt: skip
    """The GPUs that the others wait for, by the best sign available, and that sign."""
    spinning, cold, unsampled, working = states
    users = activity.working_gpus
    count, nobody = int(users.sum()), np.zeros(len(users), dtype=bool)
    if count < 2:
        return nobody, ""
    # utilization does not distinguish spinning from work
    others_wait = spinning.any() or (working.any() and activity.basis == "utilization")
    silent_groups: tuple[tuple[Flags, OutlierSign], ...] = ((cold, "cold"), (unsampled, "gone"))
    for flags, sign in silent_groups:
        if flags.any() and others_wait and 2 * int(flags.sum()) <= count:
            return flags, sign
    candidates = _by_collectives(users, entered, left)
    if activity.basis != "utilization":
        candidates.append((working, "computing"))
    for flags, sign in candidates:
        if flags.any() and 2 * int(flags.sum()) < count:
            return flags & users, sign
    working = activity.working & users[:, None]
    stops = last_true(working)
    stopped_early = users & (stops + limits.earlier_windows <= np.median(stops[users]))
    return (stopped_early, "first") if stopped_early.any() and 4 * int(stopped_early.sum()) <= count else (nobody, "")


def _by_collectives(users: Flags, entered: Matrix | None, left: Matrix | None) -> list[tuple[Flags, OutlierSign]]:
    """GPUs that entered fewer collectives than most, and GPUs in none while most are in one."""
    candidates: list[tuple[Flags, OutlierSign]] = []
    if entered is None or not (traced := users & ~np.isnan(entered)).any():
        return candidates
    with np.errstate(invalid="ignore"):
        furthest = traced & (entered == np.nanmax(entered[traced]))
        if 2 * int(furthest.sum()) > int(traced.sum()):
            candidates.append((traced & ~furthest, "behind"))
        if left is not None:
            waiting = traced & (entered > left)
            if 2 * int(waiting.sum()) > int(traced.sum()):
                candidates.append((traced & ~waiting, "absent"))
    return candidates


def _latest(grid: Grid | None, run: Run, activity: GpuActivity, until: float) -> Matrix | None:
    """(G,) The last value of a counter up to a time."""
    if grid is None:
        return None
    values = sum_by_gpu(grid, run, activity.gpus, activity.times)[:, activity.times <= until]
    index = np.maximum(last_true(~np.isnan(values)), 0)
    latest: Matrix = np.take_along_axis(values, index[:, None], axis=1)[:, 0]
    return latest
