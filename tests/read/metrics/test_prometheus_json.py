from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.read.metrics.reading import T0, curves, metric, only, read

UTIL, TEMP = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_TEMP"
S0 = T0 / 1000


def answer(kind: str, result: Any, **more: Any) -> str:
    return json.dumps({"status": "success", "data": {"resultType": kind, "result": result}, **more})


def curve(values: list[tuple[float, str]], name: str | None = UTIL, **labels: str) -> dict[str, Any]:
    return {"metric": labels if name is None else {"__name__": name, **labels}, "values": values}


def test_curves_of_a_matrix() -> None:
    text = answer(
        "matrix", [curve([(S0, "50"), (S0 + 15.5, "100")], gpu="0", Hostname="n1"), curve([(S0, "1")], gpu="1")]
    )
    row, sink = read(text, "range.json")
    assert (row.format, row.status, row.rows, row.plane) == ("prometheus-json", "read", 3, "metric"), row
    curves_by_gpu = {dict(labels)["gpu"]: samples for labels, samples in metric(sink, "gpu_utilization_ratio").items()}
    assert curves_by_gpu == {"0": [(T0, 0.5), (T0 + 15500, 1.0)], "1": [(T0, 0.01)]}


def test_samples_of_a_vector() -> None:
    text = answer("vector", [{"metric": {"__name__": TEMP, "gpu": "0"}, "value": [S0 + 0.25, "61"]}])
    assert only(read(text)[1], "gpu_temperature_celsius") == [(T0 + 250, 61.0)]


def test_values_without_a_number_are_skipped() -> None:
    text = answer("matrix", [curve([(S0, "NaN"), (S0 + 1, "+Inf"), (S0 + 2, "x"), (S0 + 3, "7")])])
    assert only(read(text)[1], "gpu_utilization_ratio") == [(T0 + 3000, 0.07)]


def test_an_error_response_is_noted() -> None:
    text = '{"status":"error","errorType":"bad_data","error":"invalid parameter \\"query\\": 1:5: parse error"}'
    row, _ = read(text)
    assert (row.format, row.rows) == ("prometheus-json", 0)
    assert "an error response: bad_data: invalid parameter" in row.note


def test_several_answers_in_one_file() -> None:
    utilization, temperature = answer("matrix", [curve([(S0, "50")])]), answer("matrix", [curve([(S0, "40")], TEMP)])
    error = '{"status":"error","errorType":"timeout","error":"query timed out"}'
    for separator in ("", "\n", "\n\n"):
        row, sink = read(separator.join([utilization, error, temperature]) + "\n")
        assert only(sink, "gpu_utilization_ratio") == [(T0, 0.5)]
        assert only(sink, "gpu_temperature_celsius") == [(T0, 40.0)]
        assert (row.status, "timeout: query timed out" in row.note) == ("partial", True)


def test_series_of_an_expression_have_no_name() -> None:
    row, sink = read(answer("matrix", [curve([(S0, "50")], None, gpu="0"), curve([(S0, "40")], TEMP)]))
    assert list(curves(sink)) == [("gpu_temperature_celsius", ())]
    assert "1 series without a name" in row.note
    assert row.status == "partial"


def test_unknown_metrics_are_counted() -> None:
    row, _ = read(answer("matrix", [curve([(S0, "50")], "acme_threads"), curve([(S0, "50")], "acme_gc")]))
    assert (row.status, row.rows) == ("unrecognised", 0)
    assert "none of its 2 metrics is known" in row.note
    row, _ = read(answer("matrix", []))
    assert (row.status, row.rows) == ("empty", 0)


def test_warnings_and_partial_answers_are_noted() -> None:
    row, _ = read(answer("matrix", [curve([(S0, "50")])], warnings=["some shards failed"], isPartial=True))
    assert (row.status, row.rows) == ("partial", 1)
    assert "some shards failed" in row.note
    assert "partial" in row.note


def test_times_in_milliseconds_are_read_and_others_refused() -> None:
    row, sink = read(answer("matrix", [curve([(T0, "50"), (S0 * 1e6, "1"), (7, "2")])]))
    assert only(sink, "gpu_utilization_ratio") == [(T0, 0.5)]
    assert "2 samples with times outside 2000 to 2100" in row.note


@pytest.mark.parametrize("cut", [90, 120, -3, -1])
def test_a_truncated_answer_gives_no_samples(cut: int) -> None:
    row, sink = read(answer("matrix", [curve([(S0 + second, "50") for second in range(10)], gpu="0")])[:cut])
    assert not curves(sink)
    assert row.status != "read"


@pytest.mark.parametrize(
    "text",
    [
        '{"status":"success","data":{"resultType":"matrix","result":5}}',
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"x","a":5},"values":[]}]}}',
        '{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"DCGM_FI_DEV_GPU_TEMP"},"values":[[1]]}]}}',
        '{"status":"success","data":{"resultType":"matrix","result":[[[[[[[]]]]]]]}}',
    ],
)
def test_other_shapes_are_malformed(text: str) -> None:
    row, sink = read(text)
    assert not curves(sink)
    assert "malformed" in row.note, row


@pytest.mark.parametrize("kind", ["scalar", "string"])
def test_scalars_and_strings_have_no_series(kind: str) -> None:
    row, _ = read(answer(kind, [S0, "5"]))
    assert row.format == "prometheus-json"
    assert f"a result of type {kind} has no series" in row.note


def test_loki_streams_and_other_documents_are_not_recognized() -> None:
    loki = answer("streams", [{"stream": {"app": "x"}, "values": [["1763729760000000000", "a log line"]]}])
    assert read(loki)[0].format != "prometheus-json"
    assert read('{"status":"success","data":["a","b"]}')[0].format != "prometheus-json"
    assert read('{"status": "ok"}')[0].format != "prometheus-json"


def test_a_file_larger_than_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trackside.read.format.MAX_WHOLE_BYTES", 100)
    row, _ = read(answer("matrix", [curve([(S0 + second, "50") for second in range(100)])]))
    assert (row.status, "split it" in row.note) == ("refused", True)


def test_many_answers_in_one_file_take_linear_time() -> None:
    start_s = time.process_time()
    row, _ = read((answer("vector", []) + "\n") * 60_000)
    assert row.format == "prometheus-json"
    assert time.process_time() - start_s < 5.0


def test_series_after_a_malformed_one_are_lost_and_noted() -> None:
    row, sink = read(answer("matrix", [curve([(S0, "50")]), {"metric": 7}, curve([(S0, "40")], TEMP)]))
    assert list(metric(sink, "gpu_utilization_ratio").values()) == [[(T0, 0.5)]]
    assert (row.status, "a truncated or malformed response (line 1)" in row.note) == ("partial", True)


@pytest.mark.parametrize("depth", ["[" * 100_000, '{"metric":' * 100_000])
def test_nesting_depth_is_bounded(depth: str) -> None:
    row, _ = read('{"status":"success","data":{"resultType":"matrix","result":[' + depth)
    assert row.status in ("unreadable", "partial")
    assert "nested too deeply" in row.note or "cut off or broken" in row.note
