"""Reads the files of received lines into the store. A file is always read as a whole, so it is read again only once it
has grown enough or has been idle for a while."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trackside.ingest import ingest_below
from trackside.stores.embedded.writer import Writer
from trackside.stores.receiver.lines import ROOT, line_files, line_files_in_store

GROWTH_RATIO = 1.5
"""A file is read again when it is this many times as large as at the last reading."""
QUIET_S = 60.0
"""A file whose last line has this age is read even if it has not grown enough."""
MAX_WAIT_S = 600.0
"""Maximum time that such a file waits after its last reading; younger files wait a twentieth of their age."""
SMALL_BYTES = 256 << 10
"""Reading a file of this size again costs almost nothing."""
BATCH_BYTES = 4 << 20
"""Bytes of files that are read together."""
_PART = re.compile(r"part-\d+/[^/]+|[^/]+")


@dataclass(slots=True)
class _FileState:
    """A file's state at its last reading. ``read_at``: POSIX seconds."""

    size: int
    read_at: float


class StoreLineFileReader:
    """Reads the files below a store's folder of received lines. Files in one folder belong together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._states: dict[str, _FileState] | None = None
        self._first_times: dict[str, float] = {}
        """Path -> when it first appeared."""

    def sizes(self) -> Mapping[str, int]:
        """Path -> size at which the file was read."""
        return {name: state.size for name, state in (self._states or {}).items()}

    def read(self, writer: Writer, read_all: bool, within_s: float) -> Sequence[str]:
        """Read files that are due, or all that changed; start none after ``within_s``. Returns the paths of the others.

        Raises StoreError.
        """
        end = time.monotonic() + within_s
        if self._states is None:
            in_store = line_files_in_store(writer.snapshot())
            self._states = {name: _FileState(size, read_at) for name, (size, read_at) in in_store.items()}
        by_folder: dict[str, dict[str, int]] = {}
        for name, size in self._due(self._states, read_all).items():
            match = _PART.match(name)
            folder = match[0] if match and match[0] != name else ""
            if folder.endswith(("nodes", "streams")):  # their files do not belong together
                folder = os.path.dirname(name)
            by_folder.setdefault(folder, {})[name] = size
        unread = [name for files in by_folder.values() for name in files]
        folders = sorted(
            by_folder.items()
        )  # before a verdict always in the same order, so that it cites the same lines
        if not read_all:
            folders.sort(key=lambda item: self._waiting_since(item[1]))
        for folder, files in folders:
            for names_in_batch in _batches(files):
                if time.monotonic() > end:
                    return unread
                names = [os.path.relpath(name, folder) if folder else name for name in names_in_batch]
                ingest_below(writer, str(self._folder / folder), names, f"{ROOT}/{folder}", folder)
                for name in names_in_batch:
                    self._states[name] = _FileState(files[name], time.time())
                unread = [name for name in unread if name not in names_in_batch]
        return unread

    def _waiting_since(self, names: Iterable[str]) -> float:
        """When the file that waits longest was last read, or first appeared: those that waited longest come first, so
        that a busy job cannot keep the others out."""
        states = self._states or {}
        return min(states[name].read_at if name in states else self._first_times[name] for name in names)

    def _due(self, states: Mapping[str, _FileState], read_all: bool) -> dict[str, int]:
        now, due = time.time(), {}
        for name, stat in line_files(self._folder):
            if not name.endswith(".log"):
                continue
            previous = states.get(name)
            first_time = self._first_times.setdefault(name, now)
            if previous is not None and previous.size == stat.st_size:
                continue
            if read_all or self._is_due(stat, previous, now, now - first_time):
                due[name] = stat.st_size
        return due

    def _is_due(self, stat: os.stat_result, previous: _FileState | None, now: float, age: float) -> bool:
        is_quiet = now - stat.st_mtime >= QUIET_S
        if previous is None:
            return is_quiet or stat.st_size > SMALL_BYTES
        if stat.st_size < SMALL_BYTES:
            return is_quiet
        has_waited = now - previous.read_at >= min(max(QUIET_S, age / 20), MAX_WAIT_S)
        return stat.st_size >= GROWTH_RATIO * previous.size or (is_quiet and has_waited)


def _batches(files: Mapping[str, int]) -> Iterator[list[str]]:
    """Files in order, in batches: each batch costs a commit."""
    batch: list[str] = []
    size = 0
    for name in sorted(files):
        batch.append(name)
        size += files[name]
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
