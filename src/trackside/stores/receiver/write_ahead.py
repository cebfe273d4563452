"""What was accepted and is in no segment yet: a log of bodies as they came, synced before the sender is told.

    DIR/00000007.log        frames, one body each: length and CRC-32 of what follows, then its header and the body
    DIR/00000007.damaged    the same file where some of it can't be read any more: kept for who may want to look

A file is appended to by the process that began it alone; the next process begins another. A frame that a crash cut off
was never answered for: it is taken away from the last file's end when the log is opened. Anything else that is no whole
frame was answered for and has been damaged since: it is skipped, and what follows is read all the same.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from trackside.stores.embedded.layout import Mark, sync

FILE_BYTES = 64 << 20
"""Size at which the next file is begun: what is in segments goes a file at a time."""
MOST_BYTES = 1 << 30
"""No frame is longer: a damaged length is told from a true one."""
MOST_HEADER = (1 << 16) - 1
"""Of a frame: its length is told in two bytes."""
TRIES = 8
"""Times the length of what is left of a damaged file, in bytes, that may be summed up in search of a whole frame."""
_FRAME = struct.Struct("<II")
_LOOK = 64
"""What a look at a place counts as, of these."""
_ARRAY = b"\x95"
"""What a header begins with, after its length: msgpack's word for five things."""
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
    """The log of one store, for one thread at a time. :meth:`replay` cut ``torn_bytes`` off the end of the last file,
    and skipped ``damaged_bytes`` of the files ``damaged``."""

    def __init__(self, folder: Path, since: Mark, file_bytes: int = FILE_BYTES) -> None:
        self.folder, self._file_bytes = folder, file_bytes
        self.torn_bytes = self.damaged_bytes = 0
        self.damaged: list[Path] = []
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
        """On disk, those that are in segments among them. Any thread may ask."""
        return sum(tuple(self._sizes.values()))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.log"

    def replay(self) -> Iterator[tuple[Entry, Mark]]:
        """What is in no segment, in order, each with the place after it. Skips what is damaged."""
        for number in sorted(self._sizes):
            if number < self._since.file:
                continue
            start = self._since.offset if number == self._since.file else 0
            for entry, end in self._frames(number, start):
                self.end = Mark(number, end)
                yield entry, self.end

    def _frames(self, number: int, start: int) -> Iterator[tuple[Entry, int]]:
        path = self._path(number)
        with open(path, "r+b") as file:
            file.seek(start)
            end, size = start, os.fstat(file.fileno()).st_size
            while end < size:
                frame = _read(file)
                if frame is not None:
                    end += frame[1]
                    yield frame[0], end
                    continue
                following = _whole_after(file, end, size)
                if following is None and number == max(self._sizes):
                    self.torn_bytes += size - end
                    file.truncate(end)
                    os.fsync(file.fileno())
                    self._sizes[number] = end
                    return
                self._skipped(path, (following or size) - end)
                end = following or size
                file.seek(end)

    def _skipped(self, path: Path, count: int) -> None:
        """Keep a damaged file, which goes once the rest of it is in segments, by another name."""
        self.damaged_bytes += count
        beside = path.with_suffix(".damaged")
        if beside not in self.damaged:
            self.damaged.append(beside)
        with suppress(FileExistsError):
            try:
                os.link(path, beside)
            except PermissionError:  # a file system without links
                shutil.copyfile(path, beside)

    def append(self, entries: Sequence[Entry]) -> Mark:
        """Write frames and sync them. Raises OSError, and ValueError for a header of more than 64 KiB; then none is
        in the log."""
        data = b"".join(_frame(entry) for entry in entries)
        if self._handle < 0 or self.end.offset + len(data) > self._file_bytes:
            self._begin()
        number, good = self.end.file, self.end.offset
        try:
            _write(self._handle, data)
            os.fdatasync(self._handle)
        except BaseException:
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
        whole = until.offset >= self._sizes.get(until.file, 0)  # not while the rest of it is still to be replayed
        if last < 0 and until == self.end and whole and until.file in self._sizes:
            self._path(until.file).unlink(missing_ok=True)
            del self._sizes[until.file]

    def close(self) -> None:
        """Write no more to the present file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _frame(entry: Entry) -> bytes:
    header = _encode(entry[0])
    if len(header) > MOST_HEADER:
        raise ValueError(f"a body's header takes {len(header):,} bytes, at most {MOST_HEADER:,} are kept")
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


def _whole_after(file: BinaryIO, start: int, size: int) -> int | None:
    """Where the next whole frame begins after one that isn't; None where there is none."""
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        length = _FRAME.unpack_from(data, start)[0] if start + _FRAME.size <= size else size
        told = start + _FRAME.size + length  # right, unless the length is what was damaged
        if _is_whole(data, told, size):
            return told
        left = TRIES * (size - start)
        place = data.find(_ARRAY, start + _FRAME.size + 3)
        while place >= 0 and left > 0:
            begin = place - _FRAME.size - 2
            left -= _LOOK
            if _may_be(data, begin, size):
                left -= _FRAME.unpack_from(data, begin)[0]
                if _is_whole(data, begin, size):
                    return begin
            place = data.find(_ARRAY, place + 1)
    return None


def _may_be(data: mmap.mmap, begin: int, size: int) -> bool:
    """Whether a frame's lengths fit into what there is."""
    if begin + _FRAME.size + 2 > size:
        return False
    length = _FRAME.unpack_from(data, begin)[0]
    header = int.from_bytes(data[begin + _FRAME.size : begin + _FRAME.size + 2], "little")
    return bool(2 + header <= length <= min(MOST_BYTES, size - begin - _FRAME.size))


def _is_whole(data: mmap.mmap, begin: int, size: int) -> bool:
    if not _may_be(data, begin, size):
        return False
    length, checksum = _FRAME.unpack_from(data, begin)
    with memoryview(data)[begin + _FRAME.size : begin + _FRAME.size + length] as content:
        return bool(zlib.crc32(content) == checksum)


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
