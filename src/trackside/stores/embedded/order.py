"""Sorts samples by series and time, faster than a general sort because they arrive nearly sorted.

A segment holds the samples of one series together and in time order, so only such stretches have to be put in order.
Scrapes hold one sample of each series in turn; these are sorted by series in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_RADIX = 1 << 16
"""numpy sorts 16-bit numbers stably in linear time."""
_MAX_CUT_ROUNDS = 3
"""How often overlapping stretches are cut; those that still overlap are sorted sample by sample."""
PIECE_SAMPLES = 1 << 18
"""Samples that are put together at once, unless one group has more. A piece fits into the cache, and it reuses memory,
where fresh memory would cost more than the work itself."""
Ids = NDArray[np.int32]
Times = NDArray[np.int64]
Values = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(slots=True, eq=False)
class SortedSamples:
    """Samples by group, time and value, and the index each had before (None: the order is unchanged)."""

    groups: Ids
    times: Times
    values: Values
    order: Indices | None = None

    def _reorder(self, order: Indices) -> SortedSamples:
        before = order if self.order is None else self.order[order]
        return SortedSamples(self.groups[order], self.times[order], self.values[order], before)


@dataclass(slots=True, eq=False)
class StoredSamples:
    """Samples as stored; those from each of ``starts`` to its end belong to one group and are mostly in time order."""

    times: Times
    values: Values
    starts: Indices
    ends: Indices
    groups: Ids

    def pieces(self) -> Iterator[SortedSamples]:
        """All samples in order, some groups at a time."""
        starts, ends, groups = self._sorted_stretches()
        lengths = ends - starts
        before = np.cumsum(lengths) - lengths
        first = np.flatnonzero(np.diff(groups, prepend=-1))  # first stretch of each group
        new = np.diff(before[first] // PIECE_SAMPLES, prepend=-1) > 0
        bounds = np.append(first[new], len(groups)).tolist()
        for begin, stop in pairwise(bounds):
            spans = [slice(*span) for span in zip(starts[begin:stop].tolist(), ends[begin:stop].tolist(), strict=True)]
            yield sort_samples(
                np.repeat(groups[begin:stop], lengths[begin:stop]),
                np.concatenate([self.times[span] for span in spans]),
                np.concatenate([self.values[span] for span in spans]),
            )

    def _sorted_stretches(self) -> tuple[Indices, Indices, Ids]:
        """The stretches by group and start time, cut where one overlaps the start of the next in its group. Example:
        the same GPU without a job, before and after one, is a separate series."""
        starts, ends, groups = self.starts, self.ends, self.groups
        for _ in range(_MAX_CUT_ROUNDS):
            order = np.lexsort((self.times[starts], groups))
            starts, ends, groups = starts[order], ends[order], groups[order]
            overlapping = np.flatnonzero(
                (groups[1:] == groups[:-1]) & (self.times[ends[:-1] - 1] > self.times[starts[1:]])
            ).tolist()
            if not overlapping:
                break
            cuts = np.array(
                [self._cut(int(starts[index]), int(ends[index]), int(starts[index + 1])) for index in overlapping]
            )
            starts, groups = np.append(starts, cuts), np.append(groups, groups[overlapping])
            ends = np.append(ends, ends[overlapping])
            ends[overlapping] = cuts
        order = np.lexsort((self.times[starts], groups))
        return starts[order], ends[order], groups[order]

    def _cut(self, start: int, end: int, next_start: int) -> int:
        """Index at which a stretch passes the start of another; for an unsorted stretch, any index within it."""
        index = start + int(np.searchsorted(self.times[start:end], self.times[next_start], side="right"))
        return min(max(index, start + 1), end - 1)


def sort_samples(groups: Ids, times: Times, values: Values) -> SortedSamples:
    """Sort samples by group, time and value. ``groups`` are integers from 0."""
    samples = SortedSamples(groups, times, values)
    order = _group_order(groups)
    if order is not None:
        samples = samples._reorder(order)
    groups, times, values = samples.groups, samples.times, samples.values
    is_unsorted = (groups[1:] == groups[:-1]) & (
        (times[1:] < times[:-1]) | ((times[1:] == times[:-1]) & (values[1:] < values[:-1]))
    )
    if not is_unsorted.any():
        return samples
    return samples._reorder(_sort_groups(samples, np.unique(groups[1:][is_unsorted])))


def _group_order(groups: Ids) -> Indices | None:
    """The order that sorts by group and is stable within groups; None if they are sorted."""
    if not (groups[1:] < groups[:-1]).any():
        return None
    low = np.argsort((groups % _RADIX).astype(np.uint16), kind="stable")
    if int(groups.max()) < _RADIX:
        return low
    high = (groups // _RADIX).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")]


def _sort_groups(samples: SortedSamples, unsorted_groups: Ids) -> Indices:
    """The order that sorts the samples of the unsorted groups, and leaves the others in place."""
    marked = np.zeros(len(samples.groups) + 1, dtype=np.int8)
    marked[np.searchsorted(samples.groups, unsorted_groups, side="left")] = 1
    marked[np.searchsorted(samples.groups, unsorted_groups, side="right")] -= 1
    indices = np.flatnonzero(np.cumsum(marked[:-1], dtype=np.int8))
    sort = np.lexsort((samples.values[indices], samples.times[indices], samples.groups[indices]))
    order = np.arange(len(samples.groups), dtype=np.intp)
    order[indices] = indices[sort]
    return order
