"""What goes into a bundle: the inputs as they are, or one by one out of their archives, cut down and redacted."""

from __future__ import annotations

import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from trackside.bundle.redact.redactor import Redactor
from trackside.bundle.samples import Wanted, export
from trackside.bundle.slicing import FORMATS, SMALL, Slice, Spots
from trackside.catalog.hang_lines import read_piece
from trackside.errors import TracksideError
from trackside.model import Input
from trackside.read.bundle import PIECE, InputDoc, is_bundle_file
from trackside.read.format import Source
from trackside.read.pieces import Joined
from trackside.read.plain_pickle import load
from trackside.read.walk import Given, listed, walk
from trackside.session.request import Paths, ProgressCallback

PACKED = re.compile(r"\.(?:gz|bz2|xz|zst|zstd)(?=!|\Z)")
_NOTHING = frozenset({"unrecognised", "unreadable", "refused"})


@dataclass(slots=True)
class Part:
    """One input: its bytes, or why there are none. ``doc.kept`` is worked out once all was read."""

    doc: InputDoc
    content: Iterable[bytes] | None = None
    kept: Callable[[], str] = str
    size: int | None = None


class NotBundled(TracksideError, ValueError):
    """What was asked can't be made a bundle of; the message says why."""


def whole(paths: Paths, rows: Sequence[Input], on_progress: ProgressCallback | None) -> Iterator[Part]:
    """Every file as it is, archives unopened; those in which nothing can be read are left out."""
    by_file: dict[str, list[Input]] = defaultdict(list)
    for row in rows:
        by_file[row.path].append(row)
        for match in re.finditer("!", row.path):
            by_file[row.path[: match.start()]].append(row)
    for path, label in listed(paths):
        of_it = by_file.pop(label, [])
        if isinstance(path, Given) and is_bundle_file(path):
            raise NotBundled(f"{os.fspath(path)} is a bundle already: copy it, or give --redact or --slice")
        if isinstance(path, Input) or all(row.status in _NOTHING for row in of_it):
            yield from (left_out(row) for row in of_it)
        elif of_it:
            status = os.stat(path)
            yield Part(
                InputDoc(label, label, status.st_mtime), _file(os.fspath(path), on_progress), size=status.st_size
            )


def left_out(row: Input, redactor: Redactor | None = None) -> Part:
    """An input of which only its row is kept."""
    doc = InputDoc(row.path, None, None, "", row.status, row.note, row.plane, row.note or row.status)
    return Part(doc if redactor is None else redacted_doc(doc, redactor))


def _file(path: str, on_progress: ProgressCallback | None) -> Iterator[bytes]:
    with open(path, "rb") as file:
        while data := file.read(PIECE):
            yield data
            if on_progress is not None:
                on_progress(len(data))


@dataclass(frozen=True, slots=True)
class Single:
    """Inputs one by one. ``rows``: by path, what came of reading each. ``spots``: what is kept of large logs;
    without, all. ``told``: files of which readers had more than samples."""

    paths: Paths
    rows: Mapping[str, Input]
    told: frozenset[str]
    spots: Mapping[str, Spots] | None = None
    wanted: Wanted | None = None
    redactor: Redactor | None = None

    def parts(self, on_progress: ProgressCallback | None) -> Iterator[Part]:
        """Take each before the next: they are read out of one stream."""
        for found in walk(self.paths, on_progress):
            row = self.rows.get(found.path)
            if isinstance(found, Input) or row is None or row.status in _NOTHING:
                late = Input(found.path, None, "unreadable", "came while the bundle was made")
                yield left_out(found if isinstance(found, Input) else row or late, self.redactor)
            else:
                yield self._part(found, row)

    def _part(self, source: Source, row: Input) -> Part:
        doc = InputDoc(source.path, PACKED.sub("", source.path), source.modified)
        stream: io.BufferedIOBase = source.stream  # type: ignore[assignment]
        kept: Callable[[], str] = str
        binary = b"\0" in source.head
        if row.plane == "metric" and row.path not in self.told and (binary or self._is_large(source)):
            written = export(source, (self.wanted if self.spots is not None else None) or Wanted())
            stream = _joined(written.lines())
            doc = msgspec.structs.replace(doc, member=f"{doc.member}.samples.jsonl")
            note = f"{written.kept:,} samples as JSON lines; {written.left_out:,} of other nodes and times left out"
            kept = note.__str__
        elif binary and self.redactor is not None:
            data = source.whole()
            try:
                stream = io.BytesIO(json.dumps(load(data), default=_text).encode())
            except (ValueError, RecursionError):
                return left_out(Input(row.path, None, "refused", "binary: can't be redacted", 0), self.redactor)
            kept = "as JSON".__str__
        elif row.format == "hang-report" and self.redactor is not None:
            stream = _joined(line for line in stream if read_piece(line) is None)
            kept = "flight recorders in it left out: packed, they can't be redacted".__str__
        elif row.format in FORMATS and self._is_large(source):
            cut = Slice(stream, (self.spots or {}).get(source.path, Spots()))
            stream = _joined(cut)
            kept = lambda: f"{cut.kept:,} of {cut.lines:,} lines: both ends, what is cited with context, what was read"  # noqa: E731
        if self.redactor is None:
            return Part(doc, iter(lambda: stream.read(PIECE), b""), kept)
        return Part(redacted_doc(doc, self.redactor), self.redactor.stream(stream), kept)

    def _is_large(self, source: Source) -> bool:
        """Whether something of it may be left out."""
        return self.spots is not None and (source.size is None or source.size > SMALL)


def redacted_doc(doc: InputDoc, redactor: Redactor) -> InputDoc:
    """The same with its texts redacted."""
    return msgspec.structs.replace(
        doc,
        path=redactor.text(doc.path),
        member=None if doc.member is None else redactor.text(doc.member),
        note=redactor.text(doc.note),
        because=redactor.text(doc.because),
    )


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _joined(pieces: Iterable[bytes]) -> io.BufferedReader:
    return io.BufferedReader(Joined(pieces), PIECE)
