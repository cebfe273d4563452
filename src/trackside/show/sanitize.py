"""Text of others, made inert: logs, labels and names may hold what a terminal or a page would obey.

What HTML would take for markup is not dealt with here: the page's template escapes it all.
"""

from __future__ import annotations

import re

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Characters that command, that are not seen, or that change the direction of writing; tabs and line ends stay."""


def shown(text: str) -> str:
    """The text as long as before, each such character replaced: for a terminal, whose lines are filled already."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


def visible(text: str) -> str:
    """The text with the name of each such character in its place."""
    return _UNSEEN.sub(_name, text)


def encodable(text: str) -> str:
    """Text that UTF-8 can hold: the name of a file may have bytes that it can't, which become question marks."""
    return text.encode("utf-8", "replace").decode()


def _name(found: re.Match[str]) -> str:
    name = "ESC" if found[0] == "\x1b" else f"U+{ord(found[0]):04X}"
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{name}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
