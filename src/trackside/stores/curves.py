"""Metric questions answered from any place that holds curves: the part that all engines share.

An engine holds curves and rolls them up (:class:`Curves`); which of them are one run's, what window a span means, and
what a rollup over counters or a group is, is worked out here, so that every engine gives the same answer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.metrics import DESCRIPTIVE, METRICS
from trackside.catalog.natural import Key, natural
from trackside.evidence import NOT_GIVEN, UNABLE, Grid, MissingAnswer
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Scalar, Series
from trackside.query import MOST_ASKED, Query, Span
from trackside.stores.arithmetic import grouped, increase, onset

Engine = Literal["avg", "min", "max", "sum", "count", "last"]
"""Rollups that an engine must know; the others are made from ``last`` here."""
Groups = tuple[tuple[int, ...], ...]
"""Curves, each as the ids of the series that make it."""
STEPS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MOST_WINDOWS = 1500
"""Windows that a whole run is shown in: as fine as a screen, cheap to hold for thousands of GPUs."""
WIDE_CELLS, FEWEST_WINDOWS = 200_000, 240
"""Windows times GPUs that a whole run is shown in, where it has hundreds of GPUs, but never fewer windows than this: a
day of 512 GPUs is seen every five minutes. So what a question takes grows no faster than the run."""
EDGE_S = 1800.0
"""Length of head and tail."""
MOST_CELLS = 20_000_000
"""Windows times series, of a question that asks for more windows than a run is shown in: 160 MB."""
AROUND_S = 600.0
"""What ``around`` adds on either side."""


@dataclass(frozen=True, slots=True)
class Held:
    """One series that an engine holds, under the engine's own ``id``."""

    id: int
    series: Series
    first_ms: int
    last_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """One rollup: windows ``(t - step, t]`` for t = start + step ... end, of each group of series taken as one curve.

    ``start_ms`` and ``end_ms`` are multiples of ``step_ms``. ``last`` is the latest in the window; samples at the same
    time: the largest.
    """

    groups: Sequence[Sequence[int]]
    start_ms: int
    end_ms: int
    step_ms: int
    how: Engine

    @property
    def width(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms


RolledUp = tuple[NDArray[np.float64], int] | SourceUnavailable
"""(groups, windows) with NaN where nothing was sampled, and how many samples were used; or why it could not be had."""


class Curves(ABC):
    """Where samples are kept."""

    name: str
    """Which place."""

    @property
    def failed(self) -> Mapping[str, SourceUnavailable]:
        """Metric -> why it can't be looked at, or not wholly: a server doesn't answer, a unit isn't known yet."""
        return {}

    @abstractmethod
    def held(self) -> Sequence[Held]:
        """All series."""

    @abstractmethod
    def rollups(self, wanted: Sequence[Wanted]) -> Sequence[RolledUp]:
        """The answers, in the order of asking."""

    def rollup(
        self, groups: Sequence[Sequence[int]], start_ms: int, end_ms: int, step_ms: int, how: Engine
    ) -> tuple[NDArray[np.float64], int]:
        """The answer to one. Raises SourceUnavailable."""
        [rolled] = self.rollups([Wanted(groups, start_ms, end_ms, step_ms, how)])
        if isinstance(rolled, SourceUnavailable):
            raise rolled
        return rolled

    def expect(self, wanted: Sequence[Wanted]) -> None:  # noqa: B027  an engine may leave it
        """These will be asked, some now and some later: what is read for one may serve the others."""


class Sampled(Curves):
    """Curves whose samples can be had one by one."""

    @abstractmethod
    def samples(
        self, held: Sequence[Held], start_ms: int, end_ms: int
    ) -> Iterable[tuple[Held, NDArray[np.int64], NDArray[np.float64]]]:
        """Times and values of some series in ``(start, end]``, in pieces, those of one series in order of time. Raises
        SourceUnavailable."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The run's window, and how far apart its samples usually are; seconds.

    ``shift`` is added to the curves' times so that they stand on the run's clock: a whole number of milliseconds.
    ``windows``: the most that the whole run is shown in, the same for all metrics so that they can be laid together.
    ``until``: of a run that goes on, when the last sample came: windows that it does not fill are left for later, so
    that what was found in one is found there again.
    """

    start: float
    end: float
    interval: float
    shift: float = 0.0
    windows: int = MOST_WINDOWS
    until: float = math.inf

    def step_of(self, length: float, fine: bool = False) -> float:
        """Seconds a window, of so many of the run."""
        return step_of(length, self.interval, fine, self.shift, self.windows)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run: its curves among all that an engine holds, and its window.

    ``note`` says why none of them is the run's, where that is so.
    """

    curves: Curves
    kept: tuple[Held, ...]
    """With their labels as they stand for this run: node and rank completed."""
    timing: Timing | None
    note: str = ""
    by_metric: Mapping[str, Sequence[Held]] = field(init=False, repr=False)
    failed: Mapping[str, SourceUnavailable] = field(init=False, repr=False)
    """Metrics that can't be looked at, or not wholly, and why."""
    _known: dict[tuple[str, tuple[tuple[str, Scalar], ...]], tuple[Groups, tuple[Series, ...]]] = field(
        init=False, repr=False, default_factory=dict
    )
    """Curves and what they are called, by metric and filters: most are asked more than once."""

    def __post_init__(self) -> None:
        found: dict[str, list[Held]] = {}
        for each in self.kept:
            found.setdefault(each.series.metric, []).append(each)
        object.__setattr__(self, "by_metric", found)
        object.__setattr__(self, "failed", self.curves.failed)

    def ask(self, query: Query, store: str) -> Grid | MissingAnswer:
        """Answer a metric query, its reducer left aside."""
        return self.ask_many([query], store)[0]

    def ask_many(self, queries: Sequence[Query], store: str) -> list[Grid | MissingAnswer]:
        """Answer several, which an engine may roll up in one pass."""
        plans = [self._plan(query) for query in queries]
        rolled = iter(self.curves.rollups([plan.wanted for plan in plans if isinstance(plan, _Plan)]))
        return [plan if isinstance(plan, MissingAnswer) else plan.answer(next(rolled), store) for plan in plans]

    def expect(self, queries: Iterable[Query]) -> None:
        plans = (self._plan(query) for query in queries)
        self.curves.expect([plan.wanted for plan in plans if isinstance(plan, _Plan)])

    def _plan(self, query: Query) -> _Plan | MissingAnswer:
        if (failed := self.failed.get(query.kind)) is not None:
            return MissingAnswer(f"{UNABLE}{failed}", query, source=self.curves.name)
        key = query.kind, query.filters
        if key not in self._known:
            self._known[key] = _curves_of(self.by_metric.get(query.kind, ()), query)
        groups, series = self._known[key]
        if not groups or self.timing is None:
            return MissingAnswer(self._why_none(query), query)
        planned = _planned(query, self.timing)
        start_ms, end_ms, step_ms = _bounds(planned, self.timing)
        before = _before(query, start_ms, step_ms, self.timing)
        shift_ms = round(self.timing.shift * 1000)
        windows = (end_ms - start_ms) // step_ms + before
        if windows > MOST_ASKED or (windows > 2 * MOST_WINDOWS and windows * len(groups) > MOST_CELLS):
            return MissingAnswer(f"{windows:,} windows of {step_ms / 1000:g} s of {len(groups):,} series are more "
                           "than can be held", query)  # fmt: skip
        if shift_ms % step_ms:
            return MissingAnswer(f"a step of {step_ms / 1000:g} s doesn't divide the {self.timing.shift:g} s by which "
                           "the metrics' clock was moved", query)  # fmt: skip
        return _Plan(self.curves.name, query, planned, groups, series, start_ms, end_ms, step_ms, shift_ms, before)

    def _why_none(self, query: Query) -> str:
        if self.note:
            return self.note
        return _not_measured(query) if self.curves.held() or self.failed else NOT_GIVEN


def _not_measured(query: Query) -> str:
    metric = METRICS[query.kind]
    labels = ", ".join(f"{name} {value}" for name, value in query.filters)
    text = f"{query.kind} was not measured" + (f" for {labels}" if labels else "")
    return f"{text}; {metric.collect}" if metric.collect else text


def _curves_of(kept: Sequence[Held], query: Query) -> tuple[Groups, tuple[Series, ...]]:
    """The series that pass the filters, those of one identity together, in the order of their labels."""
    found: dict[tuple[tuple[str, str], ...], list[Held]] = {}
    for each in kept:
        if all(each.series.get(name) == str(value) for name, value in query.filters):
            found.setdefault(identifying(each.series.labels), []).append(each)
    groups = [found[key] for key in sorted(found, key=_in_order)]
    return tuple(tuple(each.id for each in group) for group in groups), tuple(map(_identity, groups))


@lru_cache(maxsize=1 << 16)  # all metrics of a GPU have the same
def identifying(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Those labels that tell a curve from others of its metric."""
    return tuple(pair for pair in labels if pair[0] not in DESCRIPTIVE)


@lru_cache(maxsize=1 << 16)
def _in_order(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Key], ...]:
    return tuple((name, natural(value)) for name, value in labels)


def _identity(group: Sequence[Held]) -> Series:
    """The labels on which all series of one curve agree, and the place of the first."""
    first = group[0].series
    return (
        first
        if len(group) == 1
        else Series(first.metric, _common(tuple(each.series.labels for each in group)), first.at)
    )


@lru_cache(maxsize=1 << 16)
def _common(labels: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[tuple[str, str], ...]:
    kept = set(labels[0]).intersection(*labels[1:])
    return tuple(pair for pair in labels[0] if pair in kept)


def _planned(query: Query, timing: Timing) -> Query:
    """The query with its span said in numbers."""
    span, how = query.span, query.rollup_how
    if span is None or how is None:
        return query
    start, end = window_of(span, timing)
    step = timing.step_of(end - start, fine=span == "tail")
    start, end = math.floor(start / step) * step, math.ceil(end / step) * step
    if end > timing.until:
        end = math.floor(timing.until / step) * step
    end = max(end, start + step)
    return Query(query.subject, query.kind, query.filters, step, how, query.group, query.group_how, window=(start, end))


def window_of(span: Span, timing: Timing) -> tuple[float, float]:
    """Start and end of a span, seconds."""
    start, end = timing.start, timing.end
    match span:
        case "tail":
            return max(start, end - EDGE_S), end
        case "around":
            return start - AROUND_S, end + AROUND_S
    return start, end


def most_windows(gpus: int) -> int:
    """How many windows a run of so many GPUs is shown in at most."""
    return max(FEWEST_WINDOWS, min(MOST_WINDOWS, WIDE_CELLS // max(1, gpus)))


def step_of(
    length: float, interval: float, fine: bool = False, divides: float = 0.0, most: int = MOST_WINDOWS
) -> float:
    """Seconds a window: room for two samples (one where it is to be fine), and no more windows than are of use.

    ``divides``: the shift of the clock, which must be a whole number of windows. The interval is a mean, which a gap or
    two lengthen: windows of nearly two samples do as well.
    """
    least = max(interval * (0.999 if fine else 1.7), 0.999 * length / most)
    steps = [step for step in STEPS_S if divides % step == 0]
    return float(next((step for step in steps if step >= least), steps[-1]))


def _bounds(query: Query, timing: Timing) -> tuple[int, int, int]:
    """Start, end and step in milliseconds, the first two multiples of the third.

    Of a window that the query names, those that end in it; of the run, all that reach into it, and at least one.
    """
    step = query.step or timing.step_of(timing.end - timing.start)
    step_ms = max(1, round(step * 1000))
    if query.window is not None:
        first, last = (round(time * 1000) // step_ms * step_ms for time in query.window)
        return first, max(first, last), step_ms
    start_ms = math.floor(timing.start * 1000 / step_ms) * step_ms
    return start_ms, max(math.ceil(timing.end * 1000 / step_ms) * step_ms, start_ms + step_ms), step_ms


def _before(query: Query, start_ms: int, step_ms: int, timing: Timing) -> int:
    """Windows more, for what is made from differences: a base from before, were it sampled seldom.

    They begin at the same time for any part of the run, so that a part grows by what it did in the whole.
    """
    if query.rollup_how not in ("increase", "onset"):
        return 0
    around_ms = round(AROUND_S * 1000)
    base_ms = min(start_ms, round(timing.start * 1000) - around_ms) - around_ms
    return max(1, math.ceil((start_ms - base_ms) / step_ms))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A query that has curves to answer it, and its windows on the run's clock. ``source``: where the curves are."""

    source: str
    query: Query
    planned: Query
    groups: Groups
    series: tuple[Series, ...]
    start_ms: int
    end_ms: int
    step_ms: int
    shift_ms: int
    before: int

    @property
    def wanted(self) -> Wanted:
        start_ms = self.start_ms - self.shift_ms - self.before * self.step_ms
        how = self.query.rollup_how or "avg"
        engine: Engine = "last" if how == "increase" or how == "onset" else how
        return Wanted(self.groups, start_ms, self.end_ms - self.shift_ms, self.step_ms, engine)

    def answer(self, rolled: RolledUp, store: str) -> Grid | MissingAnswer:
        """The grid of what the engine rolled up."""
        if isinstance(rolled, SourceUnavailable):
            return MissingAnswer(f"{UNABLE}{rolled}", self.query, source=self.source)
        values, samples = rolled
        if not samples and self.start_ms < self.end_ms:
            return MissingAnswer(f"{self.query.kind} was not sampled while the run was there", self.query)
        if self.before:
            values = (increase if self.query.rollup_how == "increase" else onset)(values)[:, self.before :]
        times = np.arange(self.start_ms + self.step_ms, self.end_ms + 1, self.step_ms, dtype=np.float64) / 1000
        grid = Grid(self.planned, store, self.series, times, values, samples, self.step_ms / 1000)
        return grid if self.query.group_how is None else grouped(grid)
