"""Reads files into a store, each once, as ``diagnose`` reads them; changed files are replaced."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO

import msgspec

from trackside.errors import StoreError
from trackside.logs.trajectory import Trajectories
from trackside.model import Event, Input, Record, Samples
from trackside.read.detect import read_source
from trackside.read.format import HEAD_BYTES, InputSource
from trackside.read.walk import walk
from trackside.runs.jobs import plain_id
from trackside.runs.logs import JOB_NAMING_EVENTS, ids_in_lines, job_named_by, leaf_of
from trackside.stores.embedded.layout import Directory
from trackside.stores.embedded.retention import merge_row_segments
from trackside.stores.embedded.rows import LoggedStep, RecordKeys, StoredInput
from trackside.stores.embedded.writer import Writer

InputPaths = Sequence[str | os.PathLike[str]]
ALREADY_STORED = "already in the store"
"""Why an unchanged input is skipped."""
_NUMBER = re.compile(r"\d+")


@dataclass(slots=True)
class IngestSummary:
    """The result of an ingest. ``skipped``: already in the store; ``replaced``: their content has changed."""

    inputs: list[Input] = field(default_factory=list)
    skipped: list[Input] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    samples: int = 0
    rows: int = 0


def ingest(
    paths: InputPaths, store: str | os.PathLike[str], on_progress: Callable[[int], None] | None = None
) -> IngestSummary:
    """Read everything under the paths into the store, which is created if necessary.

    An input is stored completely or not at all: after an interruption, the same call continues where it stopped.
    Raises FileNotFoundError for a missing path, StoreBusy and StoreError.
    """
    for path in paths:
        if not os.path.lexists(path):
            raise FileNotFoundError(f"no such file or folder: {os.fspath(path)}")
        if Directory(path).exists:
            raise StoreError(f"{os.fspath(path)} is a store; give files or folders to read into a store")
    with Writer.open(store) as writer:
        summary = ingest_into(writer, paths, on_progress)
        merge_row_segments(writer)
        writer.directory.delete_unreferenced_files()
    return summary


def ingest_into(
    writer: Writer,
    paths: InputPaths,
    on_progress: Callable[[int], None] | None = None,
    more: Iterable[InputSource] = (),
) -> IngestSummary:
    """Read ``more``, then everything under the paths, and commit."""
    inputs = _Inputs(writer, root_of(paths))
    for source in chain(more, walk(paths, on_progress)):
        inputs.take(source)
    writer.commit()
    return inputs.summary


def ingest_below(writer: Writer, folder: str, files: Sequence[str], root: str, under: str = "") -> IngestSummary:
    """Read some files of a folder, each named by its path below it, and commit.

    ``root``: the store's name for the folder, wherever it is; ``under``: its name in citations. Inputs with the same
    root belong together.
    """
    inputs = _Inputs(writer, root, under)
    for name in files:
        for source in walk([os.path.join(folder, name)]):
            if isinstance(source, Input):
                inputs.take(replace(source, path=name))
            else:
                source.path = name
                inputs.take(source)
    writer.commit()
    return inputs.summary


def root_of(paths: InputPaths) -> str:
    """The folder that input paths are relative to, the same as in ``walk``."""
    full = [os.path.abspath(path) for path in paths]
    if len(full) == 1:
        return full[0] if os.path.isdir(full[0]) else os.path.dirname(full[0])
    return os.path.commonpath([os.path.dirname(path) for path in full]) if full else ""


class _Inputs:
    """Stores the inputs of a walk, one after the other."""

    def __init__(self, writer: Writer, root: str, under: str = "") -> None:
        self._writer, self._root, self._under = writer, root, under
        self.summary = IngestSummary()
        self._by_location: dict[str, StoredInput] = {}
        self._by_hash: dict[str, list[StoredInput]] = {}
        self._sizes: set[int] = set()
        self._paths: set[str] = set()
        self._incomplete = frozenset(writer.manifest.incomplete)
        for id_, place, path, root, label, status, size, hash_ in writer.snapshot().rows(
            f"SELECT input, place, path, root, label, status, bytes, hash FROM {writer.snapshot().table('inputs')}"
        ):
            self._remember(StoredInput(id_, Input(path, None, status, bytes=size), root, label, hash_, place=place))

    def _remember(self, stored: StoredInput) -> None:
        self._by_location[os.path.join(stored.root, stored.label)] = stored
        self._paths.add(stored.path)
        if stored.hash and stored.id not in self._incomplete:
            self._by_hash.setdefault(stored.hash, []).append(stored)
            self._sizes.add(stored.row.bytes)

    def take(self, source: InputSource | Input) -> None:
        """Read a source unless the store has it; or store the row of an input that cannot be read."""
        label = source.path
        before = self._by_location.get(os.path.join(self._root, label))
        path = before.path if before is not None else self._name(label)
        input_ = self._writer.begin()
        if isinstance(source, Input):
            self._keep(input_, replace(source, path=path), label, before, _Sink(self._writer, input_), "")
            return
        source.path = path
        content = HashedStream(source.stream)
        source.stream = io.BufferedReader(content, HEAD_BYTES)
        # A file that can be read twice is hashed first if the store has one of its size: hashing is fast.
        if source.size in self._sizes and content.seekable():
            if self._skip_if_stored(content.digest(), label, before):
                return
            source.stream.seek(0)
        sink = _Sink(self._writer, input_)
        row = read_source(source, sink)
        digest = content.digest() if row.status in ("read", "partial") else ""
        if digest and self._skip_if_stored(digest, label, before):
            self._writer.drop()
            return
        self._keep(input_, row, label, before, sink, digest)

    def _skip_if_stored(self, digest: str, label: str, before: StoredInput | None) -> bool:
        """Whether the store has this content of this file; the same text elsewhere may belong to another run."""
        for stored in self._by_hash.get(digest, ()):
            if stored is before:
                note = ALREADY_STORED
            elif self._same_file(stored, label):
                note = f"{ALREADY_STORED}, as {stored.path}"
            else:
                continue
            self.summary.skipped.append(Input(stored.path, None, "read", note, 0, None, stored.row.bytes))
            return True
        return False

    def _same_file(self, stored: StoredInput, label: str) -> bool:
        """Whether it is the same file under another path, or moved within the given folder."""
        before, _, member_before = stored.label.partition("!")
        path, _, member = label.partition("!")
        known_path = os.path.join(stored.root, before)
        if not os.path.lexists(known_path):
            return stored.root == self._root
        try:
            return member == member_before and os.path.samefile(known_path, os.path.join(self._root, path))
        except OSError:  # deleted in between
            return False

    def _keep(self, input_: int, row: Input, label: str, before: StoredInput | None, sink: _Sink, digest: str) -> None:
        if before is not None and not digest and (before.hash or before.row.status == row.status):
            # What was read earlier is worth more than an empty or damaged file in its place.
            self._writer.drop()
            note = "; what was read from it earlier is kept" if before.hash else ""
            self.summary.skipped.append(replace(row, note=row.note + note))
            return
        order = before.place if before is not None else input_
        root, label = (before.root, before.label) if before is not None else (self._root, label)
        training = sink.finish()
        stored = StoredInput(input_, row, root, label, digest, sink.is_log, sink.owner(row.path), training, order)
        self._writer.end(stored, () if before is None else (before.id,))
        if before is not None:
            self.summary.replaced.append(row.path)
            self._by_hash[before.hash] = [other for other in self._by_hash.get(before.hash, ()) if other is not before]
        self.summary.inputs.append(row)
        self.summary.samples += sink.count
        self.summary.rows += sink.rows
        # Inputs given in one call are read as often as they appear, as ``diagnose`` does: their hash is not remembered.
        self._by_location[os.path.join(root, label)] = stored
        self._paths.add(stored.path)

    def _name(self, label: str) -> str:
        """The name of a new input in citations: its path below the given folder, made unique."""
        label = "/".join(part for part in (self._under, label) if part)
        names = [label, "/".join(part for part in (os.path.basename(self._root), label) if part)]
        free = next((name for name in names if name not in self._paths), None)
        number = 2
        while free is None:
            name = f"{names[1]}#{number}"
            free = name if name not in self._paths else None
            number += 1
        return free


class _Sink:
    """Passes what a reader finds to the store; of logged steps only the distinct ones."""

    def __init__(self, writer: Writer, input_: int) -> None:
        self._writer, self._input = writer, input_
        self._trajectories = Trajectories()
        self._job_events: list[Event] = []
        self.is_log = False
        self.count = self.rows = 0

    def event(self, event: Event) -> None:
        if event.kind == "progress":
            self.is_log = True
            self._trajectories.add(event)
            return
        self.rows += 1
        named = event.fields.get("job")
        job = None if named is None else plain_id(str(named))
        if event.plane == "log":
            self.is_log = True
            if event.kind in JOB_NAMING_EVENTS and job_named_by(event) is not None:
                self._job_events.append(event)
        self._writer.event(self._input, event, job)

    def record(self, record: Record) -> None:
        self.rows += 1
        named = record.get("id") if record.kind == "job" else record.get("job")
        job = None if named is None else str(named)
        number = None if job is None else _NUMBER.match(job)
        outputs = [leaf_of(str(path)) for name in ("std_out", "std_err") if (path := record.get(name))]
        self._writer.record(self._input, record, RecordKeys(job, number[0] if number else None, tuple(outputs)))

    def samples(self, samples: Samples) -> None:
        self.count += len(samples)
        self._writer.samples(self._input, samples)

    def owner(self, path: str) -> str | None:
        """The job that the log's own lines name."""
        return next(iter(ids_in_lines(self._job_events).get(path, ())), None)

    def finish(self) -> str:
        """Store the logged steps; returns the counts of their series as JSON."""
        series_counts = []
        for series in self._trajectories.series():
            points = [
                LoggedStep(point.event, point.ordinal, point.pinned, point.is_open)
                for point in series.points_to_store()
            ]
            self.rows += len(points)
            self._writer.points(self._input, points)
            series_counts.append({"path": series.path, **msgspec.to_builtins(series.state())})
        return msgspec.json.encode(series_counts).decode() if series_counts else ""


class HashedStream(io.RawIOBase):
    """A stream that is hashed as it is read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self._hashed = self._position = 0
        self._ended = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(len(view))
        view[: len(data)] = data
        self._take(data)
        return len(data)

    def _take(self, data: bytes) -> None:
        """Hash what was not hashed yet, as long as nothing before it is missing."""
        start, self._position = self._position, self._position + len(data)
        if self._position == self._hashed:
            self._ended = self._ended or not data
        elif start <= self._hashed < self._position:
            self._ended = False
            self._hash.update(memoryview(data)[self._hashed - start :])
            self._hashed = self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = self._stream.seek(offset, whence)
        return self._position

    def tell(self) -> int:
        return self._position

    def digest(self) -> str:
        """The hash of the whole stream; the unread rest is read now, unless the end was already reached."""
        if self._position != self._hashed and self.seekable():
            self.seek(self._hashed)
        while not self._ended:
            self._take(self._stream.read(1 << 20))
        return self._hash.hexdigest()
