"""What is kept of a large log: its first and last lines, every line that a reader took something from, and the lines
around those that the verdict cites. A line says how many were left out between two that were kept."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trackside.model import Event
from trackside.query import Query, QueryError

SMALL = 1 << 20
"""Bytes up to which a file is kept whole."""
ENDS = 200
"""Lines kept at either end."""
AROUND, BESIDE = 20, 10
"""Lines kept on either side of one that is cited, and of one that something was taken from."""
APART = 20
"""Fewer lines than this between two that are kept are kept as well: a report of several lines stays whole."""
FORMATS = frozenset({"job-log", "kernel-log", "nccl-debug", "slurm-daemon-log"})
"""Logs whose lines stand for themselves; anything else is kept whole."""
LONGEST = 16 << 20


@dataclass(slots=True)
class Spots:
    """The places of one file that matter: 1-based lines, and stretches of bytes."""

    lines: list[tuple[int, int]] = field(default_factory=list)
    """First and last line."""
    bytes: list[tuple[int, int]] = field(default_factory=list)
    """First byte, and one past the last."""


def spots_of(events: Iterable[Event], queries: Iterable[str]) -> Mapping[str, Spots]:
    """By file, what is to be kept: of events, and of citations in the text form of their queries."""
    found: dict[str, Spots] = defaultdict(Spots)
    for event in events:
        at, spots = event.at, found[event.at.path]
        spots.lines.append((at.line - BESIDE, at.line + BESIDE))
        if at.length:
            spots.bytes.append((at.offset, at.offset + at.length))
    for text in queries:
        try:
            told = dict(Query.parse(text).filters)
        except QueryError:
            continue
        path, line = told.get("file"), told.get("line")
        if isinstance(path, str) and isinstance(line, int):
            found[path].lines.append((line - AROUND, line + AROUND))
    return {path: Spots(_merged(each.lines, APART), _merged(each.bytes, 1)) for path, each in found.items()}


def _merged(spans: list[tuple[int, int]], apart: int) -> list[tuple[int, int]]:
    """Sorted, those that are no further apart joined."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1] + apart:
            found[-1] = found[-1][0], max(found[-1][1], high)
        else:
            found.append((low, high))
    return found


@dataclass(slots=True)
class Slice:
    """The kept lines of a log, as a stream. ``lines`` and ``kept`` count them, once it was read to its end."""

    stream: io.BufferedIOBase
    spots: Spots
    lines: int = 0
    kept: int = 0

    def __iter__(self) -> Iterator[bytes]:
        held: deque[bytes] = deque()  # the last lines seen since the last that was kept: the file may end here
        skipped = 0
        for line, offset, raw, whole in _lines(self.stream):
            self.lines = line
            if line <= ENDS or not whole or self._wanted(line, offset, len(raw)):
                yield from self._gap(skipped + len(held))
                held.clear()
                skipped = 0
                self.kept += 1
                yield raw
                continue
            held.append(raw)
            if len(held) > ENDS:
                held.popleft()
                skipped += 1
        yield from self._gap(skipped)
        self.kept += len(held)
        yield from held

    def _gap(self, skipped: int) -> Iterator[bytes]:
        if skipped:
            yield b"[... %d lines left out ...]\n" % skipped

    def _wanted(self, line: int, offset: int, length: int) -> bool:
        return _within(self.spots.lines, line, line) or _within(self.spots.bytes, offset, offset + length - 1)


def _within(spans: list[tuple[int, int]], first: int, last: int) -> bool:
    """Whether any of the sorted stretches meets ``first`` to ``last``."""
    place = bisect_right(spans, (last, 1 << 62))
    return place > 0 and spans[place - 1][1] >= first


def _lines(stream: io.BufferedIOBase) -> Iterator[tuple[int, int, bytes, bool]]:
    """(number, offset, line with its end, whether it is a whole one); a very long line comes in parts."""
    number, offset, ended = 1, 0, True
    while raw := stream.readline(LONGEST):
        whole = ended and raw.endswith(b"\n")
        yield number, offset, raw, whole
        offset += len(raw)
        ended = raw.endswith(b"\n")
        number += ended
