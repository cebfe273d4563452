"""What all metric readers share: which values are kept, what NaN means in which format, and what is said of the rest."""

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
    return "".join(f'{name}{{Hostname="n1"}} {value} {T0 + at}\n' for at, value in enumerate(values))


# -- what cannot be


def test_what_cannot_be_is_not_kept() -> None:
    row, sink = read(scrape(TEMP, "41", "9223372036854775794", "2147483632", "65535", "-300", "+Inf", "1e308", "95"))
    assert [value for _, value in only(sink, "gpu_temperature_celsius")] == [41.0, 95.0]
    assert "3 blank values; 3 values outside the range of their metric" in row.note
    _, sink = read(scrape(UTIL, "0", "97", "103", "255"))
    assert [value for _, value in only(sink, "gpu_utilization_ratio")] == pytest.approx([0.0, 0.97, 1.03])
    _, sink = read(scrape("DCGM_FI_DEV_PSTATE", "0", "15", "32"))
    assert [value for _, value in only(sink, "gpu_pstate")] == [0.0, 15.0]


def test_negative_values_are_kept_where_they_can_be() -> None:
    _, sink = read(scrape("node_timex_offset_seconds", "-0.5"))
    assert only(sink, "host_clock_offset_seconds") == [(T0, -0.5)]


# -- a loss that is no number is a measurement; any other NaN is none

DIVERGING = ("training_loss", "training_gradient_norm")
KEPT = [2.5, math.inf, math.inf, math.inf, 3.5]


def test_the_catalog_says_which_diverge() -> None:
    assert {name for name, each in METRICS.items() if each.diverges} == set(DIVERGING)
    assert all(METRICS[name].high == math.inf for name in DIVERGING)


@pytest.mark.parametrize("name", DIVERGING)
def test_not_finite_in_scrapes(name: str) -> None:
    row, sink = read(scrape(name, "2.5", "NaN", "+Inf", "-Inf", "3.5") + scrape(TEMP, "NaN", "41"))
    assert [value for _, value in only(sink, name)] == KEPT
    assert only(sink, "gpu_temperature_celsius") == [(T0 + 1, 41.0)]
    assert "1 blank value" in row.note


def test_not_finite_in_a_scrape_without_times() -> None:
    row, sink = read("# TYPE training_loss gauge\ntraining_loss 2.5\ntraining_loss NaN\ntraining_perplexity NaN\n")
    assert only(sink, "training_loss") == [(T0, math.inf)]
    assert not metric(sink, "training_perplexity")
    assert "1 blank value" in row.note


def test_not_finite_in_answers_of_the_api() -> None:
    values = [[T0 / 1000 + at, text] for at, text in enumerate(["2.5", "NaN", "+Inf", "-Inf", "3.5", "none"])]
    curves = [{"metric": {"__name__": name}, "values": values} for name in ("training_loss", TEMP)]
    row, sink = read(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": curves}}))
    assert [value for _, value in only(sink, "training_loss")] == KEPT
    assert len(only(sink, "gpu_temperature_celsius")) == 2
    assert "3 blank values" in row.note


def test_not_finite_in_exports() -> None:
    """null is how VictoriaMetrics writes a NaN, and what marks the end of a series: nobody can tell which."""
    values = [2.5, "NaN", "Infinity", "-Infinity", 3.5, None]
    line = {"metric": {"__name__": "training_loss"}, "values": values, "timestamps": [T0 + at for at in range(6)]}
    row, sink = read(json.dumps(line, separators=(",", ":")) + "\n")
    assert [value for _, value in only(sink, "training_loss")] == KEPT
    assert "1 blank value" in row.note


def test_not_finite_in_tables_of_one_value_a_row(tmp_path: Path) -> None:
    cells = ["2.5", "nan", "inf", "-inf", "3.5", "", "n/a"]
    rows = "".join(f"{T0 + at},training_loss,{cell}\n" for at, cell in enumerate(cells))
    row, sink = read("timestamp,metric,value\n" + rows)
    assert [value for _, value in only(sink, "training_loss")] == KEPT
    assert "2 blank values" in row.note
    _, sink = read(parquet(tmp_path, "'training_loss' AS metric, value"))
    assert [value for _, value in only(sink, "training_loss")] == KEPT


def test_a_hole_in_a_table_of_many_metrics_is_no_measurement(tmp_path: Path) -> None:
    """Where a row holds what was sampled at different times, writers put NaN for what was not."""
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


# -- what is said of metrics that nothing asks for


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a"], "1 of 2 metrics are known; unknown: a"),
        (["go_gc", "a", "DCGM_FI_DEV_VGPU_LICENSE_STATUS"], "1 of 2 metrics are known; unknown: a"),
        (["a", "b", "c"], "1 of 4 metrics are known; unknown: a, b, c"),
        (["a", "b", "c", "d"], "1 of 5 metrics are known; unknown: a, b, c and 1 more"),
    ],
)
def test_unknown_metrics_are_named(names: list[str], said: str) -> None:
    row, _ = read(scrape(UTIL, "5") + "".join(f"{name} 1 {T0}\n" for name in names))
    assert said in row.note
    assert row.status == "read"


def test_metrics_that_say_nothing_of_a_run_are_left_out_without_a_word() -> None:
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
