"""How far each file was sent, in a file of the agent's state: one that is started again goes on there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trackside.agent.output.holders import Key
from trackside.agent.output.tail import Fingerprint
from trackside.agent.state import remember

VERSION = 1
MOST = 4096
KEPT_S = 7 * 86400.0
"""A file that was not written to for so long is forgotten."""
MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Mark:
    """Of one file. ``done`` and ``sent``: see :class:`~trackside.agent.output.choosing.Policy`; ``labels``: those its
    lines were sent with, so that they stay one stream; ``at``: POSIX seconds when it last grew."""

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
class _Written:
    version: int
    files: tuple[Mark, ...]


class Marks:
    """All of them. ``path`` None: they are forgotten with the agent."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._marks: dict[Key, Mark] = {}
        self.warning = ""
        """What is wrong with the file, if anything."""
        if path is not None:
            self._marks = self._read(path)

    def get(self, key: Key) -> Mark | None:
        """The mark of a file that may be that of another one, which had its inode."""
        return self._marks.get(key)

    def put(self, marks: Iterable[Mark]) -> None:
        """Write these down, each in the place of the one before. Raises OSError; they hold in memory all the same."""
        self._marks |= {mark.key: mark for mark in marks}
        if len(self._marks) > MOST:
            newest = sorted(self._marks.values(), key=lambda mark: mark.at)[-MOST // 2 :]
            self._marks = {mark.key: mark for mark in newest}
        if self._path is None:
            return
        remember(self._path, msgspec.json.encode(_Written(VERSION, tuple(self._marks.values()))))

    def _read(self, path: Path) -> dict[Key, Mark]:
        try:
            with open(path, "rb") as file:
                told = msgspec.json.decode(file.read(MOST_BYTES), type=_Written)
            if told.version != VERSION:
                raise ValueError(f"version {told.version}")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:  # msgspec's are of the second kind
            self.warning = (
                f"{path} can't be read ({error}): what was sent of files before is not known; lines may be sent twice"
            )
            return {}
        oldest = time.time() - KEPT_S
        return {mark.key: mark for mark in told.files if mark.at >= oldest}
