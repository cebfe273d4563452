"""Metrics of OTLP over HTTP, as protobuf and as JSON.

A name stays what OTLP calls it. Attributes of the resource, the scope and the point are labels, the nearest to the
point foremost. Histograms and summaries become the series that Prometheus makes of them.
"""

from __future__ import annotations

from array import array

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages

from trackside.serve.protocols import otlp, otlp_json
from trackside.serve.protocols.decoded import Answer, BadRequest, MetricBlock, TooLarge
from trackside.serve.protocols.otlp_json import real, whole
from trackside.serve.protocols.otlp_points import NO_VALUE, Context, Points, contexts, message, named, number
from trackside.serve.protocols.series_key import labels_of
from trackside.serve.protocols.wire import BYTES, MOST, VARINT, Offsets, fields, run, split

__all__ = ["answer", "decode", "labels_of"]

DELTA = 1
_KINDS = {5: "gauge", 7: "sum", 9: "histogram", 10: "exponential_histogram", 11: "summary"}
_GAUGE, _SUM, _HISTOGRAM, _SUMMARY = 5, 7, 9, 11
_MOST_PARTS = 1 << 18


def decode(body: bytes, content_type: str) -> MetricBlock:
    """The samples of a decompressed request. Raises BadRequest."""
    points = Points(body)
    if otlp.media_of(content_type) == otlp.JSON:
        _read_json(body, points)
    else:
        _read(body, points)
    return points.block()


def answer(block: MetricBlock, content_type: str) -> Answer:
    """What the sender is told once the block is kept."""
    response = ExportMetricsServiceResponse()
    if block.why:
        response.partial_success.rejected_data_points = block.left_out
        response.partial_success.error_message = block.why
    media = otlp.media_of(content_type)
    return otlp.answered(media, response.SerializeToString(), "rejectedDataPoints", block.left_out, block.why)


# -- protobuf


def _read(body: bytes, points: Points) -> None:
    ((starts, ends),) = split(body, 0, len(body), 1)
    parts = 0
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        resource, scopes = split(body, start, end, 1, 2)
        shared = _joined(body, resource)
        for begin, stop in zip(*(each.tolist() for each in scopes), strict=True):
            scope, metrics = split(body, begin, stop, 1, 2)
            parts += len(metrics[0]) + 1
            if parts + place > _MOST_PARTS:
                raise BadRequest(f"more than {_MOST_PARTS:,} resources, scopes and metrics: send less at once")
            about = _joined(body, scope)
            for at, (first, last) in enumerate(zip(*(each.tolist() for each in metrics), strict=True)):
                _read_metric(points, first, last, shared, about, f"metric {at:,} of resource {place:,}")


def _joined(body: bytes, spans: tuple[Offsets, Offsets]) -> bytes:
    """A message given in pieces, which together are the same message."""
    return b"".join(body[start:end] for start, end in zip(*(each.tolist() for each in spans), strict=True))


def _read_metric(points: Points, at: int, end: int, resource: bytes, scope: bytes, where: str) -> None:
    body, name, data, spans = points.body, b"", 0, array("q")
    for field, kind, value, stop in fields(body, at, end):
        if kind != BYTES:
            continue
        if field == 1:
            name = body[value:stop]
        elif field in _KINDS:
            if field != data:
                data, spans = field, array("q")  # one of them only: the last
            spans.extend((value, stop))
    context = contexts.of(resource, scope, name, where)
    if not data:
        return
    is_number = data in (_GAUGE, _SUM)
    starts, ends = (points.starts, points.ends) if is_number else (array("q"), array("q"))
    first = len(starts)
    temporality = 0
    for begin, stop in zip(spans[::2], spans[1::2], strict=True):
        temporality = _walk(body, begin, stop, starts, ends) or temporality
    if temporality == DELTA and data != _GAUGE:
        points.deltas += len(starts) - first
        del starts[first:], ends[first:]
    elif is_number:
        points.owners.append((context, len(starts) - first))
    else:
        for begin, stop in zip(starts, ends, strict=True):
            _read_distribution(points, context, data, body[begin:stop])


def _walk(body: bytes, at: int, end: int, starts: array[int], ends: array[int]) -> int:
    """Take the places of points; gives their temporality, 0 where none is said."""
    temporality = 0
    while at < end:
        if body[at] == 0x0A:
            at = run(body, at, end, starts, ends)
            if len(starts) > MOST:
                raise TooLarge(f"more than {MOST:,} points: send less at once")
            if at == end:
                break
        field, kind, value, stop = next(fields(body, at, end))
        if field == 1 and kind == BYTES:
            starts.append(value)
            ends.append(stop)
        elif field == 2 and kind == VARINT:
            temporality = value
        at = stop
    return temporality


def _read_distribution(points: Points, context: Context, data: int, piece: bytes) -> None:
    where = f"a point of metric {context.name[:80]!r}"
    point: messages.HistogramDataPoint | messages.SummaryDataPoint | messages.ExponentialHistogramDataPoint
    if data == _HISTOGRAM:
        point = message(messages.HistogramDataPoint, piece, where)
    elif data == _SUMMARY:
        point = message(messages.SummaryDataPoint, piece, where)
    else:
        point = message(messages.ExponentialHistogramDataPoint, piece, where)
    labels, time = otlp.labels(point.attributes), point.time_unix_nano
    if point.flags & NO_VALUE:
        points.stale += 1
    elif isinstance(point, messages.SummaryDataPoint):
        for each in point.quantile_values:
            points.add(context.key({**labels, "quantile": number(each.quantile)}), time, each.value)
        points.totals(context, labels, time, point.count, point.sum)
    else:
        total = point.sum if point.HasField("sum") else None
        if isinstance(point, messages.HistogramDataPoint):
            points.histogram(
                context, labels, time, point.count, total, list(point.explicit_bounds), list(point.bucket_counts)
            )
        else:
            points.exponential += 1
            points.totals(context, labels, time, point.count, total)


# -- JSON


def _read_json(body: bytes, points: Points) -> None:
    for place, resource in enumerate(otlp_json.read(body, otlp_json.Metrics).resource_metrics):
        shared = otlp.of_resource(otlp_json.labels(resource.resource.attributes))
        for scope in resource.scope_metrics:
            for at, metric in enumerate(scope.metrics):
                where = f"metric {at:,} of resource {place:,}"
                context = Context(*named(metric.name, shared, scope.scope.name, where))
                for kind in _KINDS.values():
                    data: otlp_json.Data | None = getattr(metric, kind)
                    if data is None:
                        continue
                    if kind != "gauge" and data.aggregation_temporality in (DELTA, "AGGREGATION_TEMPORALITY_DELTA"):
                        points.deltas += len(data.data_points)
                        continue
                    for point in data.data_points:
                        _add_json(points, context, kind, point)


def _add_json(points: Points, context: Context, kind: str, point: otlp_json.Point) -> None:
    labels, time, value = otlp_json.labels(point.attributes), whole(point.time_unix_nano), point.as_double
    total = None if point.sum is None else real(point.sum)
    if point.flags & NO_VALUE:
        points.stale += 1
    elif kind == "histogram":
        bounds, counts = [real(each) for each in point.explicit_bounds], [whole(each) for each in point.bucket_counts]
        points.histogram(context, labels, time, whole(point.count), total, bounds, counts)
    elif kind in ("exponential_histogram", "summary"):
        points.exponential += kind == "exponential_histogram"
        for each in point.quantile_values:
            points.add(context.key({**labels, "quantile": number(real(each.quantile))}), time, real(each.value))
        points.totals(context, labels, time, whole(point.count), total)
    elif value is None and point.as_int is None:
        points.empty += 1
    else:
        points.add(context.key(labels), time, real(value) if value is not None else float(whole(point.as_int or 0)))
