"""Answers metric queries on any backend that holds series: the part that all backends share.

A backend holds series and rolls them up (:class:`MetricBackend`). This module decides which series belong to one run,
which window a span means, and how rollups over counters and groups are computed, so that every backend gives the same
answer.
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

from trackside.catalog.metrics import DESCRIPTIVE_LABELS, METRICS
from trackside.catalog.natural import NaturalKey, natural_key
from trackside.evidence import NO_METRIC_INPUT, UNABLE_TO_CHECK, Grid, MissingAnswer
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Scalar, Series, TimeRange
from trackside.query import MAX_QUERY_WINDOWS, Query, Span
from trackside.stores.arithmetic import combine_groups, increase, onset

EngineRollup = Literal["avg", "min", "max", "sum", "count", "last"]
"""Rollups that every backend implements; the others are derived from ``last`` in this module."""
Groups = tuple[tuple[int, ...], ...]
"""Logical series, each as the ids of the stored series that form it."""
STEPS_S = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MAX_WINDOWS = 1500
"""Maximum number of windows that a whole run is shown in: as fine as a screen, and cheap to hold for thousands of
GPUs."""
WIDE_CELLS, MIN_WINDOWS = 200_000, 240
"""Windows times GPUs that a whole run of hundreds of GPUs is shown in, and the fewest windows it may get: a day of 512
GPUs is resolved to five minutes. So the cost of a query does not grow faster than the run."""
TAIL_S = 1800.0
"""Length of the span ``tail``."""
MAX_CELLS = 20_000_000
"""Windows times series that a query may have if it has more windows than a run is shown in: 160 MB."""
AROUND_S = 600.0
"""Seconds that ``around`` adds on each side."""


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """One series that a backend holds, under the backend's own ``id``."""

    id: int
    series: Series
    first_ms: int
    last_ms: int
    count: int


@dataclass(frozen=True, slots=True)
class RollupRequest:
    """One rollup: windows ``(t - step, t]`` for t = start + step ... end, of each group of series treated as one.

    ``start_ms`` and ``end_ms`` are multiples of ``step_ms``. ``last`` is the latest sample of a window; of samples at
    the same time, the largest.
    """

    groups: Sequence[Sequence[int]]
    start_ms: int
    end_ms: int
    step_ms: int
    rollup: EngineRollup

    @property
    def width(self) -> int:
        return (self.end_ms - self.start_ms) // self.step_ms


RollupResult = tuple[NDArray[np.float64], int] | SourceUnavailable
"""Values of shape (groups, windows), NaN where nothing was sampled, and the number of samples used; or why they are
unavailable."""


class MetricBackend(ABC):
    """Holds series and rolls them up."""

    name: str
    """How messages call this backend."""

    @property
    def unavailable(self) -> Mapping[str, SourceUnavailable]:
        """Metric -> why it is unavailable or incomplete: a server does not answer, or a unit is not known yet."""
        return {}

    @abstractmethod
    def series(self) -> Sequence[SeriesInfo]:
        """All series."""

    @abstractmethod
    def rollups(self, requests: Sequence[RollupRequest]) -> Sequence[RollupResult]:
        """The answers, in the order of ``requests``."""

    def rollup(
        self, groups: Sequence[Sequence[int]], start_ms: int, end_ms: int, step_ms: int, rollup: EngineRollup
    ) -> tuple[NDArray[np.float64], int]:
        """The answer to one request. Raises SourceUnavailable."""
        [result] = self.rollups([RollupRequest(groups, start_ms, end_ms, step_ms, rollup)])
        if isinstance(result, SourceUnavailable):
            raise result
        return result

    def resolution_ms(self, first_ms: int, last_ms: int) -> int:
        """The length of the aggregates that are left of samples between two times; 0: all samples are there."""
        return 0

    def expect(self, requests: Sequence[RollupRequest]) -> None:
        """Announce requests that will follow, so that one read can serve several of them."""


class SampleBackend(MetricBackend):
    """A backend whose single samples can be read."""

    @abstractmethod
    def samples(
        self, series: Sequence[SeriesInfo], start_ms: int, end_ms: int
    ) -> Iterable[tuple[SeriesInfo, NDArray[np.int64], NDArray[np.float64]]]:
        """Yield times and values of some series in ``(start, end]``, in pieces; those of one series are in time order.
        Raises SourceUnavailable."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The run's window and the usual interval between its samples, in seconds.

    ``shift`` is added to the times of the series to bring them to the run's clock: a whole number of milliseconds.
    ``windows``: the most windows that the whole run is shown in, the same for all metrics so that they line up.
    ``resolution``: length of the aggregates that are left of old samples; 0: all samples are there.
    ``until``: for a run that has not ended, the time of its last sample. Windows that it does not fill are left out,
    so that a later verdict finds the same values in the windows already shown.
    """

    start: float
    end: float
    interval: float
    shift: float = 0.0
    windows: int = MAX_WINDOWS
    until: float = math.inf
    resolution: float = 0.0

    def step_of(self, length: float, fine: bool = False) -> float:
        """Seconds per window for ``length`` seconds of the run."""
        return step_of(length, self.interval, fine, self.shift, self.windows, self.resolution)


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run: its series among all that a backend holds, and its window.

    ``note`` says why none of the backend's series belongs to the run.
    """

    backend: MetricBackend
    series: tuple[SeriesInfo, ...]
    """With the labels that hold for this run: node and rank completed."""
    timing: Timing | None
    note: str = ""
    by_metric: Mapping[str, Sequence[SeriesInfo]] = field(init=False, repr=False)
    unavailable: Mapping[str, SourceUnavailable] = field(init=False, repr=False)
    """Metric -> why it is unavailable or incomplete."""
    _groups: dict[tuple[str, tuple[tuple[str, Scalar], ...]], tuple[Groups, tuple[Series, ...]]] = field(
        init=False, repr=False, default_factory=dict
    )
    """Groups and their labels, by metric and filters: most are needed more than once."""

    def __post_init__(self) -> None:
        by_metric: dict[str, list[SeriesInfo]] = {}
        for info in self.series:
            by_metric.setdefault(info.series.metric, []).append(info)
        object.__setattr__(self, "by_metric", by_metric)
        object.__setattr__(self, "unavailable", self.backend.unavailable)

    def ask(self, query: Query, store: str) -> Grid | MissingAnswer:
        """Answer a metric query without its reducer."""
        return self.ask_many([query], store)[0]

    def ask_many(self, queries: Sequence[Query], store: str) -> list[Grid | MissingAnswer]:
        """Answer several queries, which a backend may roll up in one pass."""
        plans = [self._plan(query) for query in queries]
        results = iter(self.backend.rollups([plan.request for plan in plans if isinstance(plan, _Plan)]))
        return [plan if isinstance(plan, MissingAnswer) else plan.answer(next(results), store) for plan in plans]

    def expect(self, queries: Iterable[Query]) -> None:
        plans = (self._plan(query) for query in queries)
        self.backend.expect([plan.request for plan in plans if isinstance(plan, _Plan)])

    def _plan(self, query: Query) -> _Plan | MissingAnswer:
        if (reason := self.unavailable.get(query.kind)) is not None:
            return MissingAnswer(f"{UNABLE_TO_CHECK}{reason}", query, source=self.backend.name)
        key = query.kind, query.filters
        if key not in self._groups:
            self._groups[key] = _group_series(self.by_metric.get(query.kind, ()), query)
        groups, series = self._groups[key]
        if not groups or self.timing is None:
            return MissingAnswer(self._no_answer_reason(query), query)
        planned = _with_window(query, self.timing)
        start_ms, end_ms, step_ms = _bounds(planned, self.timing)
        lead_windows = _lead_windows(query, start_ms, step_ms, self.timing)
        shift_ms = round(self.timing.shift * 1000)
        windows = (end_ms - start_ms) // step_ms + lead_windows
        if windows > MAX_QUERY_WINDOWS or (windows > 2 * MAX_WINDOWS and windows * len(groups) > MAX_CELLS):
            return MissingAnswer(f"{windows:,} windows of {step_ms / 1000:g} s of {len(groups):,} series are more "
                           "than the limit", query)  # fmt: skip
        if shift_ms % step_ms:
            return MissingAnswer(f"a step of {step_ms / 1000:g} s doesn't divide the {self.timing.shift:g} s by which "
                           "the metrics' clock was moved", query)  # fmt: skip
        return _Plan(
            self.backend.name, query, planned, groups, series, start_ms, end_ms, step_ms, shift_ms, lead_windows
        )

    def _no_answer_reason(self, query: Query) -> str:
        if self.note:
            return self.note
        return _not_measured(query) if self.backend.series() or self.unavailable else NO_METRIC_INPUT


def _not_measured(query: Query) -> str:
    metric = METRICS[query.kind]
    labels = ", ".join(f"{name} {value}" for name, value in query.filters)
    text = f"{query.kind} was not measured" + (f" for {labels}" if labels else "")
    return f"{text}; {metric.collect}" if metric.collect else text


def _group_series(infos: Sequence[SeriesInfo], query: Query) -> tuple[Groups, tuple[Series, ...]]:
    """The series that pass the query's filters, grouped by identity, in the order of their labels."""
    by_identity: dict[tuple[tuple[str, str], ...], list[SeriesInfo]] = {}
    for info in infos:
        if all(info.series.get(name) == str(value) for name, value in query.filters):
            by_identity.setdefault(identifying_labels(info.series.labels), []).append(info)
    groups = [by_identity[key] for key in sorted(by_identity, key=_in_order)]
    return tuple(tuple(info.id for info in group) for group in groups), tuple(map(_identity, groups))


@lru_cache(maxsize=1 << 16)  # all metrics of a GPU share these
def identifying_labels(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """The labels that identify a series among those of its metric."""
    return tuple(pair for pair in labels if pair[0] not in DESCRIPTIVE_LABELS)


@lru_cache(maxsize=1 << 16)
def _in_order(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, NaturalKey], ...]:
    return tuple((name, natural_key(value)) for name, value in labels)


def _identity(group: Sequence[SeriesInfo]) -> Series:
    """The labels that all series of one group share, and the position of the first."""
    first = group[0].series
    return (
        first
        if len(group) == 1
        else Series(first.metric, _common(tuple(info.series.labels for info in group)), first.at)
    )


@lru_cache(maxsize=1 << 16)
def _common(labels: tuple[tuple[tuple[str, str], ...], ...]) -> tuple[tuple[str, str], ...]:
    common = set(labels[0]).intersection(*labels[1:])
    return tuple(pair for pair in labels[0] if pair in common)


def _with_window(query: Query, timing: Timing) -> Query:
    """The query with its span as numbers."""
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


def window_of(span: Span, timing: Timing) -> TimeRange:
    """Start and end of a span, in seconds."""
    start, end = timing.start, timing.end
    match span:
        case "tail":
            return max(start, end - TAIL_S), end
        case "around":
            return start - AROUND_S, end + AROUND_S
    return start, end


def max_windows(gpus: int) -> int:
    """The most windows that a run with so many GPUs is shown in."""
    return max(MIN_WINDOWS, min(MAX_WINDOWS, WIDE_CELLS // max(1, gpus)))


def step_of(
    length: float,
    interval: float,
    fine: bool = False,
    clock_shift: float = 0.0,
    max_windows: int = MAX_WINDOWS,
    resolution: float = 0.0,
) -> float:
    """Seconds per window: enough for two samples (for one, if ``fine``) and for an aggregate, and not more windows than
    are useful.

    ``clock_shift``: the shift of the clock, which must be a whole number of windows. The interval is a mean, which gaps
    lengthen, so windows of slightly less than two samples are accepted.
    """
    min_step = max(interval * (0.999 if fine else 1.7), 0.999 * length / max_windows, resolution)
    steps = [step for step in STEPS_S if clock_shift % step == 0]
    return float(next((step for step in steps if step >= min_step), steps[-1]))


def _bounds(query: Query, timing: Timing) -> tuple[int, int, int]:
    """Start, end and step in milliseconds; start and end are multiples of the step.

    For a window that the query names: the windows that end in it. For the run: all windows that overlap it, at least
    one.
    """
    step = query.step or timing.step_of(timing.end - timing.start)
    step_ms = max(1, round(step * 1000))
    if query.window is not None:
        first, last = (round(time * 1000) // step_ms * step_ms for time in query.window)
        return first, max(first, last), step_ms
    start_ms = math.floor(timing.start * 1000 / step_ms) * step_ms
    return start_ms, max(math.ceil(timing.end * 1000 / step_ms) * step_ms, start_ms + step_ms), step_ms


def _lead_windows(query: Query, start_ms: int, step_ms: int, timing: Timing) -> int:
    """Extra windows before the start, for rollups made from differences: they find the previous value even if it is
    sampled rarely.

    They begin at the same time for any part of the run, so that the growth of a part is the same as in the whole run.
    """
    if query.rollup_how not in ("increase", "onset"):
        return 0
    around_ms = round(AROUND_S * 1000)
    base_ms = min(start_ms, round(timing.start * 1000) - around_ms) - around_ms
    return max(1, math.ceil((start_ms - base_ms) / step_ms))


@dataclass(frozen=True, slots=True)
class _Plan:
    """A query that has series to answer it, and its windows on the run's clock. ``source``: the backend's name."""

    source: str
    query: Query
    planned: Query
    groups: Groups
    series: tuple[Series, ...]
    start_ms: int
    end_ms: int
    step_ms: int
    shift_ms: int
    lead_windows: int

    @property
    def request(self) -> RollupRequest:
        start_ms = self.start_ms - self.shift_ms - self.lead_windows * self.step_ms
        rollup = self.query.rollup_how or "avg"
        engine_rollup: EngineRollup = "last" if rollup == "increase" or rollup == "onset" else rollup
        return RollupRequest(self.groups, start_ms, self.end_ms - self.shift_ms, self.step_ms, engine_rollup)

    def answer(self, result: RollupResult, store: str) -> Grid | MissingAnswer:
        """The grid for a backend's result."""
        if isinstance(result, SourceUnavailable):
            return MissingAnswer(f"{UNABLE_TO_CHECK}{result}", self.query, source=self.source)
        values, samples = result
        if not samples and self.start_ms < self.end_ms:
            return MissingAnswer(f"{self.query.kind} was not sampled during the run", self.query)
        if self.lead_windows:
            values = (increase if self.query.rollup_how == "increase" else onset)(values)[:, self.lead_windows :]
        times = np.arange(self.start_ms + self.step_ms, self.end_ms + 1, self.step_ms, dtype=np.float64) / 1000
        grid = Grid(self.planned, store, self.series, times, values, samples, self.step_ms / 1000)
        return grid if self.query.group_how is None else combine_groups(grid)
