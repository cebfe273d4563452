"""Makes untrusted text safe to print: logs, labels and names may contain control characters.

HTML markup is not handled here: the page's template escapes it.
"""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Control, invisible and text-direction characters. Tabs and line ends are kept."""


def replace_unsafe(text: str) -> str:
    """The text with each unsafe character replaced by U+FFFD. The length stays the same, so wrapped lines stay
    aligned."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)


def spell_unsafe(text: str) -> str:
    """The text with each unsafe character replaced by its name, such as ``⟨U+202E⟩``."""
    return _UNSAFE.sub(_name, text)


def make_encodable(text: str) -> str:
    """Text that can be encoded as UTF-8: undecodable bytes of a file name become question marks."""
    return text.encode("utf-8", "replace").decode()


def _name(match: re.Match[str]) -> str:
    name = "ESC" if match[0] == "\x1b" else f"U+{ord(match[0]):04X}"
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{name}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"
