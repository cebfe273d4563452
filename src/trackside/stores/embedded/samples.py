"""Samples on their way into a store: assigns series ids, and writes batches as segments."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import duckdb
import numpy as np
from numpy.typing import NDArray

from trackside.model import Position, Samples, Series
from trackside.stores.embedded.fields import clean, labels_text
from trackside.stores.embedded.layout import Directory, TableSegment
from trackside.stores.embedded.order import sort_samples
from trackside.stores.embedded.rows import object_column
from trackside.stores.embedded.tables import write_columns

MAX_CACHED_KEYS = 1 << 20
"""Series whose ids are cached; beyond that they are looked up by hash again."""
_Block = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], int]
"""Series, times, values, input."""


class SeriesIds:
    """The permanent id of each series: those of the store, and new ones counted up."""

    def __init__(self, hashes_and_ids: tuple[NDArray[np.int64], NDArray[np.int32]], next_id: int) -> None:
        order = np.argsort(hashes_and_ids[0])
        self._hashes, self._ids = hashes_and_ids[0][order], hashes_and_ids[1][order]
        self._cache: dict[tuple[str, tuple[tuple[str, str], ...], str], int] = {}
        self._new_ids: dict[int, int] = {}
        self.next_id = next_id
        self.metrics: dict[int, str] = {}
        """Id -> metric, for all series seen."""
        self.unwritten: list[tuple[int, int, Series]] = []
        """(id, hash, series) of those that no segment holds yet."""
        self.positions: dict[int, Position] = {}
        """Id -> position of the series in the current input."""
        self._last: tuple[Sequence[Series], int, NDArray[np.int32]] | None = None

    def begin(self) -> None:
        self._last = None  # a new list at the same address may hold other series
        self.positions = {}

    def of(self, series: Sequence[Series]) -> NDArray[np.int32]:
        """The ids of some series. A list that a reader only appends to is traversed once."""
        begin, ids = 0, np.empty(0, dtype=np.int32)
        if self._last is not None and self._last[0] is series and len(series) >= self._last[1]:
            _, begin, ids = self._last
        if begin < len(series):
            tail = np.array([self._id(new_series) for new_series in series[begin:]], dtype=np.int32)
            ids = np.concatenate([ids, tail])
            for id_, new_series in zip(tail.tolist(), series[begin:], strict=True):
                self.positions.setdefault(id_, new_series.at)
        self._last = series, len(series), ids
        return ids

    def _id(self, series: Series) -> int:
        # Without a node label, the file distinguishes the series that two nodes measured of their GPU 0.
        key = series.metric, series.labels, "" if series.get("node") else series.at.path
        id_ = self._cache.get(key)
        if id_ is None:
            if len(self._cache) >= MAX_CACHED_KEYS:
                self._cache.clear()
            id_ = self._cache[key] = self._look_up(series, key[2])
            self.metrics[id_] = series.metric
        return id_

    def _look_up(self, series: Series, file: str) -> int:
        text = f"{series.metric}{labels_text(series.labels)}{file}".encode("utf-8", "replace")
        hash_ = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big", signed=True)
        index = int(np.searchsorted(self._hashes, hash_))
        if index < len(self._hashes) and self._hashes[index] == hash_:
            return int(self._ids[index])
        if hash_ in self._new_ids:
            return self._new_ids[hash_]
        id_ = self._new_ids[hash_] = self.next_id
        self.next_id += 1
        self.unwritten.append((id_, hash_, series))
        return id_

    def columns(self) -> dict[str, NDArray[np.generic]]:
        """The new series as columns; from now on they count as written."""
        unwritten, self.unwritten = self.unwritten, []
        return {
            "series": np.array([row[0] for row in unwritten], dtype=np.int32),
            "hash": np.array([row[1] for row in unwritten], dtype=np.int64),
            "metric": object_column([row[2].metric for row in unwritten]),
            "labels": object_column([labels_text(row[2].labels) for row in unwritten]),
            "node": object_column(_label(row[2], "node") for row in unwritten),
            "job": object_column(_label(row[2], "job") for row in unwritten),
        }


def _label(series: Series, name: str) -> str | None:
    value = series.get(name)
    return None if value is None else clean(value)


@dataclass(slots=True)
class SampleBatch:
    """Samples of some inputs, until they are written as a segment."""

    blocks: list[_Block] = field(default_factory=list)
    size: int = 0

    def add(self, series_ids: NDArray[np.int32], samples: Samples, input_: int) -> None:
        """Add a block without its NaN values, which mark an end or a gap."""
        index, times, values = samples.index, samples.times_ms, samples.values
        absent = np.isnan(values)
        if absent.any():
            index, times, values = index[~absent], times[~absent], values[~absent]
        if len(values):
            self.blocks.append((series_ids[index], times, values, input_))
            self.size += len(values)

    def take(self, other: SampleBatch) -> None:
        """Move all samples of another batch into this one."""
        self.blocks += other.blocks
        self.size += other.size
        other.blocks, other.size = [], 0

    def write(
        self, connection: duckdb.DuckDBPyConnection, directory: Directory, metrics: dict[int, str]
    ) -> tuple[TableSegment, Spans]:
        """Write all samples as one segment; also returns the span of each series in each input."""
        blocks, self.blocks, self.size = self.blocks, [], 0
        series = np.concatenate([block[0] for block in blocks])
        inputs = np.repeat(
            np.array([block[3] for block in blocks], dtype=np.int32), [len(block[0]) for block in blocks]
        )
        ids, names, code_of = _rank_series(series, metrics)
        lookup = np.zeros(int(ids.max()) + 1, dtype=np.int32)
        lookup[ids] = np.arange(len(ids), dtype=np.int32)
        samples = sort_samples(
            lookup[series],
            np.concatenate([block[1] for block in blocks]),
            np.concatenate([block[2] for block in blocks]),
        )
        if samples.order is not None:
            inputs = inputs[samples.order]
        series_ids = ids[samples.groups]
        columns = {
            "code": code_of[samples.groups],
            "series": series_ids,
            "time_ms": samples.times,
            "value": samples.values,
            "input": inputs,
        }
        segment = write_columns(connection, directory, "samples", columns, names)
        return segment, Spans.of(series_ids, inputs, samples.times)


def _rank_series(
    series: NDArray[np.int32], metrics: dict[int, str]
) -> tuple[NDArray[np.int32], list[str], NDArray[np.int16]]:
    """The ids that occur, by metric and id; the metrics in order; the index of each id's metric."""
    occurs = np.zeros(int(series.max()) + 1, dtype=bool)
    occurs[series] = True
    ids = np.flatnonzero(occurs).astype(np.int32)
    names = sorted({metrics[int(id_)] for id_ in ids})
    code_by_name = {name: code for code, name in enumerate(names)}
    codes = np.array([code_by_name[metrics[int(id_)]] for id_ in ids], dtype=np.int16)
    order = np.lexsort((ids, codes))
    return ids[order], names, codes[order]


@dataclass(slots=True)
class Spans:
    """First time, last time and count of each series in each input; one row per pair."""

    inputs: NDArray[np.int32]
    series: NDArray[np.int32]
    first_ms: NDArray[np.int64]
    last_ms: NDArray[np.int64]
    count: NDArray[np.int64]

    @classmethod
    def of(cls, series: NDArray[np.int32], inputs: NDArray[np.int32], times: NDArray[np.int64]) -> Spans:
        """Spans of samples that are in order of series and time."""
        change = (series[1:] != series[:-1]) | (inputs[1:] != inputs[:-1])
        starts = np.concatenate([[0], np.flatnonzero(change) + 1])
        stops = np.append(starts[1:], len(series))
        return cls(inputs[starts], series[starts], times[starts], times[stops - 1], stops - starts).merged()

    @classmethod
    def without_samples(cls, pairs: Sequence[tuple[int, int]]) -> Spans:
        """Spans of (input, series) pairs that have no sample."""
        inputs, series = ([pair[i] for pair in pairs] for i in (0, 1))
        zeros = np.zeros(len(pairs), dtype=np.int64)
        return cls(np.array(inputs, dtype=np.int32), np.array(series, dtype=np.int32), zeros, zeros, zeros)

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """The spans of several batches combined."""
        if not parts:
            return cls.without_samples(())
        names = ("inputs", "series", "first_ms", "last_ms", "count")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names)).merged()

    def merged(self) -> Spans:
        """One row per input and series, in the order of inputs and series."""
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
