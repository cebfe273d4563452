"""Accepts data that is pushed to a store: durable before the sender gets an answer, in segments soon after, without
loss or duplicates.

A decoded body goes whole into the write-ahead log; one sync serves all bodies that wait for it. Its samples and lines
then wait in memory for a flush, which writes them and commits how far the log is processed. After a crash the rest of
the log is replayed. There are two threads: one appends to the log, the other flushes and is the only one to use the
writer.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from trackside.errors import StoreError, TracksideError
from trackside.stores.embedded.layout import LogPosition, StoreDamaged
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.arrivals import IntakeResult, LabelsOf
from trackside.stores.receiver.flush import Flusher, LineFileReader, ReceiverCounts, error_text, repair
from trackside.stores.receiver.options import ReceiverLimits, RetentionOptions
from trackside.stores.receiver.pending import Decoded, PendingQueue
from trackside.stores.receiver.write_ahead import Entry, Header, WriteAhead

LOG = logging.getLogger("trackside.receiver")
T = TypeVar("T")
STOPPING = "the receiver is stopping"
RETRY_S = 5.0
"""Pause after a failed flush, and Retry-After for senders that must wait until data is written."""
SYNC_RETRY_S = 1.0
"""Retry-After for senders that must wait until bodies are synced, which is faster."""
LOG_INTERVAL_S = 30.0
"""Shortest interval between two log messages about the same failure."""


class IntakeUnavailable(TracksideError):
    """The queue is full, or the receiver is stopping: HTTP 429."""

    status = 429

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class DataNotStored(TracksideError):
    """Data cannot be put on disk, and nothing of this request was kept: HTTP 503."""

    status = 503
    retry_after_s = RETRY_S


@dataclass(slots=True)
class _QueuedBody:
    """A body on its way to the log."""

    entry: Entry
    decoded: Decoded
    result: Future[IntakeResult]


class Intake:
    """The receiving side of one store; nothing else may write to the store while it is open.

    Raises StoreBusy and StoreError.

    ``decode``: decodes a body that is replayed from the log.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        decode: Callable[[Entry], Decoded],
        labels_of: LabelsOf,
        limits: ReceiverLimits | None = None,
        retention: RetentionOptions | None = None,
        reader: Callable[[Path], LineFileReader] | None = None,
    ) -> None:
        self.limits, self.retention = limits or ReceiverLimits(), retention or RetentionOptions()
        self.counts = ReceiverCounts()
        self._decode = decode
        self._log_lock = threading.Lock()
        """Protects the log: a flush deletes files of it."""
        self._writer = Writer.open(store)
        try:
            mark = self._writer.manifest.received.mark
            self.log = WriteAhead(self._writer.directory.path / "received" / "wal", mark)
            self.queue = PendingQueue(labels_of, self.limits, mark)
            flusher = partial(Flusher, self._writer, self.queue, self.retention, self.counts, self._forget, reader)
            try:
                self._flush = flusher()
            except StoreDamaged:
                repair(self._writer)
                self._flush = flusher()
        except BaseException:
            self._writer.close()
            raise
        self.files = self._flush.files
        self._flush_now = False
        self._last_logged = -LOG_INTERVAL_S
        self._unlogged: list[_QueuedBody] = []
        self._queued_bytes = 0
        self._wake, self._flush_wake = threading.Condition(), threading.Condition()
        self._flush_requests: list[tuple[Future[Sequence[str]], bool]] = []
        self._closing = False
        self._free_space = -1.0, 0
        """When the free disk space was last measured, and its bytes."""
        self._flush_error = self._thread_error = ""
        """Why the last flush failed, empty once one succeeded; and which thread ended because of a defect."""
        self._replay()
        self._threads = [
            threading.Thread(target=self._supervise, args=(loop,), name=f"trackside-{name}", daemon=True)
            for name, loop in (("log", self._append_loop), ("flush", self._flush_loop))
        ]
        for thread in self._threads:
            thread.start()

    # -- accepting

    @property
    def last_error(self) -> str:
        """Why accepted data cannot be written; empty if the last flush succeeded."""
        return self._thread_error or self._flush_error

    def _supervise(self, loop: Callable[[], None]) -> None:
        """Run one of the two threads: if a defect ends it, nothing more is accepted and no caller waits for it."""
        try:
            loop()
        except BaseException as error:
            self._thread_error = (
                f"{threading.current_thread().name} ended ({error_text(error)}): start the receiver again"
            )
            LOG.critical("%s; accepted data is safe in the log", self._thread_error, exc_info=True)
            with self._wake, self._flush_wake:
                queue, self._unlogged = self._unlogged, []
                requests, self._flush_requests = self._flush_requests, []
            for body in queue:
                _fail(body.result, DataNotStored(self._thread_error))
            for future, _ in requests:
                _fail(future, DataNotStored(self._thread_error))

    def check_capacity(self) -> None:
        """Raise IntakeUnavailable (429) if the queue is full, and DataNotStored (503) if the data would never be
        written or would fill the disk. All senders retry after a 503."""
        if self._thread_error:
            raise DataNotStored(self._thread_error)
        free = self._free()
        if free < self.retention.free_bytes:
            raise DataNotStored(
                f"the store's disk has {free:,} bytes free, and {self.retention.free_bytes:,} must stay free"
                " (serve.keeping.free_bytes)"
            )
        samples, line_bytes = self.pending
        if samples >= self.limits.pending_samples:
            raise IntakeUnavailable(f"{samples:,} samples wait to be written{self._last_failure()}", RETRY_S)
        if line_bytes >= self.limits.pending_line_bytes:
            raise IntakeUnavailable(f"{line_bytes:,} bytes of lines wait to be written{self._last_failure()}", RETRY_S)
        if self._queued_bytes >= self.limits.bodies_bytes:
            raise IntakeUnavailable(f"{self._queued_bytes:,} bytes wait to be synced", SYNC_RETRY_S)

    def _free(self) -> int:
        """Free bytes on the store's disk, at most a second old."""
        now = time.monotonic()
        if now - self._free_space[0] >= 1.0:
            try:
                self._free_space = now, shutil.disk_usage(self.log.folder).free
            except OSError as error:
                raise DataNotStored(
                    f"the store's disk cannot be checked for free space: {error_text(error)}"
                ) from error
        return self._free_space[1]

    def _check_line_capacity(self) -> None:
        """Raise DataNotStored if the files of lines take all of their disk space."""
        used_bytes, max_bytes = self.files.bytes, self.retention.log_bytes
        if used_bytes >= max_bytes:
            raise DataNotStored(
                f"received lines take {used_bytes:,} bytes of at most {max_bytes:,} (serve.keeping.log_bytes), and"
                " files that are still being written cannot be deleted"
            )

    def _last_failure(self) -> str:
        return f", and the last attempt failed: {self.last_error}" if self.last_error else ""

    def accept(self, header: Header, body: bytes, decoded: Decoded) -> Future[IntakeResult]:
        """Accept a body. The future is done once the body is on disk; DataNotStored if it could not be written.

        Raises IntakeUnavailable and DataNotStored.
        """
        self.check_capacity()
        if isinstance(decoded, Sequence):
            self._check_line_capacity()
        queued = _QueuedBody((header, body), decoded, Future())
        with self._wake:
            if self._closing:
                raise IntakeUnavailable(STOPPING, RETRY_S)
            if self._thread_error:
                raise DataNotStored(self._thread_error)
            self._unlogged.append(queued)
            self._queued_bytes += len(body)
            self._wake.notify()
        return queued.result

    def _append_loop(self) -> None:
        while True:
            with self._wake:
                while not self._unlogged and not self._closing:
                    self._wake.wait()
                batch, self._unlogged = self._unlogged, []
                self._queued_bytes = 0
                if not batch:
                    return
            with _finish_all([body.result for body in batch]):
                self._append(batch)

    def _append(self, batch: list[_QueuedBody]) -> None:
        try:
            with self._log_lock:
                mark = self.log.append([body.entry for body in batch])
        except Exception as error:
            if time.monotonic() - self._last_logged > LOG_INTERVAL_S:
                self._last_logged = time.monotonic()
                expected = isinstance(error, OSError)
                LOG.error("the write-ahead log cannot be written: %s", error_text(error), exc_info=not expected)
            error_to_report = DataNotStored(
                f"{self.log.folder} cannot be written: {error_text(error)}; nothing of this request was kept"
            )
            self.counts.failures += 1
            for body in batch:
                _fail(body.result, error_to_report)
            return
        self.counts.syncs += 1
        results = self.queue.add([(body.entry, body.decoded) for body in batch], mark)
        for body, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                _fail(body.result, result)
            elif body.result.set_running_or_notify_cancel():  # the caller may have given up
                body.result.set_result(result)
        if self._should_flush():
            with self._flush_wake:
                self._flush_now = True
                self._flush_wake.notify()

    def _should_flush(self) -> bool:
        """Whether to flush without waiting for the interval."""
        too_many = self.queue.samples >= self.retention.flush_samples
        return too_many or self.queue.line_bytes >= self.limits.pending_line_bytes // 4

    def _replay(self) -> None:
        """Queue what is in the log but in no segment."""
        for entry, mark in self.log.replay():
            self._replay_entry(entry, mark)
            self.counts.replayed += 1
            if self._should_flush():
                self._write()
        self.counts.torn_bytes, self.counts.damaged_bytes = self.log.torn_bytes, self.log.damaged_bytes
        if self.log.damaged:
            LOG.error(
                "%d bytes of the log are damaged (a failing disk?) and their content is lost; a copy is kept as %s",
                self.log.damaged_bytes,
                ", ".join(map(str, self.log.damaged)),
            )
        if self.counts.replayed or self.counts.torn_bytes:
            LOG.warning(
                "after an unclean stop: replayed %d bodies from the log, cut off %d torn bytes",
                self.counts.replayed,
                self.counts.torn_bytes,
            )
        self._write()
        self.log.delete_until(self._flush.committed)

    def _write(self) -> None:
        """Write everything that waits; a damaged store is rebuilt first."""
        try:
            self._flush.write()
        except StoreDamaged:
            self._flush.repair()
            self._flush.write()

    def _replay_entry(self, entry: Entry, mark: LogPosition) -> None:
        """Queue a body of the log again; one that cannot be decoded any more must not keep the others out."""
        try:
            decoded = self._decode(entry)
        except Exception as error:
            expected = isinstance(error, ValueError)
            LOG.error(
                "a body of %s in the log cannot be decoded any more and is skipped: %s",
                entry[0].protocol,
                error_text(error),
                exc_info=not expected,
            )
            self.counts.leave_out({"undecodable": 1})
            self.queue.add((), mark)
            return
        self.queue.add([(entry, decoded)], mark, limited=False)

    # -- flushing

    @property
    def pending(self) -> tuple[int, int]:
        """Samples, and bytes of lines, that wait for a flush or are being written."""
        batch = self._flush.batch
        samples, line_bytes = (0, 0) if batch is None else (len(batch.arrived.values), batch.line_bytes)
        return self.queue.samples + samples, self.queue.line_bytes + line_bytes

    @property
    def unsettled(self) -> Mapping[str, int]:
        """Foreign names whose unit is not known, and how many values of each wait for it."""
        return self._flush.samples.unsettled

    def flush(self, read: bool = True) -> Future[Sequence[str]]:
        """Write everything accepted so far to segments; ``read``: also read the files of lines.

        The result is the paths of the files that there was no time to read; LinesNotRead if only these failed.
        Raises IntakeUnavailable and DataNotStored.
        """
        request: Future[Sequence[str]] = Future()
        with self._flush_wake:
            if self._thread_error:
                raise DataNotStored(self._thread_error)
            if self._closing:
                raise IntakeUnavailable(STOPPING, RETRY_S)
            self._flush_requests.append((request, read))
            self._flush_wake.notify()
        return request

    def _flush_loop(self) -> None:
        while True:
            with self._flush_wake:
                wait_s = RETRY_S if self._flush_error else self.retention.flush_s
                self._flush_wake.wait_for(
                    lambda: self._flush_requests or self._closing or (self._flush_now and not self._flush_error), wait_s
                )
                requests, self._flush_requests = self._flush_requests, []
                closing, self._flush_now = self._closing, False
            with _finish_all([future for future, _ in requests]):
                self._flush_round(requests, closing)
            if closing:
                return

    def _flush_round(self, requests: list[tuple[Future[Sequence[str]], bool]], closing: bool) -> None:
        read_all = closing or any(read for _, read in requests)
        try:
            try:
                unread_paths = self._write_and_read(read_all, closing)
            except StoreDamaged:
                self._flush.repair()
                unread_paths = self._write_and_read(read_all, closing)
        except Exception as error:  # noqa: BLE001 - a defect here must not stop what comes after
            expected = isinstance(error, (StoreError, OSError))
            self._report_failure(error, expected)
            for future, _ in requests:
                _fail(future, error)
            return
        self._flush_error = ""
        for future, _ in requests:
            if future.set_running_or_notify_cancel():
                future.set_result(unread_paths)

    def _write_and_read(self, read_all: bool, closing: bool) -> Sequence[str]:
        """Flush, and return the paths of files of lines that there was no time to read."""
        self._flush.write()
        unread_paths = self._flush.read(read_all)
        if not closing:
            self._flush.do_periodic_work()
        return unread_paths

    def _report_failure(self, error: Exception, expected: bool) -> None:
        self._flush_error = error_text(error)
        self.counts.failures += 1
        LOG.error(
            "accepted data is safe in the log but cannot be written yet: %s",
            self._flush_error,
            exc_info=not expected,
        )

    def _forget(self, mark: LogPosition) -> None:
        with self._log_lock:
            self.log.delete_until(mark)

    def close(self) -> None:
        """Accept no more, write what was accepted, and release the store. What cannot be written stays in the log."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._threads[0].join()
        with self._flush_wake:
            self._flush_wake.notify()
        self._threads[1].join()
        self.log.close()
        self._writer.close()


@contextmanager
def _finish_all(futures: Sequence[Future[T]]) -> Iterator[None]:
    """Fail all unfinished futures when the block ends, so that no caller waits forever."""
    try:
        yield
    finally:
        for future in futures:
            if not future.done():
                _fail(future, DataNotStored("the receiver could not process it: send it again"))


def _fail(future: Future[T], error: Exception) -> None:
    """Set an error on a future, unless it was canceled."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
