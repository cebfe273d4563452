"""How far each file was sent, saved in the agent's state folder so that a restarted agent continues there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trackside.agent.output.holders import Key
from trackside.agent.output.tail import Fingerprint
from trackside.agent.state import write_atomic

VERSION = 1
MAX_MARKS = 4096
MAX_AGE_S = 7 * 86400.0
"""Marks of files that were not written to for this long are dropped."""
MAX_FILE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """The position in one file. ``done``, ``sent``: offsets, see :class:`~trackside.agent.output.choosing.Policy`.
    ``labels``: labels of its lines, so that they stay one stream. ``at``: POSIX seconds when it last grew."""

    device: int
    inode: int
    done: int
    sent: int
    head: Fingerprint
    labels: tuple[tuple[str, str], ...]
    at: float

    @property
    def key(self) -> Key:
        """Device and inode."""
        return self.device, self.inode


@dataclass(frozen=True, slots=True)
class _MarksFile:
    version: int
    files: tuple[Mark, ...]


class Marks:
    """All marks. ``path`` None: they are not saved."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._marks: dict[Key, Mark] = {}
        self.warning = ""
        """What is wrong with the file, if anything."""
        if path is not None:
            self._marks = self._read(path)

    def get(self, key: Key) -> Mark | None:
        """The saved mark of a device and inode; the inode may have been reused by another file."""
        return self._marks.get(key)

    def put(self, marks: Iterable[Mark]) -> None:
        """Save these marks, replacing earlier ones. Raises OSError; they are kept in memory even then."""
        self._marks |= {mark.key: mark for mark in marks}
        if len(self._marks) > MAX_MARKS:
            newest = sorted(self._marks.values(), key=lambda mark: mark.at)[-MAX_MARKS // 2 :]
            self._marks = {mark.key: mark for mark in newest}
        if self._path is None:
            return
        write_atomic(self._path, msgspec.json.encode(_MarksFile(VERSION, tuple(self._marks.values()))))

    def _read(self, path: Path) -> dict[Key, Mark]:
        try:
            with open(path, "rb") as file:
                marks_file = msgspec.json.decode(file.read(MAX_FILE_BYTES), type=_MarksFile)
            if marks_file.version != VERSION:
                raise ValueError(f"version {marks_file.version}")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self.warning = f"{path} cannot be read ({error}): lines that were sent before may be sent again"
            return {}
        oldest = time.time() - MAX_AGE_S
        return {mark.key: mark for mark in marks_file.files if mark.at >= oldest}
