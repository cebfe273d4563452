"""The single writer of a store: adds inputs, each completely or not at all, in bounded batches."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from trackside.model import Event, Plane, Position, Record, Samples
from trackside.stores.embedded.layout import Directory, Lock, ReceivedState, StoreManifest, TableSegment
from trackside.stores.embedded.rows import (
    LoggedStep,
    RecordKeys,
    StoredInput,
    event_columns,
    input_columns,
    point_columns,
    position_columns,
    record_columns,
)
from trackside.stores.embedded.samples import SampleBatch, SeriesIds, Spans
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import TABLES, ColumnArrays, connect, parquet, segment_of, write, write_columns

SEGMENT_SAMPLES = 4_000_000
"""Samples per segment: about 9 MB, and 400 MB of memory while it is written."""
MAX_ROWS_IN_MEMORY = 50_000
"""Events, records and points that are held in memory."""
MAX_COMMIT_DELAY_S = 5.0
"""Longest time between reading an input and committing it, while inputs end."""


@dataclass(slots=True)
class _Batch:
    """What some inputs gave but is not written yet, and segments that are written but not committed."""

    samples: SampleBatch = field(default_factory=SampleBatch)
    events: list[tuple[int, int, Event, str | None]] = field(default_factory=list)
    records: list[tuple[int, int, Record, RecordKeys]] = field(default_factory=list)
    points: list[tuple[int, LoggedStep]] = field(default_factory=list)
    inputs: list[StoredInput] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    positions: dict[int, dict[int, Position]] = field(default_factory=dict)
    """Input -> series id -> its position."""
    segments: list[TableSegment] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.events) + len(self.records) + len(self.points)

    def take(self, other: _Batch) -> None:
        self.samples.take(other.samples)
        for name in ("events", "records", "points", "inputs", "spans", "segments"):
            getattr(self, name).extend(getattr(other, name))
        self.positions |= other.positions


class Writer:
    """Writes to a store. An input that :meth:`end` accepted is safe after the next :meth:`commit`.

    Raises StoreBusy if another process writes, and StoreError.
    """

    def __init__(self, directory: Directory, manifest: StoreManifest, lock: Lock | None) -> None:
        self.directory, self.manifest, self._lock = directory, manifest, lock
        self.connection = connect()
        self._series_ids: SeriesIds | None = None
        self._done, self._open = _Batch(), _Batch()
        self._dead: set[int] = set()
        self._seq = 0
        self._planes: dict[Plane, None] = {}
        self._committed = time.monotonic()
        self.next_input = manifest.next_input

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Writer:
        """Open a store for writing, and create it if it does not exist; what a dead writer left is deleted."""
        directory = Directory(path)
        directory.create()
        lock = Lock.for_writer(directory)
        try:
            writer = cls(directory, directory.read_migrated(), lock)
            directory.delete_unreferenced_files()
        except BaseException:
            lock.close()
            raise
        return writer

    @classmethod
    def temporary(cls, base: Snapshot | None = None) -> Writer:
        """Open a new store that is removed with the process; it starts with the content of another one.

        The other store's segments are only referenced, so it must stay open.
        """
        folder = tempfile.mkdtemp(prefix="trackside-store-")
        directory = Directory(folder)
        directory.create()
        manifest = StoreManifest()
        if base is not None:
            external_segments = [msgspec.structs.replace(segment, name=os.path.abspath(base.directory.file(segment)))
                   for segment in base.manifest.segments]  # fmt: skip
            manifest = msgspec.structs.replace(base.manifest, segments=tuple(external_segments))
        return cls(directory, manifest, None)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End writing; what was not committed is lost."""
        self.connection.close()
        if self._lock is not None:
            self._lock.close()

    def remove(self) -> None:
        shutil.rmtree(self.directory.path, ignore_errors=True)

    def snapshot(self) -> Snapshot:
        """What is committed, read through the writer's own connection."""
        return Snapshot(self.directory, self.manifest, None, self.connection)

    # -- one input

    def begin(self) -> int:
        """Begin an input; returns its id."""
        self._seq = 0
        self._planes = {}
        if self._series_ids is not None:
            self._series_ids.begin()
        input_id = self.next_input
        self.next_input += 1
        return input_id

    def event(self, input_: int, event: Event, job: str | None) -> None:
        """Add an event. ``job``: the id that it names."""
        self._planes[event.plane] = None
        self._open.events.append((input_, self._seq, event, job))
        self._count_row()

    def record(self, input_: int, record: Record, keys: RecordKeys) -> None:
        self._planes[record.plane] = None
        self._open.records.append((input_, self._seq, record, keys))
        self._count_row()

    def points(self, input_: int, points: Iterable[LoggedStep]) -> None:
        for point in points:
            self._open.points.append((input_, point))
            self._count_row()

    def samples(self, input_: int, samples: Samples) -> None:
        series_ids = self.series_ids.of(samples.series)
        self._open.samples.add(series_ids, samples, input_)
        if self._open.samples.size + self._done.samples.size >= SEGMENT_SAMPLES:
            self._flush_batches()

    def end(self, stored: StoredInput, dead: Iterable[int] = ()) -> None:
        """Complete the input; its planes and time are set here. ``dead``: ids of earlier inputs that it replaces."""
        if stored.row.plane is not None and stored.row.status in ("read", "partial"):
            self._planes[stored.row.plane] = None
        if self._series_ids is not None:
            self._open.positions[stored.id] = self._series_ids.positions
        self._open.inputs.append(replace(stored, planes=tuple(self._planes), read_at=time.time()))
        self._dead.update(dead)
        self._done.take(self._open)
        self._open = _Batch()
        is_full = self._done.samples.size >= SEGMENT_SAMPLES or self._done.rows >= MAX_ROWS_IN_MEMORY
        if is_full or time.monotonic() - self._committed > MAX_COMMIT_DELAY_S:
            self.commit()

    def drop(self) -> None:
        """Discard the current input as if it had never begun."""
        for segment in self._open.segments:
            os.unlink(self.directory.file(segment))
        self._open = _Batch()

    # -- batches

    @property
    def series_ids(self) -> SeriesIds:
        """The ids of the series, loaded when the first samples come."""
        if self._series_ids is None:
            series = self.snapshot().table("series")
            stored = self.snapshot().arrays(f"SELECT hash, series FROM {series}")
            self._series_ids = SeriesIds((stored["hash"], stored["series"]), self.manifest.next_series)
        return self._series_ids

    def _count_row(self) -> None:
        self._seq += 1
        if self._open.rows + self._done.rows >= MAX_ROWS_IN_MEMORY:
            self._flush_batches()

    def _flush_batches(self) -> None:
        """Commit the complete inputs; if the current one alone is too large, write what there is of it."""
        if self._done.inputs:
            self.commit()
        if self._open.samples.size >= SEGMENT_SAMPLES or self._open.rows >= MAX_ROWS_IN_MEMORY:
            self._write(self._open)

    def _write(self, batch: _Batch) -> None:
        """Turn a batch's rows and samples into segments."""
        if batch.samples.size:
            segment, spans = batch.samples.write(self.connection, self.directory, self.series_ids.metrics)
            batch.segments.append(segment)
            batch.spans.append(spans)
        for table, columns in (
            ("events", event_columns(batch.events) if batch.events else None),
            ("records", record_columns(batch.records) if batch.records else None),
            ("points", point_columns(batch.points) if batch.points else None),
        ):
            if columns is not None:
                batch.segments.append(self.write_segment(table, columns))
        batch.events, batch.records, batch.points = [], [], []

    def write_segment(self, table: str, columns: ColumnArrays) -> TableSegment:
        """Write columns as a segment; a later commit adds it to the store."""
        return write_columns(self.connection, self.directory, table, columns)

    def write_query(self, table: str, query: str, level: int = 0) -> list[TableSegment]:
        """Write a query's result as a segment for a later commit; none if the query gives no row."""
        name = write(self.connection, self.directory, table, query)
        path = self.directory.segments / name
        inputs = "min(input), max(input)" if "input" in TABLES[table] else "0, 0"
        times = "min(time_ms), max(time_ms)" if "time_ms" in TABLES[table] else "NULL, NULL"
        ((rows, low, high, first, last),) = self.snapshot().rows(
            f"SELECT count(*), {inputs}, {times} FROM {parquet([str(path)])}"
        )
        if not rows:
            path.unlink()
            return []
        times_ms = None if first is None else (first, last)
        return [segment_of(self.directory, table, name, rows, (low, high), times_ms, level)]

    def commit(self) -> None:
        """Make all complete inputs part of the store: durable, and visible to readers that open it from now on."""
        self._committed = time.monotonic()
        batch, self._done = self._done, _Batch()
        if not batch.inputs:
            return
        self._write(batch)
        segments = batch.segments
        if any(batch.positions.values()):
            segments.append(self.write_segment("spans", _span_columns(batch.spans, batch.positions)))
        if self._series_ids is not None and self._series_ids.unwritten:
            segments.append(self.write_segment("series", self._series_ids.columns()))
        segments.append(self.write_segment("inputs", input_columns(batch.inputs)))
        self.replace(segments, ())

    def replace(
        self,
        added: Iterable[TableSegment],
        removed: Iterable[TableSegment],
        *,
        dead: Iterable[int] = (),
        incomplete: Iterable[int] = (),
        received: ReceivedState | None = None,
    ) -> None:
        """Commit some segments in place of others. ``dead``, ``incomplete``: ids of inputs that become so."""
        removed_names = {segment.name for segment in removed}
        remaining = [segment for segment in self.manifest.segments if segment.name not in removed_names]
        self.manifest = self.directory.commit(
            msgspec.structs.replace(
                self.manifest,
                segments=(*remaining, *added),
                dead=tuple(sorted({*self.manifest.dead, *self._dead, *dead})),
                incomplete=tuple(sorted({*self.manifest.incomplete, *incomplete} - self._dead)),
                next_input=self.next_input,
                next_series=self.manifest.next_series if self._series_ids is None else self._series_ids.next_id,
                received=self.manifest.received if received is None else received,
            )
        )
        self._dead = set()

    def grow(
        self,
        stored: StoredInput,
        added: Iterable[TableSegment],
        removed: Iterable[TableSegment],
        received: ReceivedState,
    ) -> TableSegment:
        """Commit segments of an input that keeps growing; returns the segment of its row, which the next commit
        replaces."""
        segments = list(added)
        if self._series_ids is not None and self._series_ids.unwritten:
            segments.append(self.write_segment("series", self._series_ids.columns()))
        row = self.write_segment("inputs", input_columns([stored]))
        self.replace([*segments, row], removed, received=received)
        return row

    def reset_series_ids(self) -> None:
        """Reload the series ids: after a failure, ids that no segment holds must not be used."""
        self._series_ids = None

    def forget_dead(self, dead: Iterable[int]) -> None:
        """Remove inputs from the manifest's ``dead``, because no segment holds a row of them any more."""
        still_dead = tuple(number for number in self.manifest.dead if number not in set(dead))
        if still_dead != self.manifest.dead:
            self.manifest = self.directory.commit(msgspec.structs.replace(self.manifest, dead=still_dead))


def _span_columns(parts: list[Spans], positions: dict[int, dict[int, Position]]) -> ColumnArrays:
    """The spans of some inputs, with a row also for each series that was named without a value."""
    spans = Spans.joined(parts)
    with_samples = set(zip(spans.inputs.tolist(), spans.series.tolist(), strict=True))
    empty_pairs = [
        (input_, series)
        for input_, by_series in positions.items()
        for series in by_series
        if (input_, series) not in with_samples
    ]
    spans = Spans.joined([spans, Spans.without_samples(empty_pairs)])
    pairs = zip(spans.inputs.tolist(), spans.series.tolist(), strict=True)
    span_positions = [positions[input_][series] for input_, series in pairs]
    return {
        "input": spans.inputs,
        "series": spans.series,
        "first_ms": np.ma.masked_where(spans.count == 0, spans.first_ms),
        "last_ms": np.ma.masked_where(spans.count == 0, spans.last_ms),
        "count": spans.count,
        **position_columns(span_positions),
    }
