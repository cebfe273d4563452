"""Which runs a store lists as measured: the activity of nodes is stored as ranges of hours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trackside.model import Event, Input, Position, Samples, Series
from trackside.runs.listing import HOUR_S, _NodeActivity
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.writer import Writer

START = 1_772_409_600
"""2026-03-02T00:00:00Z"""
HOUR = 3600
YEAR = 365 * 24
HourRange = tuple[int, int, int]
"""node, first and last second after START"""
seconds = st.integers(0, 12 * HOUR)
node_spans = st.lists(st.tuples(st.integers(0, 1), seconds, seconds), max_size=5)
node_events = st.lists(st.tuples(st.integers(0, 1), seconds), max_size=5)
time_ranges = st.lists(st.tuples(seconds, st.one_of(st.none(), seconds)), min_size=1, max_size=5)


def store(folder: str | Path, spans: Sequence[HourRange], events: Sequence[tuple[int, int]] = ()) -> Writer:
    """A store with one input per span, and one with the events."""
    writer = Writer.open(Path(folder) / "store")
    for node, first, last in spans:
        number = writer.begin()
        series = [Series("gpu_power_watts", (("gpu", "0"), ("node", f"n{node}.site")), Position("f", 1))]
        times = (START + np.array([first, last], dtype=np.int64)) * 1000
        writer.samples(number, Samples(series, np.zeros(2, dtype=np.int32), times, np.ones(2)))
        writer.end(StoredInput(number, Input(f"f{number}", "test", "read", plane="metric")))
    number = writer.begin()
    for node, second in events:
        writer.event(
            number, Event("xid", Position("k", 1), "kernel", time=float(START + second), node=f"N{node}"), None
        )
    writer.end(StoredInput(number, Input("k", "test", "read", plane="kernel")))
    writer.commit()
    return writer


@settings(max_examples=25, deadline=None)
@given(node_spans, node_events, time_ranges)
def test_node_activity_matches_a_computation_by_the_hour(
    spans: list[HourRange], events: list[tuple[int, int]], times: list[tuple[int, int | None]]
) -> None:
    spans = [(node, min(first, last), max(first, last)) for node, first, last in spans]
    with TemporaryDirectory() as folder, store(folder, spans, events) as writer:
        activity = _NodeActivity(writer.snapshot())
    hours = {
        "metric": {(node, hour) for node, first, last in spans for hour in range(first // HOUR, last // HOUR + 1)},
        "kernel": {(node, second // HOUR) for node, second in events},
    }
    assert HOUR_S == HOUR
    for node in (0, 1):
        for first, last in times:
            end = None if last is None else START + last
            expected = {
                plane
                for plane, active_hours in hours.items()
                if any(
                    active_node == node and hour >= first // HOUR and (last is None or hour <= last // HOUR)
                    for active_node, hour in active_hours
                )
            }
            assert activity.planes_on([f"n{node}"], START + first, end) == expected


def test_a_year_of_a_node_is_read_as_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = [(0, day * 24 * HOUR, (day + 1) * 24 * HOUR) for day in range(40)]
    with store(tmp_path, [(0, 41 * 24 * HOUR, YEAR * HOUR), *days]) as writer:
        fetched: list[int] = []
        rows = Snapshot.rows

        def count_rows(snapshot: Snapshot, *arguments: Any) -> list[tuple[Any, ...]]:
            result = rows(snapshot, *arguments)
            fetched.append(len(result))
            return result

        monkeypatch.setattr(Snapshot, "rows", count_rows)
        activity = _NodeActivity(writer.snapshot())
        assert sum(fetched) <= 4
        assert activity.planes_on(["n0"], START + 300 * 24 * HOUR, START + 300 * 24 * HOUR + 5) == {"metric"}
        assert not activity.planes_on(["n0"], START + (40 * 24 + 2) * HOUR, START + (40 * 24 + 3) * HOUR)
