"""Samples that were sent, until the next flush: foreign series translated once, unknown ones counted and let go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import Guess, translate, unneeded
from trackside.catalog.settling import ForeignSeries
from trackside.model import Position, Series
from trackside.stores.receiver.options import Limits

PATH = "received/metrics"
"""Where the series of all senders begin: without a node, only their labels tell them apart."""
MOST_NAMES = 100
"""Unknown names that are counted each for itself."""
MOST_KEYS = 1 << 20
"""Keys that are remembered until the next flush may forget them,"""
MOST_KEY_BYTES = 256 << 20
"""and their bytes."""
SERIES_BYTES = 1024
"""Of a series' key on average, where there are as many series as may be: longer ones make it fewer."""
SERIES, LABELS, UNNEEDED, OTHERS = "series", "labels", "unneeded", "unknown"
"""Why samples are not kept: too many series, labels beyond a limit, names that say nothing of a run, names unknown."""
_REASONS = (SERIES, LABELS, UNNEEDED, OTHERS)

LabelsOf = Callable[[bytes], tuple[str, dict[str, str]]]
"""What the key of a series means: its name and labels."""


@dataclass(slots=True, eq=False)
class MetricBlock:
    """Samples of one push, in no promised order.

    Two equal keys name the same series for ever; one series may come under several keys, and a key may stand twice.
    :data:`LabelsOf` says what a key means.
    """

    keys: list[bytes]
    index: NDArray[np.int32]
    """(N,) the place in ``keys`` of each sample's series."""
    times_ms: NDArray[np.int64]
    """(N,) since 1970."""
    values: NDArray[np.float64]
    """(N,)"""
    left_out: int = 0
    """Points that cannot be kept, such as native histograms; ``why`` says so in words."""
    stale: int = 0
    """Markers that a series has ended: understood, and no measurement."""
    exemplars: int = 0
    """Left out as well."""
    why: str = ""

    @property
    def received(self) -> int:
        """Samples understood, markers among them."""
        return len(self.values) + self.stale


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of a body. ``refused``: reason -> samples or lines that are not kept and never will be."""

    kept: int
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Arrived:
    """What a flush takes: samples, and what is known of their series by then. ``of`` tells tables from later ones."""

    of: Arrivals
    foreign: NDArray[np.void]
    """The rows of :class:`trackside.catalog.settling.ForeignSeries`."""
    series: Sequence[Series]
    units: Sequence[tuple[str, Guess]]
    places: NDArray[np.int32]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


class Arrivals:
    """Foreign series by their keys, and the samples that came since the last flush. For one thread at a time."""

    def __init__(self, labels_of: LabelsOf, limits: Limits) -> None:
        self._labels_of, self._limits = labels_of, limits
        self._keys: dict[bytes, int] = {}
        """Key -> its foreign series; below 0, -1 minus the place of the reason in ``_reasons``."""
        self._key_bytes = self._series_bytes = 0
        """Of keys that are remembered for being nobody's, and of those of series."""
        self._reasons = list(_REASONS)
        self._by_name: dict[str, int] = {}
        """Unknown name -> the code of its reason."""
        self._foreign = ForeignSeries()
        self._blocks: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]] = []
        self.pending = 0
        """Samples that wait."""

    @property
    def crowded(self) -> bool:
        """Whether there are more keys than are worth remembering."""
        return len(self._keys) >= MOST_KEYS or self._key_bytes >= MOST_KEY_BYTES

    @property
    def _is_full(self) -> bool:
        """Whether there are as many series as may be."""
        most = self._limits.series
        return len(self._foreign) >= most or self._series_bytes >= (most + 1024) * SERIES_BYTES

    def take(self, block: MetricBlock, limited: bool = True) -> Taken:
        """Take the samples of a body. ``limited``: whether a new series may be refused for being one too many."""
        if not len(block.values):
            return Taken(0)
        known = self._keys
        found = list(map(known.get, block.keys))
        codes = [
            self._enter(key, limited) if code is None else code for key, code in zip(block.keys, found, strict=True)
        ]
        places = np.array(codes, dtype=np.int32)[block.index]
        here = places >= 0
        if here.all():
            self._keep(places, block.times_ms, block.values)
            return Taken(len(places))
        told = np.bincount(-1 - places[~here])
        refused = {self._reasons[code]: int(told[code]) for code in np.flatnonzero(told)}
        self._keep(places[here], block.times_ms[here], block.values[here])
        return Taken(int(here.sum()), refused)

    def _keep(self, places: NDArray[np.int32], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        if len(places):
            self._blocks.append((places, times_ms, values))
            self.pending += len(places)

    def _enter(self, key: bytes, limited: bool) -> int:
        name, labels = self._labels_of(key)
        known = None if name in self._by_name else translate(name, labels)
        if known is None:
            code = self._unknown(name)
        elif not self._allowed(labels):
            code = _code(LABELS)
        elif limited and self._is_full:
            return _code(SERIES)  # not remembered: there may be room later
        else:
            code = self._foreign.add(name, known, Position(PATH, 0))
            self._series_bytes += len(key)
        if code >= 0:
            self._keys[key] = code
        elif not self.crowded:
            self._keys[key] = code
            self._key_bytes += len(key)
        return code

    def _unknown(self, name: str) -> int:
        code = self._by_name.get(name)
        if code is None:
            if unneeded(name):
                code = _code(UNNEEDED)
            elif len(self._reasons) < len(_REASONS) + MOST_NAMES:
                code = -1 - len(self._reasons)
                self._reasons.append(f"{OTHERS}:{name[:200]}")
            else:
                code = _code(OTHERS)
            if not self.crowded:
                self._by_name[name] = code
                self._key_bytes += len(name)
        return code

    def _allowed(self, labels: Mapping[str, str]) -> bool:
        limits = self._limits
        return len(labels) <= limits.labels and all(
            len(name) <= limits.label_name_bytes and len(value) <= limits.label_value_bytes
            for name, value in labels.items()
        )

    @property
    def series(self) -> Sequence[Series]:
        """Ours, so far."""
        return self._foreign.series

    def drained(self) -> Arrived:
        """All that waits; from then on nothing does."""
        blocks, self._blocks, self.pending = self._blocks, [], 0
        places, times_ms, values = (
            (np.concatenate(column) for column in zip(*blocks, strict=True))
            if blocks
            else (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))
        )
        known = self._foreign
        return Arrived(self, known.rows, known.series[:], tuple(known.units), places, times_ms, values)


def unknown_name(reason: str) -> str | None:
    """The foreign name that a reason for not keeping samples is about, None for other reasons."""
    kind, colon, name = reason.partition(":")
    return name if colon and kind == OTHERS else None


def _code(reason: str) -> int:
    return -1 - _REASONS.index(reason)
