"""Hostile pushes: each is read or refused, in memory and time bounded by its own size."""

from __future__ import annotations

import json
import resource
import time
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any

import pytest

from trackside.serve.protocols import decoded, loki_push, otlp_logs, otlp_metrics, remote_write, remote_write_2, wire
from trackside.serve.protocols.decoded import BadRequest
from trackside.serve.protocols.series_key import key_of, varint

pytestmark = pytest.mark.fuzz

SIZE = 64 << 10
MAX_GROWTH_RATIO = 100
"""Bytes of memory per byte of a body, at most: an empty message takes two bytes and is an object of its own."""
MAX_CPU_S = 10.0
"""Limit for each body: far above what they take, and far below what quadratic growth would take."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"


def field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def filled(piece: bytes) -> bytes:
    return piece * (SIZE // len(piece))


def nested(*numbers: int, inside: bytes) -> bytes:
    for number in reversed(numbers):
        inside = field(number, inside)
    return inside


def deep(opening: bytes, levels: int = 100_000) -> bytes:
    """A value in a value in a value, as deep as fits."""
    body = b""
    for _ in range(levels):
        body = opening + varint(len(body)) + body if len(body) < SIZE else body
    return body


NAME = key_of([(b"__name__", b"x")])
SAMPLE = b"\x12\x10\x09abcdefgh\x10\x80\x80\x80\x80\x80\x01"
ZERO = b"\x12\x07\x10\x80\x80\x80\x80\x80\x01"
SYMBOLS = field(4, b"") + field(4, b"__name__") + field(4, b"x")
HOSTILE: dict[str, bytes] = {
    "empty messages 1": filled(b"\x0a\x00"),
    "empty messages 2": filled(b"\x12\x00"),
    "nearly empty messages": filled(b"\x0a\x02\x0a\x00"),
    "unknown fields": filled(b"\x7d1234"),
    "unknown numbers": filled(b"\x78\x01"),
    "endless number": filled(b"\xff"),
    "zeros": filled(b"\x00"),
    "tiny series": b"".join(field(1, key_of([(b"__name__", b"%d" % number)])) for number in range(SIZE // 20)),
    "tiny series with samples": filled(field(1, NAME + SAMPLE)),
    "empty labels of one series": field(1, filled(b"\x0a\x00")),
    "long labels of one series": field(1, filled(field(1, b"x" * 128))),
    "labels between samples": field(1, NAME + filled(ZERO + b"\x0a\x00")),
    "one huge label": field(1, key_of([(b"__name__", b"x" * SIZE)])),
    "empty samples": field(1, NAME + filled(b"\x12\x00")),
    "samples by turns": field(1, NAME + filled(SAMPLE + ZERO)),
    "lookalikes of samples in text": field(1, key_of([(b"__name__", b"x"), (b"l", filled(SAMPLE))])),
    "lookalikes in each other": filled(b"\x12\x10\x09\x12\x07\x10"),
    "empty exemplars": field(1, NAME + filled(b"\x1a\x00")),
    "symbols": filled(b"\x22\x00"),
    "different symbols": field(4, b"") + b"".join(field(4, b"%d" % number) for number in range(SIZE // 8)),
    "references": SYMBOLS + field(5, field(1, filled(b"\x01"))),
    "references one by one": SYMBOLS + field(5, filled(b"\x08\x01")),
    "references of many": SYMBOLS + filled(field(5, field(1, b"\x01\x02" + b"\x02\x02" * 60))),
    "references to long symbols": SYMBOLS + field(4, b"y" * (SIZE // 2)) + filled(field(5, field(1, b"\x01\x03" * 60))),
    "empty scopes": field(1, filled(b"\x12\x00")),
    "empty metrics or records": nested(1, 2, inside=filled(b"\x12\x00")),
    "points of nothing": nested(1, 2, 2, inside=field(1, b"m") + field(5, filled(b"\x0a\x00"))),
    "histogram points of nothing": nested(1, 2, 2, inside=field(1, b"m") + field(9, filled(b"\x0a\x00"))),
    "data in pieces": nested(1, 2, 2, inside=field(1, b"m") + filled(b"\x2a\x00")),
    "attributes of nothing": nested(1, 2, 2, 5, 1, inside=filled(b"\x3a\x00")),
    "one huge histogram": nested(1, 2, 2, inside=field(1, b"m") + nested(9, 1, inside=field(6, bytes(SIZE // 2 * 8 // 8)))),
    "values in values": nested(1, 1, inside=field(1, field(1, b"k") + field(2, deep(b"\x2a\x82\x01"[:1])))),
    "entries of nothing": field(1, field(1, b"{}") + filled(b"\x12\x00")),
    "metadata of nothing": field(1, field(1, b"{}") + field(2, field(2, b"line") + filled(b"\x1a\x00"))),
    "places in one line": field(1, field(1, b"{}") + field(2, field(2, b"x") + filled(field(3, field(1, b"node") + field(2, b"n"))))),
    "a long selector": field(1, field(1, b'{a="' + b"\\" * SIZE + b'"}') + field(2, field(2, b"line"))),
    "JSON lists": b"[" * SIZE,
    "JSON objects": b'{"a":' * (SIZE // 5),
    "JSON streams": b'{"streams": [' + b"{}," * (SIZE // 3) + b"{}]}",
    "JSON resources": b'{"resourceMetrics": [' + b"{}," * (SIZE // 3) + b'{}], "resourceLogs": []}',
    "JSON numbers": json.dumps({"streams": [{"values": [["9" * SIZE, "x"]]}]}).encode(),
}  # fmt: skip
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "remote write 1.0": lambda body: remote_write.decode(body, 1),
    "remote write 2.0": lambda body: remote_write.decode(body, 2),
    "OTLP metrics": lambda body: otlp_metrics.decode(body, PROTOBUF),
    "OTLP metrics in JSON": lambda body: otlp_metrics.decode(body, JSON),
    "OTLP logs": lambda body: otlp_logs.decode(body, PROTOBUF),
    "OTLP logs in JSON": lambda body: otlp_logs.decode(body, JSON),
    "Loki push": lambda body: loki_push.decode(body, PROTOBUF),
    "Loki push in JSON": lambda body: loki_push.decode(body, JSON),
}


@pytest.mark.parametrize("push", HOSTILE)
def test_memory_and_time_of_a_hostile_push_are_bounded_by_its_size(push):
    body = HOSTILE[push]
    for name, decode in DECODERS.items():
        tracemalloc.start()
        start_s = time.process_time()
        try:
            with suppress(BadRequest):
                decode(body)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < MAX_GROWTH_RATIO * len(body) + (8 << 20), f"{name}: {peak:,} bytes for {len(body):,}"
        assert time.process_time() - start_s < MAX_CPU_S, name


LARGE: dict[str, tuple[str, bytes]] = {
    "entries": ("Loki push", field(1, b"\x12\x00" * 500_000)),
    "samples": ("remote write 2.0", SYMBOLS + field(5, b"\x0a\x02\x01\x02" + b"\x12\x00" * 500_000)),
    "points": ("OTLP metrics", nested(1, 2, 2, inside=field(1, b"m") + field(10, b"\x0a\x00" * 500_000))),
    "records": ("OTLP logs", nested(1, 2, inside=b"\x12\x00" * 500_000)),
}  # fmt: skip


def growth(push: str) -> int:
    """KiB that the process grows by; lines and samples, which have limits of their own, are limited to few."""
    decoded.MAX_LINES = remote_write_2.MAX_SAMPLES = otlp_metrics.MAX_MESSAGES = 1 << 18
    name, part = LARGE[push]
    body = part * 32
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(BadRequest):
        DECODERS[name](body)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


@pytest.mark.parametrize("push", LARGE)
def test_memory_of_the_protobuf_runtime_is_bounded(push):
    """Measured on a process, as Python does not see the runtime's memory. Without bounds it is 0.7 to 2 GB."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        assert processes.submit(growth, push).result(60) < 300 << 10


@pytest.mark.parametrize("name", ["remote write 1.0", "OTLP metrics", "Loki push"])
def test_millions_of_messages_are_too_large(name):
    with pytest.raises(BadRequest, match="at most 1,048,576 are accepted") as caught:
        DECODERS[name](field(1, NAME) * (wire.MAX_MESSAGES + 1))
    assert caught.value.status == 413
