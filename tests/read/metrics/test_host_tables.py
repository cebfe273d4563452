"""dstat's CSV and SuperBench monitor samples."""

from __future__ import annotations

import json

import pytest

from tests.read.metrics.reading import T0, curves, metric, only, read
from tools.cases import CORPUS
from trackside.read.formats.dstat_csv import delay_of

DATA = CORPUS.parent / "data"
HEADING = """"Dstat 0.7.2 CSV output"
"Author:","Dag Wieers <x@example.invalid>",,,,"URL:","http://dag.wieers.com/home-made/dstat/"
"Host:","n1",,,,"User:","root"
"Cmdline:","{command}",,,,"Date:","21 Nov 2025 12:56:00 UTC"

"""
COLUMNS = """"total cpu usage",,,,,,"dsk/total",,"net/eth0",,"memory usage",,,
"usr","sys","idl","wai","hiq","siq","read","writ","recv","send","used","buff","cach","free"
"""
ROW = "10.0,5.0,{idle},5.0,0.0,0.0,{read},0.0,{received},7.0,1000.0,100.0,200.0,300.0\n"


def dstat(rows: str, command: str = "dstat -cdnm --output f.csv") -> str:
    return HEADING.format(command=command) + COLUMNS + rows


def test_curves_of_dstat() -> None:
    rows = "".join(
        ROW.format(idle=idle, read=read_, received=9.0) for idle, read_ in ((50.0, 9e9), (80.0, 100.0), (40.0, 50.0))
    )
    row, sink = read(dstat(rows), "all.csv")
    assert (row.format, row.status, row.plane) == ("dstat-csv", "read", "metric")
    assert "computed from start" in row.note
    busy = only(sink, "host_cpu_busy_ratio")
    assert busy == [(T0 + 1000, pytest.approx(0.15)), (T0 + 2000, pytest.approx(0.55))], "the first row is since boot"
    assert only(sink, "host_disk_read_bytes_total") == [(T0 + 1000, 100.0), (T0 + 2000, 150.0)]
    assert only(sink, "host_memory_total_bytes")[0][1] == 1600.0
    assert only(sink, "host_memory_available_bytes")[0][1] == 600.0
    assert metric(sink, "host_network_rx_bytes_total") == {
        (("device", "eth0"), ("node", "n1")): [(T0 + 1000, 9.0), (T0 + 2000, 18.0)]
    }


def test_dstat_with_a_delay_and_its_own_times() -> None:
    rows = ROW.format(idle=1, read=1, received=2.0) * 3
    _, sink = read(dstat(rows, "dstat -cdnm --output 7 5 100"))
    assert [time for time, _ in only(sink, "host_cpu_busy_ratio")] == [T0 + 5000, T0 + 10000]
    assert [value for _, value in only(sink, "host_network_rx_bytes_total")] != []
    text = HEADING.format(command="dstat -T -l") + '"epoch","load avg",,\n"epoch","1m","5m","15m"\n'
    row, sink = read(text + "".join(f"{T0 / 1000 + 30 * index},{index}.5,0,0\n" for index in range(3)))
    assert only(sink, "host_load1") == [(T0 + 30000, 1.5), (T0 + 60000, 2.5)]
    assert "computed from start" not in row.note
    text = HEADING.format(command="dstat -t -l") + '"system","load avg",,\n"time","1m","5m","15m"\n'
    _, sink = read(
        text + "".join(f"{day} 00:00:0{index},{index}.5,0,0\n" for index, day in enumerate(("31-12", "31-12", "01-01")))
    )
    assert [time for time, _ in only(sink, "host_load1")] == [1767139201000, 1767225602000]


def test_dstat_with_appended_output_and_malformed_rows() -> None:
    once = dstat(ROW.format(idle=50, read=1.0, received=2.0) * 2)
    row, sink = read(once + "1,2\n" + "a," * 13 + "b\n" + once + "\0" * 50)
    assert len(only(sink, "host_cpu_busy_ratio")) == 2
    assert (row.status, "2 rows are malformed" in row.note, "50 NUL bytes" in row.note) == ("partial", True, True), (
        row.note
    )


def test_dstat_without_a_date_gives_no_samples() -> None:
    row, sink = read(dstat(ROW.format(idle=50, read=1.0, received=2.0)).replace("21 Nov 2025 12:56:00 UTC", "?"))
    assert not curves(sink)
    assert "1 row without a time" in row.note


@pytest.mark.parametrize(
    ("command", "delay"),
    [("dstat", 1), ("dstat 10", 10), ("dstat -c --output 5", 1), ("dstat -D 0 2 100", 2), ("dstat -cdn 0", 1)],
)
def test_the_delay_comes_from_the_command_line(command: str, delay: float) -> None:
    assert delay_of(command) == delay


def sample(second: int, **values: float) -> str:
    return json.dumps({"time": f"2025-11-21 12:56:{second:02d}", "cpu_usage": 3.5, **values}) + "\n"


def test_curves_of_superbench() -> None:
    text = sample(0, **{"gpu_usage:0": 56, "gpu_usage:1": 0, "gpu_mem_used:1": 267517952, "ib0_receive_bw": 1e-5})
    row, sink = read(
        text + "nonsense\n" + sample(10, **{"gpu_usage:0": 60, "gpu_corrected_ecc:0": 12}), "monitor.jsonl"
    )
    assert (row.format, row.status, row.rows) == ("superbench-monitor", "partial", 5)
    assert "1 line is malformed or truncated (first: line 2)" in row.note
    assert metric(sink, "gpu_utilization_ratio") == {
        (("gpu", "0"),): [(T0, pytest.approx(0.56)), (T0 + 10000, pytest.approx(0.6))],
        (("gpu", "1"),): [(T0, 0.0)],
    }
    assert only(sink, "gpu_ecc_correctable_total") == [(T0 + 10000, 12.0)]


@pytest.mark.corpus
def test_real_dstat_and_superbench_files() -> None:
    row, sink = read((DATA / "audio-not-learning/dstat-host.csv").read_bytes(), "dstat-host.csv")
    assert (row.format, row.status) == ("dstat-csv", "read")
    busy = only(sink, "host_cpu_busy_ratio")
    assert len(busy) == 6565
    assert 0.5 < max(value for _, value in busy) <= 1.0
    memory = {value for _, value in only(sink, "host_memory_total_bytes")}
    assert max(memory) - min(memory) < 0.01 * max(memory)
    row, sink = read((DATA / "superbench-node-benchmarks/monitor.jsonl").read_bytes(), "monitor.jsonl")
    assert (row.format, row.status, len(metric(sink, "gpu_temperature_celsius"))) == ("superbench-monitor", "read", 8)
