"""Text of others, made inert: logs, labels and names may hold what a terminal or a page would obey."""

from __future__ import annotations

import re

_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Control characters but line ends and tabs, and what changes the direction of writing."""


def shown(text: str) -> str:
    """Neither commands a terminal nor turns round what stands beside it."""
    return _COMMANDS.sub("\N{REPLACEMENT CHARACTER}", text)
