"""A wrong shape of a loss curve, and what counts as one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trackside.facts.training.learning import Curve, number
from trackside.finding import Certainty, Sentence

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


@dataclass(frozen=True, slots=True)
class Shape:
    """A wrong shape: its sentence, the index in ``curve.rows`` at which it began, and one that shows it best."""

    variant: Variant
    certainty: Certainty
    sentence: Sentence
    onset: int
    witness: int
    count: int = 0
    """Points that show it."""
    of_points: bool = False
    """Whether the indices are in ``curve.points``: such lines may print no loss."""
    of_level: bool = False
    """Whether the loss went up and stayed up."""


def from_the_start(curve: Curve) -> bool:
    """Whether the first point is the run's first: no excerpt from the middle, no continuation."""
    steps = [step for row in curve.rows[:3] if (step := number(row, "step")) is not None]
    if len(steps) < 2:
        return True
    return steps[0] <= 2 * max(1.0, steps[-1] - steps[0])


def nth_finite(curve: Curve, nth: int) -> int:
    """Index in ``curve.losses`` of the nth finite one."""
    return [index for index, loss in enumerate(curve.losses) if math.isfinite(loss)][nth]
