"""A spool on disk: append-only files of records, and the position up to which they are delivered.

    DIR/00000007.spool   records: length, CRC-32, number of items, data
    DIR/position         delivered up to here: file, offset, CRC-32
    DIR/lock             locked by the process that uses the folder

Each file is appended to only by the process that created it. A record cut off by a crash was never acknowledged: the
next process starts a new file, and an incomplete record at the end of a file is skipped. A file is deleted once all of
it is delivered.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import zlib
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trackside.errors import TracksideError

MAX_RECORD_BYTES = 64 << 20
"""Maximum length of a valid record; a larger one is damaged."""
MIN_COMPRESSED_BYTES = 512
"""Records of at least this size are compressed."""
_HEAD = struct.Struct("<III")
_POSITION = struct.Struct("<QQI")
_COMPRESSED = 1 << 31
"""Flag in a record's count: the data is compressed."""
_SEED = 0x7261636B
"""Seed of the checksums, so that zeros left by a power cut are not a valid record."""
_FINAL_ERRORS = frozenset({errno.EIO, errno.ENOENT, errno.ESTALE})
"""Errors of a file that cannot be read any more; other errors may be temporary."""
_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""O_NOFOLLOW because the folder may be writable by others, who could place links to files that they may not write."""
_NAME = re.compile(r"(\d{8})\.spool")


class SpoolBusy(TracksideError):
    """Another process uses this spool folder."""


def frame_of(record: bytes, count: int) -> bytes:
    """A record as it is written to the file."""
    compressed = zlib.compress(record, 1) if len(record) >= MIN_COMPRESSED_BYTES else record
    data, count_and_flag = (compressed, count | _COMPRESSED) if len(compressed) < len(record) else (record, count)
    return _HEAD.pack(len(data), _checksum(data, count_and_flag), count_and_flag) + data


def record_of(frame: bytes) -> bytes:
    """The record of a complete frame."""
    return _decompress(frame[_HEAD.size :], _HEAD.unpack_from(frame)[2])


def _decompress(data: bytes, count_and_flag: int) -> bytes:
    return zlib.decompress(data) if count_and_flag & _COMPRESSED else data


def _checksum(data: bytes, count_and_flag: int) -> int:
    return zlib.crc32(data, _SEED ^ count_and_flag)


@dataclass(slots=True)
class Segment:
    """One file: its size, and the number of items in it that are not delivered."""

    number: int
    size: int = 0
    count: int = 0
    checked_to: int = 0
    """Offset up to which damaged records have been counted."""


class Segments:
    """The files of one folder, used by one thread at a time. ``lost``: items dropped or unreadable, by reason."""

    def __init__(self, folder: Path, file_bytes: int, max_bytes: int, sync_each: bool) -> None:
        """Raises SpoolBusy, OSError."""
        self._folder, self._file_bytes, self._max_bytes, self._sync_each = folder, file_bytes, max_bytes, sync_each
        self.segments: deque[Segment] = deque()
        self.lost: Counter[str] = Counter()
        self._write_fd = self._read_fd = self._position_fd = self._lock_fd = self._reading_number = -1
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock()
        try:
            self._recover()
        except OSError:
            self.close()
            raise

    def _lock(self) -> None:
        self._lock_fd = os.open(self._folder / "lock", _OPEN_FLAGS, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                in_use = f"the spool {self._folder} is used by another agent"
                raise SpoolBusy(f"{in_use}: stop that one, or set another spool.path") from None
            raise

    def _recover(self) -> None:
        """Read the state that the last process left."""
        numbers = sorted(int(match[1]) for name in os.listdir(self._folder) if (match := _NAME.fullmatch(name)))
        self.segments.extend(map(Segment, numbers))
        self._position_fd = os.open(self._folder / "position", _OPEN_FLAGS, 0o600)
        self.position = self._read_position()
        while (
            self.segments and self.segments[0].number < self.position[0]
        ):  # the crash came before the file was deleted
            self._delete(self.segments.popleft())
        self._next_number = max(self.position[0], self.segments[-1].number if self.segments else 0) + 1
        if not self.segments or self.segments[0].number != self.position[0]:
            self._reset_position()
        for segment in self.segments:
            self._scan_headers(segment, self.position[1] if segment.number == self.position[0] else 0)

    def _read_position(self) -> tuple[int, int]:
        """The saved position; the beginning if it is missing or damaged, so that everything is sent again."""
        first = self.segments[0].number if self.segments else 0
        data = os.pread(self._position_fd, _POSITION.size, 0)
        if len(data) == _POSITION.size:
            number, offset, crc = _POSITION.unpack(data)
            if crc == _checksum(data[:16], 0) and number >= first:
                return number, offset
        return first, 0

    def _reset_position(self) -> None:
        self.position = (self.segments[0].number if self.segments else self._next_number, 0)

    def _scan_headers(self, segment: Segment, start: int) -> None:
        """Fill in a file's size and item count from its record headers."""
        descriptor = os.open(self._path(segment.number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            end, offset = os.fstat(descriptor).st_size, start
            while offset + _HEAD.size <= end:
                length, _, count = _HEAD.unpack(os.pread(descriptor, _HEAD.size, offset))
                if length > MAX_RECORD_BYTES or offset + _HEAD.size + length > end:
                    break
                segment.count += count & ~_COMPRESSED
                offset += _HEAD.size + length
            segment.size = end
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.spool"

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(segment.size for segment in self.segments)

    @property
    def count(self) -> int:
        """Items that are not delivered."""
        return sum(segment.count for segment in self.segments)

    # -- writing

    def write(self, frame: bytes, count: int, protected_number: int) -> None:
        """Append a record; the oldest files with a number above ``protected_number`` are dropped if space is
        needed. Raises OSError, with the file unchanged."""
        if self._write_fd < 0 or (self.segments[-1].size and self.segments[-1].size + len(frame) > self._file_bytes):
            self._start_file()
        while self.size + len(frame) > self._max_bytes and self.drop(protected_number, "spool_full"):
            pass
        segment, written = self.segments[-1], 0
        try:
            while written < len(frame):
                written += os.write(self._write_fd, memoryview(frame)[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._write_fd, segment.size)
            raise
        segment.size += len(frame)
        segment.count += count
        if self._sync_each:
            os.fdatasync(self._write_fd)

    def _start_file(self) -> None:
        """Start the next file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        new_fd = os.open(self._path(self._next_number), flags, 0o600)
        self.close_file()
        self._write_fd = new_fd
        self.segments.append(Segment(self._next_number))
        self._next_number += 1

    def close_file(self) -> None:
        """Close the file that is being written; it may be dropped then."""
        if self._write_fd >= 0:
            with suppress(OSError):
                os.fdatasync(self._write_fd)
            os.close(self._write_fd)
            self._write_fd = -1

    def drop(self, protected_number: int, reason: str) -> bool:
        """Delete the oldest file with a number above ``protected_number``; False if there is none."""
        for index, segment in enumerate(self.segments):
            if segment.number > protected_number and (self._write_fd < 0 or index < len(self.segments) - 1):
                del self.segments[index]
                self._delete(segment)
                self._count_lost(reason, segment.count)
                if index == 0:
                    self._reset_position()
                return True
        return False

    def _delete(self, segment: Segment) -> None:
        with suppress(OSError):
            os.unlink(self._path(segment.number))
        if self._reading_number == segment.number:
            os.close(self._read_fd)
            self._read_fd = self._reading_number = -1

    def dup_for_sync(self) -> int:
        """A duplicate of the write descriptor, which the caller syncs and closes; -1 if no file is open."""
        return os.dup(self._write_fd) if self._write_fd >= 0 else -1

    # -- reading

    def record_at(self, segment: Segment, offset: int) -> tuple[bytes, int, int] | None:
        """The record at an offset, its item count and the offset after it; None at the end of the file. Damaged records
        are skipped and counted. Raises OSError if the file cannot be read at the moment."""
        while offset + _HEAD.size <= segment.size:
            try:
                length, crc, count_and_flag = _HEAD.unpack(self._pread(segment.number, _HEAD.size, offset))
                data = self._pread(segment.number, length, offset + _HEAD.size) if length <= MAX_RECORD_BYTES else b""
            except (OSError, struct.error) as error:
                if isinstance(error, OSError) and error.errno not in _FINAL_ERRORS:
                    raise
                self._count_damaged(segment, segment.count)
                return None
            if len(data) < length or length > MAX_RECORD_BYTES:
                return None  # the rest was cut off, so it was never acknowledged
            record_offset, offset = offset, offset + _HEAD.size + length
            if _checksum(data, count_and_flag) == crc:
                return _decompress(data, count_and_flag), count_and_flag & ~_COMPRESSED, offset
            if record_offset >= segment.checked_to:
                segment.checked_to = offset
                self._count_damaged(segment, count_and_flag & ~_COMPRESSED)
        return None

    def count_rest_as_damaged(self) -> None:
        """Count all remaining items as damaged, if they were counted but no record can be read."""
        for segment in self.segments:
            self._count_damaged(segment, segment.count)

    def _count_damaged(self, segment: Segment, count: int) -> None:
        segment.count -= count
        self._count_lost("damaged", count)

    def _count_lost(self, reason: str, count: int) -> None:
        if count:
            self.lost[reason] += count

    def _pread(self, number: int, size: int, offset: int) -> bytes:
        if self._reading_number != number:
            if self._read_fd >= 0:
                os.close(self._read_fd)
                self._read_fd = self._reading_number = -1
            self._read_fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            self._reading_number = number
        return os.pread(self._read_fd, size, offset)

    def confirm(self, end: tuple[int, int], count: int) -> None:
        """Remove ``count`` delivered items up to a position."""
        for segment in self.segments:
            if segment.number <= end[0]:
                delivered = min(count, segment.count)
                segment.count -= delivered
                count -= delivered
        self.advance(end)

    def advance(self, end: tuple[int, int]) -> None:
        """Delete and skip everything before a position."""
        while self.segments and (self.segments[0].number < end[0] or self._is_delivered(self.segments[0], end)):
            self._delete(self.segments.popleft())
        self.position = end
        if not self.segments:
            self._reset_position()
        data = struct.pack("<QQ", *self.position)
        with suppress(OSError):  # without a saved position the records are sent again
            os.pwrite(self._position_fd, data + struct.pack("<I", _checksum(data, 0)), 0)

    def _is_delivered(self, segment: Segment, end: tuple[int, int]) -> bool:
        """Whether nothing of a file is left: it is closed for writing and read to its end."""
        if segment.number != end[0] or (self._write_fd >= 0 and segment is self.segments[-1]):
            return False
        return self.record_at(segment, end[1]) is None

    def close(self) -> None:
        """Release the folder."""
        self.close_file()
        for descriptor in (self._read_fd, self._position_fd, self._lock_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self._read_fd = self._position_fd = self._lock_fd = self._reading_number = -1
