"""From paths to sources: archives, compression, links, odd files, damage and bombs."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import socket
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from trackside.model import Input
from trackside.read import compression
from trackside.read import walk as walk_module
from trackside.read.detect import read_source
from trackside.read.format import CollectingSink, InputSource
from trackside.read.walk import walk

LOG = "".join(f"step {n} of 900: waiting for data {n * 7919 % 1000}\n" for n in range(900)).encode()
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def contents(*paths: Path) -> dict[str, bytes]:
    """Path -> content of each source, without refused inputs."""
    return {item.path: item.stream.read() for item in walk(paths) if isinstance(item, InputSource)}


def rows(*paths: Path) -> dict[str, Input]:
    results = (read_source(item, CollectingSink()) if isinstance(item, InputSource) else item for item in walk(paths))
    return {row.path: row for row in results}


def tar(*members: tuple[str, bytes], mode: str = "w", kind: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode, format=kind) as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zipped(*members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


class Unseekable(io.RawIOBase):
    """Makes zipfile write sizes after the data, as a pipe does."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.data += data
        return len(data)


# -- order and names


def test_a_folder_in_stable_order(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", "sub/c.log", "sub/deep/d.log", "sub/0.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    expected = ["a.log", "b.log", "sub/0.log", "sub/c.log", "sub/deep/d.log"]
    assert list(contents(tmp_path)) == expected
    assert contents(tmp_path)["sub/c.log"] == b"sub/c.log"


def test_equal_names_of_two_folders_stay_distinct(tmp_path: Path) -> None:
    for name in ("one/logs/out.log", "two/logs/out.log"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(name.encode())
    assert list(contents(tmp_path / "one/logs", tmp_path / "two/logs")) == ["one/logs/out.log", "two/logs/out.log"]
    assert list(contents(tmp_path / "one/logs/out.log")) == ["out.log"]


def test_overlapping_paths_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/a.log").write_bytes(LOG)
    assert len(contents(tmp_path, tmp_path / "sub", tmp_path / "sub/a.log")) == 1


def test_control_characters_in_names_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb\n.log").write_bytes(LOG)
    (tmp_path / os.fsdecode(b"\xff.log")).write_bytes(LOG)
    assert sorted(contents(tmp_path)) == ["?.log", "a?[2Jb?.log"]


def test_progress_sums_up_to_the_size(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LOG * 100)
    (tmp_path / "b.tar.gz").write_bytes(gzip.compress(tar(("x.log", LOG), ("y.bin", bytes(range(256)) * 500))))
    (tmp_path / "c.bin").write_bytes(bytes(range(256)) * 4000)
    (tmp_path / "d.tar").write_bytes(tar(("x.log", LOG), ("y.bin", bytes(range(256)) * 5000)))
    ticks: list[int] = []
    for item in walk([tmp_path], ticks.append):
        if isinstance(item, InputSource):
            read_source(item, CollectingSink())
    assert sum(ticks) == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert all(tick > 0 for tick in ticks)


# -- files that are never opened


def test_links_out_of_the_tree_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(LOG)
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "in.log").write_bytes(LOG)
    (tree / "out.log").symlink_to(tmp_path / "secret")
    (tree / "outside").symlink_to(tmp_path)
    (tree / "latest.log").symlink_to("in.log")
    (tree / "sub/loop").symlink_to(tree)
    (tree / "self").symlink_to("self")
    (tree / "gone").symlink_to("nothing")
    results = rows(tree)
    assert {path: row.status for path, row in results.items()} == {
        "in.log": "read",
        "out.log": "refused",
        "outside": "refused",
        "self": "unreadable",
        "gone": "unreadable",
    }
    assert all(row.note for row in results.values())


def test_special_files_are_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "sock"))
    results = rows(tmp_path, Path("/dev/null"))
    listener.close()
    assert [row.status for row in results.values()] == ["refused"] * 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(LOG)
    (tmp_path / "a.log").chmod(0)
    assert rows(tmp_path)["a.log"].status == "unreadable"


def test_a_file_that_cannot_be_opened_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.log").write_bytes(LOG)

    def denied(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(walk_module.os, "open", denied)
    assert rows(tmp_path)["a.log"].status == "unreadable"
    assert rows(tmp_path)["a.log"].note == "Permission denied"


def test_git_folders_are_not_walked(tmp_path: Path) -> None:
    (tmp_path / ".git/objects").mkdir(parents=True)
    (tmp_path / ".git/objects/aa").write_bytes(LOG)
    assert {path: row.status for path, row in rows(tmp_path).items()} == {".git": "refused"}


# -- compression and archives


@pytest.mark.parametrize("kind", PACKERS)
def test_compressed_files_and_archives_are_read(kind: str, tmp_path: Path) -> None:
    pack = PACKERS[kind]
    (tmp_path / f"a.log.{kind}").write_bytes(pack(LOG))
    (tmp_path / "joined").write_bytes(pack(LOG) + pack(b"more\n"))
    (tmp_path / f"t.tar.{kind}").write_bytes(pack(tar(("logs/rank0.log", LOG), ("logs/rank1.log", b"x\n"))))
    (tmp_path / "twice").write_bytes(pack(gzip.compress(LOG)))
    assert contents(tmp_path) == {
        f"a.log.{kind}": LOG,
        "joined": LOG + b"more\n",
        f"t.tar.{kind}!logs/rank0.log": LOG,
        f"t.tar.{kind}!logs/rank1.log": b"x\n",
        "twice": LOG,
    }


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_compressed_file_is_partial(kind: str, share: float, tmp_path: Path) -> None:
    lines = b"".join(b"%d %s\n" % (n, os.urandom(30).hex().encode()) for n in range(20_000))
    packed = PACKERS[kind](lines)
    (tmp_path / "a.log").write_bytes(packed[: int(len(packed) * share)])
    content = contents(tmp_path)["a.log"]
    assert lines.startswith(content)
    whole_blocks = kind == "bz2"  # of 900 KB: an incomplete block gives nothing
    assert len(content) >= (0 if whole_blocks else 0.5 * len(lines) * share)
    row = rows(tmp_path)["a.log"]
    assert row.status == ("partial" if content else "unreadable")
    assert "cut off" in row.note


def test_damaged_gzip_keeps_what_came_before(tmp_path: Path) -> None:
    lines = b"".join(b"%d %s\n" % (n, os.urandom(30).hex().encode()) for n in range(20_000))
    packed = bytearray(gzip.compress(lines))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    (tmp_path / "a.log.gz").write_bytes(packed)
    row = rows(tmp_path)["a.log.gz"]
    assert (row.status, row.format) == ("partial", "job-log")
    assert row.rows > 5_000


def test_trailing_bytes_are_noted(tmp_path: Path) -> None:
    (tmp_path / "padded.gz").write_bytes(gzip.compress(LOG) + bytes(600))
    (tmp_path / "trailing.gz").write_bytes(gzip.compress(LOG) + b"garbage")
    assert {path: row.status for path, row in rows(tmp_path).items()} == {"padded.gz": "read", "trailing.gz": "partial"}
    assert set(contents(tmp_path).values()) == {LOG}


@pytest.mark.parametrize("kind", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_tar_flavors(kind: int, tmp_path: Path) -> None:
    long = "/".join(["folder"] * 30) + "/é" * (kind != tarfile.USTAR_FORMAT) + "/log"
    (tmp_path / "a.tar").write_bytes(tar((long, LOG), ("b.log", b"two\n"), kind=kind))
    assert contents(tmp_path) == {f"a.tar!{long}": LOG, "a.tar!b.log": b"two\n"}


def test_tar_links_and_devices_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("sym", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("fifo", tarfile.FIFOTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
        info = tarfile.TarInfo("null")
        info.type = tarfile.CHRTYPE
        archive.addfile(info)
        info = tarfile.TarInfo("folder")
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    results = rows(tmp_path)
    assert {row.status for row in results.values()} == {"refused"}
    assert len(results) == 4


@pytest.mark.parametrize("pack", [tar, zipped])
def test_names_that_escape_the_archive_are_refused(pack: Callable[..., bytes], tmp_path: Path) -> None:
    members = [("../../etc/x", LOG), ("/abs/y.log", LOG), ("a.log", b"one\n"), ("b\x1b[31m.log", LOG)]
    (tmp_path / "a.bin").write_bytes(pack(*members))
    results = rows(tmp_path)
    assert {path: row.status for path, row in results.items()} == {
        "a.bin!../../etc/x": "refused",
        "a.bin!abs/y.log": "read",
        "a.bin!a.log": "read",
        "a.bin!b?[31m.log": "read",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_repeated_names_in_a_tar_are_numbered(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar(("x.log", b"one\n"), ("x.log", b"two\n")))
    assert contents(tmp_path) == {"a.tar!x.log": b"one\n", "a.tar!x.log#2": b"two\n"}


@pytest.mark.parametrize("keep", [1600, 2100, 20_000])
def test_a_truncated_tar_is_partial(keep: int, tmp_path: Path) -> None:
    data = tar(("a.log", b"short\n"), ("b.log", LOG), ("c.log", LOG))
    (tmp_path / "a.tar").write_bytes(data[:keep])
    results = rows(tmp_path)
    assert results["a.tar"].status == "partial"
    assert results["a.tar!a.log"].status == "read"
    if keep == 20_000:
        assert results["a.tar!b.log"].status == "partial"


def test_tar_headers_with_wrong_sizes_are_reported(tmp_path: Path) -> None:
    archive = tar(("a.log", LOG))
    for number, size in enumerate((b"77777777777\0", b"\xff" + b"\xff" * 11, b"\x80" + b"\x7f" * 11, b"99999999999\0")):
        block = bytearray(archive[:512])
        block[124:136] = size
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        (tmp_path / f"{number}.tar").write_bytes(bytes(block) + archive[512:])
    results = rows(tmp_path)
    assert {row.status for row in results.values()} <= {"partial", "unreadable"}
    assert all(row.note for row in results.values())


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
@pytest.mark.parametrize("piped", [False, True])
def test_zip_flavors(method: int, piped: bool, tmp_path: Path) -> None:
    if piped and method == zipfile.ZIP_STORED:
        pytest.skip("the end of such a member cannot be known; it is refused")
    out: io.RawIOBase | io.BytesIO = Unseekable() if piped else io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:  # type: ignore[arg-type]
        archive.writestr("logs/", b"")
        archive.writestr("logs/a.log", LOG)
        archive.writestr("empty", b"")
        with archive.open("big.log", "w", force_zip64=True) as member:
            member.write(LOG)
        archive.writestr("z.log", b"last\n")
    data = bytes(out.data) if isinstance(out, Unseekable) else out.getvalue()  # type: ignore[union-attr]
    (tmp_path / "a.zip").write_bytes(data)
    (tmp_path / "b.tar").write_bytes(tar(("in.zip", data)))
    expected = {"logs/a.log": LOG, "empty": b"", "big.log": LOG, "z.log": b"last\n"}
    assert contents(tmp_path / "a.zip") == {f"a.zip!{name}": data for name, data in expected.items()}
    assert contents(tmp_path / "b.tar") == {f"b.tar!in.zip!{name}": data for name, data in expected.items()}


def test_a_truncated_zip_is_partial(tmp_path: Path) -> None:
    data = zipped(("a.log", b"one\n"), ("b.log", LOG))
    (tmp_path / "a.zip").write_bytes(data[: len(data) // 2])
    results = rows(tmp_path)
    assert results["a.zip!a.log"].status == "read"
    assert results["a.zip!b.log"].status == "partial"
    assert results["a.zip"].status == "partial"


@pytest.mark.parametrize("later", [False, True])
def test_encrypted_zip_is_refused(later: bool, tmp_path: Path) -> None:
    data = bytearray(zipped(("a.log", LOG), ("b.log", b"open\n")))
    data[6] |= 1
    if later:  # sizes after the data
        data[6] |= 8
        data[18:26] = bytes(8)
    (tmp_path / "a.zip").write_bytes(data)
    results = rows(tmp_path)
    assert (results["a.zip!a.log"].status, results["a.zip!a.log"].note) == ("refused", "encrypted")
    assert results["a.zip!b.log"].status == "read"


def test_empty_archives_and_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped())
    (tmp_path / "b.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "c.log").write_bytes(b"")
    (tmp_path / "d.gz").write_bytes(b"\x1f\x8b\x08")
    statuses = {path: row.status for path, row in rows(tmp_path).items()}
    assert statuses == {"a.zip": "empty", "b.gz": "empty", "c.log": "empty", "d.gz": "unreadable"}


def test_a_checkpoint_is_not_opened(tmp_path: Path) -> None:
    data = zipped(("model/data.pkl", b"\x80\2."), ("model/data/0", bytes(1 << 20)), method=zipfile.ZIP_STORED)
    (tmp_path / "model.pt").write_bytes(data)
    assert [(row.status, "checkpoint" in row.note) for row in rows(tmp_path).values()] == [("unrecognised", True)]


# -- bounds


def bomb(kind: str, size: int) -> Iterator[bytes]:
    """A compressed run of zeros, piece by piece."""
    zeros = bytes(1 << 20)
    compressors = {
        "gz": lambda: zlib.compressobj(9, wbits=31),
        "zst": lambda: zstandard.ZstdCompressor(3).compressobj(),
    }
    packer = compressors[kind]()
    for _ in range(size >> 20):
        yield packer.compress(zeros)
    yield packer.flush()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_decompression_bombs_are_stopped(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "FREE_BYTES", 8 << 20)
    (tmp_path / "a.log").write_bytes(b"".join(bomb(kind, 400 << 20)))
    total_bytes = 0
    for source in walk([tmp_path]):
        assert isinstance(source, InputSource)
        while chunk := source.stream.read(1 << 20):
            total_bytes += len(chunk)
        assert f"{compression.MAX_RATIO}:1" in source.faults[0]
    assert 8 << 20 < total_bytes < 64 << 20


def test_a_decompression_bomb_in_an_archive_ends_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "FREE_BYTES", 8 << 20)
    (tmp_path / "a.zip").write_bytes(zipped(("a.log", LOG), ("b.log", bytes(100 << 20)), ("c.log", LOG)))
    results = rows(tmp_path)
    assert list(results) == ["a.zip!a.log", "a.zip!b.log", "a.zip"]
    assert results["a.zip"].status == "partial"
    assert "200:1" in results["a.zip"].note


def test_members_and_depth_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_MEMBERS", 3)
    (tmp_path / "many.tar").write_bytes(tar(*((f"{n}.log", b"x\n") for n in range(9))))
    data = LOG
    for _ in range(12):
        data = gzip.compress(data)
    (tmp_path / "deep.gz").write_bytes(data)
    results = rows(tmp_path)
    assert results["deep.gz"].status == "refused"
    assert results["many.tar"].status == "partial"
    assert len(results) == 5


class Endless(io.RawIOBase):
    """A single line of ``size`` bytes without a line end."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        count = min(len(buffer), self.left)
        memoryview(buffer)[:count] = (b"waiting for the next batch ... " * (count // 31 + 1))[:count]
        self.left -= count
        return count


def test_a_line_of_200_mb_is_read_in_constant_memory() -> None:
    stream = io.BufferedReader(Endless(200 << 20), 1 << 16)
    source = InputSource("a.log", stream.peek(1 << 16)[: 1 << 16], stream)  # type: ignore[arg-type]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    row = read_source(source, CollectingSink())
    growth_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert row.status == "read"
    assert growth_kib < 400 << 10  # KiB


# -- text of other kinds


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
def test_other_encodings_are_read_as_utf8(encoding: str, tmp_path: Path) -> None:
    text = "Anfang: gespeichert für später\n" * 5000
    (tmp_path / "a.log").write_bytes(text.encode(encoding))
    assert contents(tmp_path)["a.log"].decode() == text


def test_a_growing_file_is_read_up_to_its_size_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LOG * 100)
    (content,) = (_append_and_read(item, path) for item in walk([path]))
    assert content == LOG * 100


def _append_and_read(item: InputSource | Input, path: Path) -> bytes:
    assert isinstance(item, InputSource)
    with path.open("ab") as file:
        file.write(b"later\n")
    return item.stream.read()


def test_nothing_is_written_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar(("../x", LOG), ("y", LOG))))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    rows(tmp_path)
    tmp_path.chmod(stat.S_IRWXU)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
