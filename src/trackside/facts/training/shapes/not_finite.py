"""Losses and gradients that are not finite, or that a framework prints as 0."""

from __future__ import annotations

import math

from trackside.facts import maths
from trackside.facts.training.learning import TrainingCurve, numeric_field
from trackside.facts.training.shapes.shape import Limits, Shape, nth_finite
from trackside.finding import Certainty, Sentence

NOT_FINITE_TO_THE_END = Sentence(
    "the loss is not finite from {place} to the end ({count} of {points}); it started at {first}",
    running="the loss is not finite from {place} on ({count} of {points} so far); it started at {first}",
)
HIDDEN_TO_THE_END = Sentence(
    "the loss is not finite from {place} to the end ({count} of {points}; the trainer prints NaN as zero); it started "
    "at {first}",
    running="the loss is not finite from {place} on ({count} of {points} so far; the trainer prints NaN as zero); it "
    "started at {first}",
)
NEVER_FINITE = Sentence("the loss is not finite at any of {points}")
ONLY_LOSS_NOT_FINITE = Sentence(
    "the only logged loss is {loss}, at {place}", running="the only loss so far is {loss}, at {place}"
)
NOT_FINITE_AGAIN = Sentence(
    "the loss was not finite at {count} of {points}, first at {place}; the finite values range from "
    "{lowest} to {highest}"
)
ZERO_THROUGHOUT = Sentence("the loss is {loss} at all {count:logged steps}: a filtered NaN, or nothing to learn from")
ZERO_AT_ONCE = Sentence(
    "the loss dropped to {loss} at {place} and stayed there for {count:logged steps}, as a filtered NaN does"
)
GRADIENT_NOT_FINITE = Sentence(
    "the gradient norm is {gradient} from {place} to the end ({count:logged steps}) and the loss no longer falls",
    running="the gradient norm is {gradient} from {place} on ({count:logged steps} so far) and the loss no "
    "longer falls",
)
REWARD_NOT_FINITE = Sentence(
    "the reward is {reward} from {place} to the end ({count:logged steps})",
    running="the reward is {reward} from {place} on ({count:logged steps} so far)",
)
STEPS_SKIPPED = Sentence("nearly every recent step was skipped for gradient overflow: {skipped} at step {step}")
LOSS_EXPLODED = Sentence("the loss went from {first} to {last}")

PRINTS_NAN = ("custom", "keras")
"""Where nan is printed as nan: a loss that is zero throughout is a part that is not in use, or the end of a training
whose loss fell to zero."""


def non_finite_loss(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """Losses that are not finite to the end, or repeatedly."""
    not_finite = [index for index, loss in enumerate(curve.losses) if not math.isfinite(loss)]
    if not not_finite:
        return None
    n_trailing = maths.trailing_count(curve.losses, maths.is_not_finite)
    if len(not_finite) == len(curve.losses):
        if len(not_finite) == 1:
            return Shape("non-finite", Certainty.SUPPORTED, ONLY_LOSS_NOT_FINITE, 0, 0, 1)
        return Shape("non-finite", Certainty.ESTABLISHED, NEVER_FINITE, 0, 0, len(not_finite))
    if n_trailing >= 2:
        begin = len(curve.losses) - n_trailing
        sentence = HIDDEN_TO_THE_END if numeric_field(curve.rows[begin], "loss") == 0 else NOT_FINITE_TO_THE_END
        return Shape("non-finite", Certainty.ESTABLISHED, sentence, begin, begin, n_trailing)
    if n_trailing or (len(not_finite) > 1 and len(not_finite) >= limits.bad_share * len(curve.losses)):
        strength = Certainty.ESTABLISHED if len(not_finite) > 2 else Certainty.SUPPORTED
        return Shape("non-finite", strength, NOT_FINITE_AGAIN, not_finite[0], not_finite[-1], len(not_finite))
    return None


def zero_after_loss(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """Older Transformers prints 0.0 for nan and no gradient norm: a loss that drops to 0.0, or was never higher."""
    zeros = maths.trailing_count(curve.losses, lambda loss: loss == 0)
    before = curve.losses[: len(curve.losses) - zeros]
    if zeros < 3 or not curve.level_has_meaning:
        return None
    if not before:
        enough = zeros >= limits.min_points and curve.rows[0].get("framework") not in PRINTS_NAN
        return Shape("non-finite", Certainty.SUPPORTED, ZERO_THROUGHOUT, 0, 0, zeros) if enough else None
    level = maths.median(before[-3:])
    if level > 0.1 and level > 0.2 * maths.median(before[:3]):
        return Shape("non-finite", Certainty.SUPPORTED, ZERO_AT_ONCE, len(before), len(before), zeros)
    return None


def non_finite_gradient(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """Gradient norms that are not finite to the end, while the loss no longer falls."""
    norms = [numeric_field(row, "grad_norm") for row in curve.rows]
    count = 0
    for norm in reversed(norms):
        if norm is None or math.isfinite(norm):
            break
        count += 1
    if count < 3 or count < limits.bad_share * len(norms) or maths.is_falling(curve.losses[-count:]):
        return None
    begin = len(norms) - count
    return Shape("non-finite", Certainty.SUPPORTED, GRADIENT_NOT_FINITE, begin, begin, count)


def non_finite_reward(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """Rewards, or reward margins, that are not finite to the end: nor are the model's outputs, whatever the loss is."""
    rewards = [numeric_field(row, "reward") for row in curve.rows]
    count = maths.trailing_count([0.0 if reward is None else reward for reward in rewards], maths.is_not_finite)
    if count < min(3, max(2, len(rewards))) or count < limits.bad_share * len(rewards):
        return None
    begin = len(rewards) - count
    return Shape("non-finite", Certainty.SUPPORTED, REWARD_NOT_FINITE, begin, begin, count)


def collapsed_loss_scale(curve: TrainingCurve) -> Shape | None:
    """Nearly every recent step skipped for overflow: loss scaling found no scale that works."""
    counted = [
        row
        for row in curve.points
        if numeric_field(row, "skipped") is not None and numeric_field(row, "step") is not None
    ]
    growing = 0
    for before, after in zip(reversed(counted[:-1]), reversed(counted[1:]), strict=False):
        steps = (numeric_field(after, "step") or 0) - (numeric_field(before, "step") or 0)
        skipped = (numeric_field(after, "skipped") or 0) - (numeric_field(before, "skipped") or 0)
        total_skipped = numeric_field(after, "skipped") or 0
        if steps <= 0 or max(skipped, total_skipped if total_skipped <= steps else 0) < 0.8 * steps:
            break
        growing += 1
    if growing < 3:
        return None
    first = counted[-growing - 1]
    begin = next(index for index, row in enumerate(curve.points) if row is first)
    return Shape("non-finite", Certainty.SUPPORTED, STEPS_SKIPPED, begin, -1, growing, of_points=True)


def explosion(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """An explosion, which is conclusive even with too few points for a shape."""
    first, last = curve.finite[0], curve.finite[-1]
    if curve.level_has_meaning and last > limits.explosion_ratio * first and last > 100:
        index = nth_finite(curve, -1)
        return Shape("diverging", Certainty.SUPPORTED, LOSS_EXPLODED, index, index, 1)
    return None
