"""Behavior of all metric readers: which values are kept, what NaN means in each format, and notes on the rest."""

from __future__ import annotations

import json
import math
from pathlib import Path

import duckdb
import pytest

from tests.read.metrics.reading import T0, metric, only, read
from trackside.catalog.metrics import METRICS

UTIL, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"


def scrape(name: str, *values: str) -> str:
    return "".join(f'{name}{{Hostname="n1"}} {value} {T0 + index}\n' for index, value in enumerate(values))


# -- impossible values


def test_impossible_values_are_dropped_and_counted() -> None:
    row, sink = read(scrape(TEMP, "41", "9223372036854775794", "2147483632", "65535", "-300", "+Inf", "1e308", "95"))
    assert [value for _, value in only(sink, "gpu_temperature_celsius")] == [41.0, 95.0]
    assert "3 blank values; 3 values outside the range of their metric" in row.note
    _, sink = read(scrape(UTIL, "0", "97", "103", "255"))
    assert [value for _, value in only(sink, "gpu_utilization_ratio")] == pytest.approx([0.0, 0.97, 1.03])
    _, sink = read(scrape("DCGM_FI_DEV_PSTATE", "0", "15", "32"))
    assert [value for _, value in only(sink, "gpu_pstate")] == [0.0, 15.0]


def test_negative_values_are_kept_if_the_metric_allows_them() -> None:
    _, sink = read(scrape("node_timex_offset_seconds", "-0.5"))
    assert only(sink, "host_clock_offset_seconds") == [(T0, -0.5)]


# -- NaN is a measurement of a loss, and a blank for other metrics

DIVERGING = ("training_loss", "training_gradient_norm")
EXPECTED = [2.5, math.inf, math.inf, math.inf, 3.5]


def test_the_catalog_marks_diverging_metrics() -> None:
    assert {name for name, description in METRICS.items() if description.diverges} == set(DIVERGING)
    assert all(METRICS[name].high == math.inf for name in DIVERGING)


@pytest.mark.parametrize("name", DIVERGING)
def test_not_finite_in_scrapes(name: str) -> None:
    row, sink = read(scrape(name, "2.5", "NaN", "+Inf", "-Inf", "3.5") + scrape(TEMP, "NaN", "41"))
    assert [value for _, value in only(sink, name)] == EXPECTED
    assert only(sink, "gpu_temperature_celsius") == [(T0 + 1, 41.0)]
    assert "1 blank value" in row.note


def test_not_finite_in_a_scrape_without_times() -> None:
    row, sink = read("# TYPE training_loss gauge\ntraining_loss 2.5\ntraining_loss NaN\ntraining_perplexity NaN\n")
    assert only(sink, "training_loss") == [(T0, math.inf)]
    assert not metric(sink, "training_perplexity")
    assert "1 blank value" in row.note


def test_not_finite_in_answers_of_the_api() -> None:
    values = [[T0 / 1000 + index, text] for index, text in enumerate(["2.5", "NaN", "+Inf", "-Inf", "3.5", "none"])]
    curves = [{"metric": {"__name__": name}, "values": values} for name in ("training_loss", TEMP)]
    row, sink = read(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": curves}}))
    assert [value for _, value in only(sink, "training_loss")] == EXPECTED
    assert len(only(sink, "gpu_temperature_celsius")) == 2
    assert "3 blank values" in row.note


def test_not_finite_in_exports() -> None:
    """null is ambiguous: VictoriaMetrics writes it for NaN and for the end of a series."""
    values = [2.5, "NaN", "Infinity", "-Infinity", 3.5, None]
    line = {"metric": {"__name__": "training_loss"}, "values": values, "timestamps": [T0 + index for index in range(6)]}
    row, sink = read(json.dumps(line, separators=(",", ":")) + "\n")
    assert [value for _, value in only(sink, "training_loss")] == EXPECTED
    assert "1 blank value" in row.note


def test_not_finite_in_tables_of_one_value_a_row(tmp_path: Path) -> None:
    cells = ["2.5", "nan", "inf", "-inf", "3.5", "", "n/a"]
    rows = "".join(f"{T0 + index},training_loss,{cell}\n" for index, cell in enumerate(cells))
    row, sink = read("timestamp,metric,value\n" + rows)
    assert [value for _, value in only(sink, "training_loss")] == EXPECTED
    assert "2 blank values" in row.note
    _, sink = read(parquet(tmp_path, "'training_loss' AS metric, value"))
    assert [value for _, value in only(sink, "training_loss")] == EXPECTED


def test_nan_in_a_table_of_many_metrics_is_a_blank(tmp_path: Path) -> None:
    """A row may merge samples of different times; writers put NaN for metrics without a sample."""
    row, sink = read(f"timestamp,training_loss,{UTIL}\n{T0},2.5,50\n{T0 + 1},nan,51\n{T0 + 2},inf,52\n{T0 + 3},,53\n")
    assert [value for _, value in only(sink, "training_loss")] == [2.5, math.inf]
    assert "2 blank values" in row.note
    _, sink = read(parquet(tmp_path, "value AS training_loss"))
    assert [value for _, value in only(sink, "training_loss")] == [2.5, math.inf, math.inf, 3.5]


def parquet(folder: Path, columns: str) -> bytes:
    """A table of the values 2.5, NaN, inf, -inf, 3.5 and NULL, a millisecond apart."""
    values = "(0, '2.5'), (1, 'nan'), (2, 'inf'), (3, '-inf'), (4, '3.5'), (5, NULL)"
    path = folder / "made.parquet"
    query = f"SELECT {T0} + place AS timestamp, {columns} FROM (VALUES {values}) rows(place, text), "
    duckdb.sql(f"COPY ({query} LATERAL (SELECT text::DOUBLE AS value)) TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


# -- notes on unused metrics


@pytest.mark.parametrize(
    ("names", "note"),
    [
        (["a"], "1 of 2 metrics are known; unknown: a"),
        (["go_gc", "a", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"], "1 of 2 metrics are known; unknown: a"),
        (["a", "b", "c"], "1 of 4 metrics are known; unknown: a, b, c"),
        (["a", "b", "c", "d"], "1 of 5 metrics are known; unknown: a, b, c and 1 more"),
    ],
)
def test_unknown_metrics_are_named(names: list[str], note: str) -> None:
    row, _ = read(scrape(UTIL, "5") + "".join(f"{name} 1 {T0}\n" for name in names))
    assert note in row.note
    assert row.status == "read"


def test_irrelevant_metrics_are_dropped_without_a_note() -> None:
    row, sink = read(f'process_open_fds 7 {T0}\nDCGM_FI_DEV_VGPU_LICENSE_STATUS{{gpu="0"}} 0 {T0}\n')
    assert (row.status, row.rows, sink.blocks) == ("read", 0, [])
    assert row.note.endswith("no metric of it is relevant to a run")


def test_names_are_printable_and_short() -> None:
    name = "\x1b[31mred" + "x" * 500
    line = {"metric": {"__name__": name}, "values": [1], "timestamps": [T0]}
    row, _ = read(json.dumps(line, separators=(",", ":")) + "\n")
    assert row.status == "unrecognised"
    assert "its metric is not known: ?[31mred" in row.note
    assert len(row.note) < 200
