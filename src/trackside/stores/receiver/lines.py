"""Stores pushed log lines as files: one per stream and part, each line appended exactly once.

    DIR/job-4242/slurm-4242.rank3@gpu-01.log      the stream's first part
    DIR/part-2/job-4242/slurm-4242...log          the next, once the first is large
    DIR/../undo.json                              size of each file before the appends that are not committed yet

Closed files are compressed (``.log.zst``), and old ones deleted; what was read from them stays in the store.
"""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from pathlib import Path

import msgspec
import zstandard

from trackside.errors import StoreError
from trackside.stores.embedded.layout import LogPosition, sync, write_atomically
from trackside.stores.embedded.snapshot import Snapshot

ROOT = "received/logs"
"""Folder of the received lines, relative to the store, because a store may be moved."""
MAX_PART_BYTES = 64 << 20
"""Size at which the next part of a stream begins: a file that has grown is read again completely."""
TAIL_BYTES = 2 << 20
"""Bytes at the end of a file that are searched for lines that were sent before."""
MAX_OPEN_STREAMS = 4096
"""Streams whose state is cached."""
CLOSE_AFTER_S = 86400.0
"""A file is closed after being unchanged for so many seconds."""
_PART = re.compile(r"\Apart-\d+/")
StampedLines = list[tuple[int, str]]
"""Time in nanoseconds since 1970, and the text as written to the file: one line, or several that came as one."""


class _Undo(msgspec.Struct, frozen=True):
    """``until``: the log position that a commit must reach for the appends to count; ``sizes``: path -> size before
    them."""

    until: LogPosition
    sizes: dict[str, int]


@dataclass(slots=True)
class _Stream:
    """The part of a stream that is appended to. ``newest_ns``: time of its newest line, None if unknown; ``before``:
    the previous part, if it was just closed."""

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
        """Stream -> its last part, for streams that have several."""
        self.bytes = 0
        """Total size of all files. Any thread may read it."""
        folder.mkdir(parents=True, exist_ok=True)

    def recover(self, committed: LogPosition) -> None:
        """Undo appends that no commit covers. Raises StoreError."""
        try:
            undo = msgspec.json.decode(self._undo.read_bytes(), type=_Undo)
        except FileNotFoundError:
            undo = None
        except (OSError, msgspec.MsgspecError) as error:
            raise StoreError(
                f"{self._undo} cannot be read ({error}): delete it; the last lines may then be stored twice"
            ) from error
        if undo is not None and committed < undo.until:
            self._restore_sizes(undo)
        self._undo.unlink(missing_ok=True)
        for path in self.folder.glob("part-*"):
            self._find_parts(path)
        self._count()

    def _count(self) -> None:
        self.bytes = sum(stat.st_size for _, stat in line_files(self.folder))

    def _find_parts(self, folder: Path) -> None:
        match = re.fullmatch(r"part-(\d{1,9})", folder.name)
        for path in folder.rglob("*") if match else ():
            if path.is_file():
                stream = str(path.relative_to(folder)).removesuffix(".zst")
                self._parts[stream] = max(self._parts.get(stream, 1), int(match[1]) if match else 1)

    def _restore_sizes(self, undo: _Undo) -> None:
        for name, size in undo.sizes.items():
            path = self.folder / name
            if size:
                os.truncate(path, size)
            else:
                path.unlink(missing_ok=True)

    # -- appending

    def append(self, streams: Mapping[str, StampedLines], until: LogPosition) -> int:
        """Append lines by stream and sync them; they count once a commit reaches ``until``, see :meth:`confirm`.
        Returns how many lines were there already.

        Raises OSError; then call :meth:`roll_back` before anything else.
        """
        new_lines: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        repeated = 0
        for name, rows in streams.items():
            stream = self._stream(name)
            new = self._new_lines(stream, rows)
            repeated += len(rows) - len(new)
            if new:
                new_lines[name] = new
                sizes[stream.path] = stream.size
        if new_lines:
            write_atomically(self._undo, self._undo.with_suffix(".new"), msgspec.json.encode(_Undo(until, sizes)))
        for name, lines in new_lines.items():
            self._write(self._streams[name], "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
        return repeated

    def confirm(self) -> None:
        """Drop the undo record: a commit covers the appends."""
        self._undo.unlink(missing_ok=True)
        while len(self._streams) > MAX_OPEN_STREAMS:
            self._streams.popitem(last=False)

    def roll_back(self) -> None:
        """Undo appends that could not be committed. Raises OSError."""
        self._streams.clear()
        if self._undo.exists():
            self._restore_sizes(msgspec.json.decode(self._undo.read_bytes(), type=_Undo))
            self._undo.unlink()
            self._count()

    def _stream(self, name: str) -> _Stream:
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = self._open_stream(name)
        self._streams.move_to_end(name)
        if stream.size >= MAX_PART_BYTES:
            self._parts[name] = self._parts.get(name, 1) + 1
            stream.path, stream.size, stream.before = _part_path(name, self._parts[name]), 0, stream.path
        return stream

    def _open_stream(self, name: str) -> _Stream:
        """A stream's state on disk; for one that was compressed, its next part."""
        number = self._parts.get(name, 1)
        path = _part_path(name, number)
        if (self.folder / f"{path}.zst").exists() and not (self.folder / path).exists():
            number += 1
            self._parts[name] = number
            path = _part_path(name, number)
        try:
            size = os.stat(self.folder / path).st_size
        except FileNotFoundError:
            return _Stream(path, 0, 0)
        return _Stream(path, size)

    def _new_lines(self, stream: _Stream, rows: StampedLines) -> list[str]:
        """The lines that were not sent before. A line later than all of its stream is new; for others the end of the
        file is searched."""
        newest, tail = stream.newest_ns, ""
        lines: set[str] = set()
        checked: set[tuple[int, str]] = set()
        new_lines: list[str] = []
        for row in sorted(rows, key=lambda row: row[0]):
            if row in checked:
                continue
            checked.add(row)
            if newest is None or row[0] <= newest:
                if not tail:
                    tail = self._tail(stream)
                    lines = set(tail.split("\n"))
                if row[1] in lines or ("\n" in row[1] and f"\n{row[1]}\n" in tail):
                    continue
            new_lines.append(row[1])
        stream.newest_ns = max(newest or 0, *(time_ns for time_ns, _ in rows))
        return new_lines

    def _tail(self, stream: _Stream) -> str:
        """The end of a stream, from the start of a line; the end of the previous part is included at the start of a new
        one."""
        data = self._tail_of(stream.path)
        if stream.before and len(data) < TAIL_BYTES:
            data = self._tail_of(stream.before) + data
        return "\n" + data.decode("utf-8", "replace")

    def _tail_of(self, path: str) -> bytes:
        try:
            with open(self.folder / path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
                return file.read(TAIL_BYTES)
        except FileNotFoundError:
            return b""

    def _write(self, stream: _Stream, data: bytes) -> None:
        path = self.folder / stream.path
        if not stream.size:
            _make_folder(path.parent, self.folder)
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        if not stream.size:
            sync(path.parent)
        stream.size += len(data)
        self.bytes += len(data)

    # -- age

    def compress(self, read: Mapping[str, int], quiet_s: float) -> None:
        """Compress files that are closed and were read at their current size. ``read``: path -> size."""
        for name, stat in list(line_files(self.folder)):
            if not name.endswith(".log"):
                continue
            if (self.folder / f"{name}.zst").exists():
                os.unlink(self.folder / f"{name}.zst")  # left by a crash between the two steps
            stream = _PART.sub("", name)
            is_last = name == _part_path(stream, self._parts.get(stream, 1))
            if read.get(name) == stat.st_size and (not is_last or time.time() - stat.st_mtime > quiet_s):
                self._compress_file(name)
                self._streams.pop(stream, None)

    def _compress_file(self, name: str) -> None:
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

    def delete_old_files(self, oldest_s: float | None, max_bytes: int) -> None:
        """Delete closed files unchanged since ``oldest_s``; beyond ``max_bytes``, the oldest ones of the job that has
        most, so that one job's output does not push out everybody's."""
        total_bytes = 0
        bytes_by_job: dict[str, int] = {}
        closed: dict[str, list[tuple[float, str, int]]] = {}
        for name, stat in line_files(self.folder):
            is_closed = name.endswith(".zst")
            if is_closed and oldest_s is not None and stat.st_mtime < oldest_s:
                os.unlink(self.folder / name)
                continue
            job = _PART.sub("", name).partition("/")[0]
            total_bytes += stat.st_size
            bytes_by_job[job] = bytes_by_job.get(job, 0) + stat.st_size
            if is_closed:
                closed.setdefault(job, []).append((stat.st_mtime, name, stat.st_size))
        for files in closed.values():
            files.sort(reverse=True)
        largest = [(-bytes_by_job[job], job) for job in closed]
        heapify(largest)
        while total_bytes > max_bytes and largest:
            negative_bytes, job = heappop(largest)
            _, name, size = closed[job].pop()
            os.unlink(self.folder / name)
            total_bytes -= size
            if closed[job]:
                heappush(largest, (negative_bytes + size, job))
        self.bytes = total_bytes


def line_files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """All files of lines with their paths below the folder, including compressed ones."""
    for top, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(top, name)
            try:
                yield os.path.relpath(path, folder), os.stat(path)
            except FileNotFoundError:
                continue


def line_files_in_store(snapshot: Snapshot) -> dict[str, tuple[int, float]]:
    """Path of each file of lines that the store has read -> its size then, and when, POSIX seconds; without files of
    which the store lost rows, so that they are read again."""
    lost = ", ".join(map(str, snapshot.manifest.incomplete)) or "NULL"
    rows = snapshot.rows(
        f"SELECT root, label, bytes, read_at FROM {snapshot.table('inputs')}"
        f" WHERE starts_with(root, ?) AND coalesce(input NOT IN ({lost}), true)",
        [f"{ROOT}/"],
    )
    return {os.path.relpath(os.path.join(root, label), ROOT): (size, read_at) for root, label, size, read_at in rows}


def _part_path(name: str, number: int) -> str:
    return name if number == 1 else f"part-{number}/{name}"


def _make_folder(folder: Path, root: Path) -> None:
    """Make a folder and its parents, and sync each to disk."""
    if folder != root and not folder.is_dir():
        _make_folder(folder.parent, root)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
