"""Selects the run's series (its job, its window on their clock, its GPUs) and completes the run from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import inf

import numpy as np

from trackside.catalog.job_states import ACTIVE_STATES
from trackside.catalog.metrics import METRICS
from trackside.catalog.natural import natural_key, whole_number
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.model import Record, Run, TimeRange
from trackside.query import events, record
from trackside.runs.clock import MAX_OFFSET_S
from trackside.runs.gpu_allocation import AllocationQuery, GpuAllocation, find_allocation
from trackside.runs.run_window import (
    RunPresence,
    envelope_of,
    find_window,
    log_window,
    sample_interval,
    sampled_range,
    select_rows,
)
from trackside.runs.series_location import LocatedSeries, locate_series
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import AROUND_S, MetricBackend, RunMetrics, SeriesInfo, Timing, max_windows


def run_metrics(backend: MetricBackend, run: Run, rows: MemoryStore) -> tuple[Run, RunMetrics]:
    """The run's series among all series, and the run completed from them.

    Raises SeveralRuns if only metrics are given, of several jobs, and no job was chosen; NoSuchRun if the chosen job is
    not among the jobs they name.
    """
    series = locate_series(_add_gpu_indices(backend), run.nodes)
    if not series:
        return run, RunMetrics(backend, (), None)
    run, reason = _identify(run, series, rows)
    ids = _ids(run)
    series = _rename_node(series, run, ids)
    run_nodes = frozenset(run.nodes)
    nodes = run.nodes if any(not entry.node or entry.node in run_nodes for entry in series) else ()
    own_series = [
        entry for entry in series if entry.job in ids and (not nodes or not entry.node or entry.node in run_nodes)
    ]
    if run.nodes and not nodes and not own_series:
        reason = reason or "the metrics given are of other nodes than the run's"
    if reason:
        return run, RunMetrics(backend, (), None, reason)
    window_series = own_series or _series_on_nodes(series, nodes)
    interval = sample_interval(window_series)
    window = find_window(backend, run, rows, window_series, bool(own_series), interval)
    start, end = window.start - window.shift, window.end - window.shift
    query = AllocationQuery(nodes, ids, start, end, _listed_gpus(run, rows), run.n_gpus or run.n_ranks or None)
    resolution = backend.resolution_ms(round(start * 1000), round(end * 1000)) / 1000
    allocation = find_allocation(query, series, backend, max(interval, resolution))
    is_of_run = _SeriesFilter(query, allocation, _push_source(series, nodes))
    selected = [entry for entry in series if query.overlaps(entry, AROUND_S) and is_of_run(entry)]
    if not any(query.overlaps(entry) for entry in selected):
        return run, RunMetrics(backend, (), None, "no metric was sampled while the run was there")
    gpus = len({entry.unit for entry in selected if entry.gpu})
    until = (
        max(entry.info.last_ms for entry in selected) / 1000 + window.shift if run.disposition in ACTIVE_STATES else inf
    )
    timing = Timing(
        window.start,
        max(window.end, window.start),
        sample_interval(selected),
        window.shift,
        max_windows(gpus),
        until,
        resolution,
    )
    return _complete_run(run, selected, allocation, window), RunMetrics(
        backend, tuple(entry.info for entry in selected), timing
    )


def _add_gpu_indices(backend: MetricBackend) -> Sequence[SeriesInfo]:
    """All series; a label with the index of the GPU is added where only the value of a gauge gives it."""
    infos = backend.series()
    gauges = [info for info in infos if info.series.metric == "gpu_index" and info.series.get("gpu_uuid")]
    if not gauges:
        return infos
    first, last = min(info.first_ms for info in gauges), max(info.last_ms for info in gauges)
    step = last - first + 1
    start = (first - 1) // step * step
    values, _ = backend.rollup([[info.id] for info in gauges], start, start + 2 * step, step, "max")
    indexes = np.fmax.reduce(values, axis=1)
    index = {
        info.series.get("gpu_uuid"): str(int(value)) for info, value in zip(gauges, indexes, strict=True) if value >= 0
    }
    return [_add_gpu_index(info, index) for info in infos]


def _add_gpu_index(info: SeriesInfo, index: Mapping[str | None, str]) -> SeriesInfo:
    """The series with a label for its GPU's index, if it has none. ``index``: UUID -> index."""
    gpu = index.get(info.series.get("gpu_uuid"))
    if gpu is None or info.series.get("gpu") is not None:
        return info
    labels = tuple(sorted((*info.series.labels, ("gpu", gpu))))
    return replace(info, series=replace(info.series, labels=labels))


def _ids(run: Run) -> AbstractSet[str]:
    """All spellings of the run's id."""
    return frozenset(name for name in (run.id, *run.aliases) if name)


def _identify(run: Run, series: Sequence[LocatedSeries], rows: MemoryStore) -> tuple[Run, str]:
    """(run, reason): the run with the id that its series carry, if nothing else names it; why no id can be chosen, or
    an empty text."""
    jobs = {entry.job for entry in series if entry.gpu and entry.job}
    log = log_window(rows)
    has_other_data = select_rows(rows, events("log_activity")) or select_rows(rows, record("job"))
    only_metrics = run.start is None and not has_other_data
    if run.id is not None:
        if only_metrics and jobs and not _ids(run) & jobs:
            raise NoSuchRun(f"no job {run.id} in the inputs; they hold {', '.join(sorted(jobs, key=natural_key)[:20])}")
        return run, ""
    if only_metrics and len(jobs) > 1:
        raise SeveralRuns(sorted(jobs, key=natural_key))
    if log is not None and jobs:
        jobs = _jobs_during(series, jobs, log)
    if len(jobs) == 1:
        return replace(run, id=jobs.pop()), ""
    several = (
        "the metrics are of several jobs, and the log does not show which of them it belongs to; choose one with --job"
    )
    return run, several if any(entry.job for entry in series) else ""


def _jobs_during(series: Iterable[LocatedSeries], jobs: AbstractSet[str], log: TimeRange) -> set[str]:
    """The jobs whose labels were present while the log was written, in any zone; if several are, the one whose time
    nearly equals the log's."""
    spans: dict[str, TimeRange] = {}
    for entry in series:
        if entry.gpu and entry.job in jobs:
            spans[entry.job] = envelope_of([*([spans[entry.job]] if entry.job in spans else []), sampled_range(entry)])
    jobs_near = {
        job for job, (first, last) in spans.items() if first - MAX_OFFSET_S <= log[1] and last + MAX_OFFSET_S >= log[0]
    }
    if len(jobs_near) < 2:
        return jobs_near
    best_jobs = {
        job
        for job in jobs_near
        if (shared := min(spans[job][1], log[1]) - max(spans[job][0], log[0])) > 0
        and shared >= 0.8 * (max(spans[job][1], log[1]) - min(spans[job][0], log[0]))
    }
    return best_jobs if len(best_jobs) == 1 else jobs_near


def _rename_node(series: list[LocatedSeries], run: Run, ids: AbstractSet[str]) -> list[LocatedSeries]:
    """The series with the run's only node spelled as Slurm spells it: the job label shows that they are the same node.

    Unchanged if the node has series under Slurm's name: then the label is stale, or another cluster's.
    """
    nodes = {entry.node for entry in series if entry.job in ids and entry.node}
    if len(run.nodes) != 1 or len(nodes) != 1 or any(entry.node == run.nodes[0] for entry in series):
        return series
    old, new = nodes.pop(), run.nodes[0]
    return [_set_node(entry, new) if entry.node == old else entry for entry in series]


def _set_node(entry: LocatedSeries, node: str) -> LocatedSeries:
    """The series with another node's name."""
    labels = dict(entry.series.labels) | {"node": node}
    info_series = replace(entry.series, labels=tuple(sorted(labels.items())))
    return entry._replace(node=node, info=replace(entry.info, series=info_series))


def _series_on_nodes(series: Sequence[LocatedSeries], nodes: Sequence[str]) -> list[LocatedSeries]:
    """The series of these nodes; only those of GPUs if there are any."""
    node_names = frozenset(nodes)
    on_nodes = [entry for entry in series if not node_names or not entry.node or entry.node in node_names]
    return [entry for entry in on_nodes if entry.gpu] or on_nodes or list(series)


# -- whether a series is the run's


def _listed_gpus(run: Run, rows: MemoryStore) -> AbstractSet[str]:
    """The GPUs that the scheduler lists for this attempt's nodes, as ``node:index``; empty if it lists none."""
    for row in reversed(select_rows(rows, record("job"))):
        gpus = frozenset(row.many("gpus")) if isinstance(row, Record) else frozenset()
        if gpus and (not run.nodes or {gpu.rpartition(":")[0] for gpu in gpus} <= set(run.nodes)):
            return gpus
    return frozenset()


def _push_source(series: Sequence[LocatedSeries], nodes: Sequence[str]) -> frozenset[str]:
    """The name under which training metrics arrive if not a node of the run: the one service that serves them, such as
    a push gateway, provided that no series is of another job."""
    training = {entry.node for entry in series if entry.series.metric.startswith("training_")}
    machines = {
        entry.node for entry in series if not entry.series.metric.startswith(("training_", "exporter_", "scrape_"))
    }
    is_only_source = (
        len(training) == 1
        and not training & {*nodes, *machines}
        and len({entry.job for entry in series if entry.job}) < 2
    )
    return frozenset(training) if is_only_source else frozenset()


class _SeriesFilter:
    """Says of a series whether it measures what the run held: its GPUs, else its nodes, else its own process."""

    def __init__(self, query: AllocationQuery, allocation: GpuAllocation, pusher: frozenset[str] = frozenset()) -> None:
        self._ids, self._units = query.ids, allocation.units
        self._gpus = {unit[:2] for unit in allocation.units}
        nodes = frozenset(query.nodes) or frozenset(unit[0] for unit in allocation.units)
        self._nodes = nodes | pusher if nodes else nodes

    def __call__(self, series: LocatedSeries) -> bool:
        is_foreign = bool(series.job and self._ids and series.job not in self._ids)
        if not series.gpu:
            return not is_foreign and (not series.node or not self._nodes or series.node in self._nodes)
        if series.unit not in self._units if series.mig else (series.node, series.gpu) not in self._gpus:
            return False
        # A hardware counter under another job's label still shows its value before or after the run.
        return not is_foreign or (
            series.series.metric.startswith("gpu_") and METRICS[series.series.metric].kind in _LASTING_KINDS
        )


_LASTING_KINDS = ("counter", "sticky")


# -- what the series show about the run


def _complete_run(run: Run, selected: Sequence[LocatedSeries], allocation: GpuAllocation, window: RunPresence) -> Run:
    """The run with what its series show: times, nodes, GPUs, number of ranks."""
    rank_of_gpu = {
        (entry.node, entry.gpu): rank
        for entry in selected
        if entry.gpu and (rank := whole_number(entry.rank)) is not None
    }
    all_ranks = {rank for entry in selected if (rank := whole_number(entry.rank)) is not None}
    order = {node: index for index, node in enumerate(run.nodes)}
    gpus = sorted(
        {unit[:2] for unit in allocation.units}, key=lambda gpu: (order.get(gpu[0], len(order)), *map(natural_key, gpu))
    )
    if gpus and all(gpu in rank_of_gpu for gpu in gpus):
        gpus.sort(key=lambda gpu: rank_of_gpu[gpu])
    nodes = run.nodes or tuple(sorted({entry.node for entry in selected if entry.node}, key=natural_key))
    traced_nodes = {entry.node for entry in selected if whole_number(entry.rank) is not None}
    are_all_known = all_ranks and all_ranks == set(range(len(all_ranks))) and traced_nodes >= set(run.nodes)
    is_certain = allocation.by not in (None, "all")
    return replace(
        run,
        start=window.start if run.start is None and window.starts_inside else run.start,
        end=window.end if run.end is None and window.ends_inside else run.end,
        nodes=nodes,
        n_gpus=run.n_gpus or (len(allocation.units) if is_certain else None),
        n_ranks=run.n_ranks or (len(all_ranks) if are_all_known else None),
        gpus=tuple(f"{node}:{gpu}" for node, gpu in gpus),
        gpus_by=allocation.by,
        metric_offset_s=window.shift,
        has_time_zone=run.has_time_zone or not window.shift,  # samples carry the time since the epoch
    )
