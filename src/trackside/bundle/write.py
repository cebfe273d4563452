"""Writes a bundle: the inputs first, then the verdict that they give, then the list of both. What was written is judged
before it is published, and a bundle that would say something else than the inputs did is not."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from trackside.bundle.parts import NotBundled, Part, Single, left_out, whole
from trackside.bundle.redact.redactor import Redactor, pieces
from trackside.bundle.same import differences
from trackside.bundle.samples import Wanted
from trackside.bundle.slicing import spots_of
from trackside.finding import Verdict
from trackside.model import Event, Input
from trackside.read.bundle import (
    HEX,
    INPUTS,
    MANIFEST,
    MIMETYPE,
    SCHEMA,
    SEAL,
    VERDICT,
    Bundle,
    InputDoc,
    Manifest,
    MemberDoc,
    digest_of,
    parts_of,
)  # fmt: skip
from trackside.read.compression import compression_of
from trackside.read.format import Source
from trackside.read.walk import unpacked, walk
from trackside.session import Session
from trackside.session.inputs import LoadedInputs
from trackside.session.request import Paths, ProgressCallback
from trackside.show.document import document, encode
from trackside.version import package_version

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The only time in the zip: equal inputs give equal bytes. When an input was written is in the manifest."""
_BINARY = b"\0"


@dataclass(frozen=True, slots=True)
class Options:
    """How a bundle is to be. ``created``: ISO 8601, UTC. ``also``: words to be replaced beside what is found."""

    out: str
    created: str
    job: str | None = None
    sliced: bool = False
    redacted: bool = False
    also: tuple[str, ...] = ()
    force: bool = False
    despite: bool = False
    """Of a live run: also where what can be written gives another verdict."""
    notes: tuple[str, ...] = ()
    """What the manifest is to say."""
    missing: tuple[Input, ...] = ()
    """Inputs that only their rows are known of."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, and the SHA-256 of the whole file."""

    manifest: Manifest
    size: int
    sha256: str
    verdict: Verdict
    mapping: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def write(session: Session, paths: Paths, options: Options, on_progress: ProgressCallback | None = None) -> Written:
    """Write a bundle of what was judged. Raises NotBundled, FileExistsError or OSError; then nothing is at ``out``."""
    if os.path.lexists(options.out) and not options.force:
        raise FileExistsError(options.out)
    redactor = _learned(session, paths, options, on_progress) if options.redacted else None
    folder = os.path.dirname(os.path.abspath(options.out))
    handle, name = tempfile.mkstemp(prefix=".bundle-", suffix=".tsb", dir=folder)
    try:
        with os.fdopen(handle, "w+b") as file:
            written = _Writing(session, paths, options, redactor, file).write(on_progress)
        os.chmod(name, 0o666 & ~_umask())
        _publish(name, options)
    finally:
        if os.path.lexists(name):
            os.unlink(name)
    return written


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _publish(name: str, options: Options) -> None:
    """Put the file where it is to be, at once; a link never replaces what came there meanwhile."""
    if options.force:
        os.replace(name, options.out)
        return
    try:
        os.link(name, options.out)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(options.out):
            raise FileExistsError(options.out) from None
        os.replace(name, options.out)


def _learned(session: Session, paths: Paths, options: Options, on_progress: ProgressCallback | None) -> Redactor:
    """A redactor that knows the names in all that is to be written."""
    redactor = Redactor(options.also)
    redactor.learn_run(session.run)
    redactor.learn_rows(session.loaded.store.all_rows())
    for series in session.loaded.trajectories.series():
        redactor.learn_rows(held.event for held in series.stored_points())
    if session.loaded.metric_backend is not None:
        redactor.learn_series(held.series for held in session.loaded.metric_backend.series())
    redactor.learn("".join(f"{text}\n" for text in options.notes))
    redactor.learn("".join(f"{row.path}\n{row.note}\n" for row in options.missing))
    for found in walk(paths, on_progress):
        redactor.learn(found.path + "\n")
        if isinstance(found, Source) and _BINARY not in found.head:
            for data in pieces(found.stream):  # type: ignore[arg-type]
                redactor.learn(data.decode("utf-8", "surrogateescape"))
    redactor.settle()
    return redactor


class _Writing:
    """One bundle on its way."""

    def __init__(
        self, session: Session, paths: Paths, options: Options, redactor: Redactor | None, file: BinaryIO
    ) -> None:
        self._session, self._paths, self._options, self._redactor, self._file = session, paths, options, redactor, file
        self._members: list[MemberDoc] = []
        self._inputs: list[InputDoc] = []
        self._taken: set[str] = set()
        self._notes = [self._redacted(each) for each in options.notes]

    def write(self, on_progress: ProgressCallback | None) -> Written:
        """All of it. Raises NotBundled."""
        sliced = self._options.sliced
        verdict, unlike = self._tried(sliced, on_progress)
        if unlike and sliced:
            sliced = False
            self._notes.append(f"nothing is sliced: the slice alone would give another verdict ({'; '.join(unlike)})")
            verdict, unlike = self._tried(False, on_progress)
        if unlike:
            raise NotBundled(f"the bundle would give another verdict than its inputs: {'; '.join(unlike)}")
        data = encode(document(verdict))
        manifest = self._manifest(data, sliced)
        listing = encode(manifest)
        with zipfile.ZipFile(self._file, "a", zipfile.ZIP_DEFLATED) as archive:
            _member(archive, VERDICT, [data], size=len(data))
            _member(archive, MANIFEST, [listing], size=len(listing))
            archive.comment = SEAL + b"0" * HEX
        if self._redactor is not None:
            self._scan(self._redactor)
        size, digest = _seal(self._file)
        self._file.seek(0)
        Bundle(self._file)  # raises Damaged where it could not be read back
        mapping = self._redactor.mapping if self._redactor is not None else {}
        return Written(manifest, size, digest, verdict, mapping)

    def _tried(self, sliced: bool, on_progress: ProgressCallback | None) -> tuple[Verdict, list[str]]:
        """Write the inputs; gives the verdict on them, and in what it differs."""
        self._members, self._inputs, self._taken = [], [], set()
        self._file.seek(0)
        self._file.truncate()
        with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
            _member(archive, "mimetype", [MIMETYPE], zipfile.ZIP_STORED, len(MIMETYPE))
            for part in self._parts(sliced, on_progress):
                self._put(archive, part)
            for row in self._options.missing:
                self._put(archive, left_out(row, self._redactor))
        verdict = self._judged()
        return verdict, differences(self._session.verdict(), verdict, self._redacted)

    def _redacted(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.text(text)

    def _parts(self, sliced: bool, on_progress: ProgressCallback | None) -> Iterable[Part]:
        session = self._session
        if not sliced and self._redactor is None:
            return whole(self._paths, session.inputs, on_progress)
        rows = [row for row in session.loaded.store.all_rows() if isinstance(row, Event)]
        rows += [held.event for series in session.loaded.trajectories.series() for held in series.stored_points()]
        spots = spots_of(rows, (cite.query for cite in document(session.verdict()).cites.values())) if sliced else None
        told = frozenset(row.at.path for row in session.loaded.store.all_rows())
        by_path = {row.path: row for row in session.inputs}
        return Single(self._paths, by_path, told, spots, Wanted.of(session.run), self._redactor).parts(on_progress)

    def _put(self, archive: zipfile.ZipFile, part: Part) -> None:
        doc = part.doc
        if part.content is not None and doc.member is not None:
            name = self._name(doc.member)
            self._members.append(_member(archive, name, part.content, size=part.size))
            doc = msgspec.structs.replace(doc, member=name, kept=part.kept())
        self._inputs.append(doc)

    def _name(self, path: str) -> str:
        """The name of an input's member: its path, as any system can write it, and no other's."""
        safe = "".join("_" if letter in '<>:"|?*\\' else letter for letter in path)
        safe = "/".join(part.rstrip(" .") or "_" for part in safe.split("/"))
        name, number = INPUTS + safe, 2
        while name.lower() in self._taken:
            name, number = f"{INPUTS}{safe}#{number}", number + 1
        self._taken.add(name.lower())
        return name

    def _judged(self) -> Verdict:
        """What is said of the inputs that were written."""
        loaded = LoadedInputs(job=self._job, as_of=self._session.as_of)
        self._file.seek(0)
        with zipfile.ZipFile(self._file) as archive:
            for found in unpacked(parts_of(self._inputs, archive)):
                loaded.take(found)
        return Session.of(loaded).verdict()

    @property
    def _job(self) -> str | None:
        return self._options.job or self._session.loaded.job

    def _manifest(self, verdict: bytes, sliced: bool) -> Manifest:
        told = MemberDoc(VERDICT, len(verdict), hashlib.sha256(verdict).hexdigest())
        return Manifest(
            schema=SCHEMA,
            created=self._options.created,
            trackside=package_version(),
            python=platform.python_version(),
            members=[*self._members, told],
            inputs=self._inputs,
            verdict_sha256=told.sha256,
            job=self._job,
            now=self._session.as_of,
            sliced=sliced,
            redacted=self._redactor is not None,
            replaced=self._redactor.replaced if self._redactor is not None else {},
            notes=self._notes,
        )

    def _scan(self, redactor: Redactor) -> None:
        """Look for what was replaced in every member and name. Raises NotBundled."""
        self._file.seek(0)
        with zipfile.ZipFile(self._file) as archive:
            traces = redactor.traces()
            for info in archive.infolist():
                found = traces.leaks(info.filename.encode("utf-8", "surrogateescape"))
                with archive.open(info) as stream:
                    for data in pieces(stream):  # type: ignore[arg-type]
                        found |= traces.leaks(data)
                if found:
                    what = ", ".join(sorted(found)[:3])
                    raise NotBundled(
                        f"{redactor.text(info.filename)} still holds what was to be replaced: what is called {what};"
                        " nothing was written. Leave that file out, or report this"
                    )


def _member(
    archive: zipfile.ZipFile,
    name: str,
    content: Iterable[bytes],
    method: int = zipfile.ZIP_DEFLATED,
    size: int | None = None,
) -> MemberDoc:
    """Add a member; what is compressed already is stored."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr, info.compress_type = 3, 0o100644 << 16, method
    parts = iter(content)
    first = next(parts, b"")
    if compression_of(first):
        info.compress_type = zipfile.ZIP_STORED
    digest, count = hashlib.sha256(), 0
    with archive.open(info, "w", force_zip64=size is None or size >= 1 << 31) as out:
        data: bytes | None = first
        while data is not None:
            digest.update(data)
            count += len(data)
            out.write(data)
            data = next(parts, None)
    return MemberDoc(name, count, digest.hexdigest())


def _seal(file: BinaryIO) -> tuple[int, str]:
    """Write the SHA-256 of all before it at the end; gives the size, and the SHA-256 of the whole."""
    size = file.seek(0, os.SEEK_END)
    digest = digest_of(file, size - HEX)
    seal = digest.hexdigest().encode()
    file.seek(size - HEX)
    file.write(seal)
    file.flush()
    os.fsync(file.fileno())
    digest.update(seal)
    return size, digest.hexdigest()
