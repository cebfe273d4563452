"""Rollups and series of uneven samples are the same in every store as in memory, for every engine and window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest

from tests.contract.case import NEAR_ZERO, T0, TOLERANCE
from tests.contract.stores import ENGINES, SERVERS, STORES, StoreContents, in_memory
from trackside.model import Series
from trackside.stores.metric_backend import EngineRollup, MetricBackend, RollupRequest
from trackside.stores.registry import METRICS, kinds

STEPS_MS = (1000, 15_000, 60_000, 77_000, 300_000, 1_800_000)
GPU = "DCGM_FI_DEV_POWER_USAGE", 0.0, 700.0
HOST = "node_memory_MemAvailable_bytes", 0.0, 2e12
OTHERS = [pytest.param(s, marks=pytest.mark.service if s in SERVERS else ()) for s in STORES if s != "memory"]


def uneven(random: Random) -> str:
    """Series, some of which have replicas, hold blanks, begin late, pause, or have one sample.

    Values have few decimals: the case ``digits-near-a-blank`` shows why.
    """
    lines = []
    for name, low, high in (GPU, HOST):
        for index in range(6):
            labels = f'gpu="{index % 4}",Hostname="n1"' if name == GPU[0] else f'instance="n{index % 4}:9100"'
            labels += f',replica="{index // 4}"'
            time = T0 * 1000 + random.choice([0, 0, 1, 60_000, 1_234_567])
            for _ in range(random.choice([1, 40, 300, 300])):
                value = round(random.uniform(low, high), random.choice([0, 1, 3]))
                if index == 2 and random.random() < 0.1:
                    value = random.choice([140737488355328.0, -1.0])
                lines.append(f"{name}{{{labels}}} {value!r} {time}\n")
                time += random.choice([15_000, 15_000, 15_000, 14_999, 15_001, 1, 999, 60_000, 1_000_000])
    return "".join(lines)


def infos_by_series(
    backend: MetricBackend,
) -> dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, tuple[int, int, int]]]:
    """(metric, labels) -> (id, (first ms, last ms, number of samples))."""

    def key(series: Series) -> tuple[str, tuple[tuple[str, str], ...]]:
        return series.metric, series.labels

    return {key(info.series): (info.id, (info.first_ms, info.last_ms, info.count)) for info in backend.series()}


def requests_for(
    backend: MetricBackend, groups: Sequence[Sequence[int]], spans: Sequence[tuple[int, int, int]]
) -> list[RollupRequest]:
    """Requests for every engine over every span."""
    engines: tuple[EngineRollup, ...] = get_args(EngineRollup)
    return [RollupRequest(groups, start, end, step, rollup) for start, end, step in spans for rollup in engines]


def test_every_registered_engine_is_tested() -> None:
    assert tuple(sorted(ENGINES)) == kinds(METRICS)
    assert all(ENGINES.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("store", OTHERS)
def test_rollups_are_the_same_as_in_memory(store: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    path = tmp_path / "all.prom"
    path.write_text(uneven(random))
    spans = []
    for step in STEPS_MS:
        first = T0 * 1000 // step + random.randint(-3, 40)
        spans.append((first * step, (first + random.randint(1, 60)) * step, step))
    with (
        in_memory(StoreContents([path]), tmp_path / "memory") as open_memory,
        STORES[store](StoreContents([path]), tmp_path / "store") as open_store,
    ):
        memory_backend, store_backend = open_memory(), open_store()
        memory_series, store_series = infos_by_series(memory_backend), infos_by_series(store_backend)
        assert {key: extent for key, (_, extent) in store_series.items()} == {
            k: extent for k, (_, extent) in memory_series.items()
        }
        keys = sorted(memory_series)
        metrics = sorted({metric for metric, _ in keys})
        groupings = [[[key] for key in keys], [[key for key in keys if key[0] == metric] for metric in metrics]]
        mismatches = []
        for grouping in groupings:
            memory_requests = requests_for(
                memory_backend, [[memory_series[key][0] for key in group] for group in grouping], spans
            )
            store_requests = requests_for(
                store_backend, [[store_series[key][0] for key in group] for group in grouping], spans
            )
            for memory_request, store_request in zip(memory_requests, store_requests, strict=True):
                expected, used = memory_backend.rollup(
                    memory_request.groups,
                    memory_request.start_ms,
                    memory_request.end_ms,
                    memory_request.step_ms,
                    memory_request.rollup,
                )
                actual, count = store_backend.rollup(
                    store_request.groups,
                    store_request.start_ms,
                    store_request.end_ms,
                    store_request.step_ms,
                    store_request.rollup,
                )
                mismatches += [
                    f"{memory_request.rollup} of {len(memory_request.groups)} groups by {memory_request.step_ms} ms: {used} samples, got {count}"
                ] * (used != count)
                for row, column in np.argwhere(~np.isclose(actual, expected, TOLERANCE, NEAR_ZERO, equal_nan=True)):
                    end = memory_request.start_ms + (column + 1) * memory_request.step_ms
                    mismatches.append(f"{memory_request.rollup} of {len(memory_request.groups)} groups by {memory_request.step_ms} ms, row {row}, window to {end}: "
                               f"wanted {expected[row, column]!r}, got {actual[row, column]!r}")  # fmt: skip
    assert not mismatches, "\n".join(["", *mismatches[:30]])
