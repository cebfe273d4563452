"""Converts UTF-16 and UTF-32 text to UTF-8 while it is read."""

from __future__ import annotations

import codecs
import io

from trackside.read.pieces import PieceStream

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16 because it starts with UTF-16's mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)


def encoding_of(head: bytes) -> str | None:
    """The encoding, from a byte-order mark or from every other byte being NUL; None for plain bytes."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    sample = head[: len(head) & ~1][:4096]
    if len(sample) >= 32:
        even, odd = sample[::2], sample[1::2]
        if odd.count(0) >= 0.9 * len(odd) and even.count(0) <= 0.02 * len(even):
            return "utf-16-le"
        if even.count(0) >= 0.9 * len(even) and odd.count(0) <= 0.02 * len(odd):
            return "utf-16-be"
    return None


class Utf8Stream(PieceStream):
    """A stream of another encoding, as UTF-8. Bytes that cannot be decoded become U+FFFD."""

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
