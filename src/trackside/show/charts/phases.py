"""When was what: the run's window, its phases, whose fault it was, and the moments that a verdict names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np

from trackside.evidence import Evidence, Grid, Store
from trackside.facts.gpu.activity import ACTIVITY, Flags, GpuActivity, Matrix, activity, gpu_of, spells
from trackside.facts.gpus import of_ranks
from trackside.facts.training.learning import training_points
from trackside.facts.training.loss_curve import GAUGES, points_of
from trackside.finding import Finding, Outcome, Verdict
from trackside.model import Event, Run
from trackside.query import Query, events
from trackside.show.charts.time_axis import Span
from trackside.show.inert import shown

ASKS: Mapping[str, Query] = {
    "progress": events("progress"),
    "activity": events("log_activity"),
    **GAUGES,
    **ACTIVITY,
}
"""What tells of phases; a chart that shows them spreads it into its asks."""
PAUSE, PAUSE_SHARE = 10.0, 0.04
"""A gap between two training points is worth showing from so many times the usual one on, and so much of the run."""
SLOWER, FEWEST_STEPS = 1.2, 3
"""Times as long that the middle step took after a moment as before it, of so many each, so that it became slow then."""
SLOW = ("D1", "D2", "D3")
"""Families of runs that are slow, maybe from the start."""
OWN = 3
"""Culprits that have a line of their own beside all others."""
_GPU_SIGNALS = ("sm", "engine", "utilisation", "power")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run, POSIX seconds. ``training``: whether it is what a run is for."""

    name: str
    start: float
    end: float
    training: bool = False


def evidence(store: Store) -> Evidence:
    """The answers to ``ASKS``."""
    return Evidence({name: store.ask(query) for name, query in ASKS.items()})


def run_window(verdict: Verdict, store: Store) -> Span | None:
    """From the start to the end of the run's last attempt, as the scheduler has it, else its logs, else its metrics.

    None where nothing tells two moments.
    """
    run, found = verdict.run, evidence(store)
    told = [
        float(time)
        for row in found["activity"].events
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    told += [row.time for row in found["progress"].events if row.time is not None]
    grids = [grid for name in (*_GPU_SIGNALS, "gauge_loss") if (grid := found.grid(name)) is not None]
    edges = [edge for grid in grids for edge in (float(grid.times[0]) - grid.step, float(grid.times[-1]))]
    start = run.start if run.start is not None else min(told or edges, default=None)
    end = run.end if run.end is not None else max(told or edges, default=None)
    return (start, end) if start is not None and end is not None and end > start else None


def phases(verdict: Verdict, store: Store) -> tuple[Phase, ...]:
    """What the run did when: by its training points, else by the work of its GPUs; none where neither tells."""
    window = run_window(verdict, store)
    if window is None:
        return ()
    found = evidence(store)
    times = _stepped(found, window)
    return tuple(_stepping(times, window) if len(times) > 1 else _working(found, verdict.run, window))


def _stepping(times: Sequence[float], window: Span) -> Iterator[Phase]:
    gaps = [after - before for before, after in pairwise(times)]
    worth = max(PAUSE * median(gaps), PAUSE_SHARE * (window[1] - window[0]))
    if times[0] > window[0]:
        yield Phase("start-up", window[0], times[0])
    begun = times[0]
    for before, after in pairwise(times):
        if after - before > worth:
            if before > begun:
                yield Phase("training", begun, before, True)
            yield Phase("no step", before, after)
            begun = after
    yield Phase("training", begun, times[-1], True)
    if window[1] > times[-1]:
        yield Phase("after the last step", times[-1], window[1])


def _working(found: Evidence, run: Run, window: Span) -> Iterator[Phase]:
    """By stretches that were sampled: where nothing was for long, nothing is said."""
    seen = activity(found, run)
    if seen is None:
        return
    worth = PAUSE_SHARE * (window[1] - window[0])
    work = _joined(_within(seen, seen.active, window), worth)
    name = "GPUs busy" if seen.basis == "utilisation" else "GPUs at work"  # which proves no work
    sampled: Flags = np.logical_or.reduce(seen.known, axis=0)
    for start, end in _joined(_within(seen, sampled, window), max(worth, seen.step)):
        edge = start
        for begun, over in work:
            if over <= edge or begun >= end:
                continue
            if begun > edge:
                yield Phase("no work", edge, begun)
            yield Phase(name, max(begun, edge), min(over, end), True)
            edge = min(over, end)
        if edge < end:
            yield Phase("no work", edge, end)


def _within(seen: GpuActivity, flags: Flags, window: Span) -> list[Span]:
    """The stretches of windows that are set, as far as they lie in the run's."""
    found = [(float(seen.times[start]) - seen.step, float(seen.times[stop - 1])) for start, stop in spells(flags)]
    return [
        (max(start, window[0]), min(end, window[1])) for start, end in found if end > window[0] and start < window[1]
    ]


def _joined(spans: Sequence[Span], apart: float) -> list[Span]:
    """Stretches of which no two are closer than that."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start - joined[-1][1] <= apart:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def shaded(verdict: Verdict, store: Store) -> list[tuple[float, float, str]]:
    """The phases that are no training, as a chart shades them."""
    return [(each.start, each.end, each.name) for each in phases(verdict, store) if not each.training]


def first_cause(verdict: Verdict, store: Store) -> tuple[float, str] | None:
    """When it began, by the primary finding, and what to call that moment."""
    primary = verdict.primary
    if primary.since is None or primary.outcome is not Outcome.FOUND or primary.role == "health":
        return None
    if primary.family in SLOW and not _slowed(verdict, store, primary.since):
        return None
    return primary.since, primary.title.partition(":")[0]


def _slowed(verdict: Verdict, store: Store, since: float) -> bool:
    """Whether the steps took clearly longer from then on than before: what was slow from the start began at no moment,
    and ``since`` is only where the judged stretch begins."""
    window = run_window(verdict, store)
    times = [] if window is None else _stepped(evidence(store), window)
    gaps = [(after, after - before) for before, after in pairwise(times)]
    before, later = [gap for at, gap in gaps if at <= since], [gap for at, gap in gaps if at > since]
    return min(len(before), len(later)) >= FEWEST_STEPS and median(later) >= SLOWER * median(before)


def _stepped(found: Evidence, window: Span) -> list[float]:
    """When the training points of the run's window were."""
    rows = training_points(points_of(found))
    return sorted(row.time for row in rows if row.time is not None and window[0] <= row.time <= window[1])


def culprits(verdict: Verdict, gpus: Sequence[str]) -> tuple[str, ...]:
    """Those of the run's GPUs whose fault it was; none where it was most of them, or nobody's in particular."""
    primary = verdict.primary
    named = [gpu for gpu in primary.gpus if gpu in gpus] or [
        gpu for gpu in of_ranks(verdict.run, primary.ranks) if gpu in gpus
    ]
    if not named:
        named = [gpu for gpu in gpus if gpu.rpartition(":")[0] in primary.nodes]
    kept = set(named)
    return tuple(gpu for gpu in gpus if gpu in kept) if 2 * len(kept) <= len(gpus) else ()


def titled(gpu: str) -> str:
    """A GPU as a person reads it: ``node:index``, and ``GPU 2`` where no node is known."""
    return shown(f"GPU {gpu[1:]}" if gpu.startswith(":") else gpu)


def gpus_of(grid: Grid, run: Run) -> list[str]:
    """The GPU of each curve, as ``node:index``; empty where it isn't known."""
    return [gpu_of(each, run.gpus, run.n_ranks) for each in grid.series]


def apart(verdict: Verdict, grid: Grid) -> tuple[dict[str, Matrix], Matrix]:
    """The curves of the culprits, where they are few, by GPU; and those of all others, (series, windows)."""
    gpus = gpus_of(grid, verdict.run)
    named = culprits(verdict, gpus)
    if not named or len(named) > OWN:
        return {}, grid.values
    others = [place for place, gpu in enumerate(gpus) if gpu not in named]
    return {gpu: grid.values[gpus.index(gpu)] for gpu in named}, grid.values[others]


def finding(verdict: Verdict, *families: str) -> Finding | None:
    """What was found of the first of these families that was found, be it the primary, a consequence or a warning."""
    found = {each.family: each for each in (*verdict.warnings, *verdict.consequences, verdict.primary)}
    named = (found[code] for code in families if code in found)
    return next((each for each in named if each.outcome is Outcome.FOUND), None)


def timed(rows: Sequence[Event], window: Span, slack: float = 0.0) -> list[Event]:
    """Those that happened in the window, or so many seconds beside it, in order of time."""
    inside = [row for row in rows if row.time is not None and window[0] - slack <= row.time <= window[1] + slack]
    return sorted(inside, key=lambda row: row.time or 0.0)


def over_window(grid: Grid, window: Span) -> Flags:
    """(T,) Which of a grid's windows reach into a span."""
    flags: Flags = (grid.times > window[0]) & (grid.times - grid.step < window[1])
    return flags
