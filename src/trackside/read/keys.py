"""Looks up series by their raw bytes, for many lines at once.

A lookup costs a hash of the key. Scrapes repeat their keys in the same order, and exports repeat one key many times, so
the expected keys are compared first, which takes half the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

_MIN_LINES, _MAX_LINES = 32, 4096
"""Bounds on the number of lines compared together. The number grows after each match and shrinks after a mismatch."""


class Keys:
    """Series numbers by key, in insertion order."""

    def __init__(self) -> None:
        self._indices: dict[bytes, int] = {}
        self._order: list[bytes] = []
        self._numbers = array("q")
        self._lengths = array("q")

    def __len__(self) -> int:
        return len(self._order)

    def get(self, key: bytes) -> int | None:
        """The number of a key; None for a new key."""
        index = self._indices.get(key)
        return None if index is None else self._numbers[index]

    def add(self, key: bytes, number: int) -> None:
        """Add a new key with its number."""
        self._indices[key] = len(self._order)
        self._order.append(key)
        self._numbers.append(number)
        self._lengths.append(len(key))

    def numbers(
        self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], learn: Callable[[int], int]
    ) -> NDArray[np.intp]:
        """The numbers of the keys in ``data[start:end]``. For an unknown key, ``learn`` is called with its index in
        ``starts`` and returns its number; it may add the key."""
        lengths, known_lengths = ends - starts, np.array(self._lengths)
        numbers = np.empty(len(starts), dtype=np.intp)
        begins, stops = starts.tolist(), ends.tolist()
        position, width = 0, _MIN_LINES
        while position < len(begins):
            if len(known_lengths) < len(self._lengths):
                known_lengths = np.array(self._lengths)
            batch = begins[position : position + width]
            expected = self._expected_keys(data, batch, stops[position])
            if (
                expected is not None
                and (known_lengths[expected[0]] == lengths[position : position + width]).all()
                and all(map(data.startswith, expected[1], batch))
            ):
                numbers[position : position + width] = np.array(self._numbers)[expected[0]]
                position, width = position + width, min(2 * width, _MAX_LINES)
            elif width > _MIN_LINES:
                width = max(width // 4, _MIN_LINES)
            else:
                for index in range(position, position + len(batch)):
                    number = self.get(data[begins[index] : stops[index]])
                    numbers[index] = learn(index) if number is None else number
                position += len(batch)
        return numbers

    def _expected_keys(
        self, data: bytes, starts: list[int], end: int
    ) -> tuple[NDArray[np.intp], Sequence[bytes] | repeat[bytes]] | None:
        """The keys expected from the first one on: the same key repeated, or the keys added after it; None if the
        second line matches neither."""
        first = self._indices.get(data[starts[0] : end])
        if first is None:
            return None
        ordered_keys, count = self._order, len(starts)
        if count < 2 or data.startswith(ordered_keys[first], starts[1]):
            return np.full(count, first, dtype=np.intp), repeat(ordered_keys[first])
        if not data.startswith(ordered_keys[(first + 1) % len(ordered_keys)], starts[1]):
            return None
        keys = ordered_keys[first : first + count]
        while len(keys) < count:
            keys += ordered_keys[: count - len(keys)]
        return (first + np.arange(count)) % len(ordered_keys), keys
