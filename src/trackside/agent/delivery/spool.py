"""Data to be sent, kept on disk (:mod:`.segments`) so that it survives outages of the receiver and restarts of the
agent.

Records come out in the order in which they went in, independent of clocks. While the disk cannot be written, records
wait in memory, and go to disk or directly to the receiver when possible. Both are limited. Beyond the limit the oldest
records are dropped, because the last minutes of a run show why it ended.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trackside.agent.delivery.segments import Segments, SpoolBusy, frame_of, record_of
from trackside.settings.bounds import check_at_least

__all__ = ["Batch", "Spool", "SpoolBusy", "SpoolOptions", "SpoolStatus"]

MIN_FILES = 16
"""A full spool has at least this many files, because space is freed by dropping whole files."""
FILE_BYTES = 4 << 20
BLOCKED_S = 5.0
"""How long a record waits for a disk that does not respond."""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions:
    """The table ``[spool]``. Raises ValueError for invalid values."""

    path: str = ""
    """The spool's folder; empty: ``spool`` in the agent's state folder."""
    max_disk_bytes: int = 512 << 20
    """Maximum size on disk, per receiver."""
    max_memory_bytes: int = 8 << 20
    """Maximum size in memory while the disk cannot be written, per receiver."""
    sync_s: float = 1.0
    """Maximum time before written data is synced to disk; 0: after each record."""

    def __post_init__(self) -> None:
        check_at_least(1 << 16, self, "max_disk_bytes", "max_memory_bytes")
        check_at_least(0, self, "sync_s")


@dataclass(frozen=True, slots=True)
class Batch:
    """The oldest records, to be sent together, and the item count of each."""

    records: list[bytes]
    counts: list[int]
    end: tuple[int, int]
    """(file number, offset) after the last record from disk."""
    memory: int
    """Number of records from memory."""

    @property
    def count(self) -> int:
        """Items in all records."""
        return sum(self.counts)


@dataclass(slots=True)
class _InFlight:
    """Records that are being sent and must not be dropped: files up to number ``file``, and the first ``memory`` in
    memory."""

    file: int = -1
    memory: int = 0


@dataclass(slots=True)
class SpoolStatus:
    """How much waits to be sent, and items lost by reason."""

    disk_bytes: int = 0
    memory_bytes: int = 0
    count: int = 0
    lost: Counter[str] = field(default_factory=Counter)


class Spool:
    """The records of one receiver. Any thread may append; one thread takes them out."""

    def __init__(self, folder: Path | None, options: SpoolOptions, say: Callable[[str], object]) -> None:
        """``folder``: None to keep records in memory only. Raises SpoolBusy."""
        self._options, self._say = options, say
        self._lock, self._changed = threading.Lock(), threading.Condition(threading.Lock())
        self._memory: deque[tuple[bytes, int]] = deque()
        self._memory_bytes = 0
        self._in_flight = _InFlight()
        self._lost: Counter[str] = Counter()
        self._disk_error, self._is_disk_full = "", False
        self._dirty, self._synced = False, time.monotonic()
        self._disk: Segments | None = None
        if folder is not None:
            try:
                file_bytes = min(FILE_BYTES, options.max_disk_bytes // MIN_FILES)
                self._disk = Segments(folder, file_bytes, options.max_disk_bytes, not options.sync_s)
            except OSError as error:
                say(f"the spool {folder} cannot be used ({error.strerror}); data waits in memory only")

    # -- writing

    def append(self, record: bytes, count: int) -> bool:
        """Add a record with ``count`` items; True if it is on disk, not only in memory."""
        frame = frame_of(record, count)
        if not self._lock.acquire(timeout=BLOCKED_S):
            self._lost["blocked"] += count  # a blocked disk must not stop the sources
            return False
        try:
            self._memory.append((frame, count))
            self._memory_bytes += len(frame)
            written = self._flush()
            while self._memory_bytes > self._options.max_memory_bytes and self._drop_oldest():
                pass
        finally:
            self._lock.release()
        self.wake()
        return written

    def _flush(self) -> bool:
        """Write the records in memory to disk as far as possible; True if none is left."""
        if self._disk is None or self._in_flight.memory:  # a failed batch has to be sent before all later records
            return False
        try:
            while self._memory:
                frame, count = self._memory[0]
                self._disk.write(frame, count, self._in_flight.file)
                self._dirty = True
                self._pop_memory()
        except OSError as error:
            self._is_disk_full = error.errno in _DISK_FULL
            if self._disk_error != str(error.strerror):
                self._disk_error = str(error.strerror)
                self._say(f"the spool cannot be written ({error.strerror}); data waits in memory")
            return False
        if self._disk_error:
            self._disk_error = ""
            self._say("the spool can be written again")
        return True

    def _pop_memory(self, index: int = 0) -> int:
        """Remove a record from memory; its item count."""
        frame, count = self._memory[index]
        del self._memory[index]
        self._memory_bytes -= len(frame)
        return count

    def _drop_oldest(self) -> bool:
        """Drop the oldest data that isn't being sent, on disk or in memory; False if there is none."""
        if self._is_disk_full and self._disk is not None:
            self._disk.close_file()  # otherwise the newest file, possibly the only one, could not be dropped
            if self._disk.drop(self._in_flight.file, "memory_full"):
                self._flush()  # the disk may have space now
                return True
        if len(self._memory) <= self._in_flight.memory:
            return False
        self._lost["memory_full"] += self._pop_memory(self._in_flight.memory)
        return True

    def sync(self) -> None:
        """Sync written data to disk if it is due."""
        now = time.monotonic()
        if not self._dirty or now - self._synced < self._options.sync_s:
            return
        self._dirty, self._synced = False, now
        with self._lock:
            descriptor = -1 if self._disk is None else self._disk.dup_for_sync()
        if descriptor >= 0:
            with suppress(OSError):  # the next write reports the error
                os.fdatasync(descriptor)
            os.close(descriptor)

    # -- reading

    def wait(self, within_s: float) -> bool:
        """Wait for something to send; True if there is."""
        with self._changed:
            return self._changed.wait_for(self._has_records, within_s)

    def _has_records(self) -> bool:
        with self._lock:
            return bool(self._memory) or (self._disk is not None and self._disk.count > 0)

    def wake(self) -> None:
        """Wake the thread in :meth:`wait`."""
        with self._changed:
            self._changed.notify_all()

    def batch(self, max_bytes: int, max_records: int) -> Batch | None:
        """The oldest records up to the limits, at least one; None if none waits. They stay in the spool until
        :meth:`confirm`, :meth:`discard` or :meth:`release`. Raises OSError if files cannot be read at the moment."""
        with self._lock:
            records, counts = list[bytes](), list[int]()

            def has_space() -> bool:
                return len(records) < max_records and sum(map(len, records)) < max_bytes

            disk, number, offset = self._disk, 0, 0
            if disk is not None:
                number, offset = disk.position
                for segment in list(disk.segments):
                    number, offset = segment.number, offset if segment.number == number else 0
                    while has_space() and (entry := disk.record_at(segment, offset)) is not None:
                        records.append(entry[0])
                        counts.append(entry[1])
                        offset = entry[2]
                    if not has_space():
                        break
            from_disk = len(records)
            for frame, count in self._memory:
                if not has_space():
                    break
                records.append(record_of(frame))
                counts.append(count)
            if not records:
                if disk is not None:
                    disk.count_rest_as_damaged()
                    disk.advance((number, offset))
                return None
            memory = len(records) - from_disk
            self._in_flight = _InFlight(number if from_disk else -1, memory)
            return Batch(records, counts, (number, offset), memory)

    def confirm(self, batch: Batch) -> None:
        """Remove a batch that the receiver has accepted."""
        with self._lock:
            self._in_flight = _InFlight()
            for _ in range(batch.memory):
                self._pop_memory()
            from_disk = batch.counts[: len(batch.records) - batch.memory]
            if from_disk and self._disk is not None:
                self._disk.confirm(batch.end, sum(from_disk))

    def discard(self, batch: Batch) -> None:
        """Remove a batch that the receiver will never accept, and count it as lost."""
        self._lost["refused"] += batch.count
        self.confirm(batch)

    def release(self, batch: Batch) -> None:
        """Let a batch that was not sent wait again."""
        with self._lock:
            self._in_flight = _InFlight()

    @property
    def waiting(self) -> SpoolStatus:
        """How much waits; may be called from any thread."""
        with self._lock:
            disk, lost = self._disk, Counter(self._lost)
            count = sum(count for _, count in self._memory)
            if disk is None:
                return SpoolStatus(0, self._memory_bytes, count, lost)
            return SpoolStatus(disk.size, self._memory_bytes, count + disk.count, lost + disk.lost)

    def close(self) -> None:
        """Release the folder; records that are only in memory are lost, and counted."""
        with self._lock:
            self._flush()
            if self._memory:
                self._lost["ended"] += sum(count for _, count in self._memory)
                self._memory.clear()
                self._memory_bytes = 0
            if self._disk is not None:
                self._disk.close()
                self._disk = None
