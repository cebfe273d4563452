"""The samples of a remote write: found by their look in the whole body at once, or read one by one.

A sample nearly always has one of three forms. What looks like one may still be a part of some text: it counts as a
sample only where a field of its message is known to begin, or by the chain of samples that leads to it from there.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.serve.protocols.wire import SIX, SIX_MASK, Offsets, bytes_of, six, words_of
from trackside.stores.receiver.arrivals import MetricBlock

STALE = 0x7FF0000000000002
"""The bits of the value that says: this series has ended."""
# A sample as its field begins: with a value; of the value 0, which is not written; with a start time after its time.
_FULL, _ZERO, _STARTED = 18, 9, 25
_HEADS = {_FULL: 0x091012, _ZERO: 0x100712, _STARTED: 0x091712}
_HEAD_MASK = 0xFFFFFF
_TIME, _START = SIX | 0x1000, SIX | 0x1800


@dataclass(frozen=True, slots=True)
class SampleScan:
    """Whatever looks like a sample, in order; those that touch form a chain."""

    body: bytes
    begins: Offsets
    ends: Offsets
    first: Offsets
    """(N,) the place among all of the first in its chain."""
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
        kept = (sizes > 0) & (begins + sizes <= len(octets))
        begins, sizes = begins[kept], sizes[kept]
        timed = words[_times(begins, sizes)] & SIX_MASK == _TIME
        started = sizes == _STARTED
        timed[started] &= words[begins[started] + 17] & SIX_MASK == _START
        begins, ends = begins[timed], (begins + sizes)[timed]
        apart = np.append(ends[:-1] != begins[1:], True)
        lasts = np.flatnonzero(apart)
        chain = np.cumsum(apart) - apart
        firsts = np.concatenate([[0], lasts[:-1] + 1])
        return cls(body, begins, ends, firsts[chain], lasts[chain])

    def messages(self) -> tuple[Offsets, Offsets] | None:
        """Where the messages of field 1 begin and end, if the body is nothing but such, each ending in one of these.

        Proven by their lengths, which must lead from each to the next; None where they don't.
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
        """Where the chains begin that end with the messages; a message's end where none does."""
        if not len(self.ends):
            return ends.copy()
        place = np.minimum(np.searchsorted(self.ends, ends), len(self.ends) - 1)
        begins = self.begins[self.first[place]]
        return np.where((self.ends[place] == ends) & (begins >= starts), begins, ends)

    def chains(self, begins: Offsets, ends: Offsets) -> tuple[Offsets, Offsets, Offsets]:
        """Of the chains from ``begins`` on, within ``ends``: the place of the first, how many, where they stop."""
        if not len(self.begins):
            return begins, np.zeros(len(begins), dtype=np.int64), begins
        place = np.minimum(np.searchsorted(self.begins, begins), len(self.begins) - 1)
        last = self.last[place]
        there = (self.begins[place] == begins) & (self.ends[last] <= ends)
        return place, np.where(there, last - place + 1, 0), np.where(there, self.ends[last], begins)

    def read(self, first: Offsets, counts: Offsets) -> tuple[Offsets, NDArray[np.float64]]:
        """Times and values of some rows of samples."""
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        places = np.repeat(first, counts) + within
        values = np.zeros(len(places), dtype=np.uint64)
        if not len(places):
            return places, values.view(np.float64)
        words, begins, sizes = words_of(self.body), self.begins[places], (self.ends - self.begins)[places]
        valued = sizes != _ZERO
        values[valued] = words[begins[valued] + 3]
        return six(words[_times(begins, sizes)]), values.view(np.float64)


def _times(begins: Offsets, sizes: Offsets) -> Offsets:
    """Where the word stands that ends in the time."""
    return begins + np.where(sizes == _ZERO, 1, 10)


@dataclass(slots=True)
class SampleRows:
    """Samples that are read one by one, a row each, and how many parts of a request were left out."""

    index: array[int] = field(default_factory=lambda: array("i"))
    """Place of the sample's series in the request."""
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    values: array[float] = field(default_factory=lambda: array("d"))
    histograms: int = 0
    exemplars: int = 0

    def block(
        self, keys: list[bytes], index: NDArray[np.int32], times_ms: NDArray[np.int64], values: NDArray[np.float64]
    ) -> MetricBlock:
        """All samples: those given, and these."""
        if self.index:
            index = np.concatenate([index, np.frombuffer(self.index, dtype=np.int32)])
            times_ms = np.concatenate([times_ms, np.frombuffer(self.times_ms, dtype=np.int64)])
            values = np.concatenate([values, np.frombuffer(self.values, dtype=np.float64)])
        stale = values.view(np.uint64) == STALE
        ended = int(stale.sum())
        if ended:
            index, times_ms, values = index[~stale], times_ms[~stale], values[~stale]
        return MetricBlock(keys, index, times_ms, values, self.histograms, ended, self.exemplars, self._why())

    def _why(self) -> str:
        reasons = []
        if self.histograms:
            reasons.append(f"{self.histograms:,} native histograms were left out: have classic ones scraped")
        if self.exemplars:
            reasons.append(f"{self.exemplars:,} exemplars were left out: don't send them (send_exemplars: false)")
        return "; ".join(reasons)
