from __future__ import annotations

import gzip
from pathlib import Path
from typing import IO

import duckdb
import pytest

from tests.read.metrics.reading import T0, metric, only, read
from trackside.model import Input
from trackside.read import compression, measurements
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.formats import metric_parquet
from trackside.read.walk import walk

UTIL, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"
START = "TIMESTAMP '2025-11-21 12:56:00'"


def parquet(folder: Path, query: str) -> bytes:
    path = folder / "made.parquet"
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


def test_a_table_with_a_column_per_metric(tmp_path: Path) -> None:
    query = f"""SELECT {START} + to_seconds(r // 2) AS "timestamp", 'n1' AS "Hostname", r % 2 AS gpu,
        r AS {UTIL}, CASE r WHEN 1 THEN NULL ELSE 40.5 END AS "{TEMP}", 'x' AS remark FROM range(4) t(r)"""
    row, sink = read(parquet(tmp_path, query), "gpus.parquet")
    assert (row.format, row.status, row.rows) == ("metric-parquet", "read", 7), row
    assert metric(sink, "gpu_temperature_celsius") == {
        (("gpu", "0"), ("node", "n1")): [(T0, 40.5), (T0 + 1000, 40.5)],
        (("gpu", "1"), ("node", "n1")): [(T0 + 1000, 40.5)],
    }
    assert sum(map(len, metric(sink, "gpu_utilization_ratio").values())) == 4
    second = next(series for series in sink.blocks[0].series if series.get("gpu") == "1")
    assert second.at.line == 2


def test_a_table_with_a_row_per_value_and_a_column_of_labels(tmp_path: Path) -> None:
    query = f"""SELECT {START} AS time, name, 61 AS value, {{'gpu': '3', 'Hostname': 'n1'}} AS labels
        FROM (VALUES ('{TEMP}'), ('acme_threads'), (NULL)) t(name)"""
    row, sink = read(parquet(tmp_path, query))
    assert metric(sink, "gpu_temperature_celsius") == {(("gpu", "3"), ("node", "n1")): [(T0, 61.0)]}
    assert "1 of 3 metrics are known" in row.note


@pytest.mark.parametrize(
    ("time", "ms"),
    [
        (START, T0),
        ("TIMESTAMP_NS '2025-11-21 12:56:00.25'", T0 + 250),
        ("TIMESTAMP_MS '2025-11-21 12:56:00.25'", T0 + 250),
        ("TIMESTAMPTZ '2025-11-21 13:56:00+01'", T0),
        ("1763729760", T0),
        ("1763729760.5::DOUBLE", T0 + 500),
        ("1763729760007", T0 + 7),
        ("'2025-11-21T13:56:00+01:00'", T0),
        ("'2025-11-21 12:56:00'", T0),
        ("'1763729760'", T0),
    ],
)
def test_times_of_many_types_are_read(tmp_path: Path, time: str, ms: int) -> None:
    _, sink = read(parquet(tmp_path, f"SELECT {time} AS ts, 40 AS {TEMP}"))
    assert only(sink, "gpu_temperature_celsius") == [(ms, 40.0)]


def test_times_in_other_units_are_refused(tmp_path: Path) -> None:
    times = "(VALUES (1763729760), (1763729760000000), (NULL), (12)) t(ts)"
    row, sink = read(parquet(tmp_path, f"SELECT ts, 40 AS {TEMP} FROM {times}"))
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0)]
    assert (row.status, "3 samples with times outside 2000 to 2100" in row.note) == ("partial", True)


@pytest.mark.parametrize(
    "query",
    ["SELECT 1 AS a, 2 AS b", f"SELECT 40 AS {TEMP}", f"SELECT {START} AS time, 'text' AS text, 5 AS input_ids"],
)
def test_other_tables_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    monkeypatch.setattr(metric_parquet, "_copy_all", None)  # nothing but their end is copied
    row, _ = read(parquet(tmp_path, query))
    assert (row.format, row.status, row.rows) == ("metric-parquet", "unrecognised", 0)


def test_a_table_is_read_in_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = f"SELECT {START} + to_seconds(r // 7) AS time, r % 7 AS gpu, r % 90 AS {TEMP} FROM range(1000) t(r)"
    data = parquet(tmp_path, query)
    expected = metric(read(data)[1], "gpu_temperature_celsius")
    assert (len(expected), sum(map(len, expected.values()))) == (7, 1000)
    monkeypatch.setattr(metric_parquet, "WINDOW_ROWS", 64)
    assert metric(read(data)[1], "gpu_temperature_celsius") == expected


def walked(path: Path) -> tuple[Input, CollectingSink]:
    sink = CollectingSink()
    for source in walk([path]):
        assert isinstance(source, InputSource)
        return read_source(source, sink), sink
    raise AssertionError


def test_parquet_in_a_folder_and_compressed(tmp_path: Path) -> None:
    data = parquet(tmp_path, f"SELECT {START} AS time, 40 AS {TEMP}")
    assert only(walked(tmp_path / "made.parquet")[1], "gpu_temperature_celsius") == [(T0, 40.0)]
    (tmp_path / "made.parquet.gz").write_bytes(gzip.compress(data))
    row, sink = walked(tmp_path / "made.parquet.gz")
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0)], row


@pytest.mark.parametrize("cut", [4, 12, 60, -30, -8, -1])
def test_a_truncated_file_is_unreadable(tmp_path: Path, cut: int) -> None:
    data = parquet(tmp_path, f"SELECT {START} + to_seconds(r) AS time, 40 AS {TEMP} FROM range(100) t(r)")
    row, _ = read(data[:cut])
    assert (row.format, row.status) == ("metric-parquet", "unreadable")
    assert "damaged or truncated" in row.note


def test_a_damaged_file_is_not_reported_as_a_defect(tmp_path: Path) -> None:
    data = bytearray(
        parquet(tmp_path, f"SELECT {START} + to_seconds(r) AS time, r % 90 AS {TEMP} FROM range(9000) t(r)")
    )
    for offset in range(10, len(data) - 8, 7):
        data[offset] ^= 0x5A
    row, _ = read(bytes(data))
    assert row.status in ("unreadable", "partial", "unrecognised")
    assert "defect" not in row.note


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_parquet, "MAX_FILE_BYTES", 100)
    row, _ = read(parquet(tmp_path, f"SELECT {START} AS time, 40 AS {TEMP}"))
    assert (row.status, "larger than the limit" in row.note) == ("refused", True)


def test_a_table_without_rows(tmp_path: Path) -> None:
    row, _ = read(parquet(tmp_path, f"SELECT {START} AS time, 'a' AS gpu, 40 AS {TEMP} WHERE false"))
    assert (row.format, row.rows) == ("metric-parquet", 0)
    assert row.status in ("read", "empty")


def test_a_table_with_too_many_values_per_byte_is_refused(tmp_path: Path) -> None:
    query = f"SELECT 1763729760 AS ts, 0 AS gpu, 40 AS {TEMP} FROM range(40000000)"
    data = parquet(tmp_path, query)
    assert len(data) < 1 << 20
    row, sink = read(data)
    assert (row.status, sink.blocks) == ("refused", [])
    assert "holds 40,000,000 values in" in row.note
    assert "the limit beyond 33,554,432 values is 50 per byte; split it" in row.note


def test_many_samples_of_few_bytes_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_parquet, "FREE_VALUES", 100)
    query = f"SELECT 1763729760 + r AS ts, 0 AS gpu, round(random() * 90) AS {TEMP} FROM range(20000) t(r)"
    row, _ = read(parquet(tmp_path, query))
    assert (row.status, row.rows) == ("read", 20_000)


def test_text_that_expands_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_parquet, "FREE_BYTES", 1 << 20)
    query = f"SELECT 1763729760 AS ts, repeat('x', 9000000) AS job, 40 AS {TEMP}"
    path = tmp_path / "made.parquet"
    duckdb.sql(f"COPY ({query}) TO '{path}' (FORMAT parquet, COMPRESSION zstd)")
    row, _ = read(path.read_bytes())
    assert (row.status, "expands more than 200:1" in row.note) == ("refused", True)


def test_memory_of_distinct_series_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_SERIES", 50)
    monkeypatch.setattr(metric_parquet, "MAX_SERIES", 50)
    monkeypatch.setattr(metric_parquet, "WINDOW_ROWS", 64)
    query = f"SELECT {START} + to_seconds(r) AS time, r % 70 AS gpu, r % 90 AS {TEMP} FROM range(700) t(r)"
    row, sink = read(parquet(tmp_path, query))
    curves = metric(sink, "gpu_temperature_celsius")
    assert {int(dict(labels)["gpu"]) for labels in curves} == set(range(50))
    assert {len(curve) for curve in curves.values()} == {10}
    assert (row.status, row.rows) == ("partial", 500)
    assert "more than 50 series: the rest dropped; split it into files of fewer than 50 label sets" in row.note


def test_series_up_to_the_limit_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "MAX_SERIES", 50)
    monkeypatch.setattr(metric_parquet, "MAX_SERIES", 50)
    query = f"SELECT {START} + to_seconds(r) AS time, r % 50 AS gpu, r % 90 AS {TEMP} FROM range(700) t(r)"
    row, _ = read(parquet(tmp_path, query))
    assert (row.status, row.rows) == ("read", 700)


@pytest.mark.parametrize("name", ["key", "file_row_number", "first", "filename", "file_index", "k1", "rows", "c0"])
def test_columns_may_have_any_name(tmp_path: Path, name: str) -> None:
    query = f"SELECT {START} AS time, r AS gpu, 40 + r AS {TEMP}, 'x' AS \"{name}\" FROM range(2) t(r)"
    row, sink = read(parquet(tmp_path, query))
    assert (row.status, row.rows) == ("read", 2), row
    assert metric(sink, "gpu_temperature_celsius") == {(("gpu", "0"),): [(T0, 40.0)], (("gpu", "1"),): [(T0, 41.0)]}


def test_the_name_of_a_folder_adds_no_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet(tmp_path, f"SELECT {START} AS time, '3' AS gpu, 40 AS {TEMP}")
    (tmp_path / "gpu=7").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gpu=7"))
    assert metric(read(data)[1], "gpu_temperature_celsius") == {(("gpu", "3"),): [(T0, 40.0)]}


def test_a_bug_in_a_query_is_not_reported_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_parquet, "_within", lambda *_: "no_such_column")
    row, _ = read(parquet(tmp_path, f"SELECT {START} AS time, 40 AS {TEMP}"))
    assert "damaged" not in row.note
    assert "a bug in this reader" in row.note


def test_a_copy_ends_at_the_limit_of_expansion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compressed file is copied only up to the limit of its expansion."""
    monkeypatch.setattr(compression, "FREE_BYTES", 1 << 20)
    (tmp_path / "bomb.parquet.gz").write_bytes(gzip.compress(b"PAR1" + bytes(64 << 20)))
    copied_bytes: list[int] = []
    copy_all = metric_parquet._copy_all

    def measured_copy(source: InputSource, copy: IO[bytes]) -> None:
        copy_all(source, copy)
        copied_bytes.append(copy.tell())

    monkeypatch.setattr(metric_parquet, "_copy_all", measured_copy)
    row, _ = walked(tmp_path / "bomb.parquet.gz")
    assert "expands more than 200:1" in row.note
    assert copied_bytes
    assert copied_bytes[0] < 32 << 20
