from __future__ import annotations

import pytest

from tests.read.metrics.reading import T0, curves, metric, only, read
from tools.cases import CORPUS
from trackside.read import blocks

UTIL, POWER, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"
S0 = T0 // 1000
DATA = CORPUS.parent / "data"


def test_a_table_with_a_column_per_metric() -> None:
    text = (
        f"timestamp,Hostname,gpu,{UTIL},{POWER},remark\n{S0},n1,0,50,350.5,x\n{S0},n1,1,7,80,\n{S0 + 15},n1,0,60,,y\n"
    )
    row, sink = read(text, "gpus.csv")
    assert (row.format, row.status, row.rows, row.plane) == ("metric-table", "read", 5, "metric"), row
    curves = {
        (dict(labels)["node"], dict(labels)["gpu"]): curve
        for labels, curve in metric(sink, "gpu_utilization_ratio").items()
    }
    assert curves == {("n1", "0"): [(T0, 0.5), (T0 + 15000, 0.6)], ("n1", "1"): [(T0, pytest.approx(0.07))]}
    assert sorted(metric(sink, "gpu_power_watts").values()) == [[(T0, 80.0)], [(T0, 350.5)]]


def test_a_series_is_located_at_its_first_row() -> None:
    text = f"time,gpu,{TEMP}\n{S0},0,40\n{S0},1,41\n"
    (_, second) = read(text)[1].blocks[0].series
    assert (second.at.line, second.at.offset, second.at.length) == (3, text.index(f"{S0},1"), len(f"{S0},1,41"))


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        (str(S0), T0),
        (f"{S0}.25", T0 + 250),
        (str(T0 + 7), T0 + 7),
        ("2025-11-21T12:56:00Z", T0),
        ("2025-11-21T13:56:00.5+01:00", T0 + 500),
        ("2025-11-21 12:56:00", T0),
        ("2025/11/21 12:56:00.123", T0 + 123),
        ('"2025-11-21 12:56:00"', T0),
        (" 2025-11-21 12:56:00 ", T0),
    ],
)
def test_times_of_many_formats_are_read(text: str, ms: int) -> None:
    row, sink = read(f"Time,{TEMP}\n{text},40\n")
    assert only(sink, "gpu_temperature_celsius") == [(ms, 40.0)]
    assert ("without a zone" in row.note) == (("Z" not in text and "+" not in text and "-" in text) or "/" in text)


@pytest.mark.parametrize(
    "name", ["timestamp", "TIME", "ts", "datetime", "epoch", "Timestamp_ms", "unix_time", " time "]
)
def test_names_of_the_time_column(name: str) -> None:
    assert only(read(f"{name},{TEMP}\n{S0},40\n")[1], "gpu_temperature_celsius") == [(T0, 40.0)]


def test_a_table_with_a_row_per_value() -> None:
    rows = [(UTIL, "0", 50), (TEMP, "0", 61), (UTIL, "1", 7), ("acme_threads", "1", 9)]
    text = "ts;metric;value;gpu\n" + "".join(f"{S0};{name};{value};{gpu}\n" for name, gpu, value in rows)
    row, sink = read(text)
    assert (row.format, row.status, row.rows) == ("metric-table", "read", 3)
    assert {dict(labels)["gpu"]: curve for labels, curve in metric(sink, "gpu_utilization_ratio").items()} == {
        "0": [(T0, 0.5)],
        "1": [(T0, pytest.approx(0.07))],
    }
    assert "2 of 3 metrics are known" in row.note


@pytest.mark.parametrize(
    "packed", ['"{""gpu"": ""3"", ""Hostname"": ""n1""}"', '"{gpu=""3"",Hostname=""n1""}"', '"gpu=3,Hostname=n1"', '"gpu=3, Hostname=""n1"""']
)  # fmt: skip
def test_labels_in_one_cell(packed: str) -> None:
    row, sink = read(f"time,name,value,labels\n{S0},{TEMP},40,{packed}\n")
    assert metric(sink, "gpu_temperature_celsius") == {(("gpu", "3"), ("node", "n1")): [(T0, 40.0)]}, row


def test_headings_in_the_form_of_a_query_legend() -> None:
    _, sink = read(f'"Time","{TEMP}{{gpu=""0"", Hostname=""n1""}}","{TEMP}{{gpu=""1""}}"\n{S0},40,41\n')
    assert sorted(metric(sink, "gpu_temperature_celsius").values()) == [[(T0, 40.0)], [(T0, 41.0)]]


def test_labels_by_our_own_names() -> None:
    _, sink = read(f"time,node,gpu,rank,job,{TEMP}\n{S0},n1,2,18,4711,40\n")
    ((labels, _),) = metric(sink, "gpu_temperature_celsius").items()
    assert dict(labels) == {"node": "n1", "gpu": "2", "rank": "18", "job": "4711"}


def test_cells_without_a_number_are_skipped() -> None:
    cells = ["", "N/A", "NaN", "null", "-", " 41", "4.2e1", "hot", "43"]
    row, sink = read(f"time,{TEMP},b\n" + "".join(f"{S0 + index},{cell},x\n" for index, cell in enumerate(cells)))
    assert [value for _, value in only(sink, "gpu_temperature_celsius")] == [41.0, 42.0, 43.0]
    assert row.status == "partial"
    assert "1 cell without a number" in row.note


def test_malformed_rows_are_skipped() -> None:
    malformed = [f"{S0},1", f"{S0},1,2,3", "soon,1,2", "x", '"', f'{S0},"a,2']
    valid_row = f"{S0},0,40\n"
    row, sink = read(f"time,gpu,{TEMP}\n{valid_row}" + "".join(f"{line}\n{valid_row}" for line in malformed) + "\n\n")
    assert [value for _, value in only(sink, "gpu_temperature_celsius")] == [40.0] * 7
    assert "6 rows have no time or the wrong number of cells (first: line 3)" in row.note, row.note
    assert row.status == "partial"


def test_times_in_other_units_are_refused() -> None:
    row, sink = read(f"time,{TEMP}\n{S0},40\n{S0 * 10**6},41\n{S0 * 10**9},42\n17,43\n1e300,44\n")
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0)]
    assert "3 samples with times outside 2000 to 2100" in row.note
    assert row.status == "partial"


def test_a_truncated_last_row_and_windows_line_ends() -> None:
    row, sink = read(f"time,gpu,{TEMP}\r\n{S0},0,40\r\n{S0 + 1},0,41\r\n{S0 + 2},0,4")
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0), (T0 + 1000, 41.0)]
    assert (row.status, "truncated within its last row" in row.note) == ("partial", True)


def test_every_row_is_read_once_for_any_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [f'{S0 + index},{index % 7},"{index % 90}.5",{index % 90}\n' for index in range(200)]
    text = f"time,gpu,{TEMP},{UTIL}\n" + "".join(lines[:90]) + "".join(line.replace('"', "") for line in lines[90:])
    expected = curves(read(text)[1])
    assert sum(map(len, expected.values())) == 400
    for size in (50, 333, 4096):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
        assert curves(read(text)[1]) == expected


def test_a_heading_without_rows() -> None:
    row, _ = read(f"time,gpu,{TEMP}\n")
    assert (row.format, row.rows) == ("metric-table", 0)
    assert row.status in ("read", "empty")


def test_too_many_series_and_invalid_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.measurements.MAX_SERIES", 10)
    row, sink = read(f"time,pid,{TEMP}\n".encode() + b"".join(b"%d,%d\xff,40\n" % (S0, pid) for pid in range(50)))
    assert len(curves(sink)) <= 10
    assert (row.status, "more than 10 series" in row.note) == ("partial", True)


@pytest.mark.parametrize(
    "text",
    [
        "epoch,step,train_loss\n0,1,2.5\n0,2,2.4\n",
        "time,loss,lr\n0.5,2.5,1e-4\n1.0,2.4,1e-4\n",
        f"{UTIL},{TEMP}\n5,6\n",
        f"time,{TEMP}\n0.5,40\n1.0,41\n",
        "timestamp,name,index,utilization.gpu [%]\n2025/11/21 12:56:00.000, NVIDIA L4, 0, 5 %\n",
        "JobID,State,Start,End\n7,FAILED,2025-11-21T12:56:00,2025-11-21T12:57:00\n",
        "time,metric,value\n1763729760,accuracy,0.5\n",
        "a,b,c\n1,2,3\n",
        "x\n",
    ],
)
def test_other_tables_are_not_recognized(text: str) -> None:
    assert read(text, "t.csv")[0].format != "metric-table"


@pytest.mark.corpus
def test_files_of_other_formats_are_not_recognized() -> None:
    misread = []
    for path in sorted(DATA.rglob("*")):
        if path.parent.parent.name == "log-store-responses":  # counts of lines in Prometheus' format
            continue
        if (
            path.is_file()
            and path.stat().st_size < 4 << 20
            and path.suffix in (".csv", ".log", ".txt", ".json", ".jsonl")
        ):
            row, _ = read(path.read_bytes(), str(path.relative_to(DATA)))
            if row.format in ("metric-table", "prometheus-text", "prometheus-json", "victoria-export"):
                misread.append((row.path, row.format))
    assert misread == []
