"""A byte stream out of pieces of any size: what decompressed, transcoded and decoded streams share."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any


class Pieces(io.RawIOBase):
    """Gives on what :meth:`next_piece` makes; what a reader doesn't take yet is held."""

    _held = b""

    def next_piece(self, limit: int) -> bytes:
        """Some more bytes, about ``limit`` where that can be had; none at the end."""
        raise NotImplementedError

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            piece = self._held or self.next_piece(len(view) - filled)
            if not piece:
                break
            part = piece[: len(view) - filled]
            self._held = piece[len(part) :]
            view[filled : filled + len(part)] = part
            filled += len(part)
        return filled


class Joined(Pieces):
    """Pieces that somebody else makes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = filter(None, pieces)

    def next_piece(self, limit: int) -> bytes:
        return next(self._pieces, b"")
