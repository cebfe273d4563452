"""Is the shape of a loss curve wrong: not finite, risen and not come back, dead at a plateau, or flat. Pure.

Each detector looks for one shape and says where it began. They are asked in the order of how surely the
shape is a fault; a spike that recovers, a low converged plateau and noise are none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trackside.facts import maths
from trackside.facts.training.learning import Curve, number
from trackside.finding import Certainty

Variant = Literal["non-finite", "diverging", "plateau", "flat"]


@dataclass(frozen=True)
class Limits:
    """What counts as wrong."""

    least_points: int = 5
    """Fewer points have no shape (the catalogue's E3: correctness cannot be assessed from so few steps)."""
    bad_share: float = 0.1
    """Share of non-finite points that is no longer an occasional overflow. Loss scaling skips well under 1 %
    of steps after its warm-up; a real run with its weights in half precision showed a third of its points."""
    rise_ratio: float = 2.0
    """Tail over head. Over fourteen public pretraining and fine-tuning curves the largest was 0.96, and the
    highest single point 1.14 times the first."""
    lost_share: float = 0.5
    """Share of what was learned that is lost again at the tail."""
    explosion_ratio: float = 10.0
    """A level this far over the tail, or a last value this far over the first, is an explosion."""
    noise_times: float = 5.0
    """Rises below this many standard deviations of the point-to-point noise are noise."""
    dead_gradient: float = 1e-6
    """Norms of working networks are above 1e-3; a printed 0 is a dead or frozen one."""
    faint_gradient: float = 0.01
    """Monitors of training alert below it; a loss that rests at such a norm has no gradient to move it."""
    gone_share: float = 0.05
    """Of its first level: a gradient norm that is left of a network that answers the same to everything."""
    dead_rate: float = 1e-8
    """Learning rates of real schedules peak above 1e-7."""
    same_share: float = 1e-4
    """Mini-batches differ: losses equal to four digits do not come from a model that sees the data."""
    guess_tolerance: float = 0.01
    """How near to the loss of guessing counts as guessing."""
    noise_share: float = 0.05
    """Point-to-point noise of a model that guesses, over its level: it answers the same to every batch."""
    flat_points: int = 20
    """Points that a flat curve must have to be called flat from its level alone."""
    chance_ceiling: float = 12.5
    """ln of 268,000: no tokenizer in use has a larger vocabulary, so a mean cross-entropy above it is
    worse than guessing."""
    scratch_level: float = 4.0
    """Cross-entropy (nats) that only a model that knows next to nothing has, 54 equally likely tokens."""


LANGUAGE = (
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
GUESSES = tuple(math.log(k) for k in (2, 10, 100, 1000))
"""Losses of guessing among the usual numbers of classes."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A wrong shape: its sentence ``key``, the place in ``curve.rows`` where it began, and one that shows it best.

    For ``steps_skipped`` the places are in ``curve.points``: such lines may print no loss.
    """

    variant: Variant
    certainty: Certainty
    key: str
    onset: int
    witness: int
    count: int = 0
    """Points that show it."""


def wrong_shape(curve: Curve, finished: bool, limits: Limits) -> Shape | None:
    """The first wrong shape found; ``finished``: the run did at least half of what was planned."""
    shape = _non_finite(curve, limits) or _zero_after_loss(curve, limits)
    shape = shape or _gradient_gone(curve, limits) or _scale_collapsed(curve)
    if shape is not None or len(curve.finite) < 2:
        return shape
    if len(curve.finite) < limits.least_points:
        return _absurd(curve, limits)
    shape = _dead(curve, limits) or _no_rate(curve, finished, limits) or _repeats(curve)
    if shape is not None or not curve.level_has_meaning:
        return shape
    return (
        _vanished(curve, limits)
        or _risen(curve, limits)
        or _lost(curve, limits)
        or _worse_than_guessing(curve, finished, limits)
        or _flat(curve, finished, limits)
    )


# -- not finite


def _non_finite(curve: Curve, limits: Limits) -> Shape | None:
    bad = [place for place, loss in enumerate(curve.losses) if not math.isfinite(loss)]
    if not bad:
        return None
    last = maths.trailing(curve.losses, maths.not_finite)
    if last >= 2:
        begin = len(curve.losses) - last
        return Shape("non-finite", Certainty.ESTABLISHED, "not_finite_to_the_end", begin, begin, last)
    if last or (len(bad) > 1 and len(bad) >= limits.bad_share * len(curve.losses)):
        strength = Certainty.ESTABLISHED if len(bad) > 2 else Certainty.SUPPORTED
        return Shape("non-finite", strength, "not_finite_again", bad[0], bad[-1], len(bad))
    return None


def _zero_after_loss(curve: Curve, limits: Limits) -> Shape | None:
    """Older Transformers prints 0.0 for nan and no gradient norm: a loss that drops to 0.0, or never was more."""
    zeros = maths.trailing(curve.losses, lambda loss: loss == 0)
    before = curve.losses[: len(curve.losses) - zeros]
    if zeros < 3 or not curve.level_has_meaning:
        return None
    if not before:
        enough = zeros >= limits.least_points
        return Shape("non-finite", Certainty.SUPPORTED, "zero_throughout", 0, 0, zeros) if enough else None
    level = maths.median(before[-3:])
    if level > 0.1 and level > 0.2 * maths.median(before[:3]):
        return Shape("non-finite", Certainty.SUPPORTED, "zero_at_once", len(before), len(before), zeros)
    return None


def _gradient_gone(curve: Curve, limits: Limits) -> Shape | None:
    """Gradient norms not finite to the end, while the loss no longer falls."""
    norms = [number(row, "grad_norm") for row in curve.rows]
    count = 0
    for norm in reversed(norms):
        if norm is None or math.isfinite(norm):
            break
        count += 1
    if count < 3 or count < limits.bad_share * len(norms) or maths.falling(curve.losses[-count:]):
        return None
    begin = len(norms) - count
    return Shape("non-finite", Certainty.SUPPORTED, "gradient_not_finite", begin, begin, count)


def _scale_collapsed(curve: Curve) -> Shape | None:
    """Nearly every recent step skipped for overflow: loss scaling has found no scale that works."""
    counted = [row for row in curve.points if number(row, "skipped") is not None and number(row, "step") is not None]
    growing = 0
    for before, after in zip(reversed(counted[:-1]), reversed(counted[1:]), strict=False):
        steps = (number(after, "step") or 0) - (number(before, "step") or 0)
        skipped = (number(after, "skipped") or 0) - (number(before, "skipped") or 0)
        own = number(after, "skipped") or 0
        if steps <= 0 or max(skipped, own if own <= steps else 0) < 0.8 * steps:
            break
        growing += 1
    if growing < 3:
        return None
    first = counted[-growing - 1]
    begin = next(place for place, row in enumerate(curve.points) if row is first)
    return Shape("non-finite", Certainty.SUPPORTED, "steps_skipped", begin, -1, growing)


def _absurd(curve: Curve, limits: Limits) -> Shape | None:
    """Too few points for a shape, but an explosion needs no more."""
    first, last = curve.finite[0], curve.finite[-1]
    if curve.level_has_meaning and last > limits.explosion_ratio * first and last > 100:
        place = _nth_finite(curve, -1)
        return Shape("diverging", Certainty.SUPPORTED, "exploded", place, place, 1)
    return None


# -- dead: neither the data nor the optimizer moves it


def _dead(curve: Curve, limits: Limits) -> Shape | None:
    """The loss repeats to the digit at the end, far from zero; the gradient, where printed, is zero."""
    count = maths.plateau(curve.losses, limits.same_share)
    level = curve.losses[-1]
    if count < limits.least_points or not level > 0.01:
        return None
    norms = [n for row in curve.rows[-count:] if (n := number(row, "grad_norm")) is not None]
    silent = len(norms) > 2 and max(norms) <= limits.dead_gradient
    begin = len(curve.losses) - count
    if not silent and (count < 10 or count < 0.5 * len(curve.losses) or _running_mean(curve)):
        return None
    fell_to = begin > 0 and level < 0.1 * maths.median(curve.losses[:begin]) and level < 0.1 and not silent
    if fell_to:
        return None
    strength = Certainty.ESTABLISHED if silent else Certainty.SUPPORTED
    variant: Variant = "plateau" if begin > 0 else "flat"
    return Shape(variant, strength, "dead_plateau" if silent else "same_value", begin, begin, count)


def _vanished(curve: Curve, limits: Limits) -> Shape | None:
    """The gradient norm fell to next to nothing of what it was and the loss rests since, far from zero: mini-batches
    that differ keep up the norm of a model that has only converged."""
    norms = [number(row, "grad_norm") for row in curve.rows]
    told = maths.finite([norm for norm in norms if norm is not None])
    if len(told) < limits.flat_points:
        return None
    faint = min(limits.faint_gradient, limits.gone_share * maths.median(told[: max(3, len(told) // 10)]))
    count = 0
    for norm in reversed(norms):
        if norm is None or not norm <= faint:
            break
        count += 1
    rest = curve.losses[len(curve.losses) - count :]
    if count < max(limits.least_points, 0.3 * len(norms)) or maths.falling(rest):
        return None
    if maths.median(rest) < 0.1 or maths.spread(rest) >= 0.1:
        return None
    begin = len(norms) - count
    return Shape("plateau", Certainty.SUPPORTED, "vanished", begin, len(norms) - 1, count)


def _no_rate(curve: Curve, finished: bool, limits: Limits) -> Shape | None:
    """Flat from the first step because the learning rate or the gradient is zero all along."""
    if curve.fell or not _from_the_start(curve) or not (finished or len(curve.finite) >= 10):
        return None
    count = len(curve.finite)
    for field, limit, key in (("lr", limits.dead_rate, "no_rate"), ("grad_norm", limits.dead_gradient, "no_gradient")):
        values = curve.series(field)
        if len(values) >= limits.least_points and max(values) <= limit:
            return Shape("flat", Certainty.ESTABLISHED, key, 0, len(curve.rows) - 1, count)
    return None


def _running_mean(curve: Curve) -> bool:
    """Keras prints the mean since the epoch's start: it settles by itself."""
    return any(str(row.get("framework") or "").startswith("keras") for row in curve.rows[-1:])


# -- level


def _risen(curve: Curve, limits: Limits) -> Shape | None:
    """The tail stays far above the head; or everything after the first few points is an explosion of the first."""
    values = curve.finite
    few = max(1, len(values) // 10)
    if min(values[few:]) > limits.rise_ratio * 1.5 * values[0] > 0:
        return Shape("diverging", Certainty.ESTABLISHED, "risen", _nth_finite(curve, few), -1, len(values) - few)
    size = max(3, len(values) // 20)
    head, tail = maths.median(values[:size]), maths.median(values[-max(3, len(values) // 10) :])
    high = maths.trailing(values, lambda loss: loss > 0.75 * limits.rise_ratio * head)
    if tail <= limits.rise_ratio * head or tail - head < 3 * maths.noise(values[:size] + values[-high:]):
        return None
    if high < max(3, 0.1 * len(values)):
        return None
    begin = _nth_finite(curve, -high)
    strong = len(values) >= 10 and high >= 5 and tail > 1.5 * limits.rise_ratio * head
    still = _settled(curve, high, limits)
    strength = Certainty.ESTABLISHED if strong or still else Certainty.SUPPORTED
    return Shape("plateau" if still else "diverging", strength, "risen", begin, -1, high)


def _settled(curve: Curve, high: int, limits: Limits) -> bool:
    """Whether the last ``high`` losses came to rest, and the gradient norm, where printed, is next to nothing of what
    it was."""
    norms = maths.finite(curve.series("grad_norm"))
    if high < limits.least_points or len(norms) < limits.least_points:
        return False
    gone = maths.median(norms[-5:]) <= limits.gone_share * maths.median(norms[: max(3, len(norms) // 5)])
    return gone and maths.spread(_rest(curve.finite, high, limits)) < 0.1


def _rest(values: Sequence[float], high: int, limits: Limits) -> Sequence[float]:
    """Where the last ``high`` losses came to, the way up to there left out."""
    return values[-max(limits.least_points, 3 * high // 4) :]


def _lost(curve: Curve, limits: Limits) -> Shape | None:
    """It learned, then lost at least half of that again, and stayed there."""
    values = curve.finite
    if len(values) < 10:
        return None
    head = maths.median(values[: max(3, len(values) // 20)])
    place, best = maths.best_level(values)
    tail = maths.median(values[-max(3, len(values) // 10) :])
    learned, lost = head - best, tail - best
    level = best + 0.8 * limits.lost_share * learned
    high = maths.trailing(values, lambda loss: loss > level)
    noise = limits.noise_times * max(maths.roughness(values[: place + 1]), maths.roughness(values[place:]))
    ratio = 1.5 if lost < learned else 1.2  # worse than it began is no other stretch of the data
    if min(learned, lost) <= noise or lost < limits.lost_share * learned or tail < ratio * best:
        return None
    if high < max(5, 0.1 * len(values)):
        return None
    still = _settled(curve, high, limits)
    flat = still or maths.spread(_rest(values, high, limits)) < 0.1
    strength = Certainty.ESTABLISHED if still else Certainty.SUPPORTED
    return Shape("plateau" if flat else "diverging", strength, "lost", _nth_finite(curve, -high), -1, high)


def _worse_than_guessing(curve: Curve, finished: bool, limits: Limits) -> Shape | None:
    """A mean cross-entropy above the loss of guessing that never came down to that of a model.

    Either it stayed above and is no lower than it began, or the first printed mean was already an explosion
    that went on, and the tail still knows next to nothing. The first steps of large models do so for a while.
    """
    values = curve.finite
    if len(values) < 10 or not finished:
        return None
    first, tail = values[0], maths.median(values[-max(3, len(values) // 5) :])
    if not _language(curve) or max(first, tail) <= limits.chance_ceiling:
        return None
    stayed = min(values) > limits.chance_ceiling and tail >= first
    went_on = max(values) > limits.rise_ratio * first or first > limits.explosion_ratio * limits.chance_ceiling
    if not stayed and not (went_on and tail > limits.scratch_level):
        return None
    strong = stayed and max(values) > 1.5 * first
    strength = Certainty.ESTABLISHED if strong else Certainty.SUPPORTED
    return Shape("diverging", strength, "worse_than_guessing", 0, -1, len(values))


def _repeats(curve: Curve) -> Shape | None:
    """The same few losses over and over: the same batches meet the same weights, so no step changes them."""
    values = curve.finite
    kinds = set(values)
    if len(values) < 12 or len(kinds) > len(values) / 3 or len(kinds) < 2 or min(values) < 0.05:
        return None
    digits = max(len(repr(value).partition(".")[2]) for value in kinds)
    cells = (max(kinds) - min(kinds)) * 10**digits
    if digits > 12 or cells < 50 * len(kinds) or curve.fell:
        return None
    return Shape("flat", Certainty.SUPPORTED, "repeats", 0, -1, len(kinds))


def _flat(curve: Curve, finished: bool, limits: Limits) -> Shape | None:
    """At the loss of guessing from the run's start to its end; or thrown back to it by an explosion."""
    values = curve.finite
    if len(values) < limits.flat_points or not finished or not _from_the_start(curve):
        return None
    settled = values[max(1, len(values) // 20) :]
    level, noise = maths.median(settled), maths.noise(settled)
    head, tail = maths.ends(settled)
    still = head - tail <= 2 * limits.guess_tolerance * level and noise <= limits.noise_share * level
    if not still or not maths.steady(settled, 5 * limits.guess_tolerance, 0.9):
        return None
    guess = any(abs(level - at) <= 0.5 * limits.guess_tolerance * at for at in GUESSES)
    if not guess and level < limits.scratch_level:
        return None
    exploded = max(values) > 3 * max(level, values[0])
    variant: Variant = "plateau" if exploded else "flat"
    return Shape(variant, Certainty.SUPPORTED, "guessing", 0, -1, len(settled))


def _from_the_start(curve: Curve) -> bool:
    """Whether the first point is the run's first: no excerpt from the middle, no continuation."""
    steps = [step for row in curve.rows[:3] if (step := number(row, "step")) is not None]
    if len(steps) < 2:
        return True
    return steps[0] <= 2 * max(1.0, steps[-1] - steps[0])


def _language(curve: Curve) -> bool:
    return any(str(row.get("framework") or row.parser).startswith(LANGUAGE) for row in curve.rows[:1])


def _nth_finite(curve: Curve, nth: int) -> int:
    """Place in ``curve.losses`` of the nth finite one."""
    return [place for place, loss in enumerate(curve.losses) if math.isfinite(loss)][nth]
