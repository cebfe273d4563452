"""When was what: the run's window, its phases, whose fault it was, and the moments that a verdict names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from trackside.evidence import Frame, Grid, Missing
from trackside.facts.fact import Facts
from trackside.facts.gpu.activity import Flags, Matrix, gpus_of
from trackside.facts.gpus import of_ranks
from trackside.facts.pace.run_phases import Phase, RunPhases, Span
from trackside.families import families, find_family
from trackside.family import Family
from trackside.finding import Finding, Outcome, Verdict
from trackside.model import Event
from trackside.query import Query
from trackside.show.sanitize import shown

SLOWER, FEWEST_STEPS = 1.2, 3
"""Times as long that the middle step took after a moment as before it, of so many each, so that it became slow then."""
OWN = 3
"""Culprits that have a line of their own beside all others."""


def run_window(facts: Facts) -> Span | None:
    """From the start to the end of the run's last attempt; None where nothing tells two moments."""
    run = facts.get(RunPhases)
    return None if isinstance(run, Missing) else run.window


def phases(facts: Facts) -> tuple[Phase, ...]:
    """What the run did when; none where nothing tells."""
    run = facts.get(RunPhases)
    return () if isinstance(run, Missing) else run.phases


def first_cause(verdict: Verdict, facts: Facts) -> tuple[float, str] | None:
    """When it began, by the primary finding, and what to call that moment."""
    primary = verdict.primary
    if primary.since is None or primary.outcome is not Outcome.FOUND or primary.role == "health":
        return None
    if often_from_start(primary.family) and not _slowed(facts, primary.since):
        return None
    return primary.since, primary.title.partition(":")[0]


def often_from_start(code: str) -> bool:
    """Whether runs may have this fault from their start on, so that its onset is none."""
    family = find_family(code)
    return family is not None and family.often_from_start


def _slowed(facts: Facts, since: float) -> bool:
    """Whether the steps took clearly longer from then on than before: what was slow from the start began at no moment,
    and ``since`` is only where the judged stretch begins."""
    run = facts.get(RunPhases)
    gaps = [] if isinstance(run, Missing) else [(after, after - before) for before, after in pairwise(run.steps)]
    before, later = [gap for at, gap in gaps if at <= since], [gap for at, gap in gaps if at > since]
    return min(len(before), len(later)) >= FEWEST_STEPS and median(later) >= SLOWER * median(before)


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


def apart(verdict: Verdict, grid: Grid) -> tuple[dict[str, Matrix], Matrix]:
    """The curves of the culprits, where they are few, by GPU; and those of all others, (series, windows)."""
    gpus = gpus_of(grid, verdict.run)
    named = culprits(verdict, gpus)
    if not named or len(named) > OWN:
        return {}, grid.values
    others = [place for place, gpu in enumerate(gpus) if gpu not in named]
    return {gpu: grid.values[gpus.index(gpu)] for gpu in named}, grid.values[others]


def finding(verdict: Verdict, wanted: Callable[[Family], bool]) -> Finding | None:
    """What was found of such a family, be it the primary, a consequence or a warning."""
    codes = {family.code for family in families() if wanted(family)}
    findings = (verdict.primary, *verdict.consequences, *verdict.warnings)
    return next((one for one in findings if one.family in codes and one.outcome is Outcome.FOUND), None)


def sampled(facts: Facts, query: Query) -> Grid | None:
    """The curves of a metric; None where nothing was sampled."""
    answer = facts.answer(query)
    return answer if isinstance(answer, Grid) and len(answer.times) else None


def events_of(facts: Facts, query: Query) -> tuple[Event, ...]:
    """The events that a question is about; none where nothing tells."""
    answer = facts.answer(query)
    return answer.events if isinstance(answer, Frame) else ()


def over_window(grid: Grid, window: Span) -> Flags:
    """(T,) Which of a grid's windows reach into a span."""
    flags: Flags = (grid.times > window[0]) & (grid.times - grid.step < window[1])
    return flags
