r"""GPUs whose clocks were lowered while they worked: for how long, how far, and for which reasons.

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
from trackside.facts.gpu.activity import Flags, GpuActivity
from trackside.facts.gpus import aligned, counted, name_of, of_gpu, sampled
from trackside.facts.hardware.clocks import GRAVE, Clocks
from trackside.finding import Claim, Sentence
from trackside.model import TimeRange
from trackside.query import metric

Rows = NDArray[np.intp]
"""Start and end, POSIX seconds."""
Against = Literal["own", "peers", "highest"]
"""What a clock is compared with: the GPU's own clock at other times, the other GPUs', its maximum."""

REASON = Sentence("GPU {gpu} was throttled for {seconds}: {why}")
LOWER: dict[Against, Sentence] = {
    "own": Sentence("the SM clock of GPU {gpu} fell from {usual} to {clock}"),
    "peers": Sentence("the SM clock of GPU {gpu} was {clock}; the median of all GPUs was {usual}"),
    "highest": Sentence("the SM clock of GPU {gpu} was {clock} of a maximum of {usual}"),
}
HEAT = Sentence("GPU {gpu} reached {heat}")
OTHERS = Sentence("the same happened on GPU {gpus}")
CLOCK_STAYED = Sentence(
    "GPU {gpu} reported a serious throttle reason ({why}), but its clock was {clock} (otherwise {usual})"
)
BRIEF = Sentence("GPU {gpu} reported a serious throttle reason only in single samples")
BENIGN = Sentence("no serious throttle reason lasted under load on {count}; seen: {why}")
COUNTED = Sentence("the counters of throttled time grew by at most {seconds} between samples")
CLOCKS_STAYED = Sentence("no hot GPU lowered its clock under load: median {middle}, highest {most}")
HOTTEST = Sentence("the hottest GPU reached {heat}")
MAX_GPUS = 2
"""Maximum number of GPUs described one by one; the others are only named."""


@dataclass(frozen=True)
class Limits:
    """When lowered clocks are throttling."""

    min_throttled_s: float = 120.0
    """Sustained: GPUs hot enough to throttle oscillate around their limit within tens of seconds."""
    quiet_s: float = 600.0
    """Time without any GPU work before the end from which something other than slowness ended the run."""


@dataclass(frozen=True, slots=True)
class ThrottledGpu:
    """A GPU whose clocks were lowered for a while."""

    gpu: str
    start: float
    end: float
    """End of the time span, POSIX seconds."""
    before: TimeRange | None
    """A span of work with normal clocks, for comparison."""
    seconds: Value
    share: float
    """Share of its working time."""
    reasons_value: Value | None
    """The reasons, for display; None if only heat shows it."""
    reasons: tuple[str, ...]
    clock: Value | None
    usual: Value | None
    baseline: Against
    """What ``usual`` is."""
    lowered: bool
    """Whether the clock was lower than normal variation, or no clock was measured."""
    drop: float | None
    """Relative drop of the clock; None if no clock was measured."""
    heat: Value | None
    """The highest temperature during the span."""

    @property
    def claims(self) -> list[Claim]:
        """Reasons, clock drop and temperature."""
        gpu = derived(self.gpu, self.seconds)
        claims = [] if self.reasons_value is None else [REASON(gpu=gpu, why=self.reasons_value, seconds=self.seconds)]
        if self.clock is not None and self.usual is not None:
            claims.append(LOWER[self.baseline](gpu=gpu, clock=self.clock, usual=self.usual))
        return claims if self.heat is None else [*claims, HEAT(gpu=gpu, heat=self.heat)]


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
        """The GPUs with lowered clocks: a few one by one, the others by name."""
        first, others = self.lowered[:MAX_GPUS], self.lowered[MAX_GPUS:]
        claims = [claim for gpu in first for claim in gpu.claims]
        if others:
            names = tuple(gpu.gpu for gpu in others)
            claims.append(OTHERS(gpus=derived(names, *(gpu.seconds for gpu in others[:MAX_GPUS]))))
        return claims

    @cached_property
    def free(self) -> list[Claim]:
        """Evidence that clocks were not lowered."""
        flags, counted, clock, heat = map(self.clocks.grids.get, ("reasons", "counters", "clocks", "temperature"))
        claims = []
        for gpu in self.sustained[:1]:
            if gpu.clock is not None and gpu.usual is not None and gpu.reasons_value is not None:
                name = derived(gpu.gpu, gpu.clock)
                claims.append(CLOCK_STAYED(gpu=name, why=gpu.reasons_value, clock=gpu.clock, usual=gpu.usual))
        if flags is not None:
            if self.brief is not None:
                claims.append(BRIEF(gpu=derived(self.brief, of_gpu(flags, self.brief).value("max"))))
            elif not self.sustained:
                claims.append(_benign(flags))
        elif counted is not None and not self.sustained:
            claims.append(COUNTED(seconds=counted.value("max")))
        if clock is not None and flags is None:
            middle, most = (derived(v.number / 1e6, v, unit="MHz") for v in (clock.value("median"), clock.value("max")))
            claims.append(CLOCKS_STAYED(middle=middle, most=most))
        return claims if heat is None else [*claims, HOTTEST(heat=heat.value("max"))]


@fact({"memory": metric("gpu_memory_used_bytes").over("run", "avg")}, limits=Limits())
def throttling(evidence: Evidence, clocks: Clocks, limits: Limits) -> Throttling:
    """Covers the windows of work with a sustained severe reason."""
    stretches: dict[int, Rows] = {}
    brief = None
    at_work = [np.flatnonzero(row) for row in clocks.working]
    for row in np.flatnonzero((clocks.grave & clocks.working).any(axis=1)):
        on = _sustained(clocks, clocks.grave[row], at_work[row], limits)
        if on is None:
            brief = clocks.gpus[row]
        else:
            stretches[int(row)] = on
    free = [gpu for row, gpu in enumerate(clocks.gpus) if row not in stretches and len(at_work[row])]
    gpus = [
        _throttled(clocks, clocks.gpus[row], on, at_work[row][~clocks.grave[row, at_work[row]]], free)
        for row, on in stretches.items()
    ]
    gpus.sort(key=lambda gpu: -gpu.seconds.number)  # stable: equal ones stay in the order of GPUs
    heat = aligned(clocks.grids.get("temperature"), clocks.gpus, clocks.times)
    hot = any(np.nanmax(heat[row, on], initial=0.0) >= clocks.limits.hot_c for row, on in stretches.items())
    return Throttling(clocks, tuple(gpus), brief, hot, _to_the_end(evidence.grid("memory"), clocks, limits))


def _benign(flags: Grid) -> Claim:
    """All reasons that were ever set."""
    highest = flags.value("max", unit="")
    bits = int(np.bitwise_or.reduce(flags.values[~np.isnan(flags.values)].astype(np.int64), initial=0))
    titles = tuple(REASONS[name].title for name in reasons_in(bits)) or ("none",)
    return BENIGN(count=counted(len(flags), "GPU", highest), why=derived(titles, highest))


def _sustained(clocks: Clocks, grave: Flags, windows: Rows, limits: Limits) -> Rows | None:
    """Of these windows, those with a sustained reason, smoothed over single samples; None if it was not sustained."""
    flags = grave[windows].astype(np.int64)
    if flags.sum() < clocks.limits.windows:
        return None
    width = min(5, len(flags) | 1)
    padded = np.pad(flags, width // 2, mode="edge")
    on: Rows = windows[np.convolve(padded, np.ones(width, dtype=np.int64), "valid")[: len(flags)] * 2 > width]
    gap = float(np.median(np.diff(windows))) if len(windows) > 1 else 1.0
    return on if len(on) >= clocks.limits.windows and len(on) * gap * clocks.step >= limits.min_throttled_s else None


def _throttled(clocks: Clocks, gpu: str, on: Rows, free: Rows, peers: Sequence[str]) -> ThrottledGpu:
    """One GPU: ``on`` are its throttled windows, ``free`` those of work with normal clocks, ``peers`` the working GPUs
    with normal clocks."""
    first, last = _stretch(on)
    start, end = float(clocks.times[first]) - clocks.step, float(clocks.times[last])
    before = _free_stretch(clocks, (free[free < first], free[free > last]))
    grid, temperature = clocks.grids.get("clocks"), clocks.grids.get("temperature")
    own = of_gpu(grid, gpu) if grid is not None and gpu in {name_of(series) for series in grid.series} else None
    clock = None if own is None else _megahertz(own.during(start, end))
    usual, against = _usual(clocks, gpu, own, before, (start, end), peers)
    drop = 1 - clock.number / usual.number if clock is not None and usual is not None and usual.number > 0 else None
    least = clocks.limits.drop_from_highest if against == "highest" else clocks.limits.drop
    reasons, names = _reasons_between(clocks, gpu, start, end)
    sources = [value for value in (reasons, clock) if value is not None]
    heat = None if temperature is None else sampled(of_gpu(temperature, gpu).during(start, end), "max")
    return ThrottledGpu(
        gpu, start, end, before,
        seconds=derived(len(on) * clocks.step, *sources, unit="s"),
        share=min(len(on) / (len(on) + len(free)), 1.0),
        reasons_value=reasons, reasons=names, clock=clock, usual=usual, baseline=against,
        lowered=drop is None or drop >= least,
        drop=drop,
        heat=heat,
    )  # fmt: skip


def _usual(
    clocks: Clocks, gpu: str, own: Grid | None, before: TimeRange | None, during: TimeRange, peers: Sequence[str]
) -> tuple[Value | None, Against]:
    """The expected clock: its own normal clock, else the other GPUs', else the maximum."""
    grid, highest = clocks.grids.get("clocks"), clocks.grids.get("highest")
    if own is not None and before is not None and (value := _megahertz(own.during(*before))) is not None:
        return value, "own"
    if grid is not None and len(grid) > 2 and 2 * len(peers) >= len(grid):  # then the median is that of free ones
        return _megahertz(grid.during(*during)), "peers"
    if highest is not None and gpu in {name_of(series) for series in highest.series}:
        return _megahertz(of_gpu(highest, gpu)), "highest"
    rating = rating_of(own.series[0].get("gpu_model")) if own is not None else None
    if own is not None and rating is not None:
        return derived(rating.sm_clock_hertz / 1e6, own.value("count"), unit="MHz"), "highest"
    return None, "highest"


def _free_stretch(clocks: Clocks, parts: Sequence[Rows]) -> TimeRange | None:
    """A span with normal clocks: the one before the throttling if it has three windows, else the one after."""
    part = next((rows for rows in parts if len(rows) >= 3), None)
    return None if part is None else (float(clocks.times[part[0]]) - clocks.step, float(clocks.times[part[-1]]))


def _stretch(on: Rows) -> tuple[int, int]:
    """First and last window: of all windows if the reason is mostly set, else of the longest part."""
    if len(on) >= 0.5 * (on[-1] - on[0] + 1):
        return int(on[0]), int(on[-1])
    parts = np.split(on, np.flatnonzero(np.diff(on) > 2) + 1)
    longest = max(parts, key=len)
    return int(longest[0]), int(longest[-1])


def _megahertz(grid: Grid) -> Value | None:
    value = sampled(grid, "median")
    return None if value is None else derived(value.number / 1e6, value, unit="MHz")


def _reasons_between(clocks: Clocks, gpu: str, start: float, end: float) -> tuple[Value | None, tuple[str, ...]]:
    """The severe reasons set in this span: their titles, cited, and their names."""
    names: dict[str, Value] = {}
    flags, counted = clocks.grids.get("reasons"), clocks.grids.get("counters")
    if flags is not None:
        part = of_gpu(flags, gpu).during(start, end)
        bits = part.values[~np.isnan(part.values)].astype(np.int64)
        for name, reason in REASONS.items():
            if reason.bit & GRAVE and len(bits) and 4 * (bits & reason.bit != 0).sum() >= len(bits):
                names[name] = part.value("max")
    own = of_gpu(counted, gpu) if counted is not None and not names else None
    for (name,) in own.labels("reason") if own is not None else ():
        if own is not None and name in REASONS and REASONS[name].severity != "benign":
            total = own.where(reason=name).during(start, end).value("sum")
            if total.value:
                names[name] = total
    if not names:
        return None, ()
    if len(names) > 1:
        names.pop("hw_slowdown", None)  # only says that it is one of the others
    titles = tuple(REASONS[name].title for name in names)
    return derived(titles, *names.values()), tuple(names)


def _to_the_end(memory: Grid | None, clocks: Clocks, limits: Limits) -> bool:
    """Whether the GPUs worked until shortly before they were released, as far as anything shows."""
    activity = clocks.activity
    if activity is None or activity.basis in (None, "utilization") or not activity.active.any():
        return True
    active = activity.active
    if activity.basis == "power" and activity.busy is not None:  # low clocks draw little, whatever they do
        with np.errstate(invalid="ignore"):
            active = active | (
                (activity.busy[activity.worked] >= clocks.limits.busy).sum(axis=0) > 0.5 * activity.worked.sum()
            )
    last = float(activity.times[np.flatnonzero(active)[-1]])
    return _let_go(memory, activity) - last <= max(limits.quiet_s, 3 * activity.step)


def _let_go(grid: Grid | None, activity: GpuActivity) -> float:
    """Until when the GPUs in use had memory allocated: without a record of the run's end, samples continue after it."""
    end = float(activity.times[-1])
    users = [gpu for gpu, used in zip(activity.gpus, activity.worked, strict=True) if used]
    memory = aligned(grid, users, activity.times)
    if np.isnan(memory).all():
        return end
    with np.errstate(invalid="ignore"):
        occupied = memory > 0.5 * np.fmax.reduce(memory, axis=1)[:, None]
    return float(activity.times[np.flatnonzero(occupied.any(axis=0))[-1]]) if occupied.any() else end
