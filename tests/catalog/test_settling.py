"""Conversion of foreign samples: blanks, units inferred from the size, values out of range."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from trackside.catalog import settling
from trackside.catalog.dialect import BLANK, BLANK_RANGES, LATEST_MS, Translation, translate
from trackside.catalog.settling import (
    ForeignSeries,
    UnitBySize,
    is_blank,
    may_hide_blanks,
    measured,
    scale_of,
    scaled,
    usable_samples,
)
from trackside.model import Position

MIB = float(1 << 20)
AT = Position("x", 1)
NOW_MS = 1_763_733_600_000


def test_blank_values_are_recognized() -> None:
    blank = [
        math.nan,
        *(float(0x7FFFFFF0 + n) for n in range(4)),
        *(float(0x7FFFFFFFFFFFFFF0 + n) for n in range(4)),
        *(140737488355328.0 + n for n in range(4)),
        float(0xFFFFFFFF),
        float(0xFFFFFFFFFFFFFFFF),
    ]
    real = [0.0, -1.0, 100.0, float(0x7FFFFFEF), float(0x7FFFFFF4), 140737488355332.0, 5551899580.0, math.inf]
    assert is_blank(np.array(blank)).all()
    assert not is_blank(np.array(real)).any()
    assert is_blank(np.array([[1.0, math.nan]])).tolist() == [[False, True]]


def test_blanks_may_hide_between_minimum_and_maximum() -> None:
    low, high = np.array([0.0, 0.0, math.nan, BLANK + 4]), np.array([1e5, 1e10, math.nan, 4e9])
    assert may_hide_blanks(low, high).tolist() == [False, True, True, False]
    assert sorted(BLANK_RANGES) == list(BLANK_RANGES)


def test_not_finite_values_of_a_diverging_metric_are_infinite() -> None:
    raw = np.array([1.0, math.nan, -math.inf])
    assert measured(raw, True)[0].tolist() == [1.0, math.inf, math.inf]
    values, blank = measured(raw, True, nan_is_blank=True)
    assert (values[2], blank.tolist()) == (math.inf, [False, True, False])
    values, blank = measured(raw, False)
    assert (values[2], blank.tolist()) == (-math.inf, [False, True, False])


def test_dropped_samples_are_counted_by_reason() -> None:
    foreign = ForeignSeries()
    number = foreign.add("x", Translation("gpu_power_watts", (), 1.0), AT)
    raw = np.array([1.0, BLANK, 3.0, 4.0])
    times = np.array([NOW_MS, LATEST_MS + 1, LATEST_MS + 1, NOW_MS - 1])
    left_out: Counter[str] = Counter()
    indices, times_ms, values = usable_samples(
        foreign.rows, np.full(4, number), times, raw, left_out, oldest_ms=NOW_MS - 1
    )
    assert (indices.tolist(), times_ms.tolist(), values.tolist()) == ([number], [NOW_MS], [1.0])
    assert left_out == Counter(blank=1, untimely=1, too_old=1)


def test_scaled_values_out_of_range_are_marked() -> None:
    values, in_range = scaled(np.array([50.0, 200.0, 1e308]), 1e10, 0.0, 1e12)
    assert (values[0], in_range.tolist()) == (5e11, [True, False, False])


def test_units_are_inferred_from_the_largest_value(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [scale_of("ratio", peak) for peak in (0.99, 1.0, 97.0)] == [1.0, 1.0, 0.01]
    assert [scale_of("bytes", peak) for peak in (81559.0, 8.5e10)] == [MIB, 1.0]
    assert scale_of("", 1e9) == 1.0
    unit = UnitBySize("ratio")
    unit.observe(np.array([0.5, math.inf]))
    assert (unit.peak, unit.count, unit.factor, unit.is_settled) == (0.5, 2, 1.0, False)
    monkeypatch.setattr(settling, "MAX_UNDECIDED_VALUES", 2)
    assert unit.is_settled
    monkeypatch.undo()
    unit.observe(np.array([97.0]))
    assert (unit.factor, unit.is_settled) == (0.01, True)


def test_foreign_series_of_one_metric_share_a_settled_unit() -> None:
    foreign = ForeignSeries()
    names = ("DCGM_FI_DEV_GPU_UTIL_RATIO", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO")
    for index, name in enumerate(names):
        translation = translate(name, {"gpu": str(index // 2)})
        assert translation is not None
        assert foreign.add(name, translation, AT) == index
        if index == 1:
            foreign.settle(0, 0.01)
    assert [series.metric for series in foreign.series] == ["gpu_utilization_ratio"] * 2
    assert foreign.units == [(names[0], "ratio")]
    assert foreign.rows["ours"].tolist() == [0, 0, 1]
    assert foreign.rows["unit"].tolist() == [0, -1, 0]
    assert foreign.rows["scale"].tolist() == [0.01, 0.01, 0.01]
