"""Pushed samples until the next flush: foreign series are translated once, and unknown ones counted and dropped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trackside.catalog.dialect import EARLIEST_MS, Guess, is_unneeded, translate
from trackside.catalog.settling import ForeignSeries
from trackside.model import Position, Series
from trackside.stores.embedded.rows import SERIES_PATH
from trackside.stores.receiver.options import ReceiverLimits
from trackside.stores.receiver.shares import ACTIVE_S, MAX_SHARE, Shares

MAX_COUNTED_NAMES = 100
"""Unknown names that are counted separately."""
MAX_KEYS = 1 << 20
"""Keys that are remembered until a flush may forget them."""
MAX_KEY_BYTES = 256 << 20
"""Bytes of these keys."""
MEAN_KEY_BYTES = 1024
"""A series counts once for its key, and once more for each so many bytes of it."""
SERIES, SENDER_SERIES, JOB_SERIES = "series", "series_of_sender", "series_of_job"
LABELS, UNTIMELY, UNNEEDED, UNKNOWN = "labels", "untimely", "unneeded", "unknown"
"""Why samples are dropped: too many series, in all, of a sender or of a job; labels beyond a limit; times that cannot
be right; names that a diagnosis does not need, unknown names."""
_REASONS = (SERIES, SENDER_SERIES, JOB_SERIES, LABELS, UNTIMELY, UNNEEDED, UNKNOWN)
MAX_AHEAD_MS = 86_400_000
"""How far a sample's time may be ahead of this machine's clock."""
_EXCESS_REASONS = {"of all": SERIES, "of the sender": SENDER_SERIES, "of the job": JOB_SERIES}
MIN_INACTIVE_SHARE = 0.1
"""Share of the series that must be inactive before all are counted anew: every series is then translated again."""

LabelsOf = Callable[[bytes], tuple[str, dict[str, str]]]
"""Decodes the key of a series to its name and labels."""


@dataclass(slots=True, eq=False)
class MetricBlock:
    """Samples of one push, in any order.

    Equal keys always name the same series; one series may have several keys, and a key may occur twice.
    :data:`LabelsOf` decodes a key.
    """

    keys: list[bytes]
    index: NDArray[np.int32]
    """(N,) index into ``keys`` of each sample's series."""
    times_ms: NDArray[np.int64]
    """(N,) milliseconds since 1970."""
    values: NDArray[np.float64]
    """(N,)"""
    skipped: int = 0
    """Points that cannot be stored, such as native histograms; ``reason_text`` explains them."""
    stale: int = 0
    """Staleness markers: understood, but not a measurement."""
    exemplars: int = 0
    """Exemplars, which are not stored either."""
    reason_text: str = ""

    @property
    def received(self) -> int:
        """Number of samples understood, including staleness markers."""
        return len(self.values) + self.stale


@dataclass(frozen=True, slots=True)
class IntakeResult:
    """What happened to a body. ``refused``: reason -> samples or lines that are dropped for good."""

    accepted: int
    refused: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class ArrivalBatch:
    """What a flush writes: samples and their series. ``arrivals``: identifies the tables that the rows refer to."""

    arrivals: Arrivals
    foreign: NDArray[np.void]
    """The rows of :class:`trackside.catalog.settling.ForeignSeries`."""
    series: Sequence[Series]
    units: Sequence[tuple[str, Guess]]
    rows: NDArray[np.int32]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


class Arrivals:
    """Foreign series by their keys, and the samples since the last flush. For one thread at a time."""

    def __init__(self, labels_of: LabelsOf, limits: ReceiverLimits) -> None:
        self._labels_of, self._limits = labels_of, limits
        self._keys: dict[bytes, int] = {}
        """Key -> row of its foreign series; if negative, -1 minus the index of the reason in ``_reasons``."""
        self._key_bytes = 0
        """Bytes of the keys remembered as dropped."""
        self._reasons = list(_REASONS)
        self._by_name: dict[str, int] = {}
        """Unknown name -> code of its reason."""
        self._foreign = ForeignSeries()
        self._shares = Shares(limits.series)
        self._last_used_s = np.zeros(64)
        """When each foreign series last had a sample: seconds of a monotonic clock."""
        self._blocks: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]] = []
        self.pending = 0
        """Samples that wait for a flush."""

    @property
    def has_too_many_keys(self) -> bool:
        """Whether there are more keys than are worth remembering."""
        return len(self._keys) >= MAX_KEYS or self._key_bytes >= MAX_KEY_BYTES

    @property
    def has_old_series(self) -> bool:
        """Whether the limit is nearly reached because of series that nobody sends any more."""
        count = len(self._foreign)
        if self._shares.total < self._limits.series * MAX_SHARE:
            return False
        inactive = np.count_nonzero(self._last_used_s[:count] < time.monotonic() - ACTIVE_S)
        return bool(inactive >= count * MIN_INACTIVE_SHARE)

    def take(self, block: MetricBlock, sender: str = "", limited: bool = True) -> IntakeResult:
        """Add the samples of a body of a sender. ``limited``: whether to refuse new series beyond the limits."""
        if not len(block.values):
            return IntakeResult(0)
        known_codes = list(map(self._keys.get, block.keys))
        codes = [
            self._add_key(key, sender, limited) if code is None else code
            for key, code in zip(block.keys, known_codes, strict=True)
        ]
        rows = np.array(codes, dtype=np.int32)[block.index]
        is_untimely = (block.times_ms < EARLIEST_MS) | (block.times_ms > time.time() * 1000 + MAX_AHEAD_MS)
        if is_untimely.any():
            rows = np.where(is_untimely & (rows >= 0), np.int32(_reason_code(UNTIMELY)), rows)
        is_accepted = rows >= 0
        if is_accepted.all():
            self._append_block(rows, block.times_ms, block.values)
            return IntakeResult(len(rows))
        counts = np.bincount(-1 - rows[~is_accepted])
        refused = {self._reasons[code]: int(counts[code]) for code in np.flatnonzero(counts)}
        self._append_block(rows[is_accepted], block.times_ms[is_accepted], block.values[is_accepted])
        return IntakeResult(int(is_accepted.sum()), refused)

    def _append_block(self, rows: NDArray[np.int32], times_ms: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        if len(rows):
            self._blocks.append((rows, times_ms, values))
            self.pending += len(rows)
            self._last_used_s[rows] = time.monotonic()

    def _add_key(self, key: bytes, sender: str, limited: bool) -> int:
        name, labels = self._labels_of(key)
        translated = None if name in self._by_name else translate(name, labels)
        if translated is None:
            code = self._unknown_code(name)
        elif not self._allowed_labels(labels):
            code = _reason_code(LABELS)
        else:
            job = dict(translated.labels).get("job", "")
            size = 1 + len(key) // MEAN_KEY_BYTES
            if limited and (excess := self._shares.excess(sender, job, size)):
                return _reason_code(_EXCESS_REASONS[excess])  # not remembered: there may be room later
            code = self._foreign.add(name, translated, Position(SERIES_PATH, 0))
            if code == len(self._last_used_s):
                self._last_used_s = np.concatenate([self._last_used_s, np.zeros_like(self._last_used_s)])
            self._shares.add(sender, job, size)
        if code >= 0:
            self._keys[key] = code
        elif not self.has_too_many_keys:
            self._keys[key] = code
            self._key_bytes += len(key)
        return code

    def _unknown_code(self, name: str) -> int:
        code = self._by_name.get(name)
        if code is None:
            if is_unneeded(name):
                code = _reason_code(UNNEEDED)
            elif len(self._reasons) < len(_REASONS) + MAX_COUNTED_NAMES:
                code = -1 - len(self._reasons)
                self._reasons.append(f"{UNKNOWN}:{name[:200]}")
            else:
                code = _reason_code(UNKNOWN)
            if not self.has_too_many_keys:
                self._by_name[name] = code
                self._key_bytes += len(name)
        return code

    def _allowed_labels(self, labels: Mapping[str, str]) -> bool:
        limits = self._limits
        return len(labels) <= limits.labels and all(
            len(name) <= limits.label_name_bytes and len(value) <= limits.label_value_bytes
            for name, value in labels.items()
        )

    @property
    def series(self) -> Sequence[Series]:
        """Our series so far."""
        return self._foreign.series

    def drain(self) -> ArrivalBatch:
        """Take out all waiting samples."""
        blocks, self._blocks, self.pending = self._blocks, [], 0
        rows, times_ms, values = (
            (np.concatenate(column) for column in zip(*blocks, strict=True))
            if blocks
            else (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))
        )
        foreign = self._foreign
        return ArrivalBatch(self, foreign.rows, foreign.series[:], tuple(foreign.units), rows, times_ms, values)


def unknown_name(reason: str) -> str | None:
    """The unknown foreign name in a reason for dropping samples; None for other reasons."""
    kind, colon, name = reason.partition(":")
    return name if colon and kind == UNKNOWN else None


def _reason_code(reason: str) -> int:
    return -1 - _REASONS.index(reason)
