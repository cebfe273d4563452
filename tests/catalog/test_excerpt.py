"""How a long line is cut."""

from __future__ import annotations

import pytest

from trackside.catalog.excerpt import cut


@pytest.mark.parametrize(
    ("line", "length", "beginning"),
    [
        ("a short line", 12, "a short line"),
        ("the reason is here", 14, "the reason is\u2026"),  # the last word fits
        ("the reason is here", 16, "the reason is\u2026"),
        ("abcdefghijklmnopqrst", 10, "abcdefghi\u2026"),  # no word ends before the cut
        ("open /very/long/path/to/the/file/that/is/here.txt now", 14, "open /very/lo\u2026"),  # of a long word a part
        ("open the file at /very/long/path/to/the/file now", 24, "open the file at\u2026"),
        ("open the file at /very/long/path/to/the/file now", 36, "open the file at /very/long/path/to\u2026"),
    ],
)
def test_a_line_is_cut_at_a_word_or_inside_a_long_one(line: str, length: int, beginning: str) -> None:
    assert cut(line, length) == beginning
    assert len(beginning) <= length
