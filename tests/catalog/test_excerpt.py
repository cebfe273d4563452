"""The quoted part of a long line."""

from __future__ import annotations

import pytest

from trackside.catalog.excerpt import cut


@pytest.mark.parametrize(
    ("line", "length", "shown"),
    [
        ("a line that fits", 16, "a line that fits"),
        ("RuntimeError: the tensors must have equal sizes", 30, "RuntimeError: the tensors…"),
        ("cannot open /scratch/project/data/train/shard-00017.tar for reading", 40, "cannot open /scratch/project/data/train…"),
        ("cannot open the file /scratch/project/data/train.tar", 30, "cannot open the file…"),
        ("abcdefghijklmnopqrst", 10, "abcdefghi…"),
        ("x /very/long/path/to/the/file.txt yes", 14, "x /very/long/…"),
    ],
)  # fmt: skip
def test_a_line_is_cut_at_a_word_unless_that_leaves_out_much(line: str, length: int, shown: str) -> None:
    assert cut(line, length) == shown
    assert len(shown) <= length
