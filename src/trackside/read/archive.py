"""Code that archive formats share, and tar: members in order, from a stream that is read once.

Python's ``tarfile`` is not used because it loads headers of any size into memory and follows links. This module
writes nothing to disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

BLOCK_BYTES = 512
MAX_NAME_BYTES = 64 << 10
"""Longest long name or extended header that is read, bytes."""
_FILE, _OLD_FILE, _CONTIGUOUS, _SPARSE = b"0", b"\0", b"7", b"S"
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _FOLDER = b"L", b"K", b"x", b"g", b"5"
_UNREADABLE_KINDS = {
    b"1": "a hard link; its target is read under its own name",
    b"2": "a symbolic link; links in archives are not followed",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class Member:
    """One member of an archive. Read ``stream`` before taking the next member. ``stream`` is None if ``refused`` says
    why."""

    name: str
    stream: io.BufferedReader | None = None
    size: int | None = None
    modified: float | None = None
    refusal: str = ""
    faults: list[str] = field(default_factory=list)


class LimitedStream(io.RawIOBase):
    """The next ``size`` bytes of a stream. A stream that ends early adds a fault to ``faults``."""

    def __init__(self, source: io.BufferedReader, size: int, faults: list[str]) -> None:
        self._source, self._size, self._faults = source, size, faults
        self.remaining = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self.remaining]
        if not len(view):
            return 0
        count = self._source.readinto(view)
        self.remaining -= count
        if count < len(view) and self.remaining:
            self._faults.append(f"cut off: {self._size - self.remaining:,} of {self._size:,} bytes")
            self.remaining = 0
        return count


def skip(source: io.BufferedReader, count: int) -> None:
    """Skip ``count`` bytes, by seeking if the stream can seek."""
    if count > BLOCK_BYTES << 4 and source.seekable():
        source.seek(count, io.SEEK_CUR)
        return
    while count > 0 and (data := source.read(min(count, 1 << 20))):
        count -= len(data)


def printable(text: str) -> str:
    """Text from an input without control characters, safe to print."""
    return _CONTROL.sub("?", text)


def printable_name(name: str) -> str:
    """A member's name, safe to print: no control characters, no root or drive."""
    clean = printable(name.replace("\\", "/"))
    parts = [part for part in clean.split("/") if part not in ("", ".")]
    return "/".join(parts)[-1024:] or "?"


def escapes(name: str) -> bool:
    """Whether a member's name points outside the folder that it would be unpacked into."""
    return ".." in name.replace("\\", "/").split("/")


def is_tar(head: bytes) -> bool:
    """Whether a head is a tar header, by its checksum (old tars have no magic)."""
    return len(head) >= BLOCK_BYTES and any(head[:BLOCK_BYTES]) and _checksum_fits(head[:BLOCK_BYTES])


def tar_members(source: io.BufferedReader, faults: list[str]) -> Iterator[Member]:
    """Yield the members of a tar in order. Faults of the archive itself are appended to ``faults``."""
    long_name: str | None = None
    pax_size: int | None = None
    while True:
        block = source.read(BLOCK_BYTES)
        if len(block) < BLOCK_BYTES:
            faults.append("cut off: the tar has no end mark")
            return
        if not any(block):
            return
        size = _number(block[124:136])
        if size is None or size < 0 or not _checksum_fits(block):
            faults.append("damaged tar header; the rest is not read")
            return
        kind = block[156:157]
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            if size > MAX_NAME_BYTES:
                faults.append(f"tar header of {size:,} bytes; the rest is not read")
                return
            data = source.read(size)
            skip(source, -size % BLOCK_BYTES)
            if kind == _LONG_NAME:
                long_name = _text(data)
            elif kind == _PAX:
                name, pax_size = _pax_path_and_size(data)
                long_name = name or long_name
            continue
        name = long_name or _name(block)
        size = size if pax_size is None else pax_size
        long_name = pax_size = None
        if kind == _SPARSE:
            _skip_sparse_map(source, block)
        if kind in _UNREADABLE_KINDS:
            yield Member(name, refusal=_UNREADABLE_KINDS[kind])
            continue
        member = Member(name, size=size, modified=_number(block[136:148]))
        data_stream = LimitedStream(source, size, member.faults)
        if kind in (_FILE, _OLD_FILE, _CONTIGUOUS, _SPARSE) and not name.endswith("/"):
            member.stream = io.BufferedReader(data_stream, BLOCK_BYTES << 7)
            yield member
        elif kind != _FOLDER and not name.endswith("/"):
            member.refusal = f"an unknown kind of tar member ({kind!r})"
            yield member
        skip(source, data_stream.remaining + -size % BLOCK_BYTES)


def _checksum_fits(block: bytes) -> bool:
    stored = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return stored == total


def _number(field: bytes) -> int | None:
    """An octal or base-256 number of a tar header."""
    if field[:1] in (b"\x80", b"\xff"):
        return int.from_bytes(field[1:], "big") if field[:1] == b"\x80" else -1
    try:
        return int(field.split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "replace")


def _name(block: bytes) -> str:
    name, prefix = _text(block[:100]), _text(block[345:500])
    return f"{prefix}/{name}" if prefix and block[257:263] == b"ustar\0" else name


def _pax_path_and_size(data: bytes) -> tuple[str | None, int | None]:
    """Path and size of a pax header: records ``LENGTH KEY=VALUE\\n``."""
    name, size, position = None, None, 0
    while position < len(data):
        space = data.find(b" ", position, position + 8)
        if space < 0 or not data[position:space].isdigit():
            break
        end = position + int(data[position:space])
        if end <= space:
            break
        key, _, value = data[space + 1 : end - 1].partition(b"=")
        if key in (b"path", b"GNU.sparse.name"):
            name = _text(value)
        elif key == b"size" and value.isdigit() and len(value) < 20:
            size = int(value)
        position = end
    return name, size


def _skip_sparse_map(source: io.BufferedReader, block: bytes) -> None:
    """Skip the map blocks that old GNU sparse files have before their data. Holes are omitted from the data."""
    has_more = block[482]
    while has_more and len(block := source.read(BLOCK_BYTES)) == BLOCK_BYTES:
        has_more = block[504]
