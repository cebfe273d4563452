"""The push protocols: their paths, how their bodies are decoded, and how they are answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from trackside.serve.protocols import loki_push, otlp_logs, otlp_metrics, remote_write
from trackside.serve.protocols.decoded import BadRequest, PushAnswer
from trackside.serve.protocols.encoding import decompress
from trackside.serve.protocols.series_key import KnownSeries
from trackside.stores.receiver.pending import Decoded
from trackside.stores.receiver.write_ahead import Entry

_RPC = {400: 3, 401: 16, 408: 4, 413: 3, 415: 3, 429: 8, 503: 14}
"""HTTP status -> gRPC status code, which OTLP requires in the response body."""


@dataclass(frozen=True, slots=True)
class Push:
    """One protocol. All functions get the request's Content-Type; ``answer`` also gets the number of decoded items that
    a limit rejected, and why. ``encoding``: assumed for protobuf without one; ``takes_json``: JSON is accepted too."""

    id: str
    paths: tuple[str, ...]
    decode: Callable[[bytes, str, KnownSeries], Decoded]
    answer: Callable[[Any, str, int, str], PushAnswer]
    refusal: Callable[[int, str, str], PushAnswer]
    encoding: str = ""
    takes_json: bool = False


def decode(entry: Entry, max_bytes: int, known_series: KnownSeries) -> Decoded:
    """Decode a received body; at most ``max_bytes`` after decompression. Raises BadRequest."""
    header, body = entry
    push, content_type, encoding = BY_ID[header.protocol], header.content_type, header.encoding
    is_assumed = not encoding and bool(push.encoding) and "json" not in content_type
    if is_assumed:
        encoding = push.encoding
    try:
        plain = decompress(body, encoding, max_bytes)
    except BadRequest as error:
        if push.takes_json and body.lstrip()[:1] == b"{" and "json" not in content_type:
            raise type(error)(f"{error}; the body looks like JSON: send Content-Type: application/json") from error
        if is_assumed:
            raise type(error)(f"without Content-Encoding, the body is taken as {encoding}: {error}") from error
        raise
    return push.decode(plain, content_type, known_series)


def _text(status: int, reason: str, content_type: str) -> PushAnswer:
    return PushAnswer(status, f"{reason}\n".encode(), "text/plain; charset=utf-8")


def _rpc(status: int, reason: str, content_type: str) -> PushAnswer:
    """The status message that OTLP requires, in the request's encoding."""
    code = _RPC.get(status, 2)
    if content_type.partition(";")[0].strip().lower() == "application/json":
        return PushAnswer(status, json.dumps({"code": code, "message": reason}).encode(), "application/json")
    text = reason.encode()[:16_000]
    size = bytes([len(text) & 0x7F | 0x80, len(text) >> 7]) if len(text) > 0x7F else bytes([len(text)])
    return PushAnswer(status, bytes([0x08, code, 0x12]) + size + text, "application/x-protobuf")


PUSHES = (
    Push(
        "remote_write",
        ("/api/v1/write", "/api/v1/push", "/write", "/prometheus/api/v1/write"),
        lambda body, content_type, known_series: remote_write.decode(
            body, remote_write.version_of(content_type), known_series
        ),
        lambda block, content_type, rejected, reason: remote_write.answer(
            block, remote_write.version_of(content_type), rejected, reason
        ),
        _text,
        "snappy",
    ),
    Push(
        "otlp_metrics",
        ("/v1/metrics", "/opentelemetry/v1/metrics", "/opentelemetry/api/v1/push", "/api/v1/otlp/v1/metrics"),
        otlp_metrics.decode,
        otlp_metrics.answer,
        _rpc,
    ),
    Push(
        "otlp_logs",
        ("/v1/logs", "/opentelemetry/v1/logs", "/otlp/v1/logs", "/insert/opentelemetry/v1/logs"),
        lambda body, content_type, known_series: otlp_logs.decode(body, content_type),
        lambda block, content_type, rejected, reason: otlp_logs.answer(content_type, rejected, reason),
        _rpc,
    ),
    Push(
        "loki",
        ("/loki/api/v1/push", "/api/prom/push", "/insert/loki/api/v1/push"),
        lambda body, content_type, known_series: loki_push.decode(body, content_type),
        lambda block, content_type, rejected, reason: loki_push.answer(reason),
        _text,
        "snappy",
        takes_json=True,
    ),
)
BY_ID = {push.id: push for push in PUSHES}
