"""Messages of the official protobuf runtime, made of bounded pieces of a body.

The runtime takes up to 66 times the bytes of a message that holds nothing but empty ones. So it never gets a whole
body, but pieces that are whole messages of the same type.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from trackside.serve.protocols.decoded import BadRequest, TooLarge
from trackside.serve.protocols.series_key import length
from trackside.serve.protocols.wire import BYTES, MAX_MESSAGES, fields, run

MAX_PIECE_BYTES = 1 << 20
"""Bytes that the runtime gets at once, without the context that is repeated in each piece."""
Shape: TypeAlias = Mapping[int, "Shape"]
"""Numbers of the repeated fields (below 16) at which a message may be cut in two, and the same of their messages."""
M = TypeVar("M", bound=Message)


def parsed(kind: type[M], body: bytes, shape: Shape, largest: int = MAX_PIECE_BYTES) -> Iterator[M]:
    """The messages whose merge is the body's. ``largest``: bytes of a message that can't be cut. Raises BadRequest."""
    for piece in pieces(body, shape, largest, 0, len(body)):
        try:
            message = kind.FromString(piece)
        except DecodeError as error:
            deque(fields(body, 0, len(body)), maxlen=0)  # raises BadRequest that says where, if it is the outermost
            raise BadRequest(f"the body can't be read as {kind.DESCRIPTOR.name}: {error}") from None
        yield message


def pieces(body: bytes, shape: Shape, largest: int, at: int, end: int) -> Iterator[bytes]:
    """A message in pieces that are such messages too, in order; all have the fields at which it can't be cut."""
    if end - at <= MAX_PIECE_BYTES:
        yield body[at:end]
        return
    if not shape:
        if end - at > largest:
            raise TooLarge(f"a part of {end - at:,} bytes at byte {at:,}, at most {largest:,} are taken")
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
    """What all pieces of a message hold, and its parts: (0, begin, stop) of whole fields, or (number, begin, stop) of
    the content of a field that is itself too large."""
    tags = {number << 3 | BYTES for number in shape}
    context, parts, count = bytearray(), list[tuple[int, int, int]](), 0
    while at < end:
        taken = array("q")
        stop = run(body, at, min(end, at + MAX_PIECE_BYTES), taken, taken) if body[at] in tags else at
        count += len(taken) // 2 or 1
        if count > MAX_MESSAGES:
            raise TooLarge(f"{count:,} messages in a row, at most {MAX_MESSAGES:,} are taken: send less at once")
        if stop == at:
            number, kind, value, stop = next(fields(body, at, end))
            if kind != BYTES or number not in shape:
                context += body[at:stop]
                if len(context) > MAX_PIECE_BYTES:
                    raise TooLarge(f"more than {MAX_PIECE_BYTES:,} bytes at byte {at:,} that can't be parted")
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
