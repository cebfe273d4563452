"""Metric queries: text form, windows, counters, groups, citations."""

from __future__ import annotations

import numpy as np
import pytest

from trackside.evidence import Grid, MissingAnswer, reduce_answer, reduce_grid
from trackside.model import Position, Samples, Series
from trackside.query import Query, QueryError, metric
from trackside.stores.arithmetic import increase, onset
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import RunMetrics, Timing, step_of
from trackside.verify import is_same_value


def run_metrics(
    points_by_gpu: dict[tuple[str, str], list[tuple[float, float]]],
    name: str = "gpu_sm_active_ratio",
    end: float = 600.0,
) -> RunMetrics:
    """The metrics of a run from 0 to ``end``, sampled every 15 s. ``points_by_gpu``: (node, gpu) -> (time in s, value)."""
    backend = MemoryBackend()
    for (node, gpu), points in points_by_gpu.items():
        series = Series(name, (("gpu", gpu), ("node", node)), Position(f"{node}.prom", 1))
        times = np.array([round(time * 1000) for time, _ in points], dtype=np.int64)
        values = np.array([value for _, value in points], dtype=np.float64)
        backend.add(Samples([series], np.zeros(len(points), dtype=np.int32), times, values))
    return RunMetrics(backend, tuple(backend.series()), Timing(0.0, end, 15.0))


def ask(metrics: RunMetrics, query: Query) -> Grid:
    answer = metrics.ask(query, "files")
    assert isinstance(answer, Grid), answer
    return answer


STEADY = {("n1", str(gpu)): [(t, gpu / 10) for t in range(15, 601, 15)] for gpu in (0, 1, 10, 2)}


@pytest.mark.parametrize(
    "text",
    [
        "metric(gpu_sm_active_ratio).over('run', 'avg')",
        "metric(gpu_sm_active_ratio).where(node='n1', gpu='3').during(60.0, 600.0).rollup(30.0, 'avg').median()",
        "metric(gpu_power_watts).during(0.0, 10.0).rollup(5.0, 'max').by('node', how='sum').max()",
    ],
)
def test_text_form_round_trips(text: str) -> None:
    assert str(Query.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "metric(gpu_sm_active)",
        "metric(gpu_sm_active_ratio).over('day', 'avg')",
        "metric(gpu_sm_active_ratio).rollup(0, 'avg')",
        "metric(gpu_sm_active_ratio).rollup('x', 'avg')",
        "metric(gpu_sm_active_ratio).rollup(30, 'rate')",
        "metric(gpu_sm_active_ratio).during('a', 'b')",
        "metric(gpu_sm_active_ratio).by('node', how='mode')",
        "metric(gpu_sm_active_ratio).by('node', how=None)",
        "metric(gpu_sm_active_ratio).by(3, how='avg')",
        "metric(gpu_sm_active_ratio).where(gpu=['0'])",
        "metric(gpu_sm_active_ratio).where(gpu=0)",
        "metric(gpu_sm_active_ratio).where(**{'gpu': '0'})",
        "metric(gpu_sm_active_ratio).rollup(1e999, 'avg')",
        "metric(gpu_sm_active_ratio).rollup(1e-9, 'avg')",
        "metric(gpu_sm_active_ratio).rollup(30, None)",
        "metric(gpu_sm_active_ratio).rollup(30, ['avg'])",
        "metric(gpu_sm_active_ratio).rollup(30, 0x" + "f" * 5000 + ")",
        "metric(gpu_sm_active_ratio).during(0, 1e12).rollup(0.001, 'avg')",
        "metric(gpu_sm_active_ratio).rollup(0.001, 'avg').during(0, 1e12)",
        "metric(gpu_sm_active_ratio).during(0, 1e999)",
        "metric(gpu_sm_active_ratio).during(-1e300, 1e300)",
        "metric(gpu_sm_active_ratio).over('run', None)",
        "metric(gpu_sm_active_ratio).over('run', 'avg').during(0, 60)",
        "metric(gpu_sm_active_ratio).rollup(30, 'avg').max(gpu)",
        "events(exception).by('rank', how='count')",
        "events(exception).during(0, 60)",
        "record(job).rollup(30, 'avg')",
        "record(job).over('run', 'avg')",
    ],
)
def test_an_invalid_query_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(QueryError, match=r"\w"):
        Query.parse(text)


def test_a_window_includes_its_end() -> None:
    metrics = run_metrics({("n1", "0"): [(30, 1.0), (30.001, 2.0), (60, 3.0)]}, end=60)
    grid = ask(metrics, metric("gpu_sm_active_ratio").during(0, 60).rollup(30, "avg"))
    assert grid.times.tolist() == [30.0, 60.0]
    assert grid.values.tolist() == [[1.0, 2.5]]


def test_gpus_are_in_numeric_order() -> None:
    grid = ask(run_metrics(STEADY), metric("gpu_sm_active_ratio").over("run", "avg"))
    assert grid.labels("gpu") == [("0",), ("1",), ("2",), ("10",)]


def test_citations_of_every_part_of_a_grid_hold() -> None:
    metrics = run_metrics(STEADY)
    grid = ask(metrics, metric("gpu_sm_active_ratio").over("run", "avg"))
    for cut in (grid, grid.one(3), grid.where(gpu="2"), grid.during(120, 300), grid.one(1).during(120, 300)):
        for reducer in ("count", "first", "last", "min", "max", "avg", "median", "sum"):
            value = cut.value(reducer)  # type: ignore[arg-type]
            (cite,) = value.cites
            query = Query.parse(str(cite.query))
            assert is_same_value(value.value, reduce_answer(ask(metrics, query.rows), query)), cite.query


def test_a_part_ends_with_the_last_window_in_it() -> None:
    metrics = run_metrics({("n1", "0"): [(t, float(t)) for t in range(10, 501, 10)]}, end=500)
    grid = ask(metrics, metric("gpu_sm_active_ratio").rollup(10, "avg"))
    part = grid.during(15, 25)
    assert (part.times.tolist(), part.value("max").value) == ([20.0], 20.0)
    assert ask(metrics, part.query).times.tolist() == [20.0]
    assert ask(metrics, metric("gpu_sm_active_ratio").during(15, 25).rollup(10, "avg")).times.tolist() == [20.0]
    for start, end in [(600, 700), (-90, -20), (31, 39), (50, 20)]:
        empty = grid.during(start, end)
        assert empty.value("count").value == 0
        assert ask(metrics, empty.query).values.shape == (1, 0)
        assert empty.during(100, 200).value("max").value is None


def test_the_increase_in_a_part_matches_the_whole() -> None:
    metrics = run_metrics({("n1", "0"): [(0, 4.0), (4000, 6.0)]}, "gpu_ecc_uncorrectable_total", end=5000)
    grid = ask(metrics, metric("gpu_ecc_uncorrectable_total").over("run", "increase"))
    part = grid.during(3990, 4020)
    assert part.value("sum").value == 2.0
    assert reduce_grid(ask(metrics, part.query), "sum") == 2.0


@pytest.mark.parametrize(
    "query", ["during(0, 9e9)", "rollup(0.001, 'avg')", "during(0, 900).rollup(0.001, 'increase')"]
)
def test_too_many_windows_are_refused(query: str) -> None:
    metrics = run_metrics({("n1", "0"): [(t, 1.0) for t in range(0, 2001, 20)]}, end=2000)
    answer = metrics.ask(Query.parse(f"metric(gpu_sm_active_ratio).{query}"), "files")
    assert isinstance(answer, MissingAnswer)
    assert "windows" in answer.reason


def test_nodes_are_in_natural_order_even_with_very_long_numbers() -> None:
    names = ["n1", "n2", "n10", "n" + "1" * 5000, "n" + "9" * 5000]
    metrics = run_metrics({(name, "0"): [(15, 1.0)] for name in names[::-1]})
    grid = ask(metrics, metric("gpu_sm_active_ratio").over("run", "avg"))
    assert grid.labels("node") == [(name,) for name in names]


def test_groups_aggregate_only_sampled_series() -> None:
    points = {("n1", "0"): [(15, 1.0)], ("n1", "1"): [(15, 3.0), (30, 5.0)], ("n2", "0"): [(30, 7.0)]}
    metrics = run_metrics(points, end=45)
    grid = ask(metrics, metric("gpu_sm_active_ratio").during(0, 45).rollup(15, "avg").by("node", how="avg"))
    assert grid.labels("node") == [("n1",), ("n2",)]
    np.testing.assert_array_equal(grid.values, [[2.0, 5.0, np.nan], [np.nan, 7.0, np.nan]])


def test_a_restarted_counter_grows_from_zero() -> None:
    last = np.array([[5.0, 7.0, np.nan, 10.0, 2.0, 4.0]])
    np.testing.assert_array_equal(increase(last), [[np.nan, 2.0, np.nan, 3.0, 2.0, 2.0]])


def test_an_increase_uses_the_value_before_the_window() -> None:
    metrics = run_metrics({("n1", "0"): [(10, 4.0), (100, 4.0), (130, 6.0)]}, "gpu_ecc_uncorrectable_total")
    grid = ask(metrics, metric("gpu_ecc_uncorrectable_total").during(90, 150).rollup(30, "increase"))
    np.testing.assert_array_equal(grid.values, [[0.0, 2.0]])


def test_the_onset_of_a_sticky_gauge_is_its_change() -> None:
    np.testing.assert_array_equal(onset(np.array([[79.0, 79.0, 48.0, 48.0]])), [[np.nan, np.nan, 48.0, np.nan]])


def test_a_metric_that_was_not_measured_names_the_exporters_metric() -> None:
    answer = run_metrics(STEADY).ask(metric("gpu_sm_occupancy_ratio").over("run", "avg"), "files")
    assert isinstance(answer, MissingAnswer)
    assert "DCGM_FI_PROF_SM_OCCUPANCY" in answer.reason


def test_a_metric_without_samples_in_the_window_is_missing() -> None:
    answer = run_metrics(STEADY).ask(metric("gpu_sm_active_ratio").during(9000, 9600).rollup(60, "avg"), "files")
    assert isinstance(answer, MissingAnswer)


@pytest.mark.parametrize(
    ("length", "interval", "step"),
    [(600, 15, 30), (86400, 15, 60), (60, 1, 2), (7e5, 15, 600), (2400, 65, 120), (1500, 31, 60)],
)
def test_a_step_holds_two_samples_and_steps_are_few(length: float, interval: float, step: float) -> None:
    assert step_of(length, interval) == step
