"""What stands around a place of an input: a few lines before it and after, looked up again where it was read.

A plain file is read at the place only; a compressed one, or a member of an archive, up to its last place.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from trackside.model import Position
from trackside.read.format import Source
from trackside.read.walk import walk

AROUND = 3
"""Lines before the place and after it."""
REACH = 8 << 10
"""Bytes before the place and after it in which those lines are looked for."""
LONGEST = 400
"""Characters of a line that are kept."""
FARTHEST = 4 << 30
"""Bytes of a stream that must be read from its start; places beyond are left out."""
CUT = "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of an input: the first one's number, and the number of the one that was asked for."""

    first: int
    lines: tuple[str, ...]
    line: int


def excerpts(paths: Sequence[str | os.PathLike[str]], places: Iterable[Position]) -> Mapping[Position, Excerpt]:
    """The places that are found in files under the paths; of formats that are not text, none. Each file is opened
    once, and nothing is raised for one that can't be read any more."""
    wanted: dict[str, list[Position]] = {}
    for place in set(places):
        if place.offset > 0 or place.line == 1:  # else it is a record's ordinal
            wanted.setdefault(place.path, []).append(place)
    found: dict[Position, Excerpt] = {}
    if not wanted:
        return found
    for source in walk([path for path in paths if os.path.lexists(path)]):
        if isinstance(source, Source) and (here := wanted.pop(source.path, None)) is not None:
            for place, data, begin in _windows(source.stream, sorted(here, key=lambda each: each.offset)):
                if (excerpt := _excerpt(place, data, begin)) is not None:
                    found[place] = excerpt
        if not wanted:
            break
    return found


def _windows(stream: BinaryIO, places: Sequence[Position]) -> Iterator[tuple[Position, bytes, int]]:
    """(place, bytes around it, offset of the first of them), in one pass."""
    seekable = stream.seekable()
    held, base = b"", 0
    for place in places:
        begin, end = max(0, place.offset - REACH), place.offset + REACH
        if seekable:
            stream.seek(begin)
            yield place, stream.read(end - begin), begin
            continue
        if end > FARTHEST:
            return
        while base + len(held) < end and (piece := stream.read(1 << 20)):
            kept = held[max(0, begin - base) :]
            base, held = base + len(held) - len(kept), kept + piece
        yield place, held[max(0, begin - base) : end - base], max(begin, base)


def _excerpt(place: Position, data: bytes, begin: int) -> Excerpt | None:
    """The lines around a place; None where the bytes end before it."""
    at = place.offset - begin
    if at >= len(data):
        return None
    data = data.replace(b"\0", b"\r")  # as logs/scan.py takes them
    before = data[: data.rfind(b"\n", 0, at) + 1]
    rest = data[len(before) :].split(b"\n", AROUND + 1)
    earlier = before.split(b"\n")[:-1]
    if begin and earlier:
        del earlier[0]  # begins somewhere within its line
    earlier = earlier[-AROUND:]
    later = rest[1 : AROUND + 1]
    if later and not later[-1]:
        del later[-1]  # nothing follows the last line's end
    cited = _segment(rest[0], at - len(before))
    lines = [*(_last(each) for each in earlier), cited, *(_last(each) for each in later)]
    return Excerpt(place.line - len(earlier), tuple(_text(each) for each in lines), place.line)


def _segment(line: bytes, at: int) -> bytes:
    """What was on the screen at that byte of a line that was drawn over and over."""
    start = line.rfind(b"\r", 0, at) + 1
    end = line.find(b"\r", at)
    return line[start : end if end >= 0 else len(line)]


def _last(line: bytes) -> bytes:
    """What a line that was drawn over and over showed in the end."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _text(line: bytes) -> str:
    text = line.rstrip(b"\r").decode("utf-8", "replace")
    return text if len(text) <= LONGEST else text[:LONGEST] + CUT
