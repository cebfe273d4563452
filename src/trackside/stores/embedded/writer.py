"""The one that writes to a store: inputs in, each wholly or not at all, in bounded batches."""

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
from trackside.stores.embedded.layout import Directory, Lock, Manifest, Received, Segment
from trackside.stores.embedded.rows import (
    About,
    Kept,
    Point,
    event_columns,
    input_columns,
    point_columns,
    record_columns,
)
from trackside.stores.embedded.rows import places as placed
from trackside.stores.embedded.samples import Numbers, SampleBatch, Spans
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.embedded.tables import TABLES, Columns, connect, parquet, write, write_columns

SAMPLES = 4_000_000
"""Samples that make a segment: about 9 MB, and 400 MB of memory while it is made."""
ROWS = 50_000
"""Events, records and points that are held in memory."""
COMMIT_S = 5.0
"""How long what was read waits for its commit, at most, while inputs end."""


@dataclass(slots=True)
class _Batch:
    """What some inputs gave, not written yet, and segments that are written but not named."""

    samples: SampleBatch = field(default_factory=SampleBatch)
    events: list[tuple[int, int, Event, str | None]] = field(default_factory=list)
    records: list[tuple[int, int, Record, About]] = field(default_factory=list)
    points: list[tuple[int, Point]] = field(default_factory=list)
    inputs: list[Kept] = field(default_factory=list)
    spans: list[Spans] = field(default_factory=list)
    places: dict[int, dict[int, Position]] = field(default_factory=dict)
    """Input -> series' number -> where it begins."""
    segments: list[Segment] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return len(self.events) + len(self.records) + len(self.points)

    def take(self, other: _Batch) -> None:
        self.samples.take(other.samples)
        for name in ("events", "records", "points", "inputs", "spans", "segments"):
            getattr(self, name).extend(getattr(other, name))
        self.places |= other.places


class Writer:
    """A store being written to. What :meth:`end` took is safe from the next :meth:`commit` on.

    Raises StoreBusy where another process writes, and StoreError.
    """

    def __init__(self, directory: Directory, manifest: Manifest, lock: Lock | None) -> None:
        self.directory, self.manifest, self._lock = directory, manifest, lock
        self.connection = connect()
        self._numbers: Numbers | None = None
        self._done, self._open = _Batch(), _Batch()
        self._dead: set[int] = set()
        self._seq = 0
        self._planes: dict[Plane, None] = {}
        self._committed = time.monotonic()
        self.next_input = manifest.next_input

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Writer:
        """Write to a store, made where there is none; what a dead writer left is deleted."""
        directory = Directory(path)
        directory.create()
        lock = Lock.for_writer(directory)
        try:
            writer = cls(directory, directory.migrated(), lock)
            directory.sweep()
        except BaseException:
            lock.close()
            raise
        return writer

    @classmethod
    def temporary(cls, base: Snapshot | None = None) -> Writer:
        """Write to a new store that goes with the process; it begins with what another one holds.

        The other's segments are only named, and it must stay open.
        """
        folder = tempfile.mkdtemp(prefix="trackside-store-")
        directory = Directory(folder)
        directory.create()
        manifest = Manifest()
        if base is not None:
            far = [msgspec.structs.replace(each, name=os.path.abspath(base.directory.file(each)))
                   for each in base.manifest.segments]  # fmt: skip
            manifest = msgspec.structs.replace(base.manifest, segments=tuple(far))
        return cls(directory, manifest, None)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End writing; what was not committed is gone."""
        self.connection.close()
        if self._lock is not None:
            self._lock.close()

    def remove(self) -> None:
        shutil.rmtree(self.directory.path, ignore_errors=True)

    def snapshot(self) -> Snapshot:
        """What is committed, read through the writer's own engine."""
        return Snapshot(self.directory, self.manifest, None, self.connection)

    # -- one input

    def begin(self) -> int:
        """Begin an input; gives its id."""
        self._seq = 0
        self._planes = {}
        if self._numbers is not None:
            self._numbers.begin()
        number = self.next_input
        self.next_input += 1
        return number

    def event(self, input_: int, event: Event, job: str | None) -> None:
        """Keep an event. ``job``: the one it names."""
        self._planes[event.plane] = None
        self._open.events.append((input_, self._seq, event, job))
        self._row()

    def record(self, input_: int, record: Record, about: About) -> None:
        self._planes[record.plane] = None
        self._open.records.append((input_, self._seq, record, about))
        self._row()

    def points(self, input_: int, points: Iterable[Point]) -> None:
        for point in points:
            self._open.points.append((input_, point))
            self._row()

    def samples(self, input_: int, samples: Samples) -> None:
        numbers = self.numbers.of(samples.series)
        self._open.samples.add(numbers, samples, input_)
        if self._open.samples.size + self._done.samples.size >= SAMPLES:
            self._make_room()

    def end(self, kept: Kept, dead: Iterable[int] = ()) -> None:
        """The input is whole; its planes and time are told here. ``dead``: earlier ones whose place it takes."""
        if kept.row.plane is not None and kept.row.status in ("read", "partial"):
            self._planes[kept.row.plane] = None
        if self._numbers is not None:
            self._open.places[kept.id] = self._numbers.places
        self._open.inputs.append(replace(kept, planes=tuple(self._planes), read_at=time.time()))
        self._dead.update(dead)
        self._done.take(self._open)
        self._open = _Batch()
        full = self._done.samples.size >= SAMPLES or self._done.rows >= ROWS
        if full or time.monotonic() - self._committed > COMMIT_S:
            self.commit()

    def drop(self) -> None:
        """The input counts for nothing: as if it had never begun."""
        for segment in self._open.segments:
            os.unlink(self.directory.file(segment))
        self._open = _Batch()

    # -- batches

    @property
    def numbers(self) -> Numbers:
        """The series' numbers, looked up once samples come."""
        if self._numbers is None:
            series = self.snapshot().table("series")
            known = self.snapshot().arrays(f"SELECT hash, series FROM {series}")
            self._numbers = Numbers((known["hash"], known["series"]), self.manifest.next_series)
        return self._numbers

    def _row(self) -> None:
        self._seq += 1
        if self._open.rows + self._done.rows >= ROWS:
            self._make_room()

    def _make_room(self) -> None:
        """Commit the inputs that are whole; if the present one alone is too large, write what there is of it."""
        if self._done.inputs:
            self.commit()
        if self._open.samples.size >= SAMPLES or self._open.rows >= ROWS:
            self._write(self._open)

    def _write(self, batch: _Batch) -> None:
        """Turn a batch's rows and samples into segments."""
        if batch.samples.size:
            segment, spans = batch.samples.written(self.connection, self.directory, self.numbers.metrics)
            batch.segments.append(segment)
            batch.spans.append(spans)
        for table, columns in (
            ("events", event_columns(batch.events) if batch.events else None),
            ("records", record_columns(batch.records) if batch.records else None),
            ("points", point_columns(batch.points) if batch.points else None),
        ):
            if columns is not None:
                batch.segments.append(self.segment(table, columns))
        batch.events, batch.records, batch.points = [], [], []

    def segment(self, table: str, columns: Columns) -> Segment:
        """Write columns as a segment, to be named by a commit."""
        return write_columns(self.connection, self.directory, table, columns)

    def selected(self, table: str, query: str, level: int = 0) -> list[Segment]:
        """Write what a query gives as a segment, to be named by a commit; none where it gives no row."""
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
        return [Segment(table, name, rows, path.stat().st_size, (low, high), times_ms, level)]

    def commit(self) -> None:
        """Make all inputs that are whole part of the store: on disk, and seen by readers that open it from now on."""
        self._committed = time.monotonic()
        batch, self._done = self._done, _Batch()
        if not batch.inputs:
            return
        self._write(batch)
        segments = batch.segments
        if any(batch.places.values()):
            segments.append(self.segment("spans", _span_columns(batch.spans, batch.places)))
        if self._numbers is not None and self._numbers.fresh:
            segments.append(self.segment("series", self._numbers.columns()))
        segments.append(self.segment("inputs", input_columns(batch.inputs)))
        self.replace(segments, ())

    def replace(
        self,
        added: Iterable[Segment],
        removed: Iterable[Segment],
        *,
        dead: Iterable[int] = (),
        incomplete: Iterable[int] = (),
        received: Received | None = None,
    ) -> None:
        """Commit some segments in place of others. ``dead``, ``incomplete``: inputs that become so."""
        gone = {each.name for each in removed}
        kept = [each for each in self.manifest.segments if each.name not in gone]
        self.manifest = self.directory.commit(
            msgspec.structs.replace(
                self.manifest,
                segments=(*kept, *added),
                dead=tuple(sorted({*self.manifest.dead, *self._dead, *dead})),
                incomplete=tuple(sorted({*self.manifest.incomplete, *incomplete} - self._dead)),
                next_input=self.next_input,
                next_series=self.manifest.next_series if self._numbers is None else self._numbers.following,
                received=self.manifest.received if received is None else received,
            )
        )
        self._dead = set()

    def grow(self, kept: Kept, added: Iterable[Segment], removed: Iterable[Segment], received: Received) -> Segment:
        """Commit segments of an input that is never whole; gives the one of its row, to be replaced by the next."""
        segments = list(added)
        if self._numbers is not None and self._numbers.fresh:
            segments.append(self.segment("series", self._numbers.columns()))
        row = self.segment("inputs", input_columns([kept]))
        self.replace([*segments, row], removed, received=received)
        return row

    def forget_numbers(self) -> None:
        """Look the series up anew: after a failure nobody may go by numbers that no segment names."""
        self._numbers = None

    def forget_dead(self, dead: Iterable[int]) -> None:
        """No segment holds a row of these any more."""
        left = tuple(number for number in self.manifest.dead if number not in set(dead))
        if left != self.manifest.dead:
            self.manifest = self.directory.commit(msgspec.structs.replace(self.manifest, dead=left))


def _span_columns(parts: list[Spans], places: dict[int, dict[int, Position]]) -> Columns:
    """The spans of some inputs, with a row also for each series that was named without a value."""
    whole = Spans.joined(parts)
    met = set(zip(whole.inputs.tolist(), whole.series.tolist(), strict=True))
    bare = [(input_, series) for input_, named in places.items() for series in named if (input_, series) not in met]
    whole = Spans.joined([whole, Spans.bare(bare)])
    pairs = zip(whole.inputs.tolist(), whole.series.tolist(), strict=True)
    found = [places[input_][series] for input_, series in pairs]
    return {
        "input": whole.inputs,
        "series": whole.series,
        "first_ms": np.ma.masked_where(whole.count == 0, whole.first_ms),
        "last_ms": np.ma.masked_where(whole.count == 0, whole.last_ms),
        "count": whole.count,
        **placed(found),
    }
