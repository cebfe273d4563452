"""Whose clock is off: nodes whose metrics tell their own time, and nodes on which the job comes and goes later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from trackside.evidence import Grid, Store, derived
from trackside.finding import Claim
from trackside.model import Run
from trackside.query import metric

SAYS: dict[str, str] = {
    "clock_ahead": "the clock of {nodes} is {skew} ahead of that of the metrics: times in its own logs are as much off",
    "clock_behind": "the clock of {nodes} is {skew} behind that of the metrics: times in its own logs are as much off",
    "samples_late": "the job comes and goes {skew} later on {nodes} than elsewhere: its samples bear a clock ahead",
    "samples_early": "the job comes and goes {skew} sooner on {nodes} than elsewhere: its samples bear a clock behind",
}

SKEW_S = 10.0
"""Clocks that NTP keeps agree to a fraction of a second; order among nodes is told no finer than a scrape, 15 s."""
APART_S = 60.0
"""Ranks of one job start and end within this of each other: launchers wait for all, Slurm's KillWait is 30 s."""
APART_STEPS = 3
NODES = 3
"""Of two nodes that differ nobody can say which is off."""
TAKEN_SHARE = 0.5
"""GPU memory is taken where more than this share of its most is: the job came and went."""


def told(store: Store, run: Run) -> Iterator[Claim]:
    """What is off, and by how much; nothing is corrected."""
    clocks = _grid(store, "host_time_seconds", "tail", "last")
    if clocks is not None:
        yield from _own(clocks, run.metric_offset_s)
    memory = _grid(store, "gpu_memory_used_bytes", "around", "max")
    if memory is not None:
        yield from _between(memory)


def _grid(store: Store, name: str, span: str, how: str) -> Grid | None:
    answer = store.ask(metric(name).over(span, how))  # type: ignore[arg-type]
    return answer if isinstance(answer, Grid) else None


def nodes_of(grid: Grid, rows: Iterable[int]) -> tuple[str, ...]:
    """The nodes of these series, each once."""
    return tuple(dict.fromkeys(grid.series[row].get("node") or "a node" for row in rows))


def _own(clocks: Grid, offset: float) -> Iterator[Claim]:
    """Nodes whose own clock differs from the one that stamps the samples."""
    gap = clocks.values - (clocks.times - offset)[None, :]
    # A sample lies up to a window before its window's end: the truth is between the largest and the least gap + step.
    least = np.nanmax(np.where(np.isnan(gap), -np.inf, gap), axis=1, initial=-np.inf)
    most = np.nanmin(np.where(np.isnan(gap), np.inf, gap), axis=1, initial=np.inf) + clocks.step
    for key, off in (("clock_ahead", least > SKEW_S), ("clock_behind", most < -SKEW_S)):
        rows = [int(row) for row in np.flatnonzero(off)]
        if rows:
            cites = [clocks.one(row).value("last") for row in rows]
            skew = round(max(abs(float(least[row] + most[row])) / 2 for row in rows))
            yield Claim(
                key, {"nodes": derived(nodes_of(clocks, rows), *cites), "skew": derived(skew, *cites, unit="s")}
            )


def _between(memory: Grid) -> Iterator[Claim]:
    """Nodes on which memory is taken and given back as much later, or sooner, as on none of the others."""
    names = [node for (node,) in memory.labels("node")]
    edges = {
        node: found
        for node in dict.fromkeys(names)
        if (found := _edges(memory.values[[row for row, name in enumerate(names) if name == node]])) is not None
    }
    if len(edges) < NODES:
        return
    middle = np.median(np.array(list(edges.values())), axis=0)
    least = max(APART_S / memory.step, APART_STEPS)
    for node, (came, went) in edges.items():
        start, end = came - float(middle[0]), went - float(middle[1])
        if min(abs(start), abs(end)) > least and start * end > 0 and abs(start - end) <= 1:
            whole = memory.where(node=node) if node else memory
            skew = derived(round(abs(start + end) / 2 * memory.step), whole.value("max"), unit="s")
            yield Claim("samples_late" if start > 0 else "samples_early",
                        {"nodes": derived((node or "a node",), whole.value("max")), "skew": skew})  # fmt: skip


def _edges(values: NDArray[np.float64]) -> tuple[int, int] | None:
    """The first and last window in which a node's memory was taken, where it was free before and after."""
    held = np.nanmax(np.where(np.isnan(values), -np.inf, values), axis=0)
    taken = np.flatnonzero(held > TAKEN_SHARE * held.max(initial=0.0))
    if not len(taken) or held.max(initial=0.0) <= 0:
        return None
    first, last = int(taken[0]), int(taken[-1])
    inside = first > 0 and last + 1 < len(held) and np.isfinite(held[first - 1]) and np.isfinite(held[last + 1])
    return (first, last) if inside else None
