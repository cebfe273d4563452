from __future__ import annotations

import json
from typing import Any

import pytest

from tests.read.metrics.reading import T0, curves, metric, only, read
from trackside.read import blocks
from trackside.read.formats import victoria_export

UTIL, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"


def line(values: list[Any], times: list[Any], name: str | None = UTIL, **labels: str) -> str:
    metric_labels = labels if name is None else {"__name__": name, **labels}
    return json.dumps({"metric": metric_labels, "values": values, "timestamps": times}, separators=(",", ":")) + "\n"


def test_curves_of_an_export() -> None:
    text = line([50, 99.5], [T0, T0 + 15000], gpu="0") + line([61], [T0], TEMP, gpu="0", Hostname="n1")
    row, sink = read(text, "export.jsonl")
    assert (row.format, row.status, row.rows, row.plane) == ("victoria-export", "read", 3, "metric")
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.5), (T0 + 15000, 0.995)]
    series = next(candidate for candidate in sink.blocks[0].series if candidate.metric == "gpu_temperature_celsius")
    assert (series.at.line, series.at.offset, series.get("node")) == (2, len(text.splitlines()[0]) + 1, "n1")


def test_a_series_in_several_lines_is_one() -> None:
    _, sink = read(line([1], [T0], gpu="0") + line([2], [T0 + 1], gpu="0"))
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01), (T0 + 1, 0.02)]


def test_values_that_json_cannot_express_are_skipped() -> None:
    row, sink = read(line([None, 1, "Infinity", "-Infinity", "NaN", 2], [T0 + index for index in range(6)]))
    assert only(sink, "gpu_utilization_ratio") == [(T0 + 1, 0.01), (T0 + 5, 0.02)]
    assert row.status == "read", row


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense\n",
        '{"metric":{"__name__":"DCGM_FI_DEV_GPU_TEMP"},"values":[1],"timestamps":[]}\n',
        '{"metric":{"__name__":"DCGM_FI_DEV_GPU_TEMP"},"values":["x"],"timestamps":[1763729760000]}\n',
        '{"metric":{"__name__":"DCGM_FI_DEV_GPU_TEMP"},"values":[[]],"timestamps":[1763729760000]}\n',
        '{"metric":{"__name__":7},"values":[1],"timestamps":[1763729760000]}\n',
        '{"metric":[],"values":[1],"timestamps":[1763729760000]}\n',
        "[]\n",
    ],
)
def test_a_malformed_line_is_skipped(bad: str) -> None:
    row, sink = read(line([1], [T0]) + bad + line([2], [T0 + 1]))
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01), (T0 + 1, 0.02)]
    assert (row.status, "(first: line 2)" in row.note) == ("partial", True), row.note


def test_a_truncated_last_line_is_dropped() -> None:
    row, sink = read(line([1], [T0]) + line([2], [T0 + 1])[:-20])
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01)]
    assert row.status == "partial"
    row, _ = read(line([1], [T0]).rstrip("\n"))
    assert (row.status, row.rows) == ("read", 1)


def test_series_without_a_name_and_wrong_times_are_noted() -> None:
    row, sink = read(
        line([1], [T0]) + line([1], [T0], None, a="b") + line([1, 2], [5, T0 * 1000]) + line([1], [T0], "z")
    )
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01)]
    assert row.status == "partial"
    for note in ("1 series without a name", "2 samples with times outside", "1 of 2 metrics are known"):
        assert note in row.note


def test_small_blocks_and_long_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(
        line([number % 100] * 9, [T0 + number * 10 + offset_ms for offset_ms in range(9)], gpu=str(number))
        for number in range(30)
    )
    expected = curves(read(text)[1])
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    assert curves(read(text)[1]) == expected
    monkeypatch.setattr(victoria_export, "MAX_LINE_BYTES", 500)
    row, sink = read(line([1], [T0]) + line([5] * 500, [T0] * 500) + line([2], [T0 + 1]))
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01), (T0 + 1, 0.02)]
    assert "1 line longer than" in row.note


def test_other_json_lines_are_not_recognized() -> None:
    assert read('{"metric":{"__name__":"up"},"value":[1,"2"]}\n')[0].format != "victoria-export"
    assert read('{"metric":"loss","values":[1]}\n')[0].format != "victoria-export"


def test_series_without_values() -> None:
    assert metric(read(line([], []) + line([4], [T0], gpu="0"))[1], "gpu_utilization_ratio") == {
        (("gpu", "0"),): [(T0, 0.04)]
    }


@pytest.mark.parametrize("number", ["9" * 400, "1e400", "-1e400"])
@pytest.mark.parametrize("column", ["values", "timestamps"])
def test_lines_with_numbers_beyond_any_float_are_skipped(number: str, column: str) -> None:
    malformed = line([1], [T0 + 5]).replace(
        f'"{column}":[{1 if column == "values" else T0 + 5}]', f'"{column}":[{number}]'
    )
    row, sink = read(line([1], [T0]) + malformed + line([2], [T0 + 1]))
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.01), (T0 + 1, 0.02)]
    assert "defect" not in row.note
