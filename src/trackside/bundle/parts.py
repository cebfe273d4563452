"""The contents of a bundle: the unchanged input files, or single inputs from archives, sliced and redacted."""

from __future__ import annotations

import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from trackside.bundle.redact.redactor import Redactor
from trackside.bundle.samples import SampleFilter, SampleWriter, export
from trackside.bundle.slicing import FORMATS, MAX_WHOLE_BYTES, FileParts, Slice
from trackside.catalog.hang_lines import read_piece
from trackside.errors import TracksideError
from trackside.model import Input
from trackside.read.bundle import PIECE_BYTES, BundledInput, is_bundle_file
from trackside.read.format import InputSource
from trackside.read.pieces import ChunkStream
from trackside.read.plain_pickle import load
from trackside.read.walk import ExplicitFile, list_files, walk
from trackside.session.request import Paths, ProgressCallback

PACKED = re.compile(r"\.(?:gz|bz2|xz|zst|zstd)(?=!|\Z)")
_UNREADABLE = frozenset({"unrecognised", "unreadable", "refused"})


@dataclass(slots=True)
class PartSource:
    """One input of a bundle: its bytes, or the reason why there are none. ``describe_excerpt`` returns
    ``doc.excerpt``; call it after reading ``content``."""

    doc: BundledInput
    content: Iterable[bytes] | None = None
    describe_excerpt: Callable[[], str] = str
    size: int | None = None


class BundleRefused(TracksideError, ValueError):
    """No bundle can be made; the message says why."""


def whole_files(paths: Paths, rows: Sequence[Input], on_progress: ProgressCallback | None) -> Iterator[PartSource]:
    """Yield every file unchanged, archives unopened; files without readable inputs are left out."""
    by_file: dict[str, list[Input]] = defaultdict(list)
    for row in rows:
        by_file[row.path].append(row)
        for match in re.finditer("!", row.path):
            by_file[row.path[: match.start()]].append(row)
    for path, label in list_files(paths):
        rows_of_file = by_file.pop(label, [])
        if isinstance(path, ExplicitFile) and is_bundle_file(path):
            raise BundleRefused(f"{os.fspath(path)} is already a bundle: copy it, or use --redact or --slice")
        if isinstance(path, Input) or all(row.status in _UNREADABLE for row in rows_of_file):
            yield from (omitted_input(row) for row in rows_of_file)
        elif rows_of_file:
            status = os.stat(path)
            yield PartSource(
                BundledInput(label, label, status.st_mtime), _file(os.fspath(path), on_progress), size=status.st_size
            )


def omitted_input(row: Input, redactor: Redactor | None = None) -> PartSource:
    """An input of which only the row is included."""
    doc = BundledInput(row.path, None, None, "", row.status, row.note, row.plane, row.note or row.status)
    return PartSource(doc if redactor is None else redact_doc(doc, redactor))


def _file(path: str, on_progress: ProgressCallback | None) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(PIECE_BYTES):
            yield data
            if on_progress is not None:
                on_progress(len(data))


@dataclass(frozen=True, slots=True)
class SingleInputs:
    """Inputs one by one. ``rows``: ``inputs`` row by path. ``kept_parts``: what to keep of large logs (None:
    everything). ``with_rows``: paths of files from which readers got events or records, not only samples."""

    paths: Paths
    rows: Mapping[str, Input]
    with_rows: frozenset[str]
    kept_parts: Mapping[str, FileParts] | None = None
    sample_filter: SampleFilter | None = None
    redactor: Redactor | None = None

    def parts(self, on_progress: ProgressCallback | None) -> Iterator[PartSource]:
        """Yield the inputs. Read each before the next: they come from one stream."""
        for item in walk(self.paths, on_progress):
            row = self.rows.get(item.path)
            if isinstance(item, Input) or row is None or row.status in _UNREADABLE:
                added_later = Input(item.path, None, "unreadable", "added while the bundle was made")
                yield omitted_input(item if isinstance(item, Input) else row or added_later, self.redactor)
            else:
                yield self._part(item, row)

    def _part(self, source: InputSource, row: Input) -> PartSource:
        doc = BundledInput(source.path, PACKED.sub("", source.path), source.modified)
        stream: io.BufferedIOBase = source.stream  # type: ignore[assignment]
        describe_excerpt: Callable[[], str] = str
        binary = b"\0" in source.head
        if row.plane == "metric" and row.path not in self.with_rows and (binary or self._is_large(source)):
            writer = export(source, (self.sample_filter if self.kept_parts is not None else None) or SampleFilter())
            stream = _chain(writer.lines())
            doc = msgspec.structs.replace(doc, member=f"{doc.member}.samples.jsonl")
            describe_excerpt = partial(_describe_export, writer)
        elif binary and self.redactor is not None:
            data = source.whole()
            try:
                stream = io.BytesIO(json.dumps(load(data), default=_text).encode())
            except (ValueError, RecursionError):
                return omitted_input(
                    Input(row.path, None, "refused", "binary data cannot be redacted", 0), self.redactor
                )
            describe_excerpt = "as JSON".__str__
        elif row.format == "hang-report" and self.redactor is not None:
            stream = _chain(line for line in stream if read_piece(line) is None)
            describe_excerpt = "flight recorder dumps left out: compressed data cannot be redacted".__str__
        elif row.format in FORMATS and self._is_large(source):
            slice_ = Slice(stream, (self.kept_parts or {}).get(source.path, FileParts()))
            stream = _chain(slice_)
            describe_excerpt = lambda: (  # noqa: E731
                f"{slice_.kept_lines:,} of {slice_.line_count:,} lines: both ends, cited lines with context, and lines"
                " with events"
            )
        if self.redactor is None:
            return PartSource(doc, iter(lambda: stream.read(PIECE_BYTES), b""), describe_excerpt)
        return PartSource(redact_doc(doc, self.redactor), self.redactor.stream(stream), describe_excerpt)

    def _is_large(self, source: InputSource) -> bool:
        """Whether parts of the source may be left out."""
        return self.kept_parts is not None and (source.size is None or source.size > MAX_WHOLE_BYTES)


def _describe_export(writer: SampleWriter) -> str:
    """What an export holds of its source."""
    left_out = f"; {writer.left_out_count:,} of other nodes or times left out" if writer.left_out_count else ""
    return f"as JSON lines, {writer.written_count:,} samples of the metrics that Trackside knows{left_out}"


def redact_doc(doc: BundledInput, redactor: Redactor) -> BundledInput:
    """The document with its texts redacted."""
    return msgspec.structs.replace(
        doc,
        path=redactor.text(doc.path),
        member=None if doc.member is None else redactor.text(doc.member),
        note=redactor.text(doc.note),
        because=redactor.text(doc.because),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _chain(pieces: Iterable[bytes]) -> io.BufferedReader:
    return io.BufferedReader(ChunkStream(pieces), PIECE_BYTES)
