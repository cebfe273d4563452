"""Samples put in order of series and time, faster than by sorting: they come nearly so.

A segment holds the samples of one series together and in order of time: there it is enough to order such stretches.
Scrapes hold one sample of every series after the other: they are sorted by series in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_DIGIT = 1 << 16
"""numpy sorts 16-bit numbers stably in linear time."""
_ROUNDS = 3
"""How often stretches that overlap are cut; what overlaps still is sorted sample by sample."""
PIECE = 1 << 18
"""Samples that are put together at once, unless one group has more: what is made of them stays in the cache, and in
memory that was used before, where new memory costs more than the work itself."""
Ids = NDArray[np.int32]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(slots=True, eq=False)
class Arranged:
    """Samples by group, time and value, and where each was before (None: they were in order)."""

    groups: Ids
    times: Times
    values: Values
    order: Places | None = None

    def _taken(self, order: Places) -> Arranged:
        before = order if self.order is None else self.order[order]
        return Arranged(self.groups[order], self.times[order], self.values[order], before)


@dataclass(slots=True, eq=False)
class Stretches:
    """Samples as they lie; the ones from each of ``starts`` to its end are of one group, mostly in order of time."""

    times: Times
    values: Values
    starts: Places
    ends: Places
    groups: Ids

    def pieces(self) -> Iterator[Arranged]:
        """All samples in order, some groups at a time."""
        starts, ends, groups = self._ordered()
        lengths = ends - starts
        before = np.cumsum(lengths) - lengths
        first = np.flatnonzero(np.diff(groups, prepend=-1))  # a group begins
        new = np.diff(before[first] // PIECE, prepend=-1) > 0
        bounds = np.append(first[new], len(groups)).tolist()
        for begin, stop in pairwise(bounds):
            spans = [slice(*span) for span in zip(starts[begin:stop].tolist(), ends[begin:stop].tolist(), strict=True)]
            yield arranged(
                np.repeat(groups[begin:stop], lengths[begin:stop]),
                np.concatenate([self.times[span] for span in spans]),
                np.concatenate([self.values[span] for span in spans]),
            )

    def _ordered(self) -> tuple[Places, Places, Ids]:
        """The stretches by group and beginning, cut where one goes on beyond the beginning of the next of its group:
        a GPU without a job, before and after one, is a series of its own."""
        starts, ends, groups = self.starts, self.ends, self.groups
        for _ in range(_ROUNDS):
            order = np.lexsort((self.times[starts], groups))
            starts, ends, groups = starts[order], ends[order], groups[order]
            late = np.flatnonzero(
                (groups[1:] == groups[:-1]) & (self.times[ends[:-1] - 1] > self.times[starts[1:]])
            ).tolist()
            if not late:
                break
            cuts = np.array([self._cut(int(starts[at]), int(ends[at]), int(starts[at + 1])) for at in late])
            starts, groups = np.append(starts, cuts), np.append(groups, groups[late])
            ends = np.append(ends, ends[late])
            ends[late] = cuts
        order = np.lexsort((self.times[starts], groups))
        return starts[order], ends[order], groups[order]

    def _cut(self, start: int, end: int, following: int) -> int:
        """Where a stretch goes beyond the beginning of another; of one out of order, anywhere within."""
        place = start + int(np.searchsorted(self.times[start:end], self.times[following], side="right"))
        return min(max(place, start + 1), end - 1)


def arranged(groups: Ids, times: Times, values: Values) -> Arranged:
    """Put samples in order. ``groups`` are numbers from 0 on."""
    found = Arranged(groups, times, values)
    order = _by_group(groups)
    if order is not None:
        found = found._taken(order)
    groups, times, values = found.groups, found.times, found.values
    wrong = (groups[1:] == groups[:-1]) & (
        (times[1:] < times[:-1]) | ((times[1:] == times[:-1]) & (values[1:] < values[:-1]))
    )
    if not wrong.any():
        return found
    return found._taken(_mending(found, np.unique(groups[1:][wrong])))


def _by_group(groups: Ids) -> Places | None:
    """What sorts by group and keeps the order within; None where they are sorted."""
    if not (groups[1:] < groups[:-1]).any():
        return None
    low = np.argsort((groups % _DIGIT).astype(np.uint16), kind="stable")
    if int(groups.max()) < _DIGIT:
        return low
    high = (groups // _DIGIT).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]


def _mending(found: Arranged, bad: Ids) -> Places:
    """What sorts those groups whose samples came out of order, and leaves the others."""
    marked = np.zeros(len(found.groups) + 1, dtype=np.int8)
    marked[np.searchsorted(found.groups, bad, side="left")] = 1
    marked[np.searchsorted(found.groups, bad, side="right")] -= 1
    places = np.flatnonzero(np.cumsum(marked[:-1], dtype=np.int8))
    sort = np.lexsort((found.values[places], found.times[places], found.groups[places]))
    order = np.arange(len(found.groups), dtype=np.intp)
    order[places] = places[sort]
    return order
