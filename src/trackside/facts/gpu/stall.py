"""Whether the run's GPUs stalled, after they had worked, up to the end of the run.

A pause that ends is not a stall, and neither is one as long as earlier pauses. Signals that do not distinguish waiting
from work are conclusive only together with a silent log: GPUs then work less than before, or some of them are outliers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, derived
from trackside.facts.fact import fact
from trackside.facts.gpu import stall_claims
from trackside.facts.gpu.activity import (
    COUNT_SIGNALS,
    FLOORS,
    Flags,
    GpuActivity,
    Matrix,
    counts_by_gpu,
    last_true,
    level,
    lowest_level,
    nan_median,
)
from trackside.facts.gpu.power_limits import IDLE_POWER, PowerLimits
from trackside.facts.gpu.stall_claims import OutlierGpus, Stall, outlier_gpus
from trackside.facts.gpu.traffic import GpuTraffic
from trackside.facts.gpus import align
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import Query, metric

STALL: Mapping[str, Query] = {
    "clock": metric("gpu_sm_clock_hertz").over("run", "avg"),
    "memory": metric("gpu_memory_used_bytes").over("run", "avg"),
    "steps": metric("training_step").over("run", "max"),
    "entered": counts_by_gpu("trackside_nccl_collectives_started_total", "last"),
    "left": counts_by_gpu("trackside_nccl_collectives_completed_total", "last"),
}
"""The queries behind :class:`GpuStall`."""

WORKED_TO_END: Mapping[str, Sentence] = {
    "launches": Sentence(
        "kernels were launched until the end: {level} per GPU in each {window} of the last {seconds} (median)",
        running="kernels are being launched: {level} per GPU in each {window} of the last {seconds} (median)",
    ),
    "collectives": Sentence(
        "collectives completed until the end: {level} per GPU in each {window} of the last {seconds} (median)",
        running="collectives are completing: {level} per GPU in each {window} of the last {seconds} (median)",
    ),
    "sm": Sentence(
        "the GPUs computed until the end: SM activity {level} in the last {seconds} (median)",
        running="the GPUs are computing: SM activity {level} in the last {seconds} (median)",
    ),
    "power": Sentence(
        "the GPUs drew the power of computing GPUs until the end: {level} in the last {seconds} (median)",
        running="the GPUs draw the power of computing GPUs: {level} in the last {seconds} (median)",
    ),
}

WORKED_UNTIL: Mapping[str, Sentence] = {
    "launches": Sentence(
        "kernels were launched until {until}: {level} per GPU in each {window} of the {seconds} before (median)"
    ),
    "collectives": Sentence(
        "collectives completed until {until}: {level} per GPU in each {window} of the {seconds} before (median)"
    ),
    "sm": Sentence("the GPUs computed until {until}: SM activity {level} in the {seconds} before (median)"),
    "power": Sentence(
        "the GPUs drew the power of computing GPUs until {until}: {level} in the {seconds} before (median)"
    ),
}
"""The same of GPUs whose last work is a while before the end of the run or of the samples."""


@dataclass(frozen=True)
class Limits(stall_claims.Limits):
    """When idle GPUs are stalled; applied together with the limits of :class:`Silence`."""

    pause_ratio: float = 2.0
    """Multiple of the longest pause that the run recovered from."""
    min_windows: int = 3
    """Minimum number of idle windows; with fewer, a late scrape looks the same."""
    min_readings: int = 6
    """Alternative minimum in samples per GPU, if a window contains more than two."""
    short_s: float = 120.0
    """Minimum stall in a run that is too short for ``min_silence_s`` of ``Silence``; the stall must also last at
    least ``min_share`` of the run."""
    kept_memory_ratio: float = 0.5
    """Share of its working memory level that a GPU keeps while its process is alive."""
    spinning_ratio: float = 4.0
    """GPUs may only spin if they draw at most this many times the power of the lowest GPU, if the limit was not
    sampled: a context alone draws up to 2.2 times an idle GPU's power (L40S), and spinning adds a seventh of the
    remaining range."""
    spinning_sm: float = 0.2
    """SM activity of spinning alone: one or two SMs per channel, at most 32 channels, of more than 100 SMs."""
    slower_clock: float = 0.9
    """SM clock relative to the clock at working power; a GPU that waits in a kernel keeps its clock."""
    last_windows: int = 10
    """Number of windows before the last work whose level shows whether the GPUs kept working."""


@dataclass(frozen=True, eq=False)
class GpuStall:
    """Whether, and since when, the run's GPUs did no work."""

    grids: Mapping[str, Grid]
    """All series that may show it, by query."""
    activity: GpuActivity
    traffic: GpuTraffic
    powers: PowerLimits
    silence: Silence
    run: Run
    limits: Limits

    @cached_property
    def at_end(self) -> Stall | None:
        """The stall that lasts to the end of the samples, after a time of work; None if there is none."""
        return self._at_end(corroborated=False)

    @cached_property
    def at_end_corroborated(self) -> Stall | None:
        """As ``at_end``, if other evidence shows that the run was stuck, so that a few windows are enough."""
        return self._at_end(corroborated=True)

    @property
    def hung(self) -> Stall | None:
        """The stall of a run that did not complete, if it is long enough by itself."""
        stall = self.at_end
        return stall if stall is not None and stall.sure and self.silence.ending.completed is None else None

    def _at_end(self, *, corroborated: bool) -> Stall | None:
        activity, limits, quiet = self.activity, self.limits, self.silence.limits
        active = np.flatnonzero(activity.active)
        if not len(active):
            return None
        idle_windows = np.flatnonzero(activity.observed & (np.arange(len(activity.times)) > active[-1]))
        min_windows = max(2, min(limits.min_windows, math.ceil(limits.min_readings / activity.readings)))
        if len(idle_windows) < min_windows or (activity.basis == "power" and self._slower_clocks(active, idle_windows)):
            return self._few_cold()
        until = float(activity.times[idle_windows[-1]])
        last_work = max(
            float(activity.times[active[-1]]), float(activity.times[idle_windows[0]]) - activity.step
        )  # a gap in the samples shows nothing
        length_s = until - max(last_work, self._last_sign)
        duration = until - float(activity.times[0]) + activity.step
        min_s = min_windows * activity.step
        long_enough = length_s >= max(quiet.min_silence_s, limits.pause_ratio * activity.longest_pause_s)
        if not long_enough and length_s < (
            min_s if corroborated else max(limits.short_s, quiet.min_share * duration, min_s)
        ):
            return None
        silent_windows = idle_windows[activity.times[idle_windows] > self._last_sign]
        span = last_work, max(self._last_sign, last_work), until
        return self._build_stall(span, length_s, silent_windows, long_enough)

    def within(self, start: float) -> Stall | None:
        """A stall that began when the log went silent, if the GPUs alone do not distinguish waiting from work.

        They must work less than before it, or some of them must be outliers.
        """
        activity = self.activity
        windows = np.flatnonzero(activity.observed & (activity.times - activity.step >= start))
        if len(windows) < self.limits.min_windows or activity.basis in COUNT_SIGNALS:
            return None
        until, start = float(activity.times[windows[-1]]), max(start, float(activity.times[windows[0]]) - activity.step)
        reduced = self._less(windows)
        stall = self._build_stall((start, start, until), until - start, windows, True, reduced)
        most_reduced = reduced.any() and 2 * int((reduced & activity.working_gpus).sum()) > int(
            activity.working_gpus.sum()
        )
        return stall if stall.outliers or most_reduced else None

    def _less(self, windows: NDArray[np.intp]) -> Flags:
        """(G,) GPUs that do far less in these windows than before."""
        activity, reduced = self.activity, self.activity.reduced(windows)
        if activity.basis == "sm" and activity.sm is not None:
            with np.errstate(invalid="ignore"):  # an evaluation on one rank works less than a step, and works
                reduced &= ~(nan_median(activity.sm[:, windows], axis=1) > FLOORS.unmistakable_sm)
        return reduced

    def _few_cold(self) -> Stall | None:
        """A few GPUs that went idle for good while all others stay pinned, if only utilization was sampled, which does
        not show whether these keep working (see :mod:`trackside.facts.gpu.activity` for signals that do)."""
        activity, limits = self.activity, self.limits
        users, end = activity.working_gpus, np.flatnonzero(activity.observed)
        if activity.busy is None or activity.basis != "utilization" or not len(end) or int(users.sum()) < 2:
            return None
        with np.errstate(invalid="ignore"):
            last = last_true(activity.busy > FLOORS.cold)
        min_windows = max(limits.min_windows, self.silence.limits.min_silence_s / activity.step)
        cold_for_good = users & (last >= 0) & (end[-1] - last >= min_windows)
        if not cold_for_good.any() or 2 * int(cold_for_good.sum()) > int(users.sum()):
            return None
        start = float(activity.times[last[cold_for_good].max()])
        if self._last_sign > start + 2 * activity.step:
            return None
        windows = np.flatnonzero(activity.observed & (activity.times > start))
        pinned = float(nan_median(activity.busy[users & ~cold_for_good][:, windows])) >= FLOORS.pinned
        return self.within(start) if pinned else None

    def _slower_clocks(self, active: NDArray[np.intp], idle: NDArray[np.intp]) -> bool:
        """Whether clocks fell together with power: then the GPUs keep working, only slower."""
        activity = self.activity
        clocks = align(self.grids.get("clock"), activity.gpus, activity.times)[activity.working_gpus]
        return bool(nan_median(clocks[:, idle]) < self.limits.slower_clock * nan_median(clocks[:, active]))

    def _build_stall(
        self, span: tuple[float, float, float], length: float, windows: NDArray[np.intp], sure: bool,
        reduced: Flags | None = None,
    ) -> Stall:  # fmt: skip
        after, since, until = span
        # the first and last window may hold work or the tear-down
        inner = windows[1 if len(windows) > 4 else 0 : -1 if len(windows) > 1 else None]
        names = ("launches", "collectives", "sm", self.activity.busy_by or "engine", "power")
        grids = (grid for name in names if (grid := self.grids.get(name)) is not None)
        values = (grid.during(after, until).value("median") for grid in grids)
        sources = [value for value in values if value.value is not None]
        return Stall(
            self.activity, self.grids, since, after, until, derived(length, *sources, unit="s"), sure,
            self.outliers(inner, reduced), self._memory_held(inner), self.run.end,
        )  # fmt: skip

    def outliers(self, windows: NDArray[np.intp], reduced: Flags | None = None) -> OutlierGpus:
        """The states of the GPUs in these windows of a stall. ``reduced``: GPUs that are known not to work in them."""
        return outlier_gpus(self.activity, self.grids, self.run, windows, self.limits, reduced)

    @cached_property
    def _last_sign(self) -> float:
        """Time of the last stamped logged step, evaluation or save, or of the last rise of the step gauge."""
        sign = self.silence.last_sign(("progress", "evaluations", "saves"))
        sign_time = float(sign.value) if sign is not None and isinstance(sign.value, (int, float)) else -np.inf
        return max(sign_time, self.stepped)

    @cached_property
    def stepped(self) -> float:
        """When the step gauge last rose; minus infinity if it never did."""
        grid = self.grids.get("steps")
        if grid is None:
            return -np.inf
        steps = np.fmax.reduce(grid.values, axis=0)
        sampled = np.flatnonzero(~np.isnan(steps))
        rose = sampled[1:][np.diff(steps[sampled]) > 0]
        return float(grid.times[rose[-1]]) if len(rose) else -np.inf

    def _memory_held(self, windows: NDArray[np.intp]) -> bool:
        """Whether most GPUs in use keep the memory that they used while they worked."""
        activity = self.activity
        memory = align(self.grids.get("memory"), activity.gpus, activity.times)[activity.working_gpus]
        highest, now = level(memory), nan_median(memory[:, windows], axis=1)
        sampled = ~np.isnan(now) & ~np.isnan(highest)
        return bool(sampled.any() and (now[sampled] >= self.limits.kept_memory_ratio * highest[sampled]).mean() > 0.5)

    @cached_property
    def worked_on(self) -> Claim | None:
        """The claim that the GPUs worked up to the end of the run at their usual level; None if they may only have spun
        all the time, or the last part was not sampled."""
        activity, limits = self.activity, self.limits
        grid, name = activity.grid(activity.basis), activity.basis
        if grid is None or name is None or name == "utilization" or not self.observed_to_end:
            return None
        if int(activity.active.sum()) < limits.min_windows:
            return None
        last = float(activity.times[activity.active][-1])
        start = last - limits.last_windows * activity.step
        unit = "" if grid.unit in COUNT_SIGNALS else None
        usual = grid.during(0.0, start).value("median", unit=unit)
        recent = grid.during(start, last).value("median", unit=unit)
        if recent.value is None or activity.times[activity.observed][-1] - last > limits.min_windows * activity.step:
            return None
        if usual.value is not None and recent.number < FLOORS.waiting_share * usual.number:
            return None
        if self.beyond_spinning(activity.active & (activity.times > start)):
            spans = {"seconds": last - start, **({"window": activity.step} if name in COUNT_SIGNALS else {})}
            values = {span: derived(seconds, recent, unit="s") for span, seconds in spans.items()}
            end = max(float(activity.times[activity.observed][-1]), self.run.end or -np.inf)
            if end - last <= activity.step:
                return WORKED_TO_END[name](level=recent, **values)
            return WORKED_UNTIL[name](level=recent, until=derived(last, recent, unit="time"), **values)
        return next(iter(self.traffic.between(start, last).active), None)

    @cached_property
    def observed_to_end(self) -> bool:
        """Whether the GPUs were sampled up to the run's end, or so near to it that a stall would not fit after it."""
        run, activity, quiet = self.run, self.activity, self.silence.limits
        if run.end is None:
            return True
        duration = run.end - (run.start if run.start is not None else float(activity.times[0]))
        min_s = max(3 * activity.step, min(quiet.min_silence_s, quiet.min_share * duration))
        return run.end - float(activity.times[activity.observed][-1]) < min_s

    def beyond_spinning(self, windows: Flags) -> bool:
        """Whether GPUs that look busy in these windows do more than spin: they use more SMs, or more power. Launches
        and collectives are work by themselves."""
        activity, limits = self.activity, self.limits
        if activity.basis not in ("sm", "power") or not windows.any():
            return activity.basis in COUNT_SIGNALS
        users = activity.working_gpus
        if activity.basis == "sm":
            assert activity.sm is not None
            spins = activity.busy is not None and float(nan_median(activity.busy[users][:, windows])) >= FLOORS.pinned
            return not spins or float(nan_median(activity.sm[users][:, windows])) > limits.spinning_sm
        assert activity.power is not None
        power: Matrix = nan_median(activity.power[users][:, windows], axis=1)
        power_limits = self.powers.by_gpu[users]
        if not np.isnan(power_limits).any():
            return bool(nan_median((power / power_limits)[None, :]) > IDLE_POWER)
        return bool(nan_median(power[None, :] / lowest_level(activity.power)) > limits.spinning_ratio)


@fact(STALL, limits=Limits())
def gpu_stall(
    evidence: Evidence, activity: GpuActivity, traffic: GpuTraffic, powers: PowerLimits, silence: Silence, run: Run,
    limits: Limits,
) -> GpuStall:  # fmt: skip
    """Needs GPU activity; without a log, GPU signals alone decide."""
    stall_grids = {name: grid for name in STALL if (grid := evidence.grid(name)) is not None}
    return GpuStall({**activity.grids, **stall_grids}, activity, traffic, powers, silence, run, limits)
