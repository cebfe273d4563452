"""Samples of a remote write that are read one by one, and what its sender is told of the rest."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.stores.receiver.arrivals import MetricBlock

STALE = 0x7FF0000000000002
"""The bits of the value that says: this series has ended."""


@dataclass(slots=True)
class SampleRows:
    """One row a sample, and how many parts of a request were left out."""

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
