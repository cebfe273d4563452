"""One file that grows: its new bytes, each once, whatever becomes of the file meanwhile."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

from trackside.agent.user import User

HEAD = 512
"""Bytes of a file's beginning that tell it from another one with its inode."""
MOST_LINES = 8192
"""Of one reading: a line may be a single byte."""
JOINT = 16
"""Bytes before what is new that must be what they were: else the file was written anew."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A file's first bytes: how many of them, and their digest."""

    size: int
    digest: str

    @classmethod
    def of(cls, descriptor: int, size: int = HEAD) -> Fingerprint:
        """Of an open file. Raises OSError."""
        head = os.pread(descriptor, min(size, HEAD), 0)
        return cls(len(head), hashlib.blake2b(head, digest_size=12).hexdigest())


def opened(link: str, user: User | None) -> int:
    """A descriptor of the plain file that a link leads to, if ``user`` may read it; None: whoever's, but no link.

    What is behind it may change at any moment, by its user's will. So nothing is opened for reading, which wakes some
    devices and waits for others, before it is held and was looked at. Raises OSError.
    """
    place = os.open(link, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if user is None else 0))
    try:
        told = os.fstat(place)
        if not stat.S_ISREG(told.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        if user is not None and not user.may_read(told):
            raise PermissionError(errno.EACCES, "the job's user may not read it")
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(place)


class Tail:
    """Follows one inode from its beginning on. Raises OSError where it can't be opened."""

    def __init__(self, link: str, user: User | None = None) -> None:
        self._descriptor = opened(link, user)
        status = os.fstat(self._descriptor)
        self.key = (status.st_dev, status.st_ino)
        self.size = status.st_size
        self.go_to(0)
        self.begun_anew = 0
        """How often the file was cut or written over."""
        self.lost = 0
        """Bytes that were there, and gone before they could be read."""

    def go_to(self, offset: int) -> None:
        """Read on from there. Raises OSError."""
        self.offset, self._joint = offset, self.before(offset, JOINT)

    @property
    def fingerprint(self) -> Fingerprint:
        """Of its beginning as it is now. Raises OSError."""
        return Fingerprint.of(self._descriptor, self.offset)

    def is_as(self, known: Fingerprint, offset: int) -> bool:
        """Whether it is the file that was read up to ``offset`` before, by its beginning. Raises OSError."""
        return self.size >= offset and Fingerprint.of(self._descriptor, known.size) == known

    def read(self, most: int) -> bytes:
        """New bytes, at most so many; of a file that was cut, those from its beginning. Raises OSError."""
        size = os.fstat(self._descriptor).st_size
        if size < self.offset:
            return self._anew(size, most)
        if size == self.offset:
            self.size = size
            return b""
        back = len(self._joint)
        data = os.pread(self._descriptor, most + back, self.offset - back)
        if data[:back] != self._joint:
            return self._anew(size, most)
        self.size = size
        return self._taken(_lines(data[back:]))

    @property
    def has_more(self) -> bool:
        """Whether there was more when it was read last."""
        return self.offset < self.size

    def pass_hole(self) -> bool:
        """Go on where a hole ends that begins here, which may be a thousand times as large as any disk; whether there
        is one. Raises OSError."""
        try:
            place = os.lseek(self._descriptor, self.offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # it has none up to its end
                return False
            place = self.size
        if place <= self.offset:
            return False
        self.offset, self._joint = place, b""
        return True

    def before(self, place: int, count: int) -> bytes:
        """So many bytes that end at a place, less where the file's begin is nearer. Raises OSError."""
        begin = max(0, place - count)
        return os.pread(self._descriptor, place - begin, begin)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _anew(self, size: int, most: int) -> bytes:
        self.begun_anew += 1
        self.lost += max(0, self.size - self.offset)
        self.offset, self._joint, self.size = 0, b"", size
        return self._taken(_lines(os.pread(self._descriptor, most, 0)))

    def _taken(self, data: bytes) -> bytes:
        self.offset += len(data)
        self._joint = (self._joint + data)[-JOINT:]
        return data


def _lines(data: bytes) -> bytes:
    """As many of the lines as are read at once."""
    if data.count(b"\n") <= MOST_LINES:
        return data
    return data[: len(data) - len(data.split(b"\n", MOST_LINES)[-1])]
