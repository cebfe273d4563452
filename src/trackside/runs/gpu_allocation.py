"""Finds which GPUs of its nodes were allocated to the run: by job label, by the scheduler's records, by memory use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trackside.model import GpusBy, TimeRange
from trackside.runs.series_location import LocatedSeries, Unit
from trackside.stores.metric_backend import AROUND_S, MetricBackend, step_of

GpuUse = Literal["run", "other", "idle"]
"""Who used a GPU's memory while the run was there: the run, another process, nobody."""
MEMORY_METRIC = "gpu_memory_used_bytes"
MIN_CONTEXT_BYTES = 256 << 20
"""Bytes that a process uses at least: a CUDA context alone is 300 to 600 MB, depending on GPU and driver."""
MAX_IDLE_BYTES = 1 << 30
"""Bytes that an idle GPU uses at most: the driver keeps up to 600 MB for itself, a display some more."""
MAX_ALLOC_GAP_S = 120.0
"""Seconds within which a GPU's memory is allocated and freed with the job: prolog, Slurm's KillWait, epilog."""
Cells = NDArray[np.float64]
"""(units, windows), NaN where nothing was sampled."""
METHODS: tuple[GpusBy, ...] = ("label", "scheduler", "whole", "tracer", "occupancy", "all")
"""From most to least certain."""


@dataclass(frozen=True, slots=True)
class AllocationQuery:
    """What is known of the run before its GPUs are determined.

    ``nodes``: its nodes, empty if unknown. ``ids``: spellings of its id. ``start``, ``end``: its window, seconds on the
    clock of the series. ``detail``: its GPUs as ``node:index`` if the scheduler lists them. ``n_gpus``: their number.
    """

    nodes: tuple[str, ...]
    ids: AbstractSet[str]
    start: float
    end: float
    detail: AbstractSet[str] = frozenset()
    n_gpus: int | None = None

    def overlaps(self, series: LocatedSeries, slack: float = 0.0) -> bool:
        """Whether a series has samples while the run was there, or within ``slack`` seconds of it."""
        return series.info.last_ms >= (self.start - slack) * 1000 and series.info.first_ms <= (self.end + slack) * 1000

    def coincides_with(self, series: LocatedSeries) -> bool:
        """Whether a series began and ended with the run, to within MAX_ALLOC_GAP_S seconds."""
        first, last = series.info.first_ms / 1000, series.info.last_ms / 1000
        return self.overlaps(series) and first >= self.start - MAX_ALLOC_GAP_S and last <= self.end + MAX_ALLOC_GAP_S


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """The GPUs (or MIG instances) of the run. ``by``: how they are known; None if no series is of a GPU."""

    units: frozenset[Unit]
    by: GpusBy | None


def find_allocation(
    query: AllocationQuery, series: Sequence[LocatedSeries], backend: MetricBackend, interval: float
) -> GpuAllocation:
    """The run's GPUs, node by node, each by the most certain way available. ``interval``: seconds between samples."""

    def find_uses(units: Sequence[Unit]) -> Mapping[Unit, GpuUse]:  # expensive: only called where nothing else decides
        return gpu_uses(backend, series, units, query.start, query.end, interval)

    on_gpus = [entry for entry in series if entry.gpu and query.overlaps(entry)]
    groups = _group_by_node(on_gpus, query)
    counts = _gpu_counts(groups, query)
    units: set[Unit] = set()
    methods: list[GpusBy] = []
    for node, node_series in groups.items():
        group_units, method = _allocate_in_group(node_series, counts[node], query, find_uses)
        if group_units:
            units.update(group_units)
            methods.append(method)
    return GpuAllocation(frozenset(units), max(methods, key=METHODS.index, default=None))


def _group_by_node(series: Iterable[LocatedSeries], query: AllocationQuery) -> dict[str, list[LocatedSeries]]:
    """Node -> its series, for the run's nodes; all under an empty name if the number of GPUs per node is unknown."""
    per_node = bool(query.nodes) and (query.n_gpus is None or query.n_gpus % len(query.nodes) == 0)
    groups: dict[str, list[LocatedSeries]] = {}
    nodes = frozenset(query.nodes)
    for entry in series:
        if not nodes or not entry.node or entry.node in nodes:
            groups.setdefault(entry.node if per_node else "", []).append(entry)
    return groups


def _gpu_counts(groups: Iterable[str], query: AllocationQuery) -> dict[str, int | None]:
    """Group -> number of GPUs that the run held in it; None if unknown."""
    nodes_of_gpus = [gpu.rpartition(":")[0] for gpu in query.detail]
    per_node = query.n_gpus if query.n_gpus is None or not query.nodes else query.n_gpus // len(query.nodes)
    return {node: (query.n_gpus if not node else nodes_of_gpus.count(node) or per_node) for node in groups}


def _allocate_in_group(
    series: Sequence[LocatedSeries],
    n_gpus: int | None,
    query: AllocationQuery,
    find_uses: Callable[[Sequence[Unit]], Mapping[Unit, GpuUse]],
) -> tuple[AbstractSet[Unit], GpusBy]:
    """The run's GPUs among those of some series, and the method; ``n_gpus``: their number, if known."""
    units = _allocatable_units(series)
    labeled = {entry.unit for entry in series if entry.job and entry.job in query.ids} & units
    if labeled:
        return labeled, "label"
    free = sorted(units - _units_of_others(series, query))
    listed = {unit for unit in free if f"{unit[0]}:{unit[1]}" in query.detail and not unit[2]}
    if listed:
        return listed, "scheduler"
    if n_gpus is not None and len(free) <= n_gpus:
        return set(free), "whole"
    traced = {entry.unit for entry in series if entry.rank and query.coincides_with(entry)} & set(free)
    if traced and (n_gpus is None or len(traced) <= n_gpus):
        return traced, "tracer"
    return _choose_by_use(free, n_gpus, find_uses(free))


def _choose_by_use(
    free: Sequence[Unit], n_gpus: int | None, uses: Mapping[Unit, GpuUse]
) -> tuple[AbstractSet[Unit], GpusBy]:
    """The run's GPUs by memory that was allocated and freed with the run; else every GPU that no other job used."""
    used_by_run = {unit for unit in free if uses.get(unit) == "run"}
    unused_by_others = {unit for unit in free if uses.get(unit) != "other"}
    if n_gpus is None:
        return (used_by_run, "occupancy") if used_by_run else (unused_by_others, "all")
    if used_by_run and len(used_by_run) <= n_gpus:
        return (unused_by_others if len(unused_by_others) <= n_gpus else used_by_run), "occupancy"
    if unused_by_others and len(unused_by_others) <= n_gpus:
        return unused_by_others, "occupancy"
    return used_by_run or unused_by_others, "all"


def _allocatable_units(series: Iterable[LocatedSeries]) -> set[Unit]:
    """The units that can be allocated: the MIG instances of a GPU that has some, other GPUs as a whole."""
    units = {entry.unit for entry in series}
    gpus_with_mig = {unit[:2] for unit in units if unit[2]}
    return {unit for unit in units if unit[2] or unit[:2] not in gpus_with_mig}


def _units_of_others(series: Iterable[LocatedSeries], query: AllocationQuery) -> set[Unit]:
    """Units that carried another job's label for more than a moment of the run."""
    others = set()
    for entry in series:
        if entry.job and entry.job not in query.ids:
            first, last = entry.info.first_ms / 1000, entry.info.last_ms / 1000
            shared = min(last, query.end) - max(first, query.start)
            if shared >= min(MAX_ALLOC_GAP_S, (last - first) / 2, (query.end - query.start) / 2):
                others.add(entry.unit)
    return others


# -- when GPU memory was in use: by the run, by others, or by nobody


def gpu_uses(
    backend: MetricBackend,
    series: Iterable[LocatedSeries],
    units: Sequence[Unit],
    start: float,
    end: float,
    interval: float,
) -> Mapping[Unit, GpuUse]:
    """Who used the memory of each unit between two times on the series' own clock; units without samples are left out.

    The run's units are in use while it was there, and free at some time around its start and around its end.
    """
    ids = _memory_series_ids(series, set(units))
    if not ids:
        return {}
    groups, step = list(ids.values()), step_of(end - start + 2 * AROUND_S, interval, fine=True)
    low, times = _roll_up(backend, groups, start - AROUND_S, end + AROUND_S, step, "min")
    high, _ = _roll_up(backend, groups, start - AROUND_S, end + AROUND_S, step, "max")
    threshold = _threshold(low)
    inside = (times - step >= start) & (times <= end)
    if not inside.any():
        inside = (times > start) & (times - step < end)
    with np.errstate(invalid="ignore"):
        in_use = [bool((high[row, inside] > threshold[row]).any()) for row in range(len(groups))]
    free_before = _was_free(
        backend,
        groups,
        (start - MAX_ALLOC_GAP_S, min(start + AROUND_S, end)),
        (start - MAX_ALLOC_GAP_S, start),
        threshold,
        step,
    )
    free_after = _was_free(
        backend, groups, (max(end - MAX_ALLOC_GAP_S, start), end + AROUND_S), (end, end + AROUND_S), threshold, step
    )
    use_of_row: list[GpuUse] = [
        "idle" if not in_use[row] else "run" if free_before[row] and free_after[row] else "other"
        for row in range(len(groups))
    ]
    return {unit: use_of_row[row] for row, unit in enumerate(ids) if not np.isnan(high[row]).all()}


def use_times(
    backend: MetricBackend,
    series: Iterable[LocatedSeries],
    units: Sequence[Unit],
    first: float,
    last: float,
    interval: float,
) -> Mapping[Unit, Sequence[TimeRange]]:
    """When the memory of each unit was in use, between two times on the series' own clock, in seconds."""
    ids = _memory_series_ids(series, set(units))
    if not ids:
        return {}
    step = step_of(last - first, interval, fine=True)
    high, times = _roll_up(backend, list(ids.values()), first, last, step, "max")
    threshold = _threshold(high)[:, None]
    with np.errstate(invalid="ignore"):
        in_use = high > threshold
    return {unit: _in_use_ranges(in_use[row], np.isnan(high[row]), times, step) for row, unit in enumerate(ids)}


def _in_use_ranges(in_use: NDArray[np.bool_], unknown: NDArray[np.bool_], times: Cells, step: float) -> list[TimeRange]:
    """The time ranges of windows in use; a window without samples between two windows in use counts as in use.

    ``times``: ends of the windows, ``step``: their length, both in seconds.
    """
    ranges: list[TimeRange] = []
    previous_in_use = False
    for window in np.flatnonzero(~unknown).tolist():
        if in_use[window]:
            if previous_in_use:
                ranges[-1] = ranges[-1][0], float(times[window])
            else:
                ranges.append((float(times[window]) - step, float(times[window])))
        previous_in_use = bool(in_use[window])
    return ranges


def _memory_series_ids(series: Iterable[LocatedSeries], units: set[Unit]) -> dict[Unit, list[int]]:
    """Unit -> the ids of its series of memory in use."""
    ids: dict[Unit, list[int]] = {}
    for entry in series:
        if entry.series.metric == MEMORY_METRIC and entry.unit in units:
            ids.setdefault(entry.unit, []).append(entry.info.id)
    return ids


def _roll_up(
    backend: MetricBackend,
    groups: Sequence[Sequence[int]],
    start: float,
    end: float,
    step: float,
    how: Literal["min", "max"],
) -> tuple[Cells, Cells]:
    """(bytes per unit and window, ends of the windows in seconds); ``how``: which sample of a window counts."""
    step_ms = round(step * 1000)
    first = math.floor(start * 1000 / step_ms) * step_ms
    last = max(math.ceil(end * 1000 / step_ms) * step_ms, first + step_ms)
    values, _ = backend.rollup(groups, first, last, step_ms, how)
    return values, np.arange(first + step_ms, last + 1, step_ms, dtype=np.float64) / 1000


def _threshold(cells: Cells) -> Cells:
    """(units,) Bytes above which each unit counts as in use."""
    lowest: Cells = np.where(np.isnan(cells), math.inf, cells).min(axis=1)
    return np.minimum(lowest, MAX_IDLE_BYTES) + MIN_CONTEXT_BYTES


def _was_free(
    backend: MetricBackend,
    groups: Sequence[Sequence[int]],
    within: TimeRange,
    outside: TimeRange,
    threshold: Cells,
    step: float,
) -> NDArray[np.bool_]:
    """(units,) Whether the memory of each was free at some time ``within``; also True if there is no sample in
    ``outside``, which is outside the run."""
    step_s = min(step, 15.0)
    low, times = _roll_up(backend, groups, *within, step_s, "min")
    is_outside = (times > outside[0]) & (times <= outside[1])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.isnan(low[:, is_outside]).all(axis=1) | (low <= threshold[:, None]).any(axis=1))
