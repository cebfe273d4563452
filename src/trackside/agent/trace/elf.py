"""Where functions lie in a shared library: file offsets of its symbols, as uprobes want them. A hostile file gives
:class:`NotReadable`, at worst no symbol; never more work than the bounds here. It is read and not mapped: who cuts it
short meanwhile must not end the agent."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Architecture as uname has it -> ELF's number."""
MOST_SECTIONS = 4096
MOST_SEGMENTS = 512
MOST_SYMBOLS = 1 << 18
MOST_STRINGS = 16 << 20
"""Bytes of names, of which the first are read."""
_SYMBOL_TABLES = (11, 2)
"""Types of section: symbols of the dynamic linker, then all of them where the file was not stripped."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _EXECUTABLE, _FUNCTION, _INDIRECT = 1, 1, 2, 10


class NotReadable(ValueError):
    """A file that is no library of this machine. One line."""


def offsets(fd: int, names: Collection[str], machine: str | None = None) -> dict[str, int]:
    """Function -> its offset in the open file, for those of ``names`` that the library defines."""
    machine = machine or os.uname().machine
    data = os.pread(fd, _HEADER.size, 0)
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise NotReadable("it is no 64-bit little-endian ELF file")
    _, _, number, _, _, segments_at, sections_at, _, _, each, many, section, sections, _ = _HEADER.unpack(data)
    if number != MACHINES.get(machine):
        raise NotReadable(f"it is for another machine than {machine}")
    if (many and each != _SEGMENT.size) or (sections and section != _SECTION.size):
        raise NotReadable("its tables are of no size that is known")
    segments = _table(fd, segments_at, min(many, MOST_SEGMENTS), _SEGMENT)
    loads = [(row[3], row[5], row[2]) for row in segments if row[0] == _LOAD and row[1] & _EXECUTABLE]
    tables = _table(fd, sections_at, min(sections, MOST_SECTIONS), _SECTION)
    wanted = {name.encode(): name for name in names}
    for kind in _SYMBOL_TABLES:
        found: dict[str, int] = {}
        for table in tables[:MOST_SECTIONS]:
            if table[1] == kind and table[6] < len(tables):
                found.update(_named(fd, table, tables[table[6]], wanted, loads))
                break  # a file has one of each kind
        if found:
            return found
    return {}


def _table(fd: int, begin: int, many: int, row: struct.Struct) -> list[tuple[int, ...]]:
    data = _read(fd, begin, many * row.size)
    return list(row.iter_unpack(data[: len(data) // row.size * row.size]))


def _read(fd: int, at: int, size: int) -> bytes:
    """What there is of it."""
    if at >= 1 << 62:
        return b""
    return os.pread(fd, size, at)


def _named(
    fd: int,
    table: tuple[int, ...],
    strings: tuple[int, ...],
    names: Mapping[bytes, str],
    loads: list[tuple[int, int, int]],
) -> Iterator[tuple[str, int]]:
    size = os.fstat(fd).st_size
    symbols = _table(fd, table[4], min(table[5] // _SYMBOL.size, MOST_SYMBOLS), _SYMBOL)
    words = _read(fd, strings[4], min(strings[5], MOST_STRINGS))
    longest = max(map(len, names), default=0)
    for name, info, _, section, address, _ in symbols:
        if info & 15 not in (_FUNCTION, _INDIRECT) or not section:
            continue
        close = words.find(b"\0", name, name + longest + 1)
        known = names.get(words[name:close]) if close >= 0 else None
        if known is None:
            continue
        for start, length, offset in loads:
            if start <= address < start + length and address - start + offset < size:
                yield known, address - start + offset
                break
