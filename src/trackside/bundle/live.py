"""A bundle of a run that no folder holds: what a site or a store gave of it becomes files first, and these its inputs.

Whatever was read as text is written down as it came, under the name that citations have for it. Metrics are written as
samples. Then the files are judged as any folder is, and what they say is held against what was said of the run itself.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import BinaryIO

import numpy as np

from trackside.bundle.parts import PACKED, NotBundled
from trackside.bundle.same import differences
from trackside.bundle.samples import Wanted
from trackside.bundle.samples import Written as Samples
from trackside.bundle.write import Options, Written, write
from trackside.errors import NothingReadable
from trackside.http.unavailable import SourceUnavailable
from trackside.ingest import Hashed
from trackside.model import Input
from trackside.model import Samples as Block
from trackside.query import Query, QueryError
from trackside.read.format import Source
from trackside.read.walk import walk
from trackside.session import PathsRequest, Session, open_session
from trackside.session.request import Paths
from trackside.show.document import document
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.metric_backend import MetricBackend, SampleBackend, SeriesInfo

METRICS = "metrics.samples.jsonl"
MOST_SAMPLES = 50_000_000
"""Samples of one bundle; what verdicts cite goes first."""
LONGEST = 200
"""Letters of a part of a path."""


@dataclass(slots=True)
class Copies:
    """What was read, as files of a folder. ``missing``: what could not be; ``notes``: what else is to be said."""

    folder: str
    missing: list[Input] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _open: BinaryIO | None = None
    _taken: set[str] = field(default_factory=set)

    def take(self, source: Source) -> None:
        """Write a source down; it is read from there afterwards."""
        path = self._place(source.path)
        with open(path, "wb") as file:
            shutil.copyfileobj(source.stream, file, 1 << 20)
        if source.modified is not None:
            os.utime(path, (source.modified, source.modified))
        self.close()
        source.stream = self._open = open(path, "rb")  # noqa: SIM115 - each is read before the next is taken

    def close(self) -> None:
        """The last source was read."""
        if self._open is not None:
            self._open.close()

    def _place(self, path: str) -> str:
        """Where a file is written: below the folder, by its own path, and nowhere else."""
        parts = [part[:LONGEST] for part in PACKED.sub("", path).replace("!", "/").replace("\0", "_").split("/")]
        name = "/".join(part for part in parts if part not in ("", ".", "..")) or "input"
        free, number = name, 2
        while free.lower() in self._taken or os.path.isdir(os.path.join(self.folder, free)):
            free, number = f"{name}#{number}", number + 1
        self._taken.add(free.lower())
        full = os.path.join(self.folder, free)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
        except FileExistsError:  # a file is called as a folder is
            return self._place(f"{path.replace('/', '_')}")
        return full

    def take_files(self, paths: Paths, session: Session) -> None:
        """Files that were given beside a store; their metrics are taken with its own."""
        wanted = _wanted(session)
        measured = [f"/{row.path}" for row in session.inputs if row.plane == "metric" and row.path not in wanted]
        for found in walk(paths):
            # What has the name of another input is called by its folder as well.
            if isinstance(found, Source) and not any(each.endswith(f"/{found.path}") for each in measured):
                self.take(found)

    def take_stored(self, store: str, session: Session) -> None:
        """The files that a store's inputs were read from, where they still are and still are what they were."""
        wanted = _wanted(session)
        with Snapshot.open(store) as snapshot:
            told = snapshot.rows(f"SELECT path, root, label, hash FROM {snapshot.table('inputs')} ORDER BY place")
        files: dict[str, dict[str, tuple[str, str]]] = {}
        for path, root, label, digest in told:
            if path in wanted:
                outer, mark, inner = label.partition("!")
                full = os.path.join(store, root, outer)  # a root of its own is absolute, what was received lies in it
                files.setdefault(full, {})[f"{os.path.basename(outer)}{mark}{inner}"] = path, digest
        for full, members in files.items():
            self._take_file(full, members, wanted)

    def _take_file(self, full: str, members: dict[str, tuple[str, str]], rows: dict[str, Input]) -> None:
        left = dict(members)
        for found in walk([full]) if os.path.lexists(full) else ():
            known = left.pop(found.path, None)
            if known is None or isinstance(found, Input):
                continue
            found.path, digest = known
            content = Hashed(found.stream)
            found.stream = content  # type: ignore[assignment]
            self.take(found)
            if digest and content.digest() != digest:
                self.notes.append(f"{found.path}: {full} has changed since it was put into the store")
        for path, _ in left.values():
            why = f"{full} is no longer there: the store has what was read of it, and not its text"
            self.missing.append(replace(rows[path], status="unreadable", note=why))

    def take_measured(self, curves: MetricBackend, session: Session) -> None:
        """The samples of the run's nodes and time."""
        if not isinstance(curves, SampleBackend):
            return
        wanted = Wanted.of(session.run)
        try:
            held = [each for each in curves.series() if wanted.has(each.series) and each.last_ms >= wanted.start_ms]
        except SourceUnavailable as error:
            self.notes.append(f"{curves.name}: no metrics: {error}")
            return
        chosen, left = _within(held, _cited(session))
        if left:
            self.notes.append(f"{curves.name}: left out, being more than {MOST_SAMPLES:,} samples: {', '.join(left)}")
        if not chosen:
            return
        self._measured(curves, chosen, wanted)

    def _measured(self, curves: SampleBackend, chosen: Sequence[SeriesInfo], wanted: Wanted) -> None:
        path = self._place(METRICS)
        first = max(wanted.start_ms, min(each.first_ms for each in chosen)) - 1
        last = min(wanted.end_ms, max(each.last_ms for each in chosen))
        with open(path, "wb") as file:
            written = Samples(file, wanted)
            try:
                for each, times, values in curves.samples(chosen, int(first), int(last)):
                    written.samples(Block([each.series], np.zeros(len(times), np.int32), times, values))
            except SourceUnavailable as error:
                self.notes.append(f"{curves.name}: not all metrics: {error}")
        self.notes.append(f"{os.path.basename(path)}: {written.kept:,} samples out of {curves.name}")
        if not written.kept:
            os.unlink(path)


def _wanted(session: Session) -> dict[str, Input]:
    """Inputs that were read, by path, but those that hold nothing beside samples."""
    told = {row.at.path for row in session.loaded.store.all_rows()}
    return {
        row.path: row
        for row in session.inputs
        if row.status in ("read", "partial") and (row.plane != "metric" or row.path in told)
    }


def _cited(session: Session) -> frozenset[str]:
    """The metrics that the verdict cites."""
    found = set()
    for cite in document(session.verdict()).cites.values():
        try:
            found.add(Query.parse(cite.query).kind)
        except QueryError:
            continue
    return frozenset(found)


def _within(held: Sequence[SeriesInfo], cited: Collection[str]) -> tuple[list[SeriesInfo], list[str]]:
    """Series of as many metrics as there is room for, those that are cited first; and the metrics left out."""
    by_metric: dict[str, list[SeriesInfo]] = {}
    for each in held:
        by_metric.setdefault(each.series.metric, []).append(each)
    chosen: list[SeriesInfo] = []
    left: list[str] = []
    room = MOST_SAMPLES
    for metric in sorted(by_metric, key=lambda name: (name not in cited, name)):
        size = sum(each.count for each in by_metric[metric])
        if size > room:
            left.append(metric)
        else:
            room -= size
            chosen += by_metric[metric]
    return chosen, left


@contextmanager
def copies() -> Iterator[Copies]:
    """A folder for what is read, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="trackside-bundle-") as folder:
        found = Copies(folder)
        try:
            yield found
        finally:
            found.close()


def write_live(session: Session, found: Copies, options: Options) -> Written:
    """Write a bundle of what was copied.

    Raises NotBundled where that would give another verdict than ``session``, unless it is wanted all the same.
    """
    found.close()
    options = replace(options, job=session.run.id or options.job)
    with open_session(PathsRequest([found.folder], options.job, session.as_of)) as written:
        try:
            unlike = differences(session.verdict(), written.verdict())
        except NothingReadable as error:
            gone = "; ".join(f"{row.path}: {row.note}" for row in found.missing[:3])
            raise NotBundled(f"there is nothing to write: {gone or error}") from error
        if unlike and not options.despite:
            gone = "".join(f"; missing: {row.path}: {row.note}" for row in found.missing[:3])
            raise NotBundled(
                f"what can be written of the run gives another verdict than was found: {'; '.join(unlike)}{gone};"
                " --despite-differences writes it all the same, and says so in it"
            )
        notes = list(found.notes)
        if unlike:
            notes.append(f"the verdict on the run itself was another: {'; '.join(unlike)}")
        rows = [row for row in session.verdict().inputs if row.status in ("unreadable", "refused")]
        options = replace(options, notes=tuple(notes), missing=(*found.missing, *rows))
        return write(written, [found.folder], options)
