"""Samples as Prometheus remote write 1.0: a protobuf WriteRequest in a snappy block.

A WriteRequest is just a sequence of series, so concatenated requests form one valid request, and spooled records are
sent as they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trackside.agent.delivery.identity import Identity
from trackside.agent.delivery.receiver import ReceiverOptions
from trackside.agent.source import Labels, Reading

PATH = "/api/v1/write"
RECORD_BYTES = 256 << 10
"""Size at which a reading is split into several records."""
MAX_CACHED_SERIES = 50_000
"""Maximum number of series whose encoded labels are cached."""
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_VALUE = struct.Struct("<d")
_LITERAL_BYTES = 1 << 16
"""Maximum literal size, so that its length fits into two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWriteOptions:
    """The table ``[send.remote_write]``, in addition to the receiver's options."""

    receiver: ReceiverOptions


class RemoteWrite:
    """Encodes samples for Prometheus remote write."""

    name = "remote_write"
    path = PATH

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._cache: dict[tuple[str, Labels], bytes] = {}

    def records(self, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """(encoded request, number of samples) for each record of a reading."""
        time = b"\x10" + varint(reading.time_ns // 1_000_000)
        pieces, size = list[bytes](), 0
        for sample in reading.samples:
            # the canonical NaN: other NaN values mark a series as stale for some receivers
            value = b"\x09" + _VALUE.pack(math.nan if math.isnan(sample.value) else sample.value) + time
            labels = self._labels(sample.metric, sample.labels)
            series = b"%b\x12%b%b" % (labels, varint(len(value)), value)
            pieces.append(b"\x0a%b%b" % (varint(len(series)), series))
            size += len(pieces[-1])
            if size >= RECORD_BYTES:
                yield b"".join(pieces), len(pieces)
                pieces, size = [], 0
        if pieces:
            yield b"".join(pieces), len(pieces)

    def body(self, records: Sequence[bytes]) -> tuple[bytes, Mapping[str, str]]:
        """The request body of these records, and its headers."""
        compress, _ = compressor()
        return compress(b"".join(records)), HEADERS

    def _labels(self, metric: str, labels: Labels) -> bytes:
        key = metric, labels
        encoded = self._cache.get(key)
        if encoded is None:
            if len(self._cache) >= MAX_CACHED_SERIES:
                self._cache.clear()  # processes and jobs come and go, so old entries are dropped
            pairs = sorted((("__name__", metric), *self._identity.of_sample(labels)))
            encoded = self._cache[key] = b"".join(_label(name, value) for name, value in pairs)
        return encoded


def _label(name: str, value: str) -> bytes:
    pair = b"".join(_text(number, text) for number, text in ((1, name), (2, value)))
    return b"\x0a" + varint(len(pair)) + pair


def _text(number: int, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


@cache
def compressor() -> tuple[Callable[[bytes], bytes], bool]:
    """The snappy compression function, and whether it compresses. Without cramjam the blocks consist of literals only,
    which is valid snappy that every receiver decodes."""
    try:
        import cramjam
    except ImportError:
        return literals, False
    return lambda data: bytes(cramjam.snappy.compress_raw(data)), True


def literals(data: bytes) -> bytes:
    """A snappy block that stores the data uncompressed."""
    out = [varint(len(data))]
    for begin in range(0, len(data), _LITERAL_BYTES):
        part = data[begin : begin + _LITERAL_BYTES]
        out += (_tag(len(part) - 1), part)
    return b"".join(out)


def _tag(length_minus_1: int) -> bytes:
    """The tag of a snappy literal."""
    if length_minus_1 < 60:
        return bytes((length_minus_1 << 2,))
    return bytes((60 << 2, length_minus_1)) if length_minus_1 < 256 else b"\xf4" + length_minus_1.to_bytes(2, "little")


def varint(number: int) -> bytes:
    """A number as a varint of snappy and protobuf; negative numbers as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
