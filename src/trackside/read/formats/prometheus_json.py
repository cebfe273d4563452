"""Saved responses of the Prometheus HTTP API (``/api/v1/query_range``, ``/api/v1/query``), which many stores implement.

A file may contain several responses, as appended by ``curl``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from trackside.catalog.dialect import BLANK
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.measurements import Measurements

_BEGIN = re.compile(rb'\s*\{\s*"status"\s*:\s*"(success|error)"')
_NEXT = re.compile(rb'\}\s*(?=\{\s*"status"\s*:\s*")')
"""Between two responses. A label's text cannot contain it because its quotes would be escaped."""
_KIND = re.compile(rb'"resultType"\s*:\s*"(matrix|vector|scalar|string|streams)"')

Point = tuple[float, str]
"""(seconds, value as text)"""


class _Series(msgspec.Struct, gc=False):
    """A series. Series and their ``values`` are decoded one at a time: all as objects take five times the file's
    size."""

    metric: dict[str, str] = {}
    value: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct, rename={"kind": "resultType"}):
    kind: str
    result: msgspec.Raw


class _Response(msgspec.Struct, rename={"error_type": "errorType", "partial": "isPartial"}):
    status: str
    data: _Data | None = None
    error: str = ""
    error_type: str = ""
    warnings: list[str] = []
    partial: bool = False


_response_decoder = msgspec.json.Decoder(_Response)
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_series_decoder = msgspec.json.Decoder(_Series)
_points_decoder = msgspec.json.Decoder(list[Point])
_point_decoder = msgspec.json.Decoder(Point)


def _sniff(source: InputSource) -> Match | None:
    match = _BEGIN.match(source.head)
    if match is None:
        return None
    kind = _KIND.search(source.head)
    if match[1] == b"error":
        return Match(0.9, "an error response of the Prometheus API") if b'"errorType"' in source.head else None
    if kind is None or kind[1] == b"streams":  # streams are log lines
        return None
    return Match(0.95, f"a response of the Prometheus API ({kind[1].decode()})")


def _read(source: InputSource, sink: Sink) -> Result:
    data = source.whole()
    measurements = Measurements(source.path, sink, nan_is_blank=False)
    notes: list[str] = []
    unnamed_series = counted = 0
    line = 1
    for start, end in _response_bounds(data):
        line, counted = line + data.count(b"\n", counted, start), start
        try:
            response = _response_decoder.decode(memoryview(data)[start:end])
            unnamed_series += _add_response(response, measurements, line)
        except msgspec.DecodeError as error:
            notes.append(f"a truncated or malformed response (line {line:,}): {error}")
            continue
        if response.status != "success":
            notes.append(f"an error response: {response.error_type}: {response.error[:300]}")
        if response.partial:
            notes.append("the store marked a response as partial")
        notes.extend(f"warning of the store: {text[:300]}" for text in response.warnings[:3])
        if response.data is not None and response.data.kind not in ("matrix", "vector"):
            notes.append(f"a result of type {response.data.kind} has no series")
    if unnamed_series:
        notes.append(f"{unnamed_series:,} series without a name, dropped: query metrics by name, not by expression")
    return measurements.result(list(dict.fromkeys(notes)), lost=bool(notes))


def _response_bounds(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end offset of each response."""
    start = 0
    for gap in _NEXT.finditer(data):
        yield start, gap.start() + 1
        start = gap.end()
    yield start, len(data)


def _add_response(response: _Response, measurements: Measurements, line: int) -> int:
    """Add the values of a response; the number of its series without a name."""
    unnamed = 0
    if response.data is None or response.data.kind not in ("matrix", "vector"):
        return 0
    for ordinal, undecoded in enumerate(_list_decoder.decode(response.data.result), start=line):
        series = _series_decoder.decode(undecoded)
        name = series.metric.pop("__name__", None)
        if name is None:
            unnamed += 1
            continue
        number = measurements.series(name, series.metric, ordinal)
        if number < 0:
            continue
        points = _points_decoder.decode(series.values) if bytes(series.values) else []
        if bytes(series.value):
            points.append(_point_decoder.decode(series.value))
        measurements.points(number, [time for time, _ in points], [_number(text) for _, text in points])
    return unnamed


def _number(text: str) -> float:
    """A value of the API as a number; BLANK if it is none."""
    try:
        return float(text)
    except ValueError:
        return BLANK


FORMAT = Format("prometheus-json", "responses of the Prometheus HTTP API (query, query_range)", "metric", _sniff, _read)
