"""What stopped being sampled while its peers went on: nodes of the run, and GPUs of a node. Pure.

One exporter's silence is a fault of monitoring: a node is silent only where nothing at all is sampled on it any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Value, derived

Seen = NDArray[np.bool_]
"""Window by window."""


@dataclass(frozen=True)
class Gap:
    """When samples that fail to come are more than a scrape that was missed."""

    windows: float = 3.0
    """Windows of two scrapes each: a scrape or two are lost on any busy node."""
    rhythms: float = 3.0
    """Times the longest gap that it had before."""
    least_s: float = 90.0
    """Whatever the scrape interval: an exporter restarts within a minute."""


@dataclass(frozen=True, slots=True)
class Silent:
    """Somebody of whom nothing was sampled from a moment on."""

    name: str
    since: Value
    """When it was sampled last; cited by what was not sampled after it."""
    witness: Value
    """Samples that its peers gave meanwhile, or, where ``refused``, scrapes of it that failed."""
    refused: bool
    until: float | None
    """When it was sampled again; None where it stayed silent to the end of the data."""


def silent_nodes(grids: Sequence[Grid], before: float, limits: Gap) -> list[Silent]:
    """The nodes that gave no sample of any kind from a moment up to ``before`` on, while other nodes did.

    ``grids``: sample counts by node, and ``scrape_up``, where a zero is silence that the monitor itself saw.
    """
    return _silent(grids, "node", before, limits)


def silent_gpus(grids: Sequence[Grid], node: str, before: float, limits: Gap) -> list[Silent]:
    """The same of one node's GPUs (by index) while other GPUs of the node were sampled."""
    return _silent([grid.where(node=node) for grid in grids], "gpu", before, limits)


def interrupted(grids: Sequence[Grid], limits: Gap) -> tuple[str, ...]:
    """The nodes on which some GPU was missing for a while between its first sample and the node's last."""
    nodes: dict[str, None] = {}
    for grid in grids:
        held = ~np.isnan(grid.values)
        count = np.arange(held.shape[1])
        first, last = held.argmax(axis=1), np.where(held, count, 0).max(axis=1, initial=0)
        names = np.array([name for (name,) in grid.labels("node")])
        latest = {name: int(last[names == name].max()) for name in dict.fromkeys(names.tolist())}
        missing = np.array([latest[name] for name in names.tolist()]) - first + 1 - held.sum(axis=1)
        nodes |= dict.fromkeys(names[held.any(axis=1) & (missing >= limits.windows)].tolist())
    return tuple(nodes)


def _silent(grids: Sequence[Grid], label: str, before: float, limits: Gap) -> list[Silent]:
    grids = [grid for grid in grids if len(grid)]
    if not grids:
        return []
    times, step = grids[0].times, grids[0].step
    held = _by_name(grids, label, answered=True)
    failed = _by_name(grids, label, answered=False)
    crowd = np.sum(list(held.values()), axis=0)
    found = []
    for name, there in held.items():
        bounds = _gap(there, times - step, before, limits, step)
        if bounds is None:
            continue
        start, stop, least = bounds
        watched = np.flatnonzero(((crowd > there) | failed[name])[start:stop])
        if len(watched) > 1 and watched[-1] + 1 >= least:
            until = float(times[stop]) if stop < len(times) else None
            found.append(_told(grids, label, name, (float(times[start]) - step, float(times[stop - 1])), until))
    return found


def _by_name(grids: Sequence[Grid], label: str, answered: bool) -> Mapping[str, Seen]:
    """Whether each was sampled at all; with ``answered`` False: whether a scrape of it failed and none answered."""
    found: dict[str, Seen] = {}
    for grid in grids:
        up = grid.query.kind == "scrape_up"
        with np.errstate(invalid="ignore"):
            there = (grid.values > 0) if up else ~np.isnan(grid.values)
            there = there if answered else (grid.values == 0) & up
        for row, (name,) in enumerate(grid.labels(label)):
            if name:
                found[name] = found[name] | there[row] if name in found else there[row]
    return {name: row for name, row in found.items() if row.any() or not answered}


def _gap(
    there: Seen, starts: NDArray[np.float64], before: float, limits: Gap, step: float
) -> tuple[int, int, float] | None:
    """The silence that began last before a moment, as windows [start, stop), and the length that makes it one."""
    seen = np.flatnonzero(there)
    early = seen[starts[seen] <= before]
    if not len(early):
        return None
    start = int(early[-1]) + 1
    stop = int(seen[len(early)]) if len(early) < len(seen) else len(there)
    usual = int(np.diff(early).max(initial=1)) - 1
    least = max(limits.windows, limits.rhythms * usual, limits.least_s / step)
    return (start, stop, least) if stop - start >= least else None


def _told(grids: Sequence[Grid], label: str, name: str, span: tuple[float, float], until: float | None) -> Silent:
    own, others, failed = [], [], []
    for grid in grids:
        up, part = grid.query.kind == "scrape_up", grid.during(*span)
        if (name,) in grid.labels(label):
            mine = part.where(**{label: name})
            own.append(mine.value("max" if up else "count"))
            failed += [mine.value("count")] if up else []
        others += [] if up else [part.value("count")]
    most = max(others, key=lambda value: value.number, default=None)
    refused = most is None or not most.number
    witness = max(failed, key=lambda value: value.number) if refused or most is None else most
    return Silent(name, derived(span[0], *own, unit="time"), witness, refused, until)
