"""Ranks that lag, by the times that they print or export for their own work.

A rank's own compute time is the best signal. Wall times of a step differ among ranks only if they exclude the wait for
the others. Times are compared step by step, or window by window, with the median rank. Two ranks have no median.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.catalog.natural import whole_number
from trackside.evidence import Evidence, Frame, Grid, Missing, Value, derived
from trackside.facts.fact import fact, unmet_need
from trackside.facts.gpu.activity import COLLECTIVE_SECONDS, nan_median
from trackside.facts.gpus import gpus_of_ranks
from trackside.facts.pace import outliers
from trackside.facts.training.learning import numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event, Run
from trackside.query import Query, events, metric

RANK_LAGS = Sentence(
    "rank {rank} takes {ratio} times as long to compute a step as the median rank: {own} versus {others}"
)
LAG_LASTS = Sentence("this holds for {count} in a row, of {whole} compared")
RANKS_EVEN = Sentence(
    "{ranks} compute about equally fast: the slowest, rank {rank}, takes {own} versus {others} "
    "(medians), {ratio} times as long"
)
GAUGES_EVEN = Sentence(
    "{count} ranks export similar step times, from {low} to {high} around {middle}, and none lags for long"
)

OWN_TIME_FIELDS = ("compute_time_s", "relative_time", "step_time_s")
"""Durations of a rank's own work, the best first."""


@dataclass(frozen=True)
class Limits(outliers.Limits):
    """Minimum data for a comparison."""

    min_steps: int = 20
    """Minimum number of steps printed by every compared rank: fewer do not show a lasting lag."""
    min_ranks: int = 3
    """With two ranks there is no median."""


@dataclass(frozen=True)
class LaggingRanks:
    """Ranks whose steps take longer than those of the others, and the evidence."""

    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    claims: tuple[Claim, ...]
    since: float | None
    row: Event | None
    share: float
    """Share of the compared time in which they lag."""


@dataclass(frozen=True, eq=False)
class RankLag:
    """The ranks of a run compared with each other; per source the lag, or the claim that the ranks are even."""

    frame: Frame
    """Rank times from the log."""
    gauge: Grid | None
    """Seconds per step exported by ranks."""
    run: Run
    limits: Limits
    missing: Missing | None
    """Why no source distinguishes ranks, including seconds in collectives; None if one does."""

    @cached_property
    def printed(self) -> LaggingRanks | Claim | None:
        """The lag by printed times, if at least three ranks print them."""
        for field in OWN_TIME_FIELDS:
            times = self._by_rank(field)
            steps = sorted(set[float]().union(*times.values()))
            if len(times) >= self.limits.min_ranks and len(steps) >= self.limits.min_steps:
                return self._compare_ranks(field, times, steps)
        return None

    @cached_property
    def exported(self) -> LaggingRanks | Claim | None:
        """The lag by exported step times: they measure a rank's own work if they differ at all."""
        grid, limits = self.gauge, self.limits
        if grid is None or sum(bool(rank) for (rank,) in grid.labels("rank")) < limits.min_ranks:
            return None
        numbered = [
            (row, rank) for row, (name,) in enumerate(grid.labels("rank")) if (rank := whole_number(name)) is not None
        ]
        ranks = [rank for _, rank in numbered]
        slow_rows = outliers.outliers(grid.values[[row for row, _ in numbered]], self._names(ranks), limits)
        if not slow_rows:
            middle, high, low = (grid.value(reducer) for reducer in ("median", "max", "min"))
            return GAUGES_EVEN(count=derived(len(ranks), middle), middle=middle, high=high, low=low)
        first = slow_rows[0]
        start, end = float(grid.times[first.start]) - grid.step, float(grid.times[first.stop - 1])
        part = grid.during(start, end)
        own_time, typical_time = part.where(rank=str(ranks[first.row])).value("median"), part.value("median")
        ratio = derived(round(first.ratio, 2), own_time, typical_time)
        claim = RANK_LAGS(rank=derived(ranks[first.row], own_time), own=own_time, others=typical_time, ratio=ratio)
        slow = tuple(sorted(ranks[outlier.row] for outlier in slow_rows))
        share = (first.stop - first.start) / len(grid.times)
        return LaggingRanks(slow, gpus_of_ranks(self.run, slow), (claim,), start + grid.step, None, share)

    def _names(self, ranks: Sequence[int]) -> list[str]:
        """The GPU of each rank, else its number as that of a GPU without a node."""
        return [(gpus_of_ranks(self.run, (rank,)) or (f":{rank}",))[0] for rank in ranks]

    def _by_rank(self, field: str) -> dict[int, dict[float, Event]]:
        """rank -> step -> the point that prints its time; ranks with too few are dropped."""
        times: dict[int, dict[float, Event]] = {}
        for row in self.frame.events:
            step = numeric_field(row, "step")
            if row.rank is not None and step is not None and numeric_field(row, field) is not None:
                times.setdefault(row.rank, {})[step] = row
        return {rank: points for rank, points in sorted(times.items()) if len(points) >= self.limits.min_steps}

    def _compare_ranks(
        self, field: str, times: dict[int, dict[float, Event]], steps: Sequence[float]
    ) -> LaggingRanks | Claim:
        ranks, column = list(times), {step: index for index, step in enumerate(steps)}
        values = np.full((len(ranks), len(steps)), np.nan)
        for row, rank_points in enumerate(times.values()):
            for step, point in rank_points.items():
                values[row, column[step]] = numeric_field(point, field)
        slow_rows = outliers.outliers(values, self._names(ranks), self.limits)
        slowest = slow_rows[0].row if slow_rows else int(np.nanargmax(nan_median(values, axis=1)))
        part = steps[slow_rows[0].start : slow_rows[0].stop] if slow_rows else steps
        points = [times[ranks[slowest]][step] for step in part if step in times[ranks[slowest]]]
        own_time = self._median_time(field, points)
        typical_time = self._median_time(
            field, [rank_points[step] for rank_points in times.values() for step in part if step in rank_points]
        )
        ratio = derived(
            round(own_time.number / typical_time.number, 2) if typical_time.value else 1.0, own_time, typical_time
        )
        figures = {"rank": derived(ranks[slowest], own_time), "ratio": ratio, "own": own_time, "others": typical_time}
        if not slow_rows:
            return RANKS_EVEN(ranks=self.frame.reduce("distinct", "rank"), **figures)
        count, total = (derived(len(group), own_time, unit="steps") for group in (part, steps))
        slow = tuple(sorted(ranks[outlier.row] for outlier in slow_rows))
        claims, first = (RANK_LAGS(**figures), LAG_LASTS(count=count, whole=total)), points[0]
        return LaggingRanks(slow, gpus_of_ranks(self.run, slow), claims, first.time, first, len(part) / len(steps))

    def _median_time(self, field: str, points: Sequence[Event]) -> Value:
        """The median time of these points, as printed."""
        ordered = sorted(points, key=lambda row: numeric_field(row, field) or 0.0)
        return self.frame.value(ordered[len(ordered) // 2], field, "" if field == "relative_time" else "s")


RANK_LAG: Mapping[str, Query] = {
    "ranks": events("rank_progress"),
    "own_step": metric("training_step_seconds").over("run", "avg"),
    "waits": COLLECTIVE_SECONDS,
}
"""The queries behind :class:`RankLag`."""


@fact(RANK_LAG, limits=Limits())
def rank_lag(evidence: Evidence, run: Run, limits: Limits) -> RankLag:
    """Needs no particular input; empty if ranks print and export no times."""
    missing = unmet_need(evidence, (tuple(RANK_LAG),))
    return RankLag(evidence["ranks"], evidence.grid("own_step"), run, limits, missing)
