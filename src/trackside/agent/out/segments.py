"""A spool on disk: records in files that are only appended to, and up to where they are done with.

    DIR/00000007.spool   records one after the other: length, CRC-32, how many things it holds, and the bytes
    DIR/position         up to where the receiver has them: file, place in it, CRC-32
    DIR/lock             held by the process whose folder it is

A file is appended to by the process that began it alone. A record that was cut off by a crash was never taken: the next
process begins another file, and what stands at an end and is no whole record is passed over. A file goes once all of it
is done with.
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

MOST_RECORD = 64 << 20
"""No record is longer: a damaged length is told from a true one."""
PACK_BYTES = 512
"""Records from this size on are compressed."""
_HEAD = struct.Struct("<III")
_POSITION = struct.Struct("<QQI")
_PACKED = 1 << 31
"""Bit of a record's count: it is compressed."""
_SEED = 0x7261636B
"""Of the checksums: zeros that a power cut leaves are no record."""
_GONE = frozenset({errno.EIO, errno.ENOENT, errno.ESTALE})
"""What a file that can't be read any more gives; anything else may pass."""
_OWN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
"""A folder may lie where others can put links to what they may not write themselves."""
_NAME = re.compile(r"(\d{8})\.spool")


class InUse(TracksideError):
    """Another process has this folder."""


def frame_of(record: bytes, count: int) -> bytes:
    """A record as it is written."""
    packed = zlib.compress(record, 1) if len(record) >= PACK_BYTES else record
    data, counted = (packed, count | _PACKED) if len(packed) < len(record) else (record, count)
    return _HEAD.pack(len(data), _checksum(data, counted), counted) + data


def record_of(frame: bytes) -> bytes:
    """The record of a frame that is whole."""
    return _unpacked(frame[_HEAD.size :], _HEAD.unpack_from(frame)[2])


def _unpacked(data: bytes, counted: int) -> bytes:
    return zlib.decompress(data) if counted & _PACKED else data


def _checksum(data: bytes, counted: int) -> int:
    return zlib.crc32(data, _SEED ^ counted)


@dataclass(slots=True)
class Segment:
    """One file: its size, and how much it holds that is not done with."""

    number: int
    size: int = 0
    count: int = 0
    seen: int = 0
    """Up to where damage was looked for."""


class Segments:
    """The files of one folder, for one thread at a time. ``lost``: things dropped or not readable, by why."""

    def __init__(self, folder: Path, file_bytes: int, most_bytes: int, sync_each: bool) -> None:
        """Raises InUse, OSError."""
        self._folder, self._file_bytes, self._most_bytes, self._sync_each = folder, file_bytes, most_bytes, sync_each
        self.files: deque[Segment] = deque()
        self.lost: Counter[str] = Counter()
        self._writing = self._reading = self._mark = self._held = self._reading_number = -1
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock()
        try:
            self._recover()
        except OSError:
            self.close()
            raise

    def _lock(self) -> None:
        self._held = os.open(self._folder / "lock", _OWN, 0o600)
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                where = f"another agent has the spool {self._folder}"
                raise InUse(f"{where}: end it, or give this one a spool.path") from None
            raise

    def _recover(self) -> None:
        """Find what the last process left."""
        numbers = sorted(int(found[1]) for name in os.listdir(self._folder) if (found := _NAME.fullmatch(name)))
        self.files.extend(map(Segment, numbers))
        self._mark = os.open(self._folder / "position", _OWN, 0o600)
        self.position = self._position()
        while self.files and self.files[0].number < self.position[0]:  # the crash came before it was deleted
            self._delete(self.files.popleft())
        self._following = max(self.position[0], self.files[-1].number if self.files else 0) + 1
        if not self.files or self.files[0].number != self.position[0]:
            self._from_first()
        for file in self.files:
            self._measure(file, self.position[1] if file.number == self.position[0] else 0)

    def _position(self) -> tuple[int, int]:
        """Up to where the receiver has them; the beginning where that isn't known: it is sent again then."""
        first = self.files[0].number if self.files else 0
        data = os.pread(self._mark, _POSITION.size, 0)
        if len(data) == _POSITION.size:
            number, offset, crc = _POSITION.unpack(data)
            if crc == _checksum(data[:16], 0) and number >= first:
                return number, offset
        return first, 0

    def _from_first(self) -> None:
        self.position = (self.files[0].number if self.files else self._following, 0)

    def _measure(self, file: Segment, since: int) -> None:
        """Fill in a file's size and count by its records' heads."""
        descriptor = os.open(self._path(file.number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            end, at = os.fstat(descriptor).st_size, since
            while at + _HEAD.size <= end:
                length, _, count = _HEAD.unpack(os.pread(descriptor, _HEAD.size, at))
                if length > MOST_RECORD or at + _HEAD.size + length > end:
                    break
                file.count += count & ~_PACKED
                at += _HEAD.size + length
            file.size = end
        finally:
            os.close(descriptor)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:08d}.spool"

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def count(self) -> int:
        """Things that are not done with."""
        return sum(file.count for file in self.files)

    # -- in

    def write(self, frame: bytes, count: int, pinned: int) -> None:
        """Append a record; older ones beyond ``pinned`` go for it. Raises OSError, and leaves the file as it was."""
        if self._writing < 0 or (self.files[-1].size and self.files[-1].size + len(frame) > self._file_bytes):
            self._begin()
        while self.size + len(frame) > self._most_bytes and self.drop(pinned, "spool_full"):
            pass
        file, written = self.files[-1], 0
        try:
            while written < len(frame):
                written += os.write(self._writing, memoryview(frame)[written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._writing, file.size)
            raise
        file.size += len(frame)
        file.count += count
        if self._sync_each:
            os.fdatasync(self._writing)

    def _begin(self) -> None:
        """Begin the next file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        begun = os.open(self._path(self._following), flags, 0o600)
        self.finish()
        self._writing = begun
        self.files.append(Segment(self._following))
        self._following += 1

    def finish(self) -> None:
        """Done with the file that is written to: it may be dropped now."""
        if self._writing >= 0:
            with suppress(OSError):
                os.fdatasync(self._writing)
            os.close(self._writing)
            self._writing = -1

    def drop(self, pinned: int, reason: str) -> bool:
        """Let the oldest file go that is beyond ``pinned``, a file's number; whether there was any."""
        for at, file in enumerate(self.files):
            if file.number > pinned and (self._writing < 0 or at < len(self.files) - 1):
                del self.files[at]
                self._delete(file)
                self._note(reason, file.count)
                if at == 0:
                    self._from_first()
                return True
        return False

    def _delete(self, file: Segment) -> None:
        with suppress(OSError):
            os.unlink(self._path(file.number))
        if self._reading_number == file.number:
            os.close(self._reading)
            self._reading = self._reading_number = -1

    def syncing(self) -> int:
        """A descriptor of what is written to, for its owner to sync and close; below 0: there is none."""
        return os.dup(self._writing) if self._writing >= 0 else -1

    # -- out

    def record(self, file: Segment, at: int) -> tuple[bytes, int, int] | None:
        """The record there, what it counts and the place after it; None at the file's end. Passes over damage. Raises
        OSError where it can't be read just now."""
        while at + _HEAD.size <= file.size:
            try:
                length, crc, counted = _HEAD.unpack(self._pread(file.number, _HEAD.size, at))
                data = self._pread(file.number, length, at + _HEAD.size) if length <= MOST_RECORD else b""
            except (OSError, struct.error) as error:
                if isinstance(error, OSError) and error.errno not in _GONE:
                    raise
                self._damaged(file, file.count)
                return None
            if len(data) < length or length > MOST_RECORD:
                return None  # the rest was cut off, and never taken
            begin, at = at, at + _HEAD.size + length
            if _checksum(data, counted) == crc:
                return _unpacked(data, counted), counted & ~_PACKED, at
            if begin >= file.seen:
                file.seen = at
                self._damaged(file, counted & ~_PACKED)
        return None

    def unreadable(self) -> None:
        """Nothing can be read, though something is counted: somebody else changed a file."""
        for file in self.files:
            self._damaged(file, file.count)

    def _damaged(self, file: Segment, count: int) -> None:
        file.count -= count
        self._note("damaged", count)

    def _note(self, reason: str, count: int) -> None:
        if count:
            self.lost[reason] += count

    def _pread(self, number: int, size: int, at: int) -> bytes:
        if self._reading_number != number:
            if self._reading >= 0:
                os.close(self._reading)
                self._reading = self._reading_number = -1
            self._reading = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            self._reading_number = number
        return os.pread(self._reading, size, at)

    def done(self, end: tuple[int, int], count: int) -> None:
        """So many things up to a place are with the receiver."""
        for file in self.files:
            if file.number <= end[0]:
                taken = min(count, file.count)
                file.count -= taken
                count -= taken
        self.passed(end)

    def passed(self, end: tuple[int, int]) -> None:
        """All before this place is done with."""
        while self.files and (self.files[0].number < end[0] or self._is_over(self.files[0], end)):
            self._delete(self.files.popleft())
        self.position = end
        if not self.files:
            self._from_first()
        data = struct.pack("<QQ", *self.position)
        with suppress(OSError):  # it is sent again then
            os.pwrite(self._mark, data + struct.pack("<I", _checksum(data, 0)), 0)

    def _is_over(self, file: Segment, end: tuple[int, int]) -> bool:
        """Whether nothing of a file is still to come: it isn't written to any more, and was read to its end."""
        if file.number != end[0] or (self._writing >= 0 and file is self.files[-1]):
            return False
        return self.record(file, end[1]) is None

    def close(self) -> None:
        """Let go of the folder."""
        self.finish()
        for descriptor in (self._reading, self._mark, self._held):
            if descriptor >= 0:
                os.close(descriptor)
        self._reading = self._mark = self._held = self._reading_number = -1
