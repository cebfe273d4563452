"""The order in which names and numbers are shown: numbers within text by their size."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"([0-9]+)")
_MOST_DIGITS = 18
"""Digits of a number that is counted with; 63 bits hold as many."""

Key = tuple[tuple[int, str], ...]


@lru_cache(maxsize=1 << 16)
def natural(text: str) -> Key:
    """Sort key of text: n2 comes before n10. Numbers of any length are compared as digits, never worked out."""
    parts = [(0, part) for part in _NUMBER.split(text)]
    for place in range(1, len(parts), 2):
        digits = parts[place][1].lstrip("0")
        parts[place] = 1 + len(digits), digits
    return (*parts, (0, text))  # 7 and 007 are one number but not one name


def whole_number(text: str) -> int | None:
    """The number that text of up to 18 digits says; None where it says none."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None
