"""What OTLP's metrics and logs have in common: attributes as labels, and answers."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from typing import TypeAlias

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from trackside.serve.protocols.decoded import Answer, Unsupported

PROTOBUF, JSON = "application/x-protobuf", "application/json"
Plain: TypeAlias = "str | bool | int | float | bytes | list[Plain] | dict[str, Plain] | None"
_OTHER = re.compile(r"\W")
_ADDRESS = re.compile(r"\S+:\d+")


def media_of(content_type: str) -> str:
    """``PROTOBUF`` or ``JSON``; raises Unsupported for anything else."""
    media = content_type.partition(";")[0].strip().lower()
    if media not in (PROTOBUF, JSON):
        raise Unsupported(f"Content-Type {content_type[:200]!r}: OTLP over HTTP is {PROTOBUF} or {JSON}")
    return media


def plain(value: AnyValue) -> Plain:
    """An attribute's value as Python has it."""
    match value.WhichOneof("value"):
        case "array_value":
            return [plain(each) for each in value.array_value.values]
        case "kvlist_value":
            return {each.key: plain(each.value) for each in value.kvlist_value.values}
        case None:
            return None
        case kind:
            found: Plain = getattr(value, kind)
            return found


def text(value: Plain) -> str:
    """A value as a label or a line: text as it is, all else as JSON writes it."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=_base64)


def _base64(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def label(name: str) -> str:
    """An attribute's name as a label's."""
    return _OTHER.sub("_", name)


def labels(attributes: Iterable[KeyValue]) -> dict[str, str]:
    """Attributes as labels; those without a value are none."""
    return named((each.key, each.value.string_value or text(plain(each.value))) for each in attributes)


def named(attributes: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values as labels."""
    return {label(name): value for name, value in attributes if name and value}


def of_resource(found: dict[str, str]) -> dict[str, str]:
    """The labels of a resource. A collector that scraped says where in service.instance.id: Prometheus' ``instance``.

    Other senders put any unique text there, which is no machine's name.
    """
    instance = found.get("service_instance_id", "")
    return {"instance": instance, **found} if _ADDRESS.fullmatch(instance) else found


def answered(media: str, response: bytes, field: str, left_out: int, why: str) -> Answer:
    """200, with how many points or records were left out; ``response`` is the same as protobuf."""
    if media == PROTOBUF:
        return Answer(200, response, PROTOBUF)
    partial = {"partialSuccess": {field: str(left_out), "errorMessage": why}} if why else {}
    return Answer(200, json.dumps(partial).encode(), JSON)
