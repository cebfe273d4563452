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

from trackside.serve.protocols.decoded import BadRequest, PushTooLarge
from trackside.serve.protocols.series_key import varint
from trackside.serve.protocols.wire import BYTES, MAX_MESSAGES, append_run, fields

MAX_PIECE_BYTES = 1 << 20
"""Bytes in one piece, without the context that is repeated in each piece."""
MessageShape: TypeAlias = Mapping[int, "MessageShape"]
"""Numbers of the repeated fields (below 16) at which a message may be split, each with the shape of its messages."""
M = TypeVar("M", bound=Message)


def parse_messages(
    kind: type[M], body: bytes, shape: MessageShape, max_part_bytes: int = MAX_PIECE_BYTES
) -> Iterator[M]:
    """Messages that together are the body's. ``max_part_bytes``: limit of an indivisible message. Raises BadRequest."""
    for piece in split_message(body, shape, max_part_bytes, 0, len(body)):
        try:
            message = kind.FromString(piece)
        except DecodeError as error:
            # raises BadRequest with the position, if the outermost message is damaged
            deque(fields(body, 0, len(body)), maxlen=0)
            raise BadRequest(f"the body cannot be read as {kind.DESCRIPTOR.name}: {error}") from None
        yield message


def split_message(body: bytes, shape: MessageShape, max_part_bytes: int, offset: int, end: int) -> Iterator[bytes]:
    """A message split into messages of the same type, in order; each has the fields at which it cannot be split."""
    if end - offset <= MAX_PIECE_BYTES:
        yield body[offset:end]
        return
    if not shape:
        if end - offset > max_part_bytes:
            raise PushTooLarge(
                f"a part of {end - offset:,} bytes at byte {offset:,}, but at most {max_part_bytes:,} are accepted"
            )
        yield body[offset:end]
        return
    context, parts = _context_and_parts(body, shape, offset, end)
    for number, begin, stop in parts or [(0, end, end)]:
        if not number:
            yield context + body[begin:stop]
            continue
        for piece in split_message(body, shape[number], max_part_bytes, begin, stop):
            yield b"".join((context, bytes([number << 3 | BYTES]), varint(len(piece)), piece))


def _context_and_parts(
    body: bytes, shape: MessageShape, offset: int, end: int
) -> tuple[bytes, list[tuple[int, int, int]]]:
    """(context, parts) of a message: the bytes repeated in each piece, and (0, begin, stop) of complete fields or
    (number, begin, stop) of the content of a field that is too large itself."""
    tags = {number << 3 | BYTES for number in shape}
    context, parts, count = bytearray(), list[tuple[int, int, int]](), 0
    while offset < end:
        lengths = array("q")
        stop = (
            append_run(body, offset, min(end, offset + MAX_PIECE_BYTES), lengths, lengths)
            if body[offset] in tags
            else offset
        )
        count += len(lengths) // 2 or 1
        if count > MAX_MESSAGES:
            raise PushTooLarge(
                f"{count:,} messages in one field, but at most {MAX_MESSAGES:,} are accepted: send smaller batches"
            )
        if stop == offset:
            number, kind, value, stop = next(fields(body, offset, end))
            if kind != BYTES or number not in shape:
                context += body[offset:stop]
                if len(context) > MAX_PIECE_BYTES:
                    raise PushTooLarge(f"more than {MAX_PIECE_BYTES:,} bytes at byte {offset:,} that cannot be split")
                offset = stop
                continue
            if stop - value > MAX_PIECE_BYTES:
                parts.append((number, value, stop))
                offset = stop
                continue
        if parts and parts[-1][0] == 0 and parts[-1][2] == offset and stop - parts[-1][1] <= MAX_PIECE_BYTES:
            parts[-1] = (0, parts[-1][1], stop)
        else:
            parts.append((0, offset, stop))
        offset = stop
    return bytes(context), parts
