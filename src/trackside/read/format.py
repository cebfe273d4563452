"""The interface of readers: formats, sources, sinks and results."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from trackside.model import Event, InputStatus, Plane, Record, Samples

HEAD_BYTES = 64 << 10
"""Bytes of a file that a reader sees to recognize its format."""
MAX_WHOLE_BYTES = 256 << 20
"""Largest file that a reader may load into memory at once, bytes."""


class InputTooLarge(Exception):
    """The file is too large for a format that must be loaded as a whole."""


@dataclass(slots=True)
class InputSource:
    """One input to read: a plain file or a member of an archive, decompressed.

    ``path`` is its name in citations: relative to the path that the user gave, members as ``a.tar.gz!inner``.
    """

    path: str
    head: bytes
    stream: BinaryIO
    size: int | None = None
    """Size in bytes, if known before reading."""
    modified: float | None = None
    """Modification time from the file system or archive, POSIX seconds; copies may have lost it."""
    faults: list[str] = field(default_factory=list)
    """Faults of the bytes, recorded by ``stream`` while it is read. A damaged stream ends early; it never raises."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.replace("!", "/").rsplit("/", 1)[-1]

    @property
    def text(self) -> str:
        """The head, decoded as UTF-8 with replacement characters."""
        return self.head.decode("utf-8", "replace")

    def whole(self) -> bytes:
        """All bytes. Raises InputTooLarge beyond MAX_WHOLE_BYTES."""
        data = self.stream.read(MAX_WHOLE_BYTES + 1)
        if len(data) > MAX_WHOLE_BYTES:
            raise InputTooLarge(f"larger than {MAX_WHOLE_BYTES >> 20} MiB")
        return data

    def lines(self, limit: int = 1 << 20) -> Iterator[tuple[int, int, str]]:
        """Yield (1-based number, byte offset, text without line end) of each line. Lines are cut at ``limit`` bytes."""
        number = offset = 0
        reader = self.stream if isinstance(self.stream, io.BufferedIOBase) else io.BufferedReader(self.stream)  # type: ignore[type-var]
        while raw := reader.readline(limit):
            number += 1
            start, offset = offset, offset + len(raw)
            while len(raw) == limit and not raw.endswith(b"\n") and (continuation := reader.readline(limit)):
                offset += len(continuation)
                if len(continuation) < limit or continuation.endswith(b"\n"):
                    break
            yield number, start, raw.rstrip(b"\r\n").decode("utf-8", "replace")


class Sink(Protocol):
    """Receives the rows that a reader produces."""

    def event(self, event: Event) -> None: ...
    def record(self, record: Record) -> None: ...
    def samples(self, samples: Samples) -> None: ...


def give(records: Iterable[Record], sink: Sink) -> int:
    """Pass the records on to the sink one by one; return their number."""
    count = 0
    for record in records:
        sink.record(record)
        count += 1
    return count


def csv_cells(line: str, **dialect: Any) -> list[str]:
    """The cells of a CSV line; empty if its quotes are malformed."""
    try:
        return next(csv.reader([line], **dialect), [])
    except csv.Error:
        return []


@dataclass(frozen=True, slots=True)
class Match:
    """A format's confidence that a file is in this format (0 to 1), and the reason, shown by ``trackside inputs``."""

    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of reading. ``partial`` with a note if something was lost."""

    rows: int
    status: InputStatus = "read"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """One file format. ``sniff`` sees only the head. On bad content ``read`` says so in its Result, or raises
    ValueError with a message for the user, which becomes the note of the ``inputs`` row."""

    id: str
    title: str
    plane: Plane
    sniff: Callable[[InputSource], Match | None]
    read: Callable[[InputSource, Sink], Result]


@dataclass(slots=True)
class CollectingSink:
    """A sink that keeps all rows in memory."""

    events: list[Event] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    blocks: list[Samples] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def record(self, record: Record) -> None:
        self.records.append(record)

    def samples(self, samples: Samples) -> None:
        self.blocks.append(samples)
