"""Writes a bundle: the inputs, then the verdict on them, then the manifest. The written inputs are diagnosed before the
bundle is published; a bundle that gives a different verdict than the original inputs is not published."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from trackside.bundle.differences import differences
from trackside.bundle.parts import BundleRefused, PartSource, SingleInputs, omitted_input, whole_files
from trackside.bundle.redact.redactor import Redactor, pieces
from trackside.bundle.redact.remaining import RemainingWords
from trackside.bundle.samples import SampleFilter
from trackside.bundle.slicing import parts_to_keep
from trackside.finding import Verdict
from trackside.model import Event, Input
from trackside.read.bundle import (
    DIGEST_LENGTH,
    INPUTS,
    MANIFEST,
    MIMETYPE,
    SCHEMA,
    SEAL,
    VERDICT,
    Bundle,
    BundledInput,
    BundleManifest,
    MemberDoc,
    digest_of,
    parts_of,
)  # fmt: skip
from trackside.read.compression import compression_of
from trackside.read.format import InputSource
from trackside.read.walk import bundle_sources, walk
from trackside.session import Session
from trackside.session.inputs import LoadedInputs
from trackside.session.other_runs import has_other_jobs
from trackside.session.request import Paths, ProgressCallback
from trackside.show.document import document, encode
from trackside.version import package_version

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The time of all zip members, so that equal inputs give equal bytes. Modification times are in the manifest."""
_BINARY = b"\0"


@dataclass(frozen=True, slots=True)
class BundleOptions:
    """Options of a bundle. ``created``: ISO 8601, UTC. ``extra_words``: words to redact besides those found."""

    out: str
    created: str
    job: str | None = None
    sliced: bool = False
    redacted: bool = False
    extra_words: tuple[str, ...] = ()
    force: bool = False
    despite: bool = False
    """Whether to write the bundle of a live run even if the verdict differs."""
    notes: tuple[str, ...] = ()
    """Notes for the manifest."""
    missing: tuple[Input, ...] = ()
    """Inputs of which only the row is known."""


@dataclass(frozen=True, slots=True)
class WrittenBundle:
    """The bundle that was written, with the SHA-256 of the whole file."""

    manifest: BundleManifest
    size: int
    sha256: str
    verdict: Verdict
    mapping: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    remaining: Sequence[str] = ()
    """Words of a redacted bundle that look random, and may be secrets of an unknown form."""


def write(
    session: Session, paths: Paths, options: BundleOptions, on_progress: ProgressCallback | None = None
) -> WrittenBundle:
    """Write a bundle of a session. Raises BundleRefused, FileExistsError or OSError, then without leaving a file at
    ``out``."""
    if os.path.lexists(options.out) and not options.force:
        raise FileExistsError(options.out)
    redactor = _trained_redactor(session, paths, options, on_progress) if options.redacted else None
    folder = os.path.dirname(os.path.abspath(options.out))
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, f"folder {folder} does not exist", options.out)
    try:
        handle, name = tempfile.mkstemp(prefix=".bundle-", suffix=".tsb", dir=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, options.out) from None
    try:
        with os.fdopen(handle, "w+b") as file:
            written_bundle = _BundleWriter(session, paths, options, redactor, file).write(on_progress)
        os.chmod(name, 0o666 & ~_umask())
        _publish(name, options)
    finally:
        if os.path.lexists(name):
            os.unlink(name)
    return written_bundle


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _publish(name: str, options: BundleOptions) -> None:
    """Move the file to its destination atomically; a link never replaces a file that appeared in between."""
    if options.force:
        os.replace(name, options.out)
        return
    try:
        os.link(name, options.out)
    except FileExistsError:
        raise
    except OSError:  # the file system does not support links
        if os.path.lexists(options.out):
            raise FileExistsError(options.out) from None
        os.replace(name, options.out)


def _trained_redactor(
    session: Session, paths: Paths, options: BundleOptions, on_progress: ProgressCallback | None
) -> Redactor:
    """A redactor that has learned the names in everything to be written."""
    redactor = Redactor(options.extra_words)
    redactor.learn_run(session.run)
    redactor.learn_rows(session.loaded.store.all_rows())
    for series in session.loaded.trajectories.series():
        redactor.learn_rows(entry.event for entry in series.points_to_store())
    if session.loaded.metric_backend is not None:
        redactor.learn_series(entry.series for entry in session.loaded.metric_backend.series())
    redactor.learn("".join(f"{text}\n" for text in options.notes))
    redactor.learn("".join(f"{row.path}\n{row.note}\n" for row in options.missing))
    for item in walk(paths, on_progress):
        redactor.learn(item.path + "\n")
        if isinstance(item, InputSource) and _BINARY not in item.head:
            for data in pieces(item.stream):  # type: ignore[arg-type]
                redactor.learn(data.decode("utf-8", "surrogateescape"))
    redactor.assign_pseudonyms()
    return redactor


class _BundleWriter:
    """Writes one bundle."""

    def __init__(
        self, session: Session, paths: Paths, options: BundleOptions, redactor: Redactor | None, file: BinaryIO
    ) -> None:
        self._session, self._paths, self._options, self._redactor, self._file = session, paths, options, redactor, file
        self._members: list[MemberDoc] = []
        self._inputs: list[BundledInput] = []
        self._used_names: set[str] = set()
        self._notes = [self._redact(note) for note in options.notes]

    def write(self, on_progress: ProgressCallback | None) -> WrittenBundle:
        """Write the bundle. Raises BundleRefused."""
        sliced = self._options.sliced
        verdict, changes = self._write_inputs(sliced, on_progress)
        if changes and sliced:
            sliced = False
            self._notes.append(f"not sliced because a slice would give a different verdict ({'; '.join(changes)})")
            verdict, changes = self._write_inputs(False, on_progress)
        if changes:
            raise BundleRefused(f"the bundle would give a different verdict than its inputs: {'; '.join(changes)}")
        data = encode(document(verdict))
        manifest = self._manifest(data, sliced)
        listing = encode(manifest)
        with zipfile.ZipFile(self._file, "a", zipfile.ZIP_DEFLATED) as archive:
            _member(archive, VERDICT, [data], size=len(data))
            _member(archive, MANIFEST, [listing], size=len(listing))
            archive.comment = SEAL + b"0" * DIGEST_LENGTH
        remaining = RemainingWords()
        if self._redactor is not None:
            self._scan(self._redactor, remaining)
        size, digest = _seal(self._file)
        self._file.seek(0)
        Bundle(self._file)  # raises DamagedBundle if it cannot be read back
        mapping = self._redactor.mapping if self._redactor is not None else {}
        return WrittenBundle(manifest, size, digest, verdict, mapping, remaining.words)

    def _write_inputs(self, sliced: bool, on_progress: ProgressCallback | None) -> tuple[Verdict, list[str]]:
        """Write the inputs; returns the verdict on them and its differences from the session's verdict."""
        self._members, self._inputs, self._used_names = [], [], set()
        self._file.seek(0)
        self._file.truncate()
        with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
            _member(archive, "mimetype", [MIMETYPE], zipfile.ZIP_STORED, len(MIMETYPE))
            for part in self._parts(sliced, on_progress):
                self._add(archive, part)
            for row in self._options.missing:
                self._add(archive, omitted_input(row, self._redactor))
        verdict = self._verdict_on_written()
        return verdict, differences(self._session.verdict(), verdict, self._redact)

    def _redact(self, text: str) -> str:
        return text if self._redactor is None else self._redactor.text(text)

    def _parts(self, sliced: bool, on_progress: ProgressCallback | None) -> Iterable[PartSource]:
        session = self._session
        if not sliced and self._redactor is None:
            return whole_files(self._paths, session.inputs, on_progress)
        rows = [row for row in session.loaded.store.all_rows() if isinstance(row, Event)]
        rows += [entry.event for series in session.loaded.trajectories.series() for entry in series.points_to_store()]
        kept_parts = (
            parts_to_keep(rows, (cite.query for cite in document(session.verdict()).cites.values())) if sliced else None
        )
        with_rows = frozenset(row.at.path for row in session.loaded.store.all_rows())
        by_path = {row.path: row for row in session.inputs}
        return SingleInputs(
            self._paths, by_path, with_rows, kept_parts, SampleFilter.of(session.run), self._redactor
        ).parts(on_progress)

    def _add(self, archive: zipfile.ZipFile, part: PartSource) -> None:
        doc = part.doc
        if part.content is not None and doc.member is not None:
            name = self._member_name(doc.member)
            self._members.append(_member(archive, name, part.content, size=part.size))
            doc = msgspec.structs.replace(doc, member=name, excerpt=part.describe_excerpt())
        self._inputs.append(doc)

    def _member_name(self, path: str) -> str:
        """A unique member name for an input: its path, with characters that every system supports."""
        safe = "".join("_" if letter in '<>:"|?*\\' else letter for letter in path)
        safe = "/".join(part.rstrip(" .") or "_" for part in safe.split("/"))
        name, number = INPUTS + safe, 2
        while name.lower() in self._used_names:
            name, number = f"{INPUTS}{safe}#{number}", number + 1
        self._used_names.add(name.lower())
        return name

    def _verdict_on_written(self) -> Verdict:
        """The verdict on the written inputs."""
        loaded = LoadedInputs(job=self._job, as_of=self._session.as_of)
        self._file.seek(0)
        with zipfile.ZipFile(self._file) as archive:
            for item in bundle_sources(parts_of(self._inputs, archive)):
                loaded.read(item)
        return Session.of(loaded).verdict()

    @property
    def _job(self) -> str | None:
        """The job that the bundle is about: the chosen one, or the one of several that the verdict is about."""
        session = self._session
        return self._options.job or session.loaded.job or (session.run.id if has_other_jobs(session.store) else None)

    def _manifest(self, verdict: bytes, sliced: bool) -> BundleManifest:
        verdict_member = MemberDoc(VERDICT, len(verdict), hashlib.sha256(verdict).hexdigest())
        return BundleManifest(
            schema=SCHEMA,
            created=self._options.created,
            trackside=package_version(),
            python=platform.python_version(),
            members=[*self._members, verdict_member],
            inputs=self._inputs,
            verdict_sha256=verdict_member.sha256,
            job=self._job,
            now=self._session.as_of,
            sliced=sliced,
            redacted=self._redactor is not None,
            replaced=self._redactor.replaced if self._redactor is not None else {},
            notes=self._notes,
        )

    def _scan(self, redactor: Redactor, remaining: RemainingWords) -> None:
        """Search every member and name for redacted originals, and the inputs for what may be left. Raises
        BundleRefused."""
        self._file.seek(0)
        with zipfile.ZipFile(self._file) as archive:
            search = redactor.leak_search()
            for info in archive.infolist():
                leaks = search.leaks(info.filename.encode("utf-8", "surrogateescape"))
                with archive.open(info) as stream:
                    for data in pieces(stream):  # type: ignore[arg-type]
                        leaks |= search.leaks(data)
                        if info.filename.startswith(INPUTS):
                            remaining.take(data)
                if leaks:
                    leak_names = ", ".join(sorted(leaks)[:3])
                    raise BundleRefused(
                        f"{redactor.text(info.filename)} still contains originals of: {leak_names};"
                        " nothing was written. Leave that file out, or report this as a bug"
                    )


def _member(
    archive: zipfile.ZipFile,
    name: str,
    content: Iterable[bytes],
    method: int = zipfile.ZIP_DEFLATED,
    size: int | None = None,
) -> MemberDoc:
    """Add a member; content that is already compressed is stored uncompressed."""
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
    """Write the SHA-256 of everything before it at the end; returns the size and the SHA-256 of the whole file."""
    size = file.seek(0, os.SEEK_END)
    digest = digest_of(file, size - DIGEST_LENGTH)
    seal = digest.hexdigest().encode()
    file.seek(size - DIGEST_LENGTH)
    file.write(seal)
    file.flush()
    os.fsync(file.fileno())
    digest.update(seal)
    return size, digest.hexdigest()
