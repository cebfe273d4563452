"""A wrong shape of a loss curve, and the thresholds for it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trackside.facts import maths
from trackside.facts.training.learning import TrainingCurve, logged_steps, numeric_field, printed_loss
from trackside.finding import Certainty, Sentence

SAME_LEVEL = 0.05
"""Relative distance of two losses of one level: that of the points of a flat curve."""
MIN_EARLIER_LOSSES = 5
"""Losses of an earlier part of a training that show whether it learned."""

Variant = Literal["non-finite", "diverging", "plateau", "flat"]


@dataclass(frozen=True)
class Limits:
    """Thresholds for a wrong shape."""

    min_points: int = 5
    """Minimum number of points for a shape (fewer do not show whether the model learns)."""
    bad_share: float = 0.1
    """Share of non-finite points that exceeds occasional overflow. Loss scaling skips well under 1% of steps after its
    warm-up; a real run with half-precision weights showed a third of its points."""
    rise_ratio: float = 2.0
    """Ratio of tail to head. Over 14 public pretraining and fine-tuning curves the largest was 0.96, and the highest
    single point 1.14 times the first."""
    falling_share: float = 0.8
    """Share of changes that are falls above which a nearly level curve still falls."""
    min_learned_share: float = 0.1
    """Share of the first losses that must have been learned before it can be lost again."""
    lost_share: float = 0.5
    """Share of the loss reduction that is lost again at the tail."""
    explosion_ratio: float = 10.0
    """Ratio of a level to the tail, or of the last value to the first, that is an explosion."""
    max_noise_ratio: float = 5.0
    """Rises below this multiple of the point-to-point noise (standard deviations) are noise."""
    dead_gradient: float = 1e-6
    """A gradient norm below this counts as zero. Norms of working networks are above 1e-3; a printed 0 means a dead
    or frozen one."""
    faint_gradient: float = 0.01
    """A gradient norm below this is too small to move the loss. Training monitors alert below it."""
    vanished_gradient_share: float = 0.05
    """A gradient norm below this share of its start has vanished: the network gives the same answer to
    everything."""
    dead_rate: float = 1e-8
    """A learning rate that never exceeds this changes nothing. Real schedules peak above 1e-7."""
    same_share: float = 1e-4
    """Losses closer than this, relative, count as equal. Mini-batches differ: a model that sees the data does not have
    losses equal to four digits."""
    coarse_share: float = 0.005
    """Distance of neighboring printed values, relative to a low loss, above which equal prints may hide a loss that
    still falls."""
    guess_tolerance: float = 0.01
    """Maximum relative distance to the loss of guessing."""
    noise_share: float = 0.05
    """Point-to-point noise relative to the level of a model that guesses: it gives the same answer to every batch."""
    flat_points: int = 20
    """Minimum number of points to call a curve flat by its level alone."""
    chance_ceiling: float = 12.5
    """ln of 268,000: no tokenizer in use has a larger vocabulary, so a higher mean cross-entropy is worse than
    guessing."""
    scratch_level: float = 4.0
    """Cross-entropy (nats) of a model that has learned almost nothing: 54 equally likely tokens."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A wrong shape: its sentence, the index of its onset in ``curve.rows``, and the index that shows it best."""

    variant: Variant
    certainty: Certainty
    sentence: Sentence
    onset: int
    witness: int
    count: int = 0
    """Number of points that show it."""
    of_points: bool = False
    """Whether the indices are in ``curve.points``: such lines may print no loss."""
    of_level: bool = False
    """Whether the loss rose and stayed high."""
    classes: int | None = None
    """The number of classes among which a model that guesses has this loss."""


def from_the_start(curve: TrainingCurve) -> bool:
    """Whether the first point is the run's first: neither an excerpt nor a resumed run."""
    for name in ("step", "epoch"):
        first = [value for row in curve.rows[:3] if (value := numeric_field(row, name)) is not None]
        if len(first) >= 2 and first[0] > 2 * max(1.0, first[-1] - first[0]):
            return False
    return not _goes_on_from_earlier_part(curve)


def _goes_on_from_earlier_part(curve: TrainingCurve) -> bool:
    """Whether an earlier part of the training had learned, and this one begins at the loss at which that one ended."""
    if not curve.rows:
        return False
    part = numeric_field(curve.rows[0], "run_part") or 0
    earlier = [
        loss for row in logged_steps(curve.frame)
        if (numeric_field(row, "run_part") or 0) < part
        and (loss := printed_loss(row)) is not None and math.isfinite(loss)
    ]  # fmt: skip
    if len(earlier) < MIN_EARLIER_LOSSES or not curve.finite:
        return False
    head, tail = maths.ends(earlier)
    return tail < head * (1 - SAME_LEVEL) and abs(curve.finite[0] - tail) <= SAME_LEVEL * abs(tail)


def nth_finite(curve: TrainingCurve, nth: int) -> int:
    """Index in ``curve.losses`` of the nth finite one."""
    return [index for index, loss in enumerate(curve.losses) if math.isfinite(loss)][nth]
