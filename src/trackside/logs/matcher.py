"""Finds candidate lines in whole buffers: Hyperscan, or RE2 if there is no Hyperscan wheel for the platform.

Both report the byte offset at which each match of each pattern ends. See docs/decisions/0002.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Protocol

from trackside.cache import cache_file, write_cache_file
from trackside.logs.pattern import Pattern

Hit = tuple[int, int]
"""(end offset in the buffer, index of the pattern)"""


MIN_CACHED_PATTERNS = 100
"""From this many patterns on, compiling takes long enough (0.4 s for 250) to cache the result."""


class Matcher(Protocol):
    """Finds the matches of all patterns in a buffer."""

    def hits(self, buffer: bytes) -> list[Hit]:
        """All matches, ordered by offset; the same pattern may match a line more than once."""
        ...


class HyperscanMatcher:
    """All patterns at once at several GB/s on one core."""

    def __init__(self, patterns: Sequence[Pattern], cached: bool = True) -> None:
        import hyperscan

        flags = [hyperscan.HS_FLAG_CASELESS if pattern.caseless else 0 for pattern in patterns]
        expressions = [pattern.regex for pattern in patterns]
        cached_file = cache_file(repr((version("hyperscan"), platform.machine(), expressions, flags)), ".hyperscan")
        try:
            if not cached:
                raise FileNotFoundError
            self._database = hyperscan.loadb(cached_file.read_bytes(), hyperscan.HS_MODE_BLOCK)
            self._database.scratch = hyperscan.Scratch(self._database)  # compile() allocates one, loadb() does not
        except (OSError, ValueError, hyperscan.error):  # not cached yet, or by another version or CPU
            self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            self._database.compile(expressions=expressions, ids=list(range(len(patterns))), flags=flags)
            if cached and len(patterns) >= MIN_CACHED_PATTERNS:
                write_cache_file(cached_file, hyperscan.dumpb(self._database))

    def hits(self, buffer: bytes) -> list[Hit]:
        """See :class:`Matcher`."""
        hits: list[Hit] = []
        append = hits.append

        def on_match(index: int, _start: int, end: int, _flags: int, _context: object) -> None:
            append((end, index))

        self._database.scan(buffer, match_event_handler=on_match)
        hits.sort()
        return hits


class Re2Matcher:
    """The fallback: RE2 finds the lines, Python's ``re`` says which patterns match them."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        import re2

        options = re2.Options()
        options.encoding = re2.Options.Encoding.LATIN1
        options.max_mem = 256 << 20
        joined = b"|".join((b"(?i:%s)" if p.caseless else b"(?:%s)") % p.regex for p in patterns)
        self._any = re2.compile(joined, options)
        self._regexes = [re.compile(p.regex, re.IGNORECASE if p.caseless else 0) for p in patterns]

    def hits(self, buffer: bytes) -> list[Hit]:
        """See :class:`Matcher`."""
        hits: list[Hit] = []
        position = 0
        while (match := self._any.search(buffer, position)) is not None:
            start = buffer.rfind(b"\n", 0, match.start() + 1) + 1
            end = buffer.find(b"\n", match.end())
            end = len(buffer) if end < 0 else end
            for index, pattern in enumerate(self._regexes):
                hits.extend((match_in_line.end(), index) for match_in_line in pattern.finditer(buffer, start, end))
            position = max(end, match.end() + 1)
            if position >= len(buffer):
                break
        hits.sort()
        return hits


class EmptyMatcher:
    """For a plane without patterns: nothing ever matches."""

    def hits(self, buffer: bytes) -> list[Hit]:
        """See :class:`Matcher`."""
        return []


def matcher(patterns: Sequence[Pattern], prefer: str | None = None, cached: bool = True) -> Matcher:
    """The fastest matcher on this machine; ``prefer`` names one. ``cached``: whether the compiled database may be
    kept on disk."""
    if not patterns:
        return EmptyMatcher()
    if prefer != "re2":
        try:
            return HyperscanMatcher(patterns, cached)
        except ImportError:
            if prefer == "hyperscan":
                raise
    return Re2Matcher(patterns)
