"""Robust statistics on plain sequences."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.facts import maths

NAN, INF = math.nan, math.inf
ANY = st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=60)


def noisy(start: float, end: float, count: int, sd: float, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [start + (end - start) * i / (count - 1) + draw.gauss(0, sd) for i in range(count)]


def test_the_median_ignores_non_finite_values() -> None:
    assert maths.median([3.0, NAN, 1.0, INF, 2.0]) == 2.0
    assert math.isnan(maths.median([NAN]))


def test_noise_ignores_a_trend_and_a_spike() -> None:
    assert maths.noise([float(i) for i in range(50)]) == pytest.approx(maths.NORMAL_PER_MAD / math.sqrt(2))
    calm = noisy(2.0, 2.0, 200, 0.1)
    assert maths.noise([*calm[:100], 1e6, *calm[100:]]) == pytest.approx(0.1, rel=0.3)


def test_slope_is_robust_and_linear_in_time() -> None:
    line = [5.0 - 0.01 * i for i in range(1000)]
    line[500] = 1e9
    assert maths.slope(line) == pytest.approx(-0.01, rel=1e-6)
    assert maths.slope([1.0]) == 0.0


@pytest.mark.parametrize(
    ("values", "fell"),
    [
        ([10.4, 9.8], True),
        ([2.0, 2.1], False),
        (noisy(2.5, 1.5, 40, 0.1), True),
        (noisy(1.10, 1.00, 300, 0.12), True),
        (noisy(2.0, 2.0, 100, 0.2), False),
        (noisy(2.0, 3.0, 40, 0.1), False),
        ([*[1.0] * 60, *(1.3 - step / 600 for step in range(180)), *[0.999] * 60], False),  # the ends are equal
        ([NAN, 3.0, NAN, 2.0, 1.0], True),
        ([], False),
    ],
)
def test_falling(values: list[float], fell: bool) -> None:
    assert maths.is_falling(values) is fell


def test_rising_mirrors_falling() -> None:
    assert maths.is_rising(noisy(1.5, 2.5, 40, 0.1))
    assert not maths.is_rising(noisy(2.5, 1.5, 40, 0.1))


def test_trailing_counts_only_the_end() -> None:
    assert maths.trailing_count([NAN, 1.0, NAN, INF], maths.is_not_finite) == 2
    assert maths.trailing_count([1.0], maths.is_not_finite) == 0


def test_plateau_ends_at_the_first_value_outside() -> None:
    assert maths.plateau_length([579000.0, *[5.198] * 19], 1e-4) == 19
    assert maths.plateau_length([5.0, 4.0, 3.0], 1e-4) == 1
    assert maths.plateau_length([5.0, NAN], 1e-4) == 0


def test_best_level_ignores_a_single_outlier() -> None:
    place, level = maths.best_level([5.0, 4.0, 0.1, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 6.0])
    assert level == 3.0
    assert place >= 4


def test_spread_and_steady() -> None:
    assert maths.spread([2.0, 2.0]) == 0.0
    assert maths.spread([1.0, 2.0, 3.0]) == 1.0
    assert maths.spread([-1.0, 0.0, 1.0]) == INF
    assert maths.is_steady([2.0] * 9 + [50.0], 0.01, 0.9)
    assert not maths.is_steady([], 0.01, 0.9)


@given(ANY)
def test_no_statistic_raises_on_any_values(values: list[float]) -> None:
    maths.noise(values), maths.slope(values), maths.ends(values), maths.spread(values)
    maths.is_falling(values), maths.is_rising(values), maths.plateau_length(values, 0.1), maths.best_level(values)
    assert maths.is_steady(values, 0.1, 0.5) in (True, False)
    assert 0 <= maths.trailing_count(values, maths.is_not_finite) <= len(values)


@pytest.mark.parametrize(
    ("levels", "level"),
    [
        ([0.46, 0.47, 0.46, 0.98, 0.97, 0.98], 0.72),
        ([0.46, 0.98, 0.97, 0.98, 0.98, 0.97], None),  # one outlier: the median speaks for the others
        ([0.5, 0.6, 0.7, 0.8, 0.9, 1.0], None),
        ([0.93, 0.93, 0.98, 0.98], None),
        ([0.46, math.nan, 0.98], 0.72),
        ([0.98], None),
    ],
)
def test_a_gap_splits_values_into_two_groups(levels: list[float], level: float | None) -> None:
    assert maths.split_level(levels) == pytest.approx(level)
