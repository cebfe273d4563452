from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trackside.catalog.natural import natural_key, whole_number


@pytest.mark.parametrize(
    "texts",
    [
        ["2", "10", "x"],
        ["n", "n0", "n1", "n02", "n2", "n10", "n10-2", "n10-10", "node"],
        ["41", "41_2", "41_10", "42"],
        ["n9", "n" + "1" * 5000, "n" + "2" * 5000, "n" + "1" * 5001],
    ],
)
def test_numbers_in_names_sort_by_value(texts: list[str]) -> None:
    keys = [natural_key(text) for text in texts]
    assert all(before < after for before, after in pairwise(keys))


@given(st.lists(st.text("ab01٣²-", max_size=6), max_size=6))
def test_distinct_texts_have_distinct_keys(texts: list[str]) -> None:
    assert len({natural_key(text) for text in texts}) == len(set(texts))


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("007", 7), ("9" * 18, 10**18 - 1), ("9" * 19, None), ("", None), ("-1", None), ("²", None)],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    assert whole_number(text) == number
