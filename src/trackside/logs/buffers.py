"""The bytes of a log in overlapping buffers, so that each line is seen with its neighbors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import BinaryIO

from trackside.logs.wrapping import rejoin, width_of

CHUNK_BYTES = 8 << 20
"""Bytes read at once."""
BEHIND_BYTES = 64 << 10
"""Bytes kept before a line, for :meth:`Line.preceding`."""
AHEAD_BYTES = 256 << 10
"""Bytes that must be buffered after a line, for :meth:`Line.following`."""
HEAD_BYTES = 64 << 10
"""Bytes at the beginning that show what holds for the whole file, such as its prefixes."""
WIDE_TEXT = re.compile(rb"\0?(?:[\t\n\r\x1b\x20-\x7e]\0){4,}")
"""Text in UTF-16, also behind the second byte of a line end before which something was put into each line."""


def read_text(stream: BinaryIO, count_nuls: Callable[[int], None], *, printed: bool) -> Iterator[bytes]:
    """The bytes of a stream in chunks, repaired; offsets and line numbers stay the same.

    Text in UTF-16 between plain text, as PowerShell appends it, becomes plain. Other NUL bytes (the holes that a
    crashed node leaves) become ``\\r``, which ends a segment. If a terminal broke all lines of a program's output
    (``printed``), they are joined again.
    """

    def chunks() -> Iterator[bytes]:
        while chunk := stream.read(CHUNK_BYTES):
            if b"\0" in chunk:
                chunk = WIDE_TEXT.sub(_narrowed, chunk)
            if b"\0" in chunk:
                count_nuls(chunk.count(b"\0"))
                chunk = chunk.replace(b"\0", b"\r")
            yield chunk

    unjoined = chunks()
    first = next(unjoined, b"")
    width = width_of(first[:HEAD_BYTES]) if printed else None
    yield from chain((first,), unjoined) if width is None else rejoin(chain((first,), unjoined), width)


def _narrowed(wide: re.Match[bytes]) -> bytes:
    """Text in UTF-16 as plain text of the same length: blanks fill up its lines."""
    *lines, last = wide[0].replace(b"\0", b"").split(b"\n")
    filled = [_filled(line, len(line) + 1) for line in lines]
    return b"\n".join([*filled, _filled(last, len(last) + (wide[0][:1] == b"\0"))])


def _filled(line: bytes, blanks: int) -> bytes:
    """A line with blanks at its end, before a carriage return."""
    text = line.rstrip(b"\r")
    return text + b" " * blanks + line[len(text) :]


def overlapping_buffers(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int, int, int]]:
    """(buffer, first byte to read, end of the bytes to read, file offset of the buffer's start).

    Each byte is read once, with BEHIND_BYTES before and AHEAD_BYTES after it in the buffer.
    """
    carry, begin, base = b"", 0, 0
    while True:
        chunk = next(filter(None, chunks), b"")
        buffer = carry + chunk if carry else chunk
        if not chunk:
            if begin < len(buffer):
                yield buffer, begin, len(buffer), base
            return
        end = len(buffer) - AHEAD_BYTES
        if end <= begin:
            carry = buffer
            continue
        end = buffer.rfind(b"\n", begin, end) + 1 or end
        yield buffer, begin, end, base
        cut = max(0, end - BEHIND_BYTES)
        carry, begin, base = buffer[cut:], end - cut, base + cut
