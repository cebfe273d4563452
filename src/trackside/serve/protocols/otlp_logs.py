"""Logs of OTLP over HTTP, as protobuf and as JSON.

A stream is what one resource says from one place: attributes of a record that name a node, a rank or a file count with
those of its resource. A stack trace among the attributes follows its line, as a logger would have written it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import ScopeLogs
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

from trackside.serve.protocols import otlp, otlp_json
from trackside.serve.protocols.decoded import Answer, BadRequest, LineStream, TooLarge
from trackside.serve.protocols.otlp_points import message
from trackside.serve.protocols.places import is_place
from trackside.serve.protocols.wire import Offsets, split

TRACE = "exception.stacktrace"
BATCH = 256 << 10
"""Bytes of records that are given to the official messages at once, which take many times as much."""
_MOST_RECORD = 1 << 20
_MOST_PARTS = 1 << 16


def decode(body: bytes, content_type: str) -> list[LineStream]:
    """The lines of a decompressed request. Raises BadRequest."""
    return _read_json(body) if otlp.media_of(content_type) == otlp.JSON else _read(body)


def answer(content_type: str) -> Answer:
    """What the sender is told once all lines are kept."""
    response = ExportLogsServiceResponse().SerializeToString()
    return otlp.answered(otlp.media_of(content_type), response, "rejectedLogRecords", 0, "")


class _Streams:
    """The streams of one resource, by what single records say of their place."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._found: dict[tuple[tuple[str, str], ...], LineStream] = {}

    def add(self, time_ns: int, line: str, places: tuple[tuple[str, str], ...]) -> None:
        """One record."""
        stream = self._found.get(places)
        if stream is None:
            stream = self._found[places] = LineStream({**self._labels, **otlp.named(places)})
        stream.times_ns.append(time_ns)
        stream.lines.append(line)

    def all(self) -> list[LineStream]:
        """All of them."""
        return list(self._found.values())


def _read(body: bytes) -> list[LineStream]:
    found: list[LineStream] = []
    ((starts, ends),) = split(body, 0, len(body), 1)
    parts = 0
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        resources, scopes = split(body, start, end, 1, 2)
        parts += 1 + len(scopes[0])
        if parts > _MOST_PARTS:
            raise BadRequest(f"more than {_MOST_PARTS:,} resources and scopes: send less at once")
        raw = b"".join(body[begin:stop] for begin, stop in zip(*(each.tolist() for each in resources), strict=True))
        attributes = message(Resource, raw, f"resource {place:,}").attributes
        streams = _Streams(otlp.of_resource(otlp.labels(attributes)))
        for begin, stop in zip(*(each.tolist() for each in scopes), strict=True):
            for piece in _pieces(body, begin, stop):
                _add(streams, message(ScopeLogs, piece, f"records of resource {place:,}"))
        found += streams.all()
    return found


def _pieces(body: bytes, at: int, end: int) -> Iterator[bytes]:
    """The records of a scope in batches: cut where one ends, each piece is such a message too."""
    if end - at <= BATCH:
        yield body[at:end]
        return
    ((starts, ends),) = split(body, at, end, 2)
    if not len(ends):
        return
    largest = int((ends - starts).max())
    if largest > _MOST_RECORD:
        raise TooLarge(f"a log record of {largest:,} bytes, at most {_MOST_RECORD:,} are taken")
    for stop in _cuts(ends, at):
        yield body[at:stop]
        at = stop


def _cuts(ends: Offsets, at: int) -> list[int]:
    places = np.searchsorted(ends, np.arange(at + BATCH, int(ends[-1]) + BATCH, BATCH), "left")
    return [int(each) for each in np.unique(ends[np.minimum(places, len(ends) - 1)])]


def _add(streams: _Streams, scope: ScopeLogs) -> None:
    for record in scope.log_records:
        line = record.body.string_value or otlp.text(otlp.plain(record.body))
        places = []
        for each in record.attributes:
            key = each.key
            if is_place(key):
                value = each.value
                places.append((key, value.string_value or otlp.text(otlp.plain(value))))
            elif key == TRACE:
                line = f"{line}\n{each.value.string_value}"
        streams.add(record.time_unix_nano or record.observed_time_unix_nano, line, tuple(places))


def _read_json(body: bytes) -> list[LineStream]:
    found: list[LineStream] = []
    for resource in otlp_json.read(body, otlp_json.Logs).resource_logs:
        streams = _Streams(otlp.of_resource(otlp_json.labels(resource.resource.attributes)))
        for scope in resource.scope_logs:
            for record in scope.log_records:
                line = otlp.text(record.body.plain())
                traces = [otlp.text(each.value.plain()) for each in record.attributes if each.key == TRACE]
                places = tuple(
                    (each.key, otlp.text(each.value.plain())) for each in record.attributes if is_place(each.key)
                )
                time = otlp_json.whole(record.time_unix_nano) or otlp_json.whole(record.observed_time_unix_nano)
                streams.add(time, "\n".join([line, *traces]), places)
        found += streams.all()
    return found
