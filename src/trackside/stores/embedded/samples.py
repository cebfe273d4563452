"""Samples on their way into a store: which series they are of, and batches of them as segments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
from numpy.typing import NDArray

from trackside.model import Position, Samples, Series
from trackside.stores.embedded.fields import clean, labels_text
from trackside.stores.embedded.layout import Directory, Segment
from trackside.stores.embedded.order import arranged
from trackside.stores.embedded.rows import objects
from trackside.stores.embedded.tables import write_columns

KEYS = 1 << 20
"""Series whose numbers are kept at hand; beyond it they are looked up by their hash again."""
_Block = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], int]
"""Series, times, values, input."""


class Numbers:
    """The number of each series, for good: those of the store, and new ones counted on."""

    def __init__(self, known: tuple[NDArray[np.int64], NDArray[np.int32]], following: int) -> None:
        order = np.argsort(known[0])
        self._hashes, self._ids = known[0][order], known[1][order]
        self._cache: dict[tuple[str, tuple[tuple[str, str], ...], str], int] = {}
        self._young: dict[int, int] = {}
        self.following = following
        self.metrics: dict[int, str] = {}
        """Number -> metric, of all series met."""
        self.fresh: list[tuple[int, int, Series]] = []
        """(number, hash, series) of those that no segment names yet."""
        self.places: dict[int, Position] = {}
        """Number -> where the series begins in the present input."""
        self._last: tuple[Sequence[Series], int, NDArray[np.int32]] | None = None

    def begin(self) -> None:
        self._last = None  # a list of series at the same address may be another
        self.places = {}

    def of(self, series: Sequence[Series]) -> NDArray[np.int32]:
        """Their numbers. A list that a reader only appends to is gone through once."""
        begin, known = 0, np.empty(0, dtype=np.int32)
        if self._last is not None and self._last[0] is series and len(series) >= self._last[1]:
            _, begin, known = self._last
        if begin < len(series):
            tail = np.array([self._number(each) for each in series[begin:]], dtype=np.int32)
            known = np.concatenate([known, tail])
            for number, each in zip(tail.tolist(), series[begin:], strict=True):
                self.places.setdefault(number, each.at)
        self._last = series, len(series), known
        return known

    def _number(self, series: Series) -> int:
        # Without a node it is the file that tells apart what two nodes measured of their GPU 0.
        key = series.metric, series.labels, "" if series.get("node") else series.at.path
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= KEYS:
                self._cache.clear()
            found = self._cache[key] = self._looked_up(series, key[2])
            self.metrics[found] = series.metric
        return found

    def _looked_up(self, series: Series, file: str) -> int:
        text = f"{series.metric}{labels_text(series.labels)}{file}".encode("utf-8", "replace")
        hash_ = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
        place = int(np.searchsorted(self._hashes, hash_))
        if place < len(self._hashes) and self._hashes[place] == hash_:
            return int(self._ids[place])
        if hash_ in self._young:
            return self._young[hash_]
        number = self._young[hash_] = self.following
        self.following += 1
        self.fresh.append((number, hash_, series))
        return number

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The new series as columns; from then on a segment names them."""
        fresh, self.fresh = self.fresh, []
        return {
            "series": np.array([each[0] for each in fresh], dtype=np.int32),
            "hash": np.array([each[1] for each in fresh], dtype=np.int64),
            "metric": objects([each[2].metric for each in fresh]),
            "labels": objects([labels_text(each[2].labels) for each in fresh]),
            "node": objects(_label(each[2], "node") for each in fresh),
            "job": objects(_label(each[2], "job") for each in fresh),
        }


def _label(series: Series, name: str) -> str | None:
    value = series.get(name)
    return None if value is None else clean(value)


@dataclass(slots=True)
class SampleBatch:
    """Samples of some inputs, kept until they are a segment."""

    blocks: list[_Block] = field(default_factory=list)
    size: int = 0

    def add(self, numbers: NDArray[np.int32], samples: Samples, input_: int) -> None:
        """Keep a block; NaN marks an end or a hole and is no measurement."""
        index, times, values = samples.index, samples.times_ms, samples.values
        absent = np.isnan(values)
        if absent.any():
            index, times, values = index[~absent], times[~absent], values[~absent]
        if len(values):
            self.blocks.append((numbers[index], times, values, input_))
            self.size += len(values)

    def take(self, other: SampleBatch) -> None:
        """All of another batch, which is empty from then on."""
        self.blocks += other.blocks
        self.size += other.size
        other.blocks, other.size = [], 0

    def written(
        self, connection: duckdb.DuckDBPyConnection, directory: Directory, metrics: dict[int, str]
    ) -> tuple[Segment, Spans]:
        """Write all as one segment; gives also what of each series came from each input."""
        blocks, self.blocks, self.size = self.blocks, [], 0
        series = np.concatenate([block[0] for block in blocks])
        inputs = np.repeat(
            np.array([block[3] for block in blocks], dtype=np.int32), [len(block[0]) for block in blocks]
        )
        ids, names, code_of = _ranked(series, metrics)
        lookup = np.zeros(int(ids.max()) + 1, dtype=np.int32)
        lookup[ids] = np.arange(len(ids), dtype=np.int32)
        found = arranged(
            lookup[series],
            np.concatenate([block[1] for block in blocks]),
            np.concatenate([block[2] for block in blocks]),
        )
        if found.order is not None:
            inputs = inputs[found.order]
        numbers = ids[found.groups]
        columns = {
            "code": code_of[found.groups],
            "series": numbers,
            "time_ms": found.times,
            "value": found.values,
            "input": inputs,
        }
        segment = write_columns(connection, directory, "samples", columns, names)
        return segment, Spans.of(numbers, inputs, found.times)


def _ranked(
    series: NDArray[np.int32], metrics: dict[int, str]
) -> tuple[NDArray[np.int32], list[str], NDArray[np.int16]]:
    """The series that occur, by metric and number; the metrics in order; the metric of each series."""
    met = np.zeros(int(series.max()) + 1, dtype=bool)
    met[series] = True
    ids = np.flatnonzero(met).astype(np.int32)
    names = sorted({metrics[int(each)] for each in ids})
    place = {name: number for number, name in enumerate(names)}
    codes = np.array([place[metrics[int(each)]] for each in ids], dtype=np.int16)
    order = np.lexsort((ids, codes))
    return ids[order], names, codes[order]


@dataclass(slots=True)
class Spans:
    """First and last time and count of each series in each input; one row for both."""

    inputs: NDArray[np.int32]
    series: NDArray[np.int32]
    first_ms: NDArray[np.int64]
    last_ms: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, series: NDArray[np.int32], inputs: NDArray[np.int32], times: NDArray[np.int64]) -> Spans:
        """From samples in order of series and time."""
        change = (series[1:] != series[:-1]) | (inputs[1:] != inputs[:-1])
        starts = np.concatenate([[0], np.flatnonzero(change) + 1])
        stops = np.append(starts[1:], len(series))
        return cls(inputs[starts], series[starts], times[starts], times[stops - 1], stops - starts).merged()

    @classmethod
    def bare(cls, pairs: Sequence[tuple[int, int]]) -> Spans:
        """Of (input, series) without a sample."""
        inputs, series = ([pair[i] for pair in pairs] for i in (0, 1))
        none = np.zeros(len(pairs), dtype=np.int64)
        return cls(np.array(inputs, dtype=np.int32), np.array(series, dtype=np.int32), none, none, none)

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """Those of several batches."""
        if not parts:
            return cls.bare(())
        names = ("inputs", "series", "first_ms", "last_ms", "count")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names)).merged()

    def merged(self) -> Spans:
        """One row a series and input, in the order of inputs and series."""
        if not len(self.series):
            return self
        order = np.lexsort((self.series, self.inputs))
        inputs, series = self.inputs[order], self.series[order]
        new = np.concatenate([[True], (inputs[1:] != inputs[:-1]) | (series[1:] != series[:-1])])
        starts = np.flatnonzero(new)
        return Spans(
            inputs[starts],
            series[starts],
            np.minimum.reduceat(self.first_ms[order], starts),
            np.maximum.reduceat(self.last_ms[order], starts),
            np.add.reduceat(self.count[order], starts),
        )
