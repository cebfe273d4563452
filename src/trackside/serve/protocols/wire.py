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
MOST = 1 << 20
"""Messages that are split, at most: each becomes objects, which take many times what an empty one has in bytes."""
MOST_STRANGERS = 1 << 20
"""Fields that nobody here reads, at most, between those that are split; each costs time and says nothing."""
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


def split(body: bytes, at: int, end: int, *numbers: int) -> list[tuple[Offsets, Offsets]]:
    """Where each message of some repeated fields (numbered below 16) begins and ends; other fields are passed over."""
    sinks = {number << 3 | BYTES: (array("q"), array("q")) for number in numbers}
    strangers = 0
    while at < end:
        if sink := sinks.get(body[at]):
            at = run(body, at, end, *sink)
            if len(sink[0]) > MOST:
                raise TooLarge(f"{len(sink[0]):,} messages in a row, at most {MOST:,} are taken: send less at once")
            if at == end:
                break
        number, kind, begin, stop = next(fields(body, at, end))
        if kind == BYTES and number << 3 | BYTES in sinks:
            sink = sinks[number << 3 | BYTES]
            sink[0].append(begin)
            sink[1].append(stop)
        else:
            strangers += 1
            if strangers > MOST_STRANGERS:
                raise BadRequest(f"more than {MOST_STRANGERS:,} fields that are none of the protocol's")
        at = stop
    return [(np.frombuffer(sink[0], dtype=np.int64), np.frombuffer(sink[1], dtype=np.int64)) for sink in sinks.values()]


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
