"""A metric backend in memory: what a ``diagnose`` of files of ordinary size needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.model import Samples, Series
from trackside.stores.metric_backend import EngineRollup, MetricBackend, RollupRequest, RollupResult, SeriesInfo


class MemoryBackend(MetricBackend):
    """Samples as they come; they are sorted by time when they are first needed."""

    name = "files"

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._ids: dict[tuple[str, tuple[tuple[str, str], ...], str], int] = {}
        self._blocks: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]] = []
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | None = None
        self._infos: list[SeriesInfo] | None = None
        self._last: tuple[Sequence[Series], int, NDArray[np.int32]] | None = None
        self._count = 0

    def add(self, samples: Samples) -> None:
        ids = self._ids_of(samples.series)
        index = ids[samples.index] if len(ids) else samples.index
        self._blocks.append((index, samples.times_ms, samples.values))
        self._count += len(samples.values)
        self._sorted = self._infos = None

    def _ids_of(self, series: Sequence[Series]) -> NDArray[np.int32]:
        """The ids of some series. A list that a reader only appends to is traversed once."""
        first, ids = 0, np.empty(0, dtype=np.int32)
        if self._last is not None and self._last[0] is series and len(series) >= self._last[1]:
            _, first, ids = self._last
        if first < len(series):
            ids = np.concatenate(
                [ids, np.array([self._id(new_series) for new_series in series[first:]], dtype=np.int32)]
            )
        self._last = series, len(series), ids
        return ids

    def drain(self) -> Iterator[Samples]:
        """All blocks, each released as it is yielded; the backend is empty afterwards."""
        self._sorted = self._infos = None
        self._count = 0
        blocks, self._blocks = self._blocks[::-1], []
        while blocks:
            index, times, values = blocks.pop()
            yield Samples(self._series, index, times, values)

    def _id(self, series: Series) -> int:
        # Without a node label, the file distinguishes the series that two nodes measured of their GPU 0.
        key = series.metric, series.labels, "" if series.get("node") else series.at.path
        id_ = self._ids.get(key)
        if id_ is None:
            id_ = self._ids[key] = len(self._series)
            self._series.append(series)
        return id_

    def __len__(self) -> int:
        return self._count

    def series(self) -> Sequence[SeriesInfo]:
        if self._infos is None:
            bounds, times, _ = self._sorted_samples()
            self._infos = [
                SeriesInfo(id_, series, int(times[bounds[id_]]), int(times[bounds[id_ + 1] - 1]),
                     int(bounds[id_ + 1] - bounds[id_]))
                for id_, series in enumerate(self._series)
                if bounds[id_ + 1] > bounds[id_]
            ]  # fmt: skip
        return self._infos

    def _sorted_samples(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Where each series begins, and times and values sorted by series, time and value, without NaN."""
        if self._sorted is None:
            blocks = self._blocks or [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))]
            index, times, values = (np.concatenate([block[i] for block in blocks]) for i in range(3))
            is_number = ~np.isnan(values)
            if not is_number.all():
                index, times, values = index[is_number], times[is_number], values[is_number]
            order = np.lexsort((values, times, index))
            index, times, values = index[order], times[order], values[order]
            self._blocks = [(index, times, values)]
            bounds = np.searchsorted(index, np.arange(len(self._series) + 1))
            self._sorted = bounds, times, values
        return self._sorted

    def rollups(self, requests: Sequence[RollupRequest]) -> Sequence[RollupResult]:
        return [self._rolled_up(request) for request in requests]

    def _rolled_up(self, request: RollupRequest) -> RollupResult:
        out = np.full((len(request.groups), request.width), np.nan)
        sample_count = 0
        for row, ids in enumerate(request.groups):
            times, values = self._samples_of(ids, request.start_ms, request.end_ms)
            sample_count += len(times)
            roll(out[row], times, values, request)
        return out, sample_count

    def _samples_of(
        self, ids: Sequence[int], start_ms: int, end_ms: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        bounds, all_times, all_values = self._sorted_samples()
        parts = []
        for id_ in ids:
            times = all_times[bounds[id_] : bounds[id_ + 1]]
            first, last = np.searchsorted(times, [start_ms, end_ms], side="right")
            parts.append((times[first:last], all_values[bounds[id_] + first : bounds[id_] + last]))
        if len(parts) == 1:
            return parts[0]
        times = np.concatenate([part[0] for part in parts])
        values = np.concatenate([part[1] for part in parts])
        order = np.lexsort((values, times))
        return times[order], values[order]


def roll(
    out: NDArray[np.float64], times: NDArray[np.int64], values: NDArray[np.float64], request: RollupRequest
) -> None:
    """Fill in the windows from samples in time order, all inside the request's bounds."""
    if len(times):
        windows = (times - request.start_ms - 1) // request.step_ms
        starts = np.flatnonzero(np.diff(windows, prepend=-1))
        out[windows[starts]] = rolled_up(values, starts, request.rollup)


@np.errstate(invalid="ignore", over="ignore")  # the mean of infinite values is NaN
def rolled_up(values: NDArray[np.float64], starts: NDArray[np.intp], rollup: EngineRollup) -> NDArray[np.float64]:
    """One value for each run of values that begins at ``starts``."""
    counts = np.diff(starts, append=len(values)).astype(np.float64)
    result: NDArray[np.float64]
    match rollup:
        case "count":
            result = counts
        case "last":
            result = values[np.append(starts[1:], len(values)) - 1]
        case "min":
            result = np.minimum.reduceat(values, starts)
        case "max":
            result = np.maximum.reduceat(values, starts)
        case "sum":
            result = np.add.reduceat(values, starts)
        case "avg":
            result = np.add.reduceat(values, starts) / counts
    return result
