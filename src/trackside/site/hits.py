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
from trackside.read.format import HEAD_BYTES, Source
from trackside.read.pieces import PieceStream
from trackside.read.walk import WalkItem
from trackside.stores.log_store import LogOptions, LogRequest, LogStore, LogStream, Streams
from trackside.stores.log_text import written_lines

PIECE = 1 << 18
"""Bytes given on at once."""
IN_MEMORY = 8 << 20
"""Bytes of a second log out of one stream that are held before they go to disk."""
MOST_NAMED = 10
"""Nodes that a message lists."""


def sources(store: LogStore, options: LogOptions, wanted: LogRequest, room: Room | None = None) -> Iterator[WalkItem]:
    """A source for each log that the store holds of the run; rows for what it doesn't, or can't, tell.

    ``room``: what the verdict may still take of the store, where it is asked more than once.
    Read each before taking the next: the first lines of some further ones are fetched meanwhile.
    """
    try:
        found = store.streams(wanted)
    except SourceUnavailable as error:
        yield Input(store.name, None, "unreadable", f"unable to check: {error}")
        return
    for note in found.notes:
        yield Input(store.name, None, "empty", note)
    logs: dict[str, list[LogStream]] = {}
    for stream in found.streams:
        logs.setdefault(stream_path(stream.labels, options.labels), []).append(stream)
    room = room or Room(options)
    opens = [partial(_opened, store, options, path, streams, room) for path, streams in sorted(logs.items())]
    read: set[str] = set()
    for text in _ahead(opens, options.endpoint.concurrency):
        for source in text.sources():
            read.add(source.path.partition("/")[0])
            yield source
    for note in _nothing(wanted, found, read):
        yield Input(store.name, None, "empty", note)


def _nothing(wanted: LogRequest, found: Streams, folders: Collection[str]) -> Iterator[str]:
    """What to say where streams that a store knows had no line then."""
    jobs = [job for job in wanted.jobs if f"job-{job}" in folders]
    if wanted.jobs and not jobs and any(each.of == "job" for each in found.streams):
        yield f"holds no line of job {', '.join(wanted.jobs)} then"
    if wanted.nodes and "nodes" not in folders and any(each.of == "node" for each in found.streams):
        shown = ", ".join(wanted.nodes[:MOST_NAMED]) + (", ..." if len(wanted.nodes) > MOST_NAMED else "")
        yield f"holds no line of the system of {shown} then"


def _ahead(opens: Iterable[Callable[[], Lines]], at_once: int) -> Iterator[Lines]:
    """Opened logs in order, the next ones being opened while one is read."""
    coming: deque[Future[Lines]] = deque()
    with ThreadPoolExecutor(at_once) as pool:
        for open_ in opens:
            coming.append(pool.submit(open_))
            if len(coming) > at_once:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


class Room:
    """What one verdict may still take of a store."""

    def __init__(self, options: LogOptions) -> None:
        self._lines, self._bytes = options.most_lines, options.most_bytes
        self.full = (
            f"stopped at most_lines, {options.most_lines:,}, or most_bytes, {options.most_bytes:,}, of one verdict"
        )
        self._lock = threading.Lock()

    def take(self, lines: int, size: int) -> bool:
        """Whether these still fit; they are counted."""
        with self._lock:
            self._lines -= lines
            self._bytes -= size
            return self._lines >= 0 and self._bytes >= 0


def _opened(store: LogStore, options: LogOptions, path: str, streams: Sequence[LogStream], room: Room) -> Lines:
    """A log with its first lines fetched. Never raises for what the store does."""
    lines = Lines(store, options, path, streams, room)
    stream = io.BufferedReader(lines, HEAD_BYTES)
    lines.source.stream = stream
    lines.source.head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    return lines


class Lines(PieceStream):
    """The bytes of one log, fetched as they are read. What ends it early stands in ``source.faults``."""

    def __init__(
        self, store: LogStore, options: LogOptions, path: str, streams: Sequence[LogStream], room: Room
    ) -> None:
        self.source = Source(path, b"", io.BytesIO())
        self._name, self._site, self._room = store.name, options.labels, room
        self._entries = heapq.merge(
            *(chain.from_iterable(store.lines(each)) for each in streams), key=lambda line: line.time_ns
        )
        self._count = 0
        self._ended = False
        self._others: dict[str, SpooledTemporaryFile[bytes]] = {}

    def next_piece(self, limit: int) -> bytes:
        piece: list[str] = []
        size = 0
        while size < max(limit, PIECE) and not self._ended:
            try:
                entry = next(self._entries, None)
            except SourceUnavailable as error:
                self._stop(f"{self._name}: {error}; stopped after {self._count:,} lines")
                break
            if entry is None:
                self._ended = True
                break
            if not self._room.take(1, len(entry.text)):
                self._stop(f"{self._name}: {self._room.full}")
                break
            self._count += 1
            for path, text in written_lines(entry, self._site, self.source.path):
                if path == self.source.path:
                    piece.append(text)
                    size += len(text)
                else:
                    self._aside(path, text)
        return "".join(piece).encode("utf-8", "replace")

    def _stop(self, fault: str) -> None:
        self._ended = True
        self.source.faults.append(fault)

    def _aside(self, path: str, text: str) -> None:
        """A line of another log of the same node, which comes after this one."""
        other = self._others.get(path)
        if other is None:
            other = self._others[path] = SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 - closed when it was read
        other.write(text.encode("utf-8", "replace"))

    def sources(self) -> Iterator[Source]:
        """This log, if it has a line or a fault, and then those that came with its lines."""
        if self.source.head or self.source.faults:
            yield self.source
        if is_node_log(self.source.path):
            while self.read(1 << 20):  # what its reader left
                pass
        for path, spooled in sorted(self._others.items()):
            with spooled:
                size = spooled.tell()
                spooled.seek(0)
                head = spooled.read(HEAD_BYTES)
                spooled.seek(0)
                yield Source(path, head, spooled, size, faults=list(self.source.faults))  # type: ignore[arg-type]
