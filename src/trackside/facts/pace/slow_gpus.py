"""Which GPU the others of a synchronous run wait for, by what each of them shows. Pure, on arrays.

A GPU that computes longer than the others works while they spin: its SM activity lies far above theirs. One whose host
keeps it waiting idles while they spin: its engine activity lies below theirs. Either waits least in collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, derived
from trackside.facts.gpu.activity import GpuActivity, Matrix, gpu_of, middle, summed
from trackside.facts.gpu.duty import RESTING, TITLES, Duty
from trackside.facts.gpus import aligned, names, of_gpu
from trackside.facts.pace.lagging import Limits, Outlier, outliers
from trackside.finding import Claim, claim
from trackside.model import Run

Sign = Literal["sm", "busy", "wait"]
Rows = NDArray[np.intp]
Names = tuple[str, ...]
LEAST_WINDOWS = 5
"""Of a stretch, in a run too short for more: half of the run at least."""
LEAST_WAIT = 0.15
"""Share of the time that the others must wait in collectives for a rank's short wait to say anything."""
WAIT_RATIO = 2.0
"""The others' wait over that rank's."""
EQUAL = 0.2
"""Share by which counts of equal ranks differ at most: their scrapes are a window apart."""


@dataclass(frozen=True)
class Slow:
    """GPUs that stand out, and the sign by which they do."""

    sign: Sign
    gpus: tuple[str, ...]
    ratio: float
    start: float
    end: float
    peers_busy: float | None
    """Median engine activity of the others meanwhile."""
    equal: bool | None
    """Whether they launched as many kernels as the others; None where that was not traced."""
    waits_least: bool | None
    """Whether they wait less in collectives than the others; None where that was not traced."""
    slow_clock: bool
    """Whether their SM clock lies under the others'."""
    shows: tuple[Claim, ...]


def slow_gpus(evidence: Evidence, run: Run, seen: GpuActivity, duty: Duty, limits: Limits) -> Slow | None:
    """The GPUs of a run that the others wait for; None where all are alike, or too few were watched."""
    rows = np.flatnonzero(duty.rows)
    windows = duty.windows & (seen.active if seen.active.any() else True)
    limits = replace(limits, windows=min(limits.windows, max(LEAST_WINDOWS, int(windows.sum()) // 2)))
    waits = _waits(evidence, run, seen)
    signs: list[tuple[Sign, Matrix | None, Limits]] = [
        ("sm", seen.sm, limits),
        ("busy", _idleness(seen), replace(limits, pair_ratio=limits.ratio)),
        ("wait", None if waits is None else 1 / np.fmax(waits, 0.01), replace(limits, ratio=WAIT_RATIO)),
    ]
    told = [
        (sign, np.where(windows[None, :], values, np.nan)[rows], own)
        for sign, values, own in signs
        if values is not None
    ]
    named = [seen.gpus[row] for row in rows]
    for by_node in (False, True):
        for sign, values, own in told:
            found = _of_nodes(values, named, own) if by_node else _of_gpus(values, named, own)
            slow = _slow(evidence, run, seen, sign, found, rows, waits) if found is not None else None
            if slow is not None:
                return slow
    return None


def _idleness(seen: GpuActivity) -> Matrix | None:
    """How little each GPU was busy; not known of one that does nothing at all: that is a standstill, not slowness.

    Utilisation is of the last second alone, at rest or at work: a few windows make it a share of time.
    """
    if seen.busy is None:
        return None
    busy = _smooth(seen.busy, SMOOTH) if seen.busy_by == "utilisation" else seen.busy
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(busy > RESTING, 1 / busy, np.nan)


SMOOTH = 5
"""Windows of two readings each."""


def _smooth(values: Matrix, width: int) -> Matrix:
    """Means over this many windows about each, of those that were sampled."""
    if values.shape[1] < width:
        return values
    held = ~np.isnan(values)
    kernel = np.ones(width)
    sums, counts = (
        np.apply_along_axis(np.convolve, 1, each, kernel, "same")
        for each in (np.where(held, values, 0.0), held.astype(float))
    )
    return np.where(held, sums / np.maximum(counts, 1), np.nan)


@dataclass(frozen=True)
class _Found:
    """Places among the rows that were compared, and their stretch."""

    places: tuple[int, ...]
    first: Outlier


def _of_gpus(values: Matrix, names: Sequence[str], limits: Limits) -> _Found | None:
    found = outliers(values, names, limits)
    return _Found(tuple(each.row for each in found), found[0]) if found else None


def _of_nodes(values: Matrix, names: Sequence[str], limits: Limits) -> _Found | None:
    """The same among nodes, each taken by the median of its GPUs: of those all lag alike where their host is slow."""
    nodes = [name.rpartition(":")[0] for name in names]
    each = list(dict.fromkeys(nodes))
    if len(each) < 2:
        return None
    levels = np.stack(
        [middle(values[[place for place, at in enumerate(nodes) if at == node]], axis=0) for node in each]
    )
    found = outliers(levels, [f"{node}:" for node in each], limits)
    if not found:
        return None
    late = {each[one.row] for one in found}
    return _Found(tuple(place for place, node in enumerate(nodes) if node in late), found[0])


def _waits(evidence: Evidence, run: Run, seen: GpuActivity) -> Matrix | None:
    """Share of each window that a rank spent in collectives."""
    grid = evidence.grid("waits")
    if grid is None:
        return None
    return (
        summed(grid, [gpu_of(each, run.gpus, run.n_ranks) for each in grid.series], seen.gpus, seen.times) / seen.step
    )


def _slow(
    evidence: Evidence, run: Run, seen: GpuActivity, sign: Sign, found: _Found, rows: Rows, waits: Matrix | None
) -> Slow | None:
    first = found.first
    picked = rows[list(found.places)]
    others = np.setdiff1d(rows, picked)
    window = slice(first.start, first.stop)
    start, end = float(seen.times[first.start]) - seen.step, float(seen.times[first.stop - 1])
    busy = float(middle(seen.busy[others][:, window])) if seen.busy is not None else None
    if sign == "busy" and (busy is None or busy < 0.8):
        return None
    theirs = float(middle(waits[others][:, window])) if waits is not None else None
    mine = float(middle(waits[picked][:, window])) if waits is not None else None
    if sign == "wait" and (theirs is None or not theirs >= LEAST_WAIT):
        return None
    least = None if theirs is None or mine is None or not theirs >= LEAST_WAIT else mine * WAIT_RATIO <= theirs
    gpus = tuple(seen.gpus[row] for row in picked)
    clock = _clock(evidence, seen, picked, others, window)
    equal = _equal(seen.launches, picked, others, window)
    peers = tuple(seen.gpus[row] for row in others)
    shows = _shows(evidence, run, seen, sign, first, (gpus, peers), (start, end))
    if clock is not None:
        shows.append(clock)
    if equal:
        shows.append(_counts(evidence, run, "launches", gpus[0], peers, (start, end)))
        if _equal(seen.collectives, picked, others, window):
            shows.append(_counts(evidence, run, "collectives", gpus[0], peers, (start, end)))
    if least and sign != "wait":
        shows += _wait_claim(evidence, run, gpus[0], peers, (start, end))
    return Slow(sign, gpus, first.ratio, start, end, busy, equal, least, clock is not None, tuple(shows))


def _shows(
    evidence: Evidence, run: Run, seen: GpuActivity, sign: Sign, first: Outlier, parted: tuple[Names, Names],
    span: tuple[float, float],
) -> list[Claim]:  # fmt: skip
    """How far the first stands out and what the others do; ``parted``: the GPUs that stand out, and the others."""
    gpus, peers = parted
    name = {"sm": "sm", "busy": seen.busy_by or "engine", "wait": "waits"}[sign]
    grid = evidence.grid(name)
    assert grid is not None
    if sign == "wait":
        told = _wait_claim(evidence, run, gpus[0], peers, span)
    else:
        part = grid.during(*span)
        mine, theirs = of_gpu(part, gpus[0]).value("median"), _of_peers(part, peers).value("median")
        ratio = derived(round(mine.number / theirs.number, 2) if theirs.value else round(first.ratio, 2), mine, theirs)
        seconds = derived(span[1] - span[0], mine, unit="s")
        told = [claim(f"slow_{sign}", gpus=derived(gpus, mine), mine=mine, theirs=theirs, ratio=ratio, seconds=seconds)]
    if sign == "sm" and seen.busy_by is not None and (other := evidence.grid(seen.busy_by)) is not None:
        busy = _of_peers(other.during(*span), peers).value("median")
        told.append(claim("peers_busy", busy=busy, signal=derived(TITLES[seen.busy_by], busy)))
    return told


def _of_peers(part: Grid, peers: Names) -> Grid:
    """What the grid holds of the others, where one question can ask for them: one GPU, or one node; else of all, whose
    median is theirs."""
    if len(peers) == 1:
        return of_gpu(part, peers[0])
    nodes = {name.rpartition(":")[0] for name in peers}
    shown = {name for name in names(part) if name.rpartition(":")[0] in nodes}
    return part.where(node=next(iter(nodes))) if len(nodes) == 1 and shown == set(peers) else part


def _of_rank(part: Grid, run: Run, gpu: str) -> Grid:
    """What a tracer's grid, which may know ranks alone, holds of one GPU."""
    placed = [gpu_of(each, run.gpus, run.n_ranks) for each in part.series]
    return part.one(placed.index(gpu)) if gpu in placed else of_gpu(part, gpu)


def _wait_claim(evidence: Evidence, run: Run, gpu: str, peers: Names, span: tuple[float, float]) -> list[Claim]:
    grid = evidence.grid("waits")
    if grid is None:
        return []
    part = grid.during(*span)
    mine, theirs = _of_rank(part, run, gpu).value("median"), _of_peers(part, peers).value("median")
    window = derived(grid.step, theirs, unit="s")
    return [claim("slow_wait", gpus=derived((gpu,), mine), mine=mine, theirs=theirs, window=window)]


def _equal(counts: Matrix | None, picked: Rows, others: Rows, window: slice) -> bool | None:
    """Whether the picked GPUs counted as much as the others."""
    if counts is None:
        return None
    sums = np.nansum(counts[:, window], axis=1)
    theirs, mine = float(np.median(sums[others])), float(np.median(sums[picked]))
    if not theirs > 0:
        return None
    return abs(mine / theirs - 1) <= EQUAL


def _counts(evidence: Evidence, run: Run, name: str, gpu: str, peers: Names, span: tuple[float, float]) -> Claim:
    grid = evidence.grid(name)
    assert grid is not None
    part = grid.during(*span)
    mine, theirs = (each.value("median", unit="") for each in (_of_rank(part, run, gpu), _of_peers(part, peers)))
    return claim(f"equal_{name}", mine=mine, theirs=theirs)


def _clock(evidence: Evidence, seen: GpuActivity, picked: Rows, others: Rows, window: slice) -> Claim | None:
    """Their SM clock, where it lies well under the others'."""
    grid = evidence.grid("clock")
    if grid is None:
        return None
    clocks = aligned(grid, seen.gpus, seen.times)[:, window]
    mine, theirs = float(middle(clocks[picked])), float(middle(clocks[others]))
    if not mine <= SLOW_CLOCK * theirs:
        return None
    part = grid.during(float(seen.times[window][0]) - seen.step, float(seen.times[window][-1]))
    gpu = seen.gpus[int(picked[0])]
    return claim("clock", mine=of_gpu(part, gpu).value("median"), theirs=part.value("median"))


SLOW_CLOCK = 0.9
"""SM clock over that of the others, under which the GPU itself is slow: else they differ by some hundredths."""


def alike(evidence: Evidence, seen: GpuActivity, duty: Duty) -> Claim | None:
    """The highest and the lowest of the GPUs in use, by SM activity else by engine activity: the counterfactual."""
    for name, values in (("sm", seen.sm), (seen.busy_by or "", seen.busy)):
        grid: Grid | None = evidence.grid(name) if name else None
        if grid is None or values is None:
            continue
        levels = np.where(duty.rows, middle(np.where(duty.windows[None, :], values, np.nan), axis=1), np.nan)
        if np.isnan(levels).all() or int((~np.isnan(levels)).sum()) < 2:
            continue
        part = grid.during(duty.start, duty.end)
        high, low = (
            of_gpu(part, seen.gpus[row]).value("median")
            for row in (int(np.nanargmax(levels)), int(np.nanargmin(levels)))
        )
        return claim("alike", high=high, low=low, signal=derived(TITLES[name], high))
    return None
