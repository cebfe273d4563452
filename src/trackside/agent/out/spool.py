"""What is to be sent waits on disk (:mod:`.segments`), so that neither a receiver's absence nor the agent's own end
loses it.

It comes out in the order in which it went in; no clock has a say in that. Where the disk can't be written, records wait
in memory, and go to disk or straight on to the receiver once they can. Both are bounded. What is beyond goes, the
oldest first: it is the last minutes of a run that say why it ended.
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

from trackside.agent.out.segments import InUse, Segments, frame_of, record_of

__all__ = ["Batch", "InUse", "Spool", "SpoolOptions", "Waiting"]

LEAST_FILES = 16
"""A spool's bound is at least so many files: what must go goes a file at a time."""
FILE_BYTES = 4 << 20
BLOCKED_S = 5.0
"""How long a record waits for a disk that does not return."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolOptions:
    """The table ``[spool]``. Raises ValueError for what can't be meant."""

    path: str = ""
    """A folder; empty: ``spool`` in the agent's state."""
    most_bytes: int = 512 << 20
    """On disk, for each receiver."""
    memory_bytes: int = 8 << 20
    """What waits in memory while the disk can't be written, for each receiver."""
    sync_s: float = 1.0
    """How long what was written may wait to be on disk for good; 0: each record at once."""

    def __post_init__(self) -> None:
        if self.most_bytes < 1 << 16 or self.memory_bytes < 1 << 16 or self.sync_s < 0:
            raise ValueError("most_bytes and memory_bytes must be 65536 or more, sync_s 0 or more")


@dataclass(frozen=True, slots=True)
class Batch:
    """Records to be sent together, the oldest there are, and the things that each holds."""

    records: list[bytes]
    counts: list[int]
    end: tuple[int, int]
    """The file and the place in it after the last that came from disk."""
    memory: int
    """How many came from memory."""

    @property
    def count(self) -> int:
        """Things in all of them."""
        return sum(self.counts)


@dataclass(slots=True)
class _Pinned:
    """What is being sent and must stay: up to which file, and how many in memory."""

    file: int = -1
    memory: int = 0


@dataclass(slots=True)
class Waiting:
    """How much waits, and what was lost: reason -> things."""

    disk_bytes: int = 0
    memory_bytes: int = 0
    count: int = 0
    lost: Counter[str] = field(default_factory=Counter)


class Spool:
    """The records of one receiver. Any thread appends; one takes them out."""

    def __init__(self, folder: Path | None, options: SpoolOptions, say: Callable[[str], object]) -> None:
        """``folder``: None keeps to memory. Raises InUse."""
        self._options, self._say = options, say
        self._lock, self._news = threading.Lock(), threading.Condition(threading.Lock())
        self._memory: deque[tuple[bytes, int]] = deque()
        self._memory_bytes = 0
        self._pinned = _Pinned()
        self._lost: Counter[str] = Counter()
        self._trouble, self._full = "", False
        self._dirty, self._synced = False, time.monotonic()
        self._disk: Segments | None = None
        if folder is not None:
            try:
                file_bytes = min(FILE_BYTES, options.most_bytes // LEAST_FILES)
                self._disk = Segments(folder, file_bytes, options.most_bytes, not options.sync_s)
            except OSError as error:
                say(f"the spool {folder} can't be used, so what waits is kept in memory only: {error.strerror}")

    # -- in

    def append(self, record: bytes, count: int) -> bool:
        """Take a record that holds so many things; whether it is on disk, and not only in memory."""
        frame = frame_of(record, count)
        if not self._lock.acquire(timeout=BLOCKED_S):
            self._lost["blocked"] += count  # nothing that a disk does may stop the sources
            return False
        try:
            self._memory.append((frame, count))
            self._memory_bytes += len(frame)
            written = self._to_disk()
            while self._memory_bytes > self._options.memory_bytes and self._drop_oldest():
                pass
        finally:
            self._lock.release()
        self.wake()
        return written

    def _to_disk(self) -> bool:
        """Write what is in memory, as far as the disk takes it; whether nothing is left."""
        if self._disk is None or self._pinned.memory:  # what is being sent may have to go before all others again
            return False
        try:
            while self._memory:
                frame, count = self._memory[0]
                self._disk.write(frame, count, self._pinned.file)
                self._dirty = True
                self._taken_from_memory()
        except OSError as error:
            self._full = error.errno in _FULL
            if self._trouble != str(error.strerror):
                self._trouble = str(error.strerror)
                self._say(f"the spool can't be written, so what waits is kept in memory: {error.strerror}")
            return False
        if self._trouble:
            self._trouble = ""
            self._say("the spool can be written again")
        return True

    def _taken_from_memory(self, at: int = 0) -> int:
        """Take a record out; what it counts."""
        frame, count = self._memory[at]
        del self._memory[at]
        self._memory_bytes -= len(frame)
        return count

    def _drop_oldest(self) -> bool:
        """Let the oldest go that isn't being sent, on disk or in memory; whether there was any."""
        if self._full and self._disk is not None:
            self._disk.finish()  # or the newest file could not go, which may be the only one
            if self._disk.drop(self._pinned.file, "memory_full"):
                self._to_disk()  # there may be room now
                return True
        if len(self._memory) <= self._pinned.memory:
            return False
        self._lost["memory_full"] += self._taken_from_memory(self._pinned.memory)
        return True

    def sync(self) -> None:
        """Have what was written on disk for good, if it is time."""
        now = time.monotonic()
        if not self._dirty or now - self._synced < self._options.sync_s:
            return
        self._dirty, self._synced = False, now
        with self._lock:
            descriptor = -1 if self._disk is None else self._disk.syncing()
        if descriptor >= 0:
            with suppress(OSError):  # the next write says so
                os.fdatasync(descriptor)
            os.close(descriptor)

    # -- out

    def wait(self, within_s: float) -> bool:
        """Wait for something to send; whether there is."""
        with self._news:
            return self._news.wait_for(self._any, within_s)

    def _any(self) -> bool:
        with self._lock:
            return bool(self._memory) or (self._disk is not None and self._disk.count > 0)

    def wake(self) -> None:
        """Have who waits look again."""
        with self._news:
            self._news.notify_all()

    def batch(self, most_bytes: int, most_records: int) -> Batch | None:
        """The oldest records, as many as fit but one at least; None where none waits. They stay until it is
        :meth:`done`, :meth:`refused` or :meth:`released`. Raises OSError where files can't be read just now."""
        with self._lock:
            records, counts = list[bytes](), list[int]()

            def room() -> bool:
                return len(records) < most_records and sum(map(len, records)) < most_bytes

            disk, number, at = self._disk, 0, 0
            if disk is not None:
                number, at = disk.position
                for file in list(disk.files):
                    number, at = file.number, at if file.number == number else 0
                    while room() and (found := disk.record(file, at)) is not None:
                        records.append(found[0])
                        counts.append(found[1])
                        at = found[2]
                    if not room():
                        break
            from_disk = len(records)
            for frame, count in self._memory:
                if not room():
                    break
                records.append(record_of(frame))
                counts.append(count)
            if not records:
                if disk is not None:
                    disk.unreadable()
                    disk.passed((number, at))
                return None
            memory = len(records) - from_disk
            self._pinned = _Pinned(number if from_disk else -1, memory)
            return Batch(records, counts, (number, at), memory)

    def done(self, batch: Batch) -> None:
        """The receiver has a batch."""
        with self._lock:
            self._pinned = _Pinned()
            for _ in range(batch.memory):
                self._taken_from_memory()
            from_disk = batch.counts[: len(batch.records) - batch.memory]
            if from_disk and self._disk is not None:
                self._disk.done(batch.end, sum(from_disk))

    def refused(self, batch: Batch) -> None:
        """The receiver will never take a batch: it is lost."""
        self._lost["refused"] += batch.count
        self.done(batch)

    def released(self, batch: Batch) -> None:
        """A batch was not sent, and waits again."""
        with self._lock:
            self._pinned = _Pinned()

    @property
    def waiting(self) -> Waiting:
        """How much waits. Any thread may ask."""
        with self._lock:
            disk, lost = self._disk, Counter(self._lost)
            count = sum(count for _, count in self._memory)
            if disk is None:
                return Waiting(0, self._memory_bytes, count, lost)
            return Waiting(disk.size, self._memory_bytes, count + disk.count, lost + disk.lost)

    def close(self) -> None:
        """Let go of the folder; what is only in memory is lost, and counted."""
        with self._lock:
            self._to_disk()
            if self._memory:
                self._lost["ended"] += sum(count for _, count in self._memory)
                self._memory.clear()
                self._memory_bytes = 0
            if self._disk is not None:
                self._disk.close()
                self._disk = None
