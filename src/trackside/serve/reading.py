"""Files of received lines into the store: read whole again, and so only once they have grown enough, or fell silent."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackside.ingest import ingest_below
from trackside.stores.embedded.writer import Writer

ROOT = "received/logs"
"""What the store knows their folder by: a store may be moved."""
GROWN = 1.5
"""Times its size when it was last read, at which a file is read again."""
QUIET_S = 60.0
"""So long after its last line it is read in any case,"""
AGAIN_S = 600.0
"""but not again within a twentieth of the time since it began, at most this long."""
SMALL = 256 << 10
"""Up to so many bytes reading again costs next to nothing."""
BUNCH = 4 << 20
"""Bytes that are read together."""
_PART = re.compile(r"part-\d+/[^/]+|[^/]+")


@dataclass(slots=True)
class _Read:
    """How a file was when it was read. ``at``: when that was, POSIX seconds."""

    size: int
    at: float


class LineReader:
    """Reads what is below a store's folder of received lines. What lies in one folder there belongs together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._read: dict[str, _Read] | None = None
        self._met: dict[str, float] = {}
        """Path -> when it was first seen."""

    def sizes(self) -> Mapping[str, int]:
        """By path, the size at which each file was read."""
        return {name: each.size for name, each in (self._read or {}).items()}

    def read(self, writer: Writer, all_: bool, within_s: float) -> Sequence[str]:
        """Read files that are due, or all that have changed; begin none after that time. Gives the paths of those that
        are left. Raises StoreError.
        """
        end = time.monotonic() + within_s
        if self._read is None:
            self._read = self._known(writer)
        by_folder: dict[str, dict[str, int]] = {}
        for name, size in self._due(self._read, all_).items():
            found = _PART.match(name)
            folder = found[0] if found and found[0] != name else ""
            if folder.endswith(("nodes", "streams")):  # one of many that have nothing to do with each other
                folder = os.path.dirname(name)
            by_folder.setdefault(folder, {})[name] = size
        left = [name for files in by_folder.values() for name in files]
        for folder, files in sorted(by_folder.items()):
            for some in _bunches(files):
                if time.monotonic() > end:
                    return left
                names = [os.path.relpath(name, folder) if folder else name for name in some]
                ingest_below(writer, str(self._folder / folder), names, f"{ROOT}/{folder}", folder)
                for name in some:
                    self._read[name] = _Read(files[name], time.time())
                left = [name for name in left if name not in some]
        return left

    def _known(self, writer: Writer) -> dict[str, _Read]:
        """What the store says it has read."""
        snapshot = writer.snapshot()
        rows = snapshot.rows(
            f"SELECT root, label, bytes, read_at FROM {snapshot.table('inputs')} WHERE starts_with(root, ?)",
            [f"{ROOT}/"],
        )
        return {
            os.path.relpath(os.path.join(root, label), ROOT): _Read(size, read_at)
            for root, label, size, read_at in rows
        }

    def _due(self, read: Mapping[str, _Read], all_: bool) -> dict[str, int]:
        now, found = time.time(), {}
        for top, _, names in os.walk(self._folder):
            for leaf in names:
                if not leaf.endswith(".log"):
                    continue
                path = os.path.join(top, leaf)
                name = os.path.relpath(path, self._folder)
                stat = os.stat(path)
                before = read.get(name)
                met = self._met.setdefault(name, now)
                if before is not None and before.size == stat.st_size:
                    continue
                if all_ or self._is_due(stat, before, now, now - met):
                    found[name] = stat.st_size
        return found

    def _is_due(self, stat: os.stat_result, before: _Read | None, now: float, age: float) -> bool:
        quiet = now - stat.st_mtime >= QUIET_S
        if before is None:
            return quiet or stat.st_size > SMALL
        if stat.st_size < SMALL:
            return quiet
        rested = now - before.at >= min(max(QUIET_S, age / 20), AGAIN_S)
        return stat.st_size >= GROWN * before.size or (quiet and rested)


def _bunches(files: Mapping[str, int]) -> Iterator[list[str]]:
    """Files in order, some at a time: each time costs a commit."""
    bunch: list[str] = []
    size = 0
    for name in sorted(files):
        bunch.append(name)
        size += files[name]
        if size >= BUNCH:
            yield bunch
            bunch, size = [], 0
    if bunch:
        yield bunch
