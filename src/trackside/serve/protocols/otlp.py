"""What OTLP's metrics and logs share: requests as messages, attributes as labels, and responses."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar

import msgspec
from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from trackside.serve.protocols.decoded import BadRequest, PushAnswer, PushTooLarge, UnsupportedMedia
from trackside.serve.protocols.messages import MessageShape, parse_messages
from trackside.serve.protocols.wire import MAX_MESSAGES

PROTOBUF, JSON = "application/x-protobuf", "application/json"
MAX_PARTS = 1 << 18
"""Resources, scopes and metrics in one request: each takes time, even if empty."""
MAX_JSON_VALUES = 1 << 23
"""Values in one request, counted by its commas: a short text takes 60 bytes in memory."""
Plain: TypeAlias = "str | bool | int | float | bytes | list[Plain] | dict[str, Plain] | None"
_OTHER = re.compile(r"\W")
_ADDRESS = re.compile(r"\S+:\d+")
_IDS = frozenset({"traceId", "spanId", "trace_id", "span_id"})
"""Fields that OTLP's JSON has in hex and protobuf's JSON in base64; they are not used."""
M = TypeVar("M", bound=Message)


def media_of(content_type: str) -> str:
    """``PROTOBUF`` or ``JSON``; raises UnsupportedMedia for anything else."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in (PROTOBUF, JSON):
        raise UnsupportedMedia(f"Content-Type {content_type[:200]!r}: OTLP over HTTP is {PROTOBUF} or {JSON}")
    return media


def parse_requests(kind: type[M], body: bytes, content_type: str, shape: MessageShape) -> Iterator[M]:
    """Messages that together are the request; ``shape``: see :mod:`trackside.serve.protocols.messages`. Raises
    BadRequest."""
    if media_of(content_type) == PROTOBUF:
        return parse_messages(kind, body, shape)
    return iter((_from_json(kind, body),))


def _from_json(kind: type[M], body: bytes) -> M:
    objects, values = body.count(b"{") + body.count(b"["), body.count(b",")
    if objects > MAX_MESSAGES:
        raise PushTooLarge(
            f"{objects:,} objects and lists in JSON, but at most {MAX_MESSAGES:,} are accepted: send smaller batches"
        )
    if values > MAX_JSON_VALUES:
        raise PushTooLarge(
            f"{values:,} values in JSON, but at most {MAX_JSON_VALUES:,} are accepted: send smaller batches"
        )
    try:
        document = _without_ids(msgspec.json.decode(body, type=dict[str, object]))
        message: M = json_format.ParseDict(document, kind(), ignore_unknown_fields=True)
    except RecursionError:
        raise BadRequest("not OTLP in JSON: lists and objects are nested too deep") from None
    except (
        msgspec.DecodeError,
        json_format.ParseError,
        ValueError,
        TypeError,
        ArithmeticError,
        LookupError,
        AttributeError,
    ) as error:
        raise BadRequest(f"not OTLP in JSON: {str(error)[:300]}") from None
    return message


def _without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_ids(field) for name, field in value.items() if name not in _IDS}
    return [_without_ids(item) for item in value] if isinstance(value, list) else value


def plain(value: AnyValue) -> Plain:
    """An attribute's value as a Python object."""
    match value.WhichOneof("value"):
        case "array_value":
            return [plain(item) for item in value.array_value.values]
        case "kvlist_value":
            return {pair.key: plain(pair.value) for pair in value.kvlist_value.values}
        case None:
            return None
        case kind:
            scalar: Plain = getattr(value, kind)
            return scalar


def text(value: AnyValue) -> str:
    """A value as a label or a line: text unchanged, anything else as JSON."""
    if value.string_value:
        return value.string_value
    content = plain(value)
    if content is None or content == "":
        return ""
    return json.dumps(content, ensure_ascii=False, default=_base64)


def _base64(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def texts(attributes: Iterable[KeyValue]) -> tuple[tuple[str, str], ...]:
    """Attributes as names and texts."""
    return tuple([(pair.key, pair.value.string_value or text(pair.value)) for pair in attributes])


def as_labels(attributes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and texts as labels, without empty ones."""
    return {_OTHER.sub("_", name): value for name, value in attributes if name and value}


def labels_of_resource(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """The labels of a resource. For scraped metrics service.instance.id is Prometheus' ``instance`` (host and port).

    Other senders put any unique text there, which does not name a machine.
    """
    labels = as_labels(texts(attributes))
    instance = labels.get("service_instance_id", "")
    return {"instance": instance, **labels} if _ADDRESS.fullmatch(instance) else labels


def response_of(media: str, response: bytes, field: str, left_out: int, reason: str) -> PushAnswer:
    """Status 200 with the number of rejected points or records; ``response``: the same as protobuf."""
    if media == PROTOBUF:
        return PushAnswer(200, response, PROTOBUF)
    partial = {"partialSuccess": {field: str(left_out), "errorMessage": reason}} if reason else {}
    return PushAnswer(200, json.dumps(partial).encode(), JSON)
