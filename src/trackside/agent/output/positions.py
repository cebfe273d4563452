"""How far each file was sent, saved in the agent's state folder so that a restarted agent continues there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trackside.agent.output.holders import Key
from trackside.agent.output.tail import Fingerprint
from trackside.agent.state import replace_file

VERSION = 1
MAX_POSITIONS = 4096
MAX_AGE_S = 7 * 86400.0
"""Positions in files that were not written to for this long are dropped."""
MAX_FILE_BYTES = 8 << 20


class FilePosition(msgspec.Struct, frozen=True, rename={"read_to": "done", "sent_to": "sent", "grew_time": "at"}):
    """The position in one file. ``read_to``, ``sent_to``: offsets, see
    :class:`~trackside.agent.output.line_policy.Policy`. ``labels``: labels of its lines, so that they stay one stream.
    ``grew_time``: POSIX seconds when it last grew."""

    device: int
    inode: int
    read_to: int
    sent_to: int
    head: Fingerprint
    labels: tuple[tuple[str, str], ...]
    grew_time: float

    @property
    def key(self) -> Key:
        """Device and inode."""
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class _PositionsFile:
    version: int
    files: tuple[FilePosition, ...]


class SavedPositions:
    """The positions in all files. ``path`` None: they are not saved."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._positions: dict[Key, FilePosition] = {}
        self.warning = ""
        """What is wrong with the file, if anything."""
        if path is not None:
            self._positions = self._read(path)

    def get(self, key: Key) -> FilePosition | None:
        """The saved position of a device and inode; the inode may have been reused by another file."""
        return self._positions.get(key)

    def put(self, positions: Iterable[FilePosition]) -> None:
        """Save these positions, replacing earlier ones. Raises OSError; they are kept in memory even then."""
        self._positions |= {position.key: position for position in positions}
        if len(self._positions) > MAX_POSITIONS:
            newest = sorted(self._positions.values(), key=lambda position: position.grew_time)[-MAX_POSITIONS // 2 :]
            self._positions = {position.key: position for position in newest}
        if self._path is None:
            return
        replace_file(self._path, msgspec.json.encode(_PositionsFile(VERSION, tuple(self._positions.values()))))

    def _read(self, path: Path) -> dict[Key, FilePosition]:
        try:
            with open(path, "rb") as file:
                positions_file = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_PositionsFile)
            if positions_file.version != VERSION:
                raise ValueError(f"version {positions_file.version}")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self.warning = f"{path} cannot be read ({error}): lines that were sent before may be sent again"
            return {}
        oldest = time.time() - MAX_AGE_S
        return {position.key: position for position in positions_file.files if position.grew_time >= oldest}
