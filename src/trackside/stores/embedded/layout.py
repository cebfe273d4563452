"""The directory of a store: its segments, a single writer at a time, and atomic commits.

    DIR/manifest-00000042.json    names the segments; the highest number is current, and the one before it is kept
    DIR/segments/*.parquet        never changed once a manifest names them
    DIR/writer                    locked by the writer; holds its process id
    DIR/readers                   locked, shared, by each reader
    DIR/damaged/                  segments that were not as they were written, taken out by a repair
    DIR/verdicts.db               the receiver's verdicts, unless its settings name another archive
    DIR/received/                 pushed data: a write-ahead log, and log lines as files

A commit first writes and syncs new segments, then the next manifest, which is synced and renamed into place. Until the
rename nobody sees the new segments, and if the writer dies, the next one deletes them. Segments that no kept manifest
names are deleted when nobody reads.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
import zlib
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from trackside.errors import StoreError
from trackside.stores.embedded.migrations import MIGRATIONS

VERSION = len(MIGRATIONS) + 1
"""Version of the manifest and segment formats."""
ARCHIVE_NAME = "verdicts.db"
"""The verdict archive of a receiver whose settings name no other one."""
MANIFEST_KEPT_S = 86400.0
"""How long an old manifest is kept while there are readers that may use it."""
_MANIFEST = re.compile(r"manifest-(\d{8})\.json")
_CHECKSUM = re.compile(rb'\{\n "checksum": "([0-9a-f]{8})",\n')
"""The start of a manifest; one of an earlier version has no checksum."""


class StoreBusy(StoreError):
    """Another process writes to the store."""


class StoreDamaged(StoreError):
    """A segment is not as it was written."""


class TableSegment(msgspec.Struct, frozen=True):
    """One Parquet file. ``name`` is relative to the segments' folder, or absolute if it lies in another store."""

    table: str
    name: str
    rows: int
    bytes: int
    inputs: tuple[int, int]
    """Smallest and largest id of the inputs in it."""
    times_ms: tuple[int, int] | None = None
    """Times of the earliest and latest sample in it."""
    level: int = 0
    """0 as ingested; 1 as written by a compaction: one day's samples, sorted together."""
    checksums: tuple[int, ...] = ()
    """CRC-32 of each of its blocks (:mod:`trackside.stores.embedded.checksums`); empty if an earlier version wrote it
    and no compaction has added them."""


class LogPosition(msgspec.Struct, frozen=True, order=True):
    """A position in the write-ahead log: the number of a file and an offset in it."""

    file: int = 0
    offset: int = 0


class ReceivedState(msgspec.Struct, frozen=True):
    """State of what was pushed to the store: see :mod:`trackside.stores.receiver.intake`."""

    mark: LogPosition = LogPosition()
    """The write-ahead log is in segments up to this position."""
    factors: dict[str, float] = {}
    """Foreign name -> unit factor derived from the size of its values."""
    since: dict[str, float] = {}
    """Foreign name without a factor -> when its first value was written, POSIX seconds."""


class StoreManifest(msgspec.Struct, frozen=True):
    """What a store holds at one moment."""

    version: int = VERSION
    generation: int = 0
    segments: tuple[TableSegment, ...] = ()
    dead: tuple[int, ...] = ()
    """Inputs whose rows no longer count: a later reading of the same file replaced them."""
    incomplete: tuple[int, ...] = ()
    """Inputs that lost rows with a damaged segment: if they are given again, they are read again."""
    next_input: int = 1
    next_series: int = 1
    received: ReceivedState = ReceivedState()

    def of(self, table: str) -> list[TableSegment]:
        """A table's segments, in the order in which they were written."""
        return [segment for segment in self.segments if segment.table == table]


def not_a_store_message(path: str | os.PathLike[str]) -> str:
    """The error for a path that is not a store: one line."""
    name = os.fspath(path)
    if not os.path.lexists(path):
        return f"{name} is not a store: no such folder"
    return (
        f"{name} is not a Trackside store; if it holds a run's files, give it as PATH: 'trackside diagnose {name}';"
        " to make a store, ingest into a new folder"
    )


class Directory:
    """A store's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.segments = self.path / "segments"
        self.damaged = self.path / "damaged"

    def file(self, segment: TableSegment) -> str:
        """Path of a segment."""
        return str(self.segments / segment.name)

    @property
    def exists(self) -> bool:
        """Whether this folder is a store, or its creation was interrupted."""
        return self.segments.is_dir() and (self.path / "writer").exists()

    def create(self) -> None:
        """Make an empty store. Raises StoreError if the folder holds other files."""
        try:
            if not self.exists:
                self.path.mkdir(parents=True, exist_ok=True)
                foreign = [name for name in os.listdir(self.path) if name not in ("segments", "writer", "readers")]
                if foreign:
                    raise StoreError(
                        f"{self.path} is not a Trackside store and not empty ({foreign[0]}); give a new folder"
                    )
            self.segments.mkdir(exist_ok=True)
            for name in ("readers", "writer"):
                (self.path / name).touch()
        except OSError as error:
            raise StoreError(f"cannot create the store {self.path}: {error.strerror or error}") from error

    def manifests(self) -> list[Path]:
        """The manifests in order; the last one is current."""
        try:
            names = [name for name in os.listdir(self.path) if _MANIFEST.fullmatch(name)]
        except OSError as error:
            raise StoreError(f"{self.path} cannot be opened: {error.strerror}; is it the store's folder?") from error
        return [self.path / name for name in sorted(names)]

    def read_newest(self) -> dict[str, Any]:
        """The current manifest as decoded JSON; {} for an empty store, which has none.

        Raises StoreError for a folder that is not a store, for a damaged manifest, and for one from a later version.
        """
        if not self.exists:
            raise StoreError(not_a_store_message(self.path))
        for _ in range(10):
            paths = self.manifests()
            if not paths:
                return {}
            try:
                raw = paths[-1].read_bytes()
            except FileNotFoundError:  # a writer replaced it between listing and reading
                continue
            except OSError as error:
                raise StoreError(f"{paths[-1]} cannot be read: {error.strerror}") from error
            return _checked_manifest(paths[-1], raw)
        raise StoreError(f"{self.path} changes faster than it can be read; try again")

    def read(self) -> StoreManifest:
        """The current manifest. Raises StoreError also for one that must be migrated first."""
        raw = self.read_newest()
        if raw and raw["version"] < VERSION:
            raise StoreError(
                f"{self.path} has version {raw['version']} and this Trackside reads {VERSION};"
                f" 'trackside compact --store {self.path}' updates it"
            )
        return self.decode(raw)

    def decode(self, raw: dict[str, Any]) -> StoreManifest:
        """A manifest of the current version from its JSON form."""
        try:
            return msgspec.convert(raw, StoreManifest)
        except msgspec.ValidationError as error:
            raise StoreError(_damage_message(self.manifests()[-1], str(error))) from error

    def read_migrated(self) -> StoreManifest:
        """The current manifest, migrated to this version; only for the writer."""
        raw = self.read_newest()
        if not raw:
            return StoreManifest()
        version = raw["version"]
        for number in range(version, VERSION):
            raw = {**MIGRATIONS[number - 1](self.path, raw), "version": number + 1}
        manifest = self.decode(raw)
        return manifest if version == VERSION else self.commit(manifest)

    def commit(self, manifest: StoreManifest) -> StoreManifest:
        """Make a manifest current; its segments are already written and synced. Returns it with its new generation
        number."""
        manifest = msgspec.structs.replace(manifest, generation=manifest.generation + 1)
        final = self.path / f"manifest-{manifest.generation:08d}.json"
        data = _with_checksum(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        try:
            sync(self.segments)
            write_atomically(final, self.path / "manifest.new", data)
        except OSError as error:
            raise StoreError(f"{final} cannot be written: {error.strerror}; nothing was changed") from error
        return manifest

    def delete_unreferenced_files(self) -> None:
        """Delete what no kept manifest names: older generations, and files of a writer that died. Only for the
        writer."""
        with open(self.path / "readers", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                oldest = float("inf")
            except OSError:
                oldest = time.time() - MANIFEST_KEPT_S
            paths = self.manifests()
            # A reader may have opened a manifest until a later one was written.
            kept_paths = [path for path, later in pairwise(paths[:-1]) if later.stat().st_mtime > oldest] + paths[-2:]
            named_segments = {name for path in kept_paths for name in self._segment_names(path)}
            for path in paths:
                if path not in kept_paths:
                    path.unlink(missing_ok=True)
            for name in os.listdir(self.segments):
                if name not in named_segments:
                    (self.segments / name).unlink(missing_ok=True)

    def set_aside(self, segment: TableSegment) -> None:
        """Move a segment that no manifest names any more to the damaged ones, for whoever wants to look at it."""
        try:
            self.damaged.mkdir(exist_ok=True)
            os.rename(self.file(segment), self.damaged / segment.name)
        except FileNotFoundError:  # its damage is that it is missing
            pass
        except OSError as error:
            raise StoreError(f"{self.file(segment)} cannot be moved to {self.damaged}: {error.strerror}") from error

    def _segment_names(self, path: Path) -> Iterable[str]:
        """The names of a manifest's segments, for any version."""
        try:
            return [segment["name"] for segment in _checked_manifest(path, path.read_bytes())["segments"]]
        except (StoreError, KeyError, TypeError):
            if path == self.manifests()[-1]:
                raise
            return ()  # an older one that nobody can open any more


def _with_checksum(data: bytes) -> bytes:
    """A manifest as JSON, with a checksum of all lines after it as its first entry."""
    rest = data.removeprefix(b"{\n")
    return b'{\n "checksum": "%08x",\n%b' % (zlib.crc32(rest), rest)


def _checked_manifest(path: Path, raw: bytes) -> dict[str, Any]:
    if (match := _CHECKSUM.match(raw)) and int(match[1], 16) != zlib.crc32(raw[match.end() :]):
        raise StoreError(_damage_message(path, "its checksum does not fit"))
    try:
        manifest = msgspec.json.decode(raw, type=dict[str, Any])
        version = manifest["version"]
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"version {version!r}")
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StoreError(_damage_message(path, str(error))) from error
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a later Trackside (version {version}, this one knows {VERSION}): update it"
        )
    return manifest


def _damage_message(path: Path, reason: str) -> str:
    return (
        f"{path} is damaged ({reason}): delete it and the store is as before its last commit;"
        " then ingest again what was given last"
    )


def write_atomically(final: Path, temporary: Path, data: bytes) -> None:
    """Write a file atomically: after a crash it exists complete or not at all. Raises OSError."""
    temporary.write_bytes(data)
    sync(temporary)
    os.rename(temporary, final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Lock:
    """A lock on one of a store's files, until it is closed or its process ends."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    @classmethod
    def for_writer(cls, directory: Directory) -> Lock:
        """The exclusive lock of the writer. Raises StoreBusy naming the process that holds it."""
        path = directory.path / "writer"
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened for writing: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            wait = (
                "wait for it to end; if it is the receiver, which also compacts the store, send data to it or stop it"
                if (directory.path / "received").is_dir()
                else "wait for it to end and try again"
            )
            raise StoreBusy(f"{directory.path} is in use by process {holder}: {wait}") from error
        except OSError as error:
            os.close(handle)
            raise StoreError(
                f"{path} cannot be locked ({error.strerror}): put the store on a file system with locks"
            ) from error
        with suppress(OSError):  # informational only; a full disk is reported where data would be lost
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return cls(handle)

    @classmethod
    def for_reader(cls, directory: Directory) -> Lock | None:
        """The shared lock of a reader. None if the store's file system has no locks: old segments are then kept for a
        day."""
        try:
            handle = os.open(directory.path / "readers", os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError:
            os.close(handle)
            return None
        return cls(handle)

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
