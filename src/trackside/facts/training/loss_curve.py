"""The loss curve of the run: the points that the log prints, else points made from sampled gauges.

A gauge is scraped many times per step, or skips steps: a point counts once, when the step or the loss changed. A loss
that is not finite is inf; if it was not sampled at all, the other gauges show that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trackside.evidence import Evidence, Frame, Grid, Value, derived
from trackside.facts import maths
from trackside.facts.fact import fact
from trackside.facts.training.learning import TrainingCurve, logged_steps, training_curve
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import Query, Reducer, events, metric

GAUGES: Mapping[str, Query] = {
    "gauge_loss": metric("training_loss").over("run", "last"),
    "gauge_norm": metric("training_gradient_norm").over("run", "last"),
    "gauge_rate": metric("training_learning_rate").over("run", "last"),
    "gauge_step": metric("training_step").over("run", "last"),
}
"""Training-loop gauges; a fact includes them in its queries."""
LOSS_FELL = Sentence(
    "the loss fell from {first} to {last} over {points}",
    running="the loss fell from {first} to {last} over {points} so far",
)
LOSS_LEVEL = Sentence(
    "the loss went from {first} to {last} over {points}, without a clear fall or rise",
    running="the loss went from {first} to {last} over {points} so far, without a clear fall or rise",
)
FELL_BY_LEVEL = Sentence(
    "the loss fell from {first} to {last}: medians of the first and the last {size} of {points}",
    running="the loss fell from {first} to {last} so far: medians of the first and the last {size} of {points}",
)
ROSE_BY_LEVEL = Sentence(
    "the loss rose from {first} to {last}: medians of the first and the last {size} of {points}",
    running="the loss rose from {first} to {last} so far: medians of the first and the last {size} of {points}",
)
SINGLE_LOSS = Sentence(
    "only one training loss was recognized: {last}", running="only one training loss was recognized so far: {last}"
)
LOSS_ROSE = Sentence(
    "the loss rose from {first} to {last} over {points}",
    running="the loss rose from {first} to {last} over {points} so far",
)
LAST_ATTEMPT_ONLY = Sentence(
    "the log has an earlier training, whose first loss is {before}; these are the losses of the last one, from {place}"
)
NO_LOSS = Sentence("no loss was recognized in {points}", running="no loss was recognized so far in {points}")
NO_LOSS_NO_STEP = Sentence("no training loss was recognized", running="no training loss was recognized so far")
GAUGE_OF_FIELD = {"loss": "gauge_loss", "grad_norm": "gauge_norm", "lr": "gauge_rate", "step": "gauge_step"}
"""Field of a point -> query."""


@dataclass(frozen=True, slots=True)
class GaugeFrame(Frame):
    """Points made from samples; every figure cites the gauge in its window."""

    grids: Mapping[str, Grid] | None = None

    def value(self, row: Event, field: str, unit: str = "") -> Value:  # type: ignore[override]
        """A field of a point; its time, if no gauge has that field."""
        grids = self.grids or {}
        grid = grids.get(field, grids["loss"])
        assert row.time is not None
        part = grid.during(row.time - grid.step, row.time)
        if field in grids:
            return part.value("last", unit=unit)
        return Value(row.time, part.value("count").cites, "time")

    def reduce(self, reducer: Reducer, field: str | None = None, unit: str = "") -> Value:
        """Over all points; counts are those of loss samples."""
        grids = self.grids or {}
        return grids.get(field or "loss", grids["loss"]).value(reducer, unit=unit)


@dataclass(frozen=True, eq=False)
class LossCurve:
    """The loss of the last run part, from log or gauges."""

    curve: TrainingCurve

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """Claims about the loss; for a restarted run, that this is only its last run part."""
        curve = self.curve
        if not curve.finite:
            return ((NO_LOSS if curve.points else NO_LOSS_NO_STEP)(points=self.point_count),)
        indices = [index for index, loss in enumerate(curve.losses) if math.isfinite(loss)]
        first, last = curve.loss(indices[0]), curve.loss(indices[-1])
        if len(indices) == 1:
            return (SINGLE_LOSS(last=last),)
        if self.ends_mislead:
            claim = (FELL_BY_LEVEL if curve.has_fallen else ROSE_BY_LEVEL)(**self.levels)
        else:
            rose = curve.has_risen and curve.level_has_meaning
            sentence = LOSS_FELL if curve.has_fallen else LOSS_ROSE if rose else LOSS_LEVEL
            claim = sentence(first=first, last=last, points=self.point_count)
        return claim, *self.last_attempt_claims

    @property
    def ends_mislead(self) -> bool:
        """Whether the first or the last loss is a spike: the curve fell, but not from the one to the other, or rose."""
        curve, finite = self.curve, self.curve.finite
        if curve.has_fallen:
            return finite[-1] >= finite[0]
        return curve.has_risen and curve.level_has_meaning and finite[-1] <= finite[0]

    @property
    def last_attempt_claims(self) -> tuple[Claim, ...]:
        """The claim that these are the losses of the last of several attempts; empty if they are not."""
        first = logged_steps(self.curve.frame)[0] if self.has_earlier_attempt else None
        if first is None or first.get("loss") is None or not self.curve.rows:
            return ()
        return (LAST_ATTEMPT_ONLY(place=self.curve.place(0), before=self.curve.frame.value(first, "loss")),)

    @property
    def levels(self) -> dict[str, Value]:
        """The medians of head and tail, their number of points, and that of the curve, as the values of a claim."""
        finite, count = self.curve.finite, self.curve.count
        head, tail = (derived(level, count) for level in maths.ends(finite))
        return {
            "first": head,
            "last": tail,
            "size": derived(maths.end_size(len(finite)), count),
            "points": self.point_count,
        }

    @cached_property
    def point_count(self) -> Value:
        """Number of printed steps with a loss in the last run part; of all its printed steps if none has one; counted
        by ordinal if the series was thinned."""
        curve = self.curve
        total = curve.count if curve.rows else curve.frame.reduce("count", unit=curve.count.unit)
        count = _number_printed(curve.rows or curve.points)
        if total.value == count:
            return total
        sources = [curve.loss(0), curve.loss(-1)] if self.has_earlier_attempt and curve.rows else [total]
        return derived(count, *sources, unit=total.unit)

    @property
    def has_earlier_attempt(self) -> bool:
        """Whether the same log has an earlier attempt."""
        points = self.curve.points
        return bool(points) and logged_steps(self.curve.frame)[0] is not points[0]


def _number_printed(rows: Sequence[Event]) -> int:
    """The number of these steps that the log prints: more than were kept if their series was thinned."""
    ordinals: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if isinstance(ordinal := row.get("ordinal"), int):
            ordinals.setdefault((row.at.path, row.parser), []).append(ordinal)
    thinned = sum(max(numbers) - min(numbers) + 1 for numbers in ordinals.values())
    return thinned + len(rows) - sum(map(len, ordinals.values()))


@fact({**GAUGES, "progress": events("progress")}, needs=(("progress", "gauge_loss"),))
def loss_curve(evidence: Evidence) -> LossCurve:
    """Needs a job log or gauges of the loss; otherwise missing."""
    return LossCurve(training_curve(points_of(evidence)))


def points_of(evidence: Evidence) -> Frame:
    """The log's points if they have a loss, else those from gauges, else the log's."""
    logged = evidence["progress"]
    if any(row.get("loss") is not None for row in logged_steps(logged)):
        return logged
    loss = _longest(evidence.grid("gauge_loss"))
    if loss is None:
        return logged
    return _gauge_frame(evidence, loss)


def _gauge_frame(evidence: Evidence, loss: Grid) -> Frame:
    grids = {"loss": loss}
    for field, name in GAUGE_OF_FIELD.items():
        grid = evidence.grid(name)
        if field != "loss" and grid is not None:
            grids[field] = _same_source(grid, loss)
    rows: list[Event] = []
    before: dict[str, float] = {}
    for index, time in enumerate(loss.times.tolist()):
        values = {field: float(grid.values[0, index]) for field, grid in grids.items()}
        if all(math.isnan(value) for value in values.values()):
            continue
        fields = {field: value for field, value in values.items() if field == "loss" or not math.isnan(value)}
        if _is_same_point(fields, before):
            continue
        before = fields
        rows.append(Event("progress", loss.series[0].at, "metric", time=time, parser="gauge", fields=fields))
    return GaugeFrame(evidence["progress"].query, loss.store, tuple(rows), ("metric",), grids)


def _is_same_point(fields: Mapping[str, float], before: Mapping[str, float]) -> bool:
    """Whether it is the previous point, sampled again."""
    if not before:
        return False
    if "step" in fields and "step" in before:
        return fields["step"] == before["step"]
    same = fields["loss"] == before["loss"] and fields.get("grad_norm") == before.get("grad_norm")
    return same and math.isfinite(fields["loss"])


def _longest(grid: Grid | None) -> Grid | None:
    """The series with the most samples: ranks export the same, and one of them may have died early."""
    if grid is None:
        return None
    return grid.one(int(np.argmax((~np.isnan(grid.values)).sum(axis=1))))


def _same_source(grid: Grid, loss: Grid) -> Grid:
    """The series from the same source as the loss, else the longest."""
    for index, series in enumerate(grid.series):
        if series.labels == loss.series[0].labels:
            return grid.one(index)
    longest = _longest(grid)
    assert longest is not None
    return longest
