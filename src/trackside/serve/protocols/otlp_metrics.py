"""Metrics of OTLP over HTTP, as protobuf and as JSON.

Metric names are unchanged. Attributes of the resource, the scope and the point become labels; if names collide, those
of the point take precedence. Histograms and summaries become the series that Prometheus makes of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.metrics.v1 import metrics_pb2 as messages

from trackside.serve.protocols import otlp
from trackside.serve.protocols.decoded import BadRequest, PushAnswer, PushTooLarge
from trackside.serve.protocols.messages import MessageShape
from trackside.serve.protocols.series_key import MAX_KEY_BYTES, KnownSeries, key_of
from trackside.serve.protocols.wire import MAX_MESSAGES
from trackside.stores.receiver.arrivals import MetricBlock

_POINTS: MessageShape = {1: {}}
_SHAPE: MessageShape = {1: {2: {2: {5: _POINTS, 7: _POINTS, 9: _POINTS, 10: _POINTS, 11: _POINTS}}}}
"""Resources, scopes, metrics, their data, points."""
_DELTA = messages.AGGREGATION_TEMPORALITY_DELTA
_NO_VALUE = messages.DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
"""The flag of a point that marks the end of its series."""
_MAX_BUCKETS = 1_000
_PAIR_BYTES = 170
"""Memory of a cached name and value, in addition to their text."""
Labels: TypeAlias = tuple[tuple[str, str], ...]
Distribution: TypeAlias = (
    messages.HistogramDataPoint | messages.ExponentialHistogramDataPoint | messages.SummaryDataPoint
)


def decode(body: bytes, content_type: str, known_series: KnownSeries | None = None) -> MetricBlock:
    """The samples of a decompressed request. ``known_series``: those of earlier requests. Raises BadRequest."""
    samples, part_count, known_series = _Samples(), 0, known_series or KnownSeries()
    for request in otlp.parse_requests(ExportMetricsServiceRequest, body, content_type, _SHAPE):
        for resource_index, resource in enumerate(request.resource_metrics):
            shared = otlp.labels_of_resource(resource.resource.attributes)
            for scope in resource.scope_metrics:
                part_count += 1 + len(scope.metrics)
                if part_count + resource_index > otlp.MAX_PARTS:
                    raise BadRequest(
                        f"more than {otlp.MAX_PARTS:,} resources, scopes and metrics: send smaller batches"
                    )
                name = scope.scope.name
                labels = {**shared, "otel_scope_name": name} if name else shared
                context = key_of((label.encode(), value.encode()) for label, value in labels.items())
                for metric_index, metric in enumerate(scope.metrics):
                    if not metric.name:
                        raise BadRequest(f"metric {metric_index:,} of resource {resource_index:,} has no name")
                    samples.add_metric(_Series(metric.name, labels, context, known_series), metric)
    return samples.block()


def answer(block: MetricBlock, content_type: str, lost: int = 0, reason: str = "") -> PushAnswer:
    """The response once the block is stored, except ``lost`` samples, with the reason."""
    response, left_out = ExportMetricsServiceResponse(), block.skipped + lost
    message = "; ".join(text for text in (block.reason_text, reason) if text)
    if message:
        response.partial_success.rejected_data_points = left_out
        response.partial_success.error_message = message
    media = otlp.media_of(content_type)
    return otlp.response_of(media, response.SerializeToString(), "rejectedDataPoints", left_out, message)


@dataclass(slots=True)
class _Samples:
    """The samples of a request, and how many points were left out."""

    keys: list[bytes] = field(default_factory=list)
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    stale: int = 0
    deltas: int = 0
    empty: int = 0
    exponential: int = 0

    def add_metric(self, series: _Series, metric: messages.Metric) -> None:
        kind = metric.WhichOneof("data")
        if kind is None:
            return
        data = getattr(metric, kind)
        if kind in ("sum", "histogram", "exponential_histogram") and data.aggregation_temporality == _DELTA:
            self.deltas += len(data.data_points)
            return
        add = self._add_number if kind in ("gauge", "sum") else self._add_distribution
        for point in data.data_points:
            if point.flags & _NO_VALUE:
                self.stale += 1
            else:
                add(series, otlp.texts(point.attributes), point)
        if len(self.keys) > MAX_MESSAGES:
            raise PushTooLarge(f"more than {MAX_MESSAGES:,} points: send smaller batches")

    def block(self) -> MetricBlock:
        return MetricBlock(
            self.keys,
            np.arange(len(self.keys), dtype=np.int32),
            np.frombuffer(self.times_ms, dtype=np.int64),
            np.frombuffer(self.values, dtype=np.float64),
            self.deltas + self.empty,
            self.stale,
            reason_text=self._reasons(),
        )

    def _add(self, key: bytes, time_ns: int, value: float) -> None:
        self.keys.append(key)
        self.times_ms.append(time_ns // 1_000_000)
        self.values.append(value)

    def _add_number(self, series: _Series, labels: Labels, point: messages.NumberDataPoint) -> None:
        match point.WhichOneof("value"):
            case "as_double":
                self._add(series.key(labels), point.time_unix_nano, point.as_double)
            case "as_int":
                self._add(series.key(labels), point.time_unix_nano, point.as_int)
            case _:
                self.empty += 1

    def _add_distribution(self, series: _Series, labels: Labels, point: Distribution) -> None:
        """A histogram as cumulative buckets, a summary as quantiles, and sum and count of both."""
        time_ns, total = point.time_unix_nano, None
        if isinstance(point, messages.SummaryDataPoint):
            total = point.sum
            for quantile in point.quantile_values:
                key = series.key((*labels, ("quantile", _number(quantile.quantile))))
                self._add(key, time_ns, quantile.value)
        elif point.HasField("sum"):
            total = point.sum
        if isinstance(point, messages.ExponentialHistogramDataPoint):
            self.exponential += 1
        elif isinstance(point, messages.HistogramDataPoint):
            series.check_buckets(point.explicit_bounds, point.bucket_counts)
            below = 0
            for bound, count in zip((*point.explicit_bounds, float("inf")), point.bucket_counts, strict=False):
                below += count
                self._add(series.key((*labels, ("le", _number(bound))), "_bucket"), time_ns, below)
        self._add(series.key(labels, "_count"), time_ns, point.count)
        if total is not None:
            self._add(series.key(labels, "_sum"), time_ns, total)

    def _reasons(self) -> str:
        reasons = []
        if self.deltas:
            reasons.append(
                f"{self.deltas:,} points of delta temporality were dropped: configure the sender for cumulative "
                "temporality (OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=cumulative)"
            )
        if self.empty:
            reasons.append(f"{self.empty:,} points without a value were dropped")
        if self.exponential:
            reasons.append(f"of {self.exponential:,} points of exponential histograms only sum and count were stored")
        return "; ".join(reasons)


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of one metric of a resource."""

    name: str
    shared: dict[str, str]
    """Labels of the resource and the scope."""
    context: bytes
    """The shared labels as a key."""
    known_series: KnownSeries

    def key(self, labels: Labels, suffix: str = "") -> bytes:
        """The key of a point with its own labels added. Raises BadRequest."""
        raw = (self.context, self.name, suffix, labels)
        return self.known_series.keys.get(raw) or self._new_key(labels, suffix)

    def _new_key(self, labels: Labels, suffix: str) -> bytes:
        all_labels = {**self.shared, **otlp.as_labels(labels), "__name__": self.name + suffix}
        key = key_of((label.encode(), value.encode()) for label, value in sorted(all_labels.items()))
        if len(key) > MAX_KEY_BYTES:
            raise BadRequest(
                f"metric {self.name[:80]!r}: labels of {len(key):,} bytes, but at most {MAX_KEY_BYTES:,} are accepted"
            )
        size = len(self.context) + sum(len(label) + len(value) + _PAIR_BYTES for label, value in labels)
        return self.known_series.add((self.context, self.name, suffix, labels), key, size)

    def check_buckets(self, bounds: Sequence[float], counts: Sequence[int]) -> None:
        """Raise BadRequest unless there is one bucket more than bounds, and not too many of them."""
        if counts and len(counts) != len(bounds) + 1:
            raise BadRequest(
                f"metric {self.name[:80]!r}: a histogram with {len(bounds):,} bounds has {len(counts):,} buckets "
                "instead of one more"
            )
        if len(counts) > _MAX_BUCKETS:
            raise BadRequest(
                f"metric {self.name[:80]!r}: {len(counts):,} buckets, but at most {_MAX_BUCKETS:,} are accepted"
            )


def _number(value: float) -> str:
    """A bound or quantile as a label."""
    return "+Inf" if value == float("inf") else repr(value).removesuffix(".0")
