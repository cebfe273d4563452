"""Reads a bundle: one file with a run's evidence, its verdict and a manifest (docs/bundle.md).

A bundle is a plain zip, so any tool can open it. Three things are specific to it: the first member, ``mimetype``, names
the type; ``manifest.json`` lists every other member with its SHA-256; and the zip's comment, at the end of the file,
holds the SHA-256 of everything before it. A bundle that differs from what was written is refused as a whole.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, BinaryIO

import msgspec

from trackside.errors import TracksideError
from trackside.model import InputStatus, Plane
from trackside.read.archive import escapes, printable_name
from trackside.read.compression import FREE_BYTES, MAX_MEMBERS, MAX_RATIO

SCHEMA = "trackside.bundle/1"
MIMETYPE = b"application/vnd.trackside.bundle+zip"
MANIFEST, VERDICT, INPUTS = "manifest.json", "verdict.json", "inputs/"
SEAL = b"trackside.bundle/1 sha256="
"""Start of the zip's comment. 64 hexadecimal digits follow, the last bytes of the file."""
DIGEST_LENGTH = 64
MAX_DIRECTORY_BYTES = 64 << 20
"""Largest manifest, verdict or zip directory, bytes."""
PIECE_BYTES = 1 << 20
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, OSError, EOFError, ValueError,
           NotImplementedError, RuntimeError, OverflowError, KeyError)  # fmt: skip
ProgressCallback = Callable[[int], None]
"""Called with the number of further bytes done; over a whole walk these add up to the sizes of the files on disk."""


class DamagedBundle(TracksideError, ValueError):
    """A bundle that is not what was written. The message says which part differs."""


class NotABundle(DamagedBundle):
    """A file without the end of a bundle."""


class MemberDoc(msgspec.Struct, frozen=True):
    """A member of the zip."""

    name: str
    size: int
    sha256: str


class BundledInput(msgspec.Struct, frozen=True):
    """One input of the verdict, in reading order. ``path``: its name in citations. ``member``: the zip member with its
    bytes; null if it was left out, then ``status`` and ``note`` are set."""

    path: str
    member: str | None = None
    modified: float | None = None
    """When the file was last written, POSIX seconds."""
    excerpt: str = msgspec.field(default="", name="kept")
    """What the bundle contains of the input, if not the unchanged file."""
    status: InputStatus | None = None
    note: str = ""
    plane: Plane | None = None
    because: str = ""
    """Why it was left out."""


class BundleManifest(msgspec.Struct, frozen=True):
    """``manifest.json``: the contents of a bundle."""

    schema: str
    created: str
    """Time of creation, ISO 8601, UTC."""
    trackside: str
    python: str
    members: list[MemberDoc]
    inputs: list[BundledInput]
    verdict_sha256: str
    job: str | None = None
    """The job that the verdict is about, if the user named one."""
    now: float | None = None
    """The time that the verdict took as the present, POSIX seconds."""
    sliced: bool = False
    redacted: bool = False
    replaced: dict[str, int] = {}
    """Kind of redacted name -> number of distinct names replaced."""
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class BundlePart:
    """An input of an open bundle. Read ``stream`` before taking the next input; None if the input was left out."""

    doc: BundledInput
    stream: IO[bytes] | None
    size: int = 0


def is_bundle(head: bytes) -> bool:
    """Whether a head is that of a bundle."""
    return (
        head[:4] == b"PK\x03\x04" and head[26:38] == b"\x08\0\0\0mimetype" and head[38 : 38 + len(MIMETYPE)] == MIMETYPE
    )


def is_bundle_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file at ``path`` is a bundle."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return is_bundle(file.read(128))
    except OSError:
        return False


class Bundle:
    """An open bundle. The constructor reads the manifest; :meth:`check` compares all bytes with it."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises DamagedBundle."""
        self._file = file
        self._size, self._seal = _size_and_seal(file)
        try:
            self._zip = zipfile.ZipFile(file)
            self._infos = _members_by_name(self._zip.infolist())
            self.manifest = self._manifest()
        except DamagedBundle:
            raise
        except _BROKEN as error:
            raise DamagedBundle(f"its list of members cannot be read: {error}") from None
        self._check_members()

    def _manifest(self) -> BundleManifest:
        info = self._infos.get(MANIFEST)
        if info is None or info.file_size > MAX_DIRECTORY_BYTES:
            raise DamagedBundle(
                f"{MANIFEST} is missing" if info is None else f"{MANIFEST} has {info.file_size:,} bytes"
            )
        with self._zip.open(info) as stream:
            data = stream.read(MAX_DIRECTORY_BYTES)
        try:
            schema = msgspec.json.decode(data, type=_Schema).schema
            if schema != SCHEMA:
                raise DamagedBundle(
                    f"{MANIFEST} has schema {printable_name(schema)!r}; this version of Trackside reads {SCHEMA}"
                )
            return msgspec.json.decode(data, type=BundleManifest)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise DamagedBundle(f"{MANIFEST}: {error}") from None

    def _check_members(self) -> None:
        """Compare the members with those that the manifest lists. Raises DamagedBundle."""
        member_docs = {member.name: member for member in self.manifest.members}
        if len(member_docs) < len(self.manifest.members):
            raise DamagedBundle(f"{MANIFEST} names a member twice")
        for name in self._infos:
            if name not in member_docs and name not in (MANIFEST, "mimetype"):
                raise DamagedBundle(f"{printable_name(name)}: not listed in {MANIFEST}; it was added later")
        for name, member in member_docs.items():
            info = self._infos.get(name)
            if info is None:
                raise DamagedBundle(f"{printable_name(name)}: missing; {MANIFEST} lists it")
            if info.file_size != member.size:
                raise DamagedBundle(
                    f"{printable_name(name)}: changed: {info.file_size:,} bytes instead of {member.size:,}"
                )
        if VERDICT in member_docs and member_docs[VERDICT].sha256 != self.manifest.verdict_sha256:
            raise DamagedBundle(f"{MANIFEST} gives two different SHA-256 for {VERDICT}")
        for input_doc in self.manifest.inputs:
            if input_doc.member is not None and (
                input_doc.member not in member_docs or not input_doc.member.startswith(INPUTS)
            ):
                raise DamagedBundle(f"{printable_name(input_doc.member)}: an input that is not a member")
        total = sum(info.file_size for info in self._infos.values())
        if total > max(FREE_BYTES, MAX_RATIO * self._size):
            raise DamagedBundle(f"it expands more than {MAX_RATIO}:1, to {total >> 20:,} MiB")

    def check(self, on_progress: ProgressCallback | None = None) -> None:
        """Compare every byte with the manifest. ``on_progress`` receives the bytes done. Raises DamagedBundle."""
        is_sealed = digest_of(self._file, self._size - DIGEST_LENGTH).hexdigest() == self._seal
        for member in self.manifest.members:
            self._check_member(member)
            if on_progress is not None:
                on_progress(self._infos[member.name].compress_size)
        if not is_sealed:
            raise DamagedBundle("changed outside of its members: the SHA-256 at its end does not match")

    def _check_member(self, member: MemberDoc) -> None:
        try:
            with self._zip.open(self._infos[member.name]) as stream:
                digest = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
        except _BROKEN as error:
            raise DamagedBundle(f"{printable_name(member.name)}: changed: {error}") from None
        if digest.hexdigest() != member.sha256:
            raise DamagedBundle(
                f"{printable_name(member.name)}: changed: its SHA-256 differs from the one in {MANIFEST}"
            )

    def verdict(self) -> bytes:
        """The verdict document as JSON. Raises DamagedBundle."""
        info = self._infos.get(VERDICT)
        if info is None or info.file_size > MAX_DIRECTORY_BYTES:
            raise DamagedBundle(f"{VERDICT} is missing or too large")
        with self._zip.open(info) as stream:
            return stream.read(MAX_DIRECTORY_BYTES)

    def inputs(self) -> Iterator[BundlePart]:
        """The inputs, in reading order."""
        return parts_of(self.manifest.inputs, self._zip)


def digest_of(file: BinaryIO, count: int) -> hashlib._Hash:
    """The SHA-256 of a file's first ``count`` bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while count > 0 and (data := file.read(min(PIECE_BYTES, count))):
        count -= len(data)
        digest.update(data)
    return digest


def parts_of(docs: Iterable[BundledInput], archive: zipfile.ZipFile) -> Iterator[BundlePart]:
    """Yield the inputs with their bytes."""
    for doc in docs:
        if doc.member is None:
            yield BundlePart(doc, None)
            continue
        info = archive.getinfo(doc.member)
        with archive.open(info) as stream:
            yield BundlePart(doc, stream, info.file_size)


class _Schema(msgspec.Struct):
    schema: str


@contextmanager
def open_bundle(path: str | os.PathLike[str]) -> Iterator[Bundle]:
    """Open the bundle at ``path`` without checking its bytes. Raises DamagedBundle; its cause is an OSError if the file
    could not be read."""
    try:
        with open(path, "rb") as file:
            yield Bundle(file)
    except OSError as error:
        raise DamagedBundle(error.strerror or str(error)) from error


def recorded_job_and_time(path: str | os.PathLike[str]) -> tuple[str | None, float | None]:
    """The job and the present time recorded in a bundle's manifest, each None if not recorded. Both are None for any
    other file and for a damaged bundle."""
    if is_bundle_file(path):
        try:
            with open_bundle(path) as bundle:
                return bundle.manifest.job, bundle.manifest.now
        except DamagedBundle:
            pass
    return None, None


def _size_and_seal(file: BinaryIO) -> tuple[int, str]:
    """Size of the file and the SHA-256 at its end, after checking that the zip directory is not too large.

    Raises DamagedBundle.
    """
    size = file.seek(0, os.SEEK_END)
    comment = len(SEAL) + DIGEST_LENGTH
    end_offset = size - comment - _END.size
    file.seek(max(0, end_offset))
    tail = file.read(_END.size + comment)
    if end_offset < 0 or tail[:4] != b"PK\x05\x06" or tail[_END.size : _END.size + len(SEAL)] != SEAL:
        raise NotABundle("it does not end with a bundle's checksum")
    length = _END.unpack_from(tail)[5]
    if length == 0xFFFFFFFF and end_offset >= _LOCATOR.size + _END64.size:
        file.seek(end_offset - _LOCATOR.size - _END64.size)
        length = _END64.unpack(file.read(_END64.size))[8]
    if length > MAX_DIRECTORY_BYTES:
        raise DamagedBundle(f"a list of members of {length:,} bytes")
    return size, tail[-DIGEST_LENGTH:].decode("ascii", "replace")


def _members_by_name(infos: list[zipfile.ZipInfo]) -> Mapping[str, zipfile.ZipInfo]:
    """The members by name. Raises DamagedBundle for members that a bundle never has."""
    if len(infos) > MAX_MEMBERS:
        raise DamagedBundle(f"more than {MAX_MEMBERS:,} members")
    by_name: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.orig_filename != name or escapes(name) or printable_name(name) != name:
            raise DamagedBundle(f"{printable_name(name)}: a name that points outside the bundle")
        if name in by_name:
            raise DamagedBundle(f"{printable_name(name)}: appears twice")
        if kind not in (0, stat.S_IFREG) or info.flag_bits & 1 or info.compress_type not in (0, 8):
            raise DamagedBundle(
                f"{printable_name(name)}: a link, encrypted, or compressed with a method that bundles don't use"
            )
        by_name[name] = info
    return by_name
