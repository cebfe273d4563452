"""Text that is not UTF-8 at its beginning's word: UTF-16 and UTF-32 become UTF-8 as they are read."""

from __future__ import annotations

import codecs
import io

from trackside.read.pieces import Pieces

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


def encoding_of(head: bytes) -> str | None:
    """The encoding that a byte-order mark, or every other byte being NUL, gives away; None for plain bytes."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    look = head[: len(head) & ~1][:4096]
    if len(look) >= 32:
        even, odd = look[::2], look[1::2]
        if odd.count(0) >= 0.9 * len(odd) and even.count(0) <= 0.02 * len(even):
            return "utf-16-le"
        if even.count(0) >= 0.9 * len(even) and odd.count(0) <= 0.02 * len(odd):
            return "utf-16-be"
    return None


class Transcoded(Pieces):
    """A stream of another encoding as UTF-8; what can't be decoded becomes U+FFFD."""

    def __init__(self, source: io.BufferedReader, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._ended = False

    def next_piece(self, limit: int) -> bytes:
        text = ""
        while not text and not self._ended:
            data = self._source.read(64 << 10)
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
        return text.encode("utf-8", "replace")
