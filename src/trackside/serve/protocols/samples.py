"""The samples of a remote write: found by pattern in the whole body at once, or read one by one.

A sample nearly always has one of three forms. Bytes that look like one may be part of a text: they count as a sample
only where a field of its message is known to begin, or if a chain of samples leads to them from there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.wire import VARINT6, VARINT6_MASK, Offsets, bytes_of, six_byte_varints, words_of
from trackside.stores.receiver.arrivals import MetricBlock

STALE = 0x7FF0000000000002
"""The bits of the value that marks the end of a series."""
# Lengths of a sample's field: with a value; with the value 0, which is not written; with a start time after its time.
_FULL, _ZERO, _STARTED = 18, 9, 25
_HEADS = {_FULL: 0x091012, _ZERO: 0x100712, _STARTED: 0x091712}
_HEAD_MASK = 0xFFFFFF
_TIME, _START = VARINT6 | 0x1000, VARINT6 | 0x1800


@dataclass(frozen=True, slots=True)
class SampleScan:
    """All bytes that look like samples, in order; adjacent ones form a chain."""

    body: bytes
    begins: Offsets
    ends: Offsets
    first: Offsets
    """(N,) index of the first sample of its chain."""
    last: Offsets

    @classmethod
    def of(cls, body: bytes) -> SampleScan:
        octets = bytes_of(body)
        if len(octets) < _ZERO:
            return cls(body, *[np.empty(0, dtype=np.int64)] * 4)
        words, second = words_of(body), octets[1:]
        likely = (second == 0x10) | (second == 0x07) | (second == 0x17)
        likely &= octets[:-1] == 0x12
        begins = np.flatnonzero(likely)
        begins = begins[begins <= len(octets) - _ZERO]
        heads = words[begins] & _HEAD_MASK
        sizes = np.select([heads == head for head in _HEADS.values()], list(_HEADS), default=0)
        plausible = (sizes > 0) & (begins + sizes <= len(octets))
        begins, sizes = begins[plausible], sizes[plausible]
        timed = words[_times(begins, sizes)] & VARINT6_MASK == _TIME
        started = sizes == _STARTED
        timed[started] &= words[begins[started] + 17] & VARINT6_MASK == _START
        begins, ends = begins[timed], (begins + sizes)[timed]
        ends_chain = np.append(ends[:-1] != begins[1:], True)
        lasts = np.flatnonzero(ends_chain)
        chain = np.cumsum(ends_chain) - ends_chain
        firsts = np.concatenate([[0], lasts[:-1] + 1])
        return cls(body, begins, ends, firsts[chain], lasts[chain])

    def messages(self) -> tuple[Offsets, Offsets] | None:
        """Starts and ends of the messages of field 1, if the body has nothing else and each ends with a sample.

        The lengths prove it: each must lead to the next message. None if they do not.
        """
        if not len(self.ends) or self.ends[-1] != len(self.body):
            return None
        octets = bytes_of(self.body)
        ends = self.ends[self.last == np.arange(len(self.last))]
        heads = np.concatenate([[0], ends[:-1]])
        if heads.max() + 2 >= len(octets):
            return None
        low, high = octets[heads + 1].astype(np.int64), octets[heads + 2].astype(np.int64)
        wide = low >= 0x80
        starts = heads + 2 + wide
        fits = starts + np.where(wide, low - 0x80 + (high << 7), low) == ends
        fits &= (octets[heads] == 0x0A) & (~wide | (high < 0x80))
        return (starts, ends) if fits.all() else None

    def leading_to(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Starts of the chains that end where the messages end; a message's end if it has none."""
        if not len(self.ends):
            return ends.copy()
        index = np.minimum(np.searchsorted(self.ends, ends), len(self.ends) - 1)
        begins = self.begins[self.first[index]]
        return np.where((self.ends[index] == ends) & (begins >= starts), begins, ends)

    def chains(self, begins: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets]:
        """(index of the first sample, count, end) of the chains that start at ``begins`` and end by ``ends``."""
        if not len(self.begins):
            return begins, np.zeros(len(begins), dtype=np.int64), begins
        index = np.minimum(np.searchsorted(self.begins, begins), len(self.begins) - 1)
        last = self.last[index]
        is_chain = (self.begins[index] == begins) & (self.ends[last] <= ends)
        return index, np.where(is_chain, last - index + 1, 0), np.where(is_chain, self.ends[last], begins)

    def read(self, first: Offsets, counts: Offsets) -> tuple[Offsets, NDArray[np.float64]]:
        """Times and values of some rows of samples."""
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.repeat(first, counts) + within
        values = np.zeros(len(indices), dtype=np.uint64)
        if not len(indices):
            return indices, values.view(np.float64)
        words, begins, sizes = words_of(self.body), self.begins[indices], (self.ends - self.begins)[indices]
        valued = sizes != _ZERO
        values[valued] = words[begins[valued] + 3]
        return six_byte_varints(words[_times(begins, sizes)]), values.view(np.float64)


def _times(begins: Offsets, sizes: Offsets) -> Offsets:
    """Offset of the word that ends with the time."""
    return begins + np.where(sizes == _ZERO, 1, 10)


@dataclass(slots=True)
class SampleRows:
    """Samples that were read one by one, a row each, and the number of dropped parts of a request."""

    index: array[int] = field(default_factory=lambda: array("i"))
    """Index of the sample's series in the request."""
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    histograms: int = 0
    exemplars: int = 0

    def block(
        self, keys: list[bytes], index: NDArray[np.int32], times_ms: NDArray[np.int64], values: NDArray[np.float64]
    ) -> MetricBlock:
        """The samples in the arguments and these."""
        if self.index:
            index = np.concatenate([index, np.frombuffer(self.index, dtype=np.int32)])
            times_ms = np.concatenate([times_ms, np.frombuffer(self.times_ms, dtype=np.int64)])
            values = np.concatenate([values, np.frombuffer(self.values, dtype=np.float64)])
        stale = values.view(np.uint64) == STALE
        ended = int(stale.sum())
        if ended:
            index, times_ms, values = index[~stale], times_ms[~stale], values[~stale]
        return MetricBlock(keys, index, times_ms, values, self.histograms, ended, self.exemplars, self._reasons())

    def _reasons(self) -> str:
        reasons = []
        if self.histograms:
            reasons.append(f"{self.histograms:,} native histograms were dropped: scrape classic ones instead")
        if self.exemplars:
            reasons.append(f"{self.exemplars:,} exemplars were dropped: do not send them (send_exemplars: false)")
        return "; ".join(reasons)
