"""Curves as text."""

from __future__ import annotations

import math

import pytest

from trackside.show.plot import BARS, NOT_FINITE, line


def test_curves_are_drawn_as_bars() -> None:
    assert line([0.0, 3.5, 7.0, None]) == f"{BARS[0]}{BARS[4]}{BARS[7]} "
    assert line([0.5], "ratio") == BARS[4]
    assert line([None, None]) == "  "


@pytest.mark.parametrize("beyond", [math.inf, -math.inf, math.nan])
def test_a_non_finite_value_has_its_own_sign(beyond: float) -> None:
    assert line([1.0, beyond, 2.0]) == f"{BARS[4]}{NOT_FINITE}{BARS[7]}"
    assert line([beyond]) == NOT_FINITE
