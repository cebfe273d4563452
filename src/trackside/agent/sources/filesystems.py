"""Space and inodes of file systems, whether they are read-only, and whether they answer at all."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackside.agent.pseudo_files import PseudoFile, first_of, lines_of, mount_point, required
from trackside.agent.source import Collector, Context, Reading, Source

MOST_MOUNTS = 64
LOCAL = frozenset(b"ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs tmpfs".split())
REMOTE = frozenset(
    b"nfs nfs4 lustre gpfs beegfs ceph cifs smb3 glusterfs pvfs2 orangefs wekafs afs panfs vastnfs 9p fuse.ceph"
    b" fuse.glusterfs fuse.juicefs fuse.sshfs fuse.s3fs fuse.gcsfuse fuse.goofys fuse.mount-s3 fuse.alluxio-fuse"
    b" fuse.cvmfs2 fuse.blobfuse2".split()
)
_ASIDE = (
    "/proc", "/sys", "/run", "/snap", "/boot", "/var/snap",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet",
)  # fmt: skip
"""What lies there is the system's own, or seen elsewhere too."""
_FORMAT = "%S %b %a %d"
"""As ``stat`` of GNU and of BusyBox knows them: bytes of a block, blocks, blocks free for users, inodes free."""


@dataclass(frozen=True, slots=True)
class Options:
    """``remote``: whether remote file systems are asked, by child processes, every ``remote_every_s``; one that has not
    answered after ``remote_patience_s`` is told as failing."""

    remote: bool = True
    remote_every_s: float = 60.0
    remote_patience_s: float = 10.0


class Mount(NamedTuple):
    """One line of /proc/self/mounts that counts here."""

    device: str
    path: str
    remote: bool
    read_only: bool


def parse_mounts(data: bytes) -> list[Mount]:
    """Local and remote file systems that hold data, each once: of bind mounts the shortest path."""
    found: dict[str, Mount] = {}
    for mount in _mounts(data):
        found.pop(mount.path, None)  # what is mounted later covers what was there
        found[mount.path] = mount
    by_device: dict[str, Mount] = {}
    for mount in found.values():
        key = mount.device if "/" in mount.device or mount.remote else f"{mount.device} {mount.path}"
        known = by_device.get(key)
        if known is None or len(mount.path) < len(known.path):
            by_device[key] = mount
    return sorted(by_device.values(), key=lambda mount: mount.path)[:MOST_MOUNTS]


def _mounts(data: bytes) -> Iterator[Mount]:
    for fields in lines_of(data):
        if len(fields) < 4 or not (fields[2] in LOCAL or fields[2] in REMOTE):
            continue
        path, remote = mount_point(fields[1]), fields[2] in REMOTE
        aside = path.startswith(tuple(f"{each}/" for each in _ASIDE)) or path in _ASIDE
        of_system = fields[2] == b"tmpfs" and path.startswith("/dev") and path != "/dev/shm"
        if path.startswith("/") and not aside and not of_system:
            yield Mount(mount_point(fields[0]), path, remote, b"ro" in fields[3].split(b","))


class Space(NamedTuple):
    """What a file system has, in bytes and inodes."""

    total: int
    free: int
    files_free: int


@dataclass(slots=True)
class _Asked:
    child: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    space: Space | None = None
    failed: bool = False


class AskedMounts:
    """Asks each mount once every ``every_s``; one that has not answered after ``patience_s`` counts as failed.

    Child processes ask: on a mount whose server is dead the question never ends, and whoever asked can't be ended
    either. A child that doesn't come back is left alone, and no second one is sent.
    """

    def __init__(self, every_s: float, patience_s: float, program: str = "stat") -> None:
        self._every_s, self._patience_s, self._program = every_s, patience_s, program
        self._asked: dict[str, _Asked] = {}

    def state(self, path: str, now: float | None = None) -> tuple[Space | None, bool]:
        """(what it last said, whether asking failed or is stuck). Never waits: an answer is there the next time."""
        now = time.monotonic() if now is None else now
        asked = self._asked.setdefault(path, _Asked())
        if asked.child is not None:
            self._look_after(asked, now)
        elif now - asked.since >= self._every_s or not asked.since:
            self._ask(asked, path, now)
        return (None if asked.failed else asked.space), asked.failed

    def keep(self, paths: set[str]) -> None:
        """Forget mounts that are no more, but not one whose child is still stuck: somebody must wait for it."""
        for path in self._asked.keys() - paths:
            self._look_after(self._asked[path], time.monotonic())
            if self._asked[path].child is None:
                del self._asked[path]

    def _ask(self, asked: _Asked, path: str, now: float) -> None:
        asked.since = now
        try:
            asked.child = subprocess.Popen(
                [self._program, "-f", "-c", _FORMAT, "--", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            asked.space, asked.failed = None, False  # no such program: nothing can be said

    def _look_after(self, asked: _Asked, now: float) -> None:
        child = asked.child
        if child is None:
            return
        if child.poll() is None:
            asked.failed = asked.failed or now - asked.since > self._patience_s
            return
        assert child.stdout is not None
        with child.stdout:
            said = child.stdout.read(200)
        asked.child = None
        asked.space = parse_space(said) if child.returncode == 0 else None
        asked.failed = asked.space is None

    def close(self) -> None:
        """End the children that can be ended; the others end with their mounts."""
        for asked in self._asked.values():
            if asked.child is not None:
                asked.child.kill()
                if asked.child.stdout is not None:
                    asked.child.stdout.close()
                try:
                    asked.child.wait(0.2)
                except subprocess.TimeoutExpired:
                    asked.child.returncode = -9  # nobody waits for it any more: the first process will
        self._asked.clear()


def parse_space(said: bytes) -> Space | None:
    """Read an answer of :data:`_FORMAT`."""
    fields = said.split()
    if len(fields) != 4 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    size, total, free, files = map(int, fields)
    return Space(size * total, size * free, files)


class _Filesystems(Collector):
    def __init__(self, context: Context) -> None:
        node, options = context.node, context.options
        # Of the first process: a service may see all as read-only that the node's jobs write to.
        self._mounts = PseudoFile(first_of(node.proc / "1/mounts", node.proc / "self/mounts"))
        self._root = "" if node.proc == Path("/proc") else os.fspath(node.proc / "1/root")
        self._asks = options.remote
        self._asked = AskedMounts(options.remote_every_s, options.remote_patience_s)
        required(self._mounts)

    def collect(self, reading: Reading) -> None:
        mounts = parse_mounts(required(self._mounts))
        for mount in mounts:
            if mount.remote and not self._asks:
                continue
            reading.sample("host_filesystem_read_only", mount.read_only, mountpoint=mount.path)
            space, failed = self._state(mount)
            if failed:
                reading.warnings.append(f"{mount.path}: the file system does not answer")
            if failed or space is not None:
                reading.sample("host_filesystem_error", failed, mountpoint=mount.path)
            if space is not None and space.total:
                reading.sample("host_filesystem_total_bytes", space.total, mountpoint=mount.path)
                reading.sample("host_filesystem_free_bytes", space.free, mountpoint=mount.path)
                reading.sample("host_filesystem_files_free", space.files_free, mountpoint=mount.path)
        self._asked.keep({self._root + mount.path for mount in mounts})

    def _state(self, mount: Mount) -> tuple[Space | None, bool]:
        path = self._root + mount.path
        if mount.remote:
            return self._asked.state(path)
        try:
            told = os.statvfs(path)
        except OSError as error:
            # what this process can't see, or may not, says nothing of the file system
            return None, error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR)
        return Space(told.f_blocks * told.f_frsize, told.f_bavail * told.f_frsize, told.f_ffree), False

    def close(self) -> None:
        self._mounts.close()
        self._asked.close()


SOURCE = Source(
    id="filesystems",
    title="space and inodes of file systems; those that don't answer",
    open=_Filesystems,
    metrics=(
        "host_filesystem_error",
        "host_filesystem_files_free",
        "host_filesystem_free_bytes",
        "host_filesystem_read_only",
        "host_filesystem_total_bytes",
    ),
    interval_s=30.0,
    options=Options,
)
