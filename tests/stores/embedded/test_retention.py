"""Old samples are downsampled to minutes, older ones deleted, small segments merged; no number changes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import trackside
from tests.stores.embedded.runs import SACCT, T0, ingest, sacct, scrape, segment_names, steps, verdict_of_store, write
from tools.cases import SCENARIOS, simulated_run
from trackside.cli import main
from trackside.finding import Verdict, claim_sentence
from trackside.model import Input, Position, Samples, Series
from trackside.session import StoreRequest, open_session
from trackside.stores.embedded import retention
from trackside.stores.embedded.duck import DuckBackend
from trackside.stores.embedded.layout import Directory, TableSegment
from trackside.stores.embedded.retention import DAY_MS, compact, merge_row_segments
from trackside.stores.embedded.rows import StoredInput
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import MINUTE_MS
from trackside.stores.embedded.writer import Writer
from trackside.stores.memory_backend import MemoryBackend
from trackside.stores.metric_backend import EngineRollup

START = 1_772_409_600_000
"""2026-03-02T00:00:00Z, in milliseconds"""
NOW = START / 1000 + 10 * 86_400
EXACT: tuple[EngineRollup, ...] = ("min", "max", "sum", "count", "avg", "last")
SERIES = [
    Series("gpu_power_watts", (("gpu", str(gpu)), ("node", "n1")), Position("f", gpu + 1, gpu * 10, 5))
    for gpu in range(3)
]
Point = tuple[int, int, int]
"""series, milliseconds after START, value"""
times = st.one_of(
    st.sampled_from([0, 1, MINUTE_MS, MINUTE_MS + 1, DAY_MS - 1, DAY_MS, DAY_MS + 1, 2 * DAY_MS]),
    st.integers(0, 10 * MINUTE_MS),
    st.integers(0, 3 * DAY_MS),
)
inputs = st.lists(
    st.lists(st.tuples(st.integers(0, 2), times, st.integers(-9, 9)), max_size=25), min_size=1, max_size=3
)


def block(points: Iterable[Point]) -> Samples:
    rows = list(points)
    return Samples(
        SERIES,
        np.array([row[0] for row in rows], dtype=np.int32),
        np.array([START + row[1] for row in rows], dtype=np.int64),
        np.array([row[2] for row in rows], dtype=np.float64),
    )


def add(writer: Writer, points: Iterable[Point], dead: tuple[int, ...] = ()) -> int:
    """Write the samples as an input in its own commit; returns the input's number."""
    number = writer.begin()
    writer.samples(number, block(points))
    writer.end(StoredInput(number, Input(f"f{number}", "test", "read", plane="metric")), dead)
    writer.commit()
    return number


def minutes_of(points: Iterable[Point]) -> dict[tuple[int, int], tuple[float, float, float, int, float, int]]:
    """Computed by hand: (series, end of the minute in ms) -> min, max, sum, count, last, time of last in ms."""
    rows_by_minute: dict[tuple[int, int], list[tuple[int, float]]] = defaultdict(list)
    for series, time, value in points:
        rows_by_minute[series, START + math.ceil(time / MINUTE_MS) * MINUTE_MS].append((START + time, float(value)))
    return {
        key: (
            min(v for _, v in rows),
            max(v for _, v in rows),
            sum(v for _, v in rows),
            len(rows),
            max(rows)[1],
            max(rows)[0],
        )
        for key, rows in rows_by_minute.items()
    }


def test_minutes_match_a_computation_by_hand(tmp_path: Path) -> None:
    points = [(gpu, time, (time // 7000 + gpu) % 19) for gpu in range(3) for time in range(0, 2 * DAY_MS, 37_000)]
    points += [(0, DAY_MS, 99), (1, DAY_MS + 1, 98), (2, MINUTE_MS, 97)]
    with Writer.open(tmp_path / "store") as writer:
        add(writer, points)
        summary = compact(writer, START / 1000 + 2.1 * 86_400, raw_days=1)
    assert (summary.days, summary.thinned, summary.forgotten) == (3, 2, 0)  # midnight belongs to the day before
    old = [point for point in points if point[1] <= DAY_MS]
    with Snapshot.open(tmp_path / "store") as snapshot:
        columns = 'series, time_ms, "min", "max", "sum", "count", "last", last_ms'
        rows = snapshot.rows(f"SELECT {columns} FROM {snapshot.table('minutes')}")
        raw = snapshot.rows(f"SELECT count(*), min(time_ms) FROM {snapshot.table('samples')}")
        number = {
            id_: int(labels[8])
            for id_, labels in snapshot.rows(f"SELECT series, labels FROM {snapshot.table('series')}")
        }
    assert {(number[row[0]], row[1]): row[2:] for row in rows} == minutes_of(old)
    assert raw == [(len(points) - len(old), START + DAY_MS + 1)]


@settings(max_examples=12)
@given(inputs, st.integers(0, 4), st.sampled_from([MINUTE_MS, 5 * MINUTE_MS, 60 * MINUTE_MS, DAY_MS]), st.booleans())
def test_rollups_over_whole_minutes_stay_exact(files: list[list[Point]], day: int, step: int, late: bool) -> None:
    """Before and after downsampling, and with samples that arrive after their day was downsampled."""
    from tempfile import TemporaryDirectory

    memory = MemoryBackend()
    with TemporaryDirectory() as folder, Writer.open(Path(folder) / "store") as writer:
        now = START / 1000 + day * 86_400
        for number, points in enumerate(files):
            if late and number == len(files) - 1:
                compact(writer, now, raw_days=0)
            add(writer, points)
            memory.add(block(points))
        compact(writer, now, raw_days=0)
        again = compact(writer, now, raw_days=0)
        assert again.days == 0
        backend = DuckBackend(writer.snapshot())
        store_ids = {info.series.labels: info.id for info in backend.series()}
        memory_ids = {info.series.labels: info.id for info in memory.series()}
        assert store_ids.keys() == memory_ids.keys()
        for rollup in EXACT:
            for group in [[key] for key in store_ids] + [list(store_ids)]:
                if not group:
                    continue
                first, last = START // step * step - step, (START + 4 * DAY_MS) // step * step
                expected, count = memory.rollup([[memory_ids[key] for key in group]], first, last, step, rollup)
                actual, used = backend.rollup([[store_ids[key] for key in group]], first, last, step, rollup)
                np.testing.assert_array_equal(actual, expected)
                assert used == count


def test_days_without_samples_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested_days = []
    parts = retention._parts

    def record_day(*arguments: Any) -> Iterator[TableSegment]:
        requested_days.append(arguments[3])
        return parts(*arguments)

    monkeypatch.setattr(retention, "_parts", record_day)
    far = 25_000 * DAY_MS  # 68 years
    with Writer.open(tmp_path / "store") as writer:
        add(writer, [(0, number, number) for number in range(1, 17)])
        add(writer, [(0, far + number, number) for number in range(1, 17)] + [(0, 17, 17)])
        summary = compact(writer, NOW, raw_days=None)
        ((count,),) = writer.snapshot().rows(f"SELECT count(*) FROM {writer.snapshot().table('samples')}")
    assert (summary.days, count) == (2, 33)
    day = START // DAY_MS
    assert requested_days == [day, day + 25_000, day]


def test_each_day_is_committed_separately(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """See decision 0007: a stop between two days loses no work."""
    commits: list[tuple[set[int], set[int]]] = []
    replace = Writer.replace

    def days(segments: Iterable[TableSegment]) -> set[int]:
        return {(time - 1 - START) // DAY_MS for segment in segments for time in segment.times_ms or ()}

    def record_commit(
        writer: Writer, added: Iterable[TableSegment], removed: Iterable[TableSegment], **options: Any
    ) -> None:
        added, removed = list(added), list(removed)
        if {segment.table for segment in (*added, *removed)} & {"samples", "minutes"}:
            commits.append((days(removed), days(added)))
        replace(writer, added, removed, **options)

    with Writer.open(tmp_path / "store") as writer:
        for shift in (1, 2):
            add(writer, [(0, time + shift, 1) for time in range(0, 3 * DAY_MS, 3_600_000)])
        monkeypatch.setattr(Writer, "replace", record_commit)
        compact(writer, START / 1000 + 2.1 * 86_400, raw_days=1)
    assert commits == [({0, 2}, {0, 1, 2})] * 2 + [({day}, {day}) for day in range(3)]


def test_minutes_past_their_retention_are_deleted(tmp_path: Path) -> None:
    store = tmp_path / "store"
    points = [(gpu, time, gpu) for gpu in range(2) for time in range(MINUTE_MS, 4 * DAY_MS, MINUTE_MS)]
    points += [(2, time, 2) for time in range(MINUTE_MS, DAY_MS, MINUTE_MS)]
    with Writer.open(store) as writer:
        add(writer, points)
        first = compact(writer, START / 1000 + 4.1 * 86_400, raw_days=1, minute_days=2)
        assert (first.thinned, first.forgotten) == (1, 2 * 2 * 1440 + 1439)
        assert compact(writer, START / 1000 + 4.1 * 86_400, raw_days=1, minute_days=2).forgotten == 0
        second = compact(writer, START / 1000 + 4.1 * 86_400, raw_days=0, minute_days=1)
        assert second.forgotten == 2 * 1440
        remaining = [point for point in points if point[1] > 3 * DAY_MS]
        backend = DuckBackend(writer.snapshot())
        infos = sorted(backend.series(), key=lambda info: info.series.at.line)
        assert [info.series for info in infos] == SERIES[:2], "the third was last sampled on a deleted day"
        for info in infos:
            assert info.first_ms == START + 3 * DAY_MS + 1
            assert info.last_ms == START + 4 * DAY_MS - MINUTE_MS
            assert abs(info.count - len(remaining) / 2) <= 2
        values, used = backend.rollup([[infos[1].id]], START, START + 4 * DAY_MS, DAY_MS, "count")
        assert values.tolist() == [[pytest.approx(math.nan, nan_ok=True)] * 3 + [1439.0]]
        assert used == 1439
    assert not [name for name in segment_names(store) if name.startswith(".")]


def test_a_replaced_input_is_removed_from_samples_and_minutes(tmp_path: Path) -> None:
    """Its downsampled minutes are deleted with it."""
    with Writer.open(tmp_path / "store") as writer:
        first = add(writer, [(0, time, 5) for time in range(0, DAY_MS, 30_000)])
        compact(writer, NOW, raw_days=1)
        add(writer, [(0, time, 7) for time in range(0, DAY_MS, 60_000)], dead=(first,))
        assert writer.manifest.dead == (first,)
        backend = DuckBackend(writer.snapshot())
        (info,) = backend.series()
        assert info.count == 1440
        values, used = backend.rollup([[info.id]], START - DAY_MS, START + DAY_MS, DAY_MS, "max")
        assert (values[0, -1], used) == (7.0, 1440)
        compact(writer, NOW, raw_days=1)
        assert writer.manifest.dead == ()
        ((count, inputs),) = writer.snapshot().rows(
            f"SELECT count(*), count(DISTINCT input) FROM {writer.snapshot().table('minutes')}"
        )
        assert (count, inputs) == (1440, 1)


def test_small_segments_are_merged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    for number in range(5):
        ingest([write(tmp_path / f"run-{number}", {"sacct.txt": SACCT + sacct(str(501 + number)),
                                                  f"slurm-{501 + number}.out": steps(5)})], store)  # fmt: skip
    before = [verdict_of_store(store, str(501 + number)) for number in range(5)]
    with Writer.open(store) as writer:
        assert len(writer.manifest.of("records")) == 5
        merge_row_segments(writer, 4)
        assert len(writer.manifest.of("records")) == 1
        merge_row_segments(writer, 4)
        assert len(writer.manifest.of("records")) == 1
    assert [verdict_of_store(store, str(501 + number)) for number in range(5)] == before


def test_the_compact_command_applies_retention(tmp_path: Path) -> None:
    store = tmp_path / "store"
    scrapes = "".join(scrape("gpu017", seconds, 90) for seconds in range(0, 601, 15))
    ingest([write(tmp_path / "run", {"sacct.txt": SACCT + sacct("41", "COMPLETED"), "slurm-41.out": steps(50),
                                    "gpu.prom": scrapes})], store)  # fmt: skip
    expected = verdict_of_store(store)

    def run(*options: str) -> str:
        result = CliRunner().invoke(main, ["compact", "--store", str(store), *options])
        assert result.exit_code == 0, result.output
        return result.stdout

    many = str((NOW - T0) // 86_400 + 36_500)  # longer than this test will be run
    assert "days rewritten: 0 (0 of them downsampled to minutes)" in run("--raw-days", many)
    assert "days rewritten: 1 (1 of them downsampled to minutes)" in run("--raw-days", "1")
    documents = verdict_of_store(store)
    assert documents["primary"]["family"] == expected["primary"]["family"]
    assert "metric" in {row["plane"] for row in _listed(store)}
    assert f"expired samples and one-minute aggregates deleted: {2 * 11}" in run("--minute-days", "1")
    assert "metric" not in {row["plane"] for row in _listed(store)}
    with open_session(StoreRequest(store, "41")) as session:
        metrics = session.store.metrics
        assert metrics is None or not metrics.series
    assert Directory(store).read().of("samples") == Directory(store).read().of("minutes") == []
    result = CliRunner().invoke(main, ["compact", "--store", str(store), "--raw-days", "9", "--minute-days", "3"])
    assert (result.exit_code, result.stderr) == (2, "trackside: --minute-days must not be less than --raw-days\n")


def test_a_downsampled_run_is_shown_in_windows_of_a_minute(tmp_path: Path) -> None:
    run = simulated_run(SCENARIOS / "b3" / "sim-power-brake-node" / "scenario.toml")
    store = tmp_path / "store"
    ingest([run], store)
    texts = [_texts(trackside.diagnose(store=store))]
    with Writer.open(store) as writer:
        compact(writer, NOW + 1e7, raw_days=0)
    texts.append(_texts(trackside.diagnose(store=store)))
    minutes = [[int(number) for number in re.findall(r"throttled for up to (\d+) min", text)] for text in texts]
    assert minutes[0]
    assert minutes[1][0] == pytest.approx(minutes[0][0], abs=1)
    launches = [re.search(r"([\d,]+) kernel launches per (\d+) s", text) for text in texts]
    rates = [int(match[1].replace(",", "")) / int(match[2]) for match in launches if match is not None]
    assert rates[1] == pytest.approx(rates[0], rel=0.02)


def _texts(verdict: Verdict) -> str:
    """The evidence of all findings of a verdict."""
    findings = (verdict.primary, *verdict.consequences, *verdict.warnings)
    return "\n".join(claim_sentence(claim) for finding in findings for claim in finding.shows)


def _listed(store: Path) -> list[dict[str, str]]:
    import json

    listed = json.loads(CliRunner().invoke(main, ["runs", "--store", str(store), "--json"]).stdout)
    return [{"plane": plane} for row in listed for plane in row["planes"]]
