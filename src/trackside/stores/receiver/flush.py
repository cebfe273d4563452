"""Moves accepted data from memory to disk: samples into segments, log lines into files, and these files into the store.

The commit that names the new segments also records how far the write-ahead log is processed. What could not be written
is rolled back and written again at the next flush.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trackside.errors import StoreError
from trackside.stores.embedded.damage import rebuild
from trackside.stores.embedded.layout import LogPosition, StoreDamaged
from trackside.stores.embedded.retention import DAY_MS, compact, merge_row_segments, merge_sample_segments
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.lines import CLOSE_AFTER_S, LineFiles
from trackside.stores.receiver.options import RetentionOptions
from trackside.stores.receiver.pending import FlushBatch, PendingQueue
from trackside.stores.receiver.received import ReceivedSamples

LOG = logging.getLogger("trackside.receiver")
READ_S, READ_ALL_S = 3.0, 25.0
"""Time for reading files of lines between two flushes, and if a caller waits for all of them."""
CLEANUP_INTERVAL_S = 3600.0
"""Interval between rounds that compress files and delete old ones."""
CROWDED_CLEANUP_INTERVAL_S, CROWDED_QUIET_S = 60.0, 600.0
"""That interval, and the silence after which a file is closed, if the lines take nearly all of their disk space."""
CROWDED_RATIO = 0.9
"""The share of the allowed disk space that counts as nearly all."""


@dataclass(slots=True)
class ReceiverCounts:
    """Events since the start. ``left_out``: reason -> samples or lines. Any thread may read the counts."""

    left_out: Counter[str] = field(default_factory=Counter)
    flushes: int = 0
    flush_s: float = 0.0
    failures: int = 0
    syncs: int = 0
    replayed: int = 0
    torn_bytes: int = 0
    damaged_bytes: int = 0

    def leave_out(self, added: Mapping[str, int]) -> None:
        """Add to ``left_out`` in a new counter, because other threads read the old one meanwhile."""
        totals = Counter(self.left_out)
        totals.update(added)
        self.left_out = totals


class LineFileReader(Protocol):
    """Reads the files of received lines into the store."""

    def read(self, writer: Writer, read_all: bool, within_s: float) -> Sequence[str]:
        """Read the files that have grown enough, or all that changed; begin none after ``within_s`` seconds. Returns
        the paths of the files that remain."""

    def sizes(self) -> Mapping[str, int]:
        """Path -> size at which the file was read."""


class LinesNotRead(StoreError):
    """All samples are in segments and all lines in files, but these files could not be read into the store."""


class Flusher:
    """Uses the store's writer; for one thread at a time. ``forget``: deletes the write-ahead log up to a position."""

    def __init__(
        self,
        writer: Writer,
        queue: PendingQueue,
        retention: RetentionOptions,
        counts: ReceiverCounts,
        forget: Callable[[LogPosition], None],
        reader: Callable[[Path], LineFileReader] | None,
    ) -> None:
        self._writer, self._queue, self._retention, self._counts, self._forget = (
            writer,
            queue,
            retention,
            counts,
            forget,
        )
        self.committed = writer.manifest.received.mark
        """The write-ahead log is processed up to this position."""
        self.batch: FlushBatch | None = None
        """What is being written, or could not be. Any thread may look."""
        self.files = LineFiles(writer.directory.path / "received" / "logs")
        self.files.recover(self.committed)
        self.samples = ReceivedSamples(writer)
        self._make_reader = reader
        self._reader = reader(self.files.folder) if reader is not None else None
        self._cleaned_up_at = 0.0

    def write(self) -> None:
        """Write everything that waits. Raises StoreError and OSError."""
        if self.batch is not None:  # the last attempt failed: roll back what it left
            self.files.roll_back()
            self.samples.reset()
            self._writer.directory.delete_unreferenced_files()
            self._write(self.batch)
        self.batch = self._queue.drain()
        if self.batch is not None:
            self._write(self.batch)

    def _write(self, batch: FlushBatch) -> None:
        begin = time.monotonic()
        repeated = self.files.append(batch.streams, batch.mark)
        left_out = self.samples.flush(batch.arrived, batch.mark, batch.bytes, self._oldest_ms())
        self.files.confirm()
        self.batch, self.committed = None, batch.mark
        self._forget(batch.mark)
        self._counts.leave_out(left_out + Counter(repeated_line=repeated))
        self._counts.flushes += 1
        self._counts.flush_s += time.monotonic() - begin
        merge_sample_segments(self._writer)
        merge_row_segments(self._writer)
        self._writer.directory.delete_unreferenced_files()

    def _oldest_ms(self) -> int | None:
        """Samples up to this time are kept as per-minute aggregates only: a day that was thinned takes no more
        samples."""
        if self._retention.raw_days is None:
            return None
        return int((time.time() - self._retention.raw_days * 86400) * 1000) // DAY_MS * DAY_MS

    def read(self, read_all: bool) -> Sequence[str]:
        """Read the files of lines that are due, or all; returns the paths of those that remain. Raises LinesNotRead
        and StoreDamaged."""
        if self._reader is None:
            return ()
        try:
            return self._reader.read(self._writer, read_all, READ_ALL_S if read_all else READ_S)
        except StoreDamaged:
            raise
        except (StoreError, OSError) as error:
            raise LinesNotRead(error_text(error)) from error

    def repair(self) -> None:
        """Rebuild the store from what is intact. Files of lines that lost rows are read again. Raises StoreError."""
        repair(self._writer)
        self.samples.reset()
        if self._make_reader is not None:
            self._reader = self._make_reader(self.files.folder)

    def do_periodic_work(self) -> None:
        """If it is due: decide units, compress and delete files of lines, and once a day check and compact the store.
        It is due every hour, or every minute if lines take nearly all of their disk space."""
        now, retention = time.time(), self._retention
        crowded = self.files.bytes > CROWDED_RATIO * retention.log_bytes
        if now - self._cleaned_up_at < (CROWDED_CLEANUP_INTERVAL_S if crowded else CLEANUP_INTERVAL_S):
            return
        self._counts.leave_out(self.samples.settle())
        new_day = self._cleaned_up_at and now // 86400 != self._cleaned_up_at // 86400
        self._cleaned_up_at = now
        if self._reader is not None:
            self.files.compress(self._reader.sizes(), CROWDED_QUIET_S if crowded else CLOSE_AFTER_S)
        oldest_s = None if retention.log_days is None else now - retention.log_days * 86400
        self.files.delete_old_files(oldest_s, retention.log_bytes)
        if new_day:
            self.repair()
        if new_day or len(self._writer.manifest.dead) > 5_000:
            compact(self._writer, now, retention.raw_days, retention.minute_days)
            self.samples.reset()


def repair(writer: Writer) -> None:
    """Rebuild the store from what is intact, so that a damaged file keeps nothing out that arrives. Raises
    StoreError."""
    result = rebuild(writer)
    for damaged in result.damaged:
        LOG.error(
            "%s is %s; the store was rebuilt from the rest, and the file is kept in %s",
            damaged.segment.name,
            damaged.fault,
            writer.directory.damaged,
        )
    if result.damaged:
        LOG.error("%d rows of damaged files are lost, %d are kept", result.lost_rows, result.kept_rows)


def error_text(error: BaseException) -> str:
    """The text of an error, or its type if it has none."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
