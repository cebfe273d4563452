"""Lines that a terminal or an editor broke at its width: finds the width, and joins the pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from trackside.logs.line import Line

MIN_COLUMNS, MAX_COLUMNS = 60, 250
"""Widths at which a text may be broken."""
BLOCK_BYTES, BYTES_BEFORE, BYTES_AFTER = 2 << 10, 3 << 10, 11 << 10
"""Bytes of a block, all of whose lines have one width, and around it, in which that width is looked for."""
MAX_PIECES = 12
"""Pieces of one line that are joined."""
TERMINALS = frozenset((79, 80, 99, 100, 119, 120, 131, 132, 159, 160))
"""Usual widths of terminals: text without a broken frame counts as broken only there."""
MAX_SHORT = 8
"""Columns that a frame may lack when it is broken at a word."""
_NEW_LINE = re.compile(r"\s{2}|Traceback \(most recent|$")
"""The beginning of a line that does not continue the one above: Python indents frames and source code."""
_SAME_WIDTH = re.compile(r"[│|╭╰├┃┏┗+]|(.)\1{19}|\s+[~^\s]*$")
"""Boxes, rulers and the marks below source code: they are as wide as a neighbor for another reason."""
_OPEN_FRAME = re.compile(r'  File "[^\n]*(?<!>)$')
_FRAME = re.compile(r'  File "[^"]+", line \d+, in \S+$')
_DIGITS = re.compile(r"\d+")
MIN_FULL_ROWS = 3
"""Different rows of exactly the width that a wholly broken text has."""
MAX_REST_BYTES = 1 << 20
"""Bytes without a line end after which they are passed on."""
MAX_JOINED = 200
"""Rows of one line of a wholly broken text."""
_BEGINNING = re.compile(
    r"\[?\d{2,4}[-/]\d\d[-/ ]|\[?\d\d:\d\d:\d\d\b|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d|\[rank ?\d|\[?(?:INFO|WARN|ERROR|DEBUG)|"
    r"(?:slurmstepd|srun|wandb): |\S{1,60} NCCL |[IWEF]\d{4} |\{['\"]|:::MLL"
)
"""The beginning of a log's line: such a row does not continue the one above."""
_LAST_LINE = re.compile(r"(?:[a-z_]\w{0,40}\.){0,8}[A-Z]\w{1,60}(?::|$)")


def broken_width(line: Line) -> int | None:
    """The width in columns at which the text around a line is broken; None if it does not look broken.

    It looks broken if several different lines have exactly the length of the longest one, and one of them is part of a frame
    or that length is a terminal's.
    """
    if line.label:
        return None
    block = line.offset // BLOCK_BYTES
    notes = line.notes("wrapping")
    if notes.get("block") != block:
        start = line.start - line.offset + block * BLOCK_BYTES
        text = line.buffer[max(0, start - BYTES_BEFORE) : start + BLOCK_BYTES + BYTES_AFTER]
        rows = {line.context.decode_line(row.rstrip(b"\r")) for row in text.split(b"\n")[1:-1]} | {line.full}
        notes.update(block=block, width=_width_of_rows(rows))
    width: int | None = notes["width"]
    return width


def _width_of_rows(rows: Iterable[str]) -> int | None:
    """The width at which the longest of these rows are broken."""
    rows = {row for row in rows if _SAME_WIDTH.match(row) is None}
    width = max(map(len, rows), default=0)
    full = [row for row in rows if len(row) == width]
    if not MIN_COLUMNS <= width <= MAX_COLUMNS or len({_DIGITS.sub("0", row) for row in full}) < 2:
        return None
    broken_frames = (len(row) >= width - MAX_SHORT and _is_open_frame(row) for row in rows)
    return width if width in TERMINALS or any(broken_frames) else None


def _is_open_frame(row: str) -> bool:
    """Whether a row is the beginning of a traceback's frame, but not all of it."""
    return _OPEN_FRAME.match(row) is not None and _FRAME.match(row) is None


def continues(piece: str, below: str, width: int) -> bool:
    """Whether a line that was broken at this width goes on in the line below."""
    if _NEW_LINE.match(below) or _SAME_WIDTH.match(piece) or (piece[:1] == " " and _LAST_LINE.match(below)):
        return False
    if len(piece) == width:
        return piece[:8] != below[:8]
    return len(piece) >= width - MAX_SHORT and _is_open_frame(piece)


def join_pieces(line: Line) -> str:
    """The text of a line, joined with the pieces below it that a terminal broke off."""
    width = broken_width(line)
    if width is None:
        return line.text
    pieces = [line.full]
    for below in line.following(MAX_PIECES):
        if not continues(pieces[-1], below.full, width):
            break
        pieces.append(below.full)
    return "".join(pieces)


def width_of(head: bytes) -> int | None:
    """The width in columns at which a terminal broke all of a text; None if it did not.

    No row is longer, several different ones have exactly that length (one, if the next one closes its bracket), and few
    are a little shorter, as those of a text that was broken between words are.
    """
    rows = [row.rstrip("\r") for row in head.decode("utf-8", "replace").split("\n")[:-1]]
    if any("\r" in row for row in rows):
        return None
    pairs = list(pairwise(rows))
    rows = [row for row in rows if _SAME_WIDTH.match(row) is None]
    width = max(map(len, rows), default=0)
    if width not in TERMINALS:
        return None
    full = {_DIGITS.sub("0", row) for row in rows if len(row) == width}
    almost_full = {_DIGITS.sub("0", row) for row in rows if width - MAX_SHORT <= len(row) < width}
    has_cut_bracket = any(len(row) == width and _is_open(row) and not _is_open(row + below) for row, below in pairs)
    return width if len(full) >= max(1 if has_cut_bracket else MIN_FULL_ROWS, len(almost_full)) else None


def _is_open(text: str) -> bool:
    """Whether a bracket, a quotation or a row of asterisks in the text is not closed."""
    return (
        any(text.count(opened) > text.count(closed) for opened, closed in ("()", "[]", "{}"))
        or text.count('"') % 2 > 0
        or text.count("***") % 2 > 0
    )


def rejoin(chunks: Iterable[bytes], width: int) -> Iterator[bytes]:
    """Join the rows of a text that was broken at this width.

    The line ends of the rows that are joined follow the joined line, so that lines keep their numbers and offsets.
    """
    rows: list[bytes] = []
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        joined_lines = []
        for row in lines:
            if rows and (len(rows) >= MAX_JOINED or not _row_continues(rows[-1], row, width)):
                joined_lines.append(_join_rows(rows))
                rows = []
            rows.append(row)
        if len(rest) > MAX_REST_BYTES:  # no row of a broken text
            joined_lines += [*([_join_rows(rows)] if rows else []), rest]
            rows, rest = [], b""
        yield b"".join(joined_lines)
    if rows and rest and _row_continues(rows[-1], rest, width):
        yield b"".join(row.rstrip(b"\r") for row in rows) + rest + b"\n" * len(rows)
    else:
        yield (_join_rows(rows) if rows else b"") + rest


def _join_rows(rows: list[bytes]) -> bytes:
    """One line of these rows, followed by the line ends of all of them."""
    if len(rows) == 1:
        return rows[0] + b"\n"
    return b"".join(row.rstrip(b"\r") for row in rows) + b"".join(
        b"\r\n" if row[-1:] == b"\r" else b"\n" for row in rows
    )


def _row_continues(row: bytes, below: bytes, width: int) -> bool:
    """Whether a row of exactly this width goes on in the row below."""
    if len(row) < width:
        return False
    text, next_text = (part.decode("utf-8", "replace").rstrip("\r") for part in (row, below))
    if len(text) != width or len(next_text) > width or _BEGINNING.match(next_text):
        return False
    return continues(text, next_text, width)
