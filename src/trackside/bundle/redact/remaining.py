"""The second net of redaction: long words in what was written that look random, as secrets of unknown forms do.

They are listed for whoever sends the bundle, not replaced: most are identifiers that a reader needs.
"""

from __future__ import annotations

import re
from itertools import pairwise

MAX_WORDS = 20
"""Words that are listed."""
MIN_PART_CHARS = 16
"""Letters and digits in a row, at least."""
KINDS = {"lower": range(0x61, 0x7B), "upper": range(0x41, 0x5B), "digit": range(0x30, 0x3A)}
MIN_CHANGES = 0.42
"""Share of the places in a word at which its kind of character changes (lower case, upper case, digit): in random text
it is two thirds, in names of classes a fifth."""
_WORD = re.compile(rb"(?<![A-Za-z0-9+/_.-])[A-Za-z0-9][A-Za-z0-9+/_-]{19,199}(?![A-Za-z0-9+/_-]|\.\w)")
_NAMED_HEX = re.compile(
    rb"(?i)(?:key|token|secret|auth|credential|passw|signature)\w{0,20}[^\w\n]{1,20}([0-9a-f]{24,128})(?![0-9a-z])"
)
"""Hexadecimal digits are usually the digest of a file or commit, unless a word like these precedes them."""


class RemainingWords:
    """Collects such words from the bytes of a bundle."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def take(self, data: bytes) -> None:
        """Look at a piece of whole lines."""
        candidates = [match[0] for match in _WORD.finditer(data) if looks_random(match[0])]
        for word in dict.fromkeys(candidates + _NAMED_HEX.findall(data)):
            text = word.decode("ascii")
            if len(self.words) < MAX_WORDS and text not in self.words:
                self.words.append(text)


def looks_random(word: bytes) -> bool:
    """Whether the longest part of a word mixes lower case, upper case and digits as random text does."""
    kinds = [_kind(letter) for letter in max(re.split(rb"[+/_-]", word), key=len)]
    if len(kinds) < MIN_PART_CHARS or len(set(kinds)) < len(KINDS):
        return False
    return sum(before != after for before, after in pairwise(kinds)) >= MIN_CHANGES * len(kinds)


def _kind(letter: int) -> str:
    return next(kind for kind, letters in KINDS.items() if letter in letters)
