"""When each GPU and each node of the run was sampled at all. Pure, on grids of sample counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value
from trackside.facts.gpus import name_of

STALE_S = 300.0
"""A series without a sample for so long is gone: Prometheus' own limit (its lookback of five minutes)."""
STALE_RHYTHMS = 3.0
"""And so many of its usual intervals: two scrapes in a row are lost on a busy node now and then."""


@dataclass(frozen=True, slots=True)
class Line:
    """One GPU (``node:index``) or one node: the windows of the run in which it was sampled, of all in ``grid``."""

    name: str
    node: str
    grid: Grid
    seen: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Hole:
    """A stretch of one node without a sample, POSIX seconds; ``samples`` cites that there are none."""

    node: str
    start: float
    end: float
    samples: Value

    @property
    def length(self) -> float:
        """Seconds."""
        return self.end - self.start


def lines(grids: Iterable[Grid], label: str) -> list[Line]:
    """A line for each GPU (label ``gpu``) or node (label ``node``), by the first of the grids that knows it."""
    found: dict[str, Line] = {}
    for grid in grids:
        for row, (node, gpu) in enumerate(grid.labels("node", "gpu")):
            name = node if label == "node" else f"{node}:{gpu}"
            seen = ~np.isnan(grid.values[row])
            if name not in found:
                found[name] = Line(name, node, grid, seen)
            elif found[name].grid is grid:  # another series of it, such as a MIG instance or another CPU mode
                found[name] = Line(name, node, grid, found[name].seen | seen)
    return list(found.values())


def by_node(given: Iterable[Line]) -> dict[str, list[Line]]:
    """The lines of each node."""
    found: dict[str, list[Line]] = {}
    for line in given:
        found.setdefault(line.node, []).append(line)
    return found


def rhythm(seen: NDArray[np.bool_]) -> int:
    """Windows from one sample to the next, usually."""
    places = np.flatnonzero(seen)
    return max(1, int(np.median(np.diff(places)))) if len(places) > 1 else 1


def share(values: NDArray[np.float64]) -> float:
    """How much of a grid's (series, windows) was sampled, 0 to 1, each series at its usual interval."""
    if not values.size:
        return 0.0
    seen = ~np.isnan(values)
    covered = np.ones(len(seen))
    for place in np.flatnonzero(~seen.all(axis=1)).tolist():
        row = seen[place]
        covered[place] = min(1.0, row.sum() * rhythm(row) / len(row))
    return float(np.mean(covered))


def holes(own: Sequence[Line]) -> list[Hole]:
    """The stretches for which nothing of one node was sampled, those at the run's start and end included."""
    seen = np.any([line.seen for line in own], axis=0)
    grid, node = own[0].grid, own[0].node
    least = stale(seen, grid.step)
    times, found = grid.times, []
    places = np.flatnonzero(seen)
    bounds = np.concatenate([[-1], places, [len(seen)]])
    for before, after in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if (after - before - 1) * grid.step >= least:
            start = float(times[before]) if before >= 0 else float(times[0]) - grid.step
            end = float(times[after - 1])
            part = (grid.where(node=node) if node else grid).during(start, end)
            found.append(Hole(node, start, end, part.value("count")))
    return found


def sampled_within(grid: Grid, start: float, end: float) -> set[str]:
    """The GPUs (``node:index``) with a sample in a window that ends in ``(start, end]``."""
    columns = (grid.times > start) & (grid.times <= end)
    rows = np.flatnonzero((~np.isnan(grid.values[:, columns])).any(axis=1))
    return {name_of(grid.series[int(row)]) for row in rows}


def stale(seen: NDArray[np.bool_], step: float) -> float:
    """Seconds without a sample after which it counts as gone."""
    return max(STALE_S, STALE_RHYTHMS * rhythm(seen) * step)
