"""One store directory: which segments are in it, one writer at a time, and never half a commit.

    DIR/manifest-00000042.json    names the segments; the highest number holds, and the one before it is kept
    DIR/segments/*.parquet        never changed once a manifest names them
    DIR/writer                    locked by the one writer, and says who that is
    DIR/readers                   locked, shared, by each reader
    DIR/received/                 what was sent to it: a write-ahead log, and log lines as files

A commit writes segments beside the others, each synced, and then the next manifest, synced and renamed into place:
until that moment nobody sees them, and what a dead writer left is swept by the next. What no kept manifest names is
deleted when nobody reads.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from trackside.errors import UsageError
from trackside.stores.embedded.migrations import MIGRATIONS

VERSION = len(MIGRATIONS) + 1
"""Of what a manifest and its segments mean."""
KEPT_S = 86400.0
"""How long a manifest that somebody may still read by is kept, while there are readers."""
_MANIFEST = re.compile(r"manifest-(\d{8})\.json")


class StoreError(UsageError, ValueError):
    """The store can't be used as was asked: names the file or folder, and the remedy."""


class StoreBusy(StoreError):
    """Another process writes to the store."""


class Segment(msgspec.Struct, frozen=True):
    """One Parquet file. ``name`` is relative to the segments' folder, or absolute in another store's."""

    table: str
    name: str
    rows: int
    bytes: int
    inputs: tuple[int, int]
    """Least and greatest id of the inputs in it."""
    times_ms: tuple[int, int] | None = None
    """Earliest and latest sample in it."""
    level: int = 0
    """0 as it was ingested, 1 as a compaction wrote it: one day's, sorted beside the others of that day."""


class Mark(msgspec.Struct, frozen=True, order=True):
    """A place in the write-ahead log: a file's number and an offset in it."""

    file: int = 0
    offset: int = 0


class Received(msgspec.Struct, frozen=True):
    """What a store knows of what was sent to it: see :mod:`trackside.stores.receiver.intake`."""

    mark: Mark = Mark()
    """Up to here the write-ahead log is in segments."""
    factors: dict[str, float] = {}
    """Foreign name -> the factor that the size of its values told."""
    since: dict[str, float] = {}
    """Foreign name that has none yet -> when its first value was written, POSIX seconds."""


class Manifest(msgspec.Struct, frozen=True):
    """What a store holds at one moment."""

    version: int = VERSION
    generation: int = 0
    segments: tuple[Segment, ...] = ()
    dead: tuple[int, ...] = ()
    """Inputs whose rows count no more: a later reading of the same file took their place."""
    incomplete: tuple[int, ...] = ()
    """Inputs that lost rows with a damaged segment: given again, they are read again."""
    next_input: int = 1
    next_series: int = 1
    received: Received = Received()

    def of(self, table: str) -> list[Segment]:
        """A table's segments, in the order of writing."""
        return [each for each in self.segments if each.table == table]


class Directory:
    """A store's folder."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.segments = self.path / "segments"

    def file(self, segment: Segment) -> str:
        """Where a segment lies."""
        return str(self.segments / segment.name)

    @property
    def exists(self) -> bool:
        """Whether this is a store, or was about to become one."""
        return self.segments.is_dir() and (self.path / "writer").exists()

    def create(self) -> None:
        """Make an empty store. Raises StoreError where other things lie in the folder."""
        try:
            if not self.exists:
                self.path.mkdir(parents=True, exist_ok=True)
                foreign = [name for name in os.listdir(self.path) if name not in ("segments", "writer", "readers")]
                if foreign:
                    raise StoreError(
                        f"{self.path} is no Trackside store and not empty ({foreign[0]}); give a new folder"
                    )
            self.segments.mkdir(exist_ok=True)
            for name in ("readers", "writer"):
                (self.path / name).touch()
        except OSError as error:
            raise StoreError(f"{self.path} can't be made a store: {error.strerror or error}") from error

    def manifests(self) -> list[Path]:
        """The manifests in order; the last one holds."""
        try:
            names = [name for name in os.listdir(self.path) if _MANIFEST.fullmatch(name)]
        except OSError as error:
            raise StoreError(f"{self.path} can't be opened: {error.strerror}; is it the store's folder?") from error
        return [self.path / name for name in sorted(names)]

    def newest(self) -> dict[str, Any]:
        """The manifest that holds, as it is written; an empty store has none, and that is {}.

        Raises StoreError for no store, a damaged manifest, and one from a later version.
        """
        if not self.exists:
            raise StoreError(
                f"{self.path} is no Trackside store; 'trackside ingest PATH --store {self.path}' makes one"
            )
        for _ in range(10):
            found = self.manifests()
            if not found:
                return {}
            try:
                raw = found[-1].read_bytes()
            except FileNotFoundError:  # a writer replaced it between the two looks
                continue
            except OSError as error:
                raise StoreError(f"{found[-1]} can't be read: {error.strerror}") from error
            return _checked(found[-1], raw)
        raise StoreError(f"{self.path} changes faster than it can be read; try again")

    def read(self) -> Manifest:
        """The manifest that holds. Raises StoreError also for one that must be migrated first."""
        raw = self.newest()
        if raw and raw["version"] < VERSION:
            raise StoreError(
                f"{self.path} has version {raw['version']} and this Trackside reads {VERSION};"
                f" 'trackside compact --store {self.path}' brings it up to date"
            )
        return self.decoded(raw)

    def decoded(self, raw: dict[str, Any]) -> Manifest:
        """The manifest from its written form, of the present version."""
        try:
            return msgspec.convert(raw, Manifest)
        except msgspec.ValidationError as error:
            raise StoreError(_damaged(self.manifests()[-1], str(error))) from error

    def migrated(self) -> Manifest:
        """The manifest that holds, brought up to the present version; for the writer."""
        raw = self.newest()
        if not raw:
            return Manifest()
        version = raw["version"]
        for number in range(version, VERSION):
            raw = {**MIGRATIONS[number - 1](self.path, raw), "version": number + 1}
        manifest = self.decoded(raw)
        return manifest if version == VERSION else self.commit(manifest)

    def commit(self, manifest: Manifest) -> Manifest:
        """Let a manifest hold from now on; its segments are written and synced. Gives it with its number."""
        manifest = msgspec.structs.replace(manifest, generation=manifest.generation + 1)
        final = self.path / f"manifest-{manifest.generation:08d}.json"
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
        try:
            sync(self.segments)
            put(final, self.path / "manifest.new", data)
        except OSError as error:
            raise StoreError(f"{final} can't be written: {error.strerror}; nothing was changed") from error
        return manifest

    def sweep(self) -> None:
        """Delete what no kept manifest names: older generations, and what a dead writer left. For the writer alone."""
        with open(self.path / "readers", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                oldest = float("inf")
            except OSError:
                oldest = time.time() - KEPT_S
            found = self.manifests()
            # Somebody may have opened it as long as there was no later one.
            kept = [path for path, later in pairwise(found[:-1]) if later.stat().st_mtime > oldest] + found[-2:]
            named = {name for path in kept for name in self._named(path)}
            for path in found:
                if path not in kept:
                    path.unlink(missing_ok=True)
            for name in os.listdir(self.segments):
                if name not in named:
                    (self.segments / name).unlink(missing_ok=True)

    def _named(self, path: Path) -> Iterable[str]:
        """The names of a manifest's segments, whatever version it is of."""
        try:
            return [each["name"] for each in _checked(path, path.read_bytes())["segments"]]
        except (StoreError, KeyError, TypeError):
            if path == self.manifests()[-1]:
                raise
            return ()  # an older one that nobody can open any more


def _checked(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        manifest = msgspec.json.decode(raw, type=dict[str, Any])
        version = manifest["version"]
        if not isinstance(version, int) or version < 1:
            raise ValueError(f"version {version!r}")
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise StoreError(_damaged(path, str(error))) from error
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a later Trackside (version {version}, this one knows {VERSION}): update it"
        )
    return manifest


def _damaged(path: Path, why: str) -> str:
    return (
        f"{path} is damaged ({why}): delete it and the store is as before its last commit;"
        " then ingest again what was given last"
    )


def put(final: Path, temporary: Path, data: bytes) -> None:
    """Write a file that is there wholly or not at all, whatever happens meanwhile. Raises OSError."""
    temporary.write_bytes(data)
    sync(temporary)
    os.rename(temporary, final)
    sync(final.parent)


def sync(path: Path) -> None:
    """Have a file, or a folder's entries, on disk."""
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
        """The one writer's. Raises StoreBusy naming the process that has it."""
        path = directory.path / "writer"
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError as error:
            raise StoreError(f"{path} can't be opened for writing: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(handle)
            raise StoreBusy(
                f"{directory.path} is being written by process {holder}: wait for it to end and try again"
            ) from error
        except OSError as error:
            os.close(handle)
            raise StoreError(
                f"{path} can't be locked ({error.strerror}): put the store on a file system with locks"
            ) from error
        with suppress(OSError):  # only a name; a full disk is told of where data is lost by it
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        return cls(handle)

    @classmethod
    def for_reader(cls, directory: Directory) -> Lock | None:
        """A reader's share. None where the store's file system has no locks: then old segments stay a day."""
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
