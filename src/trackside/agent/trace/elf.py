"""Offsets of functions in a shared library, for uprobes. A malicious file causes :class:`ElfUnreadable` or missing
symbols, and never more work than the limits below. The file is read, not mapped, because truncating a mapped file would
kill the agent."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping

MACHINES = {"x86_64": 62, "aarch64": 183}
"""Architecture as in uname -> ELF machine number."""
MAX_SECTIONS = 4096
MAX_SEGMENTS = 512
MAX_SYMBOLS = 1 << 18
MAX_STRING_BYTES = 16 << 20
"""Bytes of the string table that are read."""
_SYMBOL_TABLES = (11, 2)
"""Section types: dynamic symbols, then all symbols if the file is not stripped."""
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LOAD, _EXECUTABLE, _FUNCTION, _INDIRECT = 1, 1, 2, 10


class ElfUnreadable(ValueError):
    """The file is not a library for this machine. The message is one line."""


def offsets(fd: int, names: Collection[str], machine: str | None = None) -> dict[str, int]:
    """Function -> its offset in the open file, for those of ``names`` that the library defines."""
    machine = machine or os.uname().machine
    data = os.pread(fd, _HEADER.size, 0)
    if len(data) < _HEADER.size or data[:6] != b"\x7fELF\x02\x01":
        raise ElfUnreadable("not a 64-bit little-endian ELF file")
    _, _, number, _, _, segments_at, sections_at, _, _, segment_size, segment_count, section_size, section_count, _ = (
        _HEADER.unpack(data)
    )
    if number != MACHINES.get(machine):
        raise ElfUnreadable(f"built for another machine than {machine}")
    if (segment_count and segment_size != _SEGMENT.size) or (section_count and section_size != _SECTION.size):
        raise ElfUnreadable("unexpected table sizes")
    segments = _table(fd, segments_at, min(segment_count, MAX_SEGMENTS), _SEGMENT)
    loads = [(row[3], row[5], row[2]) for row in segments if row[0] == _LOAD and row[1] & _EXECUTABLE]
    tables = _table(fd, sections_at, min(section_count, MAX_SECTIONS), _SECTION)
    encoded_names = {name.encode(): name for name in names}
    for kind in _SYMBOL_TABLES:
        offsets: dict[str, int] = {}
        for table in tables[:MAX_SECTIONS]:
            if table[1] == kind and table[6] < len(tables):
                offsets.update(_symbol_offsets(fd, table, tables[table[6]], encoded_names, loads))
                break  # a file has one of each kind
        if offsets:
            return offsets
    return {}


def _table(fd: int, begin: int, count: int, row: struct.Struct) -> list[tuple[int, ...]]:
    data = _read(fd, begin, count * row.size)
    return list(row.iter_unpack(data[: len(data) // row.size * row.size]))


def _read(fd: int, offset: int, size: int) -> bytes:
    """The bytes of the file at an offset, as far as they exist."""
    if offset >= 1 << 62:
        return b""
    return os.pread(fd, size, offset)


def _symbol_offsets(
    fd: int,
    table: tuple[int, ...],
    strings: tuple[int, ...],
    names: Mapping[bytes, str],
    loads: list[tuple[int, int, int]],
) -> Iterator[tuple[str, int]]:
    size = os.fstat(fd).st_size
    symbols = _table(fd, table[4], min(table[5] // _SYMBOL.size, MAX_SYMBOLS), _SYMBOL)
    string_table = _read(fd, strings[4], min(strings[5], MAX_STRING_BYTES))
    longest = max(map(len, names), default=0)
    for name, info, _, section, address, _ in symbols:
        if info & 15 not in (_FUNCTION, _INDIRECT) or not section:
            continue
        end = string_table.find(b"\0", name, name + longest + 1)
        match = names.get(string_table[name:end]) if end >= 0 else None
        if match is None:
            continue
        for start, length, offset in loads:
            if start <= address < start + length and address - start + offset < size:
                yield match, address - start + offset
                break
