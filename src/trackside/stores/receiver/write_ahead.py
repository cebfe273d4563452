"""The write-ahead log: accepted bodies that are in no segment yet, synced before the sender gets an answer.

    DIR/00000007.log        frames, one body each: length and CRC-32 of the rest, then a header and the body
    DIR/00000007.damaged    a copy of that file, kept for inspection if a part of it cannot be read

Only the process that began a file appends to it; the next process begins another. A frame that a crash cut off was
never acknowledged, so it is truncated from the end of the last file when the log is opened. Any other invalid frame was
acknowledged and damaged later: it is skipped, and the frames after it are read.
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

from trackside.stores.embedded.layout import LogPosition, sync

FILE_BYTES = 64 << 20
"""Size at which the next file begins; files are deleted whole once they are in segments."""
MAX_FRAME_BYTES = 1 << 30
"""Longest frame; a greater length is damaged."""
MAX_HEADER_BYTES = (1 << 16) - 1
"""Longest header: its length takes two bytes."""
MAX_SEARCH_FACTOR = 8
"""The search for an intact frame in a damaged file may checksum this many times the remaining bytes."""
_FRAME = struct.Struct("<II")
_PROBE_BYTES = 64
"""Cost of one probe in this search, in bytes."""
_HEADER_START = b"\x95"
"""First byte of a header, after its length: msgpack's code for an array of five."""
_NAME = re.compile(r"(\d{8})\.log")


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What is needed to decode a body again. ``received_ns``: time of receipt, nanoseconds since 1970."""

    protocol: str
    content_type: str = ""
    encoding: str = ""
    sender: str = ""
    received_ns: int = 0


Entry = tuple[Header, bytes]
_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Header)


class WriteAhead:
    """The log of one store, for one thread at a time. :meth:`replay` truncates ``torn_bytes`` from the last file, and
    skips ``damaged_bytes`` of the files ``damaged``."""

    def __init__(self, folder: Path, since: LogPosition, file_bytes: int = FILE_BYTES) -> None:
        self.folder, self._file_bytes = folder, file_bytes
        self.torn_bytes = self.damaged_bytes = 0
        self.damaged: list[Path] = []
        self._sizes: dict[int, int] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            if match := _NAME.fullmatch(path.name):
                self._sizes[int(match[1])] = path.stat().st_size
        self._next_number = max([since.file, *self._sizes], default=0) + 1
        self._since = since
        self._handle = -1
        self.end = since
        """Position after the last frame that is on disk."""

    @property
    def bytes(self) -> int:
        """Bytes on disk, including those that are in segments. Any thread may read it."""
        return sum(tuple(self._sizes.values()))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.log"

    def replay(self) -> Iterator[tuple[Entry, LogPosition]]:
        """Entries that are in no segment, in order, each with the position after it. Skips damaged parts."""
        for number in sorted(self._sizes):
            if number < self._since.file:
                continue
            start = self._since.offset if number == self._since.file else 0
            for entry, end in self._frames(number, start):
                self.end = LogPosition(number, end)
                yield entry, self.end

    def _frames(self, number: int, start: int) -> Iterator[tuple[Entry, int]]:
        path = self._path(number)
        with open(path, "r+b") as file:
            file.seek(start)
            end, size = start, os.fstat(file.fileno()).st_size
            while end < size:
                frame = _read_frame(file)
                if frame is not None:
                    end += frame[1]
                    yield frame[0], end
                    continue
                next_frame = _next_frame(file, end, size)
                if next_frame is None and number == max(self._sizes):
                    self.torn_bytes += size - end
                    file.truncate(end)
                    os.fsync(file.fileno())
                    self._sizes[number] = end
                    return
                self._keep_damaged(path, (next_frame or size) - end)
                end = next_frame or size
                file.seek(end)

    def _keep_damaged(self, path: Path, count: int) -> None:
        """Keep a copy of a damaged file under another name, because the file is deleted once the rest of it is in
        segments."""
        self.damaged_bytes += count
        copy = path.with_suffix(".damaged")
        if copy not in self.damaged:
            self.damaged.append(copy)
        with suppress(FileExistsError):
            try:
                os.link(path, copy)
            except PermissionError:  # a file system without links
                shutil.copyfile(path, copy)

    def append(self, entries: Sequence[Entry]) -> LogPosition:
        """Write frames and sync them. Raises OSError, and ValueError for a header of more than 64 KiB; then none is in
        the log."""
        data = b"".join(_frame(entry) for entry in entries)
        if self._handle < 0 or self.end.offset + len(data) > self._file_bytes:
            self._begin_file()
        number, good_bytes = self.end.file, self.end.offset
        try:
            _write_all(self._handle, data)
            os.fdatasync(self._handle)
        except BaseException:
            self._truncate(good_bytes)
            raise
        self.end = LogPosition(number, good_bytes + len(data))
        self._sizes[number] = self.end.offset
        return self.end

    def _begin_file(self) -> None:
        """Begin the next file. After an error it is begun again."""
        handle = os.open(self._path(self._next_number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            sync(self.folder)
        except OSError:
            os.close(handle)
            raise
        self.close()
        self._handle, self.end = handle, LogPosition(self._next_number, 0)
        self._sizes[self._next_number] = 0
        self._next_number += 1

    def _truncate(self, good_bytes: int) -> None:
        """Remove what an error left half written, and begin another file, because the state after a failed sync is
        unknown."""
        with suppress(OSError):
            os.ftruncate(self._handle, good_bytes)
            os.fdatasync(self._handle)
        self.close()

    def delete_until(self, until: LogPosition) -> None:
        """Delete the files whose entries are all in segments, except the one that is being written."""
        open_number = self.end.file if self._handle >= 0 else -1
        for number in [number for number in self._sizes if number < until.file and number != open_number]:
            self._path(number).unlink(missing_ok=True)
            del self._sizes[number]
        is_processed = until.offset >= self._sizes.get(until.file, 0)  # not while the rest of it must still be replayed
        if open_number < 0 and until == self.end and is_processed and until.file in self._sizes:
            self._path(until.file).unlink(missing_ok=True)
            del self._sizes[until.file]

    def close(self) -> None:
        """Write no more to the current file."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def unprocessed_bytes(folder: Path, since: LogPosition) -> int:
    """Bytes of a log after a position; 0 if there is no log. Raises PermissionError."""
    total = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        if (match := _NAME.fullmatch(path.name)) and int(match[1]) >= since.file:
            with suppress(FileNotFoundError):
                total += path.stat().st_size - (since.offset if int(match[1]) == since.file else 0)
    return total


def _frame(entry: Entry) -> bytes:
    header = _encode(entry[0])
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"a body's header takes {len(header):,} bytes, at most {MAX_HEADER_BYTES:,} are kept")
    content = len(header).to_bytes(2, "little") + header + entry[1]
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def _read_frame(file: BinaryIO) -> tuple[Entry, int] | None:
    """The next intact frame and its length, or None."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    if not 2 <= length <= MAX_FRAME_BYTES:
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


def _next_frame(file: BinaryIO, start: int, size: int) -> int | None:
    """Start of the next intact frame after a damaged one; None if there is none."""
    with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:
        length = _FRAME.unpack_from(data, start)[0] if start + _FRAME.size <= size else size
        expected = start + _FRAME.size + length  # correct, unless the length itself is damaged
        if _is_frame(data, expected, size):
            return expected
        budget = MAX_SEARCH_FACTOR * (size - start)
        header_offset = data.find(_HEADER_START, start + _FRAME.size + 3)
        while header_offset >= 0 and budget > 0:
            begin = header_offset - _FRAME.size - 2
            budget -= _PROBE_BYTES
            if _may_be_frame(data, begin, size):
                budget -= _FRAME.unpack_from(data, begin)[0]
                if _is_frame(data, begin, size):
                    return begin
            header_offset = data.find(_HEADER_START, header_offset + 1)
    return None


def _may_be_frame(data: mmap.mmap, begin: int, size: int) -> bool:
    """Whether the lengths of a frame at this position fit into the file."""
    if begin + _FRAME.size + 2 > size:
        return False
    length = _FRAME.unpack_from(data, begin)[0]
    header = int.from_bytes(data[begin + _FRAME.size : begin + _FRAME.size + 2], "little")
    return bool(2 + header <= length <= min(MAX_FRAME_BYTES, size - begin - _FRAME.size))


def _is_frame(data: mmap.mmap, begin: int, size: int) -> bool:
    if not _may_be_frame(data, begin, size):
        return False
    length, checksum = _FRAME.unpack_from(data, begin)
    with memoryview(data)[begin + _FRAME.size : begin + _FRAME.size + length] as content:
        return bool(zlib.crc32(content) == checksum)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]
