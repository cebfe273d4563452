"""Excerpts of inputs: a few lines before and after a position, read again from the input.

A plain file is read only around the positions; a compressed file or archive member up to its last position.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from trackside.model import Position
from trackside.read.format import InputSource
from trackside.read.walk import walk

CONTEXT_LINES = 3
"""Lines before and after the position."""
WINDOW_BYTES = 8 << 10
"""Bytes before and after the position that are searched for these lines."""
MAX_LINE_CHARS = 400
"""Longest line, characters; the rest is cut off."""
MAX_SKIP_BYTES = 4 << 30
"""Positions beyond this offset of an unseekable stream are skipped, bytes."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of an input. ``first``: number of the first line; ``line``: number of the requested line."""

    first: int
    lines: tuple[str, ...]
    line: int


def excerpts(paths: Sequence[str | os.PathLike[str]], positions: Iterable[Position]) -> Mapping[Position, Excerpt]:
    """Excerpts for the positions found in files under the paths; none for formats that are not text. Opens each file
    once. Never raises for a file that can no longer be read."""
    positions_by_path: dict[str, list[Position]] = {}
    for position in set(positions):
        if position.offset > 0 or position.line == 1:  # otherwise the line is a record's ordinal
            positions_by_path.setdefault(position.path, []).append(position)
    excerpts_by_position: dict[Position, Excerpt] = {}
    if not positions_by_path:
        return excerpts_by_position
    for source in walk([path for path in paths if os.path.lexists(path)]):
        if isinstance(source, InputSource) and (file_positions := positions_by_path.pop(source.path, None)) is not None:
            for position, data, begin in _windows(
                source.stream, sorted(file_positions, key=lambda position: position.offset)
            ):
                if (excerpt := _excerpt(position, data, begin)) is not None:
                    excerpts_by_position[position] = excerpt
        if not positions_by_path:
            break
    return excerpts_by_position


def _windows(stream: BinaryIO, positions: Sequence[Position]) -> Iterator[tuple[Position, bytes, int]]:
    """Yield (position, bytes around it, offset of the first byte), in one pass."""
    seekable = stream.seekable()
    buffer, base = b"", 0
    for position in positions:
        begin, end = max(0, position.offset - WINDOW_BYTES), position.offset + WINDOW_BYTES
        if seekable:
            stream.seek(begin)
            yield position, stream.read(end - begin), begin
            continue
        if end > MAX_SKIP_BYTES:
            return
        while base + len(buffer) < end and (piece := stream.read(1 << 20)):
            overlap = buffer[max(0, begin - base) :]
            base, buffer = base + len(buffer) - len(overlap), overlap + piece
        yield position, buffer[max(0, begin - base) : end - base], max(begin, base)


def _excerpt(position: Position, data: bytes, begin: int) -> Excerpt | None:
    """The lines around a position; None if the bytes end before it."""
    index = position.offset - begin
    if index >= len(data):
        return None
    data = data.replace(b"\0", b"\r")  # as logs/scan.py does
    before = data[: data.rfind(b"\n", 0, index) + 1]
    from_line = data[len(before) :].split(b"\n", CONTEXT_LINES + 1)
    earlier = before.split(b"\n")[:-1]
    if begin and earlier:
        del earlier[0]  # incomplete first line
    earlier = earlier[-CONTEXT_LINES:]
    later = from_line[1 : CONTEXT_LINES + 1]
    if later and not later[-1]:
        del later[-1]  # the text ends with a line end
    cited = _visible_text(from_line[0], index - len(before))
    lines = [*(_final_text(line) for line in earlier), cited, *(_final_text(line) for line in later)]
    return Excerpt(position.line - len(earlier), tuple(_text(line) for line in lines), position.line)


def _visible_text(line: bytes, offset: int) -> bytes:
    """The visible text at ``offset`` of a line that was redrawn with carriage returns."""
    start = line.rfind(b"\r", 0, offset) + 1
    end = line.find(b"\r", offset)
    return line[start : end if end >= 0 else len(line)]


def _final_text(line: bytes) -> bytes:
    """The final visible text of a line that was redrawn with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _text(line: bytes) -> str:
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + ELLIPSIS
