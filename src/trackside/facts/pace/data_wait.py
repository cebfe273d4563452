"""Share of a step spent waiting for data, as the log or a gauge reports it, and whether it grew.

A gauge that rose to another level counts as growth if steps or throughput slowed down accordingly. Compute that takes
the same time is a smaller share of a longer step, so that the wait alone makes a step (1 - before) / (1 - after) times
as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Frame, Grid, Missing, Value, derived
from trackside.facts import maths
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.activity import Matrix, nan_median
from trackside.facts.gpus import value_or_none
from trackside.facts.pace.pace import StepPace
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events, metric

STARVED = Sentence("each step waits for data {share} of its time (median of {points}; for example {wait} of {step})")
STARVED_BY_PARTS = Sentence(
    "each step waits for data {share} of its time (median of {points}; for example {wait}, beside {step} of {part})"
)
STARVED_BY_EPOCHS = Sentence(
    "each step waits for data {share} of its time (median of {epochs}; for example {wait} of {step}, means over an "
    "epoch)"
)
STARVED_GAUGE = Sentence("each step waits for data {share} of its time (median of the run)")
LITTLE_WAIT = Sentence("waiting for data takes {share} of each step (for example {wait}; {points})")
LITTLE_WAIT_GAUGE = Sentence("waiting for data takes {share} of each step (median of the run)")
WAIT_GREW = Sentence("waiting for data grew from {before} to {after} of each step (medians)")
SLOWER: Mapping[str, Sentence] = {
    "step": Sentence("a step took {during} from then on, {before} before (medians)"),
    "throughput": Sentence("throughput was {during} from then on, {before} before (medians)"),
    "launches": Sentence(
        "each GPU got {during:plain} kernel launches per {window} from then on, {before:plain} before (medians)"
    ),
}
"""Kind of pace that was compared -> the sentence."""
LOADER_WARNING = Sentence("a warning about the data loader: {line}")


@dataclass(frozen=True)
class Limits:
    """Minimum data for a conclusion."""

    min_points: int = 8
    """Minimum number of points after the warm-up for a reliable share."""
    warm_up_share: float = 0.1
    """Share of points dropped at the start, at least one: first batches wait for workers and caches."""
    min_epoch_share: float = 0.5
    """Share of an epoch that its last printed mean must cover: an epoch's first batch waits for new workers."""
    min_readings: int = 10
    """Minimum number of windows of the gauge for a reliable median."""
    min_side_windows: int = 5
    """Minimum number of windows on either side of the time at which it grew."""
    min_slowdown_ratio: float = 1.1
    """Minimum slowdown of a step from the wait alone for the growth to matter."""
    min_explained_share: float = 0.5
    """Minimum share of the slowdown explained by the wait that was also measured: other waits shift as well, and gauges
    of wait and throughput are means over different times."""


@dataclass(frozen=True)
class WaitShare:
    """Share of the step spent waiting for data, as the job reports it."""

    share: Value
    starved: Claim
    """The claim that the step waits this long."""
    fed: Claim
    """The claim that it waits no longer than this."""
    row: Event | None
    """The first point after the warm-up."""


@dataclass(frozen=True)
class WaitGrowth:
    """Data wait that grew, with a slowdown of the run."""

    since: float
    claims: tuple[Claim, ...]


@dataclass(frozen=True, eq=False)
class DataWait:
    """The job's own reports about waiting for data."""

    gauge: Grid | None
    """Share of the step, over the run."""
    warnings: Frame
    """Advice printed by libraries."""
    trajectory: Maybe[Trajectory]
    pace: StepPace
    limits: Limits

    @cached_property
    def share(self) -> WaitShare | None:
        """From the log's split of the step, else from the gauge; None if neither has enough data."""
        return self._epoch_means or self._logged or self._gauged

    @cached_property
    def advice(self) -> tuple[Claim, ...]:
        """The first warning about the loader."""
        rows = [row for row in self.warnings.events if "loader" in str(row.get("about")).lower()]
        return tuple(LOADER_WARNING(line=self.warnings.value(row, "text")) for row in rows[:1])

    @cached_property
    def growth(self) -> WaitGrowth | None:
        """The claim that the gauge rose to another level and steps or throughput slowed down accordingly."""
        grid, limits = self.gauge, self.limits
        index = None if grid is None else _split(nan_median(grid.values, axis=0), limits.min_side_windows)
        if grid is None or index is None:
            return None
        first, last = float(grid.times[0]) - grid.step, float(grid.times[-1])
        since = float(grid.times[index]) - grid.step
        before, after = (grid.during(*span).value("median", unit="share") for span in ((first, since), (since, last)))
        wait_slowdown = (1 - before.number) / max(1 - after.number, 0.01)
        if wait_slowdown < limits.min_slowdown_ratio:
            return None
        pace = self.pace.compare((first, since), (since, last))
        if (
            pace is None
            or pace.kind not in SLOWER
            or pace.slowdown < 1 + limits.min_explained_share * (wait_slowdown - 1)
        ):
            return None
        window = {} if pace.window is None else {"window": pace.window}
        slower = SLOWER[pace.kind](before=pace.before, during=pace.during, **window)
        return WaitGrowth(since, (WAIT_GREW(before=before, after=after), slower))

    @cached_property
    def _epoch_means(self) -> WaitShare | None:
        """From the means that the log prints since the start of each epoch: they count all steps."""
        if isinstance(self.trajectory, Missing):
            return None
        rows = [row for row in self.trajectory.points if (numeric_field(row, "epoch_step_time_s") or 0) > 0]
        if len(rows) < self.limits.min_points:
            return None
        last_of_epoch = {row.get("epoch"): row for row in rows if self._covers_epoch(row)}
        shares = [(_share_of(row, "epoch_data_time_s", "epoch_step_time_s"), row) for row in last_of_epoch.values()]
        if not shares:
            return None
        level = maths.median([share for share, _ in shares])
        typical, frame = min(shares, key=lambda pair: abs(pair[0] - level))[1], self.trajectory.progress
        wait, step = (frame.value(typical, f"epoch_{name}_time_s", "s") for name in ("data", "step"))
        share = derived(round(level, 3), wait, step, unit="share")
        points = frame.reduce("count", "epoch_data_time_s", unit="logged steps")
        starved = STARVED_BY_EPOCHS(
            share=share, wait=wait, step=step, epochs=derived(len(shares), points, unit="epochs")
        )
        return WaitShare(share, starved, LITTLE_WAIT(share=share, wait=wait, points=points), shares[0][1])

    def _covers_epoch(self, row: Event) -> bool:
        step, steps = numeric_field(row, "step_in_epoch"), numeric_field(row, "epoch_steps")
        return step is not None and steps is not None and step >= self.limits.min_epoch_share * steps

    @cached_property
    def _logged(self) -> WaitShare | None:
        if isinstance(self.trajectory, Missing):
            return None
        frame, limits = self.trajectory.progress, self.limits
        shares = [(part, row) for row in self.trajectory.points if (part := _data_share(row)) is not None]
        warm = shares[max(1, int(len(shares) * limits.warm_up_share)) :]
        if len(warm) < limits.min_points:
            return None
        level = maths.median([part for part, _ in warm])
        typical = min(warm, key=lambda pair: abs(pair[0] - level))[1]
        names = ("step_time_s", "compute_time_s", "comm_time_s")
        step_field = next(name for name in names if numeric_field(typical, name) is not None)
        wait, step = frame.value(typical, "data_time_s", "s"), frame.value(typical, step_field, "s")
        share = derived(round(level, 3), wait, step, unit="share")
        points = frame.reduce("count", "data_time_s", unit="logged steps")
        values = {"share": share, "wait": wait, "step": step, "points": points}
        measured = {"compute_time_s": "compute", "comm_time_s": "communication"}.get(step_field)
        starved = STARVED(**values) if measured is None else STARVED_BY_PARTS(**values, part=derived(measured, step))
        return WaitShare(share, starved, LITTLE_WAIT(share=share, wait=wait, points=points), warm[0][1])

    @cached_property
    def _gauged(self) -> WaitShare | None:
        grid = self.gauge
        if grid is None or len(grid.times) < self.limits.min_readings:
            return None
        share = value_or_none(grid, "median", "share")
        return (
            None
            if share is None
            else WaitShare(share, STARVED_GAUGE(share=share), LITTLE_WAIT_GAUGE(share=share), None)
        )


@fact(
    {"loading": metric("training_data_loading_ratio").over("run", "avg"), "advice": events("advice")},
    limits=Limits(),
)  # fmt: skip
def data_wait(evidence: Evidence, trajectory: Maybe[Trajectory], pace: StepPace, limits: Limits) -> DataWait:
    """Needs no particular input; empty if no line splits the step and no gauge was exported."""
    return DataWait(evidence.grid("loading"), evidence["advice"], trajectory, pace, limits)


def _share_of(row: Event, part: str, whole: str) -> float:
    return min(1.0, (numeric_field(row, part) or 0.0) / (numeric_field(row, whole) or math.inf))


def _data_share(row: Event) -> float | None:
    """Data wait over the whole step: the printed step time, else the sum of the step's parts."""
    wait = numeric_field(row, "data_time_s")
    parts = [value for name in ("compute_time_s", "comm_time_s") if (value := numeric_field(row, name)) is not None]
    step = numeric_field(row, "step_time_s")
    total = max(step or 0.0, wait or 0.0) if step is not None else (wait or 0.0) + sum(parts)
    if wait is None or wait < 0 or total <= 0 or (step is None and not parts):
        return None
    return wait / total


def _split(values: Matrix, side: int) -> int | None:
    """The index that best splits the values into two levels, the later one higher; None if there is none."""
    indices = np.flatnonzero(~np.isnan(values))
    sampled = values[indices]
    count = len(sampled)
    if count < 2 * side:
        return None
    sizes = np.arange(1, count)
    sums = np.cumsum(sampled)
    left, right = sums[:-1] / sizes, (sums[-1] - sums[:-1]) / (count - sizes)
    between = np.where(right > left, sizes * (count - sizes) * (right - left) ** 2, 0.0)[side - 1 : count - side]
    best = int(np.argmax(between))
    return int(indices[best + side]) if between[best] > 0 else None
