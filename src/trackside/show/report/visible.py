"""Text of others on a page: what would command a terminal, or turn round what stands beside it, is shown instead.

What HTML would take for markup is not dealt with here: the template escapes it all.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

_UNSEEN = (
    *(code for code in range(0x20) if code not in (0x09, 0x0A)), *range(0x7F, 0xA0), 0xAD, 0x061C, 0x180E,
    *range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), *range(0xD800, 0xE000), 0xFEFF,
    *range(0xFFF9, 0xFFFC), *range(0xE0000, 0xE0080),
)  # fmt: skip
"""Characters that command, that are not seen, or that change the direction of writing; tabs and line ends stay."""


def _named(code: int) -> str:
    name = "ESC" if code == 0x1B else f"U+{code:04X}"
    return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{name}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


_SHOWN = {code: _named(code) for code in _UNSEEN}
_MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_ESCAPE = re.compile(r"\\(?:u00([01][0-9a-f])|[\s\S])")


def visible(text: str) -> str:
    """The text with every character to be seen."""
    return text.translate(_SHOWN)


def data(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element, and its texts are visible."""
    text = msgspec.json.encode(value).decode()
    text = _ESCAPE.sub(_unescaped, text)
    return text.translate({**_SHOWN, **_MARKUP})


def _unescaped(escape: re.Match[str]) -> str:
    """A control character, which JSON can only hold as an escape, shown; any other escape as it is."""
    code = escape[1]
    return escape[0] if code is None else _named(int(code, 16))
