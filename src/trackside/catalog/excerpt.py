"""The part of a long line that is quoted: its beginning, and its end, where the reason often stands."""

from __future__ import annotations

import re

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
GAP = f" {ELLIPSIS} "
"""Stands for what was left out in the middle."""
MIN_PART_CHARS = 16
"""Characters of a word that are worth showing without the rest of it."""
_ADVICE = re.compile(
    r"https?://|documentation|for more information|[Ss]ee |[Pp]lease|fragmentation|GLHF|before reporting|[Ss]et the "
)
"""In the end of a line that says no more than where to read on."""


def excerpt(line: str, begin: int, end: int) -> str:
    """A line of at most ``begin`` + ``end`` characters as it is; of a longer one about as many at its beginning and at its
    end, or only the beginning if the end gives advice."""
    if len(line) <= begin + end:
        return line
    last_words = line[-end:].partition(" ")[2]
    if not last_words or _ADVICE.search(line[-2 * end :]):
        return cut(line, begin + end)
    return cut(line, begin).removesuffix(ELLIPSIS) + GAP + last_words


def cut(line: str, length: int) -> str:
    """The beginning of a line, at most ``length`` characters, cut at a word; inside one if much of it fits, such as a
    path, or if without it less than half would be left."""
    if len(line) <= length:
        return line
    beginning = line[: length - 1]
    words, _, part = beginning.rpartition(" ")
    if line[length - 1] != " " and len(part) < MIN_PART_CHARS and len(words) >= length // 2:
        beginning = words
    return beginning.rstrip() + ELLIPSIS


def below_heading(heading: str, text: str) -> str:
    """A line with the heading that stands some lines above it and belongs to it."""
    return f"{heading} {ELLIPSIS} {text}"
