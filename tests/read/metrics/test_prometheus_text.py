from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.read.metrics.reading import T0, curves, metric, only, read
from tools.cases import CORPUS
from trackside.read import blocks

UTIL, POWER, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"
LABELS = '{gpu="0",UUID="GPU-1",device="nvidia0",modelName="NVIDIA L4",Hostname="n1"}'
DATA = CORPUS.parent / "data"


def test_a_scrape_without_times_gets_the_time_of_the_file() -> None:
    row, sink = read(f"# HELP {UTIL} GPU utilization (in %).\n# TYPE {UTIL} gauge\n{UTIL}{LABELS} 97\n")
    assert (row.format, row.status, row.rows, row.plane) == ("prometheus-text", "read", 1, "metric")
    assert only(sink, "gpu_utilization_ratio") == [(T0, pytest.approx(0.97))]
    assert "2025-11-21T12:56:00Z" in row.note
    assert "last written" in row.note


def test_a_series_is_located_at_its_first_line() -> None:
    first = f"{TEMP}{LABELS} 30 {T0}\n"
    _, sink = read(f"{first}# a comment\n{UTIL}{LABELS} 97 {T0}\n{UTIL}{LABELS} 98 {T0 + 1}\n")
    at = next(series.at for series in sink.blocks[0].series if series.metric == "gpu_utilization_ratio")
    assert (at.path, at.line, at.offset) == ("scrape.prom", 3, len(first) + len("# a comment\n"))
    assert at.length == len(f"{UTIL}{LABELS} 97 {T0}")


def test_labels_are_translated() -> None:
    _, sink = read(f"{UTIL}{LABELS} 97 {T0}\n")
    (labels,) = metric(sink, "gpu_utilization_ratio")
    assert dict(labels)["node"] == "n1"
    assert dict(labels)["gpu"] == "0"


def test_times_in_milliseconds_and_openmetrics_seconds() -> None:
    _, sink = read(f"{UTIL}{LABELS} 1 {T0}\n{UTIL}{LABELS} 2 {T0 + 15000}\n")
    assert [time for time, _ in only(sink, "gpu_utilization_ratio")] == [T0, T0 + 15000]
    row, sink = read(
        f"# TYPE {TEMP} gauge\n# UNIT {TEMP} \n"
        f"{TEMP}{LABELS} 40 {T0 / 1000:.3f}\n{TEMP}{LABELS} 41.5 {T0 // 1000 + 15}\n# EOF\n"
    )
    assert "OpenMetrics" in row.note
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0), (T0 + 15000, 41.5)]


def test_exemplars_and_created_times_are_ignored() -> None:
    text = (
        f'{TEMP}{LABELS} 40 {T0 / 1000} # {{trace_id="a b"}} 0.67 {T0 / 1000}\n'
        f'{POWER}{LABELS} 350 # {{trace_id="#"}} 1\n'
        f"{TEMP}_created{LABELS} {T0 / 1000}\n# EOF\n"
    )
    row, sink = read(text)
    assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0)]
    assert only(sink, "gpu_power_watts") == [(T0, 350.0)]
    assert row.status == "read"


@pytest.mark.parametrize(
    "between",
    [
        "# 2025-11-21T12:56:{:02d}Z",
        "2025-11-21 12:56:{:02d}",
        "Fri Nov 21 12:56:{:02d} UTC 2025",
        "Fri 21 Nov 2025 12:56:{:02d} PM UTC",
        "=== 2025-11-21T14:56:{:02d}+02:00 ===",
        "# Fri Nov 21 12:56:{:02d} 2025",
        "Date: Fri, 21 Nov 2025 12:56:{:02d} GMT",
        "17637297{}",
        "# 17637297{}.000",
        "17637297{}000",
    ],
)
def test_times_between_scrapes_are_used(between: str) -> None:
    scrapes = []
    for second in (5, 35):
        stamp = between.format(second if ":{" in between else 60 + second)
        scrapes.append(f"{stamp}\n# TYPE {UTIL} gauge\n{UTIL}{LABELS} {second}\n")
    row, sink = read("".join(scrapes))
    assert only(sink, "gpu_utilization_ratio") == [(T0 + 5000, 0.05), (T0 + 35000, pytest.approx(0.35))], row
    assert row.status == "read"


def test_samples_before_the_first_time_are_dropped() -> None:
    row, sink = read(f"{UTIL}{LABELS} 1\n# 2025-11-21T12:56:00Z\n{UTIL}{LABELS} 2\n")
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.02)]
    assert row.status == "partial"
    assert "1 sample before the first time" in row.note


def test_the_last_of_several_scrapes_without_times_is_kept() -> None:
    row, sink = read(f"{UTIL}{LABELS} 1\n{TEMP}{LABELS} 30\n{UTIL}{LABELS} 2\n{TEMP}{LABELS} 31\n")
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.02)]
    assert only(sink, "gpu_temperature_celsius") == [(T0, 31.0)]
    assert row.status == "partial"
    assert "others dropped" in row.note


def test_samples_without_any_time_are_dropped_and_noted() -> None:
    row, sink = read(f"{UTIL}{LABELS} 1\n", modified=None)
    assert not curves(sink)
    assert (row.status, row.rows) == ("partial", 0)
    assert "without a time" in row.note


@pytest.mark.parametrize("time", ["1763729760000000", "1763729760000000000", "12", "-5", "0", "99999999999999999999"])
def test_times_in_other_units_are_refused(time: str) -> None:
    row, sink = read(f"{UTIL}{LABELS} 1 {time}\n{UTIL}{LABELS} 3 {T0}\n")
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.03)]
    assert row.status == "partial"
    assert "1 sample with times outside 2000 to 2100" in row.note


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("+7", 7.0), ("3.2e+02", 320.0), ("1E2", 100.0), ("2.5e-01", 0.25),
     ("0.1234567890123456789", 0.12345678901234568), ("99.99999999999999", 99.99999999999999)],
)  # fmt: skip
def test_values_are_parsed(text: str, value: float) -> None:
    _, sink = read(f"{POWER}{LABELS} {text} {T0}\n" * 3)
    assert {number for _, number in only(sink, "gpu_power_watts")} == {value}


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "Inf", "nan"])
def test_blank_values_are_skipped(text: str) -> None:
    row, sink = read(f"{TEMP}{LABELS} {text} {T0}\n{TEMP}{LABELS} 5 {T0 + 1}\n")
    assert only(sink, "gpu_temperature_celsius") == [(T0 + 1, 5.0)]
    assert row.status == "read"


@pytest.mark.parametrize(
    "line",
    ["0x10", "1_000", "ten", "1,5", "--1", "1e", "e5", "."],
)
def test_a_line_with_a_malformed_value_is_skipped(line: str) -> None:
    valid_line = f"{TEMP}{LABELS} 5 {T0}\n"
    row, sink = read(f"{valid_line}{TEMP}{LABELS} {line} {T0}\n{valid_line * 20}")
    assert only(sink, "gpu_temperature_celsius") == [(T0, 5.0)] * 21
    assert (row.status, "1 malformed line (first: line 2)" in row.note) == ("partial", True), row.note


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        f"{TEMP}{{gpu=0}} 5 {T0}",
        f'{TEMP}{{gpu="0" 5 {T0}',
        f'{TEMP}{{gpu="0",gpu="1"}} 5 {T0}',
        f'{TEMP}{{gpu="0"}} 5 {T0} 7',
        f"{TEMP}",
        f"{TEMP}-x 5 {T0}",
        f'{{gpu="0"}} 5 {T0}',
    ],
)
def test_a_malformed_line_is_skipped(line: str) -> None:
    valid_lines = [f"{TEMP}{LABELS} {value} {T0 + value}\n" for value in range(20)]
    row, sink = read("".join(valid_lines[:10]) + line + "\n" + "".join(valid_lines[10:]))
    assert len(only(sink, "gpu_temperature_celsius")) == 20
    assert (row.status, "1 malformed line (first: line 11)" in row.note) == ("partial", True), row.note


@pytest.mark.parametrize(
    "line",
    [
        f'{TEMP}{{gpu="0"}}  5   {T0}',
        f'{TEMP}{{gpu="0"}}\t5\t{T0}',
        f'  {TEMP}{{gpu="0"}} 5 {T0}  ',
        f'{TEMP} {{ gpu = "0" , }} 5 {T0}',
        f'{TEMP}{{gpu="0",}} 5 {T0}',
        f'{{"{TEMP}",gpu="0"}} 5 {T0}',
        f'{{__name__="{TEMP}", gpu="0"}} 5 {T0}',
        f'{TEMP}{{gpu="0",x="a }} b # \\" \\\\ \\n"}} 5 {T0}',
        f'{TEMP}{{gpu="0"}}5 {T0}',
        f'{TEMP}{{gpu="0"}} 5 {T0}\r',
    ],
)
def test_other_spacings_and_spellings(line: str) -> None:
    row, sink = read(f"{line}\n{line}\n")
    assert metric(sink, "gpu_temperature_celsius") == {(("gpu", "0"),): [(T0, 5.0), (T0, 5.0)]}, row
    assert row.status == "read"


def test_a_metric_without_labels() -> None:
    _, sink = read(f"# TYPE node_load1 gauge\nnode_load1 0.5 {T0}\nnode_load1 1 {T0 + 1}\n")
    assert only(sink, "host_load1") == [(T0, 0.5), (T0 + 1, 1.0)]
    _, sink = read("# TYPE node_load1 gauge\nnode_load1 0.5\n")
    assert only(sink, "host_load1") == [(T0, 0.5)]


def test_windows_line_ends() -> None:
    text = f"# TYPE {UTIL} gauge\r\n\r\n{UTIL}{LABELS} 97 {T0}\r\n{TEMP}{LABELS} 30\r\n{UTIL}{LABELS} 98 {T0 + 5}\r\n"
    row, sink = read(text)
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.97), (T0 + 5, 0.98)]
    assert only(sink, "gpu_temperature_celsius") == [(T0 + 5, 30.0)]
    assert row.status == "read", row.note


def test_invalid_utf8_in_a_label() -> None:
    row, sink = read(f'{UTIL}{{gpu="0",Hostname="n\u00e9"}} 97 {T0}\n'.encode("latin-1"))
    assert list(metric(sink, "gpu_utilization_ratio").values()) == [[(T0, 0.97)]]
    assert row.status == "read"


def test_a_truncated_last_line_is_dropped_and_noted() -> None:
    row, sink = read(f"{UTIL}{LABELS} 97 {T0}\n{UTIL}{LABELS} 9")
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.97)]
    assert (row.status, "truncated within its last line" in row.note) == ("partial", True)
    row, _ = read(f"{UTIL}{LABELS} 97 {T0 / 1000}\n# EOF")
    assert row.status == "read"


def test_unknown_metrics_are_counted() -> None:
    others = "".join(f"acme_{number}_total 5 {T0}\n" * 2 for number in range(9))
    row, sink = read(f"{others}{UTIL}{LABELS} 97 {T0}\n")
    assert len(curves(sink)) == 1
    assert "1 of 10 metrics are known" in row.note
    row, sink = read(f"# TYPE acme_0_total counter\n{others}")
    assert (row.format, row.status, row.rows) == ("prometheus-text", "unrecognised", 0)
    assert "none of its 9 metrics is known" in row.note


def test_a_unit_inferred_from_the_size_waits_for_a_large_value() -> None:
    idle = "".join(f'dcgm_prof_sm_active{{gpu="0"}} {value} {T0 + value}\n' for value in (0, 1))
    busy = f'dcgm_prof_sm_active{{gpu="0"}} 97 {T0 + 2}\n'
    _, sink = read(idle + busy)
    assert [value for _, value in only(sink, "gpu_sm_active_ratio")] == pytest.approx([0.0, 0.01, 0.97])
    _, sink = read(idle)
    assert [value for _, value in only(sink, "gpu_sm_active_ratio")] == [0.0, 1.0]


def test_blanks_and_impossible_values_are_dropped() -> None:
    row, sink = read(f"{TEMP}{LABELS} 2147483632 {T0}\n{TEMP}{LABELS} 30000 {T0}\n{TEMP}{LABELS} 50 {T0}\n")
    assert only(sink, "gpu_temperature_celsius") == [(T0, 50.0)]
    assert "1 blank value" in row.note
    assert "1 value outside the range of their metric" in row.note


# -- blocks


def test_every_line_is_read_once_for_any_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        f'{UTIL}{{gpu="{gpu}",Hostname="n{node}"}} {(gpu + tick) % 100} {T0 + tick}\n'
        for tick in range(40)
        for node in range(3)
        for gpu in range(4)
    ]
    lines.insert(100, "nonsense\n")
    text = "".join(lines)
    expected = curves(read(text)[1])
    assert sum(map(len, expected.values())) == 480
    for size in (64, 97, 1000, 4096):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
        row, sink = read(text)
        assert curves(sink) == expected
        assert "1 malformed line (first: line 101)" in row.note


def test_a_line_longer_than_the_limit_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_LINE_BYTES", 500)
    for size in (64, 700, 1 << 20):
        monkeypatch.setattr(blocks, "BLOCK_BYTES", size)
        for length in (501, 2000):
            valid_line = f"{UTIL}{LABELS} 1 {T0}\n"
            row, sink = read(f'{valid_line}{UTIL}{{gpu="{"9" * length}"}} 5 {T0}\n{valid_line}bad\n{valid_line * 20}')
            assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01)] * 22, (size, length)
            assert "(first: line 2)" in row.note, row.note
            assert "1 malformed line (first: line 4)" in row.note


def test_series_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.measurements.MAX_SERIES", 10)
    monkeypatch.setattr("trackside.read.formats.prometheus_text.MAX_SERIES", 10)
    row, sink = read("".join(f'{UTIL}{{gpu="{gpu}"}} 5 {T0 + tick}\n' for tick in range(3) for gpu in range(20)))
    assert len(curves(sink)) == 10
    assert all(len(curve) == 3 for curve in curves(sink).values())
    assert row.status == "partial"
    assert "more than 10 series" in row.note


# -- recognition


def test_a_job_log_with_some_metrics_in_it_is_a_job_log() -> None:
    metrics = f"{UTIL}{LABELS} 97\n{TEMP}{LABELS} 30\n"
    log = (
        "starting\nloading data\n" + metrics + "step 1 loss 2.5\nstep 2 loss 2.4\nTraceback (most recent call last):\n"
    )
    assert read(log, "job.out")[0].format == "job-log"


@pytest.mark.parametrize(
    "text",
    [
        "loss 5\nloss 4\nloss 3\n",
        "step 1\nstep 2\n",
        "Epoch 1 17\n" * 20,
        "0.5 0.7\n",
        "{'loss': 2.5}\n{'loss': 2.4}\n",
        "# TYPE x gauge\nhello there, world\n",
        "",
    ],
)
def test_text_that_resembles_a_scrape_is_not_recognized(text: str) -> None:
    assert read(text, "job.out")[0].format != "prometheus-text"


def test_binary_is_not_read() -> None:
    assert read(bytes(range(256)) * 50, "x.bin")[0].format != "prometheus-text"


def test_comments_at_the_end_are_ignored() -> None:
    row, sink = read(f"{UTIL}{LABELS} 97 {T0}\n#\n# \n#\n")
    assert (row.status, row.rows) == ("read", 1)
    assert math.isclose(only(sink, "gpu_utilization_ratio")[0][1], 0.97)


# -- real scrapes


@pytest.mark.corpus
@pytest.mark.parametrize("path", sorted(DATA.glob("dcgm-exporter-scrapes/*.prom")), ids=lambda path: path.name)
def test_real_scrapes_of_dcgm_exporter(path: Path) -> None:
    row, sink = read(path.read_bytes(), path.name)
    assert (row.format, row.status) == ("prometheus-text", "read"), row
    names = {name for name, _ in curves(sink)}
    assert {"gpu_utilization_ratio", "gpu_power_watts", "gpu_sm_clock_hertz", "gpu_memory_used_bytes"} <= names
    assert len({dict(labels)["node"] for _, labels in curves(sink)}) == 1


@pytest.mark.corpus
@pytest.mark.parametrize("path", sorted(DATA.glob("nvidia-smi-captures/metrics/*")), ids=lambda path: path.name)
def test_real_scrapes_of_nvidia_gpu_exporter(path: Path) -> None:
    row, sink = read(path.read_bytes(), path.name)
    assert (row.format, row.status) == ("prometheus-text", "read"), row
    assert {"gpu_power_watts", "gpu_temperature_celsius", "gpu_memory_used_bytes"} <= {name for name, _ in curves(sink)}
