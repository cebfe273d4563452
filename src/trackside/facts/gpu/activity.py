"""What the GPUs did, window by window: work, busy-wait, or nothing.

The signals of work, best first: kernel launches (if traced); SM activity; power above the GPU's own minimum (unless no
kernel ran, which overrides it); NVML utilization, which proves idleness but not work. Levels are relative to each GPU
because workloads differ. Arrays are (GPUs, windows), NaN where nothing was sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.natural import whole_number
from trackside.evidence import Evidence, Grid, Missing, Value
from trackside.facts.fact import Maybe, fact, unmet_need
from trackside.facts.gpus import align, gpu_name
from trackside.finding import Claim, Sentence
from trackside.model import Run, Series
from trackside.query import Query, Rollup, metric

Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]
Basis = Literal["launches", "sm", "power", "collectives", "utilization"]


def counts_by_gpu(name: str, rollup: Rollup) -> Query:
    """A tracer's counter over the run, summed per GPU or rank."""
    return metric(name).over("run", rollup).by("node", "gpu", "rank", how="sum")


COLLECTIVE_SECONDS = counts_by_gpu("trackside_nccl_collective_seconds_total", "increase")
"""Seconds that each rank spent in collectives, from the tracer."""
ACTIVITY: Mapping[str, Query] = {
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
    "utilization": metric("gpu_utilization_ratio").over("run", "avg"),
    "power": metric("gpu_power_watts").over("run", "avg"),
    "launches": counts_by_gpu("trackside_cuda_kernel_launches_total", "increase"),
    "collectives": counts_by_gpu("trackside_nccl_collectives_completed_total", "increase"),
}
"""The queries behind :class:`GpuActivity`."""
WORK_SIGNALS = ("sm", "engine", "utilization", "launches")
"""Any one of these answers distinguishes idle from work."""
ADVANCING: Mapping[str, Sentence] = {
    "collectives": Sentence("{count} collectives completed meanwhile"),
    "launches": Sentence("{count} kernels were launched meanwhile"),
}
TITLES: Mapping[str, str] = {
    "sm": "SM activity", "power": "power", "engine": "engine activity", "utilization": "utilization",
    "launches": "kernel launches", "collectives": "collectives", "memory": "memory in use",
}  # fmt: skip
"""The display name of each signal."""
MAX_CITED = 8
"""Maximum number of GPUs cited for a claim that names many."""
COUNT_SIGNALS = ("launches", "collectives")
"""Signals that are counts; the sentences name their unit."""


@dataclass(frozen=True)
class Floors:
    """Thresholds below which a GPU does no work. Shares are of its own level in two consecutive windows."""

    sm: float = 0.03
    """SM activity of an idle GPU reads 0; monitoring and a context's own kernels add less than 0.01."""
    sm_share: float = 0.25
    """A collective that spins occupies a few tens of a GPU's more than one hundred SMs."""
    launch_share: float = 0.02
    """Watchdogs and loggers launch occasional kernels."""
    power_share: float = 0.35
    """Share of the range from minimum power to working level: spinning GPUs drew 85 W of 400 W, idle ones 60 W (public
    nvidia-smi output of a hang on A100s)."""
    power_range: float = 1.4
    """Minimum ratio of working level to minimum power for power to be conclusive."""
    power_alone: float = 2.5
    """As ``power_range``, if no signal shows whether a kernel ran: a context without work draws 116 W on an H100 that
    draws 70 W without one, and 75 W versus 34 W on an L40S."""
    utilization: float = 0.05
    unmistakable_sm: float = 0.25
    """SM activity that is work whatever the tracer reports, if it is at least half of the GPU's level."""
    isolated: int = 10
    """Idle windows before a single busy one that make the busy one a blip, not a return to work."""
    cold: float = 0.1
    """Engine activity of a GPU that runs nothing."""
    pinned: float = 0.9
    """Engine activity of GPUs that only spin: a kernel is resident all the time."""
    waiting_share: float = 0.7
    """Share of their earlier SM activity or power at which pinned GPUs wait for one that went idle for good: a spinning
    collective keeps up to a fifth of the SMs."""
    for_good: int = 3
    """Minimum number of idle windows up to the end; with fewer, a GPU may only be late."""


@dataclass(frozen=True, eq=False)
class GpuActivity:
    """The activity of the run's GPUs over its windows."""

    grids: Mapping[str, Grid] = field(repr=False)
    """The answers to :data:`ACTIVITY` that were sampled."""
    missing: Missing | None
    """Why no signal distinguishes idle from work; None if one does."""
    gpus: tuple[str, ...]
    """``node:index``; those of :attr:`Run.gpus` first, in its order."""
    times: Matrix
    """Ends of the windows, (T,), POSIX seconds."""
    step: float
    readings: float
    """Samples per GPU and window, of the signal that has the fewest."""
    sm: Matrix | None
    busy: Matrix | None
    """Engine activity, else NVML utilization."""
    busy_by: Literal["engine", "utilization"] | None
    power: Matrix | None
    launches: Matrix | None
    """Launches per window."""
    collectives: Matrix | None
    """Collectives completed per window."""
    basis: Basis | None
    """The best signal of work; None if no sampled signal proves work."""
    working: Flags
    known: Flags
    """Whether any signal shows if the GPU worked."""

    @cached_property
    def working_gpus(self) -> Flags:
        """(G,) The GPUs that did any work."""
        counts: NDArray[np.intp] = self.working.sum(axis=1)
        return counts >= (2 if len(self.times) > 4 else 1)

    @cached_property
    def in_use(self) -> Flags:
        """(G,) The GPUs that worked; all of them if none did."""
        return self.working_gpus if self.working_gpus.any() else np.ones(len(self.gpus), dtype=bool)

    @cached_property
    def watched(self) -> Flags:
        """(G, T) Whether the GPU itself was sampled, not only its process; without GPU signals, whether the process
        was."""
        levels = [signal_values for signal_values in (self.sm, self.busy, self.power) if signal_values is not None]
        if not levels:
            return self.known
        sampled: Flags = np.any(~np.isnan(np.stack(levels)), axis=0)
        return sampled

    @cached_property
    def observed(self) -> Flags:
        """(T,) Windows in which at least half of the GPUs in use were sampled."""
        counts: NDArray[np.intp] = self.known[self.in_use].sum(axis=0)
        return counts >= max(1, int(self.in_use.sum()) / 2)

    def worked_after(self, since: float) -> bool | None:
        """Whether the GPUs worked after a time (POSIX seconds); None if no sampled signal proves work. At least three
        windows count as work: shutdown may launch a last kernel."""
        if self.basis in (None, "utilization"):
            return None
        after_windows = self.times - self.step >= since
        return None if not (self.observed & after_windows).any() else int((self.active & after_windows).sum()) >= 3

    @cached_property
    def active(self) -> Flags:
        """(T,) Windows in which the run worked: most of the GPUs in use worked, or collectives were completed."""
        users = self.working_gpus
        if not users.any():
            return np.zeros(len(self.times), dtype=bool)
        working = (self.working & self.known)[users].sum(axis=0)
        flags: Flags = working > 0.5 * np.maximum(self.known[users].sum(axis=0), 1)
        if self.collectives is not None:
            rate = self.collectives / np.fmax(level(self.collectives), 1.0)[:, None]
            with np.errstate(invalid="ignore"):
                flags = flags | ((rate > FLOORS.launch_share).sum(axis=0) > 0.5 * users.sum())
        return _without_blips(flags)

    @cached_property
    def pauses(self) -> list[tuple[int, int]]:
        """Ranges of windows, [start, stop), between two times of work in which the run was sampled and did not work."""
        active = np.flatnonzero(self.active)
        if len(active) < 2:
            return []
        flags = ~self.active & self.observed
        flags[: active[0]] = flags[active[-1] :] = False
        return window_ranges(flags)

    @property
    def longest_pause_s(self) -> float:
        """Seconds of the longest pause."""
        return max((stop - start for start, stop in self.pauses), default=0) * self.step

    def reduced(self, windows: NDArray[np.intp]) -> Flags:
        """(G,) GPUs that do far less in these windows than while the run worked before: they spin in a collective."""
        signal = None if self.basis == "utilization" else self.signal(self.basis)
        before = np.flatnonzero(self.active[: windows[0]])
        if signal is None or not len(before):
            return np.zeros(len(self.gpus), dtype=bool)
        with np.errstate(invalid="ignore"):
            now, usual = nan_median(signal[:, windows], axis=1), nan_median(signal[:, before], axis=1)
            is_reduced: Flags = now <= FLOORS.waiting_share * usual
        return is_reduced

    def grid(self, name: str | None) -> Grid | None:
        """The series of one of :data:`ACTIVITY`."""
        return self.grids.get(name or "")

    def signal(self, name: str | None) -> Matrix | None:
        """The array of one of :data:`ACTIVITY`."""
        if name in ("engine", "utilization"):
            return self.busy if name == self.busy_by else None
        values: Matrix | None = None if name is None else getattr(self, name)
        return values

    def level(self, name: str | None, how: Literal["median", "max"] = "median") -> Value | None:
        """The level of one of :data:`ACTIVITY` over the run; for counts, the total."""
        grid = self.grid(name)
        if grid is None:
            return None
        return grid.value("sum" if name in COUNT_SIGNALS else how, unit=None if name == "power" else "")

    def advancing(self, start: float, end: float) -> tuple[Claim, ...]:
        """Collectives completed in (start, end], else kernels launched, if they were traced."""
        for name, sentence in ADVANCING.items():
            grid = self.grid(name)
            done = grid.during(start, end).value("sum", unit="") if grid is not None else None
            if done is not None and done.value:
                return (sentence(count=done),)
        return ()

    def named(self, rows: Flags | Iterable[int]) -> tuple[str, ...]:
        """The GPUs of these rows."""
        picked = np.flatnonzero(rows) if isinstance(rows, np.ndarray) and rows.dtype == bool else list(rows)
        return tuple(self.gpus[int(row)] for row in picked)


FLOORS = Floors()


NOT_MEASURED = Missing("no metric shows what the GPUs did")
NEVER_WORKED = Missing("the GPUs never worked, so there is no training to judge", by_data=False)
TOO_FEW_STEPS = Missing("too few steps: most of the time was startup", by_data=False)


@fact(ACTIVITY)
def gpu_activity(evidence: Evidence, run: Run) -> Maybe[GpuActivity]:
    """Needs a metric that shows what the GPUs did; otherwise missing."""
    answered = {name: grid for name in ACTIVITY if (grid := evidence.grid(name)) is not None}
    missing = unmet_need(evidence, (WORK_SIGNALS,))
    grids = {name: grid for name, grid in answered.items() if len(grid.times)}
    sampled = (name for grid in grids.values() for name in gpus_of(grid, run) if name)
    gpus = tuple(dict.fromkeys([*run.gpus, *sampled]))
    if not grids or not gpus:
        return missing or NOT_MEASURED
    first = next(iter(grids.values()))

    def level_of(name: str) -> Matrix | None:
        return align(grids[name], gpus, first.times) if name in grids else None

    def count_of(name: str) -> Matrix | None:
        return sum_by_gpu(grids[name], run, gpus, first.times) if name in grids else None

    sm, engine, utilization = level_of("sm"), level_of("engine"), level_of("utilization")
    busy = engine if engine is not None else utilization
    power, launches, collectives = (
        level_of("power"),
        _trusted_launches(count_of("launches"), sm, busy),
        count_of("collectives"),
    )
    working, known, basis = _work((len(gpus), len(first.times)), {
        "launches": launches, "sm": sm, "power": power, "collectives": collectives, "utilization": busy
    })  # fmt: skip
    if busy is not None and basis in ("sm", "power"):
        working &= ~_waiting_work(working, busy, sm if basis == "sm" else power)
    by: Literal["engine", "utilization"] = "engine" if engine is not None else "utilization"
    readings = min(grid.samples / max(1, int((~np.isnan(grid.values)).sum())) for grid in grids.values())
    return GpuActivity(
        answered, missing, gpus, first.times, first.step, readings, sm, busy, None if busy is None else by, power,
        launches, collectives, basis, working, known,
    )  # fmt: skip


def never_worked(activity: Maybe[GpuActivity]) -> bool:
    """Whether what the GPUs did was measured, and no GPU did any work."""
    return isinstance(activity, GpuActivity) and activity.missing is None and not activity.working_gpus.any()


def missing_activity(activity: Maybe[GpuActivity]) -> Missing | None:
    """Why no signal distinguishes idle from work; None if one does."""
    return activity if isinstance(activity, Missing) else activity.missing


def gpu_of(series: Series, run: Run) -> str:
    """``node:index`` of a series, by its GPU label or else by its rank; empty if both are unknown."""
    if series.get("gpu"):
        return gpu_name(series)
    rank = whole_number(series.get("rank") or "")
    has_gpu = rank is not None and run.n_ranks == len(run.gpus) and rank < len(run.gpus)
    return run.gpus[rank] if has_gpu and rank is not None else ""


def gpus_of(grid: Grid, run: Run) -> list[str]:
    """The GPU of every series."""
    return [gpu_of(series, run) for series in grid.series]


def sum_by_gpu(grid: Grid, run: Run, gpus: Sequence[str], times: Matrix) -> Matrix:
    """The tracer's counters, which may be labeled by rank only, summed per GPU: (GPUs, windows), NaN where nothing was
    sampled."""
    out = np.full((len(gpus), len(times)), np.nan)
    if len(grid.times) != len(times) or not np.array_equal(grid.times, times):
        return out
    row_of = {name: row for row, name in enumerate(gpus)}
    for row, name in enumerate(gpus_of(grid, run)):
        if name in row_of:
            current, added = out[row_of[name]], grid.values[row]
            out[row_of[name]] = np.where(np.isnan(current), added, current + np.nan_to_num(added))
    return out


def level(values: Matrix) -> Matrix:
    """(G,) The highest level that each GPU had in two consecutive windows: its working level without single spikes."""
    if values.shape[1] < 2:
        highest: Matrix = np.fmax.reduce(values, axis=1)
        return highest
    pairs: Matrix = np.fmax.reduce(np.minimum(values[:, :-1], values[:, 1:]), axis=1)
    return np.where(np.isnan(pairs), np.fmax.reduce(values, axis=1), pairs)


def lowest_level(values: Matrix) -> Matrix:
    """The lowest level that any GPU had in two consecutive windows."""
    lowest: Matrix = np.fmin.reduce(-level(-values))
    return lowest


def nan_median(values: Matrix, axis: int | None = None) -> Matrix:
    """Median of the sampled values; NaN where there are none."""
    sampled = ~np.isnan(values)
    if axis is None:
        return np.median(values[sampled]) if sampled.any() else np.float64(np.nan)  # type: ignore[return-value]
    shape = sampled.any(axis=axis)
    out = np.full(shape.shape, np.nan)
    if shape.any():
        out[shape] = np.nanmedian(values[shape] if axis == 1 else values[:, shape], axis=axis)
    return out


def nan_mean(values: Matrix) -> Matrix:
    """(G,) Mean over the sampled windows; NaN where there are none."""
    sampled = ~np.isnan(values)
    counts = sampled.sum(axis=1)
    total: Matrix = np.where(sampled, values, 0.0).sum(axis=1)
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def window_ranges(flags: Flags) -> list[tuple[int, int]]:
    """The ranges of set flags as [start, stop)."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def last_true(flags: Flags) -> NDArray[np.intp]:
    """(G,) The last window in which each flag is set; -1 if it never is."""
    return np.where(flags.any(axis=1), flags.shape[1] - 1 - flags[:, ::-1].argmax(axis=1), -1)


def _without_blips(flags: Flags) -> Flags:
    """Flags without single windows long after the previous one: shutdown or a monitor's own kernel."""
    cleaned = flags.copy()
    before: int | None = None
    for start, stop in window_ranges(flags):
        if stop - start == 1 and before is not None and start - before >= FLOORS.isolated:
            cleaned[start] = False
        else:
            before = stop
    return cleaned


def _trusted_launches(launches: Matrix | None, sm: Matrix | None, busy: Matrix | None) -> Matrix | None:
    """Launches, with GPUs set to NaN where the tracer saw no launch although the GPU was busy."""
    if launches is None:
        return None
    untraced = np.nan_to_num(level(launches)) <= 0
    for signal, min_level in ((sm, 0.1), (busy, 0.3)):
        if signal is not None:
            untraced_here = untraced & (np.nan_to_num(level(signal)) >= min_level)
            launches = np.where(untraced_here[:, None], np.nan, launches)
    return launches


def _work(shape: tuple[int, int], signals: Mapping[Basis, Matrix | None]) -> tuple[Flags, Flags, Basis | None]:
    """(working, known, best basis), cell by cell from the best signal sampled there."""
    working, known = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    basis: Basis | None = None
    with np.errstate(invalid="ignore"):
        for name, signal in signals.items():
            if signal is None:
                continue
            decided, works = _classify(name, signal, signals["sm"], signals["utilization"])
            decided &= ~known
            working |= decided & works
            known |= decided
            if basis is None and decided.any():
                basis = name
    return working, known, basis


def _waiting_work(working: Flags, busy: Matrix, signal: Matrix | None) -> Flags:
    """(G, T) Apparent work of GPUs that wait for others which went idle for good: pinned, and below their earlier
    level. Ranks of one job step in lockstep, so none works on after another has stopped."""
    waiting = np.zeros_like(working)
    users = working.sum(axis=1) >= 2
    with np.errstate(invalid="ignore"):
        warm = (busy > FLOORS.cold) & users[:, None]
    if signal is None or not warm.any():
        return waiting
    last = last_true(warm)
    end = int(last.max())
    sampled = (~np.isnan(busy))[:, : end + 1]
    later_samples = np.array([int(row[index + 1 :].sum()) for row, index in zip(sampled, last, strict=True)])
    cold_for_good = users & (last >= 0) & (later_samples >= FLOORS.for_good)
    peers = users & ~cold_for_good
    if not cold_for_good.any() or int(cold_for_good.sum()) > int(peers.sum()):
        return waiting
    start = int(last[cold_for_good].max()) + 1
    before = nan_median(np.where(working, signal, np.nan)[peers][:, :start], axis=1)
    with np.errstate(invalid="ignore"):
        pinned = nan_median(busy[peers][:, start : end + 1]) >= FLOORS.pinned
        reduced = nan_median(signal[peers][:, start : end + 1], axis=1) <= FLOORS.waiting_share * before
    if not pinned or not reduced.mean() > 0.5:
        return waiting
    waiting[np.flatnonzero(peers)[reduced], start:] = True
    return waiting


def _classify(name: Basis, signal: Matrix, sm: Matrix | None, busy: Matrix | None) -> tuple[Flags, Flags]:
    """(where a signal is conclusive, where it shows work). ``busy`` shows whether a kernel ran, which overrides
    power."""
    decided = ~np.isnan(signal)
    own_level = level(signal)[:, None]
    match name:
        case "launches" | "collectives":
            works = signal > FLOORS.launch_share * own_level
            if sm is not None:
                works |= (sm > 0.5 * level(sm)[:, None]) & (sm >= FLOORS.unmistakable_sm)
        case "sm":
            works = signal > np.fmax(FLOORS.sm_share * own_level, FLOORS.sm)
        case "power":
            lowest = lowest_level(signal)
            wide = np.full(signal.shape, FLOORS.power_alone)
            if busy is not None:
                wide[~np.isnan(busy)] = FLOORS.power_range
            decided &= own_level >= wide * lowest
            works = signal > lowest + FLOORS.power_share * (own_level - lowest)
            if busy is not None:
                works &= ~(busy <= FLOORS.utilization)
        case "utilization":
            works = signal > FLOORS.utilization
    return decided, works
