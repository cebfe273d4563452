"""A bundle: one file that holds a run's evidence, the verdict on it and a list of both (docs/bundle.md).

It is a plain zip, so that anybody can open it. Three things are ours: the first member, ``mimetype``, says what it is;
``manifest.json`` names every other member with its SHA-256; and the zip's comment, which stands at the very end, holds
the SHA-256 of all that stands before it. A bundle that is not exactly what was written is refused as a whole.
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
from trackside.read.archive import escapes, shown
from trackside.read.compression import FREE_BYTES, MAX_MEMBERS, MAX_RATIO

SCHEMA = "trackside.bundle/1"
MIMETYPE = b"application/vnd.trackside.bundle+zip"
MANIFEST, VERDICT, INPUTS = "manifest.json", "verdict.json", "inputs/"
SEAL = b"trackside.bundle/1 sha256="
"""The zip's comment begins so; 64 hexadecimal digits follow, the last bytes of the file."""
HEX = 64
MOST_LIST = 64 << 20
"""Bytes of a manifest or of the zip's own list of members."""
PIECE = 1 << 20
_END, _END64, _LOCATOR = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q"), struct.Struct("<4sLQL")
_BROKEN = (zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, OSError, EOFError, ValueError,
           NotImplementedError, RuntimeError, OverflowError, KeyError)  # fmt: skip
Tick = Callable[[int], None]


class Damaged(TracksideError, ValueError):
    """A bundle that is not what was written; the message says which part of it."""


class MemberDoc(msgspec.Struct, frozen=True):
    """A member of the zip."""

    name: str
    size: int
    sha256: str


class InputDoc(msgspec.Struct, frozen=True):
    """One input of the verdict, in the order of reading. ``path``: what citations call it. ``member``: where its bytes
    are; null for one that was left out, of which ``status`` and ``note`` are known."""

    path: str
    member: str | None = None
    modified: float | None = None
    """When the file was last written, POSIX seconds."""
    kept: str = ""
    """What is in the bundle of it, where that is not the file as it was."""
    status: InputStatus | None = None
    note: str = ""
    plane: Plane | None = None
    because: str = ""
    """Why it was left out."""


class Manifest(msgspec.Struct, frozen=True):
    """What a bundle holds: ``manifest.json``."""

    schema: str
    created: str
    """When, ISO 8601, UTC."""
    trackside: str
    python: str
    members: list[MemberDoc]
    inputs: list[InputDoc]
    verdict_sha256: str
    job: str | None = None
    """The job that the verdict is on, where it was asked for."""
    now: float | None = None
    """What was taken as the present, POSIX seconds."""
    sliced: bool = False
    redacted: bool = False
    replaced: dict[str, int] = {}
    """Kind -> how many distinct ones were replaced."""
    notes: list[str] = []


@dataclass(frozen=True, slots=True)
class Part:
    """An input of an open bundle: read ``stream`` before taking the next; None for one that was left out."""

    doc: InputDoc
    stream: IO[bytes] | None
    size: int = 0


def is_bundle(head: bytes) -> bool:
    """Whether a head is a bundle's."""
    return (
        head[:4] == b"PK\x03\x04" and head[26:38] == b"\x08\0\0\0mimetype" and head[38 : 38 + len(MIMETYPE)] == MIMETYPE
    )


def is_bundle_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a bundle at a path."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return is_bundle(file.read(128))
    except OSError:
        return False


class Bundle:
    """An open bundle whose list of members was read, and whose bytes :meth:`check` compares with it."""

    def __init__(self, file: BinaryIO) -> None:
        """Raises Damaged."""
        self._file = file
        self._size, self._said = _ends(file)
        try:
            self._zip = zipfile.ZipFile(file)
            self._infos = _named(self._zip.infolist())
            self.manifest = self._manifest()
        except Damaged:
            raise
        except _BROKEN as error:
            raise Damaged(f"its list of members can't be read: {error}") from None
        self._compare()

    def _manifest(self) -> Manifest:
        info = self._infos.get(MANIFEST)
        if info is None or info.file_size > MOST_LIST:
            raise Damaged(f"{MANIFEST} is missing" if info is None else f"{MANIFEST} has {info.file_size:,} bytes")
        with self._zip.open(info) as stream:
            data = stream.read(MOST_LIST)
        try:
            schema = msgspec.json.decode(data, type=_Schema).schema
            if schema != SCHEMA:
                raise Damaged(f"{MANIFEST} is of {shown(schema)!r}; this version of Trackside reads {SCHEMA}")
            return msgspec.json.decode(data, type=Manifest)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Damaged(f"{MANIFEST}: {error}") from None

    def _compare(self) -> None:
        """The members that there are with those that the manifest names. Raises Damaged."""
        listed = {member.name: member for member in self.manifest.members}
        if len(listed) < len(self.manifest.members):
            raise Damaged(f"{MANIFEST} names a member twice")
        for name in self._infos:
            if name not in listed and name not in (MANIFEST, "mimetype"):
                raise Damaged(f"{shown(name)}: a member that {MANIFEST} does not name; it was added")
        for name, member in listed.items():
            info = self._infos.get(name)
            if info is None:
                raise Damaged(f"{shown(name)}: missing; {MANIFEST} names it")
            if info.file_size != member.size:
                raise Damaged(f"{shown(name)}: changed: {info.file_size:,} bytes, and {member.size:,} were written")
        if VERDICT in listed and listed[VERDICT].sha256 != self.manifest.verdict_sha256:
            raise Damaged(f"{MANIFEST} gives two SHA-256 of {VERDICT}")
        for each in self.manifest.inputs:
            if each.member is not None and (each.member not in listed or not each.member.startswith(INPUTS)):
                raise Damaged(f"{shown(each.member)}: an input that is no member")
        total = sum(info.file_size for info in self._infos.values())
        if total > max(FREE_BYTES, MAX_RATIO * self._size):
            raise Damaged(f"it expands more than {MAX_RATIO}:1, to {total >> 20:,} MiB")

    def check(self, tick: Tick | None = None) -> None:
        """Compare every byte with what was written. ``tick`` is told bytes of the file. Raises Damaged."""
        sealed = digest_of(self._file, self._size - HEX).hexdigest() == self._said
        for member in self.manifest.members:
            self._checked(member)
            if tick is not None:
                tick(self._infos[member.name].compress_size)
        if not sealed:
            raise Damaged("changed outside of its members: it does not give the SHA-256 at its end")

    def _checked(self, member: MemberDoc) -> None:
        try:
            with self._zip.open(self._infos[member.name]) as stream:
                digest = hashlib.file_digest(stream, "sha256")  # type: ignore[arg-type]
        except _BROKEN as error:
            raise Damaged(f"{shown(member.name)}: changed: {error}") from None
        if digest.hexdigest() != member.sha256:
            raise Damaged(f"{shown(member.name)}: changed: its SHA-256 is not the one in {MANIFEST}")

    def verdict(self) -> bytes:
        """The verdict's document. Raises Damaged."""
        info = self._infos.get(VERDICT)
        if info is None or info.file_size > MOST_LIST:
            raise Damaged(f"{VERDICT} is missing or too large")
        with self._zip.open(info) as stream:
            return stream.read(MOST_LIST)

    def inputs(self) -> Iterator[Part]:
        """The inputs, in the order in which they were read."""
        return parts_of(self.manifest.inputs, self._zip)


def digest_of(file: BinaryIO, left: int) -> hashlib._Hash:
    """The SHA-256 of a file's first bytes."""
    file.seek(0)
    digest = hashlib.sha256()
    while left > 0 and (data := file.read(min(PIECE, left))):
        left -= len(data)
        digest.update(data)
    return digest


def parts_of(docs: Iterable[InputDoc], archive: zipfile.ZipFile) -> Iterator[Part]:
    """Inputs and their bytes."""
    for doc in docs:
        if doc.member is None:
            yield Part(doc, None)
            continue
        info = archive.getinfo(doc.member)
        with archive.open(info) as stream:
            yield Part(doc, stream, info.file_size)


class _Schema(msgspec.Struct):
    schema: str


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Bundle]:
    """The bundle at a path, not yet checked. Raises Damaged."""
    try:
        with open(path, "rb") as file:
            yield Bundle(file)
    except OSError as error:
        raise Damaged(error.strerror or str(error)) from None


def asked(path: str | os.PathLike[str]) -> tuple[str | None, float | None]:
    """The job that a bundle's verdict is on and what was the present then, where it was told; of any other file, and of
    a damaged bundle, nothing."""
    if is_bundle_file(path):
        try:
            with opened(path) as bundle:
                return bundle.manifest.job, bundle.manifest.now
        except Damaged:
            pass
    return None, None


def _ends(file: BinaryIO) -> tuple[int, str]:
    """Size of the file and the SHA-256 at its end, the zip's list of members being of a size that can be read.

    Raises Damaged.
    """
    size = file.seek(0, os.SEEK_END)
    comment = len(SEAL) + HEX
    begin = size - comment - _END.size
    file.seek(max(0, begin))
    tail = file.read(_END.size + comment)
    if begin < 0 or tail[:4] != b"PK\x05\x06" or tail[_END.size : _END.size + len(SEAL)] != SEAL:
        raise Damaged("its end is missing or changed: it was cut off, or written by another program")
    length = _END.unpack_from(tail)[5]
    if length == 0xFFFFFFFF and begin >= _LOCATOR.size + _END64.size:
        file.seek(begin - _LOCATOR.size - _END64.size)
        length = _END64.unpack(file.read(_END64.size))[8]
    if length > MOST_LIST:
        raise Damaged(f"a list of members of {length:,} bytes")
    return size, tail[-HEX:].decode("ascii", "replace")


def _named(infos: list[zipfile.ZipInfo]) -> Mapping[str, zipfile.ZipInfo]:
    """The members by name. Raises Damaged for what no bundle holds."""
    if len(infos) > MAX_MEMBERS:
        raise Damaged(f"more than {MAX_MEMBERS:,} members")
    found: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        name = info.filename
        kind = stat.S_IFMT(info.external_attr >> 16)
        if info.orig_filename != name or escapes(name) or shown(name) != name:
            raise Damaged(f"{shown(name)}: a name that leads out of the bundle")
        if name in found:
            raise Damaged(f"{shown(name)}: there are two of it")
        if kind not in (0, stat.S_IFREG) or info.flag_bits & 1 or info.compress_type not in (0, 8):
            raise Damaged(f"{shown(name)}: a link, or encrypted, or packed in a way that bundles don't use")
        found[name] = info
    return found
