"""Finds the libraries that processes of jobs have mapped, wherever they are, as processes start, load libraries and
end. Each file is probed once, however many processes map it, and released when none does."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside.agent.owners import JobProcess, Owner, Owners
from trackside.agent.pseudo_files import read_or_empty

FileKey = tuple[int, int]
"""Device and inode of a file."""
MAX_MAPS_BYTES = 8 << 20
"""Maximum bytes read of /proc/PID/maps; a training process has a few hundred kB."""
MAX_PROCESSES = 1 << 14
MAX_LIBRARIES = 256
MAX_PER_STEP = 64
"""Maximum processes examined per step, those that wait longest first."""
MAX_INTERVAL_S = 30.0
"""Longest interval between checks of a process; for a young one it is a tenth of its age."""
LINGER_S = 60.0
"""How long a library stays probed after its last process, so that a job's next step is traced at once."""
RETRY_S = 60.0
"""Time after which a library that could not be probed is tried again."""
_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) \S+ [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) +"
    rb"(/[^\n]*/lib(cudart|cuda|nccl)(?:-[0-9a-f]+)?\.so(?:\.[0-9.]+)?)( \(deleted\))?$",
    re.MULTILINE,
)
_DEVICE = re.compile(rb" /dev/nvidia(?:\d+|-uvm)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LibraryMapping:
    """A library as mapped by a process."""

    kind: str
    path: str
    span: str
    device: str
    inode: int
    deleted: bool


@dataclass(slots=True)
class ProbedLibrary:
    """A mapped library file. ``probe``: result of ``attach``; None if attaching failed."""

    kind: str
    path: str
    key: FileKey
    probe: Any = None
    attached_at: float = 0.0
    unused_since: float = 0.0
    """When it was first found unused; 0: it is in use."""
    error: str = ""
    is_permanent: bool = False
    """Named in the settings: probed from the start and never released."""


@dataclass(slots=True)
class FollowedProcess:
    """A process whose libraries are searched for."""

    process: JobProcess
    first_seen: float
    next_check: float
    file_keys: frozenset[FileKey] = frozenset()
    has_device: bool = False
    """Whether it has memory of the GPU driver mapped, so it has or had a context."""


def mappings(maps: bytes) -> Iterator[LibraryMapping]:
    """The libraries in the text of /proc/PID/maps, each file once."""
    keys: set[tuple[bytes, bytes]] = set()
    for match in _MAPPED.finditer(maps):
        if (key := (match[2], match[3])) not in keys:
            keys.add(key)
            path = os.fsdecode(match[4])
            yield LibraryMapping(
                match[5].decode(), path, match[1].decode(), match[2].decode(), int(match[3]), bool(match[6])
            )


@dataclass(slots=True)
class LibraryTracker:
    """Tracks the mapped libraries of processes. ``attach(kind, path, fd)``: probes an open library; raises OSError or
    ValueError. ``detach``: gets what ``attach`` returned. ``jobs``: only these; ``everything``: also processes without
    a job."""

    proc: Path
    owners: Owners
    kinds: frozenset[str]
    attach: Callable[[str, str, int], Any]
    detach: Callable[[Any], None]
    jobs: frozenset[str] = frozenset()
    everything: bool = False
    processes: dict[int, FollowedProcess] = field(default_factory=dict)
    libraries: dict[FileKey, ProbedLibrary] = field(default_factory=dict)
    _file_keys: dict[tuple[str, int, str], FileKey] = field(default_factory=dict)

    def step(self, now: float | None = None) -> None:
        """Examine new processes and those that are due. ``now``: monotonic seconds."""
        now = time.monotonic() if now is None else now
        processes_by_pid = self._list_processes()
        for pid, followed in list(self.processes.items()):
            if pid not in processes_by_pid or processes_by_pid[pid].started != followed.process.started:
                del self.processes[pid]
        for pid, process in processes_by_pid.items():
            self.processes.setdefault(pid, FollowedProcess(process, now, now)).process = process
        waiting = sorted(
            (process for process in self.processes.values() if process.next_check <= now),
            key=lambda process: process.next_check,
        )
        for followed in waiting[:MAX_PER_STEP]:
            self._examine(followed, now)
            followed.next_check = now + min(MAX_INTERVAL_S, max(0.9, (now - followed.first_seen) / 10))
        self._release_unused(now)

    def process_of(self, pid: int) -> FollowedProcess | None:
        """The process, if it is followed."""
        return self.processes.get(pid)

    def libraries_of(self, process: FollowedProcess) -> list[ProbedLibrary]:
        """The libraries of a process."""
        return [self.libraries[key] for key in process.file_keys if key in self.libraries]

    def is_traced(self, owner: Owner | None) -> bool:
        """Whether processes of this owner are traced."""
        job = owner.job if owner is not None else None
        return job in self.jobs if self.jobs else owner is not None or self.everything

    def close(self) -> None:
        """Detach from all libraries."""
        for library in self.libraries.values():
            self._detach(library)
        self.libraries.clear()

    def _list_processes(self) -> dict[int, JobProcess]:
        processes = {process.pid: process for process in self._all() if self.is_traced(process.owner)}
        return dict(list(processes.items())[:MAX_PROCESSES])

    def _all(self) -> Iterable[JobProcess]:
        job_processes: Sequence[JobProcess] = self.owners.processes()
        yield from job_processes
        if self.everything:
            pids = {process.pid for process in job_processes}
            for name in os.listdir(self.proc):
                if (
                    name.isdecimal()
                    and int(name) not in pids
                    and (process := self._other_process(int(name))) is not None
                ):
                    yield process

    def _other_process(self, pid: int) -> JobProcess | None:
        fields = read_or_empty(self.proc / str(pid) / "stat").rpartition(b")")[2].split()
        return JobProcess(pid, int(fields[19]), int(fields[1]), "", Owner()) if len(fields) > 19 else None

    def _examine(self, process: FollowedProcess, now: float) -> None:
        pid = process.process.pid
        try:
            with open(self.proc / str(pid) / "maps", "rb") as file:
                maps = file.read(MAX_MAPS_BYTES)
        except OSError:
            return
        if b"/libcu" not in maps and b"/libnccl" not in maps and b"/dev/nvidia" not in maps:
            process.file_keys = frozenset()  # it may have executed another program
            return
        process.has_device = _DEVICE.search(maps) is not None
        file_keys = set()
        for mapping in mappings(maps):
            if mapping.kind in self.kinds and (key := self._library_file(pid, mapping, now)) is not None:
                file_keys.add(key)
        process.file_keys = frozenset(file_keys)

    def _library_file(self, pid: int, mapping: LibraryMapping, now: float) -> FileKey | None:
        """The key of the library's file, which is probed if that was not done yet; None if there are too many."""
        name = (mapping.device, mapping.inode, mapping.path)
        library = self.libraries.get(self._file_keys.get(name, (0, 0)))
        if library is not None and (library.probe is not None or now - library.attached_at < RETRY_S):
            return library.key
        try:
            fd = self._open(pid, mapping)
        except OSError as error:
            key = (-1, mapping.inode)
            self.libraries[key] = ProbedLibrary(mapping.kind, mapping.path, key, None, now, 0.0, str(error.strerror))
            self._file_keys[name] = key
            return key
        try:
            status = os.fstat(fd)
            key = (status.st_dev, status.st_ino)
            self._file_keys[name] = key
            library = self.libraries.get(key)
            if library is None or (library.probe is None and now - library.attached_at >= RETRY_S):
                if library is None and len(self.libraries) >= MAX_LIBRARIES:
                    return None
                is_permanent = library is not None and library.is_permanent
                self.libraries[key] = self._attach_library(mapping, key, fd, now, is_permanent=is_permanent)
            return key
        finally:
            os.close(fd)

    def add(self, path: str) -> None:
        """Probe a library before any process maps it. Raises OSError. Its file name must be a known one."""
        line = f"0-1 r-xp 0 0:0 0 {os.path.realpath(path)}".encode()
        for mapping in mappings(line):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                key = (status.st_dev, status.st_ino)
                self.libraries[key] = self._attach_library(mapping, key, fd, time.monotonic(), is_permanent=True)
            finally:
                os.close(fd)

    def _attach_library(
        self, mapping: LibraryMapping, key: FileKey, fd: int, now: float, *, is_permanent: bool = False
    ) -> ProbedLibrary:
        library = ProbedLibrary(mapping.kind, mapping.path, key, attached_at=now, is_permanent=is_permanent)
        try:
            library.probe = self.attach(mapping.kind, mapping.path, fd)
        except (OSError, ValueError) as error:
            library.error = str(error)
        return library

    def _open(self, pid: int, mapping: LibraryMapping) -> int:
        """Open the mapped file itself: its path may now lead to another file, or be in a container."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with contextlib.suppress(OSError):
            return os.open(self.proc / str(pid) / "map_files" / mapping.span, flags)
        if mapping.deleted:
            raise OSError(2, f"{mapping.path} was replaced while in use; only root may open the old file")
        fd = os.open(self.proc / str(pid) / "root" / mapping.path.lstrip("/"), flags)
        if os.fstat(fd).st_ino != mapping.inode:
            os.close(fd)
            raise OSError(2, f"{mapping.path} was replaced; only root may open the old file")
        return fd

    def _release_unused(self, now: float) -> None:
        used_keys = {key for process in self.processes.values() for key in process.file_keys}
        for key, library in list(self.libraries.items()):
            if key in used_keys or library.is_permanent:
                library.unused_since = 0.0
            elif not library.unused_since:
                library.unused_since = now
            elif now - library.unused_since >= LINGER_S:
                self._detach(library)
                del self.libraries[key]
                self._file_keys = {name: file_key for name, file_key in self._file_keys.items() if file_key != key}

    def _detach(self, library: ProbedLibrary) -> None:
        if library.probe is not None:
            self.detach(library.probe)
            library.probe = None
