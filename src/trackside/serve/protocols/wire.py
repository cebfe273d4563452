"""The protobuf wire format: fields one after the other, and numpy views that read the same offset of many messages.

Nothing is copied or built in advance, so that a hostile body takes no more memory than its own bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.decoded import BadRequest, PushTooLarge

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_MESSAGES = 1 << 20
"""Messages in one repeated field: each becomes objects that take many times the bytes of an empty message."""
MAX_UNKNOWN_FIELDS = 1 << 20
"""Unknown fields in a body; each takes time."""
VARINT6_MASK, VARINT6 = 0x808080808080FF00, 0x0080808080800000
"""Bits of a 64-bit word: its byte 1 (a tag) and the ends of a varint of six bytes (times in ms from 1971 to 2109)."""
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Offsets = NDArray[np.int64]


def varint(body: bytes, offset: int, end: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the offset after it."""
    value = shift = 0
    begin = offset
    while offset < end:
        byte = body[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, offset
        shift += 7
        if shift == 70:
            raise BadRequest(f"the number at byte {begin:,} has more than 64 bits: is this protobuf?")
    raise BadRequest(f"the body is truncated, or a length in it is wrong: the number at byte {begin:,} does not end")


def to_signed(value: int) -> int:
    """A 64-bit number in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(body: bytes, offset: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, value, stop) of each field between ``offset`` and ``end``.

    The value of a varint is the number itself; for other kinds, the offset where the content begins. ``stop``: its end.
    """
    while offset < end:
        begin = offset
        tag, offset = varint(body, offset, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise BadRequest(f"field 0 at byte {begin:,}: this is not protobuf")
        if kind == VARINT:
            value, offset = varint(body, offset, end)
            yield number, kind, value, offset
            continue
        if kind == BYTES:
            length, offset = varint(body, offset, end)
        elif kind == FIXED64:
            length = 8
        elif kind == FIXED32:
            length = 4
        else:
            raise BadRequest(
                f"field {number} at byte {begin:,} is of wire type {kind}, which these protocols do not use"
            )
        stop = offset + length
        if stop > end:
            raise BadRequest(
                f"field {number} at byte {begin:,} states {length:,} bytes, but only {end - offset:,} are left: "
                "the body is truncated, or not encoded as the protocol says"
            )
        yield number, kind, offset, stop
        offset = stop


def split_messages(body: bytes, number: int) -> tuple[Offsets, Offsets]:
    """Starts and ends of the messages of a repeated field (numbered below 16); other fields are skipped."""
    starts, stops = array("q"), array("q")
    tag, offset, unknown_fields = number << 3 | BYTES, 0, 0
    while offset < len(body):
        if body[offset] == tag:
            offset = append_run(body, offset, len(body), starts, stops)
            if len(starts) > MAX_MESSAGES:
                raise PushTooLarge(
                    f"{len(starts):,} messages in one field, but at most {MAX_MESSAGES:,} are accepted: "
                    "send smaller batches"
                )
            if offset == len(body):
                break
        field, kind, begin, offset = next(fields(body, offset, len(body)))
        if kind == BYTES and field == number:
            starts.append(begin)
            stops.append(offset)
        else:
            unknown_fields += 1
            if unknown_fields > MAX_UNKNOWN_FIELDS:
                raise BadRequest(f"more than {MAX_UNKNOWN_FIELDS:,} unknown fields")
    return np.frombuffer(starts, dtype=np.int64), np.frombuffer(stops, dtype=np.int64)


def append_run(body: bytes, offset: int, end: int, starts: array[int], stops: array[int]) -> int:
    """Append the starts and ends of adjacent messages of one field; returns the offset of the first message that is
    of another field, unusual or invalid."""
    begins, ends = starts.append, stops.append
    tag = body[offset]
    while offset + 2 < end and body[offset] == tag:
        begin = offset + 2
        length = body[offset + 1]
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
        offset = stop
    return offset


def bytes_of(body: bytes) -> Bytes:
    """The body as an array of bytes."""
    return np.frombuffer(body, dtype=np.uint8)


def words_of(body: bytes) -> Words:
    """The eight bytes at each offset as a number; for a body of at least eight bytes."""
    return np.ndarray((len(body) - 7,), dtype="<u8", buffer=body, strides=(1,))


def six_byte_varints(words: Words) -> Offsets:
    """The six-byte varints at the end of words that are ``VARINT6`` and a tag under ``VARINT6_MASK``."""
    value = np.zeros(words.shape, dtype=np.uint64)
    for index in range(6):
        value |= (words >> np.uint64(16 + 8 * index) & np.uint64(0x7F)) << np.uint64(7 * index)
    return value.view(np.int64)
