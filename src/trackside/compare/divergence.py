"""Finds the point from which two series differ by more than their own noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

from trackside.facts import maths

MIN_POINTS = 5
"""Minimum number of common points for a comparison."""
NOISE_POINTS = 32
"""Number of earlier points from which the noise of a series is estimated."""
MIN_SIGMAS = 4.0
"""Minimum difference, in standard deviations of the noise of both series."""
MIN_RUN_LENGTH = 3
"""Minimum number of consecutive differing points; a single one is a spike."""
FINAL_RATIO = 0.5
"""Minimum difference, as a share of the level, for which fewer points suffice at the end of both series."""


def rule(share: float, unit: str = "points") -> str:
    """The rule as text. ``unit``: the plural noun for points."""
    return (
        f"the runs diverge where {MIN_RUN_LENGTH} consecutive {unit} differ by more than {MIN_SIGMAS:g} times the noise"
        f" of the preceding {NOISE_POINTS} {unit}, and by more than {share:.0%} of their level;"
        f" at the end of the data, fewer {unit} suffice if they differ by more than {FINAL_RATIO:.0%}"
    )


def first_divergence(a: Sequence[float], b: Sequence[float], share: float) -> int | None:
    """The index from which two series of equal length stay different; None if they do not. A non-finite value differs
    at once from a finite one."""
    run_length = 0
    for index in range(len(a)):
        if math.isfinite(a[index]) != math.isfinite(b[index]):
            return index - run_length
        run_length = run_length + 1 if _differs_at(a, b, index - run_length, index, share) else 0
        if run_length == MIN_RUN_LENGTH:
            return index - run_length + 1
    start = len(a) - run_length
    far_apart = all(abs(x - y) > FINAL_RATIO * max(abs(x), abs(y)) for x, y in zip(a[start:], b[start:], strict=True))
    return start if run_length and (far_apart or not start) else None


def _differs_at(a: Sequence[float], b: Sequence[float], start: int, index: int, share: float) -> bool:
    """Whether the values at an index differ by more than the noise before ``start``, where the difference began."""
    value_a, value_b = a[index], b[index]
    if not math.isfinite(value_a):
        return False
    before = slice(max(0, start - NOISE_POINTS), max(start, min(index, MIN_POINTS)))
    noise = math.hypot(maths.roughness(a[before]), maths.roughness(b[before]))
    return abs(value_a - value_b) > max(MIN_SIGMAS * noise, share * max(abs(value_a), abs(value_b)))
