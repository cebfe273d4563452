"""Streaming decompression: gzip, bzip2, xz, zstd and raw deflate.

Damaged data never raises: the stream yields what could be read and records the fault for the ``inputs`` row.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import zstandard

from trackside.read.pieces import PieceStream

BUFFER_BYTES = 64 << 10
FREE_BYTES = 256 << 20
"""An input may always expand to this size, whatever its ratio."""
MAX_RATIO = 200
"""Largest ratio of expanded to compressed bytes beyond FREE_BYTES. Repetitive logs reach about 100, bombs 1,000 and
more."""
MAX_EXPANDED_BYTES = 1 << 40
MAX_MEMBERS = 100_000
MAX_DECODER_BYTES = 128 << 20
"""Memory limit of the xz decoder, bytes; ``xz -9`` needs 65 MiB."""
_PIECE_BYTES = {"zstd": 1 << 10}
"""Compressed bytes per decoder call, where not 4 KiB: zstd has no output limit, and 4 bytes may expand to 128 KiB."""
_MAGIC = {
    "gzip": (b"\x1f\x8b\x08",),
    "bzip2": tuple(b"BZh%d" % level for level in range(1, 10)),
    "xz": (b"\xfd7zXZ\0",),
    "zstd": (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + n]) + b"\x2a\x4d\x18" for n in range(16))),
}
_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError, ValueError, MemoryError)


def compression_of(head: bytes) -> str | None:
    """The compression that a file's magic bytes name; None for an uncompressed file."""
    for kind, magics in _MAGIC.items():
        if head.startswith(magics) and (kind != "bzip2" or head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")):
            return kind
    return None


@dataclass(slots=True)
class Budget:
    """Limit on what one file on disk may expand to, over all layers and members."""

    consumed: Callable[[], int]
    """Bytes of the file on disk read so far."""
    expanded: int = 0
    members: int = 0
    stop_reason: str = ""
    """Why reading stopped; empty while it goes on."""

    def count_bytes(self, count: int) -> bool:
        """Account for expanded bytes. False once the budget is exhausted."""
        self.expanded += count
        if self.expanded > FREE_BYTES and self.expanded > MAX_RATIO * max(1, self.consumed()):
            self.stop_reason = (
                self.stop_reason or f"expands more than {MAX_RATIO}:1; stopped after {_mib(self.expanded)}"
            )
        elif self.expanded > MAX_EXPANDED_BYTES:
            self.stop_reason = self.stop_reason or f"stopped after {_mib(self.expanded)}"
        return not self.stop_reason

    def count_member(self) -> bool:
        """Account for one member of an archive. False once there are too many."""
        self.members += 1
        if self.members > MAX_MEMBERS:
            self.stop_reason = self.stop_reason or f"more than {MAX_MEMBERS:,} members"
        return not self.stop_reason


def _mib(count: int) -> str:
    return f"{count >> 20:,} MiB"


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    @property
    def needs_input(self) -> bool: ...
    def decompress(self, data: bytes, max_length: int = ...) -> bytes: ...


class _Zlib:
    """zlib with the interface of bz2 and lzma: buffers pending input and output."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        piece = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(piece) < max_length and not self._inner.unconsumed_tail
        return piece


class _Zstd:
    """zstd with the same interface. It is fed small pieces, so its output buffer stays small."""

    needs_input = True

    def __init__(self) -> None:
        self._inner: Any = zstandard.ZstdDecompressor().decompressobj()

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return bytes(self._inner.decompress(data))


def _decoder(kind: str) -> _Decoder:
    match kind:
        case "gzip":
            return _Zlib(31)
        case "deflate":
            return _Zlib(-15)
        case "bzip2":
            return bz2.BZ2Decompressor()
        case "xz":
            return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_DECODER_BYTES)
    return _Zstd()


class DecompressedStream(PieceStream):
    """The decompressed content of a stream. Reads exactly the bytes from ``source`` that belong to it.

    ``single``: stop after the first compressed stream; otherwise the streams that follow are appended, as in
    ``cat a.gz b.gz``.
    """

    def __init__(
        self, kind: str, source: io.BufferedReader, budget: Budget, faults: list[str], single: bool = False
    ) -> None:
        self._kind, self._source, self._budget, self._faults, self._single = kind, source, budget, faults, single
        self._decoder: _Decoder | None = _decoder(kind)
        self.consumed_bytes = 0
        """Compressed bytes read so far."""
        self.produced_bytes = 0
        """Decompressed bytes returned so far."""

    def next_piece(self, limit: int) -> bytes:
        """Some decompressed bytes; empty at the end of the stream, regular or damaged."""
        while self._decoder is not None:
            try:
                piece = self._step(self._decoder, limit)
            except _ERRORS as error:
                self._fail(f"damaged {self._kind} data: {error}")
                return b""
            if piece:
                if not self._budget.count_bytes(len(piece)):
                    self._fail(self._budget.stop_reason)
                return piece
        return b""

    def _step(self, decoder: _Decoder, limit: int) -> bytes:
        if decoder.eof:
            self._decoder = None if self._single else self._next_decoder()
            return b""
        data = b""
        if decoder.needs_input:
            data = self._source.peek(1)[: _PIECE_BYTES.get(self._kind, 4 << 10)]
            if not data:
                self._fail(f"cut off: the {self._kind} data ends early")
                return b""
        piece = decoder.decompress(data, limit)
        used_bytes = len(data) - (len(decoder.unused_data) if decoder.eof else 0)
        self._source.read(used_bytes)
        self.consumed_bytes += used_bytes
        self.produced_bytes += len(piece)
        return piece

    def _next_decoder(self) -> _Decoder | None:
        """Skip padding and return the decoder of the next compressed stream; None at the end."""
        while (data := self._source.peek(1)) and not data.strip(b"\0"):
            self._source.read(len(data))
        start = data.lstrip(b"\0")
        self._source.read(len(data) - len(start))
        if any(magic.startswith(start[: len(magic)]) for magic in _MAGIC[self._kind] if start):
            return _decoder(self._kind)
        if start:
            self._faults.append(f"bytes after the end of the {self._kind} data ignored")
        return None

    def _fail(self, fault: str) -> None:
        self._decoder = None
        if fault not in self._faults:
            self._faults.append(fault)
