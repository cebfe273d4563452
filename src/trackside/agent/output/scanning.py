"""The log scan over a file that still grows: what its lines mean, and how far around each its parser had to look.

It keeps a window of the file. A line is read once those after it had time to come, for many mean something only with
them (a traceback, a bar over a loss); see :mod:`trackside.logs.scan` for the same over files that have ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from trackside.logs.line import FileContext, Line
from trackside.logs.scan import ScanStats, hit_segments, learn_context, parse_line, rules
from trackside.model import Event

BEHIND = 32 << 10
"""Bytes kept before what is read next."""
HEAD = 64 << 10
"""Bytes that tell of the whole file: its year, and whether srun labels its lines."""
FIRST, LAST = 100, 200
"""Lines that one set of patterns hit in what is read at once: the first and the last of them are looked at."""
REACH = 256
"""Lines that a parser may be said to have looked at, and no more."""


class _Looking(Line):
    """A line that notes how far its parser looks."""

    __slots__ = ("high", "low", "root")

    def __init__(self, buffer: bytes, start: int, end: int, number: int, offset: int, context: FileContext) -> None:
        super().__init__(buffer, start, end, number, offset, context)
        self.root, self.low, self.high = self, start, end

    def _neighbour(self, start: int, end: int, number: int) -> Line:
        if self.buffer[end - 1 : end] == b"\r" and end > start:
            end -= 1
        line = _Looking(self.buffer, start, end, number, self.offset + start - self.start, self.context)
        line.parser, line.root = self.parser, self.root
        self.root.low, self.root.high = min(self.root.low, start), max(self.root.high, end)
        return line


class Head:
    """A file's first bytes as they come: what they say of all its lines, asked again as there are more of them."""

    def __init__(self, context: FileContext) -> None:
        self._context, self._bytes, self._asked, self._whole = context, b"", 0, False

    def add(self, data: bytes, offset: int) -> None:
        """Take bytes of the file from a place on."""
        if self._whole or offset > len(self._bytes):
            return
        self._bytes += data[len(self._bytes) - offset : HEAD - offset]
        if len(self._bytes) >= 2 * self._asked:
            self._asked = len(self._bytes)
            learn_context(self._bytes, self._context, ScanStats())
        if len(self._bytes) >= HEAD:
            self._bytes, self._whole = b"", True


@dataclass(slots=True)
class Meaning:
    """What one segment of a line means. ``start`` and ``stop``: its place in the file; ``low`` and ``high``: of all
    that its parser looked at."""

    events: tuple[Event, ...]
    start: int
    stop: int
    low: int
    high: int


@dataclass(slots=True)
class Scanner:
    """Of one file. ``base``: the place of the window's first byte in the file; ``read``: up to where it is read."""

    context: FileContext
    base: int = 0
    read: int = 0
    window: bytes = b""
    lines: int = 0
    """Lines read."""
    _done: ScanStats = field(default_factory=ScanStats)

    @property
    def end(self) -> int:
        """Up to where the window holds the file."""
        return self.base + len(self.window)

    def feed(self, data: bytes) -> None:
        """Complete lines that follow those before."""
        self.window += data

    def judge(self, upto: int) -> Iterator[Meaning]:
        """Read as far as a place in the file, which is behind a line's end or a redraw."""
        begin, end = self.read - self.base, upto - self.base
        if end <= begin:
            return
        compiled = rules(self.context.plane)
        hits = [(stop + begin, index) for stop, index in compiled.matcher.hits(self.window[begin:end])]
        number, counted = self.lines + 1, begin
        for start, stop, owners in self._chosen(list(hit_segments(self.window, hits, begin, end))):
            number += self.window.count(b"\n", counted, start)
            counted = start
            line = _Looking(self.window, start, stop, number, self.base + start, self.context)
            events = tuple(parse_line(line, owners, compiled, self._done))
            if events:
                yield Meaning(events, *(self.base + place for place in (start, stop, line.low, line.high)))
        self.lines += self.window.count(b"\n", begin, end)
        self.read = upto

    def _chosen(self, found: list[tuple[int, int, tuple[int, ...]]]) -> list[tuple[int, int, tuple[int, ...]]]:
        """Those that are looked at: of many that the same patterns hit the first and the last."""
        if len(found) <= FIRST + LAST:
            return found
        places: dict[tuple[int, ...], list[int]] = {}
        for place, (_, _, owners) in enumerate(found):
            places.setdefault(owners, []).append(place)
        return sorted(found[place] for each in places.values() for place in {*each[:FIRST], *each[-LAST:]})

    def forget(self, before: int) -> None:
        """Let go of the window before a place, and of what is long read."""
        cut = min(before, self.read - BEHIND) - self.base
        if cut > BEHIND:
            self.window = self.window[cut:]
            self.base += cut


def last_meanings(data: bytes, context: FileContext, most: int = 16) -> list[Event]:
    """The events of the last lines that mean anything, of complete lines; for figures that are gauges."""
    compiled = rules(context.plane)
    hits = compiled.matcher.hits(data)
    if not hits:
        return []
    done = ScanStats()
    near = list(hit_segments(data, hits[-8 * most :], 0, len(data)))[-most:]
    found: list[Event] = []
    for start, stop, owners in near:
        found += parse_line(Line(data, start, stop, 0, start, context), owners, compiled, done)
    return found
