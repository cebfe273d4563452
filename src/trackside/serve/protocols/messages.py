"""Parses a body with the official protobuf runtime, in pieces of bounded size.

The runtime needs up to 66 times the bytes of a message that consists of empty messages. So it never gets a whole body,
but pieces that are complete messages of the same type.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message

from trackside.serve.protocols.decoded import BadRequest, TooLarge
from trackside.serve.protocols.series_key import length
from trackside.serve.protocols.wire import BYTES, MAX_MESSAGES, fields, run

MAX_PIECE_BYTES = 1 << 20
"""Bytes in one piece, without the context that is repeated in each piece."""
Shape: TypeAlias = Mapping[int, "Shape"]
"""Numbers of the repeated fields (below 16) at which a message may be split, each with the shape of its messages."""
M = TypeVar("M", bound=Message)


def parsed(kind: type[M], body: bytes, shape: Shape, largest: int = MAX_PIECE_BYTES) -> Iterator[M]:
    """Messages that together are the body's. ``largest``: most bytes of an indivisible message. Raises BadRequest."""
    for piece in pieces(body, shape, largest, 0, len(body)):
        try:
            message = kind.FromString(piece)
        except DecodeError as error:
            deque(
                fields(body, 0, len(body)), maxlen=0
            )  # raises BadRequest with the position, if the outermost message is damaged
            raise BadRequest(f"the body cannot be read as {kind.DESCRIPTOR.name}: {error}") from None
        yield message


def pieces(body: bytes, shape: Shape, largest: int, at: int, end: int) -> Iterator[bytes]:
    """A message split into messages of the same type, in order; each has the fields at which it cannot be split."""
    if end - at <= MAX_PIECE_BYTES:
        yield body[at:end]
        return
    if not shape:
        if end - at > largest:
            raise TooLarge(f"a part of {end - at:,} bytes at byte {at:,}, but at most {largest:,} are accepted")
        yield body[at:end]
        return
    context, parts = _cut(body, shape, at, end)
    for number, begin, stop in parts or [(0, end, end)]:
        if not number:
            yield context + body[begin:stop]
            continue
        for piece in pieces(body, shape[number], largest, begin, stop):
            yield b"".join((context, bytes([number << 3 | BYTES]), length(len(piece)), piece))


def _cut(body: bytes, shape: Shape, at: int, end: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """(context, parts) of a message: the bytes repeated in each piece, and (0, begin, stop) of complete fields or
    (number, begin, stop) of the content of a field that is too large itself."""
    tags = {number << 3 | BYTES for number in shape}
    context, parts, count = bytearray(), list[tuple[int, int, int]](), 0
    while at < end:
        lengths = array("q")
        stop = run(body, at, min(end, at + MAX_PIECE_BYTES), lengths, lengths) if body[at] in tags else at
        count += len(lengths) // 2 or 1
        if count > MAX_MESSAGES:
            raise TooLarge(
                f"{count:,} messages in one field, but at most {MAX_MESSAGES:,} are accepted: send smaller batches"
            )
        if stop == at:
            number, kind, value, stop = next(fields(body, at, end))
            if kind != BYTES or number not in shape:
                context += body[at:stop]
                if len(context) > MAX_PIECE_BYTES:
                    raise TooLarge(f"more than {MAX_PIECE_BYTES:,} bytes at byte {at:,} that cannot be split")
                at = stop
                continue
            if stop - value > MAX_PIECE_BYTES:
                parts.append((number, value, stop))
                at = stop
                continue
        if parts and parts[-1][0] == 0 and parts[-1][2] == at and stop - parts[-1][1] <= MAX_PIECE_BYTES:
            parts[-1] = (0, parts[-1][1], stop)
        else:
            parts.append((0, at, stop))
        at = stop
    return bytes(context), parts
