"""Curves held in memory: what a ``diagnose`` of files of ordinary size needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trackside.model import Samples, Series
from trackside.stores.curves import Curves, Engine, Held, RolledUp, Wanted


class MemoryCurves(Curves):
    """Samples as they come, put in order of time when they are first asked for."""

    name = "files"

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._ids: dict[tuple[str, tuple[tuple[str, str], ...], str], int] = {}
        self._blocks: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.float64]]] = []
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] | None = None
        self._held: list[Held] | None = None
        self._last: tuple[Sequence[Series], int, NDArray[np.int32]] | None = None
        self._count = 0

    def add(self, samples: Samples) -> None:
        known = self._known(samples.series)
        index = known[samples.index] if len(known) else samples.index
        self._blocks.append((index, samples.times_ms, samples.values))
        self._count += len(samples.values)
        self._sorted = self._held = None

    def _known(self, series: Sequence[Series]) -> NDArray[np.int32]:
        """Their numbers; a list that a reader only appends to is gone through once."""
        begin, known = 0, np.empty(0, dtype=np.int32)
        if self._last is not None and self._last[0] is series and len(series) >= self._last[1]:
            _, begin, known = self._last
        if begin < len(series):
            known = np.concatenate([known, np.array([self._id(each) for each in series[begin:]], dtype=np.int32)])
        self._last = series, len(series), known
        return known

    def drained(self) -> Iterator[Samples]:
        """All blocks, each let go as it is taken; nothing is held afterwards."""
        self._sorted = self._held = None
        self._count = 0
        blocks, self._blocks = self._blocks[::-1], []
        while blocks:
            index, times, values = blocks.pop()
            yield Samples(self._series, index, times, values)

    def _id(self, series: Series) -> int:
        # Without a node it is the file that tells apart what two nodes measured of their GPU 0.
        key = series.metric, series.labels, "" if series.get("node") else series.at.path
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._series)
            self._series.append(series)
        return found

    def __len__(self) -> int:
        return self._count

    def held(self) -> Sequence[Held]:
        if self._held is None:
            bounds, times, _ = self._arranged()
            self._held = [
                Held(id_, series, int(times[bounds[id_]]), int(times[bounds[id_ + 1] - 1]),
                     int(bounds[id_ + 1] - bounds[id_]))
                for id_, series in enumerate(self._series)
                if bounds[id_ + 1] > bounds[id_]
            ]  # fmt: skip
        return self._held

    def _arranged(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Where each series begins, and times and values by series, time and value; NaN values are left out."""
        if self._sorted is None:
            blocks = self._blocks or [(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float64))]
            index, times, values = (np.concatenate([block[i] for block in blocks]) for i in range(3))
            kept = ~np.isnan(values)
            if not kept.all():
                index, times, values = index[kept], times[kept], values[kept]
            order = np.lexsort((values, times, index))
            index, times, values = index[order], times[order], values[order]
            self._blocks = [(index, times, values)]
            bounds = np.searchsorted(index, np.arange(len(self._series) + 1))
            self._sorted = bounds, times, values
        return self._sorted

    def rollups(self, wanted: Sequence[Wanted]) -> Sequence[RolledUp]:
        return [self._rolled(each) for each in wanted]

    def _rolled(self, wanted: Wanted) -> RolledUp:
        out = np.full((len(wanted.groups), wanted.width), np.nan)
        used = 0
        for row, ids in enumerate(wanted.groups):
            times, values = self._curve(ids, wanted.start_ms, wanted.end_ms)
            used += len(times)
            roll(out[row], times, values, wanted)
        return out, used

    def _curve(self, ids: Sequence[int], start_ms: int, end_ms: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        bounds, all_times, all_values = self._arranged()
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


def roll(out: NDArray[np.float64], times: NDArray[np.int64], values: NDArray[np.float64], wanted: Wanted) -> None:
    """Fill in the windows of samples that are in order of time, none of them outside."""
    if len(times):
        windows = (times - wanted.start_ms - 1) // wanted.step_ms
        starts = np.flatnonzero(np.diff(windows, prepend=-1))
        out[windows[starts]] = rolled_up(values, starts, wanted.how)


@np.errstate(invalid="ignore", over="ignore")  # infinite values have no mean, and that is NaN
def rolled_up(values: NDArray[np.float64], starts: NDArray[np.intp], how: Engine) -> NDArray[np.float64]:
    """One value for each run of values that begins at ``starts``."""
    counts = np.diff(starts, append=len(values)).astype(np.float64)
    found: NDArray[np.float64]
    match how:
        case "count":
            found = counts
        case "last":
            found = values[np.append(starts[1:], len(values)) - 1]
        case "min":
            found = np.minimum.reduceat(values, starts)
        case "max":
            found = np.maximum.reduceat(values, starts)
        case "sum":
            found = np.add.reduceat(values, starts)
        case "avg":
            found = np.add.reduceat(values, starts) / counts
    return found
