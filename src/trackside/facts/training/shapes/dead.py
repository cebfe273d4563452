"""Curves that do not change, whatever the data and the optimizer do."""

from __future__ import annotations

import math

from trackside.facts import maths
from trackside.facts.training.learning import TrainingCurve, numeric_field
from trackside.facts.training.shapes.shape import Limits, Shape, Variant, from_the_start
from trackside.finding import Certainty, Sentence

DEAD_PLATEAU = Sentence(
    "the loss is {loss} at every logged step from {place} to the end ({count:logged steps}) with a gradient "
    "norm of {gradient}; the highest was {highest}",
    running="the loss has been {loss} at every logged step since {place} ({count:logged steps} so far) with a "
    "gradient norm of {gradient}; the highest was {highest}",
)
LOSS_REPEATS = Sentence(
    "the loss is {loss} at every logged step from {place} to the end ({count:logged steps}); the highest was {highest}",
    running="the loss has been {loss} at every logged step since {place} ({count:logged steps} so far); "
    "the highest was {highest}",
)
LOSS_CONSTANT = Sentence(
    "the loss is {loss} at every logged step from {place} to the end ({count:logged steps})",
    running="the loss has been {loss} at every logged step since {place} ({count:logged steps} so far)",
)
GRADIENT_VANISHED = Sentence(
    ("the loss stays near {loss} from {place} to the end ({count} of {points}); the last gradient norm is {gradient}"),
    running=(
        "the loss has stayed near {loss} since {place} ({count} of {points} so far); the last gradient norm is "
        "{gradient}"
    ),
)
RATE_NEAR_ZERO = Sentence("the loss went from {first} to {last} over {points}; the learning rate stayed at {rate}")
GRADIENT_NEAR_ZERO = Sentence(
    "the loss went from {first} to {last} over {points}; the gradient norm stayed at {gradient}"
)
LOSSES_REPEAT = Sentence("the loss repeats {count:values} over {points}, as if the weights did not change")


def dead_plateau(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """The loss repeats to the last digit at the end, far from zero; the gradient norm, if printed, is zero."""
    count = maths.plateau_length(curve.losses, limits.same_share)
    level = curve.losses[-1]
    if count < limits.min_points or not level > 0.01:
        return None
    norms = [n for row in curve.rows[-count:] if (n := numeric_field(row, "grad_norm")) is not None]
    silent = len(norms) > 2 and max(norms) <= limits.dead_gradient
    begin = len(curve.losses) - count
    if not silent and (count < 10 or count < 0.5 * len(curve.losses) or _prints_running_mean(curve)):
        return None
    before = max(maths.median(curve.losses[:begin]), *curve.losses[:3]) if begin else level
    fell_to = level < 0.1 * before and level < 0.1
    is_coarse = level < 0.1 and _spacing(set(curve.finite)) > limits.coarse_share * level
    if not silent and (fell_to or is_coarse):
        return None
    strength = Certainty.ESTABLISHED if silent else Certainty.SUPPORTED
    is_worse = begin > 0 and (silent or level > 1.02 * min(curve.losses[:begin]))
    variant: Variant = "plateau" if is_worse else "flat"
    text = DEAD_PLATEAU if silent else LOSS_REPEATS if variant == "plateau" else LOSS_CONSTANT
    return Shape(variant, strength, text, begin, begin, count)


def vanished_gradient(curve: TrainingCurve, limits: Limits) -> Shape | None:
    """The gradient norm fell to almost nothing and the loss has been constant since, far from zero. In a model that has
    merely converged, differing mini-batches keep up the norm."""
    norms = [numeric_field(row, "grad_norm") for row in curve.rows]
    finite = maths.finite_values([norm for norm in norms if norm is not None])
    if len(finite) < limits.flat_points:
        return None
    faint = min(
        limits.faint_gradient, limits.vanished_gradient_share * maths.median(finite[: max(3, len(finite) // 10)])
    )
    count = 0
    for norm in reversed(norms):
        if norm is None or not norm <= faint:
            break
        count += 1
    tail = curve.losses[len(curve.losses) - count :]
    if count < max(limits.min_points, 0.3 * len(norms)) or maths.is_falling(tail):
        return None
    if maths.median(tail) < 0.1 or maths.spread(tail) >= 0.1:
        return None
    begin = len(norms) - count
    return Shape("plateau", Certainty.SUPPORTED, GRADIENT_VANISHED, begin, len(norms) - 1, count)


def zero_rate(curve: TrainingCurve, half_done: bool, limits: Limits) -> Shape | None:
    """Flat from the first step because the learning rate or the gradient is zero throughout."""
    if curve.has_fallen or not from_the_start(curve) or not (half_done or len(curve.finite) >= 10):
        return None
    count = len(curve.finite)
    for field, limit, key in (
        ("lr", limits.dead_rate, RATE_NEAR_ZERO),
        ("grad_norm", limits.dead_gradient, GRADIENT_NEAR_ZERO),
    ):
        values = curve.series(field)
        warms_up = field == "lr" and not half_done and values and values[-1] > values[0]
        if len(values) >= limits.min_points and max(values) <= limit and not warms_up:
            return Shape("flat", Certainty.ESTABLISHED, key, 0, len(curve.rows) - 1, count)
    return None


def _prints_running_mean(curve: TrainingCurve) -> bool:
    """Whether it is Keras, which prints the mean since the epoch's start: that settles by itself."""
    return any(str(row.get("framework") or "").startswith("keras") for row in curve.rows[-1:])


def repeating_losses(curve: TrainingCurve) -> Shape | None:
    """The same few losses repeat: the same batches meet the same weights, so no step changes them."""
    values = curve.finite
    kinds = set(values)
    if len(values) < 12 or len(kinds) > len(values) / 3 or len(kinds) < 2 or min(values) < 0.05:
        return None
    spacing = _spacing(kinds)
    if spacing < 1e-12 or (max(kinds) - min(kinds)) / spacing < 50 * len(kinds) or curve.has_fallen:
        return None
    return Shape("flat", Certainty.SUPPORTED, LOSSES_REPEAT, 0, -1, len(kinds))


def _spacing(values: set[float]) -> float:
    """The distance of neighboring printed values: of bfloat16 if all have its 8 bits, else of their decimals."""
    if all((math.frexp(value)[0] * 256).is_integer() for value in values):
        return 2.0 ** (math.frexp(max(values))[1] - 8)
    return 10.0 ** -max(len(repr(value).partition(".")[2]) for value in values)
