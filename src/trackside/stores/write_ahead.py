"""What was accepted and is in no segment yet: a log of bodies as they came, synced before the sender is told.

    DIR/00000007.log    frames, one body each: length and CRC-32 of what follows, then its header and the body

A file is appended to by the process that began it alone; the next process begins another. A frame that a crash cut off
was never answered for: it is taken away when the log is opened.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from trackside.stores.layout import Mark, sync

FILE_BYTES = 64 << 20
"""Size at which the next file is begun: what is in segments goes a file at a time."""
MOST_BYTES = 1 << 30
"""No frame is longer: a damaged length is told from a true one."""
_FRAME = struct.Struct("<II")
_NAME = re.compile(r"(\d{8})\.log")


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What has to be known of a body to read it again. ``received_ns``: when it came, since 1970."""

    protocol: str
    content_type: str = ""
    encoding: str = ""
    sender: str = ""
    received_ns: int = 0


Entry = tuple[Header, bytes]
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Header)


class WriteAhead:
    """The log of one store, for one thread at a time. :meth:`replay` cut ``torn_bytes`` off the ends of files."""

    def __init__(self, folder: Path, since: Mark, file_bytes: int = FILE_BYTES) -> None:
        self.folder, self._file_bytes = folder, file_bytes
        self.torn_bytes = 0
        self._sizes: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if found := _NAME.fullmatch(path.name):
                self._sizes[int(found[1])] = path.stat().st_size
        self._following = max([since.file, *self._sizes], default=0) + 1
        self._since = since
        self._handle = -1
        self.end = since
        """After the last frame that is on disk."""

    @property
    def bytes(self) -> int:
        """On disk, those that are in segments among them."""
        return sum(self._sizes.values())

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.log"

    def replay(self) -> Iterator[tuple[Entry, Mark]]:
        """What is in no segment, in order, each with the place after it. Cuts off what is no whole frame."""
        for number in sorted(self._sizes):
            if number < self._since.file:
                continue
            start = self._since.offset if number == self._since.file else 0
            for entry, end in self._frames(number, start):
                self.end = Mark(number, end)
                yield entry, self.end

    def _frames(self, number: int, start: int) -> Iterator[tuple[Entry, int]]:
        with open(self._path(number), "r+b") as file:
            file.seek(start)
            end = start
            while (frame := _read(file)) is not None:
                entry, length = frame
                end += length
                yield entry, end
            size = os.fstat(file.fileno()).st_size
            if end < size:
                self.torn_bytes += size - end
                file.truncate(end)
                os.fsync(file.fileno())
                self._sizes[number] = end

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write frames and sync them. Raises OSError; then none of them is in the log."""
        data = b"".join(_frame(entry) for entry in entries)
        if self._handle < 0 or self.end.offset + len(data) > self._file_bytes:
            self._begin()
        number, good = self.end.file, self.end.offset
        try:
            _write(self._handle, data)
            os.fdatasync(self._handle)
        except OSError:
            self._cut(good)
            raise
        self.end = Mark(number, good + len(data))
        self._sizes[number] = self.end.offset
        return self.end

    def _begin(self) -> None:
        """The next file. After an error it is begun once more."""
        handle = os.open(self._path(self._following), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            sync(self.folder)
        except OSError:
            os.close(handle)
            raise
        self.close()
        self._handle, self.end = handle, Mark(self._following, 0)
        self._sizes[self._following] = 0
        self._following += 1

    def _cut(self, good: int) -> None:
        """Take away what an error left half written, and begin another file: what a failed sync left is not known."""
        with suppress(OSError):
            os.ftruncate(self._handle, good)
            os.fdatasync(self._handle)
        self.close()

    def forget(self, until: Mark) -> None:
        """Delete the files of which everything is in segments, but not the one that is being written."""
        last = self.end.file if self._handle >= 0 else -1
        for number in [number for number in self._sizes if number < until.file and number != last]:
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]
        if last < 0 and until == self.end and until.file in self._sizes:
            self._path(until.file).unlink(missing_ok=True)
            del self._sizes[until.file]

    def close(self) -> None:
        """Write no more to the present file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _frame(entry: Entry) -> bytes:
    header = _encode(entry[0])
    content = len(header).to_bytes(2, "little") + header + entry[1]
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def _read(file: BinaryIO) -> tuple[Entry, int] | None:
    """The next whole frame and its length, or None."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    if not 2 <= length <= MOST_BYTES:
        return None
    content = file.read(length)
    if len(content) < length or zlib.crc32(content) != checksum:
        return None
    split = 2 + int.from_bytes(content[:2], "little")
    try:
        header = _decoder.decode(content[2:split])
    except msgspec.MsgspecError:
        return None
    return (header, content[split:]), _FRAME.size + length


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
