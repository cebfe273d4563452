"""Natural sort order: numbers within text are compared by value."""

from __future__ import annotations

import re
from functools import lru_cache

_NUMBER = re.compile(r"([0-9]+)")
MAX_DIGITS = 18
"""Maximum number of digits of a parsed number; fits in 63 bits."""

NaturalKey = tuple[tuple[int, str], ...]


@lru_cache(maxsize=1 << 16)
def natural_key(text: str) -> NaturalKey:
    """Sort key of text: n2 comes before n10. Numbers of any length are compared as digits, never converted."""
    parts = [(0, part) for part in _NUMBER.split(text)]
    for index in range(1, len(parts), 2):
        digits = parts[index][1].lstrip("0")
        parts[index] = 1 + len(digits), digits
    return (*parts, (0, text))  # 7 and 007 are equal numbers but different names


def whole_number(text: str) -> int | None:
    """The number in text of up to 18 digits; None for other text."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None
