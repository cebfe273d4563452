"""Streams of a log store as sources that are read like files."""

from __future__ import annotations

import heapq
import io
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from tempfile import SpooledTemporaryFile

from trackside.catalog.streams import is_node_log, stream_path
from trackside.http.unavailable import SourceUnavailable
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, InputSource
from trackside.read.pieces import PieceStream
from trackside.read.walk import WalkItem
from trackside.stores.log_store import LogOptions, LogRequest, LogStore, LogStream, Streams
from trackside.stores.log_text import log_lines

PIECE_BYTES = 1 << 18
"""Bytes per piece."""
MAX_MEMORY_BYTES = 8 << 20
"""Bytes of a second log in one stream that are kept in memory; more go to disk."""
MAX_NAMED = 10
"""Nodes that a message lists."""


def sources(
    store: LogStore, options: LogOptions, query: LogRequest, budget: ReadBudget | None = None
) -> Iterator[WalkItem]:
    """A source for each log of the run in the store; rows for what the store does not have or cannot answer.

    ``budget``: what the verdict may still read from the store, if it is queried more than once.
    Read each source before taking the next: the first lines of some further ones are fetched meanwhile.
    """
    try:
        answer = store.streams(query)
    except SourceUnavailable as error:
        yield Input(store.name, None, "unreadable", f"unable to check: {error}")
        return
    for note in answer.notes:
        yield Input(store.name, None, "empty", note)
    logs: dict[str, list[LogStream]] = {}
    for stream in answer.streams:
        logs.setdefault(stream_path(stream.labels, options.labels), []).append(stream)
    budget = budget or ReadBudget(options)
    opens = [partial(_open_log, store, options, path, streams, budget) for path, streams in sorted(logs.items())]
    read: set[str] = set()
    for text in _prefetch(opens, options.endpoint.concurrency):
        for source in text.sources():
            read.add(source.path.partition("/")[0])
            yield source
    for note in _missing_notes(query, answer, read):
        yield Input(store.name, None, "empty", note)


def _missing_notes(query: LogRequest, answer: Streams, folders: Collection[str]) -> Iterator[str]:
    """Notes about jobs and nodes whose streams the store knows, but which have no lines in the time range."""
    jobs = [job for job in query.jobs if f"job-{job}" in folders]
    if query.jobs and not jobs and any(stream.owner_kind == "job" for stream in answer.streams):
        yield f"has no lines of job {', '.join(query.jobs)} in this time range"
    if query.nodes and "nodes" not in folders and any(stream.owner_kind == "node" for stream in answer.streams):
        shown = ", ".join(query.nodes[:MAX_NAMED]) + (", ..." if len(query.nodes) > MAX_NAMED else "")
        yield f"has no system log lines of {shown} in this time range"


def _prefetch(opens: Iterable[Callable[[], LogLines]], at_once: int) -> Iterator[LogLines]:
    """Opened logs in order; the next ones are opened while one is read."""
    pending: deque[Future[LogLines]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        for open_ in opens:
            pending.append(pool.submit(open_))
            if len(pending) > at_once:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


class ReadBudget:
    """What one verdict may still read from a store."""

    def __init__(self, options: LogOptions) -> None:
        self._lines, self._bytes = options.max_lines, options.max_bytes
        self.full = (
            f"stopped at the limit of one verdict: max_lines, {options.max_lines:,}, or max_bytes,"
            f" {options.max_bytes:,}"
        )
        self._lock = threading.Lock()

    def take(self, lines: int, size: int) -> bool:
        """Count lines and bytes; whether they are within the limits."""
        with self._lock:
            self._lines -= lines
            self._bytes -= size
            return self._lines >= 0 and self._bytes >= 0


def _open_log(
    store: LogStore, options: LogOptions, path: str, streams: Sequence[LogStream], budget: ReadBudget
) -> LogLines:
    """A log with its first lines fetched. Never raises because of the store."""
    lines = LogLines(store, options, path, streams, budget)
    stream = io.BufferedReader(lines, HEAD_BYTES)
    lines.source.stream = stream
    lines.source.head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    return lines


class LogLines(PieceStream):
    """The bytes of one log, fetched as they are read. Errors that end it early are in ``source.faults``."""

    def __init__(
        self, store: LogStore, options: LogOptions, path: str, streams: Sequence[LogStream], budget: ReadBudget
    ) -> None:
        self.source = InputSource(path, b"", io.BytesIO())
        self._name, self._site, self._budget = store.name, options.labels, budget
        self._entries = heapq.merge(
            *(chain.from_iterable(store.lines(stream)) for stream in streams), key=lambda line: line.time_ns
        )
        self._count = 0
        self._ended = False
        self._others: dict[str, SpooledTemporaryFile[bytes]] = {}

    def next_piece(self, limit: int) -> bytes:
        piece: list[str] = []
        size = 0
        while size < max(limit, PIECE_BYTES) and not self._ended:
            try:
                entry = next(self._entries, None)
            except SourceUnavailable as error:
                self._stop(f"{self._name}: {error}; stopped after {self._count:,} lines")
                break
            if entry is None:
                self._ended = True
                break
            if not self._budget.take(1, len(entry.text)):
                self._stop(f"{self._name}: {self._budget.full}")
                break
            self._count += 1
            for path, text in log_lines(entry, self._site, self.source.path):
                if path == self.source.path:
                    piece.append(text)
                    size += len(text)
                else:
                    self._store_other(path, text)
        return "".join(piece).encode("utf-8", "replace")

    def _stop(self, fault: str) -> None:
        self._ended = True
        self.source.faults.append(fault)

    def _store_other(self, path: str, text: str) -> None:
        """Store a line of another log of the same node, to be read after this one."""
        other = self._others.get(path)
        if other is None:
            other = self._others[path] = SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115 - closed after it was read
        other.write(text.encode("utf-8", "replace"))

    def sources(self) -> Iterator[InputSource]:
        """This log, if it has a line or a fault, then the other logs found in its stream."""
        if self.source.head or self.source.faults:
            yield self.source
        if is_node_log(self.source.path):
            while self.read(1 << 20):  # what its reader did not read
                pass
        for path, spooled in sorted(self._others.items()):
            with spooled:
                size = spooled.tell()
                spooled.seek(0)
                head = spooled.read(HEAD_BYTES)
                spooled.seek(0)
                yield InputSource(path, head, spooled, size, faults=list(self.source.faults))  # type: ignore[arg-type]
