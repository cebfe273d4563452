"""Logs of OTLP over HTTP, as protobuf and as JSON.

A stream has the labels of its resource and the attributes of its records that name a node, a rank or a file. A stack
trace among the attributes is appended to its line, as a logger would have written it.
"""

from __future__ import annotations

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.logs.v1.logs_pb2 import ResourceLogs

from trackside.serve.protocols import otlp
from trackside.serve.protocols.decoded import BadRequest, LineStreams, PushAnswer, identifies_stream
from trackside.serve.protocols.messages import MessageShape
from trackside.stores.receiver.pending import LineStream

TRACE = "exception.stacktrace"
_SHAPE: MessageShape = {1: {2: {2: {}}}}
"""Resources, scopes, records."""


def decode(body: bytes, content_type: str) -> list[LineStream]:
    """The lines of a decompressed request. Raises BadRequest."""
    streams, parts = LineStreams(), 0
    for request in otlp.parse_requests(ExportLogsServiceRequest, body, content_type, _SHAPE):
        for resource in request.resource_logs:
            parts += 1 + len(resource.scope_logs)
            if parts > otlp.MAX_PARTS:
                raise BadRequest(f"more than {otlp.MAX_PARTS:,} resources and scopes: send smaller batches")
            _add_records(streams, resource)
        streams.check_count()
    return streams.with_content()


def answer(content_type: str, lost: int = 0, reason: str = "") -> PushAnswer:
    """The response once the lines are stored, except ``lost`` ones, with the reason."""
    response = ExportLogsServiceResponse()
    if reason:
        response.partial_success.rejected_log_records = lost
        response.partial_success.error_message = reason
    media = otlp.media_of(content_type)
    return otlp.response_of(media, response.SerializeToString(), "rejectedLogRecords", lost, reason)


def _add_records(streams: LineStreams, resource: ResourceLogs) -> None:
    labels = otlp.labels_of_resource(resource.resource.attributes)
    by_places: dict[tuple[tuple[str, str], ...], LineStream] = {}
    for scope in resource.scope_logs:
        for record in scope.log_records:
            line = record.body.string_value or otlp.text(record.body)
            places = []
            for pair in record.attributes:
                name = pair.key
                if identifies_stream(name):
                    places.append((name, pair.value.string_value or otlp.text(pair.value)))
                elif name == TRACE:
                    line = f"{line}\n{otlp.text(pair.value)}"
            key = tuple(places)
            stream = by_places.get(key)
            if stream is None:
                stream = by_places[key] = streams.of_labels(labels | otlp.as_labels(places))
            stream.times_ns.append(record.time_unix_nano or record.observed_time_unix_nano)
            stream.lines.append(line)
