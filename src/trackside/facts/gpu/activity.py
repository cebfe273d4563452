"""What the GPUs did, window by window: work, wait while looking busy, or nothing.

Kernel launches show work if they were traced, else SM activity, else power above the GPU's own lowest (unless no kernel
ran, which overrules it), else NVML's utilisation, which proves idleness but no work. Levels are each GPU's own, because
workloads differ. Arrays are (GPUs, windows), NaN where nothing was sampled.
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
from trackside.facts.fact import Maybe, fact, unmet
from trackside.facts.gpus import aligned, name_of
from trackside.finding import Claim, Sentence
from trackside.model import Run, Series
from trackside.query import Query, Rollup, metric

Matrix = NDArray[np.float64]
Flags = NDArray[np.bool_]
Basis = Literal["launches", "sm", "power", "collectives", "utilisation"]


def counts_by_gpu(name: str, how: Rollup) -> Query:
    """A counter of the tracer over the run, added up for each GPU or rank."""
    return metric(name).over("run", how).by("node", "gpu", "rank", how="sum")


COLLECTIVE_SECONDS = counts_by_gpu("trackside_nccl_collective_seconds_total", "increase")
"""Seconds that each rank spent in collectives, as the tracer counted them."""
ACTIVITY: Mapping[str, Query] = {
    "sm": metric("gpu_sm_active_ratio").over("run", "avg"),
    "engine": metric("gpu_engine_active_ratio").over("run", "avg"),
    "utilisation": metric("gpu_utilization_ratio").over("run", "avg"),
    "power": metric("gpu_power_watts").over("run", "avg"),
    "launches": counts_by_gpu("trackside_cuda_kernel_launches_total", "increase"),
    "collectives": counts_by_gpu("trackside_nccl_collectives_completed_total", "increase"),
}
"""The questions behind :class:`GpuActivity`."""
NEED = ("sm", "engine", "utilisation", "launches")
"""Those whose answer, any one, can tell rest from work."""
ADVANCING: Mapping[str, Sentence] = {
    "collectives": Sentence("collectives went on: {count} were completed"),
    "launches": Sentence("kernels were launched all the while: {count}"),
}
TITLES: Mapping[str, str] = {
    "sm": "SM activity", "power": "power", "engine": "engine activity", "utilisation": "utilisation",
    "launches": "kernel launches a window", "collectives": "collectives a window",
}  # fmt: skip
"""What a signal is called beside its level."""
MAX_CITED = 8
"""GPUs of which each is cited, of many that a claim names."""
COUNTED = ("launches", "collectives")
"""Those that count what was done; their unit is named by the sentences themselves."""


@dataclass(frozen=True)
class Floors:
    """Below what a GPU does no work. Shares of its own level in two consecutive windows."""

    sm: float = 0.03
    """SM activity of an idle GPU reads 0; monitoring and a context's own kernels give under a hundredth."""
    sm_share: float = 0.25
    """A collective that spins keeps a few tens of a card's hundred and more SMs."""
    launch_share: float = 0.02
    """Watchdogs and loggers launch something now and then."""
    power_share: float = 0.35
    """Of the way from the lowest power to the working level: cards that spin drew 85 W of 400 where idle ones drew 60
    (public nvidia-smi output of a hang on A100s)."""
    power_range: float = 1.4
    """Working level over the lowest, without which power tells nothing."""
    power_alone: float = 2.5
    """The same, where nothing says if a kernel ran: a context without work takes 116 W of an H100 that draws 70 without
    one, 75 of an L40S's 34."""
    utilisation: float = 0.05
    unmistakable_sm: float = 0.25
    """SM activity that is work whatever the tracer says, where it is half of the GPU's level at least."""
    isolated: int = 10
    """Windows of rest on one side before which a single busy one is a blip and no return to work."""
    cold: float = 0.1
    """Engine activity of a GPU on which nothing runs."""
    pinned: float = 0.9
    """Engine activity of GPUs that only spin: a kernel is resident all the time."""
    waiting_share: float = 0.7
    """Of the SM activity or power before, at which GPUs that are pinned wait for one that went cold for good: a
    collective that spins keeps up to a fifth of the card's SMs."""
    for_good: int = 3
    """Windows to the end, below which a GPU that is cold may only be late."""


@dataclass(frozen=True, eq=False)
class GpuActivity:
    """The run's GPUs over its windows."""

    grids: Mapping[str, Grid] = field(repr=False)
    """The answers to :data:`ACTIVITY`, of those that were sampled."""
    untold: Missing | None
    """Why nothing was sampled that can tell rest from work; None if something was."""
    gpus: tuple[str, ...]
    """``node:index``, those of :attr:`Run.gpus` first and in its order."""
    times: Matrix
    """Ends of the windows, (T,), POSIX seconds."""
    step: float
    readings: float
    """Samples of a GPU in a window, of the signal that has the fewest."""
    sm: Matrix | None
    busy: Matrix | None
    """Engine activity, else NVML utilisation."""
    busy_by: Literal["engine", "utilisation"] | None
    power: Matrix | None
    launches: Matrix | None
    """Launches in a window."""
    collectives: Matrix | None
    """Collectives completed in a window."""
    basis: Basis | None
    """The best signal that tells work; None where only what proves nothing was sampled."""
    working: Flags
    known: Flags
    """Whether anything tells if it worked."""

    @cached_property
    def users(self) -> Flags:
        """(G,) The GPUs that did any work."""
        counts: NDArray[np.intp] = self.working.sum(axis=1)
        return counts >= (2 if len(self.times) > 4 else 1)

    @cached_property
    def used(self) -> Flags:
        """(G,) The GPUs in use; all of them if none was seen to work."""
        return self.users if self.users.any() else np.ones(len(self.gpus), dtype=bool)

    @cached_property
    def watched(self) -> Flags:
        """(G, T) Whether the GPU itself was sampled, and not only its process; else whether this was."""
        levels = [each for each in (self.sm, self.busy, self.power) if each is not None]
        if not levels:
            return self.known
        sampled: Flags = np.any(~np.isnan(np.stack(levels)), axis=0)
        return sampled

    @cached_property
    def seen(self) -> Flags:
        """(T,) Windows in which at least half of the GPUs in use were watched."""
        counts: NDArray[np.intp] = self.known[self.used].sum(axis=0)
        return counts >= max(1, int(self.used.sum()) / 2)

    def worked_after(self, moment: float) -> bool | None:
        """Whether the run's GPUs went on working after a moment; None if nothing that proves work was sampled.

        A spell counts from three windows on: what is torn down may launch a last kernel.
        """
        if self.basis in (None, "utilisation"):
            return None
        later = self.times - self.step >= moment
        return None if not (self.seen & later).any() else int((self.active & later).sum()) >= 3

    @cached_property
    def active(self) -> Flags:
        """(T,) Windows in which the run did work: most of the GPUs in use, or collectives that were completed."""
        users = self.users
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
    def rests(self) -> list[tuple[int, int]]:
        """The stretches of windows, [start, stop), between two times of work in which the run was watched and did
        none."""
        active = np.flatnonzero(self.active)
        if len(active) < 2:
            return []
        flags = ~self.active & self.seen
        flags[: active[0]] = flags[active[-1] :] = False
        return spells(flags)

    @property
    def longest_rest_s(self) -> float:
        """Seconds of the longest of these."""
        return max((stop - start for start, stop in self.rests), default=0) * self.step

    def less(self, windows: NDArray[np.intp]) -> Flags:
        """(G,) GPUs that do far less in these windows than while the run worked before: they spin in a collective."""
        signal = None if self.basis == "utilisation" else self.signal(self.basis)
        before = np.flatnonzero(self.active[: windows[0]])
        if signal is None or not len(before):
            return np.zeros(len(self.gpus), dtype=bool)
        with np.errstate(invalid="ignore"):
            now, usual = middle(signal[:, windows], axis=1), middle(signal[:, before], axis=1)
            less: Flags = now <= FLOORS.waiting_share * usual
        return less

    def grid(self, name: str | None) -> Grid | None:
        """The curves of one of :data:`ACTIVITY`."""
        return self.grids.get(name or "")

    def signal(self, name: str | None) -> Matrix | None:
        """The array of one of :data:`ACTIVITY`."""
        if name in ("engine", "utilisation"):
            return self.busy if name == self.busy_by else None
        values: Matrix | None = None if name is None else getattr(self, name)
        return values

    def level(self, name: str | None, how: Literal["median", "max"] = "median") -> Value | None:
        """What one of :data:`ACTIVITY` came to over the run; of what is counted, all of it."""
        grid = self.grid(name)
        if grid is None:
            return None
        return grid.value("sum" if name in COUNTED else how, unit=None if name == "power" else "")

    def advancing(self, start: float, end: float) -> tuple[Claim, ...]:
        """Collectives that were completed in (start, end], else kernels that were launched, if they were traced."""
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


@fact(ACTIVITY)
def gpu_activity(evidence: Evidence, run: Run) -> Maybe[GpuActivity]:
    """Of what was sampled; missing if no metric shows what the GPUs did."""
    answers = {name: grid for name in ACTIVITY if (grid := evidence.grid(name)) is not None}
    untold = unmet(evidence, (NEED,))
    grids = {name: grid for name, grid in answers.items() if len(grid.times)}
    sampled = (name for grid in grids.values() for name in gpus_of(grid, run) if name)
    gpus = tuple(dict.fromkeys([*run.gpus, *sampled]))
    if not grids or not gpus:
        return untold or NOT_MEASURED
    first = next(iter(grids.values()))

    def level_of(name: str) -> Matrix | None:
        return aligned(grids[name], gpus, first.times) if name in grids else None

    def count_of(name: str) -> Matrix | None:
        return summed(grids[name], run, gpus, first.times) if name in grids else None

    sm, engine, utilisation = level_of("sm"), level_of("engine"), level_of("utilisation")
    busy = engine if engine is not None else utilisation
    power, launches, collectives = level_of("power"), _trusted(count_of("launches"), sm, busy), count_of("collectives")
    working, known, basis = _work((len(gpus), len(first.times)), {
        "launches": launches, "sm": sm, "power": power, "collectives": collectives, "utilisation": busy
    })  # fmt: skip
    if busy is not None and basis in ("sm", "power"):
        working &= ~_waiting(working, busy, sm if basis == "sm" else power)
    by: Literal["engine", "utilisation"] = "engine" if engine is not None else "utilisation"
    readings = min(grid.samples / max(1, int((~np.isnan(grid.values)).sum())) for grid in grids.values())
    return GpuActivity(
        answers, untold, gpus, first.times, first.step, readings, sm, busy, None if busy is None else by, power,
        launches, collectives, basis, working, known,
    )  # fmt: skip


def untold(activity: Maybe[GpuActivity]) -> Missing | None:
    """Why nothing was sampled that can tell rest from work; None if something was."""
    return activity if isinstance(activity, Missing) else activity.untold


def gpu_of(series: Series, run: Run) -> str:
    """``node:index`` of a curve, by its GPU or else by its rank; empty where neither is told."""
    if series.get("gpu"):
        return name_of(series)
    rank = whole_number(series.get("rank") or "")
    known = rank is not None and run.n_ranks == len(run.gpus) and rank < len(run.gpus)
    return run.gpus[rank] if known and rank is not None else ""


def gpus_of(grid: Grid, run: Run) -> list[str]:
    """That of every curve."""
    return [gpu_of(series, run) for series in grid.series]


def summed(grid: Grid, run: Run, gpus: Sequence[str], times: Matrix) -> Matrix:
    """The tracer's counters, which may know ranks alone, of each GPU added up: (GPUs, windows), NaN where none was
    sampled."""
    out = np.full((len(gpus), len(times)), np.nan)
    if len(grid.times) != len(times) or not np.array_equal(grid.times, times):
        return out
    place = {name: row for row, name in enumerate(gpus)}
    for row, name in enumerate(gpus_of(grid, run)):
        if name in place:
            here, more = out[place[name]], grid.values[row]
            out[place[name]] = np.where(np.isnan(here), more, here + np.nan_to_num(more))
    return out


def level(values: Matrix) -> Matrix:
    """(G,) The most that each held in two consecutive windows: its working level, single spikes left out."""
    if values.shape[1] < 2:
        most: Matrix = np.fmax.reduce(values, axis=1)
        return most
    pairs: Matrix = np.fmax.reduce(np.minimum(values[:, :-1], values[:, 1:]), axis=1)
    return np.where(np.isnan(pairs), np.fmax.reduce(values, axis=1), pairs)


def lowest_level(values: Matrix) -> Matrix:
    """The lowest that any held in two consecutive windows."""
    lowest: Matrix = np.fmin.reduce(-level(-values))
    return lowest


def middle(values: Matrix, axis: int | None = None) -> Matrix:
    """Median over the values that were sampled; NaN where there are none."""
    held = ~np.isnan(values)
    if axis is None:
        return np.median(values[held]) if held.any() else np.float64(np.nan)  # type: ignore[return-value]
    shape = held.any(axis=axis)
    out = np.full(shape.shape, np.nan)
    if shape.any():
        out[shape] = np.nanmedian(values[shape] if axis == 1 else values[:, shape], axis=axis)
    return out


def mean(values: Matrix) -> Matrix:
    """(G,) Mean over the windows that were sampled; NaN where there are none."""
    held = ~np.isnan(values)
    counts = held.sum(axis=1)
    total: Matrix = np.where(held, values, 0.0).sum(axis=1)
    return np.where(counts > 0, total / np.maximum(counts, 1), np.nan)


def spells(flags: Flags) -> list[tuple[int, int]]:
    """The stretches of set flags as [start, stop)."""
    edges = np.diff(np.concatenate([[0], flags.astype(np.int8), [0]]))
    return list(zip(np.flatnonzero(edges == 1).tolist(), np.flatnonzero(edges == -1).tolist(), strict=True))


def last_set(flags: Flags) -> NDArray[np.intp]:
    """(G,) The last window in which each is set; -1 where it never is."""
    return np.where(flags.any(axis=1), flags.shape[1] - 1 - flags[:, ::-1].argmax(axis=1), -1)


def _without_blips(flags: Flags) -> Flags:
    """Single windows long after the last other one left out: a tear-down or a monitor's own kernel."""
    kept = flags.copy()
    before: int | None = None
    for start, stop in spells(flags):
        if stop - start == 1 and before is not None and start - before >= FLOORS.isolated:
            kept[start] = False
        else:
            before = stop
    return kept


def _trusted(launches: Matrix | None, sm: Matrix | None, busy: Matrix | None) -> Matrix | None:
    """Launches without those of GPUs on which the tracer saw nothing at all while they were busy."""
    if launches is None:
        return None
    none = np.nan_to_num(level(launches)) <= 0
    for signal, least in ((sm, 0.1), (busy, 0.3)):
        if signal is not None:
            none_here = none & (np.nan_to_num(level(signal)) >= least)
            launches = np.where(none_here[:, None], np.nan, launches)
    return launches


def _work(shape: tuple[int, int], signals: Mapping[Basis, Matrix | None]) -> tuple[Flags, Flags, Basis | None]:
    """(working, known, best basis), cell by cell from the best signal that was sampled there."""
    working, known = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    basis: Basis | None = None
    with np.errstate(invalid="ignore"):
        for name, signal in signals.items():
            if signal is None:
                continue
            told, works = _told(name, signal, signals["sm"], signals["utilisation"])
            told &= ~known
            working |= told & works
            known |= told
            if basis is None and told.any():
                basis = name
    return working, known, basis


def _waiting(working: Flags, busy: Matrix, signal: Matrix | None) -> Flags:
    """(G, T) What looks like work of GPUs that wait for others which went cold for good: pinned, and at less than the
    level that they had. Ranks of one job step together, so nobody works on after one of them has stopped."""
    none = np.zeros_like(working)
    users = working.sum(axis=1) >= 2
    with np.errstate(invalid="ignore"):
        warm = (busy > FLOORS.cold) & users[:, None]
    if signal is None or not warm.any():
        return none
    last = last_set(warm)
    end = int(last.max())
    sampled = (~np.isnan(busy))[:, : end + 1]
    late = users & (last >= 0) & (np.array([int(row[at + 1 :].sum()) for row, at in zip(sampled, last, strict=True)])
                                  >= FLOORS.for_good)  # fmt: skip
    others = users & ~late
    if not late.any() or int(late.sum()) > int(others.sum()):
        return none
    start = int(last[late].max()) + 1
    before = middle(np.where(working, signal, np.nan)[others][:, :start], axis=1)
    with np.errstate(invalid="ignore"):
        pinned = middle(busy[others][:, start : end + 1]) >= FLOORS.pinned
        less = middle(signal[others][:, start : end + 1], axis=1) <= FLOORS.waiting_share * before
    if not pinned or not less.mean() > 0.5:
        return none
    none[np.flatnonzero(others)[less], start:] = True
    return none


def _told(name: Basis, signal: Matrix, sm: Matrix | None, busy: Matrix | None) -> tuple[Flags, Flags]:
    """Where one signal tells, and where it tells work; ``busy``: whether a kernel ran, which no watt outweighs."""
    told = ~np.isnan(signal)
    own = level(signal)[:, None]
    match name:
        case "launches" | "collectives":
            works = signal > FLOORS.launch_share * own
            if sm is not None:
                works |= (sm > 0.5 * level(sm)[:, None]) & (sm >= FLOORS.unmistakable_sm)
        case "sm":
            works = signal > np.fmax(FLOORS.sm_share * own, FLOORS.sm)
        case "power":
            lowest = lowest_level(signal)
            wide = np.full(signal.shape, FLOORS.power_alone)
            if busy is not None:
                wide[~np.isnan(busy)] = FLOORS.power_range
            told &= own >= wide * lowest
            works = signal > lowest + FLOORS.power_share * (own - lowest)
            if busy is not None:
                works &= ~(busy <= FLOORS.utilisation)
        case "utilisation":
            works = signal > FLOORS.utilisation
    return told, works
