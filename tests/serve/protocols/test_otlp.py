"""OTLP against messages of the official library: metrics and logs, as protobuf and as JSON."""

from __future__ import annotations

import json
import math
import struct
from contextlib import suppress

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from trackside.serve.protocols import messages, otlp_logs, otlp_metrics
from trackside.serve.protocols.decoded import BadRequest, UnsupportedMedia
from trackside.serve.protocols.series_key import KnownSeries, labels_of

PROTOBUF, JSON = "application/x-protobuf", "application/json; charset=utf-8"
NOW = 1_795_253_628_000_000_000
UNKNOWN = b"\xf8\x7f\x07\xfa\x7f\x03abc\xf9\x7f12345678\xfd\x7f1234"
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.just("x" * 200)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["hw.id", "rank", "node", "température"]),
    TEXTS | st.booleans() | st.integers(-9, 9) | st.lists(st.integers(0, 3), max_size=2),
    max_size=3,
)
TIMES = st.integers(0, (1 << 63) - 1) | st.just(NOW)
NUMBERS = st.floats() | st.integers(-(1 << 63), (1 << 63) - 1) | st.none()
POINT_FRILLS = st.sets(st.sampled_from(["started", "exemplar", "stale", "unknown"]))
POINTS = st.lists(st.tuples(ATTRIBUTES, TIMES, NUMBERS, POINT_FRILLS), max_size=4)
METRICS = st.lists(
    st.tuples(st.sampled_from(["hw.gpu.utilization", "hw.power"]), st.sampled_from(["gauge", "sum", "delta"]), POINTS),
    max_size=3,
)


def _value(any_value, value) -> None:
    match value:
        case bool():
            any_value.bool_value = value
        case int():
            any_value.int_value = value
        case str():
            any_value.string_value = value
        case list():
            any_value.array_value.SetInParent()
            for item in value:
                _value(any_value.array_value.values.add(), item)


def _attributes(into, attributes) -> None:
    for key, value in attributes.items():
        pair = into.add(key=key)
        _value(pair.value, value)


def metrics_request(resource, scope, metrics) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    resource_metrics = request.resource_metrics.add()
    _attributes(resource_metrics.resource.attributes, resource)
    scope_metrics = resource_metrics.scope_metrics.add()
    scope_metrics.scope.name = scope
    for name, kind, points in metrics:
        metric = scope_metrics.metrics.add(name=name, unit="1", description="of no interest")
        data = metric.gauge if kind == "gauge" else metric.sum
        data.SetInParent()
        if kind != "gauge":
            data.aggregation_temporality = 1 if kind == "delta" else 2
        for attributes, time, value, frills in points:
            point = data.data_points.add(time_unix_nano=time)
            _attributes(point.attributes, attributes)
            if isinstance(value, float):
                point.as_double = value
            elif value is not None:
                point.as_int = value
            if "started" in frills:
                point.start_time_unix_nano = NOW
            if "exemplar" in frills:
                point.exemplars.add(as_double=1.0)
            if "stale" in frills:
                point.flags = 1
            if "unknown" in frills:
                point.MergeFromString(UNKNOWN)
    return request


def _text(value) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _labels(*sets) -> list:
    return sorted(
        {
            key.replace(".", "_"): _text(value)
            for attributes in sets
            for key, value in attributes.items()
            if value != ""
        }.items()
    )


def _bits(value: float) -> int:
    return 1 if math.isnan(value) else struct.unpack("<Q", struct.pack("<d", value))[0]  # JSON knows one NaN


def samples_of(block) -> list:
    labels = [labels_of(key) for key in block.keys]
    rows = zip(block.index.tolist(), block.times_ms.tolist(), block.values.tolist(), strict=True)
    return sorted((labels[at][0], sorted(labels[at][1].items()), time, _bits(value)) for at, time, value in rows)


def read(request) -> list:
    """The blocks of a request: as protobuf with new and with known series, and as JSON."""
    known_series = KnownSeries()
    blocks = [otlp_metrics.decode(request.SerializeToString(), PROTOBUF, known_series) for _ in range(2)]
    forms = (MessageToDict(request), MessageToDict(request, preserving_proto_field_name=True))
    return [*blocks, *(otlp_metrics.decode(json.dumps(form).encode(), JSON, known_series) for form in forms)]


@settings(max_examples=300, deadline=None)
@given(ATTRIBUTES, st.sampled_from(["", "scraper"]), METRICS)
@example(
    {"host.name": "n1"},
    "",
    [("hw.power", "gauge", [({"gpu": "0"}, NOW, 1.5, set()), ({"gpu": "0"}, NOW, 2, {"started"})])],
)
@example({}, "", [("hw.power", "sum", [({}, NOW, 0.0, {"exemplar", "started"}), ({}, NOW + 1, -1, {"stale"})])])
def test_samples_are_what_was_sent(resource, scope, metrics):
    scope_labels = {"otel_scope_name": scope}
    cumulative = [(name, point) for name, kind, points in metrics if kind != "delta" for point in points]
    expected = sorted(
        (name, _labels(resource, scope_labels, attributes), time // 1_000_000, _bits(float(value)))
        for name, (attributes, time, value, frills) in cumulative
        if "stale" not in frills and value is not None
    )
    deltas = sum(len(points) for _, kind, points in metrics if kind == "delta")
    for block in read(metrics_request(resource, scope, metrics)):
        assert samples_of(block) == expected
        assert block.stale == sum("stale" in point[3] for _, point in cumulative)
        assert block.skipped == deltas + sum(point[2] is None and "stale" not in point[3] for _, point in cumulative)
        assert ("delta temporality" in block.reason_text) == bool(deltas)


def _distribution(kind: str, **fields) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="lat.ency")
    data = getattr(metric, kind)
    point = data.data_points.add(time_unix_nano=NOW, **fields)
    _attributes(point.attributes, {"gpu": "0"})
    return request


def _samples(block) -> dict:
    return {
        (name, labels.get("le", labels.get("quantile", ""))): value
        for (name, labels), value in zip(map(labels_of, block.keys), block.values.tolist(), strict=True)
    }


def test_a_histogram_becomes_cumulative_buckets():
    for block in read(_distribution("histogram", count=6, sum=7.5, explicit_bounds=[0.5, 10], bucket_counts=[1, 2, 3])):
        assert _samples(block) == {
            ("lat.ency_bucket", "0.5"): 1, ("lat.ency_bucket", "10"): 3, ("lat.ency_bucket", "+Inf"): 6,
            ("lat.ency_count", ""): 6, ("lat.ency_sum", ""): 7.5,
        }  # fmt: skip
        assert not block.reason_text
    for block in read(_distribution("histogram", count=6)):
        assert _samples(block) == {("lat.ency_count", ""): 6}
    with pytest.raises(BadRequest, match=r"'lat.ency': a histogram with 1 bounds has 3 buckets"):
        read(_distribution("histogram", explicit_bounds=[1], bucket_counts=[1, 2, 3]))


def test_a_summary_gives_quantiles_and_an_exponential_histogram_sum_and_count():
    for block in read(_distribution("summary", count=6, sum=7.5, quantile_values=[{"quantile": 0.99, "value": 3}])):
        assert _samples(block) == {("lat.ency", "0.99"): 3, ("lat.ency_count", ""): 6, ("lat.ency_sum", ""): 7.5}
    for block in read(_distribution("exponential_histogram", count=6, sum=7.5, scale=2)):
        assert _samples(block) == {("lat.ency_count", ""): 6, ("lat.ency_sum", ""): 7.5}
        assert "only sum and count were stored" in block.reason_text
        assert block.skipped == 0


def test_an_instance_id_becomes_a_label_only_if_it_is_an_address():
    for instance, expected in (("10.0.0.1:9400", "10.0.0.1:9400"), ("627cc493-f310-47de-96bd-71410b7dec09", None)):
        for block in read(
            metrics_request({"service.instance.id": instance}, "", [("up", "gauge", [({}, NOW, 1.0, set())])])
        ):
            assert labels_of(block.keys[0])[1].get("instance") == expected


def test_evicted_series_are_created_again():
    request = metrics_request(
        {}, "", [("a", "gauge", [({}, NOW, 1.0, set())]), ("b", "gauge", [({}, NOW, 2.0, set())])]
    )
    known_series = KnownSeries(1)
    for _ in range(3):
        block = otlp_metrics.decode(request.SerializeToString(), PROTOBUF, known_series)
        assert samples_of(block) == [("a", [], NOW // 10**6, _bits(1.0)), ("b", [], NOW // 10**6, _bits(2.0))]
        assert len(known_series.keys) == 1


def test_resource_scope_and_name_distinguish_series():
    known_series = KnownSeries()
    keys = set()
    for resource, scope, name in (({}, "", "a"), ({"x": "1"}, "", "a"), ({}, "x", "a"), ({}, "", "b")):
        request = metrics_request(resource, scope, [(name, "gauge", [({"y": "1"}, NOW, 1.0, set())])])
        for _ in range(2):
            block = otlp_metrics.decode(request.SerializeToString(), PROTOBUF, known_series)
            assert samples_of(block) == [
                (name, _labels(resource, {"otel_scope_name": scope}, {"y": "1"}), NOW // 10**6, _bits(1.0))
            ]
        keys.update(block.keys)
    assert len(keys) == 4


def test_the_response_reports_rejected_points():
    request = metrics_request({}, "", [("a", "delta", [({}, NOW, 1.0, set())] * 3)])
    for content_type in (PROTOBUF, JSON):
        body = request.SerializeToString() if content_type == PROTOBUF else json.dumps(MessageToDict(request)).encode()
        answer = otlp_metrics.answer(otlp_metrics.decode(body, content_type), content_type)
        assert (answer.status, answer.content_type) == (200, content_type.partition(";")[0])
        if content_type == PROTOBUF:
            partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
            assert (partial.rejected_data_points, "=cumulative" in partial.error_message) == (3, True)
        else:
            assert json.loads(answer.body)["partialSuccess"]["rejectedDataPoints"] == "3"
    assert otlp_metrics.answer(otlp_metrics.decode(b"", PROTOBUF), PROTOBUF).body == b""
    assert otlp_metrics.answer(otlp_metrics.decode(b"{}", JSON), JSON).body == b"{}"


@pytest.mark.parametrize("decode", [otlp_metrics.decode, otlp_logs.decode])
def test_invalid_requests_are_refused(decode):
    for body, content_type, message in (
        (b"\x0a\x05ab", PROTOBUF, "truncated"),
        (b"\x0b", PROTOBUF, "wire type 3"),
        (b"[]", JSON, "Expected `object`, got `array`"),
        (
            b'{"resourceMetrics": 1, "resourceLogs": 1}',
            JSON,
            r"not OTLP in JSON: .*resource\w+ must be in \[\] which is 1",
        ),
        (b"\xff", JSON, "not OTLP in JSON"),
        (b'{"x":' * 5000, JSON, "not OTLP in JSON"),
    ):
        with pytest.raises(BadRequest, match=message):
            decode(body, content_type)
    with pytest.raises(UnsupportedMedia, match="OTLP over HTTP is"):
        decode(b"", "text/plain")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    if data.draw(st.booleans()):
        body = data.draw(st.binary(max_size=80))
    else:
        body = bytearray(
            metrics_request(
                {"a": "b"}, "s", [("m", "sum", [({"k": "v"}, NOW, 1.5, {"started"})] * 2)]
            ).SerializeToString()
        )
        for index in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
            body[index] = data.draw(st.integers(0, 255))
    for decode in (otlp_metrics.decode, otlp_logs.decode):
        for content_type in (PROTOBUF, JSON):
            with suppress(BadRequest):
                decode(bytes(body), content_type)


JSONS = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXTS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["resourceMetrics", "scopeMetrics", "metrics", "gauge", "dataPoints", "asInt", "asDouble", "name", "attributes", "resourceLogs", "scopeLogs", "logRecords", "body", "timeUnixNano"]), inner, max_size=3), max_leaves=12)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(JSONS)
@example(
    {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asInt": "x"}]}}]}]}]}
)
@example(
    {
        "resourceMetrics": [
            {"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asInt": "1" * 5000}]}}]}]}
        ]
    }
)
@example(
    {
        "resourceMetrics": [
            {"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"timeUnixNano": 10**19}]}}]}]}
        ]
    }
)
@example(
    {
        "resourceMetrics": [
            {
                "scopeMetrics": [
                    {"metrics": [{"name": "m", "gauge": {"dataPoints": [{"timeUnixNano": -(10**19), "asInt": 1}]}}]}
                ]
            }
        ]
    }
)
def test_any_json_is_read_or_refused(value):
    for decode in (otlp_metrics.decode, otlp_logs.decode):
        with suppress(BadRequest):
            decode(json.dumps(value).encode(), JSON)


RECORDS = st.lists(
    st.tuples(
        TIMES, TEXTS | st.lists(st.integers(0, 3), max_size=2), ATTRIBUTES | st.just({"exception.stacktrace": "a\nb"})
    ),
    max_size=6,
)


def logs_request(resource, records) -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    resource_logs = request.resource_logs.add()
    _attributes(resource_logs.resource.attributes, resource)
    for at, (time, body, attributes) in enumerate(records):
        if at % 3 == 0:
            resource_logs.scope_logs.add()
        record = resource_logs.scope_logs[-1].log_records.add(time_unix_nano=time, observed_time_unix_nano=NOW)
        _value(record.body, body)
        _attributes(record.attributes, attributes)
    return request


@settings(max_examples=200, deadline=None)
@given(ATTRIBUTES, RECORDS)
def test_lines_are_what_was_sent(resource, records):
    expected = []
    for time, body, attributes in records:
        stream_labels = {key: value for key, value in attributes.items() if key in ("rank", "node")}
        trace = attributes.get("exception.stacktrace")
        line = _text(body) + (f"\n{trace}" if trace is not None else "")
        expected.append((_labels(resource, stream_labels), time or NOW, line))
    request = logs_request(resource, records)
    for body, content_type in (
        (request.SerializeToString(), PROTOBUF),
        (json.dumps(MessageToDict(request)).encode(), JSON),
    ):
        streams = otlp_logs.decode(body, content_type)
        entries = [
            (sorted(stream.labels.items()), time, line)
            for stream in streams
            for time, line in zip(stream.times_ns, stream.lines, strict=True)
        ]
        assert sorted(entries) == sorted(expected)


def test_lines_keep_their_order_when_decoded_in_pieces(monkeypatch):
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 64)
    request = logs_request({"host.name": "n1"}, [(NOW + at, f"line {at}", {}) for at in range(500)])
    (stream,) = otlp_logs.decode(request.SerializeToString() + UNKNOWN, PROTOBUF)
    assert stream.labels == {"host_name": "n1"}
    assert stream.lines == [f"line {at}" for at in range(500)]
    assert stream.times_ns == [NOW + at for at in range(500)]


def test_a_record_beyond_the_limit_is_too_large():
    request = logs_request({}, [(NOW, "x" * ((1 << 20) + 1), {})])
    with pytest.raises(BadRequest, match="at most 1,048,576 are accepted") as caught:
        otlp_logs.decode(request.SerializeToString(), PROTOBUF)
    assert caught.value.status == 413


def test_metrics_decoded_in_pieces_are_the_same(monkeypatch):
    points = [({"gpu": str(number)}, NOW + number * 10**6, number + 0.5, set()) for number in range(200)]
    request = metrics_request(
        {"host.name": "n1"}, "scraper", [("a", "gauge", points), ("b", "sum", points), ("c", "delta", points)]
    )
    histogram = request.resource_metrics[0].scope_metrics[0].metrics.add(name="d").histogram
    for _ in range(50):
        histogram.data_points.add(time_unix_nano=NOW, count=2, sum=3.0, explicit_bounds=[1], bucket_counts=[1, 1])
    body = request.SerializeToString()
    whole = otlp_metrics.decode(body, PROTOBUF)
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 64)
    split = otlp_metrics.decode(body + UNKNOWN, PROTOBUF)
    assert samples_of(split) == samples_of(whole)
    assert (len(whole.keys), split.skipped, split.reason_text) == (600, 200, whole.reason_text)


def test_pieces_are_bounded_and_complete(monkeypatch):
    monkeypatch.setattr(messages, "MAX_PIECE_BYTES", 100)
    request = logs_request({"host.name": "n1"}, [(NOW + at, f"line {at}", {}) for at in range(99)])
    body = request.SerializeToString()
    whole = ExportLogsServiceRequest()
    for piece in messages.split_message(body, {1: {2: {2: {}}}}, 100, 0, len(body)):
        assert len(piece) < 100 + 50  # with the resource, which each piece repeats
        part = ExportLogsServiceRequest.FromString(piece)
        assert all(log.resource == request.resource_logs[0].resource for log in part.resource_logs)
        whole.MergeFrom(part)
    original, reassembled = (
        [record for log in request_.resource_logs for scope in log.scope_logs for record in scope.log_records]
        for request_ in (request, whole)
    )
    assert original == reassembled


def test_a_message_that_cannot_be_split_is_too_large():
    request = logs_request({"host.name": "x" * (1 << 20)}, [(NOW, "line", {})])
    with pytest.raises(BadRequest, match="more than 1,048,576 bytes at byte 4 that cannot be split") as caught:
        otlp_logs.decode(request.SerializeToString(), PROTOBUF)
    assert caught.value.status == 413


@pytest.mark.parametrize(("piece", "message"), [(b"[]", "objects and lists in JSON, but at most 1,048,576"), (b"1", "values in JSON, but at most 8,388,608")])  # fmt: skip
def test_json_of_too_many_values_is_too_large(piece, message):
    body = b'{"unknown": [%s]}' % b",".join([piece] * ((1 << 20) if piece == b"[]" else (8 << 20) + 2))
    with pytest.raises(BadRequest, match=message) as caught:
        otlp_logs.decode(body, JSON)
    assert caught.value.status == 413


@pytest.mark.parametrize("ids", [{"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}, {"trace_id": "abc", "span_id": "é"}])  # fmt: skip
def test_ids_in_json_may_have_any_form(ids):
    record = {"timeUnixNano": str(NOW), "body": {"stringValue": "traceId"}, "unknown": [{}], **ids}
    body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record], "schemaUrl": "x"}]}]}
    (stream,) = otlp_logs.decode(json.dumps(body).encode(), JSON)
    assert (stream.times_ns, stream.lines) == ([NOW], ["traceId"])
    point = {"timeUnixNano": str(NOW), "asInt": "7", "exemplars": [{"asDouble": 1, **ids}]}
    metric = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [point]}}]}]}]}
    assert samples_of(otlp_metrics.decode(json.dumps(metric).encode(), JSON)) == [("m", [], NOW // 10**6, _bits(7.0))]


def test_responses_to_logs_are_empty():
    assert ExportLogsServiceResponse.FromString(otlp_logs.answer(PROTOBUF).body) == ExportLogsServiceResponse()
    assert (otlp_logs.answer(JSON).status, otlp_logs.answer(JSON).body) == (200, b"{}")


def test_times_of_points_are_whole_milliseconds():
    (block, *_) = read(metrics_request({}, "", [("a", "gauge", [({}, NOW + 1_999_999, 1.0, set())])]))
    assert block.times_ms.tolist() == [NOW // 10**6 + 1]
    assert block.times_ms.dtype == np.int64
