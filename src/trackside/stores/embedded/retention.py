"""Maintains a store over time: merges small segments, thins old samples to minutes, and deletes older ones.

A day's samples are rewritten and committed together, so that an interruption leaves each day either unchanged or
complete. A segment with several days is first split by day, which does not change the samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trackside.stores.batches import batches
from trackside.stores.embedded.damage import add_checksums
from trackside.stores.embedded.layout import TableSegment
from trackside.stores.embedded.tables import MINUTE_MS, ORDER, TABLES, parquet, sql_literal
from trackside.stores.embedded.writer import Writer

DAY_MS = 86_400_000
PART_SAMPLES = 16_000_000
"""Samples of a day that are sorted together, in whole metrics."""
SMALL_ROWS = 1_000_000
"""A segment with fewer rows is worth merging."""
MANY_SEGMENTS = 32
"""Small segments of one table that an ingest leaves unmerged."""
ROW_TABLES = ("inputs", "events", "records", "points", "series", "spans", "waiting")


@dataclass(slots=True)
class CompactionResult:
    """What a compaction did."""

    before: int = 0
    after: int = 0
    days: int = 0
    """Days rewritten."""
    thinned: int = 0
    """Days newly reduced to per-minute aggregates."""
    forgotten: int = 0
    """Samples and minutes deleted because of their age."""


def compact(
    writer: Writer, now: float, raw_days: float | None = None, minute_days: float | None = None
) -> CompactionResult:
    """Merge small segments, thin samples older than ``raw_days`` to minutes, and delete those older than
    ``minute_days``.

    Ages are counted from ``now``, POSIX seconds, in whole UTC days; None keeps everything. Raises StoreError.
    """
    result = CompactionResult(before=len(writer.manifest.segments))
    add_checksums(writer)
    merge_row_segments(writer, 2)
    if minute_days is not None:
        _delete_before(writer, _day_of((now - minute_days * 86400) * 1000), result)
    raw_from = -math.inf if raw_days is None else _day_of((now - raw_days * 86400) * 1000)
    split_days = _split_days(writer)
    for day, segments in _by_day(writer.manifest.of("samples")):
        result.days += _rewrite(writer, day, segments, raw_from, result) or day in split_days
    for day, segments in _by_day(writer.manifest.of("minutes")):
        if sum(segment.rows < SMALL_ROWS for segment in segments) > 1 or _has_dead(writer, segments):
            source = writer.snapshot().source("minutes", segments)
            writer.replace(list(_parts(writer, "minutes", source, day, segments)), segments)
    _drop_dead_inputs(writer)
    writer.directory.delete_unreferenced_files()
    result.after = len(writer.manifest.segments)
    return result


def merge_row_segments(writer: Writer, min_segments: int = MANY_SEGMENTS) -> None:
    """Merge the small segments of row tables if there are many; segments of samples are left to a compaction."""
    for table in ROW_TABLES:
        small = [
            segment
            for segment in writer.manifest.of(table)
            if segment.rows < SMALL_ROWS or _has_dead(writer, [segment])
        ]
        if len(small) < min_segments and not (min_segments < MANY_SEGMENTS and _has_dead(writer, small)):
            continue
        for group in batches(small, lambda segment: segment.rows, 2 * SMALL_ROWS):
            if len(group) == 1 and not _has_dead(writer, group):
                continue
            grouped = " GROUP BY input, series" if table == "spans" else ""
            rows = (
                f"{_merge_select(table)} FROM {writer.snapshot().source(table, group)}{grouped} ORDER BY {ORDER[table]}"
            )
            writer.replace(writer.write_query(table, rows, 1), group)


def _merge_select(table: str) -> str:
    """The SELECT clause that merges a table's rows: for an input that grew, one span per series remains."""
    if table != "spans":
        return "SELECT *"
    first = f"coalesce(first_ms, {(1 << 63) - 1})"  # NULL if there was no sample
    position_columns = ", ".join(
        f'arg_min("{name}", {first}) AS "{name}"' for name in ("path", "line", "offset", "length")
    )
    count = "CAST(sum(count) AS BIGINT) AS count"
    return f"SELECT input, series, min(first_ms) AS first_ms, max(last_ms) AS last_ms, {count}, {position_columns}"


def merge_sample_segments(writer: Writer) -> None:
    """Merge a day's small segments of samples once there are many: a receiver writes them by the thousand."""
    for day, segments in _by_day(writer.manifest.of("samples")):
        small = [
            segment for segment in segments if segment.level == 0 and segment.rows < SMALL_ROWS and _within_day(segment)
        ]
        if len(small) >= MANY_SEGMENTS:
            merged = _parts(writer, "samples", writer.snapshot().source("samples", small), day, small, level=0)
            writer.replace(list(merged), small)


def _within_day(segment: TableSegment) -> bool:
    return segment.times_ms is not None and _day_of(segment.times_ms[0]) == _day_of(segment.times_ms[1])


def _has_dead(writer: Writer, segments: Sequence[TableSegment]) -> bool:
    return any(segment.inputs[0] <= dead <= segment.inputs[1] for segment in segments for dead in writer.manifest.dead)


def _day_of(time_ms: float) -> int:
    """The day that a sample belongs to; a sample at midnight is the last of the day before, like its minute."""
    return int(-(-time_ms // 1) - 1) // DAY_MS


def _split_days(writer: Writer) -> set[int]:
    """Split each segment that holds several days into one per day; returns those days."""
    split_days = set()
    for segment in writer.manifest.of("samples"):
        if segment.times_ms is None or _day_of(segment.times_ms[0]) == _day_of(segment.times_ms[1]):
            continue
        source = writer.snapshot().source("samples", [segment])
        day = f"CAST(floor((time_ms - 1) / {DAY_MS}) AS BIGINT)"
        days = [day for (day,) in writer.snapshot().rows(f"SELECT DISTINCT {day} AS day FROM {source} ORDER BY day")]
        writer.replace(
            [part for day in days for part in _parts(writer, "samples", source, day, [segment], 0)], [segment]
        )
        split_days.update(days)
    return split_days


def _by_day(segments: Iterable[TableSegment]) -> list[tuple[int, list[TableSegment]]]:
    """Days in order, with the segments of each."""
    by_day: dict[int, list[TableSegment]] = {}
    for segment in segments:
        if segment.times_ms is not None:
            by_day.setdefault(_day_of(segment.times_ms[0]), []).append(segment)
    return sorted(by_day.items())


def _rewrite(writer: Writer, day: int, segments: list[TableSegment], raw_from: float, result: CompactionResult) -> bool:
    """Rewrite a day as one sorted segment or a few, or as minutes. False if it needs neither."""
    young_count = sum(segment.level == 0 for segment in segments)
    if not (day < raw_from or young_count > 1 or _has_dead(writer, segments)):
        return False
    source = writer.snapshot().source("samples", segments)
    table = "minutes" if day < raw_from else "samples"
    writer.replace(list(_parts(writer, table, source, day, segments)), segments)
    result.thinned += day < raw_from
    return True


def _parts(
    writer: Writer, table: str, source: str, day: int, segments: Sequence[TableSegment], level: int = 1
) -> Iterator[TableSegment]:
    """A day's rows as segments of a table, some metrics at a time."""
    time = f"time_ms > {day * DAY_MS} AND time_ms <= {(day + 1) * DAY_MS}"
    counts = writer.snapshot().rows(
        f"SELECT metric, count(*) FROM {source} WHERE {time} GROUP BY metric ORDER BY metric"
    )
    thinned = table == "minutes" and segments[0].table == "samples"
    for batch in batches(counts, lambda metric_count: metric_count[1], PART_SAMPLES):
        literals = ", ".join(sql_literal(metric) for metric, _ in batch)
        rows = f"SELECT * FROM {source} WHERE {time} AND metric IN ({literals})"
        rows = _MINUTES.format(rows=rows) if thinned else rows
        yield from writer.write_query(table, f"SELECT * FROM ({rows}) ORDER BY {ORDER[table]}", level)


_MINUTES = f"""
    SELECT metric, series, minute AS time_ms, min(value) AS min, max(value) AS max, sum(value) AS sum,
           count(*) AS count, max({{{{moment: time_ms, value: value}}}}).value AS last, max(time_ms) AS last_ms, input
    FROM (SELECT *, (time_ms + {MINUTE_MS - 1}) // {MINUTE_MS} * {MINUTE_MS} AS minute FROM ({{rows}}))
    GROUP BY metric, series, minute, input
"""


def _delete_before(writer: Writer, from_day: int, result: CompactionResult) -> None:
    """Delete samples and minutes of the days before ``from_day``."""
    cutoff_ms = from_day * DAY_MS
    for table in ("samples", "minutes"):
        for segment in writer.manifest.of(table):
            if segment.times_ms is None or segment.times_ms[0] > cutoff_ms:
                continue
            remaining = []
            if segment.times_ms[1] > cutoff_ms:
                source = writer.snapshot().source(table, [segment])
                rows = f"SELECT * FROM {source} WHERE time_ms > {cutoff_ms} ORDER BY {ORDER[table]}"
                remaining = writer.write_query(table, rows, 1)
            writer.replace(remaining, [segment])
            result.forgotten += segment.rows - sum(part.rows for part in remaining)
    _shorten_spans(writer, cutoff_ms)


def _shorten_spans(writer: Writer, cutoff_ms: int) -> None:
    """Cut spans to the remaining samples; the count of a shortened span is reduced in proportion to its length."""
    old_segments = writer.manifest.of("spans")
    source = writer.snapshot().source("spans", old_segments)
    if not writer.snapshot().rows(f"SELECT 1 FROM {source} WHERE first_ms <= {cutoff_ms} LIMIT 1"):
        return
    shortened = f"ceil(count * ((last_ms - {cutoff_ms}) / (last_ms - first_ms + 1)))"
    rows = f"""
        SELECT * REPLACE (
            greatest(first_ms, {cutoff_ms + 1}) AS first_ms,
            if(first_ms <= {cutoff_ms}, {shortened}, count) AS count)
        FROM {source} WHERE last_ms IS NULL OR last_ms > {cutoff_ms} ORDER BY {ORDER["spans"]}"""
    writer.replace(writer.write_query("spans", rows, 1), old_segments)


def _drop_dead_inputs(writer: Writer) -> None:
    """Remove dead inputs from the manifest once no segment can hold a row of them."""
    still_dead = [
        dead
        for dead in writer.manifest.dead
        if any(
            segment.inputs[0] <= dead <= segment.inputs[1] and _holds(writer, segment, dead)
            for segment in writer.manifest.segments
        )
    ]
    writer.forget_dead(set(writer.manifest.dead) - set(still_dead))


def _holds(writer: Writer, segment: TableSegment, input_: int) -> bool:
    if "input" not in TABLES[segment.table]:
        return False
    path = writer.directory.file(segment)
    rows = writer.snapshot().rows(f"SELECT 1 FROM {parquet([path])} WHERE input = {input_} LIMIT 1")
    return bool(rows)
