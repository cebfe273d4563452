"""Bundles of runs that are not in a folder: the data from a site or store is first written to files.

Text is copied unchanged, under its name in citations. Metrics are written as samples. Then the files are diagnosed like
any folder, and the verdict is compared with that of the run itself.
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

from trackside.bundle.differences import differences
from trackside.bundle.parts import PACKED, BundleRefused
from trackside.bundle.samples import SampleFilter, SampleWriter
from trackside.bundle.write import BundleOptions, WrittenBundle, write
from trackside.errors import NothingReadable
from trackside.http.unavailable import SourceUnavailable
from trackside.ingest import HashedStream
from trackside.model import Input, Samples
from trackside.query import Query, QueryError
from trackside.read.format import InputSource
from trackside.read.walk import walk
from trackside.session import PathsRequest, Session, open_session
from trackside.session.request import Paths
from trackside.show.document import document
from trackside.stores.embedded.snapshot import Snapshot
from trackside.stores.metric_backend import MetricBackend, SampleBackend, SeriesInfo

METRICS = "metrics.samples.jsonl"
MAX_SAMPLES = 50_000_000
"""Maximum number of samples of one bundle; cited metrics take precedence."""
MAX_NAME_CHARS = 200
"""Longest part of a path, characters."""


@dataclass(slots=True)
class EvidenceCopier:
    """Copies the inputs of a run into a folder. ``missing``: inputs that could not be copied; ``notes``: for the
    manifest."""

    folder: str
    missing: list[Input] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _open: BinaryIO | None = None
    _used_names: set[str] = field(default_factory=set)

    def copy(self, source: InputSource) -> None:
        """Copy a source to a file, from which it is then read."""
        path = self._target_path(source.path)
        with open(path, "wb") as file:
            shutil.copyfileobj(source.stream, file, 1 << 20)
        if source.modified is not None:
            os.utime(path, (source.modified, source.modified))
        self.close()
        source.stream = self._open = open(path, "rb")  # noqa: SIM115 - each source is read before the next

    def close(self) -> None:
        """Close the last source."""
        if self._open is not None:
            self._open.close()

    def _target_path(self, path: str) -> str:
        """The path of the copy: below the folder, by the source's own path."""
        parts = [part[:MAX_NAME_CHARS] for part in PACKED.sub("", path).replace("!", "/").replace("\0", "_").split("/")]
        name = "/".join(part for part in parts if part not in ("", ".", "..")) or "input"
        candidate, number = name, 2
        while candidate.lower() in self._used_names or os.path.isdir(os.path.join(self.folder, candidate)):
            candidate, number = f"{name}#{number}", number + 1
        self._used_names.add(candidate.lower())
        absolute = os.path.join(self.folder, candidate)
        try:
            os.makedirs(os.path.dirname(absolute), exist_ok=True)
        except FileExistsError:  # a file has the name of a folder
            return self._target_path(f"{path.replace('/', '_')}")
        return absolute

    def copy_files(self, paths: Paths, session: Session) -> None:
        """Copy files that were read together with a store, except metrics, which are exported with those of the
        store."""
        text_inputs = _text_inputs(session)
        metric_paths = [
            f"/{row.path}" for row in session.inputs if row.plane == "metric" and row.path not in text_inputs
        ]
        for source in walk(paths):
            # An input with the same name as another has its folder in its path.
            if isinstance(source, InputSource) and not any(path.endswith(f"/{source.path}") for path in metric_paths):
                self.copy(source)

    def copy_stored_files(self, store: str, session: Session) -> None:
        """Copy the files that a store's inputs were read from, if they still exist unchanged."""
        text_inputs = _text_inputs(session)
        with Snapshot.open(store) as snapshot:
            stored_rows = snapshot.rows(
                f"SELECT path, root, label, hash FROM {snapshot.table('inputs')} ORDER BY place"
            )
        files: dict[str, dict[str, tuple[str, str]]] = {}
        for path, root, label, digest in stored_rows:
            if path in text_inputs:
                outer, separator, inner = label.partition("!")
                absolute = os.path.join(
                    store, root, outer
                )  # root is absolute for ingested files, and relative to the store for received data
                files.setdefault(absolute, {})[f"{os.path.basename(outer)}{separator}{inner}"] = path, digest
        for absolute, members in files.items():
            self._copy_file(absolute, members, text_inputs)

    def _copy_file(self, absolute: str, members: dict[str, tuple[str, str]], rows: dict[str, Input]) -> None:
        pending = dict(members)
        for source in walk([absolute]) if os.path.lexists(absolute) else ():
            member = pending.pop(source.path, None)
            if member is None or isinstance(source, Input):
                continue
            source.path, digest = member
            content = HashedStream(source.stream)
            source.stream = content  # type: ignore[assignment]
            self.copy(source)
            if digest and content.digest() != digest:
                self.notes.append(f"{source.path}: {absolute} has changed since it was put into the store")
        for path, _ in pending.values():
            note = f"{absolute} no longer exists; the store has what was read from it, but not its text"
            self.missing.append(replace(rows[path], status="unreadable", note=note))

    def export_metrics(self, backend: MetricBackend, session: Session) -> None:
        """Export the samples of the run's nodes and time."""
        if not isinstance(backend, SampleBackend):
            return
        sample_filter = SampleFilter.of(session.run)
        try:
            series_list = [
                series_info
                for series_info in backend.series()
                if sample_filter.selects(series_info.series) and series_info.last_ms >= sample_filter.start_ms
            ]
        except SourceUnavailable as error:
            self.notes.append(f"{backend.name}: no metrics: {error}")
            return
        chosen, left_out = _within_limit(series_list, _cited_metrics(session))
        if left_out:
            self.notes.append(
                f"{backend.name}: left out because of the limit of {MAX_SAMPLES:,} samples: {', '.join(left_out)}"
            )
        if not chosen:
            return
        self._write_samples(backend, chosen, sample_filter)

    def _write_samples(self, backend: SampleBackend, chosen: Sequence[SeriesInfo], sample_filter: SampleFilter) -> None:
        path = self._target_path(METRICS)
        first = max(sample_filter.start_ms, min(series_info.first_ms for series_info in chosen)) - 1
        last = min(sample_filter.end_ms, max(series_info.last_ms for series_info in chosen))
        with open(path, "wb") as file:
            writer = SampleWriter(file, sample_filter)
            try:
                for series_info, times, values in backend.samples(chosen, int(first), int(last)):
                    writer.samples(Samples([series_info.series], np.zeros(len(times), np.int32), times, values))
            except SourceUnavailable as error:
                self.notes.append(f"{backend.name}: not all metrics: {error}")
        self.notes.append(f"{os.path.basename(path)}: {writer.written_count:,} samples from {backend.name}")
        if not writer.written_count:
            os.unlink(path)


def _text_inputs(session: Session) -> dict[str, Input]:
    """Inputs that were read, by path, except those with only samples."""
    paths_with_rows = {row.at.path for row in session.loaded.store.all_rows()}
    return {
        row.path: row
        for row in session.inputs
        if row.status in ("read", "partial") and (row.plane != "metric" or row.path in paths_with_rows)
    }


def _cited_metrics(session: Session) -> frozenset[str]:
    """The metrics cited by the verdict."""
    metrics = set()
    for cite in document(session.verdict()).cites.values():
        try:
            metrics.add(Query.parse(cite.query).kind)
        except QueryError:
            continue
    return frozenset(metrics)


def _within_limit(series_list: Sequence[SeriesInfo], cited: Collection[str]) -> tuple[list[SeriesInfo], list[str]]:
    """The series of as many metrics as fit into the limit, cited metrics first; and the metrics left out."""
    by_metric: dict[str, list[SeriesInfo]] = {}
    for series_info in series_list:
        by_metric.setdefault(series_info.series.metric, []).append(series_info)
    chosen: list[SeriesInfo] = []
    left_out: list[str] = []
    remaining = MAX_SAMPLES
    for metric in sorted(by_metric, key=lambda name: (name not in cited, name)):
        size = sum(series_info.count for series_info in by_metric[metric])
        if size > remaining:
            left_out.append(metric)
        else:
            remaining -= size
            chosen += by_metric[metric]
    return chosen, left_out


@contextmanager
def copies() -> Iterator[EvidenceCopier]:
    """A temporary folder for copies."""
    with tempfile.TemporaryDirectory(prefix="trackside-bundle-") as folder:
        copier = EvidenceCopier(folder)
        try:
            yield copier
        finally:
            copier.close()


def write_live(session: Session, copier: EvidenceCopier, options: BundleOptions) -> WrittenBundle:
    """Write a bundle of the copies.

    Raises BundleRefused if the copies give a different verdict than ``session``, unless the options allow it.
    """
    copier.close()
    options = replace(options, job=session.run.id or options.job)
    with open_session(PathsRequest([copier.folder], options.job, session.as_of)) as copied_session:
        try:
            changes = differences(session.verdict(), copied_session.verdict())
        except NothingReadable as error:
            missing_text = "; ".join(f"{row.path}: {row.note}" for row in copier.missing[:3])
            raise BundleRefused(f"nothing to write: {missing_text or error}") from error
        if changes and not options.despite:
            missing_text = "".join(f"; missing: {row.path}: {row.note}" for row in copier.missing[:3])
            raise BundleRefused(
                f"the data that can be written gives a different verdict: {'; '.join(changes)}{missing_text};"
                " use --despite-differences to write it anyway, with a note"
            )
        notes = list(copier.notes)
        if changes:
            notes.append(f"the verdict on the run itself differs: {'; '.join(changes)}")
        rows = [row for row in session.verdict().inputs if row.status in ("unreadable", "refused")]
        options = replace(options, notes=tuple(notes), missing=(*copier.missing, *rows))
        return write(copied_session, [copier.folder], options)
