"""The prefilter: finds the lines that the exact patterns must process, with one search over whole buffers.

Python patterns with lookarounds are exact but slow. A line pattern is such a pattern without lookarounds: a line that
does not match it contains no match, and is skipped at a hundred times the speed. All patterns match within one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trackside.logs.matcher import matcher
from trackside.logs.pattern import Pattern

_LOOKAROUNDS = ("(?=", "(?!", "(?<=", "(?<!")
_TOKENS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?(?:<?[=!])|.", re.DOTALL)
_OPTIONAL_END = re.compile(
    r"(?:(?:\[(?:\\.|[^\]\\])*\]|\\.|(?<!\\)[^\\\])}])(?:[*?]|\{0,\d+\})|(?<!\\)\+|(\{\d+),\d*(\}))\??(\)*)\Z"
)


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A pattern that a line must match, in the syntax of :class:`trackside.logs.pattern.Pattern`; ASCII-caseless."""

    regex: bytes
    caseless: bool = False


@dataclass(frozen=True, slots=True)
class Detector:
    """A pattern that finds originals. ``add`` is called once with each distinct result of ``findall``."""

    pattern: re.Pattern[str]
    add: Callable[[Any], object]
    line_pattern: LinePattern


def detector(
    pattern: re.Pattern[str], add: Callable[[Any], object], line_pattern: bytes = b"", caseless: bool = False
) -> Detector:
    """A detector. ``line_pattern``: if the one derived from the pattern would be slow or match too many lines."""
    return Detector(pattern, add, LinePattern(line_pattern, caseless) if line_pattern else line_pattern_of(pattern))


def literal(text: str, caseless: bool = False) -> LinePattern:
    """The line pattern of a literal text."""
    return LinePattern(re.escape(text.encode("utf-8", "surrogateescape")), caseless)


def line_pattern_of(pattern: re.Pattern[str]) -> LinePattern:
    """The line pattern of a pattern: without lookarounds and optional endings, so it matches wherever the pattern
    does."""
    tokens: list[str] = []
    open_: list[bool] = []
    for token in _TOKENS.findall(re.sub(r"\A\(\?[a-z]+\)", "", pattern.pattern)):
        if token.startswith("("):
            open_.append(token in _LOOKAROUNDS)
        if not any(open_) and token not in ("^", "$"):
            tokens.append(token)
        if token == ")":
            open_.pop()
    text = "".join(tokens)
    while (end := _OPTIONAL_END.search(text)) is not None:
        text = text[: end.start()] + "".join(group or "" for group in end.groups())
    return LinePattern(text.encode(), bool(pattern.flags & re.IGNORECASE))


class Prefilter:
    """Finds the lines that match any of the line patterns. The patterns may be secret, so they are never cached on
    disk."""

    def __init__(self, line_patterns: Iterable[LinePattern]) -> None:
        patterns = [
            Pattern("", line_pattern.regex, _never_parse, "", caseless=line_pattern.caseless)
            for line_pattern in line_patterns
        ]
        self._matcher = matcher(patterns, cached=False)
        self._count = len(patterns)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Ranges of consecutive matching lines: first byte, and one past the last."""
        ranges: list[tuple[int, int]] = []
        begin = end = 0
        for stop, _ in self._matcher.hits(data):
            if stop > end:
                first, last = _line(data, stop)
                if ranges and first == end:
                    ranges[-1] = begin, last
                else:
                    begin = first
                    ranges.append((first, last))
                end = last
        return ranges

    def lines_by_pattern(self, data: bytes) -> Sequence[bytes]:
        """The matching lines of each line pattern."""
        lines_found: list[list[bytes]] = [[] for _ in range(self._count)]
        ends = [0] * self._count
        begin = end = 0
        for stop, index in self._matcher.hits(data):
            if stop > end:
                begin, end = _line(data, stop)
            if ends[index] != end:
                ends[index] = end
                lines_found[index].append(data[begin:end])
        return [b"".join(lines) for lines in lines_found]

    def hits(self, data: bytes) -> Sequence[tuple[int, int]]:
        """(end, index of the line pattern) of each match."""
        return self._matcher.hits(data)


def _line(data: bytes, stop: int) -> tuple[int, int]:
    """The line in which a match ends: its first byte, and one past its last. ``stop``: end of the match."""
    begin = data.rfind(b"\n", 0, stop - 1) + 1
    end = data.find(b"\n", stop - 1) + 1
    return begin, end or len(data)


def _never_parse(line: object) -> None:
    """Parser of a pattern that is only searched for."""
