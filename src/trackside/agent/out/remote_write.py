"""Samples as Prometheus remote write 1.0: a protobuf WriteRequest in a snappy block.

A WriteRequest is nothing but its series one after the other, so that requests put together are a request: what is
spooled is sent as it stands.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from trackside.agent.out.identity import Identity
from trackside.agent.out.receiver import ReceiverOptions
from trackside.agent.source import Labels, Reading

PATH = "/api/v1/write"
PIECE_BYTES = 256 << 10
"""Of one record; a larger reading is several."""
MOST_KNOWN = 50_000
"""Series whose labels are remembered as they are sent."""
HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_VALUE = struct.Struct("<d")
_LITERAL = 1 << 16
"""Bytes of one literal, at most: its length takes two bytes then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWriteOptions:
    """The table ``[send.remote_write]``, beside how the receiver is reached."""

    receiver: ReceiverOptions


class RemoteWrite:
    """Samples as this protocol has them."""

    name = "remote_write"
    path = PATH

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._known: dict[tuple[str, Labels], bytes] = {}

    def records(self, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """A reading's samples: requests, and how many samples each holds."""
        time = b"\x10" + varint(reading.time_ns // 1_000_000)
        pieces, size = list[bytes](), 0
        for sample in reading.samples:
            # NaN in its one usual form: another ends a series for some receivers
            value = b"\x09" + _VALUE.pack(math.nan if math.isnan(sample.value) else sample.value) + time
            labels = self._labels(sample.metric, sample.labels)
            series = b"%b\x12%b%b" % (labels, varint(len(value)), value)
            pieces.append(b"\x0a%b%b" % (varint(len(series)), series))
            size += len(pieces[-1])
            if size >= PIECE_BYTES:
                yield b"".join(pieces), len(pieces)
                pieces, size = [], 0
        if pieces:
            yield b"".join(pieces), len(pieces)

    def body(self, records: Sequence[bytes]) -> tuple[bytes, Mapping[str, str]]:
        """A request of these, and its headers."""
        compress, _ = compressor()
        return compress(b"".join(records)), HEADERS

    def _labels(self, metric: str, labels: Labels) -> bytes:
        key = metric, labels
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()  # processes and jobs come and go
            told = sorted((("__name__", metric), *self._identity.of_sample(labels)))
            known = self._known[key] = b"".join(_label(name, value) for name, value in told)
        return known


def _label(name: str, value: str) -> bytes:
    pair = b"".join(_text(number, text) for number, text in ((1, name), (2, value)))
    return b"\x0a" + varint(len(pair)) + pair


def _text(number: int, text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return bytes((number << 3 | 2,)) + varint(len(data)) + data


@cache
def compressor() -> tuple[Callable[[bytes], bytes], bool]:
    """What makes a block of snappy, and whether it makes it smaller: without cramjam it is of literals alone, which is
    valid and read by all."""
    try:
        import cramjam
    except ImportError:
        return literals, False
    return lambda data: bytes(cramjam.snappy.compress_raw(data)), True


def literals(data: bytes) -> bytes:
    """A block that holds data as it stands."""
    out = [varint(len(data))]
    for begin in range(0, len(data), _LITERAL):
        part = data[begin : begin + _LITERAL]
        out += (_tag(len(part) - 1), part)
    return b"".join(out)


def _tag(last: int) -> bytes:
    """What stands before a literal, by its length less one."""
    if last < 60:
        return bytes((last << 2,))
    return bytes((60 << 2, last)) if last < 256 else b"\xf4" + last.to_bytes(2, "little")


def varint(number: int) -> bytes:
    """A number as snappy and protobuf write it; a negative one as 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
