"""Checksums of a store's files: changed bytes are noticed before anything is concluded from them.

The database engine writes no page checksums, and most flipped bits in a Parquet file decode to another value without
an error. So the manifest has a CRC-32 for each of up to 32 blocks of a segment: enough to say which of its rows are
intact, and few enough for a manifest that is written with each commit.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator

MAX_BLOCKS = 32
"""Largest number of blocks of a file."""
MIN_BLOCK_BYTES = 64 << 10
"""Smallest size of a block, except for the last one."""
CHECK_AGAIN_S = 3600.0
"""For this long, a process relies on a file that it has checked."""
_checked_files: dict[tuple[int, int, int, int], float] = {}
"""(device, inode, mtime in ns, bytes) of an intact file -> when it was checked, by the monotonic clock."""
_MAX_CHECKED_FILES = 100_000


def checksums_of(path: str | os.PathLike[str]) -> tuple[int, ...]:
    """The CRC-32 of each block of a file. Raises OSError."""
    return tuple(crc for _, crc in _blocks(path, os.stat(path).st_size))


def damaged_blocks(path: str | os.PathLike[str], checksums: tuple[int, ...]) -> list[range]:
    """The blocks that are not as they were written, as ranges of offsets in the file. Raises OSError."""
    blocks = list(_blocks(path, os.stat(path).st_size))
    if len(blocks) != len(checksums):
        return [range(sum(len(block) for block, _ in blocks))]
    return [block for (block, crc), expected in zip(blocks, checksums, strict=True) if crc != expected]


def is_intact(path: str | os.PathLike[str], checksums: tuple[int, ...]) -> bool:
    """Whether a file is as it was written; within an hour, a process reads it once for this. Raises OSError."""
    stat = os.stat(path)
    key = (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
    checked_at = _checked_files.get(key)
    if checked_at is not None and time.monotonic() - checked_at < CHECK_AGAIN_S:
        return True
    if damaged_blocks(path, checksums):
        return False
    if len(_checked_files) >= _MAX_CHECKED_FILES:
        _checked_files.clear()
    _checked_files[key] = time.monotonic()
    return True


def _blocks(path: str | os.PathLike[str], size: int) -> Iterator[tuple[range, int]]:
    """Each block of a file as a range of offsets, with its CRC-32."""
    block_bytes = max(MIN_BLOCK_BYTES, -(-size // MAX_BLOCKS))
    with open(path, "rb") as file:
        offset = 0
        while content := file.read(block_bytes):
            yield range(offset, offset + len(content)), zlib.crc32(content)
            offset += len(content)
