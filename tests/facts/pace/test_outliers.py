"""The statistics that distinguish a slow GPU from noise."""

from __future__ import annotations

import numpy as np

from trackside.facts.pace.outliers import Limits, outliers


def test_outliers_are_few_sustained_and_distinct_from_their_node() -> None:
    random = np.random.default_rng(0)
    names = [f"n{node}:{gpu}" for node in range(4) for gpu in range(4)]
    level = 1 + 0.05 * random.standard_normal((16, 60))
    assert outliers(level, names, Limits()) == []
    slow = level.copy()
    slow[6, 20:50] *= 2
    slow_rows = outliers(slow, names, Limits())
    assert [outlier.row for outlier in slow_rows] == [6]
    assert abs(slow_rows[0].start - 20) <= 1
    assert abs(slow_rows[0].stop - 50) <= 1
    short = level.copy()
    short[6, 20:26] *= 2
    assert outliers(short, names, Limits()) == []
    node = level.copy()
    node[4:8] *= 2
    assert outliers(node, names, Limits()) == []
    gaps = slow.copy()
    gaps[:, 30:35] = np.nan
    assert [outlier.row for outlier in outliers(gaps, names, Limits())] == [6]
    assert outliers(np.full((16, 60), np.nan), names, Limits()) == []
