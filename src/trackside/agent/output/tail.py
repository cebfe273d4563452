"""One growing file: its new bytes, each read once, even if the file is truncated or overwritten."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from dataclasses import dataclass

from trackside.agent.user import User

FINGERPRINT_BYTES = 512
"""Bytes at the beginning that distinguish a file from another with the same inode."""
MAX_LINES = 8192
"""Maximum lines per read: a line may be a single byte."""
OVERLAP_BYTES = 16
"""Bytes before the new data that must be unchanged; otherwise the file was overwritten."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Number and digest of a file's first bytes."""

    size: int
    digest: str

    @classmethod
    def of(cls, descriptor: int, size: int = FINGERPRINT_BYTES) -> Fingerprint:
        """The fingerprint of an open file. Raises OSError."""
        head = os.pread(descriptor, min(size, FINGERPRINT_BYTES), 0)
        return cls(len(head), hashlib.blake2b(head, digest_size=12).hexdigest())


def open_file(link: str, user: User | None) -> int:
    """A descriptor of the plain file behind ``link``, if ``user`` may read it. ``user`` None: any readable file, but no
    symbolic link.

    The user may replace the file at any moment. So it is first opened as O_PATH and checked, because opening for
    reading can trigger or block on some devices. Raises OSError.
    """
    path_fd = os.open(link, os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if user is None else 0))
    try:
        status = os.fstat(path_fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a plain file")
        if user is not None and not user.may_read(status):
            raise PermissionError(errno.EACCES, "the job's user may not read it")
        return os.open(f"/proc/self/fd/{path_fd}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(path_fd)


class Tail:
    """Follows one inode from its beginning. Raises OSError if it cannot be opened."""

    def __init__(self, link: str, user: User | None = None) -> None:
        self._descriptor = open_file(link, user)
        status = os.fstat(self._descriptor)
        self.key = (status.st_dev, status.st_ino)
        self.size = status.st_size
        self.seek(0)
        self.restarts = 0
        """How often the file was truncated or overwritten."""
        self.lost = 0
        """Bytes that were gone before they could be read."""

    def seek(self, offset: int) -> None:
        """Continue reading at an offset. Raises OSError."""
        self.offset, self._overlap = offset, self.bytes_before(offset, OVERLAP_BYTES)

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the file as it is now. Raises OSError."""
        return Fingerprint.of(self._descriptor, self.offset)

    def matches(self, fingerprint: Fingerprint, offset: int) -> bool:
        """Whether the beginning shows that this is the file that was read up to ``offset`` before. Raises OSError."""
        return self.size >= offset and Fingerprint.of(self._descriptor, fingerprint.size) == fingerprint

    def read(self, max_bytes: int) -> bytes:
        """Up to ``max_bytes`` new bytes; after a truncation, bytes from the beginning. Raises OSError."""
        size = os.fstat(self._descriptor).st_size
        if size < self.offset:
            return self._restart(size, max_bytes)
        if size == self.offset:
            self.size = size
            return b""
        overlap = len(self._overlap)
        data = os.pread(self._descriptor, max_bytes + overlap, self.offset - overlap)
        if data[:overlap] != self._overlap:
            return self._restart(size, max_bytes)
        self.size = size
        return self._advance(_limit_lines(data[overlap:]))

    @property
    def has_more(self) -> bool:
        """Whether the file held more at the last read."""
        return self.offset < self.size

    def skip_hole(self) -> bool:
        """Skip a hole at the current offset, which may be far larger than any disk; False if there is none. Raises
        OSError."""
        try:
            data_offset = os.lseek(self._descriptor, self.offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no hole at the end
                return False
            data_offset = self.size
        if data_offset <= self.offset:
            return False
        self.offset, self._overlap = data_offset, b""
        return True

    def bytes_before(self, offset: int, count: int) -> bytes:
        """Up to ``count`` bytes that end at an offset. Raises OSError."""
        start = max(0, offset - count)
        return os.pread(self._descriptor, offset - start, start)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _restart(self, size: int, max_bytes: int) -> bytes:
        self.restarts += 1
        self.lost += max(0, self.size - self.offset)
        self.offset, self._overlap, self.size = 0, b"", size
        return self._advance(_limit_lines(os.pread(self._descriptor, max_bytes, 0)))

    def _advance(self, data: bytes) -> bytes:
        self.offset += len(data)
        self._overlap = (self._overlap + data)[-OVERLAP_BYTES:]
        return data


def _limit_lines(data: bytes) -> bytes:
    """The first MAX_LINES lines of the data."""
    if data.count(b"\n") <= MAX_LINES:
        return data
    return data[: len(data) - len(data.split(b"\n", MAX_LINES)[-1])]
