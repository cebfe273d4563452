"""Verdicts of Trackside in a job's output, as an epilog or a job script prints them: they are no evidence.

They quote errors of the job, or of another one. Their bytes become blanks before the log is read, so that no parser, no
last line and no time comes from them; offsets and line numbers stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

ByteSpan = tuple[int, int]
"""(first byte, byte after the last)."""
_DOT = rb"(?:\xc2\xb7|-)"
"""The separator of our lines; a hyphen where the locale has no dot."""
OWNER_LINE = re.compile(
    rb"owner: [^\n]{2,60} %(dot)s (?:U0 unknown|[A-H]\d [a-z-]{3,40}[^\n]{0,60} %(dot)s certainty: [a-z ]{4,30})"
    % {b"dot": _DOT}
)
"""The second line of a verdict as text or Markdown."""
_SHORT = re.compile(rb"\. Owner: [^\r\n.]{2,60}\. (?:U0 unknown\.|[A-H]\d [a-z-]{3,40}[^\r\n.]{0,60}, certainty: )")
"""In a verdict in one paragraph, which is one line."""
JSON_BEGIN = re.compile(rb'\{\s{0,8}"schema": ?"trackside\.verdict/\d')
_JSON_END = re.compile(rb"^\}", re.MULTILINE)
_LAST_LINE = re.compile(
    rb"trackside\s{1,3}explain\s{1,3}\w{1,40}[^\n]*|^[^\n]{0,80}INPUTS[ \r]*\n(?:[^\n]{0,80}  (?: |%s )[^\n]*(?:\n|\Z))*"
    % _DOT,
    re.MULTILINE,
)
"""How a verdict as text ends: where to read more; with ``--verbose``, the list of inputs."""
MAX_HEADLINE_LINES = 4
PIPED_WIDTH = 120
"""Columns of a verdict that is written to a file."""
MAX_BYTES = 48 << 10
"""Longest verdict as text; less than what is buffered before and after a line."""
_SIGNS = (b"certainty: ", b"U0 unknown", b"trackside.verdict/")
_VISIBLE = re.compile(rb"\S")


def without_verdicts(buffer: bytes) -> bytes:
    """The bytes with Trackside's own verdicts replaced by blanks."""
    if not any(sign in buffer for sign in _SIGNS):
        return buffer
    spans = [*_texts(buffer), *_paragraphs(buffer), *_documents(buffer)]
    if not spans:
        return buffer
    blanked = bytearray(buffer)
    for begin, end in spans:
        blanked[begin:end] = _VISIBLE.sub(b" ", blanked[begin:end])
    return bytes(blanked)


def _texts(buffer: bytes) -> Iterator[ByteSpan]:
    """From the headline, above the line with the owner, to the last line."""
    owner_lines = [match.span() for match in OWNER_LINE.finditer(buffer)]
    for (begin, end), (next_begin, _) in pairwise([*owner_lines, (len(buffer), len(buffer))]):
        last_line = _LAST_LINE.search(buffer, end, min(end + MAX_BYTES, next_begin))
        end = end if last_line is None else last_line.end()
        owner_line = buffer.rfind(b"\n", 0, begin) + 1
        width = max(len(line.decode("utf-8", "replace")) for line in buffer[owner_line:end].split(b"\n"))
        yield _headline(buffer, owner_line, width), end


def _headline(buffer: bytes, owner_line: int, width: int) -> int:
    """Where the headline begins: the line above the owner's, or one further up that begins with a capital letter, if
    all lines from there on were wrapped. ``width``: of the verdict's longest line, in characters."""
    begin = headline = _line_above(buffer, owner_line)
    for _ in range(MAX_HEADLINE_LINES - 1):
        above = _line_above(buffer, begin)
        line = buffer[above : max(above, begin - 1)].decode("utf-8", "replace")
        first_word = buffer[begin : begin + 200].decode("utf-8", "replace").partition(" ")[0]
        if not begin or not width - len(first_word) <= len(line) <= max(width, PIPED_WIDTH):
            break
        begin = above
        if line[:1].isupper():
            headline = begin
    return headline


def _line_above(buffer: bytes, line_begin: int) -> int:
    return buffer.rfind(b"\n", 0, max(0, line_begin - 1)) + 1


def _paragraphs(buffer: bytes) -> Iterator[ByteSpan]:
    for match in _SHORT.finditer(buffer):
        yield buffer.rfind(b"\n", 0, match.start()) + 1, _line_end(buffer, match.end())


def _documents(buffer: bytes) -> Iterator[ByteSpan]:
    """From the first brace to the last one, or to the end of the line; of a cut document, the first line."""
    begins = [match.start() for match in JSON_BEGIN.finditer(buffer)]
    for begin, next_begin in pairwise([*begins, len(buffer)]):
        line_end = _line_end(buffer, begin)
        is_line = buffer.find(b'"primary"', begin, line_end) >= 0
        last_brace = None if is_line else _JSON_END.search(buffer, begin, next_begin)
        yield begin, line_end if last_brace is None else last_brace.end()


def _line_end(buffer: bytes, position: int) -> int:
    end = buffer.find(b"\n", position)
    return len(buffer) if end < 0 else end
