"""The protobuf wire format: fields in turn, and numpy views that read the same place of many messages at once.

Nothing is copied or built until it is asked for, so that a hostile body costs no more than its own bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.decoded import BadRequest, TooLarge

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_MESSAGES = 1 << 20
"""Messages of one repeated field: each becomes objects, which take many times the bytes of an empty message."""
MAX_UNKNOWN_FIELDS = 1 << 20
"""Fields that are not read, between those that are; each costs time."""
SIX_MASK, SIX = 0x808080808080FF00, 0x0080808080800000
"""Of a 64-bit word: its byte 1 (a tag) and the ends of a varint of six bytes, as are times in ms of 2004 to 2109."""
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Offsets = NDArray[np.int64]


def varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """An unsigned number of up to 64 bits, and the place after it."""
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
    raise BadRequest(f"the body is cut off, or a length in it is wrong: the number at byte {begin:,} doesn't end")


def signed(value: int) -> int:
    """A 64-bit number in two's complement."""
    return value - (1 << 64) if value >> 63 else value


def fields(body: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, kind, value, stop) of each field between ``at`` and ``end``.

    The value of a varint is the number itself; of all else it is where the content begins, and ``stop`` its end.
    """
    while at < end:
        begin = at
        tag, at = varint(body, at, end)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise BadRequest(f"field 0 at byte {begin:,}: this is no protobuf")
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
            raise BadRequest(f"field {number} at byte {begin:,} is of wire type {kind}, which no message here has")
        stop = at + length
        if stop > end:
            raise BadRequest(
                f"field {number} at byte {begin:,} says it has {length:,} bytes where {end - at:,} are left: "
                "the body is cut off, or was not encoded as the protocol says"
            )
        yield number, kind, at, stop
        at = stop


def split(body: bytes, number: int) -> tuple[Offsets, Offsets]:
    """Where each message of a repeated field (numbered below 16) begins and ends; other fields are passed over."""
    starts, stops = array("q"), array("q")
    tag, at, strangers = number << 3 | BYTES, 0, 0
    while at < len(body):
        if body[at] == tag:
            at = run(body, at, len(body), starts, stops)
            if len(starts) > MAX_MESSAGES:
                raise TooLarge(
                    f"{len(starts):,} messages in a row, at most {MAX_MESSAGES:,} are taken: send less at once"
                )
            if at == len(body):
                break
        field, kind, begin, at = next(fields(body, at, len(body)))
        if kind == BYTES and field == number:
            starts.append(begin)
            stops.append(at)
        else:
            strangers += 1
            if strangers > MAX_UNKNOWN_FIELDS:
                raise BadRequest(f"more than {MAX_UNKNOWN_FIELDS:,} fields that are none of the protocol's")
    return np.frombuffer(starts, dtype=np.int64), np.frombuffer(stops, dtype=np.int64)


def run(body: bytes, at: int, end: int, starts: array[int], stops: array[int]) -> int:
    """Take messages of one field that follow each other; stops before what is another, or odd, or wrong."""
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
    """The body as numbers."""
    return np.frombuffer(body, dtype=np.uint8)


def words_of(body: bytes) -> Words:
    """The eight bytes from each place on, as a number; for a body of eight bytes or more."""
    return np.ndarray((len(body) - 7,), dtype="<u8", buffer=body, strides=(1,))


def six(words: Words) -> Offsets:
    """The varints of six bytes that end words of which ``SIX_MASK`` leaves ``SIX`` and a tag."""
    value = np.zeros(words.shape, dtype=np.uint64)
    for place in range(6):
        value |= (words >> np.uint64(16 + 8 * place) & np.uint64(0x7F)) << np.uint64(7 * place)
    return value.view(np.int64)
