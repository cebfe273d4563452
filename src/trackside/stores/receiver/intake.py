"""What is sent to a store: on disk before the sender is told, in segments soon after, neither lost nor doubled.

A body that was understood goes whole into the write-ahead log; one sync serves all that wait for it. Its samples and
lines then wait in memory for a flush, which writes them and commits up to where the log is done with. After a crash the
rest of the log is read again. Two threads: one appends to the log, one flushes and is the only one to use the writer.
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
from pathlib import Path
from typing import TypeVar

from trackside.errors import TracksideError
from trackside.stores.embedded.layout import Mark, StoreError
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.arrivals import LabelsOf, Taken
from trackside.stores.receiver.flush import Counts, Flush, Reader, in_words
from trackside.stores.receiver.options import Keeping, Limits
from trackside.stores.receiver.pending import Decoded, Pending
from trackside.stores.receiver.write_ahead import Entry, Header, WriteAhead

LOG = logging.getLogger("trackside.receiver")
T = TypeVar("T")
RETRY_S = 5.0
"""After a flush that failed the next one waits so long; senders are told the same."""
AGAIN_S = 30.0
"""How often the same trouble is told of."""


class Busy(TracksideError):
    """There is no room for more at the moment: HTTP 429."""

    status = 429

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class NotKept(TracksideError):
    """What was sent could not be put on disk, nor was any of it kept: HTTP 503."""

    status = 503
    retry_after_s = 5.0


@dataclass(slots=True)
class _Waiting:
    """A body on its way to the log."""

    entry: Entry
    decoded: Decoded
    done: Future[Taken]


class Intake:
    """The receiving side of one store, which nobody else may write to meanwhile. Raises StoreBusy and StoreError.

    ``decode``: understands a body that was accepted before, and is read again from the log.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        decode: Callable[[Entry], Decoded],
        labels_of: LabelsOf,
        limits: Limits | None = None,
        keeping: Keeping | None = None,
        reader: Callable[[Path], Reader] | None = None,
    ) -> None:
        self.limits, self.keeping = limits or Limits(), keeping or Keeping()
        self.counts = Counts()
        self._decode = decode
        self._log_lock = threading.Lock()
        """Over the log: a flush forgets files of it."""
        self._writer = Writer.open(store)
        try:
            mark = self._writer.manifest.received.mark
            self.log = WriteAhead(self._writer.directory.path / "received" / "wal", mark)
            self.waits = Pending(labels_of, self.limits, mark)
            self._flush = Flush(self._writer, self.waits, self.keeping, self.counts, self._forget, reader)
        except BaseException:
            self._writer.close()
            raise
        self.files = self._flush.files
        self._full = False
        self._complained = -AGAIN_S
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._wake, self._flush_wake = threading.Condition(), threading.Condition()
        self._asked: list[tuple[Future[Sequence[str]], bool]] = []
        self._closing = False
        self._measured = -1.0, 0
        """When it was last looked how much of the disk is free, and how much was."""
        self._trouble = self._ended = ""
        """Why the last flush failed, empty once one succeeded; and which thread ended before its time."""
        self._replay()
        self._threads = [
            threading.Thread(target=self._kept_up, args=(loop,), name=f"trackside-{name}", daemon=True)
            for name, loop in (("log", self._append_loop), ("flush", self._flush_loop))
        ]
        for thread in self._threads:
            thread.start()

    # -- taking

    @property
    def trouble(self) -> str:
        """Why what is accepted can't be written; empty where the last flush succeeded."""
        return self._ended or self._trouble

    def _kept_up(self, loop: Callable[[], None]) -> None:
        """One of the two threads: should a defect end it, nothing more is taken, and nobody waits for it."""
        try:
            loop()
        except BaseException as error:
            self._ended = f"{threading.current_thread().name} ended ({in_words(error)}): start the receiver again"
            LOG.critical("%s; what was accepted is safe in the log", self._ended, exc_info=True)
            with self._wake, self._flush_wake:
                queue, self._queue = self._queue, []
                asked, self._asked = self._asked, []
            for each in queue:
                _fail(each.done, NotKept(self._ended))
            for future, _ in asked:
                _fail(future, Busy(self._ended, RETRY_S))

    def room(self) -> None:
        """Raise Busy where what waits already is as much as may, NotKept where it would wait for ever or fill the
        disk: that is told as 503, which all senders come again for."""
        if self._ended:
            raise NotKept(self._ended)
        free = self._free()
        if free < self.keeping.free_bytes:
            raise NotKept(
                f"the store's disk has {free:,} bytes free, {self.keeping.free_bytes:,} are to stay so"
                " (serve.keeping.free_bytes)"
            )
        samples, line_bytes = self.pending
        if samples >= self.limits.pending_samples:
            raise Busy(f"{samples:,} samples wait to be written{self._because()}", RETRY_S)
        if line_bytes >= self.limits.pending_line_bytes:
            raise Busy(f"{line_bytes:,} bytes of lines wait to be written{self._because()}", RETRY_S)
        if self._queued_bytes >= self.limits.bodies_bytes:
            raise Busy(f"{self._queued_bytes:,} bytes wait to be synced", 1.0)

    def _free(self) -> int:
        """Bytes that are free where the store is, as of a second ago."""
        now = time.monotonic()
        if now - self._measured[0] >= 1.0:
            try:
                self._measured = now, shutil.disk_usage(self.log.folder).free
            except OSError as error:
                raise NotKept(f"the store's disk can't be asked how much is free: {in_words(error)}") from error
        return self._measured[1]

    def _line_room(self) -> None:
        """Raise NotKept where the files of lines are as large as may be."""
        kept, most = self.files.bytes, self.keeping.log_bytes
        if kept >= most:
            raise NotKept(
                f"received lines take {kept:,} bytes, at most {most:,} may be (serve.keeping.log_bytes), and files"
                " that are still being written can't be deleted"
            )

    def _because(self) -> str:
        return f", and the last attempt failed: {self.trouble}" if self.trouble else ""

    def take(self, header: Header, body: bytes, decoded: Decoded) -> Future[Taken]:
        """Accept a body: what it gives is set once it is on disk, NotKept where it could not be.

        Raises Busy and NotKept."""
        self.room()
        if isinstance(decoded, Sequence):
            self._line_room()
        waiting = _Waiting((header, body), decoded, Future())
        with self._wake:
            if self._closing:
                raise Busy("the receiver is stopping", RETRY_S)
            if self._ended:
                raise NotKept(self._ended)
            self._queue.append(waiting)
            self._queued_bytes += len(body)
            self._wake.notify()
        return waiting.done

    def _append_loop(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                batch, self._queue = self._queue, []
                self._queued_bytes = 0
                if not batch:
                    return
            with _none_left([each.done for each in batch]):
                self._append(batch)

    def _append(self, batch: list[_Waiting]) -> None:
        try:
            with self._log_lock:
                mark = self.log.append([each.entry for each in batch])
        except Exception as error:
            if time.monotonic() - self._complained > AGAIN_S:
                self._complained = time.monotonic()
                expected = isinstance(error, OSError)
                LOG.error("the write-ahead log can't be written: %s", in_words(error), exc_info=not expected)
            why = NotKept(f"{self.log.folder} can't be written: {in_words(error)}; nothing of this was kept")
            self.counts.failures += 1
            for each in batch:
                _fail(each.done, why)
            return
        self.counts.syncs += 1
        taken = self.waits.add([(each.entry, each.decoded) for each in batch], mark)
        for each, one in zip(batch, taken, strict=True):
            if isinstance(one, Exception):
                _fail(each.done, one)
            elif each.done.set_running_or_notify_cancel():  # whoever asked may have gone
                each.done.set_result(one)
        if self._is_full():
            with self._flush_wake:
                self._full = True
                self._flush_wake.notify()

    def _is_full(self) -> bool:
        """Whether a flush is not waited with."""
        many = self.waits.samples >= self.keeping.flush_samples
        return many or self.waits.line_bytes >= self.limits.pending_line_bytes // 4

    def _replay(self) -> None:
        """Let what is in the log and in no segment wait once more."""
        for entry, mark in self.log.replay():
            self._again(entry, mark)
            self.counts.replayed += 1
            if self._is_full():
                self._flush.write()
        self.counts.torn_bytes, self.counts.damaged_bytes = self.log.torn_bytes, self.log.damaged_bytes
        if self.log.damaged:
            LOG.error(
                "%d bytes of the log are damaged (a failing disk?) and what they held is lost; kept as %s",
                self.log.damaged_bytes,
                ", ".join(map(str, self.log.damaged)),
            )
        if self.counts.replayed or self.counts.torn_bytes:
            LOG.warning(
                "after a stop that was not clean: %d bodies read again from the log, %d torn bytes cut off",
                self.counts.replayed,
                self.counts.torn_bytes,
            )
        self._flush.write()
        self.log.forget(self._flush.committed)

    def _again(self, entry: Entry, mark: Mark) -> None:
        """A body of the log once more; one that is understood no longer must not keep the others from being read."""
        try:
            decoded = self._decode(entry)
        except Exception as error:
            expected = isinstance(error, ValueError)
            LOG.error(
                "a body of %s in the log is not understood any more, and left out: %s",
                entry[0].protocol,
                in_words(error),
                exc_info=not expected,
            )
            self.counts.leave_out({"undecodable": 1})
            self.waits.add((), mark)
            return
        self.waits.add([(entry, decoded)], mark, limited=False)

    # -- flushing

    @property
    def pending(self) -> tuple[int, int]:
        """Samples, and bytes of lines, that wait for a flush or are being written."""
        batch = self._flush.batch
        samples, line_bytes = (0, 0) if batch is None else (len(batch.arrived.values), batch.line_bytes)
        return self.waits.samples + samples, self.waits.line_bytes + line_bytes

    @property
    def waiting(self) -> Mapping[str, int]:
        """Names whose unit isn't settled, and how many values of each wait for it."""
        return self._flush.samples.waiting

    def flush(self, read: bool = True) -> Future[Sequence[str]]:
        """Have all that was accepted so far in segments; ``read``: also what the files of lines say, read anew.

        Gives the paths of the files that there was no time to read; NotRead where only these failed.
        """
        asked: Future[Sequence[str]] = Future()
        with self._flush_wake:
            if self._closing or self._ended:
                raise Busy(self._ended or "the receiver is stopping", RETRY_S)
            self._asked.append((asked, read))
            self._flush_wake.notify()
        return asked

    def _flush_loop(self) -> None:
        while True:
            with self._flush_wake:
                wait_s = RETRY_S if self._trouble else self.keeping.flush_s
                self._flush_wake.wait_for(
                    lambda: self._asked or self._closing or (self._full and not self._trouble), wait_s
                )
                asked, self._asked = self._asked, []
                closing, self._full = self._closing, False
            with _none_left([future for future, _ in asked]):
                self._flush_round(asked, closing)
            if closing:
                return

    def _flush_round(self, asked: list[tuple[Future[Sequence[str]], bool]], closing: bool) -> None:
        try:
            self._flush.write()
            left = self._flush.read(closing or any(read for _, read in asked))
            self._flush.care(closing)
        except Exception as error:  # noqa: BLE001 - a defect here must not stop what comes after
            expected = isinstance(error, (StoreError, OSError))
            self._failed(error, expected)
            for future, _ in asked:
                _fail(future, error)
            return
        self._trouble = ""
        for future, _ in asked:
            if future.set_running_or_notify_cancel():
                future.set_result(left)

    def _failed(self, error: Exception, expected: bool) -> None:
        self._trouble = in_words(error)
        self.counts.failures += 1
        LOG.error(
            "what was accepted is safe in the log but can't be written yet: %s", self._trouble, exc_info=not expected
        )

    def _forget(self, mark: Mark) -> None:
        with self._log_lock:
            self.log.forget(mark)

    def close(self) -> None:
        """Take no more, write what was accepted, and give the store back. What can't be written stays in the log."""
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
def _none_left(futures: Sequence[Future[T]]) -> Iterator[None]:
    """Whatever ends the block, nobody waits for ever."""
    try:
        yield
    finally:
        for future in futures:
            if not future.done():
                _fail(future, NotKept("the receiver could not finish it: send it again"))


def _fail(future: Future[T], error: Exception) -> None:
    """Let whoever waits know, if somebody still does."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
