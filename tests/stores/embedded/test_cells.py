"""Cached rollups give the same values as new queries; stretches of samples are put in order as by a sort."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.embedded.test_duck import ENGINES, T0, block, stored
from trackside.stores.embedded import order
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.order import StoredSamples
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import RollupRequest

STEP = 60_000
START = T0 // STEP * STEP
ROWS = [(series, t * 15_000, float((series * 7 + t * 13) % 11)) for series in range(8) for t in range(-8, 60)]


@pytest.mark.parametrize("max_bytes", [1 << 30, 6000, 0])
def test_expected_requests_are_read_once_and_give_the_same_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: int
) -> None:
    monkeypatch.setattr("trackside.stores.embedded.duck.MAX_TABLES_BYTES", max_bytes)
    stored(tmp_path / "store", [ROWS], True)
    memory = MemoryBackend()
    memory.add(block("f0", ROWS))
    groups = ((0, 3), (6,))  # one metric's
    windows = [(START, START + 10 * STEP), (START - 2 * STEP, START + 12 * STEP), (START + STEP, START + 3 * STEP)]
    steps = [(begin, end, step) for begin, end in windows for step in (STEP, STEP // 4)]
    with Snapshot.open(tmp_path / "store") as snapshot:
        backend = DuckBackend(snapshot)
        ids = {info.series.at.line - 1: info.id for info in backend.series()}
        store_groups = tuple(tuple(ids[index] for index in group) for group in groups)
        reads: list[str] = []
        arrays = snapshot.arrays
        monkeypatch.setattr(snapshot, "arrays", lambda sql: reads.append(sql) or arrays(sql))
        queries = [(begin, end, step, rollup) for begin, end, step in steps for rollup in ENGINES]
        backend.expect([RollupRequest(store_groups, *query) for query in queries])
        for query in (*queries, *reversed(queries)):
            expected, count = memory.rollup(groups, *query)
            actual, used = backend.rollup(store_groups, *query)
            np.testing.assert_array_equal(actual, expected)
            assert used == count
            actual[:] = -1.0  # the caller may change its arrays
    assert (len(reads) == 1) == (max_bytes == 1 << 30)


samples = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 2)), max_size=12), max_size=8
)


@given(samples, st.sampled_from([1, 4, 1000]))
def test_stretches_are_ordered_as_by_a_sort(input_groups: list[list[tuple[int, int, int]]], piece: int) -> None:
    parts = [[(group[0][0], time, value) for _, time, value in sorted(group)] for group in input_groups if group]
    rows = [row for part in parts for row in part]
    lengths = [len(part) for part in parts]
    ends = np.cumsum(np.array(lengths, dtype=np.intp))
    stretches = StoredSamples(
        np.array([row[1] for row in rows], dtype=np.int64),
        np.array([float(row[2]) for row in rows]),
        ends - np.array(lengths, dtype=np.intp),
        ends,
        np.array([part[0][0] for part in parts], dtype=np.int32),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "PIECE_SAMPLES", piece)
        pieces = list(stretches.pieces())
    ordered_rows = [
        row
        for piece in pieces
        for row in zip(piece.groups.tolist(), piece.times.tolist(), piece.values.tolist(), strict=True)
    ]
    assert ordered_rows == sorted(ordered_rows)
    assert sorted(ordered_rows) == sorted((group, time, float(value)) for group, time, value in rows)
    groups = [set(piece.groups.tolist()) for piece in pieces]
    assert sum(map(len, groups)) == len(set().union(*groups))
