"""Zip as a stream: local headers in order, so that a truncated or nested zip can be read too.

Because it reads forward, members cannot overlap, which the densest zip bombs depend on.
"""

from __future__ import annotations

import datetime as dt
import io
import struct
from collections.abc import Iterator

from trackside.read.archive import LimitedStream, Member, skip
from trackside.read.compression import BUFFER_BYTES, Budget, DecompressedStream

_LOCAL, _CENTRAL, _END, _DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x07\x08"
_ZIP64_END = b"PK\x06\x06"
_HEADER = struct.Struct("<HHHHHIIIHH")
_ENCRYPTED, _LATER, _UTF8 = 0x1, 0x8, 0x800
_METHODS = {8: "deflate", 12: "bzip2", 93: "zstd", 95: "xz"}
_BIG = 0xFFFFFFFF


def is_zip(head: bytes) -> bool:
    """Whether a head is that of a zip (an empty zip is only an end record)."""
    return head.startswith((_LOCAL, _END, _DESCRIPTOR + _LOCAL, b"PK00" + _LOCAL))


def holds_checkpoint(head: bytes) -> bool:
    """Whether a zip is a ``torch.save`` checkpoint: its first member is a pickle of the tensors."""
    if len(head) < 30 or not head.startswith(_LOCAL):
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return name.endswith((b"/data.pkl", b"/.format_version", b"/byteorder"))


def zip_members(source: io.BufferedReader, budget: Budget, faults: list[str]) -> Iterator[Member]:
    """Yield the members of a zip in order. Faults of the archive itself are appended to ``faults``."""
    signature = source.read(4)
    if signature in (_DESCRIPTOR, b"PK00"):
        signature = source.read(4)
    while signature == _LOCAL:
        raw = source.read(_HEADER.size)
        if len(raw) < _HEADER.size:
            break
        _, flags, method, clock, date, _, packed, size, name_length, extra_length = _HEADER.unpack(raw)
        name = source.read(name_length).decode("utf-8" if flags & _UTF8 else "cp437", "replace")
        packed, size = _sizes(packed, size, source.read(extra_length))
        member = Member(name, modified=_modified_s(date, clock))
        if not flags & _LATER or packed:
            data_stream = LimitedStream(source, packed, member.faults)
            yield from _members_with_content(
                member, flags, method, size, io.BufferedReader(data_stream, BUFFER_BYTES), budget
            )
            skip(source, data_stream.remaining)
            signature = source.read(4)
            if flags & _LATER and signature != _LOCAL:
                signature = _next_signature(source, signature)
            continue
        if flags & _ENCRYPTED or method not in _METHODS:
            member.refusal = "encrypted" if flags & _ENCRYPTED else "stored without its size"
            yield member
            signature = _next_signature(source, b"")
            continue
        expanded = DecompressedStream(_METHODS[method], source, budget, member.faults, single=True)
        member.stream = io.BufferedReader(expanded, BUFFER_BYTES)
        if not member.name.endswith(("/", "\\")):
            yield member
        while member.stream.read(1 << 20):
            pass
        signature = _signature_after_descriptor(source, expanded)
    if signature not in (_CENTRAL, _END, _ZIP64_END):
        faults.append("cut off or damaged: the zip's list of members is missing")


def _members_with_content(
    member: Member, flags: int, method: int, size: int, packed: io.BufferedReader, budget: Budget
) -> Iterator[Member]:
    """Yield the member, with a refusal if it cannot be read; nothing for a folder."""
    if member.name.endswith(("/", "\\")):
        return
    if flags & _ENCRYPTED:
        member.refusal = "encrypted"
    elif method == 0:
        member.stream, member.size = packed, size
    elif method in _METHODS:
        expanded = DecompressedStream(_METHODS[method], packed, budget, member.faults, single=True)
        member.stream = io.BufferedReader(expanded, BUFFER_BYTES)
        member.size = size
    else:
        member.refusal = f"packed with zip method {method}, which is not supported"
    yield member


def _sizes(packed: int, size: int, extra: bytes) -> tuple[int, int]:
    """Compressed and uncompressed size, from the zip64 field where the header's 32 bits don't fit."""
    position = 0
    while (packed == _BIG or size == _BIG) and position + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, position)
        values = extra[position + 4 : position + 4 + length]
        if tag == 1:
            if size == _BIG and len(values) >= 8:
                size, values = int.from_bytes(values[:8], "little"), values[8:]
            if packed == _BIG and len(values) >= 8:
                packed = int.from_bytes(values[:8], "little")
            break
        position += 4 + length
    return packed, size


def _signature_after_descriptor(source: io.BufferedReader, expanded: DecompressedStream) -> bytes:
    """The signature after a data descriptor. Its fields have 4 or 8 bytes; its own signature is optional."""
    first = source.read(4)
    if first == _DESCRIPTOR:
        source.read(4)
    elif first in (_LOCAL, _CENTRAL):
        return first
    packed = source.read(4)
    if int.from_bytes(packed, "little") != expanded.consumed_bytes & _BIG:
        return _next_signature(source, b"")
    if int.from_bytes(source.read(4), "little") != expanded.produced_bytes & _BIG:
        source.read(8)
    return _next_signature(source, source.read(4))


def _next_signature(source: io.BufferedReader, signature: bytes) -> bytes:
    """The next header's signature: the one just read if it is valid, else the next one found in the stream."""
    signatures = (_LOCAL, _CENTRAL, _END)
    if signature in signatures:
        return signature
    tail = b"" if signature == _DESCRIPTOR else signature[-3:]
    while data := source.peek(1):
        window = tail + data
        hits = [index for candidate in signatures if (index := window.find(candidate)) >= 0]
        if hits:
            source.read(min(hits) + 4 - len(tail))
            return window[min(hits) : min(hits) + 4]
        source.read(len(data))
        tail = window[-3:]
    return b""


def _modified_s(date: int, clock: int) -> float | None:
    try:
        day = dt.datetime(1980 + (date >> 9), date >> 5 & 15, date & 31, clock >> 11, clock >> 5 & 63, tzinfo=dt.UTC)
    except ValueError:
        return None
    return day.timestamp()
