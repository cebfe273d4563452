"""A metric backend over a Prometheus-compatible server: VictoriaMetrics, Prometheus, Mimir, Thanos.

The server rolls up, with one query for all series of a metric. Two things are fetched as samples and rolled up here,
because the server's result would differ from the backend in memory: series with values that stand for no measurement,
and windows in which several of the server's series form one of ours (the job label of a GPU changed).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trackside.http.unavailable import SourceUnavailable
from trackside.stores.memory_backend import roll
from trackside.stores.metric_backend import EngineRollup, Groups, RollupRequest, RollupResult, SampleBackend, SeriesInfo
from trackside.stores.metric_server import MetricOptions, MetricServer, RunScope
from trackside.stores.prometheus.api import Api
from trackside.stores.prometheus.matrix import Times, Values
from trackside.stores.prometheus.scope import RunSources, find_sources, has_series
from trackside.stores.prometheus.series import MAX_READ_SAMPLES, MetricSource, window_spans

MAX_FETCHED_SAMPLES = 20_000_000
"""Maximum number of samples fetched for one answer that the server cannot roll up."""
SourceRow = tuple[MetricSource, int]
"""A series of the server: its source, and its row there."""
Flags = NDArray[np.bool_]
MAX_TABLES_BYTES = 384 << 20
"""Size of the cache of answers, for requests that repeat or cover a part of earlier windows."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """The windows of some groups, as far as requests for them are known, and the query that gives them."""

    request: RollupRequest
    future: Future[Values]

    @property
    def bytes(self) -> int:
        return _bytes(self.request)

    def covers(self, request: RollupRequest) -> bool:
        """Whether the table has all windows of another request."""
        return self.request.start_ms <= request.start_ms and self.request.end_ms >= request.end_ms

    def windows(self, request: RollupRequest) -> Values:
        first = (request.start_ms - self.request.start_ms) // request.step_ms
        return self.future.result()[:, first : first + request.width].copy()


class PrometheusBackend(MetricServer, SampleBackend):
    """The series of a server that concern a run."""

    title = "prometheus"

    def __init__(self, options: MetricOptions, scope: RunScope | None = None) -> None:
        super().__init__(options, scope)
        self._api = Api(options, self.endpoint)
        self._lookup: Future[RunSources] | None = None
        self._lookup_lock = threading.Lock()
        self._tables: dict[tuple[Groups, int, EngineRollup], _Table] = {}
        """The most recently used last."""
        self._expected: dict[tuple[Groups, int, EngineRollup], RollupRequest] = {}
        self._counts: dict[tuple[Groups, int, int], Future[int]] = {}
        """Number of samples for announced requests, by groups, start and end."""

    @property
    def unavailable(self) -> Mapping[str, SourceUnavailable]:
        """Metrics that are unavailable; they may have been measured all the same."""
        return self._sources.unavailable

    def close(self) -> None:
        self._api.close()

    def prefetch(self) -> None:
        with self._lookup_lock:
            if self._lookup is None:
                self._lookup = Future()
                threading.Thread(
                    target=self._find_sources, args=(self._lookup,), name="prometheus-look", daemon=True
                ).start()

    def _find_sources(self, lookup: Future[RunSources]) -> None:
        try:
            lookup.set_result(find_sources(self._api, self.scope))
        except BaseException as error:  # noqa: BLE001 - the caller that waits gets it
            lookup.set_exception(error)

    @property
    def _sources(self) -> RunSources:
        self.prefetch()
        assert self._lookup is not None
        return self._lookup.result()

    def has_series(self) -> bool:
        """Whether the server has any series with the job's id: far cheaper than a full lookup, and enough for a job
        whose time and nodes are unknown. Raises SourceUnavailable."""
        return has_series(self._api, self.scope.jobs)

    def series(self) -> Sequence[SeriesInfo]:
        return self._sources.series

    def samples(
        self, series: Sequence[SeriesInfo], start_ms: int, end_ms: int
    ) -> Iterator[tuple[SeriesInfo, Times, Values]]:
        sources = self._sources
        by_id = {info.id: info for info in series}
        rows = _by_source(part for id_ in by_id for part in sources.parts.get(id_, ()))
        for source, chosen in rows.items():
            for row, times, values in source.measured_samples(chosen, start_ms, end_ms):
                yield by_id[source.series_ids[row]], times, values

    def expect(self, requests: Sequence[RollupRequest]) -> None:
        """Send the queries for these requests now, in parallel."""
        self.series()  # not in a thread of the pool, which the lookup itself waits for
        self._expected = {}
        for request in requests:
            key = _key(request)
            self._expected[key] = _union(self._expected[key], request) if key in self._expected else request
        self._counts = {
            key: self._api.pool.submit(self._sample_count, request)
            for key, request in {_count_key(request): request for request in requests}.items()
        }
        bytes_left = MAX_TABLES_BYTES
        for key, request in self._expected.items():
            bytes_left -= _bytes(request)
            if bytes_left < 0:
                break
            if key not in self._tables or not self._tables[key].covers(request):
                self._tables[key] = self._table(request)

    def rollups(self, requests: Sequence[RollupRequest]) -> list[RollupResult]:
        try:
            self.series()
        except SourceUnavailable as reason:
            return [reason] * len(requests)
        tables = [self._table_for(request) for request in requests]
        counts = [
            self._counts.get(_count_key(request)) or self._api.pool.submit(self._sample_count, request)
            for request in requests
        ]
        answers: list[RollupResult] = []
        for request, table, count in zip(requests, tables, counts, strict=True):
            try:
                answers.append((table.windows(request), count.result()))
            except SourceUnavailable as reason:
                self._tables.pop(_key(request), None)  # the next try may succeed
                self._counts.pop(_count_key(request), None)
                answers.append(reason)
        self._trim_tables()
        return answers

    def _table_for(self, request: RollupRequest) -> _Table:
        key = _key(request)
        table = self._tables.pop(key, None)
        if table is None or not table.covers(request):
            expected = self._expected.get(key)
            table = self._table(request if expected is None else _union(expected, request))
        self._tables[key] = table
        return table

    def _trim_tables(self) -> None:
        """Drop the oldest tables if all together are too large."""
        size = sum(table.bytes for table in self._tables.values())
        for key in list(self._tables):
            if size <= MAX_TABLES_BYTES:
                break
            size -= self._tables.pop(key).bytes

    def _table(self, request: RollupRequest) -> _Table:
        return _Table(request, self._api.pool.submit(lambda: _windows_of(self._parts(request), request)))

    def _parts(self, request: RollupRequest) -> list[list[SourceRow]]:
        parts = self._sources.parts
        return [[part for id_ in ids for part in parts.get(id_, ())] for ids in request.groups]

    def _sample_count(self, request: RollupRequest) -> int:
        """How many samples a request is answered from."""
        rows = _by_source(part for group in self._parts(request) for part in group)
        return sum(source.sample_count(chosen, request.start_ms, request.end_ms) for source, chosen in rows.items())


def _key(request: RollupRequest) -> tuple[Groups, int, EngineRollup]:
    return tuple(map(tuple, request.groups)), request.step_ms, request.rollup


def _count_key(request: RollupRequest) -> tuple[Groups, int, int]:
    return tuple(map(tuple, request.groups)), request.start_ms, request.end_ms


def _union(one: RollupRequest, other: RollupRequest) -> RollupRequest:
    """The request for the windows of both, and those between."""
    return replace(one, start_ms=min(one.start_ms, other.start_ms), end_ms=max(one.end_ms, other.end_ms))


def _bytes(request: RollupRequest) -> int:
    return 8 * len(request.groups) * request.width


# -- windows: rolled up by the server, or here if necessary


def _windows_of(groups: Sequence[Sequence[SourceRow]], request: RollupRequest) -> Values:
    """Values of shape (groups, windows); each group of the server's series forms one series of ours. Raises
    SourceUnavailable."""
    shape = len(groups), request.width
    out, mixed = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    parts = [part for group in groups for part in group]
    if not parts or not request.width:
        return out
    values, first = _roll_up_rows(parts, request), 0
    for row, group in enumerate(groups):
        group_values = values[first : first + len(group)]
        first += len(group)
        if len(group) == 1:
            out[row] = group_values[0]
        elif group:
            sampled = (~np.isnan(group_values)).sum(axis=0)
            if request.rollup in ("sum", "count"):
                out[row] = np.where(sampled > 0, np.nansum(group_values, axis=0), np.nan)
            else:  # a window that only one of them has a value for gets that value
                out[row] = (np.fmin if request.rollup == "min" else np.fmax).reduce(group_values, axis=0)
                mixed[row] = (sampled > 1) & (request.rollup not in ("min", "max"))
    mixed[:, _complete_windows(parts[0][0], request) :] = True
    if mixed.any():
        _from_samples(groups, request, mixed, out)
    return out


def _by_source(parts: Iterable[SourceRow]) -> dict[MetricSource, list[int]]:
    """The rows of each source, in order."""
    by_source: dict[MetricSource, set[int]] = {}
    for source, row in parts:
        by_source.setdefault(source, set()).add(row)
    return {source: sorted(rows) for source, rows in by_source.items()}


def _complete_windows(source: MetricSource, request: RollupRequest) -> int:
    """How many windows end before the newest samples, which are not read."""
    return int(np.clip((source.end_ms - request.start_ms) // request.step_ms, 0, None))


def _roll_up_rows(parts: Sequence[SourceRow], request: RollupRequest) -> Values:
    """Values of shape (parts, windows) of each series, in our unit."""
    values = np.full((len(parts), request.width), np.nan)
    index_of = {part: index for index, part in enumerate(parts)}
    for source, rows in _by_source(parts).items():
        clean = [row for row in rows if row not in source.raw]
        end_ms = min(request.end_ms, request.start_ms + _complete_windows(source, request) * request.step_ms)
        result = source.rolled_up(clean, request.start_ms, end_ms, request.step_ms, request.rollup)
        if request.rollup != "count":
            with np.errstate(over="ignore", invalid="ignore"):
                result *= source.scales[clean][:, None]
        values[[index_of[source, row] for row in clean], : result.shape[1]] = result
        for row in rows:
            if row in source.raw:
                _roll_window(values[index_of[source, row]], *source.raw[row], request)
    return values


def _roll_window(out: Values, times: Times, values: Values, request: RollupRequest) -> None:
    """Fill in the windows from samples in time order."""
    first, last = np.searchsorted(times, [request.start_ms, request.end_ms], side="right")
    roll(out, times[first:last], values[first:last], request)


def _from_samples(groups: Sequence[Sequence[SourceRow]], request: RollupRequest, mixed: Flags, out: Values) -> None:
    """Roll up the windows marked in ``mixed`` from samples."""
    mixed_rows = [row for row in range(len(groups)) if groups[row] and mixed[row].any()]
    read: dict[SourceRow, list[tuple[Times, Values]]] = {}
    for source, rows in _by_source(part for row in mixed_rows for part in groups[row]).items():
        _read(source, rows, request, np.asarray(mixed[mixed_rows].any(axis=0)), read)
    for row in mixed_rows:
        pieces = [piece for part in groups[row] for piece in read.get(part, ())]
        if pieces:
            times, values = (np.concatenate([piece[i] for piece in pieces]) for i in (0, 1))
            order = np.lexsort((values, times))
            rolled = np.full(out.shape[1], np.nan)
            _roll_window(rolled, times[order], values[order], request)
            out[row, mixed[row]] = rolled[mixed[row]]


def _read(
    source: MetricSource,
    rows: Sequence[int],
    request: RollupRequest,
    marked: Flags,
    read: dict[SourceRow, list[tuple[Times, Values]]],
) -> None:
    """Read the samples of some rows in the marked windows, in our unit."""
    clean = [row for row in rows if row not in source.raw]
    samples_per_window = source.counts[clean].sum() / (source.end_ms - source.start_ms) * request.step_ms
    if samples_per_window * marked.sum() > MAX_FETCHED_SAMPLES:
        raise SourceUnavailable(
            "too_large",
            f"{source.server}: several series of {source.name} measure the same at the same time, and their"
            f" {samples_per_window * marked.sum():,.0f} samples are more than the limit; choose one of each with match,"
            " or let the server deduplicate",
        )
    for prefetch, end in window_spans(marked * max(samples_per_window, 1.0), MAX_READ_SAMPLES):
        start_ms, end_ms = (request.start_ms + window * request.step_ms for window in (prefetch, end))
        end_ms = min(end_ms, source.end_ms)
        for row in rows:
            if row in source.raw:
                times, values = source.raw[row]
                first, last = np.searchsorted(times, [start_ms, end_ms], side="right")
                read.setdefault((source, row), []).append((times[first:last], values[first:last]))
        if clean and start_ms < end_ms:
            for row, (times, values) in source.samples(set(clean), start_ms, end_ms).items():
                read.setdefault((source, row), []).append((times, values * source.scales[row]))


METRIC_SERVER = PrometheusBackend
