"""What archives share, and tar: members one after the other, out of a stream that is read once.

Python's ``tarfile`` is not used: it takes headers of any size into memory and follows links. Nothing here
is ever written to disk.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

BLOCK = 512
MAX_NAME = 64 << 10
"""Bytes of a long name or an extended header that are looked at."""
_FILE, _OLD_FILE, _CONTIGUOUS, _SPARSE = b"0", b"\0", b"7", b"S"
_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL, _FOLDER = b"L", b"K", b"x", b"g", b"5"
_REFUSED = {
    b"1": "a hard link; its target is read where it stands",
    b"2": "a symbolic link; links in archives are not followed",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(slots=True)
class Member:
    """One member of an archive. Read ``stream`` before taking the next; None where it is refused."""

    name: str
    stream: io.BufferedReader | None = None
    size: int | None = None
    modified: float | None = None
    refused: str = ""
    faults: list[str] = field(default_factory=list)


class Part(io.RawIOBase):
    """The next ``size`` bytes of a stream; ending early is written down as a fault."""

    def __init__(self, source: io.BufferedReader, size: int, faults: list[str]) -> None:
        self._source, self._size, self._faults = source, size, faults
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: self.left]
        if not len(view):
            return 0
        count = self._source.readinto(view)
        self.left -= count
        if count < len(view) and self.left:
            self._faults.append(f"cut off: {self._size - self.left:,} of {self._size:,} bytes")
            self.left = 0
        return count


def skip(source: io.BufferedReader, count: int) -> None:
    """Move on by ``count`` bytes, by seeking where the stream can."""
    if count > BLOCK << 4 and source.seekable():
        source.seek(count, io.SEEK_CUR)
        return
    while count > 0 and (data := source.read(min(count, 1 << 20))):
        count -= len(data)


def printable(text: str) -> str:
    """A text from an input as it may be printed: no control characters."""
    return _CONTROL.sub("?", text)


def shown(name: str) -> str:
    """A name as it may be printed: no control characters, no absolute or drive part."""
    clean = printable(name.replace("\\", "/"))
    parts = [part for part in clean.split("/") if part not in ("", ".")]
    return "/".join(parts)[-1024:] or "?"


def escapes(name: str) -> bool:
    """Whether a member's name leads out of the folder that it would be unpacked in."""
    return ".." in name.replace("\\", "/").split("/")


def is_tar(head: bytes) -> bool:
    """Whether a head is a tar header, by its checksum (old tars have no magic)."""
    return len(head) >= BLOCK and any(head[:BLOCK]) and _checksum_fits(head[:BLOCK])


def tar_members(source: io.BufferedReader, faults: list[str]) -> Iterator[Member]:
    """The members of a tar, in its order. What is wrong with the archive itself goes to ``faults``."""
    long_name: str | None = None
    size_said: int | None = None
    while True:
        block = source.read(BLOCK)
        if len(block) < BLOCK:
            faults.append("cut off: the tar has no end mark")
            return
        if not any(block):
            return
        size = _number(block[124:136])
        if size is None or size < 0 or not _checksum_fits(block):
            faults.append("damaged tar header; what follows it is not read")
            return
        kind = block[156:157]
        if kind in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            if size > MAX_NAME:
                faults.append(f"tar header of {size:,} bytes; what follows it is not read")
                return
            data = source.read(size)
            skip(source, -size % BLOCK)
            if kind == _LONG_NAME:
                long_name = _text(data)
            elif kind == _PAX:
                name, size_said = _extended(data)
                long_name = name or long_name
            continue
        name = long_name or _name(block)
        size = size if size_said is None else size_said
        long_name = size_said = None
        if kind == _SPARSE:
            _skip_sparse_map(source, block)
        if kind in _REFUSED:
            yield Member(name, refused=_REFUSED[kind])
            continue
        member = Member(name, size=size, modified=_number(block[136:148]))
        part = Part(source, size, member.faults)
        if kind in (_FILE, _OLD_FILE, _CONTIGUOUS, _SPARSE) and not name.endswith("/"):
            member.stream = io.BufferedReader(part, BLOCK << 7)
            yield member
        elif kind != _FOLDER and not name.endswith("/"):
            member.refused = f"an unknown kind of tar member ({kind!r})"
            yield member
        skip(source, part.left + -size % BLOCK)


def _checksum_fits(block: bytes) -> bool:
    said = _number(block[148:156])
    total = sum(block) - sum(block[148:156]) + 8 * 32
    return said == total


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


def _extended(data: bytes) -> tuple[str | None, int | None]:
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
    """Old GNU sparse files have blocks of their map before the data; the holes are left out."""
    more = block[482]
    while more and len(block := source.read(BLOCK)) == BLOCK:
        more = block[504]
