"""Which lines of a text deserve a closer look: one search for the signs of all that is looked for, over whole buffers.

Python's patterns, with their looks around, are exact and slow. A sign is what is left of one without these: a line that
has no sign holds nothing, and is passed over at a hundred times the speed. Whatever is looked for stands on one line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trackside.logs.matcher import matcher
from trackside.logs.pattern import Pattern

_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_TOKENS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?(?:<?[=!])|.", re.DOTALL)
_END = re.compile(
    r"(?:(?:\[(?:\\.|[^\]\\])*\]|\\.|(?<!\\)[^\\\])}])(?:[*?]|\{0,\d+\})|(?<!\\)\+|(\{\d+),\d*(\}))\??(\)*)\Z"
)


@dataclass(frozen=True, slots=True)
class Sign:
    """What a line must hold, as every matcher reads it (:class:`trackside.logs.pattern.Pattern`); caseless in ASCII."""

    regex: bytes
    caseless: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """A pattern that tells things by their looks or surroundings. ``add`` gets what ``findall`` gives, each once."""

    pattern: re.Pattern[str]
    add: Callable[[Any], object]
    sign: Sign


def look(pattern: re.Pattern[str], add: Callable[[Any], object], sign: bytes = b"", caseless: bool = False) -> Look:
    """``sign``: where what is left of the pattern would be slow, or in half of all lines."""
    return Look(pattern, add, Sign(sign, caseless) if sign else sign_of(pattern))


def literal(text: str, caseless: bool = False) -> Sign:
    """A text as it is."""
    return Sign(re.escape(text.encode("utf-8", "surrogateescape")), caseless)


def sign_of(pattern: re.Pattern[str]) -> Sign:
    """A pattern without its looks around, and without what it may end in but need not: wherever it fits, this does."""
    kept: list[str] = []
    open_: list[bool] = []
    for token in _TOKENS.findall(re.sub(r"\A\(\?[a-z]+\)", "", pattern.pattern)):
        if token.startswith("("):
            open_.append(token in _LOOKS)
        if not any(open_) and token not in ("^", "$"):
            kept.append(token)
        if token == ")":
            open_.pop()
    text = "".join(kept)
    while (end := _END.search(text)) is not None:
        text = text[: end.start()] + "".join(each or "" for each in end.groups())
    return Sign(text.encode(), bool(pattern.flags & re.IGNORECASE))


class Sieve:
    """Finds the lines that have one of some signs. What it is made of is never written to disk: it may be secret."""

    def __init__(self, signs: Iterable[Sign]) -> None:
        patterns = [Pattern("", each.regex, _unread, "", caseless=each.caseless) for each in signs]
        self._matcher = matcher(patterns, cached=False)
        self._count = len(patterns)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Stretches of whole lines that each have a sign: first byte, and one past the last."""
        found: list[tuple[int, int]] = []
        begin = end = 0
        for stop, _ in self._matcher.hits(data):
            if stop > end:
                first, last = _line(data, stop)
                if found and first == end:
                    found[-1] = begin, last
                else:
                    begin = first
                    found.append((first, last))
                end = last
        return found

    def by_sign(self, data: bytes) -> Sequence[bytes]:
        """For each sign the lines that have it."""
        found: list[list[bytes]] = [[] for _ in range(self._count)]
        ends = [0] * self._count
        begin = end = 0
        for stop, index in self._matcher.hits(data):
            if stop > end:
                begin, end = _line(data, stop)
            if ends[index] != end:
                ends[index] = end
                found[index].append(data[begin:end])
        return [b"".join(lines) for lines in found]

    def hits(self, data: bytes) -> Sequence[tuple[int, int]]:
        """(end, number of the sign) of each."""
        return self._matcher.hits(data)


def _line(data: bytes, stop: int) -> tuple[int, int]:
    """The line in which a hit ends: its first byte, and one past its last. ``stop``: one past the hit."""
    begin = data.rfind(b"\n", 0, stop - 1) + 1
    end = data.find(b"\n", stop - 1) + 1
    return begin, end or len(data)


def _unread(line: object) -> None:
    """A sign is only looked for."""
