"""Loss levels that a learning run does not have: risen, lost again, worse than guessing, or flat."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from trackside.facts import maths
from trackside.facts.training.learning import TrainingCurve
from trackside.facts.training.shapes.shape import Limits, Shape, Variant, from_the_start, nth_finite
from trackside.finding import Certainty, Sentence

LOSS_ROSE = Sentence(
    "the loss rose far above its start and stayed there from {place}: {first} at first, {last} at the "
    "end, {highest} at most"
)
LOSS_FELL_AND_ROSE = Sentence(
    "the loss fell from {first} to {lowest}, then rose and stayed high from {place}: {last} at the end"
)
WORSE_THAN_GUESSING = Sentence(
    "the loss was above that of random guessing even with the largest vocabulary of any tokenizer, and did not "
    "recover: {first} at first, {highest} at most, {lowest} at least, {last} at the end"
)
STAYS_FLAT = Sentence(
    "the loss stayed flat for the last {count} of {points}: {begin} at the first of these, {last} at the end"
)
AT_GUESSING = Sentence(
    "the loss stayed at {guess}, as if the model guessed among {classes}, for the last {count} of {points}: {begin} at "
    "the first of these, {last} at the end"
)


LANGUAGE_FRAMEWORKS = (
    "hf",
    "transformers",
    "trl",
    "llama",
    "axolotl",
    "unsloth",
    "megatron",
    "torchtitan",
    "nemo",
    "deepspeed-chat",
)
"""Frameworks (by the start of the parser's id) whose loss is a mean cross-entropy over tokens."""


COMMON_CLASSES = (2, 10, 100, 1000)
"""Common numbers of classes; the loss of guessing among them is their logarithm."""


def risen_loss(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """The tail stays far above the head; or everything after the first few points is an explosion."""
    values = curve.finite
    n_first = max(1, len(values) // 10)
    if min(values[n_first:]) > limits.rise_ratio * 1.5 * values[0] > 0:
        return Shape(
            "diverging",
            Certainty.ESTABLISHED,
            LOSS_ROSE,
            nth_finite(curve, n_first),
            -1,
            len(values) - n_first,
            of_level=True,
        )
    size = max(3, len(values) // 20)
    head, tail = maths.median(values[:size]), maths.median(values[-max(3, len(values) // 10) :])
    n_high = maths.trailing_count(values, lambda loss: loss > 0.75 * limits.rise_ratio * head)
    if tail <= max(values[:size]):  # the first losses themselves reach the level of the last ones
        return None
    if tail <= limits.rise_ratio * head or tail - head < 3 * maths.noise(values[:size] + values[-n_high:]):
        return None
    if n_high < max(3, 0.1 * len(values)):
        return None
    begin = nth_finite(curve, -n_high)
    strong = len(values) >= 10 and n_high >= 5 and tail > 1.5 * limits.rise_ratio * head
    settled = _is_settled(curve, n_high, limits)
    strength = Certainty.ESTABLISHED if strong or settled else Certainty.SUPPORTED
    return Shape("plateau" if settled else "diverging", strength, LOSS_ROSE, begin, -1, n_high, of_level=True)


def _is_settled(curve: TrainingCurve, n_high: int, limits: Limits) -> bool:
    """Whether the last ``n_high`` losses are constant and the gradient norm, if printed, is almost zero compared with
    its start."""
    norms = maths.finite_values(curve.series("grad_norm"))
    if n_high < limits.min_points or len(norms) < limits.min_points:
        return False
    vanished = maths.median(norms[-5:]) <= limits.vanished_gradient_share * maths.median(
        norms[: max(3, len(norms) // 5)]
    )
    return vanished and maths.spread(_level_after_rise(curve.finite, n_high, limits)) < 0.1


def _level_after_rise(values: Sequence[float], n_high: int, limits: Limits) -> Sequence[float]:
    """The level of the last ``n_high`` losses, without the rise to it."""
    return values[-max(limits.min_points, 3 * n_high // 4) :]


def lost_progress(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """The loss fell, then lost at least half of that again, and stayed there."""
    values = curve.finite
    if len(values) < 10:
        return None
    head = maths.median(values[: max(3, len(values) // 20)])
    index, best = maths.best_level(values)
    tail = maths.median(values[-max(3, len(values) // 10) :])
    learned, relapse = head - best, tail - best
    if learned < limits.min_learned_share * head:
        return None
    level = best + 0.8 * limits.lost_share * learned
    n_high = maths.trailing_count(values, lambda loss: loss > level)
    noise = limits.max_noise_ratio * max(maths.roughness(values[: index + 1]), maths.roughness(values[index:]))
    ratio = 1.5 if relapse < learned else 1.2  # worse than it began is not just other data
    if min(learned, relapse) <= noise or relapse < limits.lost_share * learned or tail < ratio * best:
        return None
    if n_high < max(5, 0.1 * len(values)):
        return None
    settled = _is_settled(curve, n_high, limits)
    is_flat = settled or maths.spread(_level_after_rise(values, n_high, limits)) < 0.1
    strength = Certainty.ESTABLISHED if settled else Certainty.SUPPORTED
    return Shape(
        "plateau" if is_flat else "diverging",
        strength,
        LOSS_FELL_AND_ROSE,
        nth_finite(curve, -n_high),
        -1,
        n_high,
        of_level=True,
    )


def worse_than_guessing(curve: TrainingCurve, half_done: bool, limits: Limits) -> Shape | None:
    """A mean cross-entropy above the loss of guessing that never fell to that of a model.

    Either it stayed above and is no lower than at its start, or the first printed mean was already an explosion that
    continued, and the tail is still near guessing. The first steps of large models do so for a while.
    """
    values = curve.finite
    if len(values) < 10 or not half_done:
        return None
    first, tail = values[0], maths.median(values[-max(3, len(values) // 5) :])
    if not _is_language_model(curve) or max(first, tail) <= limits.chance_ceiling:
        return None
    stayed = min(values) > limits.chance_ceiling and tail >= first
    went_on = max(values) > limits.rise_ratio * first or first > limits.explosion_ratio * limits.chance_ceiling
    if not stayed and not (went_on and tail > limits.scratch_level):
        return None
    strong = stayed and max(values) > 1.5 * first
    strength = Certainty.ESTABLISHED if strong else Certainty.SUPPORTED
    return Shape("diverging", strength, WORSE_THAN_GUESSING, 0, -1, len(values))


def flat_curve(curve: TrainingCurve, half_done: bool, limits: Limits) -> Shape | None:
    """At the loss of guessing, or at another high level, from the run's start to its end, or back to it after an
    explosion."""
    values = curve.finite
    if len(values) < limits.flat_points or not half_done or not from_the_start(curve):
        return None
    settled = values[max(1, len(values) // 20) :]
    level, noise = maths.median(settled), maths.noise(settled)
    head, tail = maths.ends(settled)
    is_level = head - tail <= 2 * limits.guess_tolerance * level and noise <= limits.noise_share * level
    changes = [after - before for before, after in pairwise(settled) if after != before]
    if sum(change < 0 for change in changes) > limits.falling_share * len(changes):  # slowly, but at nearly every step
        return None
    if not is_level or not maths.is_steady(settled, 5 * limits.guess_tolerance, 0.9):
        return None
    tolerance = 0.5 * limits.guess_tolerance
    guesses = (classes for classes in COMMON_CLASSES if abs(level / math.log(classes) - 1) <= tolerance)
    classes = next(guesses, None)
    if classes is None and level < limits.scratch_level:
        return None
    sentence = STAYS_FLAT if classes is None else AT_GUESSING
    exploded = max(values) > 3 * max(level, values[0])
    variant: Variant = "plateau" if exploded else "flat"
    return Shape(variant, Certainty.SUPPORTED, sentence, 0, -1, len(settled), classes=classes)


def _is_language_model(curve: TrainingCurve) -> bool:
    return any(str(row.get("framework") or row.parser).startswith(LANGUAGE_FRAMEWORKS) for row in curve.rows[:1])
