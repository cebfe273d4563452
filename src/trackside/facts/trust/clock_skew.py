"""Clock skew between nodes: by the clocks that nodes report, and by when the job starts and ends on each.

Nothing is corrected. With only two nodes, it is unknown which one is off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Evidence, Grid, derived
from trackside.facts.fact import fact
from trackside.finding import Claim, Sentence
from trackside.model import Run
from trackside.query import metric

CLOCK_AHEAD = Sentence(
    "the clock of {nodes} is about {skew} ahead of the clock that stamps the metrics, and so are the times in its logs"
)
CLOCK_BEHIND = Sentence(
    "the clock of {nodes} is about {skew} behind the clock that stamps the metrics, and so are the times in its logs"
)
SAMPLES_LATE = Sentence("the job starts and ends about {skew} later on {nodes} than on other nodes: its clock is ahead")
SAMPLES_EARLY = Sentence(
    "the job starts and ends about {skew} earlier on {nodes} than on other nodes: its clock is behind"
)


@dataclass(frozen=True)
class Limits:
    """Thresholds for clock skew."""

    min_skew_s: float = 10.0
    """Smallest skew that is reported: far more than NTP leaves (a fraction of a second), and less than a scrape
    interval (15 s), within which the order of events on different nodes is not known anyway."""
    max_spread_s: float = 60.0
    """Ranks of one job start and end within this of each other: launchers wait for all, Slurm's KillWait is 30 s."""
    max_spread_windows: int = 3
    """As ``max_spread_s``, in windows of the samples, whose times are no more exact than a window."""
    min_nodes: int = 3
    """With only two nodes, it is unknown which one is off."""
    in_use_share: float = 0.5
    """GPU memory is in use above this share of its maximum: shows when the job started and ended."""


@dataclass(frozen=True, slots=True)
class ClockSkew:
    """Which clocks are off, and by how much."""

    claims: tuple[Claim, ...]


@fact(
    {
        "clocks": metric("host_time_seconds").over("tail", "last"),
        "memory": metric("gpu_memory_used_bytes").over("around", "max"),
    },
    limits=Limits(),
)
def clock_skew(evidence: Evidence, run: Run, limits: Limits) -> ClockSkew:
    """Needs no particular input; empty if no clocks and no starts of several nodes are known."""
    clocks, memory = evidence.grid("clocks"), evidence.grid("memory")
    return ClockSkew((
        *(_own(clocks, run.metric_offset_s, limits) if clocks is not None else ()),
        *(_between(memory, limits) if memory is not None else ()),
    ))  # fmt: skip


def _nodes(grid: Grid, rows: Iterable[int]) -> tuple[str, ...]:
    """The nodes of these series, each once."""
    return tuple(dict.fromkeys(grid.series[row].get("node") or "a node" for row in rows))


def _own(clocks: Grid, offset: float, limits: Limits) -> Iterator[Claim]:
    """Nodes whose own clock differs from the one that stamps the samples."""
    gap = clocks.values - (clocks.times - offset)[None, :]
    # A sample is up to one window older than its window's end: the true skew lies between the largest gap and the
    # smallest gap + step.
    lower = np.nanmax(np.where(np.isnan(gap), -np.inf, gap), axis=1, initial=-np.inf)
    upper = np.nanmin(np.where(np.isnan(gap), np.inf, gap), axis=1, initial=np.inf) + clocks.step
    for sentence, differs in ((CLOCK_AHEAD, lower > limits.min_skew_s), (CLOCK_BEHIND, upper < -limits.min_skew_s)):
        rows = [int(row) for row in np.flatnonzero(differs)]
        if rows:
            cites = [clocks.one(row).value("last") for row in rows]
            skew = round(max(abs(float(lower[row] + upper[row])) / 2 for row in rows))
            yield sentence(nodes=derived(_nodes(clocks, rows), *cites), skew=derived(skew, *cites, unit="s"))


def _between(memory: Grid, limits: Limits) -> Iterator[Claim]:
    """Nodes on which memory is allocated and released later, or sooner, than on all others."""
    names = [node for (node,) in memory.labels("node")]
    edges: dict[str, tuple[int, int]] = {}
    for node in dict.fromkeys(names):
        values = memory.values[[row for row, name in enumerate(names) if name == node]]
        if (span := _edges(values, limits)) is not None:
            edges[node] = span
    if len(edges) < limits.min_nodes:
        return
    middle = np.median(np.array(list(edges.values())), axis=0)
    min_windows = max(limits.max_spread_s / memory.step, limits.max_spread_windows)
    for node, (first_window, last_window) in edges.items():
        start, end = first_window - float(middle[0]), last_window - float(middle[1])
        if min(abs(start), abs(end)) > min_windows and start * end > 0 and abs(start - end) <= 1:
            node_memory = memory.where(node=node) if node else memory
            skew = derived(round(abs(start + end) / 2 * memory.step), node_memory.value("max"), unit="s")
            sentence = SAMPLES_LATE if start > 0 else SAMPLES_EARLY
            yield sentence(nodes=derived((node or "a node",), node_memory.value("max")), skew=skew)


def _edges(values: NDArray[np.float64], limits: Limits) -> tuple[int, int] | None:
    """The first and last window with a node's memory in use, if it was free before and after."""
    used = np.nanmax(np.where(np.isnan(values), -np.inf, values), axis=0)
    occupied = np.flatnonzero(used > limits.in_use_share * used.max(initial=0.0))
    if not len(occupied) or used.max(initial=0.0) <= 0:
        return None
    first, last = int(occupied[0]), int(occupied[-1])
    inside = first > 0 and last + 1 < len(used) and np.isfinite(used[first - 1]) and np.isfinite(used[last + 1])
    return (first, last) if inside else None
