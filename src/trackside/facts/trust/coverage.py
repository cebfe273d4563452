"""When each GPU and each node of the run was sampled. Pure functions of grids of sample counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value
from trackside.facts.gpus import gpu_name

STALE_S = 300.0
"""A series without a sample for this long is stale: Prometheus' own limit (its lookback of five minutes)."""
STALE_INTERVALS = 3.0
"""And for this many of its usual intervals: a busy node sometimes loses two scrapes in a row."""


@dataclass(frozen=True, slots=True)
class SampledWindows:
    """A GPU (``node:index``) or a node, and the windows of ``grid`` in which it was sampled."""

    name: str
    node: str
    grid: Grid
    sampled: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SampleGap:
    """A time span of one node without a sample, POSIX seconds; ``samples`` cites that there are none."""

    node: str
    start: float
    end: float
    samples: Value

    @property
    def length_s(self) -> float:
        return self.end - self.start


def sampled_windows(grids: Iterable[Grid], label: str) -> list[SampledWindows]:
    """One entry per GPU (label ``gpu``) or node (label ``node``), from the first grid that has it."""
    by_name: dict[str, SampledWindows] = {}
    for grid in grids:
        for row, (node, gpu) in enumerate(grid.labels("node", "gpu")):
            name = node if label == "node" else f"{node}:{gpu}"
            sampled = ~np.isnan(grid.values[row])
            if name not in by_name:
                by_name[name] = SampledWindows(name, node, grid, sampled)
            elif by_name[name].grid is grid:  # the same GPU or node, such as a MIG instance
                by_name[name] = SampledWindows(name, node, grid, by_name[name].sampled | sampled)
    return list(by_name.values())


def by_node(sampled_windows: Iterable[SampledWindows]) -> dict[str, list[SampledWindows]]:
    """The entries of each node."""
    nodes: dict[str, list[SampledWindows]] = {}
    for entry in sampled_windows:
        nodes.setdefault(entry.node, []).append(entry)
    return nodes


def usual_interval(sampled: NDArray[np.bool_]) -> int:
    """Usual number of windows from one sample to the next."""
    indices = np.flatnonzero(sampled)
    return max(1, int(np.median(np.diff(indices)))) if len(indices) > 1 else 1


def sampled_share(values: NDArray[np.float64]) -> float:
    """The share of a grid's (series, windows) that was sampled, 0 to 1, each series at its usual interval."""
    if not values.size:
        return 0.0
    sampled = ~np.isnan(values)
    covered = np.ones(len(sampled))
    for index in np.flatnonzero(~sampled.all(axis=1)).tolist():
        row = sampled[index]
        covered[index] = min(1.0, row.sum() * usual_interval(row) / len(row))
    return float(np.mean(covered))


def sample_gaps(windows: Sequence[SampledWindows]) -> list[SampleGap]:
    """The time spans without any sample of one node, including those at the run's start and end."""
    sampled = np.any([entry.sampled for entry in windows], axis=0)
    grid, node = windows[0].grid, windows[0].node
    min_s = stale_after_s(sampled, grid.step)
    times, gaps = grid.times, []
    indices = np.flatnonzero(sampled)
    bounds = np.concatenate([[-1], indices, [len(sampled)]])
    for before, after in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if (after - before - 1) * grid.step >= min_s:
            start = float(times[before]) if before >= 0 else float(times[0]) - grid.step
            end = float(times[after - 1])
            part = (grid.where(node=node) if node else grid).during(start, end)
            gaps.append(SampleGap(node, start, end, part.value("count")))
    return gaps


def sampled_gpus(grid: Grid, start: float, end: float) -> set[str]:
    """The GPUs (``node:index``) with a sample in a window that ends in ``(start, end]``."""
    columns = (grid.times > start) & (grid.times <= end)
    rows = np.flatnonzero((~np.isnan(grid.values[:, columns])).any(axis=1))
    return {gpu_name(grid.series[int(row)]) for row in rows}


def stale_after_s(sampled: NDArray[np.bool_], step: float) -> float:
    """Seconds without a sample after which it counts as stale."""
    return max(STALE_S, STALE_INTERVALS * usual_interval(sampled) * step)
