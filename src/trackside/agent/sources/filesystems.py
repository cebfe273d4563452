"""Space and inodes of file systems, whether they are read-only, and whether they respond."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trackside.agent.pseudo_files import PseudoFile, first_of, mount_point, read_required, split_lines
from trackside.agent.source import AgentSource, Collector, Context, Reading

MAX_MOUNTS = 64
LOCAL = frozenset(b"ext2 ext3 ext4 xfs btrfs zfs f2fs bcachefs jfs reiserfs tmpfs".split())
REMOTE = frozenset(
    b"nfs nfs4 lustre gpfs beegfs ceph cifs smb3 glusterfs pvfs2 orangefs wekafs afs panfs vastnfs 9p fuse.ceph"
    b" fuse.glusterfs fuse.juicefs fuse.sshfs fuse.s3fs fuse.gcsfuse fuse.goofys fuse.mount-s3 fuse.alluxio-fuse"
    b" fuse.cvmfs2 fuse.blobfuse2".split()
)
_SYSTEM_FOLDERS = (
    "/proc", "/sys", "/run", "/snap", "/boot", "/var/snap",
    "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers", "/var/lib/kubelet",
)  # fmt: skip
"""Mount points of the system itself, or of storage that is visible elsewhere."""
_FORMAT = "%S %b %a %d"
"""As GNU and BusyBox ``stat`` print it: block size in bytes, blocks, blocks free for users, inodes free."""


@dataclass(frozen=True, slots=True)
class FilesystemOptions:
    """``remote``: whether to check remote file systems, by child processes, every ``remote_every_s`` seconds. One that
    has not responded after ``remote_patience_s`` seconds is reported as failing."""

    remote: bool = True
    remote_every_s: float = 60.0
    remote_patience_s: float = 10.0


class FilesystemMount(NamedTuple):
    """One relevant line of /proc/self/mounts."""

    device: str
    path: str
    remote: bool
    read_only: bool


def parse_mounts(data: bytes) -> list[FilesystemMount]:
    """Local and remote file systems with data, each once; of bind mounts the one with the shortest path."""
    by_path: dict[str, FilesystemMount] = {}
    for mount in _mounts(data):
        by_path.pop(mount.path, None)  # a later mount hides an earlier one at the same path
        by_path[mount.path] = mount
    by_device: dict[str, FilesystemMount] = {}
    for mount in by_path.values():
        key = mount.device if "/" in mount.device or mount.remote else f"{mount.device} {mount.path}"
        listed = by_device.get(key)
        if listed is None or len(mount.path) < len(listed.path):
            by_device[key] = mount
    return sorted(by_device.values(), key=lambda mount: mount.path)[:MAX_MOUNTS]


def _mounts(data: bytes) -> Iterator[FilesystemMount]:
    for fields in split_lines(data):
        if len(fields) < 4 or not (fields[2] in LOCAL or fields[2] in REMOTE):
            continue
        path, remote = mount_point(fields[1]), fields[2] in REMOTE
        is_system = path.startswith(tuple(f"{folder}/" for folder in _SYSTEM_FOLDERS)) or path in _SYSTEM_FOLDERS
        is_device = fields[2] == b"tmpfs" and path.startswith("/dev") and path != "/dev/shm"
        if path.startswith("/") and not is_system and not is_device:
            yield FilesystemMount(mount_point(fields[0]), path, remote, b"ro" in fields[3].split(b","))


class Space(NamedTuple):
    """Space of a file system in bytes and inodes."""

    total: int
    free: int
    files_free: int


@dataclass(slots=True)
class _MountCheck:
    child: subprocess.Popen[bytes] | None = None
    since: float = 0.0
    space: Space | None = None
    failed: bool = False


class MountChecker:
    """Checks each mount once every ``every_s`` seconds; one that has not responded after ``patience_s`` counts as
    failed.

    The check runs in a child process: on a mount whose server is dead the call never returns, and its process cannot be
    killed. A child that does not return is left alone, and no second one is started.
    """

    def __init__(self, every_s: float, patience_s: float, program: str = "stat") -> None:
        self._every_s, self._patience_s, self._program = every_s, patience_s, program
        self._checks: dict[str, _MountCheck] = {}

    def state(self, path: str, now: float | None = None) -> tuple[Space | None, bool]:
        """(last result, whether the check failed or hangs). Never waits: a new check's result is returned by a later
        call."""
        now = time.monotonic() if now is None else now
        check = self._checks.setdefault(path, _MountCheck())
        if check.child is not None:
            self._poll(check, now)
        elif now - check.since >= self._every_s or not check.since:
            self._start(check, path, now)
        return (None if check.failed else check.space), check.failed

    def keep(self, paths: set[str]) -> None:
        """Forget mounts that no longer exist, except those whose child still hangs, because it must be reaped."""
        for path in self._checks.keys() - paths:
            self._poll(self._checks[path], time.monotonic())
            if self._checks[path].child is None:
                del self._checks[path]

    def _start(self, check: _MountCheck, path: str, now: float) -> None:
        check.since = now
        try:
            check.child = subprocess.Popen(
                [self._program, "-f", "-c", _FORMAT, "--", path],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
            )
        except OSError:
            check.space, check.failed = None, False  # no such program, so nothing is known

    def _poll(self, check: _MountCheck, now: float) -> None:
        child = check.child
        if child is None:
            return
        if child.poll() is None:
            check.failed = check.failed or now - check.since > self._patience_s
            return
        assert child.stdout is not None
        with child.stdout:
            output = child.stdout.read(200)
        check.child = None
        check.space = parse_space(output) if child.returncode == 0 else None
        check.failed = check.space is None

    def close(self) -> None:
        """Kill the children that can be killed; the others end with their mounts."""
        for check in self._checks.values():
            if check.child is not None:
                check.child.kill()
                if check.child.stdout is not None:
                    check.child.stdout.close()
                try:
                    check.child.wait(0.2)
                except subprocess.TimeoutExpired:
                    check.child.returncode = -9  # never waited for again: init will reap it
        self._checks.clear()


def parse_space(output: bytes) -> Space | None:
    """Parse output in :data:`_FORMAT`."""
    fields = output.split()
    if len(fields) != 4 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    size, total, free, files = map(int, fields)
    return Space(size * total, size * free, files)


class _Filesystems(Collector):
    def __init__(self, context: Context) -> None:
        node, options = context.node, context.options
        # Process 1's mounts: for a service, file systems that jobs write to may be mounted read-only.
        self._mounts = PseudoFile(first_of(node.proc / "1/mounts", node.proc / "self/mounts"))
        self._root = "" if node.proc == Path("/proc") else os.fspath(node.proc / "1/root")
        self._checks_remote = options.remote
        self._checker = MountChecker(options.remote_every_s, options.remote_patience_s)
        read_required(self._mounts)

    def collect(self, reading: Reading) -> None:
        mounts = parse_mounts(read_required(self._mounts))
        for mount in mounts:
            if mount.remote and not self._checks_remote:
                continue
            reading.sample("host_filesystem_read_only", mount.read_only, mountpoint=mount.path)
            space, failed = self._state(mount)
            if failed:
                reading.warnings.append(f"{mount.path}: the file system does not respond")
            if failed or space is not None:
                reading.sample("host_filesystem_error", failed, mountpoint=mount.path)
            if space is not None and space.total:
                reading.sample("host_filesystem_total_bytes", space.total, mountpoint=mount.path)
                reading.sample("host_filesystem_free_bytes", space.free, mountpoint=mount.path)
                reading.sample("host_filesystem_files_free", space.files_free, mountpoint=mount.path)
        self._checker.keep({self._root + mount.path for mount in mounts})

    def _state(self, mount: FilesystemMount) -> tuple[Space | None, bool]:
        path = self._root + mount.path
        if mount.remote:
            return self._checker.state(path)
        try:
            status = os.statvfs(path)
        except OSError as error:
            # errors of missing access do not mean that the file system fails
            return None, error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR)
        return Space(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize, status.f_ffree), False

    def close(self) -> None:
        self._mounts.close()
        self._checker.close()


SOURCE = AgentSource(
    id="filesystems",
    title="space and inodes of file systems, and file systems that do not respond",
    open=_Filesystems,
    metrics=(
        "host_filesystem_error",
        "host_filesystem_files_free",
        "host_filesystem_free_bytes",
        "host_filesystem_read_only",
        "host_filesystem_total_bytes",
    ),
    interval_s=30.0,
    options=FilesystemOptions,
)
