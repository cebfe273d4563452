"""Robust statistics on plain sequences of floats. No sequence is changed; nan and inf may occur anywhere.

Levels are medians and noise is taken from successive differences, so that single spikes and a slow trend
do not count as noise. Every function is linear in the length, or works on a thinned copy.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

NORMAL_PER_MAD = 1.4826
"""Standard deviation of a normal distribution per median absolute deviation."""
SLOPE_POINTS = 120
"""Number of points for the robust slope: the number of pairs grows with its square."""
MIN_GAP = 0.25
"""Minimum gap between two groups of values, as a share of the highest."""


def finite_values(values: Sequence[float]) -> list[float]:
    """The finite values."""
    return [value for value in values if math.isfinite(value)]


def median(values: Sequence[float]) -> float:
    """Median of the finite values; nan where there are none."""
    numbers = finite_values(values)
    return statistics.median(numbers) if numbers else math.nan


def split_level(levels: Sequence[float]) -> float | None:
    """The level between two groups of values, each at least a quarter of them and far apart compared with their own
    spread: then the median describes neither. None if they are one group."""
    numbers = sorted(finite_values(levels))
    if len(numbers) < 2:
        return None
    gap, index = max((after - before, index) for index, (before, after) in enumerate(itertools.pairwise(numbers), 1))
    widest = max(numbers[index - 1] - numbers[0], numbers[-1] - numbers[index])
    if min(index, len(numbers) - index) < len(numbers) / 4 or gap < 2 * widest or gap < MIN_GAP * abs(numbers[-1]):
        return None
    return (numbers[index - 1] + numbers[index]) / 2


def noise(values: Sequence[float]) -> float:
    """Standard deviation from point to point, without the trend; 0.0 for fewer than two finite values."""
    numbers = finite_values(values)
    if len(numbers) < 2:
        return 0.0
    steps = [abs(after - before) for before, after in itertools.pairwise(numbers)]
    return NORMAL_PER_MAD * statistics.median(steps) / math.sqrt(2)


def roughness(values: Sequence[float]) -> float:
    """Standard deviation from point to point, without even a steep trend; :func:`noise` for fewer than four values."""
    numbers = finite_values(values)
    if len(numbers) < 4:
        return noise(numbers)
    bends = [
        abs(after - 2 * middle + before)
        for before, middle, after in zip(numbers, numbers[1:], numbers[2:], strict=False)
    ]
    return NORMAL_PER_MAD * statistics.median(bends) / math.sqrt(6)


def thin(values: Sequence[float], max_points: int) -> list[tuple[int, float]]:
    """At most ``max_points`` finite values with their indices, evenly spread, both ends included."""
    points = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    if len(points) <= max_points:
        return points
    return [points[round(i * (len(points) - 1) / (max_points - 1))] for i in range(max_points)]


def slope(values: Sequence[float]) -> float:
    """Theil-Sen slope per point: the median of the slopes of all pairs; 0.0 for fewer than two finite values."""
    points = thin(values, SLOPE_POINTS)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2)]
    return statistics.median(slopes) if slopes else 0.0


def ends(values: Sequence[float], share: float = 0.2, max_points: int = 50) -> tuple[float, float]:
    """Levels of head and tail: medians of the first and last :func:`end_size` finite values."""
    numbers = finite_values(values)
    size = end_size(len(numbers), share, max_points)
    return median(numbers[:size]), median(numbers[-size:])


def end_size(count: int, share: float = 0.2, max_points: int = 50) -> int:
    """How many of ``count`` values are the head, and as many the tail."""
    return max(1, min(max_points, int(count * share)))


def is_falling(values: Sequence[float], min_share: float = 0.005) -> bool:
    """Whether the values fell, by the same test as :func:`is_rising`."""
    return is_rising([-value for value in values], min_share)


def is_rising(values: Sequence[float], min_share: float = 0.005) -> bool:
    """Whether the values rose: the tail's level exceeds the head's by more than noise and ``min_share``."""
    numbers = finite_values(values)
    if len(numbers) < 2:
        return False
    head, tail = ends(numbers)
    min_rise = min_share * abs(head)
    if len(numbers) < 10:
        return tail - head > min_rise
    size = max(1, min(50, len(numbers) // 5))
    # Two medians of `size` values each: 2 standard errors of their difference (1.25 / sqrt(n) for a median).
    if tail - head > max(min_rise, 2 * 1.25 * noise(numbers) * math.sqrt(2 / size)):
        return True
    # A slow trend under much noise: 3 standard errors of a straight line's rise (sqrt(12 / n)).
    return tail - head > min_rise and slope(numbers) * len(numbers) > max(
        min_rise, 3 * noise(numbers) * math.sqrt(12 / len(numbers))
    )


def drops_at_once(values: Sequence[float]) -> bool:
    """Whether the values fell at the very beginning and never came back: after the first tenth, all are nearer to the
    tail's level than to the first value, which exceeds that level by 5 % and by five times the noise of the rest."""
    numbers = finite_values(values)
    if len(numbers) < 10:
        return False
    rest, level = numbers[len(numbers) // 10 :], ends(numbers)[1]
    drop = numbers[0] - level
    return drop > max(0.05 * abs(numbers[0]), 5 * noise(rest)) and max(rest) < level + drop / 2


def spread(values: Sequence[float]) -> float:
    """(max - min) over the size of the median, of the finite values; 0.0 for none, inf where the median is zero."""
    numbers = finite_values(values)
    if not numbers or max(numbers) == min(numbers):
        return 0.0
    middle = abs(statistics.median(numbers))
    return (max(numbers) - min(numbers)) / middle if middle else math.inf


def trailing_count(values: Sequence[float], holds: Callable[[float], bool]) -> int:
    """How many values at the end all satisfy ``holds``."""
    return sum(1 for _ in itertools.takewhile(holds, reversed(values)))


def is_not_finite(value: float) -> bool:
    """Whether it is nan or inf."""
    return not math.isfinite(value)


def plateau_length(values: Sequence[float], tolerance: float) -> int:
    """How many values at the end stay within ``tolerance`` (relative to the last level) of each other."""
    levels = list(values)
    if not levels or not math.isfinite(levels[-1]):
        return 0
    low = high = levels[-1]
    count = 0
    for value in reversed(levels):
        if not math.isfinite(value):
            break
        low, high = min(low, value), max(high, value)
        if high - low > tolerance * abs(levels[-1]):
            break
        count += 1
    return count


def best_level(values: Sequence[float], window: int = 5) -> tuple[int, float]:
    """Lowest running median over ``window`` finite values: (index of its last value, level); (0, nan) for none."""
    points = [(index, value) for index, value in enumerate(values) if math.isfinite(value)]
    if not points:
        return 0, math.nan
    width = min(window, len(points))
    levels = [
        (statistics.median(value for _, value in points[i : i + width]), points[i + width - 1][0])
        for i in range(len(points) - width + 1)
    ]
    level, index = min(levels)
    return index, level


def is_steady(values: Sequence[float], tolerance: float, share: float) -> bool:
    """Whether at least ``share`` of the finite values lie within ``tolerance`` (relative) of their median."""
    numbers = finite_values(values)
    if not numbers:
        return False
    middle = statistics.median(numbers)
    near = sum(abs(value - middle) <= tolerance * abs(middle) for value in numbers)
    return near >= share * len(numbers)
