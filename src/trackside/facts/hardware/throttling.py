"""GPUs whose clocks were lowered while they worked: for how long, how far, and for which reasons.

Each GPU is compared with its own level at other times of the run, else with the run's other GPUs in the same windows:
the normal clock depends on the model, the power limit and the work. Single samples do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.gpu_models import rating_of
from trackside.catalog.throttle import REASONS, reasons_in
from trackside.evidence import Evidence, Grid, Value, derived
from trackside.facts.fact import fact
from trackside.facts.gpu.activity import MAX_CITED, Flags, GpuActivity
from trackside.facts.gpus import align, count_of, gpu_name, grid_of_gpu, value_or_none
from trackside.facts.hardware.clocks import SEVERE, Clocks
from trackside.finding import Claim, Sentence
from trackside.model import TimeRange
from trackside.query import metric

Rows = NDArray[np.intp]
Baseline = Literal["own", "peers", "highest"]
"""What a clock is compared with: the GPU's own clock at other times, the other GPUs', its maximum."""

THROTTLED = Sentence("GPU {gpu} was throttled for {seconds}; reason: {why}")
NODE_THROTTLED = Sentence("all {count} of {node} were throttled for up to {seconds}; reason: {why}")
NODE_THROTTLED_ALONE = Sentence(
    "all {count} of {node}, and no others, were throttled for up to {seconds}; reason: {why}"
)
NODE_TEMPERATURE = Sentence("the hottest of these GPUs, {gpu}, reached {heat}")
NODE_NOT_HOT = Sentence("the hottest of these GPUs, {gpu}, reached only {heat}: heat did not lower the clocks")
CLOCK_LOWERED: dict[Baseline, Sentence] = {
    "own": Sentence("the SM clock of GPU {gpu} fell from {usual} to {clock}"),
    "peers": Sentence("the SM clock of GPU {gpu} was {clock}; the median of all GPUs was {usual}"),
    "highest": Sentence("the SM clock of GPU {gpu} was {clock} of a maximum of {usual}"),
}
TEMPERATURE_REACHED = Sentence("GPU {gpu} reached {heat}")
NOT_HOT = Sentence("GPU {gpu} reached only {heat}: heat did not lower its clock")
SAME_ON_OTHERS = Sentence("the same happened on {gpus}")
CLOCK_STAYED = Sentence(
    "GPU {gpu} reported a severe throttle reason ({why}), but its clock was {clock} (otherwise {usual})"
)
ONLY_BRIEFLY = Sentence("GPU {gpu} reported a severe throttle reason only in single samples")
NO_SEVERE_REASON = Sentence("no severe throttle reason lasted under load on {count}; seen: {why}")
THROTTLED_TIME = Sentence("the counters of throttled time grew by at most {seconds} between samples")
CLOCKS_STAYED = Sentence("no hot GPU lowered its clock under load: median {middle}, highest {most}")
HOTTEST_GPU = Sentence("the hottest GPU reached {heat}")
COOL_C = 70.0
"""Up to this temperature no data-center GPU slows down for heat."""
MAX_GPUS = 2
"""Maximum number of GPUs described one by one; the others are only named."""


@dataclass(frozen=True)
class Limits:
    """When lowered clocks are throttling."""

    min_throttled_s: float = 120.0
    """Sustained: GPUs hot enough to throttle oscillate around their limit within tens of seconds."""
    max_idle_at_end_s: float = 600.0
    """If the GPUs did no work for longer before the end, something other than slowness ended the run."""


@dataclass(frozen=True, slots=True)
class ThrottledGpu:
    """A GPU whose clocks were lowered for a while."""

    gpu: str
    start: float
    end: float
    """End of the throttling, POSIX seconds."""
    before: TimeRange | None
    """A time range of work with normal clocks, for comparison."""
    seconds: Value
    share: float
    """Share of its working time."""
    reasons_value: Value | None
    """The reasons, for display; None if only heat shows it."""
    reasons: tuple[str, ...]
    clock: Value | None
    usual: Value | None
    baseline: Baseline
    """What ``usual`` is."""
    lowered: bool
    """Whether the clock was lower than normal variation, or no clock was measured."""
    drop: float | None
    """Relative drop of the clock; None if no clock was measured."""
    heat: Value | None
    """The highest temperature during the throttling."""

    @property
    def claims(self) -> list[Claim]:
        """Reasons, clock drop and temperature."""
        claims = []
        if self.reasons_value is not None:
            gpu = derived(self.gpu, self.reasons_value)
            claims.append(THROTTLED(gpu=gpu, why=self.reasons_value, seconds=self.seconds))
        claims += self.clock_claim
        if self.heat is None:
            return claims
        sentence = NOT_HOT if _is_not_by_heat([self]) else TEMPERATURE_REACHED
        return [*claims, sentence(gpu=self.hot_gpu, heat=self.heat)]

    @property
    def clock_claim(self) -> list[Claim]:
        """How far the clock fell, if it was measured."""
        if self.clock is None or self.usual is None:
            return []
        gpu = derived(self.gpu, self.clock)
        return [CLOCK_LOWERED[self.baseline](gpu=gpu, clock=self.clock, usual=self.usual)]

    @property
    def hot_gpu(self) -> Value:
        """The GPU's name, citing its temperature."""
        return derived(self.gpu, *([] if self.heat is None else [self.heat]))


@dataclass(frozen=True, eq=False)
class Throttling:
    """What lowered the clocks of the run's GPUs, if anything did for long."""

    clocks: Clocks
    sustained: tuple[ThrottledGpu, ...]
    """GPUs with a sustained severe reason, the longest first."""
    brief: str | None
    """A GPU with a severe reason that was not sustained."""
    hot: bool
    """Whether a GPU of ``sustained`` reached the temperature at which slowdown begins."""
    worked_to_the_end: bool
    """Whether GPUs worked until the run's end, as far as anything shows."""

    @cached_property
    def lowered(self) -> tuple[ThrottledGpu, ...]:
        """Those of ``sustained`` whose clock was lower than normal variation."""
        return tuple(gpu for gpu in self.sustained if gpu.lowered)

    @property
    def claims(self) -> list[Claim]:
        """The GPUs with lowered clocks: all of a node together, else a few one by one, and the others by name."""
        if node_claims := self._node_claims:
            return node_claims
        first, others = self.lowered[:MAX_GPUS], self.lowered[MAX_GPUS:]
        claims = [claim for gpu in first for claim in gpu.claims]
        if others:
            names = tuple(gpu.gpu for gpu in others)
            claims.append(SAME_ON_OTHERS(gpus=derived(names, *(gpu.seconds for gpu in others[:MAX_GPUS]))))
        return claims

    @property
    def _node_claims(self) -> list[Claim]:
        """The claims about a node all of whose GPUs, at least three, were throttled for the same reasons."""
        lowered, first = self.lowered, self.lowered[0]
        nodes = {gpu.gpu.rpartition(":")[0] for gpu in lowered}
        on_node = [gpu for gpu in self.clocks.gpus if gpu.rpartition(":")[0] in nodes]
        same = len({gpu.reasons for gpu in lowered}) == 1
        if len(nodes) > 1 or not same or first.reasons_value is None or not MAX_GPUS < len(on_node) == len(lowered):
            return []
        shown = [gpu.reasons_value for gpu in lowered[:MAX_CITED] if gpu.reasons_value is not None]
        alone = len(self.clocks.gpus) > len(on_node) and not self.brief and len(self.sustained) == len(lowered)
        sentence = NODE_THROTTLED_ALONE if alone else NODE_THROTTLED
        why = derived(first.reasons_value.value, *shown)
        values = {"count": count_of(len(lowered), "GPU", *shown), "node": derived(nodes.pop(), *shown)}
        claims = [sentence(why=why, seconds=first.seconds, **values), *first.clock_claim]
        by_heat = [(gpu.heat.number, gpu.hot_gpu, gpu.heat) for gpu in lowered if gpu.heat is not None]
        if by_heat:
            _, name, heat = max(by_heat, key=lambda row: row[0])
            claims.append((NODE_NOT_HOT if _is_not_by_heat(lowered) else NODE_TEMPERATURE)(gpu=name, heat=heat))
        return claims

    @cached_property
    def counter_evidence(self) -> list[Claim]:
        """Evidence that clocks were not lowered."""
        flags, counted, clock, heat = map(self.clocks.grids.get, ("reasons", "counters", "clocks", "temperature"))
        claims = []
        for gpu in self.sustained[:1]:
            if gpu.clock is not None and gpu.usual is not None and gpu.reasons_value is not None:
                name = derived(gpu.gpu, gpu.clock)
                claims.append(CLOCK_STAYED(gpu=name, why=gpu.reasons_value, clock=gpu.clock, usual=gpu.usual))
        if flags is not None:
            if self.brief is not None:
                claims.append(ONLY_BRIEFLY(gpu=derived(self.brief, grid_of_gpu(flags, self.brief).value("max"))))
            elif not self.sustained:
                claims.append(_no_severe_reason(flags))
        elif counted is not None and not self.sustained:
            claims.append(THROTTLED_TIME(seconds=counted.value("max")))
        if clock is not None and flags is None:
            middle, most = (derived(v.number / 1e6, v, unit="MHz") for v in (clock.value("median"), clock.value("max")))
            claims.append(CLOCKS_STAYED(middle=middle, most=most))
        return claims if heat is None else [*claims, HOTTEST_GPU(heat=heat.value("max"))]


@fact({"memory": metric("gpu_memory_used_bytes").over("run", "avg")}, limits=Limits())
def throttling(evidence: Evidence, clocks: Clocks, limits: Limits) -> Throttling:
    """Needs clocks and GPU activity."""
    windows_by_row: dict[int, Rows] = {}
    brief = None
    at_work = [np.flatnonzero(row) for row in clocks.working]
    for row in np.flatnonzero((clocks.severe & clocks.working).any(axis=1)):
        throttled = _sustained_windows(clocks, clocks.severe[row], at_work[row], limits)
        if throttled is None:
            brief = clocks.gpus[row]
        else:
            windows_by_row[int(row)] = throttled
    normal = [gpu for row, gpu in enumerate(clocks.gpus) if row not in windows_by_row and len(at_work[row])]
    gpus = [
        _throttled_gpu(clocks, clocks.gpus[row], throttled, at_work[row][~clocks.severe[row, at_work[row]]], normal)
        for row, throttled in windows_by_row.items()
    ]
    gpus.sort(key=lambda gpu: -gpu.seconds.number)  # stable: equal ones stay in the order of GPUs
    heat = align(clocks.grids.get("temperature"), clocks.gpus, clocks.times)
    hot = any(
        np.nanmax(heat[row, throttled], initial=0.0) >= clocks.limits.hot_c for row, throttled in windows_by_row.items()
    )
    return Throttling(clocks, tuple(gpus), brief, hot, _worked_to_end(evidence.grid("memory"), clocks, limits))


def _is_not_by_heat(gpus: Sequence[ThrottledGpu]) -> bool:
    """Whether the reasons are others than heat, and every GPU stayed far below the temperature of a slowdown."""
    reasons = {reason for gpu in gpus for reason in gpu.reasons}
    heats = [gpu.heat.number for gpu in gpus if gpu.heat is not None]
    return bool(reasons) and not any("thermal" in reason for reason in reasons) and max(heats) <= COOL_C


def _no_severe_reason(flags: Grid) -> Claim:
    """All reasons that were ever set."""
    highest = flags.value("max", unit="")
    bits = int(np.bitwise_or.reduce(flags.values[~np.isnan(flags.values)].astype(np.int64), initial=0))
    titles = tuple(REASONS[name].title for name in reasons_in(bits)) or ("none",)
    return NO_SEVERE_REASON(count=count_of(len(flags), "GPU", highest), why=derived(titles, highest))


def _sustained_windows(clocks: Clocks, severe: Flags, windows: Rows, limits: Limits) -> Rows | None:
    """Those of ``windows`` with a sustained reason, smoothed over single samples; None if it was not sustained."""
    flags = severe[windows].astype(np.int64)
    if flags.sum() < clocks.limits.min_windows:
        return None
    width = min(5, len(flags) | 1)
    padded = np.pad(flags, width // 2, mode="edge")
    sustained: Rows = windows[np.convolve(padded, np.ones(width, dtype=np.int64), "valid")[: len(flags)] * 2 > width]
    gap = float(np.median(np.diff(windows))) if len(windows) > 1 else 1.0
    return (
        sustained
        if len(sustained) >= clocks.limits.min_windows and len(sustained) * gap * clocks.step >= limits.min_throttled_s
        else None
    )


def _throttled_gpu(clocks: Clocks, gpu: str, throttled: Rows, normal: Rows, peers: Sequence[str]) -> ThrottledGpu:
    """One GPU. ``throttled``: its throttled windows; ``normal``: those of work with normal clocks; ``peers``: the
    working GPUs with normal clocks."""
    first, last = _first_and_last(throttled)
    start, end = float(clocks.times[first]) - clocks.step, float(clocks.times[last])
    before = _normal_range(clocks, (normal[normal < first], normal[normal > last]))
    grid, temperature = clocks.grids.get("clocks"), clocks.grids.get("temperature")
    own_clock = (
        grid_of_gpu(grid, gpu) if grid is not None and gpu in {gpu_name(series) for series in grid.series} else None
    )
    clock = None if own_clock is None else _megahertz(own_clock.during(start, end))
    usual, against = _normal_clock(clocks, gpu, own_clock, before, (start, end), peers)
    drop = 1 - clock.number / usual.number if clock is not None and usual is not None and usual.number > 0 else None
    min_drop = clocks.limits.min_drop_from_highest if against == "highest" else clocks.limits.min_drop
    reasons, names = _reasons_between(clocks, gpu, start, end)
    sources = [value for value in (reasons, clock) if value is not None]
    heat = None if temperature is None else value_or_none(grid_of_gpu(temperature, gpu).during(start, end), "max")
    return ThrottledGpu(
        gpu, start, end, before,
        seconds=derived(len(throttled) * clocks.step, *sources, unit="s"),
        share=min(len(throttled) / (len(throttled) + len(normal)), 1.0),
        reasons_value=reasons, reasons=names, clock=clock, usual=usual, baseline=against,
        lowered=drop is None or drop >= min_drop,
        drop=drop,
        heat=heat,
    )  # fmt: skip


def _normal_clock(
    clocks: Clocks, gpu: str, own_clock: Grid | None, before: TimeRange | None, during: TimeRange, peers: Sequence[str]
) -> tuple[Value | None, Baseline]:
    """The expected clock: its own normal clock, else the other GPUs', else the maximum."""
    grid, highest = clocks.grids.get("clocks"), clocks.grids.get("highest")
    if own_clock is not None and before is not None and (value := _megahertz(own_clock.during(*before))) is not None:
        return value, "own"
    if grid is not None and len(grid) > 2 and 2 * len(peers) >= len(grid):  # then the median is that of normal ones
        return _megahertz(grid.during(*during)), "peers"
    if highest is not None and gpu in {gpu_name(series) for series in highest.series}:
        return _megahertz(grid_of_gpu(highest, gpu)), "highest"
    rating = rating_of(own_clock.series[0].get("gpu_model")) if own_clock is not None else None
    if own_clock is not None and rating is not None:
        return derived(rating.sm_clock_hertz / 1e6, own_clock.value("count"), unit="MHz"), "highest"
    return None, "highest"


def _normal_range(clocks: Clocks, parts: Sequence[Rows]) -> TimeRange | None:
    """A time range with normal clocks: the one before the throttling if it has three windows, else the one after."""
    part = next((rows for rows in parts if len(rows) >= 3), None)
    return None if part is None else (float(clocks.times[part[0]]) - clocks.step, float(clocks.times[part[-1]]))


def _first_and_last(windows: Rows) -> tuple[int, int]:
    """First and last window: of all windows if the reason is mostly set, else of the longest part."""
    if len(windows) >= 0.5 * (windows[-1] - windows[0] + 1):
        return int(windows[0]), int(windows[-1])
    parts = np.split(windows, np.flatnonzero(np.diff(windows) > 2) + 1)
    longest = max(parts, key=len)
    return int(longest[0]), int(longest[-1])


def _megahertz(grid: Grid) -> Value | None:
    value = value_or_none(grid, "median")
    return None if value is None else derived(value.number / 1e6, value, unit="MHz")


def _reasons_between(clocks: Clocks, gpu: str, start: float, end: float) -> tuple[Value | None, tuple[str, ...]]:
    """The severe reasons set in this time: their titles, cited, and their names."""
    names: dict[str, Value] = {}
    flags, counted = clocks.grids.get("reasons"), clocks.grids.get("counters")
    if flags is not None:
        part = grid_of_gpu(flags, gpu).during(start, end)
        bits = part.values[~np.isnan(part.values)].astype(np.int64)
        for name, reason in REASONS.items():
            if reason.bit & SEVERE and len(bits) and 4 * (bits & reason.bit != 0).sum() >= len(bits):
                names[name] = part.value("max")
    own_counters = grid_of_gpu(counted, gpu) if counted is not None and not names else None
    for (name,) in own_counters.labels("reason") if own_counters is not None else ():
        if own_counters is not None and name in REASONS and REASONS[name].severity != "benign":
            total = own_counters.where(reason=name).during(start, end).value("sum")
            if total.value:
                names[name] = total
    if not names:
        return None, ()
    if len(names) > 1:
        names.pop("hw_slowdown", None)  # only says that it is one of the others
    titles = tuple(REASONS[name].title for name in names)
    return derived(titles, *names.values()), tuple(names)


def _worked_to_end(memory: Grid | None, clocks: Clocks, limits: Limits) -> bool:
    """Whether the GPUs worked until shortly before they were released, as far as anything shows."""
    activity = clocks.activity
    if activity is None or activity.basis in (None, "utilization") or not activity.active.any():
        return True
    active = activity.active
    if activity.basis == "power" and activity.busy is not None:  # low clocks draw little, whatever they do
        with np.errstate(invalid="ignore"):
            active = active | (
                (activity.busy[activity.working_gpus] >= clocks.limits.busy_activity).sum(axis=0)
                > 0.5 * activity.working_gpus.sum()
            )
    last = float(activity.times[np.flatnonzero(active)[-1]])
    return _memory_released(memory, activity) - last <= max(limits.max_idle_at_end_s, 3 * activity.step)


def _memory_released(grid: Grid | None, activity: GpuActivity) -> float:
    """Until when the GPUs in use had memory allocated: without a record of the run's end, samples continue after it."""
    end = float(activity.times[-1])
    users = [gpu for gpu, used in zip(activity.gpus, activity.working_gpus, strict=True) if used]
    memory = align(grid, users, activity.times)
    if np.isnan(memory).all():
        return end
    with np.errstate(invalid="ignore"):
        occupied = memory > 0.5 * np.fmax.reduce(memory, axis=1)[:, None]
    return float(activity.times[np.flatnonzero(occupied.any(axis=0))[-1]]) if occupied.any() else end
