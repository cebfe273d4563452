"""What happens to a store with time: small segments become large ones, old samples their minutes, older ones go.

A day's samples are rewritten together and committed together, so that a stop at any moment leaves each day either as
it was or done. What an ingest wrote of several days at once is first split into these, which changes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from trackside.stores.bunches import bunches
from trackside.stores.embedded.layout import Segment
from trackside.stores.embedded.tables import ORDER, TABLES, parquet, quoted
from trackside.stores.embedded.writer import Writer

DAY_MS = 86_400_000
MINUTE_MS = 60_000
PART = 16_000_000
"""Samples of a day that are sorted together, as whole metrics."""
SMALL = 1_000_000
"""Rows below which a segment is worth merging."""
MANY = 32
"""Small segments of one table that an ingest leaves."""
ROW_TABLES = ("inputs", "events", "records", "points", "series", "spans", "waiting")


@dataclass(slots=True)
class Compacted:
    """What a compaction did. ``lost``: paths of the inputs that damaged segments held parts of."""

    before: int = 0
    after: int = 0
    days: int = 0
    """Days rewritten."""
    thinned: int = 0
    """Days of which only the minutes are left since now."""
    forgotten: int = 0
    """Samples and minutes deleted for their age."""
    damaged: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def compact(writer: Writer, now: float, raw_days: float | None = None, minute_days: float | None = None) -> Compacted:
    """Merge what is small, thin what is older than ``raw_days`` to minutes, delete what is older than ``minute_days``.

    Ages are counted from ``now``, POSIX seconds, in whole days of UTC; None keeps everything. Raises StoreError.
    """
    done = Compacted(before=len(writer.manifest.segments))
    tidy(writer, 2)
    if minute_days is not None:
        _forget(writer, _day_of((now - minute_days * 86400) * 1000), done)
    raw_from = -math.inf if raw_days is None else _day_of((now - raw_days * 86400) * 1000)
    split = _split(writer)
    for day, segments in _days(writer.manifest.of("samples")):
        done.days += _rewrite(writer, day, segments, raw_from, done) or day in split
    for day, segments in _days(writer.manifest.of("minutes")):
        if sum(each.rows < SMALL for each in segments) > 1 or _any_dead(writer, segments):
            source = writer.snapshot().source("minutes", segments)
            writer.replace(list(_parts(writer, "minutes", source, day, segments)), segments)
    _bury(writer)
    writer.directory.sweep()
    done.after = len(writer.manifest.segments)
    return done


def tidy(writer: Writer, many: int = MANY) -> None:
    """Merge small segments of rows where there are many; of samples that is left to a compaction."""
    for table in ROW_TABLES:
        small = [each for each in writer.manifest.of(table) if each.rows < SMALL or _any_dead(writer, [each])]
        if len(small) < many and not (many < MANY and _any_dead(writer, small)):
            continue
        for group in bunches(small, lambda each: each.rows, 2 * SMALL):
            if len(group) == 1 and not _any_dead(writer, group):
                continue
            grouped = " GROUP BY input, series" if table == "spans" else ""
            rows = f"{_merged(table)} FROM {writer.snapshot().source(table, group)}{grouped} ORDER BY {ORDER[table]}"
            writer.replace(writer.selected(table, rows, 1), group)


def _merged(table: str) -> str:
    """What of some rows is kept: of an input that grew, one span a series."""
    if table != "spans":
        return "SELECT *"
    first = f"coalesce(first_ms, {(1 << 63) - 1})"  # NULL where there was no sample
    place = ", ".join(f'arg_min("{name}", {first}) AS "{name}"' for name in ("path", "line", "offset", "length"))
    count = "CAST(sum(count) AS BIGINT) AS count"
    return f"SELECT input, series, min(first_ms) AS first_ms, max(last_ms) AS last_ms, {count}, {place}"


def merge_young(writer: Writer) -> None:
    """Merge a day's small segments of samples once there are many, as they come by the thousand from a receiver."""
    for day, segments in _days(writer.manifest.of("samples")):
        small = [each for each in segments if each.level == 0 and each.rows < SMALL and _within_day(each)]
        if len(small) >= MANY:
            merged = _parts(writer, "samples", writer.snapshot().source("samples", small), day, small, level=0)
            writer.replace(list(merged), small)


def _within_day(segment: Segment) -> bool:
    return segment.times_ms is not None and _day_of(segment.times_ms[0]) == _day_of(segment.times_ms[1])


def _any_dead(writer: Writer, segments: Sequence[Segment]) -> bool:
    return any(each.inputs[0] <= dead <= each.inputs[1] for each in segments for dead in writer.manifest.dead)


def _day_of(time_ms: float) -> int:
    """The day that a sample belongs to; one at midnight is the last of the day before, as its minute is."""
    return int(-(-time_ms // 1) - 1) // DAY_MS


def _split(writer: Writer) -> set[int]:
    """Give each day of a segment that holds several one of its own; the days that there were."""
    split = set()
    for each in writer.manifest.of("samples"):
        if each.times_ms is None or _day_of(each.times_ms[0]) == _day_of(each.times_ms[1]):
            continue
        source = writer.snapshot().source("samples", [each])
        day = f"CAST(floor((time_ms - 1) / {DAY_MS}) AS BIGINT)"
        days = [day for (day,) in writer.snapshot().rows(f"SELECT DISTINCT {day} AS day FROM {source} ORDER BY day")]
        writer.replace([part for day in days for part in _parts(writer, "samples", source, day, [each], 0)], [each])
        split.update(days)
    return split


def _days(segments: Iterable[Segment]) -> list[tuple[int, list[Segment]]]:
    """Days in order, and the segments of each."""
    found: dict[int, list[Segment]] = {}
    for each in segments:
        if each.times_ms is not None:
            found.setdefault(_day_of(each.times_ms[0]), []).append(each)
    return sorted(found.items())


def _rewrite(writer: Writer, day: int, segments: list[Segment], raw_from: float, done: Compacted) -> bool:
    """Give a day one sorted segment, or few; or its minutes. False where it needs neither."""
    young = sum(each.level == 0 for each in segments)
    if not (day < raw_from or young > 1 or _any_dead(writer, segments)):
        return False
    source = writer.snapshot().source("samples", segments)
    table = "minutes" if day < raw_from else "samples"
    writer.replace(list(_parts(writer, table, source, day, segments)), segments)
    done.thinned += day < raw_from
    return True


def _parts(
    writer: Writer, table: str, source: str, day: int, within: Sequence[Segment], level: int = 1
) -> Iterator[Segment]:
    """A day's rows as segments of a table, some metrics at a time."""
    time = f"time_ms > {day * DAY_MS} AND time_ms <= {(day + 1) * DAY_MS}"
    counts = writer.snapshot().rows(
        f"SELECT metric, count(*) FROM {source} WHERE {time} GROUP BY metric ORDER BY metric"
    )
    thinned = table == "minutes" and within[0].table == "samples"
    for bunch in bunches(counts, lambda each: each[1], PART):
        words = ", ".join(quoted(metric) for metric, _ in bunch)
        rows = f"SELECT * FROM {source} WHERE {time} AND metric IN ({words})"
        rows = _MINUTES.format(rows=rows) if thinned else rows
        yield from writer.selected(table, f"SELECT * FROM ({rows}) ORDER BY {ORDER[table]}", level)


_MINUTES = f"""
    SELECT metric, series, minute AS time_ms, min(value) AS min, max(value) AS max, sum(value) AS sum,
           count(*) AS count, max({{{{moment: time_ms, value: value}}}}).value AS last, max(time_ms) AS last_ms, input
    FROM (SELECT *, (time_ms + {MINUTE_MS - 1}) // {MINUTE_MS} * {MINUTE_MS} AS minute FROM ({{rows}}))
    GROUP BY metric, series, minute, input
"""


def _forget(writer: Writer, from_day: int, done: Compacted) -> None:
    """Delete samples and minutes of the days before."""
    cut = from_day * DAY_MS
    for table in ("samples", "minutes"):
        for each in writer.manifest.of(table):
            if each.times_ms is None or each.times_ms[0] > cut:
                continue
            left = []
            if each.times_ms[1] > cut:
                source = writer.snapshot().source(table, [each])
                rows = f"SELECT * FROM {source} WHERE time_ms > {cut} ORDER BY {ORDER[table]}"
                left = writer.selected(table, rows, 1)
            writer.replace(left, [each])
            done.forgotten += each.rows - sum(one.rows for one in left)
    _shorten_spans(writer, cut)


def _shorten_spans(writer: Writer, cut: int) -> None:
    """No span speaks of deleted samples; of a span that is cut, the count goes down with its length."""
    old = writer.manifest.of("spans")
    source = writer.snapshot().source("spans", old)
    if not writer.snapshot().rows(f"SELECT 1 FROM {source} WHERE first_ms <= {cut} LIMIT 1"):
        return
    rows = f"""
        SELECT * REPLACE (
            greatest(first_ms, {cut + 1}) AS first_ms,
            if(first_ms <= {cut}, ceil(count * ((last_ms - {cut}) / (last_ms - first_ms + 1))), count) AS count)
        FROM {source} WHERE last_ms IS NULL OR last_ms > {cut} ORDER BY {ORDER["spans"]}"""
    writer.replace(writer.selected("spans", rows, 1), old)


def _bury(writer: Writer) -> None:
    """Dead inputs of which no segment can hold a row any more are no longer spoken of."""
    still = [
        dead
        for dead in writer.manifest.dead
        if any(
            each.inputs[0] <= dead <= each.inputs[1] and _holds(writer, each, dead) for each in writer.manifest.segments
        )
    ]
    writer.forget_dead(set(writer.manifest.dead) - set(still))


def _holds(writer: Writer, segment: Segment, input_: int) -> bool:
    if "input" not in TABLES[segment.table]:
        return False
    path = writer.directory.file(segment)
    found = writer.snapshot().rows(f"SELECT 1 FROM {parquet([path])} WHERE input = {input_} LIMIT 1")
    return bool(found)


def drop_damaged(writer: Writer) -> Compacted:
    """Take segments that can't be read out of the store, and note whose rows they held, to be ingested again."""
    done = Compacted(before=len(writer.manifest.segments))
    snapshot = writer.snapshot()
    bad = [each for each in writer.manifest.segments if snapshot.fault(each)]
    if bad:
        done.damaged = [each.name for each in bad]
        gone = [each for each in bad if each.table == "inputs"]
        numbers = range(1, writer.manifest.next_input)
        dead = {number for number in numbers if any(each.inputs[0] <= number <= each.inputs[1] for each in gone)}
        hurt = {
            number
            for number in numbers
            for each in bad
            if each.table == "series" or each.inputs[0] <= number <= each.inputs[1]
        }
        writer.replace((), bad, dead=dead, incomplete=hurt - dead)
        inputs = writer.snapshot().table("inputs")
        rows = writer.snapshot().rows(f"SELECT input, path FROM {inputs} ORDER BY place")
        done.lost = [path for number, path in rows if number in hurt]
        writer.directory.sweep()
    done.after = len(writer.manifest.segments)
    return done
