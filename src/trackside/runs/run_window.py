"""When the run was there, on the clock of its series: from the scheduler, else from the log, the job's label or the
memory use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trackside.evidence import Frame
from trackside.model import Run, TimeRange
from trackside.query import Query, Row, events
from trackside.runs.clock import MAX_SERIES_GAP_S, JobTimes, offset_of, shift_of
from trackside.runs.gpu_allocation import use_times
from trackside.runs.series_location import LocatedSeries, Unit
from trackside.stores.memory import MemoryStore
from trackside.stores.metric_backend import MetricBackend

INTERVAL_S = 60.0
"""Seconds between samples that are assumed if every series has a single one (Prometheus' default scrape interval)."""
EDGE_SAMPLES = 3
"""Samples by which the node's other series must last longer than the run's, for these to show its start or end."""


@dataclass(frozen=True, slots=True)
class RunPresence:
    """When the run was there, in POSIX seconds. ``shift``: seconds added to the times of the series. ``starts_inside``,
    ``ends_inside``: whether the series show that the run was not there before ``start``, or after ``end``."""

    start: float
    end: float
    shift: float = 0.0
    starts_inside: bool = False
    ends_inside: bool = False


def find_window(
    backend: MetricBackend, run: Run, rows: MemoryStore, series: Sequence[LocatedSeries], labeled: bool, interval: float
) -> RunPresence:
    """When the run was there: from the scheduler, else from the log, the job's label or the memory use.

    ``labeled``: whether ``series`` carry the job's label; ``interval``: seconds between samples.
    """
    log = log_window(rows) if run.start is None else None
    span = (run.start, run.end) if run.start is not None else log
    envelope, near = envelope_of(map(sampled_range, series)), max(MAX_SERIES_GAP_S, 4 * interval)
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
    """Whether a series spans the window, to within ``near`` seconds; if so, no zone shift is searched."""
    start, end = span
    return any(
        first <= start + near and (end is None or last >= end - near) for first, last in map(sampled_range, series)
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
    ranges = [time_range for unit_ranges in in_use.values() for time_range in unit_ranges]
    shift = shift_of(span, ranges, min_count, near)
    if shift or any(first <= span[1] and last >= span[0] for first, last in by_unit.values()):
        return shift  # if the window holds samples, only memory allocated and freed with the run may shift them
    shift = shift_of(span, by_unit.values(), min_count, near)
    if shift or run.start is not None:
        return shift
    # A log may go silent long before its run ends: then only the start must fit.
    long_ranges = [(first, last) for first, last in ranges if last - first >= span[1] - span[0] - near]
    return shift_of((span[0], None), long_ranges, min_count, near)


def _time_freed(
    backend: MetricBackend, series: Sequence[LocatedSeries], start: float, near: float, interval: float
) -> float:
    """When memory that was allocated around ``start`` was freed, on the series' clock; ``start`` if none was."""
    units = _sampled_times(series)
    envelope = envelope_of(units.values())
    in_use = use_times(backend, series, list(units), envelope[0] - interval, envelope[1], interval)
    return max(
        (last for ranges in in_use.values() for first, last in ranges if abs(first - start) <= near),
        default=start,
    )


def _window_from_series(
    backend: MetricBackend, series: Sequence[LocatedSeries], envelope: TimeRange, labeled: bool, interval: float
) -> RunPresence:
    """When the run was there by its series alone: with the job's label, else while GPU memory was used, else always."""
    start, end = envelope[0] - interval, envelope[1]
    if labeled:
        data = envelope_of((info.first_ms / 1000, info.last_ms / 1000) for info in backend.series())
    else:
        data = start, end
        in_use = use_times(backend, series, list(_sampled_times(series)), start, end, interval)
        ranges = [time_range for unit_ranges in in_use.values() for time_range in unit_ranges]
        # Memory in use from the first sample to the last does not show when the run was there.
        bounded = [(first, last) for first, last in ranges if first > start + interval or last < end - interval]
        start, end = envelope_of(bounded or ranges) if ranges else (start, end)
    slack = EDGE_SAMPLES * interval
    return RunPresence(start, end, 0.0, starts_inside=start - data[0] >= slack, ends_inside=data[1] - end >= slack)


def log_window(rows: MemoryStore) -> TimeRange | None:
    """From the first to the last time in the logs; None without two times."""
    times = [
        float(time)
        for row in select_rows(rows, events("log_activity"))
        for name in ("first_time", "last_time")
        if isinstance(time := row.get(name), (int, float))
    ]
    return (min(times), max(times)) if len(times) > 1 else None


def sampled_range(entry: LocatedSeries) -> TimeRange:
    """The times of a series' first and last sample."""
    return entry.info.first_ms / 1000, entry.info.last_ms / 1000


def envelope_of(ranges: Iterable[TimeRange]) -> TimeRange:
    """The shortest range that holds all of these; there must be one."""
    range_list = list(ranges)
    return min(first for first, _ in range_list), max(last for _, last in range_list)


def _sampled_times(series: Iterable[LocatedSeries]) -> dict[Unit, TimeRange]:
    """From the first to the last sample of each GPU."""
    first: dict[Unit, int] = {}
    last: dict[Unit, int] = {}
    for entry in series:
        unit, info = entry.unit, entry.info
        first[unit] = min(info.first_ms, first.get(unit, info.first_ms))
        last[unit] = max(info.last_ms, last.get(unit, info.last_ms))
    return {unit: (first[unit] / 1000, last[unit] / 1000) for unit in first}


def sample_interval(series: Iterable[LocatedSeries]) -> float:
    """Seconds between samples: the median of the series, weighted by their samples."""
    infos = [entry.info for entry in series if entry.info.count > 1]
    if not infos:
        return INTERVAL_S
    gaps = np.array([(info.last_ms - info.first_ms) / 1000 / (info.count - 1) for info in infos])
    order = np.argsort(gaps)
    counts = np.cumsum(np.array([info.count for info in infos])[order])  # a series that ends early counts for less
    return max(float(gaps[order][np.searchsorted(counts, counts[-1] / 2)]), 0.001)


def select_rows(rows: MemoryStore, query: Query) -> Sequence[Row]:
    """The rows that match; empty if the store cannot answer."""
    answer = rows.ask(query)
    return answer.rows if isinstance(answer, Frame) else ()
