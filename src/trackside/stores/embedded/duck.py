"""A metric backend over a store's segments: DuckDB finds and reads the samples, and the arithmetic is that of the
backend in memory.

DuckDB returns the samples of some series in a window, not sums: its threads would add them in a different order each
time, and a verdict must not differ in its last digits between runs or stores.

Reading takes most of the time. So a metric is read once for all requests that are announced (``expect``), and the
results are cached for later requests as long as there is room.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.model import Position, Series
from trackside.stores.batches import batches
from trackside.stores.embedded.cells import RollupTables, SampleRead
from trackside.stores.embedded.fields import labels_of
from trackside.stores.embedded.order import Ids, Indices, StoredSamples, Values
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import MINUTE_MS, sql_literal
from trackside.stores.metric_backend import (
    Groups,
    RollupRequest,
    RollupResult,
    SampleBackend,
    SeriesInfo,
    identifying_labels,
)

CHUNK = 4_000_000
"""Samples read at once; each takes about 60 bytes until it is reduced."""
MAX_TABLES_BYTES = 384 << 20
"""Size of the cache of rollups, for requests that repeat or cover a part of earlier windows."""
MAX_RANGES = 16
"""Maximum number of ranges of series ids in one query; ids between the ranges are not read."""
MIN_FULL_READ_RATIO = 0.75
"""From this share of the rows on, all are read and the others dropped afterwards, because DuckDB's filters would cost
more."""


@dataclass(frozen=True, slots=True)
class SeriesFilter:
    """Which series are visible: an SQL condition over the columns of ``series`` (s) and ``spans`` (p), and its
    parameters."""

    where: str = "true"
    parameters: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """Series to be read together: their ``rows`` in each of ``tables``, counted from ``begin``."""

    tables: Sequence[RollupTables]
    begin: int
    stop: int
    ids: Ids
    rows: Ids

    @property
    def start_ms(self) -> int:
        """Samples after this time are read."""
        return min(table.start_ms for table in self.tables)

    @property
    def end_ms(self) -> int:
        """Samples up to this time are read."""
        return max(table.end_ms for table in self.tables)


class DuckBackend(SampleBackend):
    """The series of a store, or those that pass a filter."""

    name = "store"

    def __init__(self, snapshot: Snapshot, scope: SeriesFilter | None = None, owner: object = None) -> None:
        self._snapshot, self._scope = snapshot, scope or SeriesFilter()
        self._owner = owner  # kept alive: a store that is removed with this backend
        self._series: list[SeriesInfo] | None = None
        self._failed: dict[str, SourceUnavailable] | None = None
        self._counts: dict[int, int] = {}
        self._metrics: dict[int, str] = {}
        self._sizes: dict[str, int] = {}
        """Metric -> number of its series in the whole store."""
        self._expected: dict[Groups, list[RollupRequest]] = {}
        self._cached_tables: dict[tuple[Groups, int], RollupTables] = {}
        """(groups, step) -> tables, the most recently used last."""

    def series(self) -> Sequence[SeriesInfo]:
        if self._series is None:
            spans, series = self._snapshot.table("spans"), self._snapshot.table("series")
            rows = self._snapshot.rows(
                f"""
                SELECT s.series, s.metric, s.labels, f.path, f.line, f."offset", f.length, first_ms, last_ms, n
                FROM (SELECT p.series, min(p.first_ms) AS first_ms, max(p.last_ms) AS last_ms,
                             sum(p.count)::BIGINT AS n,
                             arg_min({{path: p.path, line: p.line, "offset": p."offset", length: p.length,
                                      input: p.input}}, p.input) AS f
                      FROM {spans} p JOIN {series} s USING (series) WHERE {self._scope.where} GROUP BY p.series
                      HAVING sum(p.count) > 0)
                JOIN {series} s USING (series) ORDER BY f.input, f.line, f."offset", s.series
                """,
                self._scope.parameters,
            )
            labels = {text: labels_of(text) for text in {row[2] for row in rows}}  # all metrics of a GPU share these
            self._series = [
                SeriesInfo(id_, Series(metric, labels[text], Position(*position)), first, last, count)
                for id_, metric, text, *position, first, last, count in rows
            ]
            self._counts = {info.id: info.count for info in self._series}
            self._metrics = {info.id: info.series.metric for info in self._series}
            self._sizes = dict(self._snapshot.rows(f"SELECT metric, count(*) FROM {series} GROUP BY metric"))
        return self._series

    def resolution_ms(self, first_ms: int, last_ms: int) -> int:
        return MINUTE_MS if self._snapshot.segments("minutes", times_ms=(first_ms, last_ms)) else 0

    @property
    def unavailable(self) -> Mapping[str, SourceUnavailable]:
        """Metrics with received values whose unit is not known yet, if no other samples of the same series exist."""
        if self._failed is None:
            measured = {(info.series.metric, identifying_labels(info.series.labels)) for info in self.series()}
            unsettled: dict[str, set[str]] = {}
            for metric, labels, name in self._unsettled_series():
                if (metric, identifying_labels(labels_of(labels))) not in measured:
                    unsettled.setdefault(metric, set()).add(name)
            self._failed = {metric: _unsettled_unit(metric, names) for metric, names in sorted(unsettled.items())}
        return self._failed

    def _unsettled_series(self) -> list[tuple[str, str, str]]:
        """Metric, labels and foreign name of each visible series whose unit is not known."""
        if not self._snapshot.manifest.of("waiting"):
            return []
        return self._snapshot.rows(
            f"""
            SELECT DISTINCT s.metric, s.labels, p.name
            FROM (SELECT name, series, input, min(time_ms) AS first_ms, max(time_ms) AS last_ms
                  FROM {self._snapshot.table("waiting")} GROUP BY ALL) p
            JOIN {self._snapshot.table("series")} s USING (series) WHERE {self._scope.where}
            """,
            self._scope.parameters,
        )

    def expect(self, requests: Sequence[RollupRequest]) -> None:
        self._expected = {}
        for request in requests:
            self._expected.setdefault(_key(request), []).append(request)

    def rollups(self, requests: Sequence[RollupRequest]) -> list[RollupResult]:
        """Answer requests: read once what several of them need, and read the next part while one is reduced."""
        self.series()
        keys = [_key(request) for request in requests]
        answering: list[RollupTables | None] = [
            self._cached_tables.get((key, request.step_ms)) for key, request in zip(keys, requests, strict=True)
        ]
        missing: dict[Groups, list[int]] = {}
        for index, (key, table) in enumerate(zip(keys, answering, strict=True)):
            if table is None or not table.covers(requests[index]):
                missing.setdefault(key, []).append(index)
        tables = {key: self._tables(key, [requests[index] for index in indices]) for key, indices in missing.items()}
        self._fill([part for key, by_step in tables.items() for part in self._parts(key, list(by_step.values()))])
        for key, indices in missing.items():
            for index in indices:
                answering[index] = tables[key][requests[index].step_ms]
        self._cache({(key, step): table for key, by_step in tables.items() for step, table in by_step.items()})
        return [table.answer(request) for table, request in zip(answering, requests, strict=True) if table is not None]

    def samples(
        self, series: Sequence[SeriesInfo], start_ms: int, end_ms: int
    ) -> Iterator[tuple[SeriesInfo, NDArray[np.int64], Values]]:
        """For times of which only per-minute aggregates are left: the last sample of each minute."""
        for chunk in batches(series, lambda info: self._counts.get(info.id, 0), CHUNK):
            by_id = {info.id: info for info in chunk}
            metrics = ", ".join(sorted({sql_literal(info.series.metric) for info in by_id.values()}))
            ids = ", ".join(map(str, by_id))
            where = (
                f"WHERE metric IN ({metrics}) AND series IN ({ids}) AND time_ms > {start_ms} AND time_ms <= {end_ms}"
            )
            span = (start_ms, end_ms)
            columns = self._snapshot.arrays(
                f"SELECT series, time_ms, value FROM {self._snapshot.table('samples', times_ms=span)} {where}"
                f" UNION ALL SELECT series, last_ms AS time_ms, last AS value"
                f" FROM {self._snapshot.table('minutes', times_ms=span)} {where} ORDER BY 1, 2"
            )
            ids_read = columns["series"]
            bounds = np.flatnonzero(ids_read[1:] != ids_read[:-1]) + 1
            for rows in np.split(np.arange(len(ids_read)), bounds) if len(ids_read) else ():
                yield by_id[int(ids_read[rows[0]])], columns["time_ms"][rows], columns["value"][rows]

    def _tables(self, groups: Groups, requests: Sequence[RollupRequest]) -> dict[int, RollupTables]:
        """Step -> empty tables for the requests about some groups, and for announced ones if there is room."""
        by_step: dict[int, RollupTables] = {}
        for request in requests:
            tables = by_step.get(request.step_ms)
            by_step[request.step_ms] = RollupTables.of(request) if tables is None else tables.widen(request)
        for request in self._expected.get(groups, ()):
            tables = by_step.get(request.step_ms)
            wider = RollupTables.of(request) if tables is None else tables.widen(request)
            other_bytes = sum(table.bytes for step, table in by_step.items() if step != request.step_ms)
            if other_bytes + wider.bytes <= MAX_TABLES_BYTES // 2:
                by_step[request.step_ms] = wider
        return {step: table.allocate() for step, table in by_step.items()}

    def _cache(self, fresh: Mapping[tuple[Groups, int], RollupTables]) -> None:
        """Cache tables, and drop the oldest if they take too much memory."""
        for key, table in fresh.items():
            self._cached_tables.pop(key, None)
            self._cached_tables[key] = table
        while sum(table.bytes for table in self._cached_tables.values()) > MAX_TABLES_BYTES:
            del self._cached_tables[next(iter(self._cached_tables))]

    def _parts(self, groups: Groups, tables: Sequence[RollupTables]) -> Iterator[_Part]:
        """Split groups into parts of bounded size."""
        begin = 0
        for chunk in batches(groups, lambda group: sum(self._counts.get(id_, 0) for id_ in group), CHUNK):
            ids = np.array([id_ for group in chunk for id_ in group], dtype=np.int32)
            rows = np.repeat(np.arange(len(chunk), dtype=np.int32), [len(group) for group in chunk])
            if len(ids):
                yield _Part(tables, begin, begin + len(chunk), ids, rows)
            begin += len(chunk)

    def _fill(self, parts: Sequence[_Part]) -> None:
        with ThreadPoolExecutor(1) as reader:
            reads = [reader.submit(self._read_part, part) for part in parts[:1]]
            for next_part, part in zip_longest(parts[1:], parts):
                read = reads.pop().result()
                if next_part is not None:
                    reads.append(reader.submit(self._read_part, next_part))
                for table in part.tables:
                    table.fill(read, part.begin, part.stop)

    def _read_part(self, part: _Part) -> SampleRead:
        lookup = _RowLookup(part.ids, part.rows)
        columns = self._read("samples", part, lookup, ("value",))
        starts, ends, rows = lookup.stretches(columns["series"])
        samples = StoredSamples(columns["time_ms"], columns["value"], starts, ends, rows)
        minutes = None
        if self._snapshot.segments("minutes", times_ms=(part.start_ms, part.end_ms)):
            names = ("min", "max", "sum", "count", "last", "last_ms")
            minutes = lookup.select_columns(self._read("minutes", part, lookup, names))
        return SampleRead(samples, minutes, part.end_ms - part.start_ms)

    def _read(self, table: str, part: _Part, lookup: _RowLookup, columns: Sequence[str]) -> dict[str, NDArray[Any]]:
        """``series``, ``time_ms`` and other columns of a part's rows. The result may include rows of other series and
        times."""
        metrics = sorted({self._metrics[int(id_)] for id_ in lookup.ids})
        source = self._snapshot.table(table, times_ms=(part.start_ms, part.end_ms))
        where = f"metric IN ({', '.join(map(sql_literal, metrics))}){self._times(table, part)}"
        ranges = [""]
        if len(lookup.ids) < MIN_FULL_READ_RATIO * sum(self._sizes[metric] for metric in metrics):
            ranges = [f" AND series BETWEEN {low} AND {high}" for low, high in _ranges(lookup.ids)]
        names = ", ".join(f'"{name}"' for name in ("series", "time_ms", *columns))
        return self._snapshot.arrays(
            " UNION ALL ".join(f"SELECT {names} FROM {source} WHERE {where}{id_range}" for id_range in ranges)
        )

    def _times(self, table: str, part: _Part) -> str:
        """The condition for a part's times; empty if most of the samples meet it."""
        bounds = (part.start_ms, part.end_ms)
        spans = [
            segment.times_ms
            for segment in self._snapshot.segments(table, times_ms=bounds)
            if segment.times_ms is not None
        ]
        total_ms = sum(last - first + 1 for first, last in spans)
        needed_ms = sum(min(last, part.end_ms) - max(first, part.start_ms + 1) + 1 for first, last in spans)
        return (
            ""
            if needed_ms >= MIN_FULL_READ_RATIO * total_ms
            else f" AND time_ms > {part.start_ms} AND time_ms <= {part.end_ms}"
        )


class _RowLookup:
    """Maps the series of an answer to rows of the tables."""

    def __init__(self, ids: Ids, rows: Ids) -> None:
        order = np.argsort(ids)
        self.ids = ids[order]
        """In ascending order."""
        self._low, self._high = int(self.ids[0]) - 1, int(self.ids[-1]) + 1
        self._rows = np.full(self._high - self._low + 1, -1, dtype=np.int32)
        self._rows[self.ids - self._low] = rows[order]

    def rows(self, series: Ids) -> Ids:
        """The rows of some series, -1 for others."""
        rows: Ids = self._rows[np.clip(series, self._low, self._high) - self._low]
        return rows

    def stretches(self, series: Ids) -> tuple[Indices, Indices, Ids]:
        """Start, end and row of each stretch of samples of one series."""
        changes = np.flatnonzero(series[1:] != series[:-1]) + 1
        starts = np.concatenate([np.zeros(min(1, len(series)), dtype=np.intp), changes])
        ends, rows = np.append(starts[1:], len(series)), self.rows(series[starts])
        is_requested = rows >= 0
        return starts[is_requested], ends[is_requested], rows[is_requested]

    def select_columns(self, columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]] | None:
        """Columns of the requested series, with ``row`` in place of ``series``; None if there are none."""
        rows = self.rows(columns.pop("series"))
        is_requested = rows >= 0
        return (
            {name: column[is_requested] for name, column in (columns | {"row": rows}).items()}
            if is_requested.any()
            else None
        )


def _unsettled_unit(metric: str, names: Collection[str]) -> SourceUnavailable:
    shown_names = " and ".join(sorted(names))
    return SourceUnavailable(
        "partial",
        f"{metric} was received as {shown_names}, and its unit is not known yet: a larger value settles it, or one day"
        " of waiting",
    )


def _key(request: RollupRequest) -> Groups:
    return tuple(map(tuple, request.groups))


def _ranges(ids: Ids) -> list[tuple[int, int]]:
    """Ranges that cover all of the sorted ids and leave out the widest gaps between them."""
    gaps = np.diff(ids)
    wide = np.flatnonzero(gaps > 4096)
    if len(wide) >= MAX_RANGES:
        wide = np.sort(wide[np.argsort(gaps[wide])[-(MAX_RANGES - 1) :]])
    lows = np.concatenate([ids[:1], ids[wide + 1]])
    highs = np.concatenate([ids[wide], ids[-1:]])
    return [(int(low), int(high)) for low, high in zip(lows, highs, strict=True)]
