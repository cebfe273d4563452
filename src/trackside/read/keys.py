"""Series told by their bytes, for many lines at once.

Looking up a key costs its hash, and scrapes repeat their keys in one order, as exports repeat one key for long: so the
keys that may be expected are compared first, which takes half the time.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

NEW = -3
"""A key that was never added."""
_FEW, _MANY = 64, 4096
"""Lines whose keys are expected together: more with each time that all were as expected."""


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

    def numbers(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.intp]:
        """The numbers of the keys that stand in ``data[start:end]``; NEW where one was never added."""
        if not self._order:
            return np.full(len(starts), NEW, dtype=np.intp)
        lengths, known = ends - starts, np.array(self._lengths)
        places = np.empty(len(starts), dtype=np.intp)
        begins, stops, get = starts.tolist(), ends.tolist(), self._places.get
        at, width = 0, _FEW
        while at < len(begins):
            some = begins[at : at + width]
            expected = self._expected(data, some, stops[at])
            if (
                expected is not None
                and (known[expected[0]] == lengths[at : at + width]).all()
                and all(map(data.startswith, expected[1], some))
            ):
                places[at : at + width] = expected[0]
                at, width = at + width, min(2 * width, _MANY)
            else:
                bounds = zip(some, stops[at : at + width], strict=True)
                places[at : at + width] = [get(data[start:end], -1) for start, end in bounds]
                at, width = at + width, max(width // 2, _FEW)
        return np.where(places < 0, NEW, np.array(self._numbers)[places])

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
