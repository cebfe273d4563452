"""The protobuf wire format: fields one after the other, and numpy views that read the same offset of many messages.

Nothing is copied or built in advance, so that a hostile body takes no more memory than its own bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.decoded import BadRequest, TooLarge

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_MESSAGES = 1 << 20
"""Messages in one repeated field: each becomes objects that take many times the bytes of an empty message."""
MAX_UNKNOWN_FIELDS = 1 << 20
"""Unknown fields in a body; each takes time."""
SIX_MASK, SIX = 0x808080808080FF00, 0x0080808080800000
"""Bits of a 64-bit word: its byte 1 (a tag) and the ends of a varint of six bytes (times in ms from 2004 to 2109)."""
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Offsets = NDArray[np.int64]


def varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the offset after it."""
    value = shift = 0
    begin = at
    while at < end:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift == 70:
            raise BadRequest(f"the number at byte {begin:,} has more than 64 bits: is this protobuf?")
    raise BadRequest(f"the body is truncated, or a length in it is wrong: the number at byte {begin:,} doesn't end")


def signed(value: int) -> int:
    """A 64-bit number in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, value, stop) of each field between ``at`` and ``end``.

    The value of a varint is the number itself; for other kinds, the offset where the content begins. ``stop``: its end.
    """
    while at < end:
        begin = at
        tag, at = varint(body, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise BadRequest(f"field 0 at byte {begin:,}: this is not protobuf")
        if kind == VARINT:
            value, at = varint(body, at, end)
            yield number, kind, value, at
            continue
        if kind == BYTES:
            length, at = varint(body, at, end)
        elif kind == FIXED64:
            length = 8
        elif kind == FIXED32:
            length = 4
        else:
            raise BadRequest(
                f"field {number} at byte {begin:,} is of wire type {kind}, which these protocols don't use"
            )
        stop = at + length
        if stop > end:
            raise BadRequest(
                f"field {number} at byte {begin:,} says it has {length:,} bytes but only {end - at:,} are left: "
                "the body is truncated, or not encoded as the protocol says"
            )
        yield number, kind, at, stop
        at = stop


def split(body: bytes, number: int) -> tuple[Offsets, Offsets]:
    """Starts and ends of the messages of a repeated field (numbered below 16); other fields are skipped."""
    starts, stops = array("q"), array("q")
    tag, at, unknown_fields = number << 3 | BYTES, 0, 0
    while at < len(body):
        if body[at] == tag:
            at = run(body, at, len(body), starts, stops)
            if len(starts) > MAX_MESSAGES:
                raise TooLarge(
                    f"{len(starts):,} messages in one field, but at most {MAX_MESSAGES:,} are accepted: "
                    "send smaller batches"
                )
            if at == len(body):
                break
        field, kind, begin, at = next(fields(body, at, len(body)))
        if kind == BYTES and field == number:
            starts.append(begin)
            stops.append(at)
        else:
            unknown_fields += 1
            if unknown_fields > MAX_UNKNOWN_FIELDS:
                raise BadRequest(f"more than {MAX_UNKNOWN_FIELDS:,} unknown fields")
    return np.frombuffer(starts, dtype=np.int64), np.frombuffer(stops, dtype=np.int64)


def run(body: bytes, at: int, end: int, starts: array[int], stops: array[int]) -> int:
    """Append adjacent messages of one field; returns the offset of the first that is different, unusual or invalid."""
    begins, ends = starts.append, stops.append
    tag = body[at]
    while at + 2 < end and body[at] == tag:
        begin = at + 2
        length = body[at + 1]
        if length >= 0x80:
            high = body[begin]
            if high >= 0x80:
                break  # 16 KiB and more
            length += (high << 7) - 0x80
            begin += 1
        stop = begin + length
        if stop > end:
            break
        begins(begin)
        ends(stop)
        at = stop
    return at


def bytes_of(body: bytes) -> Bytes:
    """The body as an array of bytes."""
    return np.frombuffer(body, dtype=np.uint8)


def words_of(body: bytes) -> Words:
    """The eight bytes at each offset as a number; for a body of at least eight bytes."""
    return np.ndarray((len(body) - 7,), dtype="<u8", buffer=body, strides=(1,))


def six(words: Words) -> Offsets:
    """The six-byte varints at the end of words that are ``SIX`` and a tag under ``SIX_MASK``."""
    value = np.zeros(words.shape, dtype=np.uint64)
    for place in range(6):
        value |= (words >> np.uint64(16 + 8 * place) & np.uint64(0x7F)) << np.uint64(7 * place)
    return value.view(np.int64)
