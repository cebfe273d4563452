"""OTLP as JSON: only what is read is declared, and all else is passed over without being built.

64-bit numbers may be text, and so may be what JSON has no number for (``NaN``).
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from trackside.serve.protocols.decoded import BadRequest
from trackside.serve.protocols.otlp import Plain, named, text

Whole = int | str
Real = float | str


class _Read(msgspec.Struct, rename="camel", gc=False):
    pass


class Value(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """AnyValue."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: Whole | None = None
    double_value: Real | None = None
    array_value: Array | None = None
    kvlist_value: Pairs | None = None
    bytes_value: str | None = None

    def plain(self) -> Plain:
        """The value; bytes stay in base64."""
        if self.array_value is not None:
            return [each.plain() for each in self.array_value.values]
        if self.kvlist_value is not None:
            return {each.key: each.value.plain() for each in self.kvlist_value.values}
        if self.int_value is not None:
            return whole(self.int_value)
        if self.double_value is not None:
            return real(self.double_value)
        given = (self.string_value, self.bool_value, self.bytes_value)
        return next((each for each in given if each is not None), None)


class Pair(_Read):
    """KeyValue."""

    key: str = ""
    value: Value = Value()


class Array(_Read):
    """ArrayValue."""

    values: list[Value] = []


class Pairs(_Read):
    """KeyValueList, and whatever else has attributes."""

    values: list[Pair] = []


class Resource(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """Resource."""

    attributes: list[Pair] = []


class Scope(msgspec.Struct, rename="camel", gc=False, frozen=True):
    """InstrumentationScope."""

    name: str = ""


class Quantile(_Read):
    """ValueAtQuantile."""

    quantile: Real = 0.0
    value: Real = 0.0


class Point(_Read):
    """A point of any kind."""

    attributes: list[Pair] = []
    time_unix_nano: Whole = 0
    flags: int = 0
    as_double: Real | None = None
    as_int: Whole | None = None
    count: Whole = 0
    sum: Real | None = None
    bucket_counts: list[Whole] = []
    explicit_bounds: list[Real] = []
    quantile_values: list[Quantile] = []


class Data(_Read):
    """Gauge, Sum, Histogram, ExponentialHistogram, Summary."""

    data_points: list[Point] = []
    aggregation_temporality: int | str = 0


class Metric(_Read):
    """Metric."""

    name: str = ""
    gauge: Data | None = None
    sum: Data | None = None
    histogram: Data | None = None
    exponential_histogram: Data | None = None
    summary: Data | None = None


class ScopeMetrics(_Read):
    """ScopeMetrics."""

    scope: Scope = Scope()
    metrics: list[Metric] = []


class ResourceMetrics(_Read):
    """ResourceMetrics."""

    resource: Resource = Resource()
    scope_metrics: list[ScopeMetrics] = []


class Metrics(_Read):
    """ExportMetricsServiceRequest."""

    resource_metrics: list[ResourceMetrics] = []


class Record(_Read):
    """LogRecord."""

    time_unix_nano: Whole = 0
    observed_time_unix_nano: Whole = 0
    body: Value = Value()
    attributes: list[Pair] = []


class ScopeLogs(_Read):
    """ScopeLogs."""

    log_records: list[Record] = []


class ResourceLogs(_Read):
    """ResourceLogs."""

    resource: Resource = Resource()
    scope_logs: list[ScopeLogs] = []


class Logs(_Read):
    """ExportLogsServiceRequest."""

    resource_logs: list[ResourceLogs] = []


_T = TypeVar("_T", Metrics, Logs)


def read(body: bytes, kind: type[_T]) -> _T:
    """A request. Raises BadRequest, which says where in the JSON."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"no OTLP in JSON: {str(error)[:300]}") from None
    except RecursionError:
        raise BadRequest("no OTLP in JSON: lists and objects are too deep in one another") from None


def labels(attributes: list[Pair]) -> dict[str, str]:
    """Attributes as labels."""
    return named((each.key, text(each.value.plain())) for each in attributes)


def whole(value: Whole, most: int = 1 << 64) -> int:
    """A 64-bit number; raises BadRequest for other text."""
    try:
        number = int(value) if not isinstance(value, str) or len(value) <= 20 else most
    except ValueError:
        number = most
    if not -most < number < most:
        raise BadRequest(f"{str(value)[:40]!r} is no whole number of 64 bits")
    return number


def real(value: Real) -> float:
    """A number; raises BadRequest for other text."""
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise BadRequest(f"{str(value)[:40]!r} is no number") from None
