"""Finds the sources under the paths that a user gives: walks folders, opens archives in place.

Nothing is unpacked to disk, no link is followed out of the folder, and the expanded size of archives is limited.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside.model import Input
from trackside.read.archive import Member, escapes, is_tar, printable, printable_name, tar_members
from trackside.read.bundle import BundlePart, DamagedBundle, ProgressCallback, is_bundle, is_bundle_file, open_bundle
from trackside.read.compression import Budget, DecompressedStream, compression_of
from trackside.read.format import HEAD_BYTES, InputSource
from trackside.read.transcode import Utf8Stream, encoding_of
from trackside.read.zip import holds_checkpoint, is_zip, zip_members

WalkItem = InputSource | Input
"""A source to read, or the ``inputs`` row of a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class _Path:
    path: str

    def __fspath__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class GuardedPath(_Path):
    """A path that is read only if ``check``, called with the descriptor of the opened file, returns None instead of a
    reason to refuse it. Checking the path alone is not enough: whoever may write to its folder can replace the file
    before it is opened. The user did not name this path, so it is shown in full."""

    check: Callable[[int], str | None] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ExplicitFile(_Path):
    """A file that the user named, rather than its folder. ``alone``: it is the only path."""

    alone: bool


MAX_DEPTH = 6
"""Maximum number of nested layers of compression and archives: a tar.gz of tar.gz files of gz logs has five."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_NOT_EVIDENCE = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", "site-packages"})
"""Folders with thousands of program files; they never hold the output of a run."""


def walk(paths: Sequence[str | os.PathLike[str]], on_progress: ProgressCallback | None = None) -> Iterator[WalkItem]:
    """Yield every source under the paths in a stable order. Read each before taking the next."""
    seen_paths: set[str] = set()
    for path, label in list_files([path for path in paths if not isinstance(path, GuardedPath)]):
        yield from _read_once(path, label, seen_paths, on_progress)
    for guarded in (path for path in paths if isinstance(path, GuardedPath)):
        yield from _read_once(guarded.path, guarded.path, seen_paths, on_progress, guarded)


def list_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str | Input | ExplicitFile, str]]:
    """Yield each file under the paths with its name in citations. A file that cannot be read is yielded as its
    ``inputs`` row, whose path is empty.

    A file that the user named is an :class:`ExplicitFile`.
    """
    for root, display_name in _display_names([Path(path) for path in paths]):
        if root.is_dir():
            for path, relative in _files(str(root), os.path.realpath(root)):
                yield path, "/".join(part for part in (display_name, relative) if part)
        else:
            yield ExplicitFile(str(root), alone=len(paths) == 1), display_name or root.name


def _display_names(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield each path with its display name: empty for a single folder; several paths relative to their common
    folder."""
    absolute_paths = [os.path.abspath(path) for path in paths]
    if len(absolute_paths) == 1:
        yield paths[0], "" if paths[0].is_dir() else os.path.basename(absolute_paths[0])
        return
    common = os.path.commonpath([os.path.dirname(path) for path in absolute_paths]) if absolute_paths else ""
    for path, absolute in zip(paths, absolute_paths, strict=True):
        yield path, printable_name(os.path.relpath(absolute, common))


def _files(root_path: str, real_root: str) -> Iterator[tuple[str | Input, str]]:
    """Yield (path, path relative to the root folder) of each file: first the files of a folder, then its folders."""
    pending = [(root_path, "")]
    while pending:
        folder, relative = pending.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            yield Input("", None, "unreadable", f"folder: {error.strerror or error}"), relative
            continue
        folders = []
        for entry in entries:
            inner_path = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_symlink():
                if (row := _link(entry.path, real_root)) is not None:
                    yield row, inner_path
            elif not entry.is_dir(follow_symlinks=False):
                yield entry.path, inner_path
            elif entry.name in _NOT_EVIDENCE:
                yield Input("", None, "refused", "skipped: programs or version history, not evidence"), inner_path
            elif _is_store(entry.path):
                yield Input("", None, "refused", "skipped: a Trackside store; pass it with --store"), inner_path
            else:
                folders.append((entry.path, inner_path))
        pending.extend(reversed(folders))


def _is_store(path: str) -> bool:
    return all(os.path.exists(os.path.join(path, name)) for name in ("segments", "writer", "readers"))


def _link(path: str, root: str) -> Input | None:
    """The row of a link that cannot be followed; None for a link within the folder, whose target is read by its own
    name."""
    try:
        target = os.path.realpath(path, strict=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Input("", None, "unreadable", f"a broken link: {reason or error}")
    if os.path.commonpath([target, root]) != root:
        return Input("", None, "refused", "a link out of the folder; pass its target as a path to read it")
    return None


def _read_once(
    path: str | Input | ExplicitFile,
    label: str,
    seen_paths: set[str],
    on_progress: ProgressCallback | None,
    guarded: GuardedPath | None = None,
) -> Iterator[WalkItem]:
    """Yield a file's sources, unless it was already read under another path; or the row, under its label."""
    label = printable_name(label)
    if isinstance(path, Input):
        yield Input(label, None, path.status, path.note)
        return
    real = os.path.realpath(path)
    if real not in seen_paths:
        seen_paths.add(real)
        if isinstance(path, ExplicitFile) and is_bundle_file(path):
            yield from _bundle(path, label, on_progress)
        else:
            yield from _file(real if guarded is not None else os.fspath(path), label, on_progress, guarded)


def _file(
    path: str, label: str, on_progress: ProgressCallback | None, guarded: GuardedPath | None
) -> Iterator[WalkItem]:
    try:
        # O_NONBLOCK: a FIFO that replaces the file between stat and open must not block.
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind != stat.S_IFREG:
            yield Input(label, None, "refused", f"{_KINDS.get(kind, 'not a file')}: not opened")
            return
        flags = (
            os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (getattr(os, "O_NOFOLLOW", 0) if guarded is not None else 0)
        )
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as raw:
            file_stat = os.fstat(raw.fileno())
            if not stat.S_ISREG(file_stat.st_mode):
                yield Input(label, None, "refused", "no longer a file")
                return
            if guarded is not None and (refusal := guarded.check(raw.fileno())) is not None:
                yield Input(label, None, "refused", refusal)
                return
            faults: list[str] = []
            snapshot = SnapshotFile(raw, file_stat.st_size, on_progress, faults)
            budget = Budget(snapshot.bytes_read)
            stream = io.BufferedReader(snapshot, HEAD_BYTES)
            source = InputSource(label, b"", stream, file_stat.st_size, file_stat.st_mtime, faults)
            yield from _unwrap(source, stream, budget, 0)
            snapshot.finish()
    except (OSError, ValueError) as error:
        note = error.strerror if isinstance(error, OSError) else None
        yield Input(label, None, "unreadable", note or str(error))


class SnapshotFile(io.RawIOBase):
    """A file on disk up to its size when it was opened: what a running job appends later is not read."""

    def __init__(self, raw: io.FileIO, size: int, on_progress: ProgressCallback | None, faults: list[str]) -> None:
        self._raw, self._size, self._on_progress, self._faults = raw, size, on_progress, faults
        self._position = self._furthest = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def bytes_read(self) -> int:
        """The furthest offset read so far."""
        return self._furthest

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        try:
            count = (self._raw.readinto(view) or 0) if len(view) else 0
        except OSError as error:
            self._faults.append(f"reading stopped at byte {self._position:,}: {error.strerror or error}")
            return 0
        self._report_progress(self._position + count)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._size
        self._raw.seek(min(offset, 1 << 62))
        self._report_progress(offset)
        return offset

    def tell(self) -> int:
        return self._position

    def finish(self) -> None:
        """Report the part that was not read as done."""
        self._report_progress(self._size)

    def _report_progress(self, position: int) -> None:
        self._position = position
        bytes_read = min(position, self._size)
        if bytes_read > self._furthest:
            if self._on_progress is not None:
                self._on_progress(bytes_read - self._furthest)
            self._furthest = bytes_read


def _unwrap(source: InputSource, stream: io.BufferedReader[Any], budget: Budget, depth: int) -> Iterator[WalkItem]:
    """Remove compression and archives, one layer at a time. ``source`` has no head yet."""
    head = source.head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    kind = compression_of(head)
    if is_bundle(head):
        note = "a Trackside bundle among other evidence; pass its own path to read it"
        yield Input(source.path, None, "refused", note)
    elif kind is None and not is_tar(head) and not is_zip(head):
        yield _text(source, stream)
    elif depth >= MAX_DEPTH:
        yield Input(source.path, None, "refused", f"archives nested more than {MAX_DEPTH} deep")
    elif kind is not None:
        inner = io.BufferedReader(DecompressedStream(kind, stream, budget, source.faults), HEAD_BYTES)
        source.stream, source.size = inner, None
        yield from _unwrap(source, inner, budget, depth + 1)
    elif holds_checkpoint(head):
        yield Input(source.path, None, "unrecognised", "a PyTorch checkpoint, which holds no evidence; not opened")
    elif is_tar(head):
        yield from _members(source, tar_members(stream, source.faults), budget, depth)
    else:
        yield from _members(source, zip_members(stream, budget, source.faults), budget, depth)


def _members(archive: InputSource, members: Iterator[Member], budget: Budget, depth: int) -> Iterator[WalkItem]:
    count, names = 0, set()
    for member in members:
        if not budget.count_member():
            break
        count += 1
        path = f"{archive.path}!{printable_name(member.name)}"
        if path in names:  # an archive may hold a name twice; citations must distinguish them
            path += f"#{count}"
        names.add(path)
        if member.stream is None or escapes(member.name):
            reason = member.refusal or "its name points outside the archive"
            yield Input(path, None, "refused", reason)
            continue
        source = InputSource(path, b"", member.stream, member.size, member.modified, member.faults)
        yield from _unwrap(source, member.stream, budget, depth + 1)
        if budget.stop_reason:
            break
    faults = list(dict.fromkeys([*archive.faults, budget.stop_reason] if budget.stop_reason else archive.faults))
    if faults:
        yield Input(archive.path, None, "partial" if count else "unreadable", "; ".join(faults))
    elif not count:
        yield Input(archive.path, None, "empty", "an archive without members")


def _bundle(file: ExplicitFile, label: str, on_progress: ProgressCallback | None) -> Iterator[WalkItem]:
    """Yield the inputs of a bundle under the names that its verdict cites; or the row of a bundle that was changed."""
    try:
        with open_bundle(file) as bundle:
            bundle.check(on_progress)
            yield from bundle_sources(bundle.inputs(), "" if file.alone else f"{label}!")
    except DamagedBundle as error:
        note = f"a bundle that was changed after it was written: {error}; unzip it to read its files anyway"
        yield Input(label, None, "refused", note)


def bundle_sources(parts: Iterable[BundlePart], prefix: str = "") -> Iterator[WalkItem]:
    """Yield the sources in a bundle's inputs; each path starts with ``prefix``."""
    for part in parts:
        doc, path = part.doc, prefix + printable_name(part.doc.path)
        if part.stream is None:
            yield Input(path, None, doc.status or "refused", printable(doc.note), 0, doc.plane)
            continue
        size = part.size
        stream = io.BufferedReader(part.stream, HEAD_BYTES)  # type: ignore[type-var]
        source = InputSource(path, b"", stream, size, doc.modified)
        yield from _unwrap(source, stream, Budget(lambda size=size: size), 0)  # type: ignore[misc]


def _text(source: InputSource, stream: io.BufferedReader[Any]) -> InputSource:
    """The innermost layer: text in UTF-16 or UTF-32, or with a byte-order mark, is converted to plain UTF-8."""
    encoding = encoding_of(source.head)
    if encoding is not None:
        source.stream = stream = io.BufferedReader(Utf8Stream(stream, encoding), HEAD_BYTES)
        source.head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    else:
        source.stream = stream
    return source
