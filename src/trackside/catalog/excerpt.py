"""The part of a long line that is quoted: its beginning, and its end, where the reason often stands."""

from __future__ import annotations

import re

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
GAP = f" {ELLIPSIS} "
"""Stands for what was left out in the middle."""
MAX_WORD_CHARS = 16
"""Characters up to which a word is left out rather than cut."""
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
    """The beginning of a line, cut at a word; inside a long one, such as a path."""
    if len(line) <= length:
        return line
    words, _, last = line[: length - 1].rpartition(" ")
    return (words if len(last) < MAX_WORD_CHARS else f"{words} {last}".strip()) + ELLIPSIS


def below_heading(heading: str, text: str) -> str:
    """A line with the heading that stands some lines above it and belongs to it."""
    return f"{heading} {ELLIPSIS} {text}"
