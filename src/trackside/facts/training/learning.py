"""Training progress as the log prints it: the logged steps as one curve, steps completed and planned, seconds per
step.

A point also counts as not finite if the framework hides it: Transformers prints loss 0 next to a nan gradient norm;
Megatron omits the loss, and may or may not count the iteration as nan.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from trackside.evidence import Evidence, Frame, Value, derived
from trackside.facts import maths
from trackside.facts.fact import fact
from trackside.facts.logs.order import follows
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import Query, Row, events

LAST_STEP_AND_LOSS = Sentence("last logged step: {place:plain}, loss {loss}")
LAST_STEP = Sentence("last logged step: {place:plain}")
LAST_EPOCH_AND_LOSS = Sentence("last logged progress: {place}, loss {loss}")
LAST_PROGRESS_LINE = Sentence("last logged progress: {line}")
LOSS_FELL = Sentence("the loss fell from {first} to {last}")

LEARNING: Mapping[str, Query] = {
    "progress": events("progress"),
    "plans": events("training_plan"),
    "ends": events("training_end"),
    "saves": events("checkpoint_saved"),
    "evaluations": events("evaluation"),
    "scores": events("score"),
    "full_bars": events("full_bar"),
}
"""The queries behind :class:`Trajectory`."""
MAX_PASSED_RATIO = 1.05
"""Completed steps over planned ones: a run ends a little later than planned where steps are counted from 1, or an epoch
is completed."""

OBJECTIVES_WITHOUT_LEVEL = (
    "grpo",
    "ppo",
    "rloo",
    "reinforce",
    "dpo",
    "kto",
    "orpo",
    "cpo",
    "simpo",
    "ipo",
    "reward",
    "gan",
    "rl",
)
"""Objectives whose loss does not measure an error: near zero, negative or rising is normal."""
RUNNING_MEANS = ("keras",)
"""Parsers whose losses are means since the epoch began."""
MIN_EPOCHS_AFTER = 3
"""Epochs with one point each from which a log prints one point for each epoch."""
REINFORCEMENT_OBJECTIVES = ("ppo", "grpo", "rl")
"""Those in which the data change with the model, so that the loss of one step cannot be compared with another's."""


def numeric_field(row: Row, field: str) -> float | None:
    """A numeric field, or None; booleans do not count."""
    value = row.get(field)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class TrainingCurve:
    """The logged steps of the last run part with at least two, and their losses.

    ``rows`` are the points with a loss (or with a sign that it was not finite); ``losses[i]`` belongs to ``rows[i]``.
    """

    frame: Frame
    points: tuple[Event, ...]
    rows: tuple[Event, ...]
    losses: tuple[float, ...]

    @property
    def finite(self) -> list[float]:
        """The finite losses."""
        return maths.finite_values(self.losses)

    @property
    def level_has_meaning(self) -> bool:
        """Whether a lower loss is a better model: not for preference and reinforcement objectives."""
        if any(value < 0 for value in self.finite):
            return False
        return not any(
            row.get("objective") in OBJECTIVES_WITHOUT_LEVEL or row.get("reward") is not None for row in self.rows
        )

    @property
    def is_of_reinforcement(self) -> bool:
        """Whether the loss is that of reinforcement learning: even a fall of it shows nothing."""
        return any(row.get("objective") in REINFORCEMENT_OBJECTIVES for row in self.rows)

    @property
    def has_fallen(self) -> bool:
        """Whether the loss fell by more than its noise, all along or at the very beginning."""
        return maths.is_falling(self.finite) or maths.drops_at_once(self.finite)

    @property
    def has_risen(self) -> bool:
        """Whether the loss rose by more than its noise, and did not end far below its first value."""
        return maths.is_rising(self.finite, 0.05) and not maths.drops_at_once(self.finite)

    @property
    def without_running_means(self) -> TrainingCurve:
        """The same with the last loss of each epoch alone, if each loss is the mean since its epoch began and there are
        several epochs: where an epoch begins, such a mean jumps, and that says nothing about the training."""
        if any(row.parser not in RUNNING_MEANS or row.get("epoch") is None for row in self.rows):
            return self
        epochs = [row.get("epoch") for row in self.rows]
        last = [index for index, epoch in enumerate(epochs) if epochs[index + 1 : index + 2] != [epoch]]
        if len(last) < 2:
            return self
        return replace(
            self, rows=tuple(self.rows[index] for index in last), losses=tuple(self.losses[index] for index in last)
        )

    def loss(self, index: int) -> Value:
        """The loss of one of ``rows``, cited; nan if the framework hides that it was not finite."""
        return cited_loss(self.frame, self.rows[index])

    def place(self, index: int) -> Value:
        """Position of one of ``rows``: its step, or its epoch, or its line in the log."""
        row = self.rows[index]
        if not any(row.get(name) is not None for name in ("step", "epoch")):
            return self.frame.value(row, "line", "line")
        if self.counts_epochs and row.get("epoch") is not None:
            return self.frame.value(row, "epoch", "epoch")
        return place_of(self.frame, row)

    @property
    def counts_epochs(self) -> bool:
        """Whether each point is an epoch of its own: integers that rise from point to point, and no step besides."""
        epochs = [numeric_field(row, "epoch") for row in self.rows or self.points]
        if len(epochs) < 2 or any(row.get("step") not in (None, row.get("epoch")) for row in self.points):
            return False
        return all(a is not None and b is not None and a < b and b == int(b) for a, b in pairwise(epochs))

    @property
    def count(self) -> Value:
        """Number of printed losses."""
        unit = "logged epochs" if self.counts_epochs else "logged steps"
        printed = sum(row.get("loss") is not None for row in self.rows)
        fields = {name: value for name in ("run_part", "split") for row in self.rows[-1:]
                  if (value := row.get(name)) is not None}  # fmt: skip
        parts = [{name: value} for name, value in fields.items()]  # other attempts and evaluations print losses, too
        counts = [self.frame.where(**part).reduce("count", "loss", unit) for part in ({}, *parts, fields)]
        return next((count for count in counts if count.value == printed), counts[0])

    @property
    def first_finite(self) -> Value:
        """The first finite loss; the first loss if none is finite."""
        return self.loss(next((i for i, loss in enumerate(self.losses) if math.isfinite(loss)), 0))

    @property
    def last_finite(self) -> Value:
        """The last finite loss; the last loss if none is finite."""
        return self.loss(next((i for i in reversed(range(len(self.losses))) if math.isfinite(self.losses[i])), -1))

    def series(self, field: str) -> list[float]:
        """A numeric field of all points that print it."""
        return [value for row in self.points if (value := numeric_field(row, field)) is not None]


def logged_steps(frame: Frame) -> list[Event]:
    """Logged steps, without evaluations."""
    return [row for row in frame.events if row.get("split") in (None, "train")]


def training_curve(frame: Frame) -> TrainingCurve:
    """The curve of a frame of progress events."""
    points = _last_run_part(logged_steps(frame))
    with_loss = [(row, loss) for row in points if (loss := printed_loss(row)) is not None]
    return TrainingCurve(frame, tuple(points), tuple(row for row, _ in with_loss), tuple(loss for _, loss in with_loss))


def _last_run_part(points: Sequence[Event]) -> list[Event]:
    """The points of the last run part with at least two of them; all points if there is none."""
    parts: dict[int, list[Event]] = {}
    for row in points:
        parts.setdefault(int(numeric_field(row, "run_part") or 0), []).append(row)
    for part in sorted(parts, reverse=True):
        if len(parts[part]) > 1:
            return _since_first_epoch(parts[part])
    return list(points)


def _since_first_epoch(points: list[Event]) -> list[Event]:
    """The points without those of earlier starts that ended in the epoch in which each start begins: 0, 0, 1, 2. One
    point for each epoch after it shows that the log prints no more of them."""
    epochs = [epoch for row in points if isinstance(epoch := row.get("epoch"), int) and row.get("step") is None]
    if len(epochs) < len(points):
        return points
    first = len(epochs) - 1 - epochs[::-1].index(epochs[0])
    rises = all(after > before for before, after in pairwise(epochs[first:]))
    return points[first:] if rises and len(points) - first >= MIN_EPOCHS_AFTER else points


def printed_loss(row: Event) -> float | None:
    """The loss of a logged step; nan if the framework hides that it was not finite, None if there is none."""
    loss, gradient = numeric_field(row, "loss"), numeric_field(row, "grad_norm")
    if loss == 0 and gradient is not None and math.isnan(gradient):
        return math.nan
    # Megatron prints a loss only if it is above zero.
    dropped = row.parser == "megatron" and numeric_field(row, "skipped") == 0
    return math.nan if loss is None and (dropped or (numeric_field(row, "nan_iterations") or 0) > 0) else loss


def cited_loss(frame: Frame, row: Event) -> Value:
    """The loss of a logged step; a hidden nan cites the sign of it."""
    loss = printed_loss(row)
    if loss is None or not math.isnan(loss) or row.get("loss") not in (None, 0):
        return frame.value(row, "loss")
    sign = next((field for field in ("nan_iterations", "grad_norm") if row.get(field) is not None), "text")
    return derived(math.nan, frame.value(row, sign))


def steps_planned(progress: Frame, plans: Frame) -> Value | None:
    """Planned optimizer steps, as last printed by the framework."""
    for frame in (plans, progress):
        for row in reversed(frame.events):
            if numeric_field(row, "total_steps") is not None:
                return frame.value(row, "total_steps", "steps")
    return None


def is_plan_of_part(planned: float, done: float) -> bool:
    """Whether a run left a plan so far behind that it can only be that of a part, such as an epoch."""
    return done > MAX_PASSED_RATIO * planned + 1


def step_seconds(points: Sequence[Event], frame: Frame) -> Value | None:
    """Wall seconds per step: as printed (median), or from the times of the first and last stamped points."""
    printed = [
        (seconds, row) for row in points if (seconds := numeric_field(row, "step_time_s")) is not None and seconds > 0
    ]
    if printed:
        printed.sort(key=lambda pair: pair[0])
        return frame.value(printed[len(printed) // 2][1], "step_time_s", "s")
    stamped = [row for row in points if row.time is not None and numeric_field(row, "step") is not None]
    if len(stamped) < 2:
        return None
    first, last = stamped[0], stamped[-1]
    steps = (numeric_field(last, "step") or 0) - (numeric_field(first, "step") or 0)
    if first.time is None or last.time is None or steps <= 0 or last.time <= first.time:
        return None
    sources = [frame.value(row, field) for row in (first, last) for field in ("time", "step")]
    return derived((last.time - first.time) / steps, *sources, unit="s")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Training progress of the run, by its log."""

    progress: Frame
    plans: Frame
    ends: Frame
    saves: Frame
    evaluations: Frame
    scores: Frame
    full_bars: Frame

    @cached_property
    def points(self) -> tuple[Event, ...]:
        """The printed logged steps, without evaluations and without the bars that processes draw when they exit."""
        points = logged_steps(self.progress)
        return tuple([row for row in points if not row.get("at_exit")] or points)

    @property
    def milestones(self) -> tuple[Event, ...]:
        """Work without a logged step: saved checkpoints, then evaluations."""
        return (*self.saves.events, *self.evaluations.events)

    @cached_property
    def curve(self) -> TrainingCurve:
        """The points and losses of the last run part."""
        return training_curve(self.progress)

    @cached_property
    def scores_after_each_point(self) -> bool:
        """Whether each of at least two logged steps is followed, before the next one, by a line of its own with a score
        or an evaluation. Programs evaluate after an epoch, hardly after each optimizer step."""
        points = sorted((row.at.path, row.at.line) for row in self.points)
        scores = sorted((row.at.path, row.at.line) for row in (*self.scores.events, *self.evaluations.events))
        if len(points) < 2:
            return False
        bounds = [*points[1:], (points[-1][0], math.inf)]
        followers = [bisect.bisect_right(scores, point) for point in points]
        return all(
            first < len(scores) and scores[first] < bound for first, bound in zip(followers, bounds, strict=True)
        )

    @property
    def last(self) -> Event | None:
        """The last logged step."""
        return self.points[-1] if self.points else None

    @property
    def has_times(self) -> bool:
        """Whether the last logged step carries a time."""
        return self.last is not None and self.last.time is not None

    @cached_property
    def count(self) -> Value:
        """Number of printed progress lines."""
        return self.progress.reduce("count")

    @cached_property
    def done(self) -> Value | None:
        """Completed optimizer steps: the framework's own count, that of the training's full bar below the last point,
        or the last point's step."""
        counts = [
            self.progress.value(row, "step", "steps")
            for row in self.points[-1:]
            if numeric_field(row, "step") is not None
        ]
        counts += [
            self.ends.value(row, "steps", "steps")
            for row in self.ends.events
            if numeric_field(row, "steps") is not None
        ]
        if self.last is not None and not self.in_epochs and counts:
            total = numeric_field(self.last, "total_steps")
            counts += [
                self.full_bars.value(row, "steps", "steps")
                for row in self.full_bars.events
                if row.get("steps") == total and row.at.path == self.last.at.path and follows(row, self.last)
            ][-1:]
        return max(counts, key=lambda value: value.number, default=None)

    @cached_property
    def planned(self) -> Value | None:
        """Planned optimizer steps; None for a plan that the run left far behind: then it is that of a part, such as an
        epoch."""
        planned, done = steps_planned(self.progress, self.plans), self.done
        is_of_part = planned is not None and done is not None and is_plan_of_part(planned.number, done.number)
        return None if is_of_part else planned

    @cached_property
    def budget(self) -> Value | None:
        """Planned steps, or those from which a closing summary computed its rate."""
        rows = [row for row in self.ends.events if numeric_field(row, "planned") is not None]
        return self.planned or (self.ends.value(rows[-1], "planned", "steps") if rows else None)

    @property
    def is_complete(self) -> bool:
        """Whether the last logged step is the last planned one."""
        done, planned = self.done, self.planned
        return done is not None and planned is not None and done.number >= planned.number

    @property
    def in_epochs(self) -> bool:
        """Whether the log prints one line per epoch and calls it a step: each contains many steps."""
        epoch = None if self.last is None else self.last.get("epoch")
        return epoch is not None and self.last is not None and epoch == self.last.get("step") and len(self.points) > 1

    @cached_property
    def remaining_steps(self) -> Value | None:
        """Remaining steps, if both figures are known and the plan was not reached."""
        done, planned = self.done, self.planned
        if done is None or planned is None or not isinstance(done.value, (int, float)):
            return None
        if not isinstance(planned.value, (int, float)) or planned.value <= done.value:
            return None
        return derived(planned.value - done.value, planned, done, unit="steps")

    @cached_property
    def loss_fell_claims(self) -> tuple[Claim, ...]:
        """The claim that the loss fell, if its level is meaningful."""
        curve = self.curve
        if len(curve.rows) < 2 or not curve.level_has_meaning or not curve.has_fallen:
            return ()
        return (LOSS_FELL(first=curve.loss(0), last=curve.loss(-1)),)

    @property
    def last_logged_claims(self) -> tuple[Claim, ...]:
        """Position and loss of the last logged step, if any loss was printed."""
        curve = self.curve
        return (_last_progress(curve.place(-1), curve.loss(-1)),) if curve.finite else ()

    @cached_property
    def step_seconds(self) -> Value | None:
        """Wall seconds per step."""
        return step_seconds(self.points, self.progress)

    @cached_property
    def interval_s(self) -> float:
        """The median seconds between two stamped points; 0 if there are none."""
        times = [row.time for row in self.points if row.time is not None]
        gaps = sorted(maths.finite_values([after - before for before, after in pairwise(times) if after > before]))
        return gaps[len(gaps) // 2] if gaps else 0.0


def last_logged(frame: Frame, row: Event) -> Claim:
    """One of the rows of progress, as the last one: its step or epoch, and its loss; else its text."""
    place = place_of(frame, row)
    if place.unit and row.get("loss") is not None:
        return _last_progress(place, cited_loss(frame, row))
    return LAST_STEP(place=place) if place.unit == "step" else LAST_PROGRESS_LINE(line=place)


def place_of(frame: Frame, row: Event) -> Value:
    """The step of a row of progress, else its epoch, else its text.

    In the log's words if it counts steps from the start of each epoch, or prints the share of the epoch:
    ``epoch 10, step 40 of 49``, ``epoch 3, 97% done``.
    """
    if (text := words_of_place(row)) is not None:
        fields = ("epoch", "epoch_share", "step_in_epoch", "epoch_steps")
        unit = "step" if row.get("step_in_epoch") is not None else "epoch"
        return derived(text, *(frame.value(row, name) for name in fields if row.get(name) is not None), unit=unit)
    field = next((name for name in ("step", "epoch") if row.get(name) is not None), None)
    return frame.value(row, "text") if field is None else frame.value(row, field, field)


def words_of_place(row: Event) -> str | None:
    """Where a logged step is, if the log counts steps from the start of each epoch, or prints how much of the epoch is
    done; None if it does not."""
    epoch, step, steps = (numeric_field(row, name) for name in ("epoch", "step_in_epoch", "epoch_steps"))
    share = numeric_field(row, "epoch_share")
    if epoch is not None and share is not None:
        return f"epoch {epoch - share:,.0f}, {share:.0%} done"
    if epoch is None or step is None:
        return None
    return f"epoch {epoch:,.0f}, step {step:,.0f}" + (f" of {steps:,.0f}" if steps is not None else "")


def _last_progress(place: Value, loss: Value) -> Claim:
    return (LAST_STEP_AND_LOSS if place.unit == "step" else LAST_EPOCH_AND_LOSS)(place=place, loss=loss)


@fact(LEARNING, needs=("progress",))
def trajectory(evidence: Evidence) -> Trajectory:
    """Needs a job log; otherwise missing."""
    return Trajectory(*(evidence[name] for name in LEARNING))
