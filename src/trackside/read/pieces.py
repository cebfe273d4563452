"""Base class of streams that produce bytes in pieces of any size: decompressed, transcoded and decoded streams."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any


class PieceStream(io.RawIOBase, ABC):
    """A raw stream over :meth:`next_piece`; buffers what the reader has not consumed yet."""

    _buffer = b""

    @abstractmethod
    def next_piece(self, limit: int) -> bytes:
        """The next bytes, about ``limit`` if possible; empty at the end."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            piece = self._buffer or self.next_piece(len(view) - filled)
            if not piece:
                break
            part = piece[: len(view) - filled]
            self._buffer = piece[len(part) :]
            view[filled : filled + len(part)] = part
            filled += len(part)
        return filled


class ChunkStream(PieceStream):
    """A stream over an iterable of byte strings."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def next_piece(self, limit: int) -> bytes:
        return next(self._pieces, b"")
