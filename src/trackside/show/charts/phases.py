"""What charts need of a verdict: the run's window and phases, the GPUs at fault, the onset of the primary finding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from trackside.evidence import Frame, Grid, Missing
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Flags, Matrix, gpus_of
from trackside.facts.gpus import gpus_of_ranks
from trackside.facts.pace.run_phases import RunPhase, RunPhases
from trackside.families import families, find_family
from trackside.family import Family
from trackside.finding import Finding, Outcome, Verdict
from trackside.model import Event, Run, TimeRange
from trackside.query import Query
from trackside.show.sanitize import replace_unsafe
from trackside.wording import moment

MIN_SLOWDOWN, MIN_STEPS = 1.2, 3
"""Minimum ratio of the median step times after and before a moment, of this many steps each, to count as a
slowdown."""
MAX_CULPRIT_LINES = 3
"""Maximum number of culprits that get a line of their own."""
MIN_WINDOWS = 3
"""Minimum windows with samples of a chart over time."""


def run_window(facts: Facts) -> TimeRange | None:
    """The start and end of the run's last attempt; None if fewer than two times are known."""
    run = facts.get(RunPhases)
    return None if isinstance(run, Missing) else run.window


def attempt_shown(run: Run) -> str:
    """Which attempt the samples are of, as the end of a caption; empty if there was only one."""
    if len(run.attempts) < 2 or run.start is None:
        return ""
    return f" Of attempt {run.attempts[-1].number} only, which started at {moment(run.start, run.has_time_zone)}."


def phases(facts: Facts) -> tuple[RunPhase, ...]:
    """The phases of the run; empty if unknown."""
    run = facts.get(RunPhases)
    return () if isinstance(run, Missing) else run.phases


def finding_onset(verdict: Verdict, facts: Facts) -> tuple[float, str] | None:
    """The onset of the primary finding, and its label; None if unknown or without meaning."""
    primary = verdict.primary
    if primary.since is None or primary.outcome is not Outcome.FOUND or primary.role == "health":
        return None
    if often_from_start(primary.family) and not _has_slowed(facts, primary.since):
        return None
    return primary.since, primary.title.partition(":")[0]


def often_from_start(code: str) -> bool:
    """Whether this fault often exists from the start of a run, so that its onset means nothing."""
    family = find_family(code)
    return family is not None and family.often_from_start


def _has_slowed(facts: Facts, since: float) -> bool:
    """Whether steps took clearly longer after ``since`` than before. Otherwise the run was slow from the start, and
    ``since`` is only the start of the analyzed interval."""
    run = facts.get(RunPhases)
    gaps = [] if isinstance(run, Missing) else [(after, after - before) for before, after in pairwise(run.steps)]
    before, later = [gap for end, gap in gaps if end <= since], [gap for end, gap in gaps if end > since]
    return min(len(before), len(later)) >= MIN_STEPS and median(later) >= MIN_SLOWDOWN * median(before)


def culprits(verdict: Verdict, gpus: Sequence[str]) -> tuple[str, ...]:
    """The GPUs of the run that the primary finding names; empty if it names none, or more than half of them."""
    primary = verdict.primary
    named = [gpu for gpu in primary.gpus if gpu in gpus] or [
        gpu for gpu in gpus_of_ranks(verdict.run, primary.ranks) if gpu in gpus
    ]
    if not named:
        named = [gpu for gpu in gpus if gpu.rpartition(":")[0] in primary.nodes]
    named_set = set(named)
    return tuple(gpu for gpu in gpus if gpu in named_set) if 2 * len(named_set) <= len(gpus) else ()


def display_name(gpu: str) -> str:
    """The display name of a GPU: ``node:index``, or ``GPU 2`` if the node is unknown."""
    return replace_unsafe(f"GPU {gpu[1:]}" if gpu.startswith(":") else gpu)


def split_culprits(verdict: Verdict, grid: Grid) -> tuple[dict[str, Matrix], Matrix]:
    """The values of each culprit by GPU, if there are few; and those of all other GPUs, (series, windows)."""
    gpus = gpus_of(grid, verdict.run)
    named = culprits(verdict, gpus)
    if not named or len(named) > MAX_CULPRIT_LINES:
        return {}, grid.values
    others = [index for index, gpu in enumerate(gpus) if gpu not in named]
    return {gpu: grid.values[gpus.index(gpu)] for gpu in named}, grid.values[others]


def finding(verdict: Verdict, predicate: Callable[[Family], bool]) -> Finding | None:
    """The first finding of a family that satisfies ``predicate``: primary, consequence or warning."""
    codes = {family.code for family in families() if predicate(family)}
    findings = (verdict.primary, *verdict.consequences, *verdict.warnings)
    return next(
        (candidate for candidate in findings if candidate.family in codes and candidate.outcome is Outcome.FOUND), None
    )


def samples_of(facts: Facts, query: Query) -> Grid | None:
    """The samples of a metric; None if there are none."""
    answer = facts.answer(query)
    return answer if isinstance(answer, Grid) and len(answer.times) else None


def plottable_samples(facts: Facts, query: Query) -> Grid | None:
    """The samples of a metric; None if they are too few to draw over time."""
    grid = samples_of(facts, query)
    return grid if grid is not None and np.count_nonzero(~np.isnan(grid.values).all(axis=0)) >= MIN_WINDOWS else None


def events_of(facts: Facts, query: Query) -> tuple[Event, ...]:
    """The events that a query returns; empty if unavailable."""
    answer = facts.answer(query)
    return answer.events if isinstance(answer, Frame) else ()


def over_window(grid: Grid, window: TimeRange) -> Flags:
    """(T,) Which windows of a grid overlap a time span."""
    flags: Flags = (grid.times > window[0]) & (grid.times - grid.step < window[1])
    return flags
