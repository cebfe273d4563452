"""The shape of the loss curve, if it is wrong: not finite, risen without recovery, dead at a plateau, or flat.

Each detector in ``shapes/`` finds one shape and its onset. They run in order of certainty; a spike that recovers, a low
converged plateau and noise are not faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trackside.evidence import Value, derived
from trackside.facts import maths
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import follows
from trackside.facts.training.evaluations import Evaluations
from trackside.facts.training.learning import TrainingCurve, Trajectory, numeric_field
from trackside.facts.training.loss_curve import LossCurve
from trackside.facts.training.scores import Scores
from trackside.facts.training.shapes.dead import dead_plateau, repeating_losses, vanished_gradient, zero_rate
from trackside.facts.training.shapes.level import flat_curve, lost_progress, risen_loss, worse_than_guessing
from trackside.facts.training.shapes.not_finite import (
    collapsed_loss_scale,
    explosion,
    non_finite_gradient,
    non_finite_loss,
    non_finite_reward,
    zero_after_loss,
)
from trackside.facts.training.shapes.shape import SAME_LEVEL, Limits, Shape, nth_finite
from trackside.finding import Claim, Sentence
from trackside.model import Event

FELL_BEFORE = Sentence("before that, the loss fell to {lowest} ({place})")
FELL_BEFORE_FROM = Sentence("before that, the loss fell to {lowest} ({place}), from {first} at first")
FIRST_LOSS = Sentence("the first logged loss was {first}")
GRADIENT_GONE = Sentence("the loss no longer changes, and the last gradient norm is {gradient}")


@dataclass(frozen=True, eq=False)
class LossShape:
    """How the loss fails to fall (not finite, rising, flat, ...), if it does."""

    shape: Shape | None
    """None if no detector found a fault."""
    onset: Event | None
    """The point at which it began."""
    shows: tuple[Claim, ...]
    judgeable: bool
    """Whether there are enough points for a shape."""
    onset_position: Value | None = None
    """The step or epoch of the onset; None if it is the first point, or unknown."""


@fact(limits=Limits())
def loss_shape(
    curve: LossCurve,
    trajectory: Maybe[Trajectory],
    ending: Ending,
    evaluations: Evaluations,
    scores: Scores,
    limits: Limits,
) -> LossShape:
    """Needs a loss curve."""
    training_curve = curve.curve
    judgeable = len(training_curve.finite) >= limits.min_points
    half_done = _is_half_done(training_curve, trajectory, ending)
    shape = wrong_values(training_curve, limits)
    if shape is None:
        training_curve = training_curve.without_running_means
        shape = wrong_level(training_curve, half_done, limits)
    if (
        shape is not None
        and shape.of_level
        and _improved_after(_rows(training_curve, shape)[shape.onset], evaluations, scores)
    ):
        shape = None  # the loss is printed in another scale, or the data became harder
    if shape is None:
        return LossShape(None, None, (), judgeable)
    began_later = shape.onset > 0 and not shape.of_points
    place = training_curve.place(shape.onset) if began_later else None
    claims = _claims(training_curve, shape)
    if training_curve.counts_epochs:
        claims = list(map(_of_epochs, claims))
    shows = (*claims, *curve.last_attempt_claims)
    return LossShape(shape, _rows(training_curve, shape)[shape.onset], shows, judgeable, place)


def _improved_after(onset: Event, evaluations: Evaluations, scores: Scores) -> bool:
    """Whether the model was better after a point than before it, by evaluations or by a score."""
    series = [([row for row, _ in evaluations.losses], [-loss for _, loss in evaluations.losses])]
    series += [(list(one.rows), one.goodness) for one in scores.series]
    for rows, goodness in series:
        after = [value for row, value in zip(rows, goodness, strict=True) if follows(row, onset)]
        before = goodness[: len(goodness) - len(after)]
        if len(after) > 1 and before and maths.median(after[-2:]) > max(before[-1], maths.median(before)):
            return True
    return False


def wrong_values(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """The first wrong shape that single values show: not finite, or far too large in a short curve."""
    shape = non_finite_loss(curve, limits) or zero_after_loss(curve, limits)
    shape = shape or non_finite_gradient(curve, limits) or non_finite_reward(curve, limits)
    shape = shape or collapsed_loss_scale(curve)
    if shape is not None or len(curve.finite) < 2 or len(curve.finite) >= limits.min_points:
        return shape
    return explosion(curve, limits)


def wrong_level(curve: TrainingCurve, half_done: bool, limits: Limits) -> Shape | None:
    """The first wrong shape of the curve as a whole; ``half_done``: the run completed at least half of its plan."""
    if len(curve.finite) < max(2, limits.min_points):
        return None
    shape = dead_plateau(curve, limits) or zero_rate(curve, half_done, limits) or repeating_losses(curve)
    if shape is not None or not curve.level_has_meaning:
        return shape
    return (
        vanished_gradient(curve, limits)
        or risen_loss(curve, limits)
        or lost_progress(curve, limits)
        or worse_than_guessing(curve, half_done, limits)
        or flat_curve(curve, half_done, limits)
    )


def _is_half_done(curve: TrainingCurve, trajectory: Maybe[Trajectory], ending: Ending) -> bool:
    """Whether at least half of the plan was completed, so that a flat curve is not a warm-up."""
    if ending.completed is not None:
        return True
    if not isinstance(trajectory, Trajectory) or trajectory.done is None or trajectory.planned is None:
        return len(curve.frame) >= 100
    return trajectory.done.number >= 0.5 * trajectory.planned.number


def _rows(curve: TrainingCurve, shape: Shape) -> tuple[Event, ...]:
    return curve.points if shape.of_points else curve.rows


def _claims(curve: TrainingCurve, shape: Shape) -> list[Claim]:
    rows = _rows(curve, shape)
    values: dict[str, Value] = {}
    if shape.of_points:
        values["skipped"] = curve.frame.value(rows[-1], "skipped", "steps")
        values["step"] = curve.frame.value(rows[-1], "step")
    else:
        values |= {"place": curve.place(shape.onset), "loss": curve.loss(shape.witness), "first": curve.first_finite}
        lowest = curve.losses.index(min(curve.finite)) if curve.finite else 0
        highest = curve.losses.index(max(curve.finite)) if curve.finite else 0
        values |= {"lowest": curve.loss(lowest), "highest": curve.loss(highest), "last": curve.loss(-1)}
    for field, name in (("grad_norm", "gradient"), ("reward", "reward"), ("lr", "rate")):
        printed = [row for row in rows[shape.onset :] or rows if numeric_field(row, field) is not None]
        if printed:
            values[name] = curve.frame.value(printed[-1], field)
    values["points"] = derived(len(curve.rows), curve.count, unit="logged steps")  # also those that print no loss
    values["count"] = derived(shape.count, curve.count)
    if "begin" in shape.sentence.placeholders:
        values["begin"] = curve.loss(nth_finite(curve, -shape.count))
    if shape.classes is not None:
        values["guess"] = derived(round(math.log(shape.classes), 3), curve.count)
        values["classes"] = derived(shape.classes, curve.count, unit="classes")
    claims = [shape.sentence(**{name: values[name] for name in values if name in shape.sentence.placeholders})]
    if "begin" in values and not math.isclose(values["begin"].number, values["first"].number, rel_tol=SAME_LEVEL):
        claims.append(FIRST_LOSS(first=values["first"]))
    if not shape.of_points and "lowest" not in shape.sentence.placeholders:
        claims += _fell_before(curve, shape)
    if shape.of_level and shape.variant == "plateau" and "gradient" in values:
        claims.append(GRADIENT_GONE(gradient=values["gradient"]))
    return claims


def _of_epochs(claim: Claim) -> Claim:
    """The claim about a curve that has one point per epoch."""
    texts = (text.replace("logged step", "logged epoch") for text in (claim.sentence.text, claim.sentence.running))
    units = {name: value.unit.replace("logged step", "logged epoch") for name, value in claim.values.items()}
    return Claim(Sentence(*texts), {name: replace(value, unit=units[name]) for name, value in claim.values.items()})


def _fell_before(curve: TrainingCurve, shape: Shape) -> list[Claim]:
    """The claim that the loss fell before the onset, if it did."""
    finite = [index for index in range(shape.onset) if math.isfinite(curve.losses[index])]
    lowest = min(finite, key=lambda index: curve.losses[index], default=None)
    if lowest is None or not curve.level_has_meaning or curve.losses[lowest] >= curve.losses[finite[0]]:
        return []
    values = {"lowest": curve.loss(lowest), "place": curve.place(lowest)}
    if "first" in shape.sentence.placeholders:
        return [FELL_BEFORE(**values)]
    return [FELL_BEFORE_FROM(**values, first=curve.loss(finite[0]))]
