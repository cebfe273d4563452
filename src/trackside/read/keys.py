"""Series told by their bytes, for many lines at once.

Looking up a key costs its hash, and scrapes repeat their keys in one order, as exports repeat one key for long: so the
keys that may be expected are compared first, which takes half the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

_FEW, _MANY = 32, 4096
"""Lines whose keys are expected together: more with each time that all were as expected, less where one was not."""


class Keys:
    """Numbers by keys, in the order in which they were added."""

    def __init__(self) -> None:
        self._places: dict[bytes, int] = {}
        self._order: list[bytes] = []
        self._numbers = array("q")
        self._lengths = array("q")

    def __len__(self) -> int:
        return len(self._order)

    def get(self, key: bytes) -> int | None:
        """The number of a key, None for a new one."""
        place = self._places.get(key)
        return None if place is None else self._numbers[place]

    def add(self, key: bytes, number: int) -> None:
        """Give a new key its number."""
        self._places[key] = len(self._order)
        self._order.append(key)
        self._numbers.append(number)
        self._lengths.append(len(key))

    def numbers(
        self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], learn: Callable[[int], int]
    ) -> NDArray[np.intp]:
        """The numbers of the keys that stand in ``data[start:end]``. For a key that was never added, ``learn`` is asked
        with its place among these; it may add it."""
        lengths, known = ends - starts, np.array(self._lengths)
        found = np.empty(len(starts), dtype=np.intp)
        begins, stops = starts.tolist(), ends.tolist()
        at, width = 0, _FEW
        while at < len(begins):
            if len(known) < len(self._lengths):
                known = np.array(self._lengths)
            some = begins[at : at + width]
            expected = self._expected(data, some, stops[at])
            if (
                expected is not None
                and (known[expected[0]] == lengths[at : at + width]).all()
                and all(map(data.startswith, expected[1], some))
            ):
                found[at : at + width] = np.array(self._numbers)[expected[0]]
                at, width = at + width, min(2 * width, _MANY)
            elif width > _FEW:
                width = max(width // 4, _FEW)
            else:
                for place in range(at, at + len(some)):
                    number = self.get(data[begins[place] : stops[place]])
                    found[place] = learn(place) if number is None else number
                at += len(some)
        return found

    def _expected(
        self, data: bytes, starts: list[int], end: int
    ) -> tuple[NDArray[np.intp], Sequence[bytes] | repeat[bytes]] | None:
        """Which keys may stand from the first on: itself again and again, or those that were added after it."""
        first = self._places.get(data[starts[0] : end])
        if first is None:
            return None
        order, count = self._order, len(starts)
        if count < 2 or data.startswith(order[first], starts[1]):
            return np.full(count, first, dtype=np.intp), repeat(order[first])
        if not data.startswith(order[(first + 1) % len(order)], starts[1]):
            return None
        keys = order[first : first + count]
        while len(keys) < count:
            keys += order[: count - len(keys)]
        return (first + np.arange(count)) % len(order), keys
