"""Which GPUs the others of a synchronous run wait for, by what each of them shows.

A GPU that computes longer than the others works while they spin: its SM activity lies far above theirs. One whose host
keeps it waiting idles while they spin: its engine activity lies below theirs. Either waits least in collectives. GPUs
are compared one by one, then the nodes by the median of their GPUs: a slow host lags with all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, Missing, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import COLLECTIVE_SECONDS, TITLES, GpuActivity, Matrix, gpus_of, middle, summed
from trackside.facts.gpu.duty import RESTING, DutyCycle
from trackside.facts.gpus import aligned, names, nodes_of, of_gpu
from trackside.facts.pace import outliers
from trackside.facts.pace.outliers import Outlier
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import metric

Sign = Literal["sm", "busy", "wait"]
Rows = NDArray[np.intp]

SLOW_SM = Sentence(
    "GPU {gpus} works {ratio} times as much of its time as the others: SM activity {mine} beside {theirs} (medians), "
    "for {seconds}"
)
SLOW_BUSY = Sentence(
    "GPU {gpus} is busy {mine} of its time while the others are pinned at {theirs} (medians), for {seconds}"
)
SLOW_WAIT = Sentence(
    "GPU {gpus} spends {mine} of each {window} in collectives and the others {theirs} (medians): "
    "it is the one that they wait for"
)
PEERS_BUSY = Sentence("the others wait meanwhile: {signal} {busy} (median)")
EQUAL: Mapping[str, Sentence] = {
    "launches": Sentence("the work is equal: {mine} kernel launches a window beside {theirs} (medians)"),
    "collectives": Sentence("collectives go on in lock-step: {mine} a window beside {theirs} (medians)"),
}
CLOCK = Sentence("its SM clock is {mine} beside {theirs} (medians)")
ALIKE = Sentence("the GPUs work alike: {signal} from {low} to {high} (medians)")
DO_SO_ALIKE = Sentence("all GPUs do so alike: {signal} from {low} to {high} (medians)")


@dataclass(frozen=True)
class Limits(outliers.Limits):
    """What counts as standing out, and what that takes beside it."""

    least_windows: int = 5
    """Of a stretch, in a run too short for more: half of the run at least."""
    pinned: float = 0.8
    """Engine activity of the others, from which one that is less busy keeps them waiting."""
    wait_share: float = 0.15
    """Share of the time that the others must wait in collectives for a rank's short wait to say anything."""
    wait_ratio: float = 2.0
    """The others' wait over that rank's."""
    equal: float = 0.2
    """Share by which counts of equal ranks differ at most: their scrapes are a window apart."""
    slow_clock: float = 0.9
    """SM clock over that of the others, under which the GPU itself is slow: else they differ by some hundredths."""
    smooth: int = 5
    """Windows of two readings each over which utilisation, of the last second alone, becomes a share of time."""


@dataclass(frozen=True)
class Stretch:
    """GPUs that stand out for a while from the others."""

    picked: Rows
    others: Rows
    gpus: tuple[str, ...]
    peers: tuple[str, ...]
    ratio: float
    windows: slice
    start: float
    end: float


@dataclass(frozen=True)
class SlowGroup(Stretch):
    """GPUs that stand out, and the sign by which they do."""

    sign: Sign
    peers_busy: float | None
    """Median engine activity of the others meanwhile."""
    equal: bool | None
    """Whether they launched as many kernels as the others; None if that was not traced."""
    waits_least: bool | None
    """Whether they wait less in collectives than the others; None if that was not traced."""
    slow_clock: bool
    """Whether their SM clock lies under the others'."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True, eq=False)
class SlowGpus:
    """The GPUs of a run against each other, in its time of work."""

    waits: Grid | None
    """Seconds of each rank in collectives: the one that the others wait for spends least of its time there."""
    clock: Grid | None
    activity: GpuActivity
    duty: DutyCycle
    run: Run
    limits: Limits

    @cached_property
    def group(self) -> SlowGroup | None:
        """Those that the others wait for; None if all are alike, or too few were watched."""
        activity, limits = self.activity, self.limits
        rows = np.flatnonzero(self.duty.rows)
        windows = self.duty.windows & (activity.active if activity.active.any() else True)
        limits = replace(limits, windows=min(limits.windows, max(limits.least_windows, int(windows.sum()) // 2)))
        waits = self._waited
        signs: list[tuple[Sign, Matrix | None, outliers.Limits]] = [
            ("sm", activity.sm, limits),
            ("busy", self._idleness, replace(limits, pair_ratio=limits.ratio)),
            ("wait", None if waits is None else 1 / np.fmax(waits, 0.01), replace(limits, ratio=limits.wait_ratio)),
        ]
        compared = [
            (sign, np.where(windows[None, :], values, np.nan)[rows], own) for sign, values, own in signs
            if values is not None
        ]  # fmt: skip
        gpus = [activity.gpus[row] for row in rows]
        for find in (_of_gpus, _of_nodes):
            for sign, values, own in compared:
                match = find(values, gpus, own)
                group = self._group(sign, self._stretch(rows, *match)) if match is not None else None
                if group is not None:
                    return group
        return None

    def alike(self, sentence: Sentence) -> tuple[Claim, ...]:
        """The highest and the lowest of the GPUs in use, by SM activity else by engine activity, said so."""
        activity, duty = self.activity, self.duty
        for name in ("sm", activity.busy_by):
            grid, values = activity.grid(name), activity.signal(name)
            if grid is None or values is None or name is None:
                continue
            levels = np.where(duty.rows, middle(np.where(duty.windows[None, :], values, np.nan), axis=1), np.nan)
            if int((~np.isnan(levels)).sum()) < 2:
                continue
            part = grid.during(duty.start, duty.end)
            rows = int(np.nanargmax(levels)), int(np.nanargmin(levels))
            high, low = (of_gpu(part, activity.gpus[row]).value("median") for row in rows)
            return (sentence(high=high, low=low, signal=derived(TITLES[name], high)),)
        return ()

    @cached_property
    def _waited(self) -> Matrix | None:
        """(G, T) Share of each window that a GPU's rank spent in collectives."""
        if self.waits is None:
            return None
        return summed(self.waits, self.run, self.activity.gpus, self.activity.times) / self.activity.step

    @cached_property
    def _idleness(self) -> Matrix | None:
        """How little each GPU was busy; not known of one that does nothing at all: that is a standstill, not slowness.

        Utilisation is of the last second alone, at rest or at work: a few windows make it a share of time.
        """
        activity = self.activity
        if activity.busy is None:
            return None
        busy = _smooth(activity.busy, self.limits.smooth) if activity.busy_by == "utilisation" else activity.busy
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(busy > RESTING, 1 / busy, np.nan)

    def _stretch(self, rows: Rows, places: Sequence[int], first: Outlier) -> Stretch:
        activity, picked = self.activity, rows[list(places)]
        others = np.setdiff1d(rows, picked)
        start, end = float(activity.times[first.start]) - activity.step, float(activity.times[first.stop - 1])
        window = slice(first.start, first.stop)
        return Stretch(picked, others, activity.named(picked), activity.named(others), first.ratio, window, start, end)

    def _group(self, sign: Sign, of: Stretch) -> SlowGroup | None:
        """What stands out, if the others wait meanwhile."""
        limits, busy, waits = self.limits, self.activity.busy, self._waited
        peers = None if busy is None else float(middle(busy[of.others][:, of.windows]))
        if sign == "busy" and (peers is None or peers < limits.pinned):
            return None
        mine, theirs = (
            None if waits is None else float(middle(waits[rows][:, of.windows])) for rows in (of.picked, of.others)
        )
        if sign == "wait" and (theirs is None or not theirs >= limits.wait_share):
            return None
        least = None
        if theirs is not None and mine is not None and theirs >= limits.wait_share:
            least = mine * limits.wait_ratio <= theirs
        clock, equal = self._slow_clock(of), self._equal(self.activity.launches, of)
        claims = [*self._shows(sign, of), *clock]
        if equal:
            claims.append(self._counts("launches", of))
            if self._equal(self.activity.collectives, of):
                claims.append(self._counts("collectives", of))
        if least and sign != "wait":
            claims += self._less_wait(of)
        return SlowGroup(
            **vars(of), sign=sign, peers_busy=peers, equal=equal, waits_least=least, slow_clock=bool(clock),
            claims=tuple(claims),
        )  # fmt: skip

    def _shows(self, sign: Sign, of: Stretch) -> list[Claim]:
        """How far the first stands out and what the others do."""
        if sign == "wait":
            return self._less_wait(of)
        activity = self.activity
        grid = activity.grid("sm" if sign == "sm" else activity.busy_by or "engine")
        assert grid is not None
        part = grid.during(of.start, of.end)
        mine, theirs = of_gpu(part, of.gpus[0]).value("median"), _of_peers(part, of.peers).value("median")
        gpus, seconds = derived(of.gpus, mine), derived(of.end - of.start, mine, unit="s")
        if sign == "busy":
            return [SLOW_BUSY(gpus=gpus, mine=mine, theirs=theirs, seconds=seconds)]
        ratio = derived(round(mine.number / theirs.number if theirs.value else of.ratio, 2), mine, theirs)
        claims = [SLOW_SM(gpus=gpus, mine=mine, theirs=theirs, ratio=ratio, seconds=seconds)]
        if activity.busy_by is not None and (other := activity.grid(activity.busy_by)) is not None:
            busy = _of_peers(other.during(of.start, of.end), of.peers).value("median")
            claims.append(PEERS_BUSY(busy=busy, signal=derived(TITLES[activity.busy_by], busy)))
        return claims

    def _less_wait(self, of: Stretch) -> list[Claim]:
        if self.waits is None:
            return []
        part = self.waits.during(of.start, of.end)
        mine, theirs = _of_rank(part, self.run, of.gpus[0]).value("median"), _of_peers(part, of.peers).value("median")
        window = derived(part.step, theirs, unit="s")
        return [SLOW_WAIT(gpus=derived(of.gpus[:1], mine), mine=mine, theirs=theirs, window=window)]

    def _equal(self, counts: Matrix | None, of: Stretch) -> bool | None:
        """Whether the picked GPUs counted as much as the others."""
        if counts is None:
            return None
        sums = np.nansum(counts[:, of.windows], axis=1)
        theirs, mine = float(np.median(sums[of.others])), float(np.median(sums[of.picked]))
        return abs(mine / theirs - 1) <= self.limits.equal if theirs > 0 else None

    def _counts(self, name: str, of: Stretch) -> Claim:
        grid = self.activity.grid(name)
        assert grid is not None
        part = grid.during(of.start, of.end)
        mine = _of_rank(part, self.run, of.gpus[0]).value("median", unit="")
        theirs = _of_peers(part, of.peers).value("median", unit="")
        return EQUAL[name](mine=mine, theirs=theirs)

    def _slow_clock(self, of: Stretch) -> list[Claim]:
        """Their SM clock, if it lies well under the others'."""
        if self.clock is None:
            return []
        clocks = aligned(self.clock, self.activity.gpus, self.activity.times)[:, of.windows]
        mine, theirs = float(middle(clocks[of.picked])), float(middle(clocks[of.others]))
        if not mine <= self.limits.slow_clock * theirs:
            return []
        part = self.clock.during(of.start, of.end)
        return [CLOCK(mine=of_gpu(part, of.gpus[0]).value("median"), theirs=part.value("median"))]


@fact({"clock": metric("gpu_sm_clock_hertz").over("run", "avg"), "waits": COLLECTIVE_SECONDS}, limits=Limits())
def slow_gpus(evidence: Evidence, activity: GpuActivity, duty: DutyCycle, run: Run, limits: Limits) -> Maybe[SlowGpus]:
    """Of several GPUs in their time of work; missing if one was in use, or too little was sampled."""
    if not duty.sampled or int(duty.rows.sum()) < 2:
        return Missing("too few readings of several GPUs at work")
    return SlowGpus(evidence.grid("waits"), evidence.grid("clock"), activity, duty, run, limits)


def _smooth(values: Matrix, width: int) -> Matrix:
    """Means over this many windows about each, of those that were sampled."""
    if values.shape[1] < width:
        return values
    held = ~np.isnan(values)
    kernel = np.ones(width)
    sums, counts = (
        np.apply_along_axis(np.convolve, 1, part, kernel, "same")
        for part in (np.where(held, values, 0.0), held.astype(float))
    )
    return np.where(held, sums / np.maximum(counts, 1), np.nan)


def _of_gpus(values: Matrix, gpus: Sequence[str], limits: outliers.Limits) -> tuple[tuple[int, ...], Outlier] | None:
    """(places of the outliers, the first of them)."""
    late = outliers.outliers(values, gpus, limits)
    return (tuple(outlier.row for outlier in late), late[0]) if late else None


def _of_nodes(values: Matrix, gpus: Sequence[str], limits: outliers.Limits) -> tuple[tuple[int, ...], Outlier] | None:
    """The same among nodes, each taken by the median of its GPUs: of those all lag alike if their host is slow."""
    own = [name.rpartition(":")[0] for name in gpus]
    nodes = list(dict.fromkeys(own))
    if len(nodes) < 2:
        return None
    levels = np.stack([middle(values[[place for place, at in enumerate(own) if at == node]], axis=0) for node in nodes])
    late = outliers.outliers(levels, [f"{node}:" for node in nodes], limits)
    if not late:
        return None
    slow = {nodes[outlier.row] for outlier in late}
    return tuple(place for place, node in enumerate(own) if node in slow), late[0]


def _of_rank(part: Grid, run: Run, gpu: str) -> Grid:
    """What a tracer's grid, which may know ranks alone, holds of one GPU."""
    placed = gpus_of(part, run)
    return part.one(placed.index(gpu)) if gpu in placed else of_gpu(part, gpu)


def _of_peers(part: Grid, peers: tuple[str, ...]) -> Grid:
    """What the grid holds of the others, where one question can ask for them: one GPU, or one node; else of all, whose
    median is theirs."""
    if len(peers) == 1:
        return of_gpu(part, peers[0])
    nodes = nodes_of(peers)
    own = {name for name in names(part) if name.rpartition(":")[0] in nodes}
    return part.where(node=nodes[0]) if len(nodes) == 1 and own == set(peers) else part
