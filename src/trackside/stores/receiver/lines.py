"""Log lines that were sent, as files: one a stream and part, appended to exactly once.

    DIR/job-4242/slurm-4242.rank3@gpu-01.log      the stream's first part
    DIR/part-2/job-4242/slurm-4242...log          the next, once the first is large
    DIR/../undo.json                              how long each file was before the appends that are not committed yet

Files that are appended to no more are compressed (``.log.zst``), and old ones deleted; what was read from them stays in
the store.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zstandard

from trackside.stores.embedded.layout import Mark, StoreError, put, sync

PART_BYTES = 64 << 20
"""Size at which the next part of a stream is begun: what has grown is read again whole."""
TAIL_BYTES = 2 << 20
"""Of a file's end, in which a line is looked for that may have been sent before."""
OPEN = 4096
"""Streams of which is remembered what their ends hold."""
QUIET_S = 86400.0
"""Untouched for so long, a file is closed."""
_PART = re.compile(r"\Apart-\d+/")
Rows = list[tuple[int, str]]
"""Time in nanoseconds since 1970, and the text as it is to stand in the file: one line, or several that came as one."""


class _Undo(msgspec.Struct, frozen=True):
    """``until``: what a commit must name for the appends to hold; ``sizes``: by path, before them."""

    until: Mark
    sizes: dict[str, int]


@dataclass(slots=True)
class _Stream:
    """The part of a stream that is appended to. ``newest_ns``: of its lines, None where that isn't known any more;
    ``before``: the part before, where it was ended just now."""

    path: str
    size: int = 0
    newest_ns: int | None = None
    before: str = ""


class LineFiles:
    """The files of received lines in one store, for one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._undo = folder.parent / "undo.json"
        self._streams: OrderedDict[str, _Stream] = OrderedDict()
        self._parts: dict[str, int] = {}
        """Stream -> its last part, of those that have several."""
        self.bytes = 0
        """Of all files. Any thread may ask."""
        folder.mkdir(parents=True, exist_ok=True)

    def recover(self, committed: Mark) -> None:
        """Take back appends that no commit speaks of. Raises StoreError."""
        try:
            undo = msgspec.json.decode(self._undo.read_bytes(), type=_Undo)
        except FileNotFoundError:
            undo = None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"{self._undo} can't be read ({error}): delete it; the last lines may be there twice"
            ) from error
        if undo is not None and committed < undo.until:
            self._taken_back(undo)
        self._undo.unlink(missing_ok=True)
        for path in self.folder.glob("part-*"):
            self._find_parts(path)
        self._count()

    def _count(self) -> None:
        self.bytes = sum(stat.st_size for _, stat in self.files())

    def _find_parts(self, folder: Path) -> None:
        told = re.fullmatch(r"part-(\d{1,9})", folder.name)
        for path in folder.rglob("*") if told else ():
            if path.is_file():
                stream = str(path.relative_to(folder)).removesuffix(".zst")
                self._parts[stream] = max(self._parts.get(stream, 1), int(told[1]) if told else 1)

    def _taken_back(self, undo: _Undo) -> None:
        for name, size in undo.sizes.items():
            path = self.folder / name
            if size:
                os.truncate(path, size)
            else:
                path.unlink(missing_ok=True)

    # -- appending

    def append(self, streams: Mapping[str, Rows], until: Mark) -> int:
        """Append lines by stream and sync them; they hold once a commit names ``until``, see :meth:`hold`. Gives how
        many were there already.

        Raises OSError; then :meth:`take_back` before anything else.
        """
        fresh: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        repeated = 0
        for name, rows in streams.items():
            stream = self._stream(name)
            new = self._fresh(stream, rows)
            repeated += len(rows) - len(new)
            if new:
                fresh[name] = new
                sizes[stream.path] = stream.size
        if fresh:
            put(self._undo, self._undo.with_suffix(".new"), msgspec.json.encode(_Undo(until, sizes)))
        for name, lines in fresh.items():
            self._write(self._streams[name], "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return repeated

    def hold(self) -> None:
        """A commit names the appends."""
        self._undo.unlink(missing_ok=True)
        while len(self._streams) > OPEN:
            self._streams.popitem(last=False)

    def take_back(self) -> None:
        """Undo appends that could not be committed. Raises OSError."""
        self._streams.clear()
        if self._undo.exists():
            self._taken_back(msgspec.json.decode(self._undo.read_bytes(), type=_Undo))
            self._undo.unlink()
            self._count()

    def _stream(self, name: str) -> _Stream:
        known = self._streams.get(name)
        if known is None:
            known = self._streams[name] = self._found(name)
        self._streams.move_to_end(name)
        if known.size >= PART_BYTES:
            self._parts[name] = self._parts.get(name, 1) + 1
            known.path, known.size, known.before = _part(name, self._parts[name]), 0, known.path
        return known

    def _found(self, name: str) -> _Stream:
        """A stream as it lies on disk; of one that was compressed, the next part."""
        number = self._parts.get(name, 1)
        path = _part(name, number)
        if (self.folder / f"{path}.zst").exists() and not (self.folder / path).exists():
            number += 1
            self._parts[name] = number
            path = _part(name, number)
        try:
            size = os.stat(self.folder / path).st_size
        except FileNotFoundError:
            return _Stream(path, 0, 0)
        return _Stream(path, size)

    def _fresh(self, stream: _Stream, rows: Rows) -> list[str]:
        """What was not sent before. Later than all of its stream, a text is new; of others the file's end tells."""
        newest, end = stream.newest_ns, ""
        lines: set[str] = set()
        seen: set[tuple[int, str]] = set()
        found: list[str] = []
        for row in sorted(rows, key=lambda row: row[0]):
            if row in seen:
                continue
            seen.add(row)
            if newest is None or row[0] <= newest:
                if not end:
                    end = self._end(stream)
                    lines = set(end.split("\n"))
                if row[1] in lines or ("\n" in row[1] and f"\n{row[1]}\n" in end):
                    continue
            found.append(row[1])
        stream.newest_ns = max(newest or 0, *(time_ns for time_ns, _ in rows))
        return found

    def _end(self, stream: _Stream) -> str:
        """The end of a stream, from a line's end on; a part's beginning goes with the end of the one before."""
        data = self._end_of(stream.path)
        if stream.before and len(data) < TAIL_BYTES:
            data = self._end_of(stream.before) + data
        return "\n" + data.decode("utf-8", "replace")

    def _end_of(self, path: str) -> bytes:
        try:
            with open(self.folder / path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return file.read(TAIL_BYTES)
        except FileNotFoundError:
            return b""

    def _write(self, stream: _Stream, data: bytes) -> None:
        path = self.folder / stream.path
        if not stream.size:
            _make(path.parent, self.folder)
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        if not stream.size:
            sync(path.parent)
        stream.size += len(data)
        self.bytes += len(data)

    # -- age

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """All files with their paths below the folder, compressed ones too."""
        for top, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(top, name)
                try:
                    yield os.path.relpath(path, self.folder), os.stat(path)
                except FileNotFoundError:
                    continue

    def compress(self, read: Mapping[str, int], quiet_s: float) -> None:
        """Compress files of which no more is to come, those that were read as they are now. ``read``: path and size."""
        for name, stat in list(self.files()):
            if not name.endswith(".log"):
                continue
            if (self.folder / f"{name}.zst").exists():
                os.unlink(self.folder / f"{name}.zst")  # a crash came between the two
            stream = _PART.sub("", name)
            last = name == _part(stream, self._parts.get(stream, 1))
            if read.get(name) == stat.st_size and (not last or time.time() - stat.st_mtime > quiet_s):
                self._compressed(name)
                self._streams.pop(stream, None)

    def _compressed(self, name: str) -> None:
        plain, packed = self.folder / name, self.folder / f"{name}.zst"
        temporary = self.folder / f"{name}.new"
        with open(plain, "rb") as source, open(temporary, "wb") as target:
            zstandard.ZstdCompressor(level=6).copy_stream(source, target)
            target.flush()
            os.fsync(target.fileno())
        stat = os.stat(plain)
        os.utime(temporary, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.rename(temporary, packed)
        sync(packed.parent)
        os.unlink(plain)

    def forget(self, oldest_s: float | None, most_bytes: int) -> None:
        """Delete closed files untouched since ``oldest_s``, and the oldest ones beyond ``most_bytes``."""
        found = sorted(self.files(), key=lambda each: each[1].st_mtime)
        left = sum(stat.st_size for _, stat in found)
        for name, stat in found:
            aged = oldest_s is not None and stat.st_mtime < oldest_s
            if name.endswith(".zst") and (aged or left > most_bytes):
                os.unlink(self.folder / name)
                left -= stat.st_size
        self.bytes = left


def _part(name: str, number: int) -> str:
    return name if number == 1 else f"part-{number}/{name}"


def _make(folder: Path, top: Path) -> None:
    """Make a folder and those above it, each of them on disk."""
    if folder != top and not folder.is_dir():
        _make(folder.parent, top)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
