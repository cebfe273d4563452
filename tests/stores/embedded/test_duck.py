"""The backend over a store's segments gives the same values as the backend in memory, to the last digit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.evidence import Grid, MissingAnswer
from trackside.model import Input, Position, Samples, Series
from trackside.query import ROLLUPS, SPANS, Query, Reducer, Rollup, Span, metric
from trackside.stores.embedded.duck import DuckBackend, _ranges
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer
from trackside.stores.memory import MemoryStore
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import EngineRollup, MetricBackend, RunMetrics, Timing
from trackside.verify import check

ENGINES: tuple[EngineRollup, ...] = get_args(EngineRollup)
METRICS = ("gpu_sm_active_ratio", "gpu_power_watts", "host_oom_kills_total")
T0 = 1_700_000_000_000

Point = tuple[int, int, float]
"""series, milliseconds after T0, value"""
values = st.one_of(
    st.floats(-1e6, 1e6, allow_nan=False), st.sampled_from([0.0, 1.0, -0.0, math.nan, math.inf, -math.inf, 0.1])
)
points = st.tuples(
    st.integers(0, 7), st.one_of(st.integers(-5, 40).map(lambda n: n * 15_000), st.integers(-9, 400_000)), values
)
inputs = st.lists(st.lists(points, max_size=30), min_size=1, max_size=4)


def series_of(path: str) -> list[Series]:
    """Eight series of three metrics; two of them have no node."""
    return [
        Series(
            METRICS[i % 3],
            (("gpu", str(i)),) if i % 4 == 3 else (("gpu", str(i)), ("node", f"n{i % 2}")),
            Position(path, i + 1, i * 10, 5),
        )
        for i in range(8)
    ]


def block(path: str, rows: Sequence[Point]) -> Samples:
    return Samples(
        series_of(path),
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([T0 + row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.float64),
    )


def stored(folder: Path, files: Sequence[Sequence[Point]], together: bool) -> None:
    """Store each list of points as an input, all in one commit or each in its own."""
    with Writer.open(folder) as writer:
        for number, rows in enumerate(files):
            input_ = writer.begin()
            writer.samples(input_, block(f"f{number}", rows))
            writer.end(StoredInput(input_, Input(f"f{number}", "test", "read", plane="metric")))
            if not together:
                writer.commit()
        writer.commit()


@settings(max_examples=30)
@given(inputs, st.booleans(), st.sampled_from([1000, 15_000, 60_000, 77_000]), st.integers(-3, 30), st.integers(1, 30))
def test_rollups_are_the_same_as_in_memory(
    files: list[list[Point]], together: bool, step: int, start: int, length: int
) -> None:
    memory = MemoryBackend()
    for number, rows in enumerate(files):
        memory.add(block(f"f{number}", rows))
    with TemporaryDirectory() as folder:
        stored(Path(folder) / "store", files, together)
        with Snapshot.open(Path(folder) / "store") as snapshot:
            backend = DuckBackend(snapshot)
            store_series = {(info.series.metric, info.series.labels, info.series.at): info for info in backend.series()}
            memory_series = {(info.series.metric, info.series.labels, info.series.at): info for info in memory.series()}
            assert list(store_series) == list(memory_series) or {*store_series} == {*memory_series}
            for key, expected_info in memory_series.items():
                info = store_series[key]
                assert (info.first_ms, info.last_ms, info.count) == (
                    expected_info.first_ms,
                    expected_info.last_ms,
                    expected_info.count,
                )
            first = (T0 // step + start) * step
            last = first + length * step
            keys = sorted(memory_series, key=str)
            groupings = [[[key] for key in keys], [keys[::2], keys[1::2]], [keys]]
            for rollup in ENGINES:
                for groups in groupings:
                    non_empty = [group for group in groups if group]
                    if not non_empty:
                        continue
                    expected, count = memory.rollup(
                        [[memory_series[k].id for k in g] for g in non_empty], first, last, step, rollup
                    )
                    actual, used = backend.rollup(
                        [[store_series[k].id for k in g] for g in non_empty], first, last, step, rollup
                    )
                    np.testing.assert_array_equal(actual, expected)
                    assert used == count


def store_of(backend: MetricBackend) -> MemoryStore:
    """A store of a run of 400 s."""
    infos = tuple(backend.series())
    store = MemoryStore(planes=("metric",))
    store.metrics = RunMetrics(backend, infos, Timing(T0 / 1000, T0 / 1000 + 400, 15.0))
    return store


moments = st.one_of(
    st.floats(-700, 1200), st.integers(-70, 120).map(lambda n: n * 10.0), st.sampled_from([-1e300, 1e300, math.inf])
)
counters = st.tuples(st.integers(0, 7), st.integers(-1_300_000, 900_000), st.integers(0, 9).map(float))
REDUCERS: tuple[Reducer, ...] = ("count", "first", "last", "min", "max", "avg", "median", "sum")


@settings(max_examples=60)
@given(
    st.lists(counters, min_size=1, max_size=40),
    st.sampled_from([0.25, 1.0, 7.0, 10.0, 77.0]) | st.sampled_from(SPANS),
    st.sampled_from(ROLLUPS),
    st.booleans(),
    st.lists(st.tuples(moments, moments), min_size=1, max_size=2),
)
def test_citations_of_any_part_of_a_grid_hold(
    rows: list[Point], step: float | Span, rollup: Rollup, grouped: bool, parts: list[tuple[float, float]]
) -> None:
    query = metric("gpu_sm_active_ratio")
    query = query.over(step, rollup) if isinstance(step, str) else query.rollup(step, rollup)
    query = query.by("node", how="max") if grouped else query
    memory = MemoryBackend()
    memory.add(block("f0", rows))
    with TemporaryDirectory() as folder:
        stored(Path(folder) / "store", [rows], True)
        with Snapshot.open(Path(folder) / "store") as snapshot:
            for store in (store_of(memory), store_of(DuckBackend(snapshot))):
                part = store.ask(query)
                if isinstance(part, MissingAnswer):
                    continue
                assert isinstance(part, Grid)
                for start, end in parts:
                    expected_times = part.times[(part.times > T0 / 1000 + start) & (part.times <= T0 / 1000 + end)]
                    part = part.during(T0 / 1000 + start, T0 / 1000 + end)
                    np.testing.assert_array_equal(part.times, expected_times)
                again = store.ask(Query.parse(str(part.query)))
                if isinstance(again, Grid):
                    np.testing.assert_array_equal(again.times, part.times)
                    np.testing.assert_array_equal(again.values, part.values)
                cites = {reducer: part.value(reducer).cites[0] for reducer in REDUCERS}
                assert [result for result in check(cites, store) if not result.holds] == []


def test_distant_ids_are_queried_in_separate_ranges() -> None:
    ids = np.array([1, 2, 3, 50_000, 50_001, 900_000], dtype=np.int32)
    assert _ranges(ids) == [(1, 3), (50_000, 50_001), (900_000, 900_000)]
    distant_ids = np.arange(0, 100 * 10_000, 10_000, dtype=np.int32)
    stretches = _ranges(distant_ids)
    assert len(stretches) == 16
    assert stretches[0][0] == 0
    assert stretches[-1][1] == distant_ids[-1]


def test_many_series_are_queried_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.stores.embedded.duck.CHUNK", 7)
    rows = [(series, t * 15_000, float(series * t)) for t in range(20) for series in range(8)]
    stored(tmp_path / "store", [rows], True)
    memory = MemoryBackend()
    memory.add(block("f0", rows))
    with Snapshot.open(tmp_path / "store") as snapshot:
        backend = DuckBackend(snapshot)
        ids = [[info.id] for info in sorted(backend.series(), key=lambda info: info.series.at.line)]
        start = T0 // 60_000 * 60_000
        actual, used = backend.rollup(ids, start, start + 600_000, 60_000, "avg")
    expected, count = memory.rollup([[i] for i in range(8)], start, start + 600_000, 60_000, "avg")
    np.testing.assert_array_equal(actual, expected)
    assert used == count
