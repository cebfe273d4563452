r"""Which GPUs the others of a synchronous run wait for, by the metrics of each GPU.

A GPU that computes longer than the others works while they spin: its SM activity is far above theirs. A GPU that its
host delays idles while they spin: its engine activity is below theirs. Either waits least in collectives. GPUs are
compared one by one, then nodes by the median of their GPUs: a slow host delays all of them.
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
from trackside.facts.gpu.activity import (
    COLLECTIVE_SECONDS,
    TITLES,
    GpuActivity,
    Matrix,
    gpus_of,
    nan_median,
    sum_by_gpu,
)
from trackside.facts.gpu.duty import IDLE_LEVEL, DutyCycle
from trackside.facts.gpus import align, gpu_names, grid_of_gpu, nodes_of
from trackside.facts.pace import outliers
from trackside.facts.pace.outliers import Outlier
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import metric

Signal = Literal["sm", "busy", "wait"]
Rows = NDArray[np.intp]

SLOW_SM = Sentence(
    "the SMs of {gpus} are active {ratio} times as long as those of the others, which wait: SM activity {own} versus "
    "{others} (medians), for {seconds}"
)
SLOW_BUSY = Sentence(
    "the {signal} is {own} on {gpus} and {others} on the others, which spin while they wait (medians), for {seconds}"
)
SLOW_WAIT = Sentence("time in collectives per {window}: {own} on {gpus}, {others} on the others, which wait (medians)")
PEERS_BUSY = Sentence("the others wait in a spinning kernel: {signal} {busy} (median)")
EQUAL_WORK: Mapping[str, Sentence] = {
    "launches": Sentence(
        "the work is the same: {own} kernel launches per {window} on {gpus}, {others} on the others (medians)"
    ),
    "collectives": Sentence(
        "the collectives are the same: {own} completed per {window} on {gpus}, {others} on the others (medians)"
    ),
}
LOW_CLOCK = Sentence("SM clock: {own} on {gpus}, {others} on the others (medians)")
COMPUTE_ALIKE = Sentence("all GPUs compute alike: {signal} from {low} to {high} (medians of {seconds} of training)")
AFFECTED_ALIKE = Sentence(
    "all GPUs are affected alike: {signal} from {low} to {high} (medians of {seconds} of training)"
)


@dataclass(frozen=True)
class Limits(outliers.Limits):
    """Thresholds for outliers and for the additional evidence that they need."""

    min_windows_of_short_run: int = 5
    """Minimum number of windows in a run too short for more; they must be half of it."""
    pinned_activity: float = 0.8
    """A less busy GPU delays the others if their engine activity is at least this."""
    wait_share: float = 0.15
    """Minimum share of time that the others wait in collectives for a rank's short wait to be significant."""
    wait_ratio: float = 2.0
    """Ratio of the others' wait to that rank's."""
    max_count_difference: float = 0.2
    """Maximum relative difference of the counts of equal ranks: their scrapes are a window apart."""
    slow_clock_ratio: float = 0.9
    """The GPU itself is slow if its SM clock is at most this fraction of the others'; normal variation is a few
    percent."""
    smoothing_windows: int = 5
    """Windows of two readings each over which utilization, which covers the last second only, becomes a share of
    time."""


@dataclass(frozen=True)
class OutlierPeriod:
    """GPUs that are outliers for a while."""

    picked: Rows
    others: Rows
    gpus: tuple[str, ...]
    peers: tuple[str, ...]
    ratio: float
    windows: slice
    start: float
    end: float


@dataclass(frozen=True)
class SlowGroup(OutlierPeriod):
    """The outlier GPUs, and the signal that singles them out."""

    signal: Signal
    peers_busy: float | None
    """Median engine activity of the others meanwhile."""
    equal: bool | None
    """Whether they launched as many kernels as the others; None if that was not traced."""
    waits_least: bool | None
    """Whether they wait less in collectives than the others; None if that was not traced."""
    slow_clock: bool
    """Whether their SM clock is below the others'."""
    claims: tuple[Claim, ...]


@dataclass(frozen=True, eq=False)
class SlowGpus:
    """The GPUs of a run compared with each other, during its time of work."""

    waits: Grid | None
    """Seconds of each rank in collectives: the one that the others wait for spends the least time there."""
    clock: Grid | None
    activity: GpuActivity
    duty: DutyCycle
    run: Run
    limits: Limits

    @cached_property
    def group(self) -> SlowGroup | None:
        """The GPUs that the others wait for; None if all are alike, or too few were sampled."""
        activity, limits = self.activity, self.limits
        rows = np.flatnonzero(self.duty.rows)
        windows = self.duty.windows & (activity.active if activity.active.any() else True)
        half = int(windows.sum()) // 2
        limits = replace(limits, min_windows=min(limits.min_windows, max(limits.min_windows_of_short_run, half)))
        waits = self._wait_share
        signals: list[tuple[Signal, Matrix | None, outliers.Limits]] = [
            ("sm", activity.sm, limits),
            ("busy", self._idleness, replace(limits, pair_ratio=limits.min_ratio)),
            ("wait", None if waits is None else 1 / np.fmax(waits, 0.01), replace(limits, min_ratio=limits.wait_ratio)),
        ]
        compared = [
            (signal, np.where(windows[None, :], values, np.nan)[rows], own_limits)
            for signal, values, own_limits in signals if values is not None
        ]  # fmt: skip
        gpus = [activity.gpus[row] for row in rows]
        for find in (_outlier_gpus, _outlier_nodes):
            for signal, values, own_limits in compared:
                match = find(values, gpus, own_limits)
                group = self._group(signal, self._period(rows, *match)) if match is not None else None
                if group is not None:
                    return group
        return None

    def range_claims(self, sentence: Sentence) -> tuple[Claim, ...]:
        """The claim about the highest and the lowest of the GPUs in use, by SM activity, else by engine activity; empty
        if neither was sampled."""
        activity, duty = self.activity, self.duty
        for name in ("sm", activity.busy_by):
            grid, values = activity.grid(name), activity.signal(name)
            if grid is None or values is None or name is None:
                continue
            levels = np.where(duty.rows, nan_median(np.where(duty.windows[None, :], values, np.nan), axis=1), np.nan)
            if int((~np.isnan(levels)).sum()) < 2:
                continue
            part = grid.during(duty.start, duty.end)
            rows = int(np.nanargmax(levels)), int(np.nanargmin(levels))
            high, low = (grid_of_gpu(part, activity.gpus[row]).value("median") for row in rows)
            seconds = derived(duty.seconds, high, unit="s")
            return (sentence(high=high, low=low, signal=derived(TITLES[name], high), seconds=seconds),)
        return ()

    @cached_property
    def _wait_share(self) -> Matrix | None:
        """(G, T) Share of each window that a GPU's rank spent in collectives."""
        if self.waits is None:
            return None
        return sum_by_gpu(self.waits, self.run, self.activity.gpus, self.activity.times) / self.activity.step

    @cached_property
    def _idleness(self) -> Matrix | None:
        r"""Inverse of each GPU's activity; NaN for one that is completely idle, which is a stall, not slowness.

        Utilization covers the last second only, idle or busy; a few windows make it a share of time.
        """
        activity = self.activity
        if activity.busy is None:
            return None
        busy = (
            _smooth(activity.busy, self.limits.smoothing_windows)
            if activity.busy_by == "utilization"
            else activity.busy
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(busy > IDLE_LEVEL, 1 / busy, np.nan)

    def _period(self, rows: Rows, indices: Sequence[int], first: Outlier) -> OutlierPeriod:
        activity, picked = self.activity, rows[list(indices)]
        others = np.setdiff1d(rows, picked)
        start, end = float(activity.times[first.start]) - activity.step, float(activity.times[first.stop - 1])
        window = slice(first.start, first.stop)
        return OutlierPeriod(
            picked, others, activity.named(picked), activity.named(others), first.ratio, window, start, end
        )

    def _group(self, signal: Signal, period: OutlierPeriod) -> SlowGroup | None:
        """The outliers, if the others wait meanwhile."""
        limits, busy, waits = self.limits, self.activity.busy, self._wait_share
        peers_busy = None if busy is None else float(nan_median(busy[period.others][:, period.windows]))
        if signal == "busy" and (peers_busy is None or peers_busy < limits.pinned_activity):
            return None
        own_wait, peers_wait = (
            None if waits is None else float(nan_median(waits[rows][:, period.windows]))
            for rows in (period.picked, period.others)
        )
        if signal == "wait" and (peers_wait is None or not peers_wait >= limits.wait_share):
            return None
        waits_least = None
        if peers_wait is not None and own_wait is not None and peers_wait >= limits.wait_share:
            waits_least = own_wait * limits.wait_ratio <= peers_wait
        clock, equal = self._slow_clock(period), self._equal(self.activity.launches, period)
        claims = [*self._shows(signal, period), *clock]
        if waits_least and signal != "wait":
            claims += self._less_wait(period)
        if equal:
            claims.append(self._counts("launches", period))
            if self._equal(self.activity.collectives, period):
                claims.append(self._counts("collectives", period))
        return SlowGroup(
            **vars(period), signal=signal, peers_busy=peers_busy, equal=equal, waits_least=waits_least,
            slow_clock=bool(clock), claims=tuple(claims),
        )  # fmt: skip

    def _shows(self, signal: Signal, period: OutlierPeriod) -> list[Claim]:
        """How much the first outlier differs, and what the others do."""
        if signal == "wait":
            return self._less_wait(period)
        activity = self.activity
        grid = activity.grid("sm" if signal == "sm" else activity.busy_by or "engine")
        assert grid is not None
        part = grid.during(period.start, period.end)
        measured, own_part = _grid_of_group(part, period.gpus)
        own_level, peers_level = (
            own_part.value("median"),
            _grid_of_peers(part, period.peers).value("median"),
        )
        gpus, seconds = derived(measured, own_level), derived(period.end - period.start, own_level, unit="s")
        if signal == "busy":
            title = derived(TITLES[activity.busy_by or "engine"], own_level)
            return [SLOW_BUSY(gpus=gpus, signal=title, own=own_level, others=peers_level, seconds=seconds)]
        ratio = derived(
            round(own_level.number / peers_level.number if peers_level.value else period.ratio, 2),
            own_level,
            peers_level,
        )
        claims = [SLOW_SM(gpus=gpus, own=own_level, others=peers_level, ratio=ratio, seconds=seconds)]
        if activity.busy_by is not None and (busy_grid := activity.grid(activity.busy_by)) is not None:
            busy = _grid_of_peers(busy_grid.during(period.start, period.end), period.peers).value("median")
            claims.append(PEERS_BUSY(busy=busy, signal=derived(TITLES[activity.busy_by], busy)))
        return claims

    def _less_wait(self, period: OutlierPeriod) -> list[Claim]:
        if self.waits is None:
            return []
        part = self.waits.during(period.start, period.end)
        measured, own_part = _grid_of_group(part, period.gpus, self.run)
        own_wait, peers_wait = (
            own_part.value("median"),
            _grid_of_peers(part, period.peers).value("median"),
        )
        window = derived(part.step, peers_wait, unit="s")
        return [SLOW_WAIT(gpus=derived(measured, own_wait), own=own_wait, others=peers_wait, window=window)]

    def _equal(self, counts: Matrix | None, period: OutlierPeriod) -> bool | None:
        """Whether the picked GPUs have the same counts as the others."""
        if counts is None:
            return None
        sums = np.nansum(counts[:, period.windows], axis=1)
        peers_sum, own_sum = float(np.median(sums[period.others])), float(np.median(sums[period.picked]))
        return abs(own_sum / peers_sum - 1) <= self.limits.max_count_difference if peers_sum > 0 else None

    def _counts(self, name: str, period: OutlierPeriod) -> Claim:
        grid = self.activity.grid(name)
        assert grid is not None
        part = grid.during(period.start, period.end)
        measured, own_part = _grid_of_group(part, period.gpus, self.run)
        own_count = own_part.value("median", unit="")
        peers_count = _grid_of_peers(part, period.peers).value("median", unit="")
        window, gpus = derived(part.step, peers_count, unit="s"), derived(measured, own_count)
        return EQUAL_WORK[name](gpus=gpus, own=own_count, others=peers_count, window=window)

    def _slow_clock(self, period: OutlierPeriod) -> list[Claim]:
        """Their SM clock, if it is well below the others'."""
        if self.clock is None:
            return []
        clocks = align(self.clock, self.activity.gpus, self.activity.times)[:, period.windows]
        own_clock, peers_clock = float(nan_median(clocks[period.picked])), float(nan_median(clocks[period.others]))
        if not own_clock <= self.limits.slow_clock_ratio * peers_clock:
            return []
        part = self.clock.during(period.start, period.end)
        measured, own_part = _grid_of_group(part, period.gpus)
        clock, others = own_part.value("median"), _grid_of_peers(part, period.peers).value("median")
        return [LOW_CLOCK(gpus=derived(measured, clock), own=clock, others=others)]


@fact({"clock": metric("gpu_sm_clock_hertz").over("run", "avg"), "waits": COLLECTIVE_SECONDS}, limits=Limits())
def slow_gpus(evidence: Evidence, activity: GpuActivity, duty: DutyCycle, run: Run, limits: Limits) -> Maybe[SlowGpus]:
    """Needs samples of several GPUs in use, for long enough; otherwise missing."""
    if not duty.sampled or int(duty.rows.sum()) < 2:
        return Missing("too few readings of several GPUs at work")
    return SlowGpus(evidence.grid("waits"), evidence.grid("clock"), activity, duty, run, limits)


def _smooth(values: Matrix, width: int) -> Matrix:
    """Centered moving averages over ``width`` windows, of the sampled values."""
    if values.shape[1] < width:
        return values
    sampled = ~np.isnan(values)
    kernel = np.ones(width)
    sums, counts = (
        np.apply_along_axis(np.convolve, 1, part, kernel, "same")
        for part in (np.where(sampled, values, 0.0), sampled.astype(float))
    )
    return np.where(sampled, sums / np.maximum(counts, 1), np.nan)


def _outlier_gpus(
    values: Matrix, gpus: Sequence[str], limits: outliers.Limits
) -> tuple[tuple[int, ...], Outlier] | None:
    """(indices of the outliers, the first of them)."""
    slow_rows = outliers.outliers(values, gpus, limits)
    return (tuple(outlier.row for outlier in slow_rows), slow_rows[0]) if slow_rows else None


def _outlier_nodes(
    values: Matrix, gpus: Sequence[str], limits: outliers.Limits
) -> tuple[tuple[int, ...], Outlier] | None:
    """The outliers among nodes, each by the median of its GPUs: all GPUs of a slow host lag alike."""
    gpu_nodes = [name.rpartition(":")[0] for name in gpus]
    nodes = list(dict.fromkeys(gpu_nodes))
    if len(nodes) < 2:
        return None
    levels = np.stack(
        [
            nan_median(values[[index for index, gpu_node in enumerate(gpu_nodes) if gpu_node == node]], axis=0)
            for node in nodes
        ]
    )
    slow_rows = outliers.outliers(levels, [f"{node}:" for node in nodes], limits)
    if not slow_rows:
        return None
    slow = {nodes[outlier.row] for outlier in slow_rows}
    return tuple(index for index, node in enumerate(gpu_nodes) if node in slow), slow_rows[0]


def _is_node(part: Grid, gpus: tuple[str, ...]) -> bool:
    """Whether these are all GPUs of one node with series in a grid."""
    nodes = nodes_of(gpus)
    return len(nodes) == 1 and {name for name in gpu_names(part) if name.rpartition(":")[0] in nodes} == set(gpus)


def _grid_of_group(part: Grid, gpus: tuple[str, ...], run: Run | None = None) -> tuple[tuple[str, ...], Grid]:
    """(GPUs, their part of a grid): the slow GPUs if they are all of a node, else the first of them. ``run``: of a
    tracer's grid, which may be labeled by rank only."""
    if len(gpus) > 1 and _is_node(part, gpus):
        return gpus, part.where(node=nodes_of(gpus)[0])
    names = () if run is None else gpus_of(part, run)
    return gpus[:1], part.one(names.index(gpus[0])) if gpus[0] in names else grid_of_gpu(part, gpus[0])


def _grid_of_peers(part: Grid, peers: tuple[str, ...]) -> Grid:
    """The grid of the others, if one query can select them: one GPU, or one node; else of all, whose median is
    theirs."""
    if len(peers) == 1:
        return grid_of_gpu(part, peers[0])
    return part.where(node=nodes_of(peers)[0]) if _is_node(part, peers) else part
