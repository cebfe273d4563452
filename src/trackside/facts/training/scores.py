"""Scores of the model over the training: accuracy, perplexity, mAP, reward and others, and whether one improved.

They show learning where no training loss is printed, or where its level means nothing. Scores of an evaluation alone,
with no sign of training around them, show none: there each may belong to another dataset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.scores import Direction, score_direction
from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts import maths
from trackside.facts.fact import Maybe, fact
from trackside.facts.training.learning import Trajectory, numeric_field
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

SCORE_IMPROVED = Sentence(
    "the metric {metric} improved from {first} to {last} over {count}",
    running="the metric {metric} improved from {first} to {last} over {count} so far",
)
SCORE_CHANGED = Sentence(
    "the metric {metric} went from {first} to {last} over {count}",
    running="the metric {metric} went from {first} to {last} over {count} so far",
)


@dataclass(frozen=True)
class Limits:
    """When a score shows learning."""

    min_values: int = 3
    """Values of one score that are a series."""
    min_share: float = 0.25
    """A score with fewer values, compared with the one printed most often, is a side figure."""


@dataclass(frozen=True, eq=False)
class ScoreSeries:
    """One score in one log, in log order."""

    frame: Frame
    direction: Direction
    rows: tuple[Event, ...]
    field: str = "value"
    """Where its values are: those of a reward are in the logged steps."""

    @property
    def values(self) -> list[float]:
        """Its values."""
        return [numeric_field(row, self.field) or 0.0 for row in self.rows]

    @property
    def goodness(self) -> list[float]:
        """Its values, negative where lower is better."""
        return self.values if self.direction == "higher" else [-value for value in self.values]

    @cached_property
    def improved(self) -> bool:
        """Whether it went the right way by more than its noise."""
        return maths.is_rising(self.goodness)

    @property
    def name(self) -> Value:
        """Its name, as printed."""
        if self.field != "value":
            return derived(self.field, self.frame.value(self.rows[-1], self.field))
        return self.frame.value(self.rows[-1], "metric")

    @property
    def count(self) -> Value:
        """Number of its values."""
        return derived(len(self.rows), self.frame.reduce("count", self.field), unit="values")

    @property
    def claim(self) -> Claim:
        """How it went."""
        first, last = (self.frame.value(self.rows[index], self.field) for index in (0, -1))
        sentence = SCORE_IMPROVED if self.improved else SCORE_CHANGED
        return sentence(metric=self.name, first=first, last=last, count=self.count)


@dataclass(frozen=True, eq=False)
class Scores:
    """The series of scores, those with the most values first."""

    series: tuple[ScoreSeries, ...]

    @cached_property
    def best(self) -> ScoreSeries | None:
        """The one that shows learning best: the first that improved, else the first."""
        return next((series for series in self.series if series.improved), next(iter(self.series), None))

    @property
    def improved(self) -> bool:
        """Whether one improved."""
        return self.best is not None and self.best.improved

    @property
    def claims(self) -> tuple[Claim, ...]:
        """How that one went."""
        return () if self.best is None else (self.best.claim,)


@fact({"scores": events("score"), "evaluations": events("evaluation"), "starts": events("training_start"),
       "plans": events("training_plan")}, limits=Limits())  # fmt: skip
def scores(evidence: Evidence, trajectory: Maybe[Trajectory], limits: Limits) -> Scores:
    """Needs no particular input; empty if no score was printed during a training."""
    trains = not isinstance(trajectory, Missing) and bool(trajectory.points or trajectory.saves)
    trains = trains or bool(evidence["starts"] or evidence["plans"])
    rows = [(frame, row) for frame in (evidence["scores"], evidence["evaluations"]) for row in frame.events]
    series = [one for one in _series(rows) if len(one.rows) >= limits.min_values and (trains or _advances(one.rows))]
    if not isinstance(trajectory, Missing):
        rewards = tuple(row for row in trajectory.curve.points if numeric_field(row, "reward") is not None)
        if len(rewards) >= limits.min_values:
            series.append(ScoreSeries(trajectory.progress, "higher", rewards, "reward"))
    most = max((len(one.rows) for one in series), default=0)
    return Scores(
        tuple(
            sorted(
                (one for one in series if len(one.rows) >= limits.min_share * most),
                key=lambda one: len(one.rows),
                reverse=True,
            )
        )
    )


def _series(rows: Iterable[tuple[Frame, Event]]) -> list[ScoreSeries]:
    """The scores by log and name; of a training that started over, its last part."""
    parts: dict[tuple[str, str], tuple[Frame, Direction, list[list[Event]]]] = {}
    for frame, row in rows:
        name = str(row.get("metric") or "")
        direction = score_direction(name)
        if direction is None or numeric_field(row, "value") is None:
            continue
        _, _, runs = parts.setdefault((row.at.path, name.lower()), (frame, direction, [[]]))
        if runs[-1] and _has_position(row) and _position(row) < _position(runs[-1][-1]):
            runs.append([])
        runs[-1].append(row)
    return [
        ScoreSeries(frame, direction, tuple(next((run for run in reversed(runs) if len(run) > 1), runs[-1])))
        for frame, direction, runs in parts.values()
    ]


def _has_position(row: Event) -> bool:
    return row.get("epoch") is not None or row.get("step") is not None


def _position(row: Event) -> tuple[float, float]:
    return numeric_field(row, "epoch") or 0.0, numeric_field(row, "step") or 0.0


def _advances(rows: tuple[Event, ...]) -> bool:
    """Whether the positions of a score move on, as those of a training do."""
    return len({_position(row) for row in rows}) > 1 or "train" in str(rows[-1].get("metric")).lower()
