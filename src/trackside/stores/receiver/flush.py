"""What was accepted from memory to where it stays: samples into segments, lines into files, these into the store.

A commit that names what was written also says how far the write-ahead log is done with. What could not be written is
taken back and written again at the next flush.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trackside.stores.embedded.layout import Mark, StoreError
from trackside.stores.embedded.retention import DAY_MS, compact, merge_young, tidy
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.lines import QUIET_S, LineFiles
from trackside.stores.receiver.options import Keeping
from trackside.stores.receiver.pending import Batch, Pending
from trackside.stores.receiver.received import ReceivedSamples

SOME_S, ALL_S = 3.0, 25.0
"""How long files of lines are read between two flushes, and where somebody waits for all of them."""
CARE_S = 3600.0
"""How often files are compressed and old ones deleted."""
SOON_S, SOON_QUIET_S = 60.0, 600.0
"""The same, and how long a file has been quiet that is closed, where lines take nearly as much as they may:"""
CROWDED = 0.9
"""this part of it."""


@dataclass(slots=True)
class Counts:
    """What happened since the start. ``left_out``: reason -> samples or lines. Any thread may read them."""

    left_out: Counter[str] = field(default_factory=Counter)
    flushes: int = 0
    flush_s: float = 0.0
    failures: int = 0
    syncs: int = 0
    replayed: int = 0
    torn_bytes: int = 0
    damaged_bytes: int = 0

    def leave_out(self, more: Mapping[str, int]) -> None:
        """Count them in a new counter: others read the old one meanwhile."""
        counted = Counter(self.left_out)
        counted.update(more)
        self.left_out = counted


class Reader(Protocol):
    """Reads the files of received lines into the store."""

    def read(self, writer: Writer, all_: bool, within_s: float) -> Sequence[str]:
        """Those that have grown enough since, or all that have changed; it begins none after that time. Gives the
        paths of those that are left."""

    def sizes(self) -> Mapping[str, int]:
        """By path, the size at which each file was read."""


class NotRead(StoreError):
    """All samples are in segments and all lines in files, but these could not be read into the store."""


class Flush:
    """The one user of a store's writer; for one thread at a time. ``forget``: lets go of the log up to a place."""

    def __init__(
        self,
        writer: Writer,
        waits: Pending,
        keeping: Keeping,
        counts: Counts,
        forget: Callable[[Mark], None],
        reader: Callable[[Path], Reader] | None,
    ) -> None:
        self._writer, self._waits, self._keeping, self._counts, self._forget = writer, waits, keeping, counts, forget
        self.committed = writer.manifest.received.mark
        """Up to where the log is done with."""
        self.batch: Batch | None = None
        """What is being written, or could not be. Any thread may look."""
        self.files = LineFiles(writer.directory.path / "received" / "logs")
        self.files.recover(self.committed)
        self.samples = ReceivedSamples(writer)
        self._reader = reader(self.files.folder) if reader is not None else None
        self._cared = 0.0

    def write(self) -> None:
        """Write all that waits. Raises StoreError and OSError."""
        if self.batch is not None:  # the last attempt failed: away with what it left
            self.files.take_back()
            self.samples.reset()
            self._writer.directory.sweep()
            self._write(self.batch)
        self.batch = self._waits.drained()
        if self.batch is not None:
            self._write(self.batch)

    def _write(self, batch: Batch) -> None:
        begin = time.monotonic()
        repeated = self.files.append(batch.streams, batch.mark)
        left_out = self.samples.flush(batch.arrived, batch.mark, batch.bytes, self._oldest_ms())
        self.files.hold()
        self.batch, self.committed = None, batch.mark
        self._forget(batch.mark)
        self._counts.leave_out(left_out + Counter(repeated_line=repeated))
        self._counts.flushes += 1
        self._counts.flush_s += time.monotonic() - begin
        merge_young(self._writer)
        tidy(self._writer)
        self._writer.directory.sweep()

    def _oldest_ms(self) -> int | None:
        """Up to then samples are kept as their minutes only: a day that is thinned takes no more."""
        if self._keeping.raw_days is None:
            return None
        return int((time.time() - self._keeping.raw_days * 86400) * 1000) // DAY_MS * DAY_MS

    def read(self, all_: bool) -> Sequence[str]:
        """Read the files of lines that are due, or all; gives the paths of those that are left. Raises NotRead."""
        if self._reader is None:
            return ()
        try:
            return self._reader.read(self._writer, all_, ALL_S if all_ else SOME_S)
        except (StoreError, OSError) as error:
            raise NotRead(in_words(error)) from error

    def care(self, closing: bool) -> None:
        """What is done now and then: settle, compress, forget, compact; sooner where lines take too much."""
        now, keeping = time.time(), self._keeping
        crowded = self.files.bytes > CROWDED * keeping.log_bytes
        if closing or now - self._cared < (SOON_S if crowded else CARE_S):
            return
        self._counts.leave_out(self.samples.settle())
        new_day = self._cared and now // 86400 != self._cared // 86400
        self._cared = now
        if self._reader is not None:
            self.files.compress(self._reader.sizes(), SOON_QUIET_S if crowded else QUIET_S)
        self.files.forget(None if keeping.log_days is None else now - keeping.log_days * 86400, keeping.log_bytes)
        if new_day or len(self._writer.manifest.dead) > 5_000:
            compact(self._writer, now, keeping.raw_days, keeping.minute_days)
            self.samples.reset()


def in_words(error: BaseException) -> str:
    """An error in words: some have none of their own."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
