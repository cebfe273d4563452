"""Which libraries the processes of jobs have mapped: their own, wherever they lie, followed as processes come, load
libraries late, and go. Each file is handed on once, however many map it, and taken back when none does."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trackside.agent.owners import Owner, Owners, Process
from trackside.agent.pseudo_files import readable

Place = tuple[int, int]
"""Device and inode of a file."""
MOST_MAPS = 8 << 20
"""Bytes of /proc/PID/maps that are read; a training process has a few hundred kB."""
MOST_PROCESSES = 1 << 14
MOST_LIBRARIES = 256
A_STEP = 64
"""Processes looked at in one step, at most: those that wait longest come first."""
SELDOM_S = 30.0
"""How often an old process is looked at. A young one each second: a tenth of its age passes before the next look."""
LINGER_S = 60.0
"""How long a library stays probed after its last process: the next of a job's steps has it at once."""
AGAIN_S = 60.0
"""When a library that could not be probed is tried again."""
_MAPPED = re.compile(
    rb"^([0-9a-f]+-[0-9a-f]+) \S+ [0-9a-f]+ ([0-9a-f]+:[0-9a-f]+) (\d+) +"
    rb"(/[^\n]*/lib(cudart|cuda|nccl)(?:-[0-9a-f]+)?\.so(?:\.[0-9.]+)?)( \(deleted\))?$",
    re.MULTILINE,
)
_DEVICE = re.compile(rb" /dev/nvidia(?:\d+|-uvm)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mapped:
    """A library as a process has it mapped."""

    kind: str
    path: str
    span: str
    device: str
    inode: int
    deleted: bool


@dataclass(slots=True)
class Library:
    """A file that processes have mapped. ``held``: what the probes gave; None where they could not stand in it."""

    kind: str
    path: str
    place: Place
    held: Any = None
    since: float = 0.0
    unused: float = 0.0
    """When it was last found mapped by nobody; 0: it is in use."""
    why: str = ""


@dataclass(slots=True)
class Followed:
    """A process whose libraries are looked for."""

    process: Process
    seen: float
    due: float
    places: frozenset[Place] = frozenset()
    has_device: bool = False
    """Whether it has memory of a GPU's driver mapped: it has, or had, a context."""


def mapped(maps: bytes) -> Iterator[Mapped]:
    """The libraries in a text of /proc/PID/maps, each file once."""
    seen: set[tuple[bytes, bytes]] = set()
    for found in _MAPPED.finditer(maps):
        if (key := (found[2], found[3])) not in seen:
            seen.add(key)
            path = os.fsdecode(found[4])
            yield Mapped(found[5].decode(), path, found[1].decode(), found[2].decode(), int(found[3]), bool(found[6]))


@dataclass(slots=True)
class Following:
    """``attach(kind, path, fd)`` puts the probes into an open library (raises OSError or ValueError), ``detach`` takes
    back what it gave. ``jobs``: only these; ``everything``: processes of no job too."""

    proc: Path
    owners: Owners
    kinds: frozenset[str]
    attach: Callable[[str, str, int], Any]
    detach: Callable[[Any], None]
    jobs: frozenset[str] = frozenset()
    everything: bool = False
    processes: dict[int, Followed] = field(default_factory=dict)
    libraries: dict[Place, Library] = field(default_factory=dict)
    _places: dict[tuple[str, int, str], Place] = field(default_factory=dict)

    def step(self, now: float | None = None) -> None:
        """Look at what is new. ``now``: seconds of any clock."""
        now = time.monotonic() if now is None else now
        listed = self._listed()
        for pid, followed in list(self.processes.items()):
            if pid not in listed or listed[pid].started != followed.process.started:
                del self.processes[pid]
        for pid, process in listed.items():
            self.processes.setdefault(pid, Followed(process, now, now)).process = process
        waiting = sorted((each for each in self.processes.values() if each.due <= now), key=lambda each: each.due)
        for known in waiting[:A_STEP]:
            self._look(known, now)
            known.due = now + min(SELDOM_S, max(0.9, (now - known.seen) / 10))
        self._let_go(now)

    def of(self, pid: int) -> Followed | None:
        """A process, if it is followed."""
        return self.processes.get(pid)

    def probed(self, process: Followed) -> list[Library]:
        """Its libraries."""
        return [self.libraries[place] for place in process.places if place in self.libraries]

    def wanted(self, owner: Owner | None) -> bool:
        """Whether a process of this owner is to be traced."""
        job = owner.job if owner is not None else None
        return job in self.jobs if self.jobs else owner is not None or self.everything

    def close(self) -> None:
        """Take all back."""
        for library in self.libraries.values():
            self._detach(library)
        self.libraries.clear()

    def _listed(self) -> dict[int, Process]:
        found = {each.pid: each for each in self._all() if self.wanted(each.owner)}
        return dict(list(found.items())[:MOST_PROCESSES])

    def _all(self) -> Iterable[Process]:
        known: Sequence[Process] = self.owners.processes()
        yield from known
        if self.everything:
            pids = {each.pid for each in known}
            for name in os.listdir(self.proc):
                if name.isdecimal() and int(name) not in pids and (process := self._stranger(int(name))) is not None:
                    yield process

    def _stranger(self, pid: int) -> Process | None:
        fields = readable(self.proc / str(pid) / "stat").rpartition(b")")[2].split()
        return Process(pid, int(fields[19]), int(fields[1]), "", Owner()) if len(fields) > 19 else None

    def _look(self, process: Followed, now: float) -> None:
        pid = process.process.pid
        try:
            with open(self.proc / str(pid) / "maps", "rb") as file:
                maps = file.read(MOST_MAPS)
        except OSError:
            return
        if b"/libcu" not in maps and b"/libnccl" not in maps and b"/dev/nvidia" not in maps:
            process.places = frozenset()  # it may have become another program
            return
        process.has_device = _DEVICE.search(maps) is not None
        places = set()
        for found in mapped(maps):
            if found.kind in self.kinds and (place := self._found(pid, found, now)) is not None:
                places.add(place)
        process.places = frozenset(places)

    def _found(self, pid: int, found: Mapped, now: float) -> Place | None:
        """The library's file, probed if it wasn't yet."""
        name = (found.device, found.inode, found.path)
        library = self.libraries.get(self._places.get(name, (0, 0)))
        if library is not None and (library.held is not None or now - library.since < AGAIN_S):
            return library.place
        try:
            fd = self._open(pid, found)
        except OSError as error:
            place = (-1, found.inode)
            self.libraries[place] = Library(found.kind, found.path, place, None, now, 0.0, str(error.strerror))
            self._places[name] = place
            return place
        try:
            state = os.fstat(fd)
            place = (state.st_dev, state.st_ino)
            self._places[name] = place
            known = self.libraries.get(place)
            if known is None or (known.held is None and now - known.since >= AGAIN_S):
                if known is None and len(self.libraries) >= MOST_LIBRARIES:
                    return None
                self.libraries[place] = self._probed(found, place, fd, now)
            return place
        finally:
            os.close(fd)

    def add(self, path: str) -> None:
        """Probe a library before any process has it mapped. Raises OSError; its name must be one that is known."""
        line = f"0-1 r-xp 0 0:0 0 {os.path.realpath(path)}".encode()
        for found in mapped(line):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                state = os.fstat(fd)
                place = (state.st_dev, state.st_ino)
                self.libraries[place] = self._probed(found, place, fd, float("inf"))
            finally:
                os.close(fd)

    def _probed(self, found: Mapped, place: Place, fd: int, now: float) -> Library:
        library = Library(found.kind, found.path, place, since=now)
        try:
            library.held = self.attach(found.kind, found.path, fd)
        except (OSError, ValueError) as error:
            library.why = str(error)
        return library

    def _open(self, pid: int, found: Mapped) -> int:
        """The very file that is mapped, though its path may hold another by now, or lie in a container."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        with contextlib.suppress(OSError):
            return os.open(self.proc / str(pid) / "map_files" / found.span, flags)
        if found.deleted:
            raise OSError(2, f"{found.path} was replaced while it is in use, and only root may open what was there")
        fd = os.open(self.proc / str(pid) / "root" / found.path.lstrip("/"), flags)
        if os.fstat(fd).st_ino != found.inode:
            os.close(fd)
            raise OSError(2, f"{found.path} is another file by now, and only root may open what was there")
        return fd

    def _let_go(self, now: float) -> None:
        used = {place for process in self.processes.values() for place in process.places}
        for place, library in list(self.libraries.items()):
            if place in used or library.since == float("inf"):
                library.unused = 0.0
            elif not library.unused:
                library.unused = now
            elif now - library.unused >= LINGER_S:
                self._detach(library)
                del self.libraries[place]
                self._places = {name: at for name, at in self._places.items() if at != place}

    def _detach(self, library: Library) -> None:
        if library.held is not None:
            self.detach(library.held)
            library.held = None
