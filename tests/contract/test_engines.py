"""Rollups of uneven samples are those of memory, whatever the window: all engines of all stores, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest

from tests.contract.case import NEAR_ZERO, T0, TOLERANCE
from tests.contract.stores import ENGINES, SERVERS, STORES, Given, in_memory
from trackside.model import Series
from trackside.stores.metric_backend import EngineRollup, MetricBackend, RollupRequest
from trackside.stores.registry import METRICS, kinds

STEPS_MS = (1000, 15_000, 60_000, 77_000, 300_000, 1_800_000)
GPU = "DCGM_FI_DEV_POWER_USAGE", 0.0, 700.0
HOST = "node_memory_MemAvailable_bytes", 0.0, 2e12
OTHERS = [pytest.param(s, marks=pytest.mark.service if s in SERVERS else ()) for s in STORES if s != "memory"]


def uneven(random: Random) -> str:
    """Series of which some are two of the server, hold blanks, begin late, pause, or are one sample.

    Values have few decimals: see the case ``digits-beside-a-blank`` for what becomes of more.
    """
    lines = []
    for name, low, high in (GPU, HOST):
        for place in range(6):
            labels = f'gpu="{place % 4}",Hostname="n1"' if name == GPU[0] else f'instance="n{place % 4}:9100"'
            labels += f',replica="{place // 4}"'
            time = T0 * 1000 + random.choice([0, 0, 1, 60_000, 1_234_567])
            for _ in range(random.choice([1, 40, 300, 300])):
                value = round(random.uniform(low, high), random.choice([0, 1, 3]))
                if place == 2 and random.random() < 0.1:
                    value = random.choice([140737488355328.0, -1.0])
                lines.append(f"{name}{{{labels}}} {value!r} {time}\n")
                time += random.choice([15_000, 15_000, 15_000, 14_999, 15_001, 1, 999, 60_000, 1_000_000])
    return "".join(lines)


def named(curves: MetricBackend) -> dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, tuple[int, int, int]]]:
    """Each curve by its labels: its id, and from when to when it has how many samples."""

    def key(series: Series) -> tuple[str, tuple[tuple[str, str], ...]]:
        return series.metric, series.labels

    return {key(each.series): (each.id, (each.first_ms, each.last_ms, each.count)) for each in curves.series()}


def asked(
    curves: MetricBackend, groups: Sequence[Sequence[int]], spans: Sequence[tuple[int, int, int]]
) -> list[RollupRequest]:
    """Every engine over every span."""
    engines: tuple[EngineRollup, ...] = get_args(EngineRollup)
    return [RollupRequest(groups, start, end, step, how) for start, end, step in spans for how in engines]


def test_every_registered_engine_is_run() -> None:
    assert tuple(sorted(ENGINES)) == kinds(METRICS)
    assert all(ENGINES.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("store", OTHERS)
def test_rollups_are_those_of_memory(store: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    path = tmp_path / "all.prom"
    path.write_text(uneven(random))
    spans = []
    for step in STEPS_MS:
        first = T0 * 1000 // step + random.randint(-3, 40)
        spans.append((first * step, (first + random.randint(1, 60)) * step, step))
    with (
        in_memory(Given([path]), tmp_path / "memory") as memory,
        STORES[store](Given([path]), tmp_path / "store") as opened,
    ):
        want, got = memory(), opened()
        theirs, ours = named(want), named(got)
        assert {key: extent for key, (_, extent) in ours.items()} == {k: extent for k, (_, extent) in theirs.items()}
        keys = sorted(theirs)
        metrics = sorted({metric for metric, _ in keys})
        groupings = [[[key] for key in keys], [[key for key in keys if key[0] == metric] for metric in metrics]]
        off = []
        for grouping in groupings:
            wanted = asked(want, [[theirs[key][0] for key in group] for group in grouping], spans)
            asks = asked(got, [[ours[key][0] for key in group] for group in grouping], spans)
            for one, other in zip(wanted, asks, strict=True):
                values, used = want.rollup(one.groups, one.start_ms, one.end_ms, one.step_ms, one.rollup)
                have, count = got.rollup(other.groups, other.start_ms, other.end_ms, other.step_ms, other.rollup)
                off += [
                    f"{one.rollup} of {len(one.groups)} groups by {one.step_ms} ms: {used} samples, got {count}"
                ] * (used != count)
                for row, column in np.argwhere(~np.isclose(have, values, TOLERANCE, NEAR_ZERO, equal_nan=True)):
                    end = one.start_ms + (column + 1) * one.step_ms
                    off.append(f"{one.rollup} of {len(one.groups)} groups by {one.step_ms} ms, row {row}, window to {end}: "
                               f"wanted {values[row, column]!r}, got {have[row, column]!r}")  # fmt: skip
    assert not off, "\n".join(["", *off[:30]])
