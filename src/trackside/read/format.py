"""What a reader declares, what it is handed, and what it must give back."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from trackside.model import Event, InputStatus, Plane, Record, Samples

HEAD = 64 << 10
"""Bytes of a file that a reader may look at to recognise it."""
WHOLE = 256 << 20
"""Largest file that a reader may take into memory at once."""


class TooLarge(Exception):
    """A format that must be read whole is larger than WHOLE."""


@dataclass(slots=True)
class Source:
    """One input to be read: a plain file, or a member of an archive, decompressed.

    ``path`` is how citations name it: relative to what the user gave, members as ``a.tar.gz!inner``.
    """

    path: str
    head: bytes
    stream: BinaryIO
    size: int | None = None
    """Bytes, where known beforehand."""
    modified: float | None = None
    """When the file was last written, as the file system or the archive says; copies may have lost it."""
    faults: list[str] = field(default_factory=list)
    """What went wrong with the bytes, written down by ``stream`` while it is read: it ends early, it never raises."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.replace("!", "/").rsplit("/", 1)[-1]

    @property
    def text(self) -> str:
        """The head, decoded for looking at."""
        return self.head.decode("utf-8", "replace")

    def whole(self) -> bytes:
        """All bytes. Raises TooLarge beyond WHOLE."""
        data = self.stream.read(WHOLE + 1)
        if len(data) > WHOLE:
            raise TooLarge(f"larger than {WHOLE >> 20} MiB")
        return data

    def lines(self, limit: int = 1 << 20) -> Iterator[tuple[int, int, str]]:
        """(1-based number, byte offset, text without its end) of each line; longer than ``limit`` bytes are cut."""
        number = offset = 0
        reader = self.stream if isinstance(self.stream, io.BufferedIOBase) else io.BufferedReader(self.stream)  # type: ignore[type-var]
        while raw := reader.readline(limit):
            number += 1
            start, offset = offset, offset + len(raw)
            while len(raw) == limit and not raw.endswith(b"\n") and (rest := reader.readline(limit)):
                offset += len(rest)
                if len(rest) < limit or rest.endswith(b"\n"):
                    break
            yield number, start, raw.rstrip(b"\r\n").decode("utf-8", "replace")


class Sink(Protocol):
    """Takes what a reader finds."""

    def event(self, event: Event) -> None: ...
    def record(self, record: Record) -> None: ...
    def samples(self, samples: Samples) -> None: ...


def give(records: Iterable[Record], sink: Sink) -> int:
    """How many records there were, each given to the sink as it came."""
    count = 0
    for record in records:
        sink.record(record)
        count += 1
    return count


def csv_cells(line: str, **dialect: Any) -> list[str]:
    """The cells of a line of CSV; none where its quotes are amiss."""
    try:
        return next(csv.reader([line], **dialect), [])
    except csv.Error:
        return []


@dataclass(frozen=True, slots=True)
class Match:
    """How sure a format is that a file is its own (0 to 1), and why, for ``trackside inputs``."""

    score: float
    why: str


@dataclass(frozen=True, slots=True)
class Result:
    """What came of reading. ``partial`` with a note of what was lost, where something was."""

    rows: int
    status: InputStatus = "read"
    note: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """One file format. ``sniff`` sees only the head; ``read`` may raise nothing on bad content: it says
    so in its Result, or raises ValueError with a message for people, which becomes an ``inputs`` row."""

    id: str
    title: str
    plane: Plane
    sniff: Callable[[Source], Match | None]
    read: Callable[[Source, Sink], Result]


@dataclass(slots=True)
class Collected:
    """A sink that keeps everything."""

    events: list[Event] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    blocks: list[Samples] = field(default_factory=list)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def record(self, record: Record) -> None:
        self.records.append(record)

    def samples(self, samples: Samples) -> None:
        self.blocks.append(samples)
