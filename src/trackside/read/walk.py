"""From the paths that a user gives to the sources in them: folders walked, archives opened in place.

Nothing is unpacked to disk, no link is followed out of the tree, and what an archive may expand to is bounded.
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
from trackside.read.archive import Member, escapes, is_tar, printable, shown, tar_members
from trackside.read.bundle import Damaged, Part, is_bundle, is_bundle_file, opened
from trackside.read.compression import Budget, Expanded, compression_of
from trackside.read.format import HEAD, Source
from trackside.read.transcode import Transcoded, encoding_of
from trackside.read.zip import holds_checkpoint, is_zip, zip_members

Found = Source | Input
"""A source to read, or the ``inputs`` row of something that can't be."""
Tick = Callable[[int], None]
"""Told how many more bytes of the files on disk are done; over a whole walk they sum up to the files' sizes."""


@dataclass(frozen=True, slots=True)
class _Path:
    path: str

    def __fspath__(self) -> str:
        return self.path


@dataclass(frozen=True, slots=True)
class Checked(_Path):
    """A path that is read only where ``check``, told the open file's descriptor, has nothing against it: between a look
    at a path and its opening, who may write to its folder can put another file there. Nobody gave it, so it is shown
    whole."""

    check: Callable[[int], str | None] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Given(_Path):
    """A file that was given itself; ``alone``: and nothing beside it."""

    alone: bool


DEPTH = 6
"""Layers of compression and archives, one in the other: a tar.gz of tar.gz files of gz logs has five."""
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_NOT_EVIDENCE = frozenset({".git", ".hg", ".svn", "__pycache__", "node_modules", "site-packages"})
"""Folders that hold programs and their history, by the thousand; what a run left behind is never in them."""


def walk(paths: Sequence[str | os.PathLike[str]], tick: Tick | None = None) -> Iterator[Found]:
    """Every source under the paths, in a stable order. Read each before taking the next."""
    seen: set[str] = set()
    for path, label in listed([path for path in paths if not isinstance(path, Checked)]):
        yield from _once(path, label, seen, tick)
    for checked in (path for path in paths if isinstance(path, Checked)):
        yield from _once(checked.path, checked.path, seen, tick, checked)


def listed(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[str | Input | Given, str]]:
    """Each file under the paths and what citations call it; in place of one that can't be read its row, without name.

    A file that was given itself, not with its folder, is a :class:`Given`.
    """
    for given, name in _named([Path(path) for path in paths]):
        if given.is_dir():
            for path, relative in _files(str(given), os.path.realpath(given)):
                yield path, "/".join(part for part in (name, relative) if part)
        else:
            yield Given(str(given), alone=len(paths) == 1), name or given.name


def _named(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Each given path and how it is shown: a lone folder as nothing, several by what tells them apart."""
    full = [os.path.abspath(path) for path in paths]
    if len(full) == 1:
        yield paths[0], "" if paths[0].is_dir() else os.path.basename(full[0])
        return
    common = os.path.commonpath([os.path.dirname(path) for path in full]) if full else ""
    for path, text in zip(paths, full, strict=True):
        yield path, shown(os.path.relpath(text, common))


def _files(given: str, root: str) -> Iterator[tuple[str | Input, str]]:
    """(path, path relative to the given folder) of each file: files of a folder first, then its folders."""
    pending = [(given, "")]
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
            inside = f"{relative}/{entry.name}" if relative else entry.name
            if entry.is_symlink():
                if (row := _link(entry.path, root)) is not None:
                    yield row, inside
            elif not entry.is_dir(follow_symlinks=False):
                yield entry.path, inside
            elif entry.name in _NOT_EVIDENCE:
                yield Input("", None, "refused", "not walked: programs or their history, not evidence"), inside
            elif _is_store(entry.path):
                yield Input("", None, "refused", "not walked: a store of Trackside's; give it as --store"), inside
            else:
                folders.append((entry.path, inside))
        pending.extend(reversed(folders))


def _is_store(path: str) -> bool:
    return all(os.path.exists(os.path.join(path, name)) for name in ("segments", "writer", "readers"))


def _link(path: str, root: str) -> Input | None:
    """The row of a link that can't be followed; None for one into the tree, whose target is read by its own name."""
    try:
        target = os.path.realpath(path, strict=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        return Input("", None, "unreadable", f"a link that leads nowhere: {reason or error}")
    if os.path.commonpath([target, root]) != root:
        return Input("", None, "refused", "a link out of the folder that was given; name its target to have it read")
    return None


def _once(
    path: str | Input | Given, label: str, seen: set[str], tick: Tick | None, checked: Checked | None = None
) -> Iterator[Found]:
    """A file's sources, unless it was read under another of the given paths; or a row under its label."""
    label = shown(label)
    if isinstance(path, Input):
        yield Input(label, None, path.status, path.note)
        return
    real = os.path.realpath(path)
    if real not in seen:
        seen.add(real)
        if isinstance(path, Given) and is_bundle_file(path):
            yield from _bundle(path, label, tick)
        else:
            yield from _file(real if checked is not None else os.fspath(path), label, tick, checked)


def _file(path: str, label: str, tick: Tick | None, checked: Checked | None) -> Iterator[Found]:
    try:
        # O_NONBLOCK: a FIFO put in the file's place between the two looks must not hang us.
        kind = stat.S_IFMT(os.stat(path).st_mode)
        if kind != stat.S_IFREG:
            yield Input(label, None, "refused", f"{_KINDS.get(kind, 'not a file')}: never opened")
            return
        flags = (
            os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (getattr(os, "O_NOFOLLOW", 0) if checked is not None else 0)
        )
        with os.fdopen(os.open(path, flags), "rb", buffering=0) as raw:
            status = os.fstat(raw.fileno())
            if not stat.S_ISREG(status.st_mode):
                yield Input(label, None, "refused", "not a file any more")
                return
            if checked is not None and (against := checked.check(raw.fileno())) is not None:
                yield Input(label, None, "refused", against)
                return
            faults: list[str] = []
            measured = Measured(raw, status.st_size, tick, faults)
            budget = Budget(measured.reached)
            stream = io.BufferedReader(measured, HEAD)
            source = Source(label, b"", stream, status.st_size, status.st_mtime, faults)
            yield from _layers(source, stream, budget, 0)
            measured.finish()
    except (OSError, ValueError) as error:
        note = error.strerror if isinstance(error, OSError) else None
        yield Input(label, None, "unreadable", note or str(error))


class Measured(io.RawIOBase):
    """A file on disk as it was when it was opened: what a running job appends meanwhile is left for later."""

    def __init__(self, raw: io.FileIO, size: int, tick: Tick | None, faults: list[str]) -> None:
        self._raw, self._size, self._tick, self._faults = raw, size, tick, faults
        self._position = self._furthest = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def reached(self) -> int:
        """How far into the file reading has come."""
        return self._furthest

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self._size - self._position)]
        try:
            count = (self._raw.readinto(view) or 0) if len(view) else 0
        except OSError as error:
            self._faults.append(f"reading stopped at byte {self._position:,}: {error.strerror or error}")
            return 0
        self._moved(self._position + count)
        return count

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._size
        self._raw.seek(min(offset, 1 << 62))
        self._moved(offset)
        return offset

    def tell(self) -> int:
        return self._position

    def finish(self) -> None:
        """Count what was not read as done."""
        self._moved(self._size)

    def _moved(self, position: int) -> None:
        self._position = position
        reached = min(position, self._size)
        if reached > self._furthest:
            if self._tick is not None:
                self._tick(reached - self._furthest)
            self._furthest = reached


def _layers(source: Source, stream: io.BufferedReader[Any], budget: Budget, depth: int) -> Iterator[Found]:
    """Take compression and archives off, one layer at a time. ``source`` has no head yet."""
    head = source.head = stream.peek(HEAD)[:HEAD]
    kind = compression_of(head)
    if is_bundle(head):
        note = "a bundle of Trackside's beside or in other evidence: to have it read, give it by its own path"
        yield Input(source.path, None, "refused", note)
    elif kind is None and not is_tar(head) and not is_zip(head):
        yield _text(source, stream)
    elif depth >= DEPTH:
        yield Input(source.path, None, "refused", f"archives nested more than {DEPTH} deep")
    elif kind is not None:
        inner = io.BufferedReader(Expanded(kind, stream, budget, source.faults), HEAD)
        source.stream, source.size = inner, None
        yield from _layers(source, inner, budget, depth + 1)
    elif holds_checkpoint(head):
        yield Input(source.path, None, "unrecognised", "a PyTorch checkpoint: no evidence in it, not opened")
    elif is_tar(head):
        yield from _members(source, tar_members(stream, source.faults), budget, depth)
    else:
        yield from _members(source, zip_members(stream, budget, source.faults), budget, depth)


def _members(archive: Source, members: Iterator[Member], budget: Budget, depth: int) -> Iterator[Found]:
    count, names = 0, set()
    for member in members:
        if not budget.member():
            break
        count += 1
        path = f"{archive.path}!{shown(member.name)}"
        if path in names:  # an archive may hold one name twice; citations must tell them apart
            path += f"#{count}"
        names.add(path)
        if member.stream is None or escapes(member.name):
            reason = member.refused or "its name leads out of the archive"
            yield Input(path, None, "refused", reason)
            continue
        source = Source(path, b"", member.stream, member.size, member.modified, member.faults)
        yield from _layers(source, member.stream, budget, depth + 1)
        if budget.stopped:
            break
    faults = list(dict.fromkeys([*archive.faults, budget.stopped] if budget.stopped else archive.faults))
    if faults:
        yield Input(archive.path, None, "partial" if count else "unreadable", "; ".join(faults))
    elif not count:
        yield Input(archive.path, None, "empty", "an archive without members")


def _bundle(given: Given, label: str, tick: Tick | None) -> Iterator[Found]:
    """What a bundle holds, under the names that its verdict's citations have; or the row of one that was changed."""
    try:
        with opened(given) as bundle:
            bundle.check(tick)
            yield from unpacked(bundle.inputs(), "" if given.alone else f"{label}!")
    except Damaged as error:
        note = f"a bundle that is not as it was written: {error}; to have it read all the same, unzip it"
        yield Input(label, None, "refused", note)


def unpacked(parts: Iterable[Part], before: str = "") -> Iterator[Found]:
    """The sources in a bundle's inputs, each path with ``before`` before it."""
    for part in parts:
        doc, path = part.doc, before + shown(part.doc.path)
        if part.stream is None:
            yield Input(path, None, doc.status or "refused", printable(doc.note), 0, doc.plane)
            continue
        size = part.size
        stream = io.BufferedReader(part.stream, HEAD)  # type: ignore[type-var]
        yield from _layers(Source(path, b"", stream, size, doc.modified), stream, Budget(lambda size=size: size), 0)  # type: ignore[misc]


def _text(source: Source, stream: io.BufferedReader[Any]) -> Source:
    """The innermost layer: text in UTF-16 or UTF-32, or with a byte-order mark, becomes plain UTF-8."""
    encoding = encoding_of(source.head)
    if encoding is not None:
        source.stream = stream = io.BufferedReader(Transcoded(stream, encoding), HEAD)
        source.head = stream.peek(HEAD)[:HEAD]
    else:
        source.stream = stream
    return source
