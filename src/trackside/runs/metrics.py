"""Selects the run's series (its job, its window on their clock, its GPUs) and completes the run from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from trackside.catalog.job_states import ACTIVE_STATES
from trackside.catalog.metrics import METRICS
from trackside.catalog.natural import natural_key, whole_number
from trackside.errors import NoSuchRun, SeveralRuns
from trackside.evidence import Frame
from trackside.model import Record, Run, TimeRange
from trackside.query import Query, Row, events, record
from trackside.runs.clock import MAX_OFFSET_S, MAX_SERIES_GAP_S, JobTimes, offset_of, shift_of
from trackside.runs.gpu_allocation import AllocationQuery, GpuAllocation, find_allocation, use_times
from trackside.runs.series_location import LocatedSeries, Unit, locate_series
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import AROUND_S, MetricBackend, RunMetrics, SeriesInfo, Timing, max_windows

INTERVAL_S = 60.0
"""Assumed sample interval if every series has a single sample (Prometheus' default scrape interval)."""
EDGE_SAMPLES = 3
"""The node's other series must last this many samples longer than the run's, for these to show its start or end."""


@dataclass(frozen=True, slots=True)
class RunPresence:
    """When the run was there. ``shift``: seconds added to the times of the series. ``starts_inside``,
    ``ends_inside``: the series show that the run was not there before ``start``, or after ``end``."""

    start: float
    end: float
    shift: float = 0.0
    starts_inside: bool = False
    ends_inside: bool = False


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
    named = frozenset(run.nodes)
    nodes = run.nodes if any(not entry.node or entry.node in named for entry in series) else ()
    own_series = [
        entry for entry in series if entry.job in ids and (not nodes or not entry.node or entry.node in named)
    ]
    if run.nodes and not nodes and not own_series:
        reason = reason or "the metrics given are of other nodes than the run's"
    if reason:
        return run, RunMetrics(backend, (), None, reason)
    window_series = own_series or _series_on_nodes(series, nodes)
    interval = _sample_interval(window_series)
    window = _run_window(backend, run, rows, window_series, bool(own_series), interval)
    start, end = window.start - window.shift, window.end - window.shift
    query = AllocationQuery(nodes, ids, start, end, _listed_gpus(run, rows), run.n_gpus or run.n_ranks or None)
    holding = find_allocation(query, series, backend, interval)
    is_of_run = _SeriesFilter(query, holding, _push_source(series, nodes))
    selected = [entry for entry in series if query.overlaps(entry, AROUND_S) and is_of_run(entry)]
    if not any(query.overlaps(entry) for entry in selected):
        return run, RunMetrics(backend, (), None, "no metric was sampled while the run was there")
    gpus = len({entry.unit for entry in selected if entry.gpu})
    until = (
        max(entry.info.last_ms for entry in selected) / 1000 + window.shift if run.disposition in ACTIVE_STATES else inf
    )
    timing = Timing(
        window.start, max(window.end, window.start), _sample_interval(selected), window.shift, max_windows(gpus), until
    )
    return _complete_run(run, selected, holding, window), RunMetrics(
        backend, tuple(entry.info for entry in selected), timing
    )


def _add_gpu_indices(backend: MetricBackend) -> Sequence[SeriesInfo]:
    """All series, with the index of their GPU where only the value of a gauge gives it."""
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
    gpu = index.get(info.series.get("gpu_uuid"))
    if gpu is None or info.series.get("gpu") is not None:
        return info
    labels = tuple(sorted((*info.series.labels, ("gpu", gpu))))
    return replace(info, series=replace(info.series, labels=labels))


def _ids(run: Run) -> AbstractSet[str]:
    return frozenset(name for name in (run.id, *run.aliases) if name)


def _identify(run: Run, series: Sequence[LocatedSeries], rows: MemoryStore) -> tuple[Run, str]:
    """The run with the id that its series carry, if nothing else names it; or the reason why the id is unknown."""
    jobs = {entry.job for entry in series if entry.gpu and entry.job}
    log = _log_window(rows)
    only_metrics = run.start is None and not _rows(rows, events("log_activity")) and not _rows(rows, record("job"))
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
            spans[entry.job] = _envelope([*([spans[entry.job]] if entry.job in spans else []), _time_range(entry)])
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
    labels = dict(entry.series.labels) | {"node": node}
    info_series = replace(entry.series, labels=tuple(sorted(labels.items())))
    return entry._replace(node=node, info=replace(entry.info, series=info_series))


def _series_on_nodes(series: Sequence[LocatedSeries], nodes: Sequence[str]) -> list[LocatedSeries]:
    """The series of these nodes; only those of GPUs if there are any."""
    wanted_nodes = frozenset(nodes)
    on_nodes = [entry for entry in series if not wanted_nodes or not entry.node or entry.node in wanted_nodes]
    return [entry for entry in on_nodes if entry.gpu] or on_nodes or list(series)


# -- the run's window


def _run_window(
    backend: MetricBackend, run: Run, rows: MemoryStore, series: Sequence[LocatedSeries], labeled: bool, interval: float
) -> RunPresence:
    """The run's window from the scheduler, else from the log, the job's label or the memory use."""
    log = _log_window(rows) if run.start is None else None
    span = (run.start, run.end) if run.start is not None else log
    envelope, near = _envelope(map(_time_range, series)), max(MAX_SERIES_GAP_S, 4 * interval)
    too_short = log is not None and log[1] - log[0] < interval  # for example, only the scheduler's closing lines
    if span is None or (too_short and not labeled):
        return _window_from_series(backend, series, envelope, labeled, interval)
    shift = 0.0
    if labeled and log is not None:
        shift = -offset_of(log, envelope)
    elif labeled or not _is_covered(series, span, near):
        shift = _clock_shift(backend, run, series, (span[0], span[1]), envelope, labeled, interval)
    start, end = span[0], span[1] if span[1] is not None else max(span[0], envelope[1] + shift)
    if log is not None and not labeled:  # a log may go silent long before the run ends
        end = max(end, _time_freed(backend, series, start - shift, near, interval) + shift)
    if log is not None and labeled and envelope[0] + shift <= end + near and envelope[1] + shift >= start - near:
        start, end = envelope[0] + shift - interval, max(end, envelope[1] + shift)
    return RunPresence(start, end, shift)


def _is_covered(series: Sequence[LocatedSeries], span: JobTimes, near: float) -> bool:
    """Whether a series spans the window from start to end; if so, no zone shift is searched."""
    start, end = span
    return any(
        first <= start + near and (end is None or last >= end - near) for first, last in map(_time_range, series)
    )


def _clock_shift(
    backend: MetricBackend,
    run: Run,
    series: Sequence[LocatedSeries],
    span: JobTimes,
    envelope: TimeRange,
    labeled: bool,
    interval: float,
) -> float:
    """Seconds to add to the series' clock, a zone offset, so that they fit the run's window."""
    near = max(MAX_SERIES_GAP_S, 4 * interval)
    by_unit = _sampled_times(series)
    if labeled or span[1] is None:
        return shift_of(span, by_unit.values(), near=near) if labeled else 0.0
    in_use = use_times(backend, series, list(by_unit), envelope[0] - interval, envelope[1], interval)
    min_count = min(run.n_gpus or run.n_ranks or 1, len(by_unit)) // 2 + 1  # a majority: one GPU may have died early
    stretches = [stretch for unit_stretches in in_use.values() for stretch in unit_stretches]
    shift = shift_of(span, stretches, min_count, near)
    if shift or any(first <= span[1] and last >= span[0] for first, last in by_unit.values()):
        return shift  # if the window holds samples, only memory allocated and freed with the run may shift them
    shift = shift_of(span, by_unit.values(), min_count, near)
    if shift or run.start is not None:
        return shift
    # A log may go silent long before its run ends: then only the start must fit.
    long_stretches = [(first, last) for first, last in stretches if last - first >= span[1] - span[0] - near]
    return shift_of((span[0], None), long_stretches, min_count, near)


def _time_freed(
    backend: MetricBackend, series: Sequence[LocatedSeries], start: float, near: float, interval: float
) -> float:
    """When memory that was allocated around ``start`` was freed, on the series' clock; ``start`` if none was."""
    units = _sampled_times(series)
    envelope = _envelope(units.values())
    in_use = use_times(backend, series, list(units), envelope[0] - interval, envelope[1], interval)
    return max(
        (last for stretches in in_use.values() for first, last in stretches if abs(first - start) <= near),
        default=start,
    )


def _window_from_series(
    backend: MetricBackend, series: Sequence[LocatedSeries], envelope: TimeRange, labeled: bool, interval: float
) -> RunPresence:
    """The window from series alone: the time with the job's label, else the time of GPU memory use, else all of it."""
    start, end = envelope[0] - interval, envelope[1]
    if labeled:
        data = _envelope((info.first_ms / 1000, info.last_ms / 1000) for info in backend.series())
    else:
        data = start, end
        in_use = use_times(backend, series, list(_sampled_times(series)), start, end, interval)
        stretches = [stretch for unit_stretches in in_use.values() for stretch in unit_stretches]
        # Memory in use from the first sample to the last does not show when the run was there.
        bounded = [stretch for stretch in stretches if stretch[0] > start + interval or stretch[1] < end - interval]
        start, end = _envelope(bounded or stretches) if stretches else (start, end)
    slack = EDGE_SAMPLES * interval
    return RunPresence(start, end, 0.0, starts_inside=start - data[0] >= slack, ends_inside=data[1] - end >= slack)


def _log_window(rows: MemoryStore) -> TimeRange | None:
    """From the first to the last time in the logs."""
    times = [
        float(time)
        for row in _rows(rows, events("log_activity"))
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    return (min(times), max(times)) if len(times) > 1 else None


def _time_range(entry: LocatedSeries) -> TimeRange:
    return entry.info.first_ms / 1000, entry.info.last_ms / 1000


def _envelope(stretches: Iterable[TimeRange]) -> TimeRange:
    stretch_list = list(stretches)
    return min(first for first, _ in stretch_list), max(last for _, last in stretch_list)


def _sampled_times(series: Iterable[LocatedSeries]) -> dict[Unit, TimeRange]:
    """When each GPU was sampled."""
    first: dict[Unit, int] = {}
    last: dict[Unit, int] = {}
    for entry in series:
        unit, info = entry.unit, entry.info
        first[unit] = min(info.first_ms, first.get(unit, info.first_ms))
        last[unit] = max(info.last_ms, last.get(unit, info.last_ms))
    return {unit: (first[unit] / 1000, last[unit] / 1000) for unit in first}


def _sample_interval(series: Iterable[LocatedSeries]) -> float:
    """The usual time between samples, seconds."""
    infos = [entry.info for entry in series if entry.info.count > 1]
    if not infos:
        return INTERVAL_S
    gaps = np.array([(info.last_ms - info.first_ms) / 1000 / (info.count - 1) for info in infos])
    order = np.argsort(gaps)
    counts = np.cumsum(np.array([info.count for info in infos])[order])  # a series that ends early counts for less
    return max(float(gaps[order][np.searchsorted(counts, counts[-1] / 2)]), 0.001)


# -- whether a series is the run's


def _rows(rows: MemoryStore, query: Query) -> Sequence[Row]:
    answer = rows.ask(query)
    return answer.rows if isinstance(answer, Frame) else ()


def _listed_gpus(run: Run, rows: MemoryStore) -> AbstractSet[str]:
    """The GPUs that the scheduler lists, if it lists any for this attempt's nodes."""
    for row in reversed(_rows(rows, record("job"))):
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
    """Tests whether a series is of what the run held: its GPUs, else its nodes, else its own process."""

    def __init__(self, query: AllocationQuery, holding: GpuAllocation, pusher: frozenset[str] = frozenset()) -> None:
        self._ids, self._units = query.ids, holding.units
        self._gpus = {unit[:2] for unit in holding.units}
        nodes = frozenset(query.nodes) or frozenset(unit[0] for unit in holding.units)
        self._nodes = nodes | pusher if nodes else nodes

    def __call__(self, series: LocatedSeries) -> bool:
        foreign = bool(series.job and self._ids and series.job not in self._ids)
        if not series.gpu:
            return not foreign and (not series.node or not self._nodes or series.node in self._nodes)
        if series.unit not in self._units if series.mig else (series.node, series.gpu) not in self._gpus:
            return False
        # A hardware counter under another job's label still shows its value before or after the run.
        return not foreign or (
            series.series.metric.startswith("gpu_") and METRICS[series.series.metric].kind in _LASTING_KINDS
        )


_LASTING_KINDS = ("counter", "sticky")


# -- what the series show about the run


def _complete_run(run: Run, selected: Sequence[LocatedSeries], holding: GpuAllocation, window: RunPresence) -> Run:
    ranks = {
        (entry.node, entry.gpu): rank
        for entry in selected
        if entry.gpu and (rank := whole_number(entry.rank)) is not None
    }
    all_ranks = {rank for entry in selected if (rank := whole_number(entry.rank)) is not None}
    order = {node: index for index, node in enumerate(run.nodes)}
    gpus = sorted(
        {unit[:2] for unit in holding.units}, key=lambda gpu: (order.get(gpu[0], len(order)), *map(natural_key, gpu))
    )
    if gpus and all(gpu in ranks for gpu in gpus):
        gpus.sort(key=lambda gpu: ranks[gpu])
    nodes = run.nodes or tuple(sorted({entry.node for entry in selected if entry.node}, key=natural_key))
    traced = {entry.node for entry in selected if whole_number(entry.rank) is not None}
    all_known = all_ranks and all_ranks == set(range(len(all_ranks))) and traced >= set(run.nodes)
    is_certain = holding.by not in (None, "all")
    return replace(
        run,
        start=window.start if run.start is None and window.starts_inside else run.start,
        end=window.end if run.end is None and window.ends_inside else run.end,
        nodes=nodes,
        n_gpus=run.n_gpus or (len(holding.units) if is_certain else None),
        n_ranks=run.n_ranks or (len(all_ranks) if all_known else None),
        gpus=tuple(f"{node}:{gpu}" for node, gpu in gpus),
        gpus_by=holding.by,
        metric_offset_s=window.shift,
        has_time_zone=run.has_time_zone or not window.shift,  # samples carry the time since the epoch
    )
