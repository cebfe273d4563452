"""Snappy's block format, which remote write wants: by cramjam where it is installed, else as it stands.

A block may consist of literals alone: that is valid, and read by all, but no smaller than what it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

_LITERAL = 1 << 16
"""Bytes of one literal, at most: its length takes two bytes then."""


@cache
def compressor() -> tuple[Callable[[bytes], bytes], bool]:
    """What makes a block, and whether it makes it smaller."""
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
