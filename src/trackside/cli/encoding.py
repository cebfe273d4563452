"""Output in a locale that cannot show every character: ASCII stand-ins instead of question marks."""

from __future__ import annotations

import codecs
import io
import sys

_STAND_INS = str.maketrans(
    {
        "\N{MIDDLE DOT}": "-",
        "\N{BULLET}": "-",
        "\N{EN DASH}": "-",
        "\N{EM DASH}": "-",
        "\N{RIGHTWARDS ARROW}": "->",
        "\N{HORIZONTAL ELLIPSIS}": "...",
        "\N{MULTIPLICATION SIGN}": "x",
        "\N{DEGREE SIGN}": " deg ",
        "\N{EURO SIGN}": "EUR",
        "\N{RIGHT SINGLE QUOTATION MARK}": "'",
        "\N{NO-BREAK SPACE}": " ",
    }
)
_HANDLER = "trackside.ascii"


def _with_stand_ins(error: UnicodeError) -> tuple[str, int]:
    """A codec error handler: the stand-ins of the characters that the encoding lacks, ``?`` for all others."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_STAND_INS)
    return text.encode("ascii", "replace").decode(), error.end


codecs.register_error(_HANDLER, _with_stand_ins)


def use_ascii_fallback() -> None:
    """Make standard output replace the characters that its encoding lacks instead of failing on them."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=_HANDLER)
