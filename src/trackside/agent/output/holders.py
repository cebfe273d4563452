"""Which processes of jobs hold which files as their output.

What Slurm does (22.05 to 24.11): a batch script and all it starts write straight into ``slurm-%j.out``; ``srun`` holds
the same file and writes what its tasks sent it through pipes; with ``--output`` naming task or node (``%t``, ``%N``)
each task writes into its own file; with any other ``--output``, ``srun`` opens that file and writes for all tasks. So
the descriptors 1 and 2 of all processes tell, and of ``srun`` all that are written to.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

from trackside.agent.output.sharing import Sharing
from trackside.agent.owners import Owner, Owners, Process
from trackside.agent.pseudo_files import environ_of, readable
from trackside.agent.user import User, user_of

Key = tuple[int, int]
"""Device and inode."""
AGAIN_S = 30.0
"""A process is looked at again so long after, whether it writes elsewhere by now."""
MOST = 4096
"""Processes looked at in one go."""
LOOKS = (0, 1, 2, 4, 8)
"""A young process is looked at in these of the looks since it began,"""
EARLY = 3
"""and so often, one right after the other, once it is on the map."""
MOST_DESCRIPTORS = 256
"""Of one ``srun``."""
MOST_LOGGED = 256
"""Folders of launchers."""
STEP_DAEMON = "slurmstepd"
"""That of a batch script holds the file of its errors, and some moments longer than the script."""
_ERROR = re.compile(r"\.e(?:rr)?\d*\Z|err", re.IGNORECASE)
_ELSEWHERE = ("/dev/", "/proc/", "/sys/")
_SHELLS = ("batch", "extern", "interactive")
"""Steps whose processes are no ranks, whatever their environment says."""
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_LOG_FOLDER = re.compile(r"--log[-_]dir[=\0]([^\0]+)")


@dataclass(frozen=True, slots=True)
class Held:
    """A file that a process writes its output to. ``link`` opens it in whatever mount namespace it lies, and also once
    its name is gone; ``folder`` is what the names of the process's own namespace begin from here."""

    key: Key
    path: str
    link: str
    stream: Literal["stdout", "stderr"]
    job: str
    rank: int | None = None
    folder: str = ""
    user: User | None = None
    """Whose eyes it is read with; None: the agent's own."""


class Holders:
    """Looks for them. ``refused`` counts processes whose descriptors may not be read."""

    def __init__(self, proc: Path, node: str, owners: Owners, sharing: Sharing) -> None:
        self._proc, self._node, self._owners, self._sharing = str(proc), node, owners, sharing
        self._met: dict[tuple[int, int], tuple[float, int]] = {}
        """Process and start -> when it was looked at, and how often."""
        self._newest = 0
        self._ages: dict[int, int] = {}
        self.refused: set[str] = set()
        """Jobs whose processes' descriptors may not be read."""
        self.logged: dict[str, tuple[str, str, User]] = {}
        """Folders that launchers write their workers' output to -> (job, the root to read them under, whose)."""

    def newest(self) -> list[Held]:
        """The files of processes that began since this was last asked: a script that fails at once is gone before the
        map of processes is renewed. The newest process id, which the kernel tells beside the load, spares a walk over
        all of them."""
        return list(_agreed(self._newcomers()))

    def look(self, now: float) -> list[Held]:
        """The files of processes that are new, or were not looked at for a while. ``now``: of any steady clock."""
        processes = self._owners.processes()
        found = list(self._of([each for each in processes if self._is_due(each, now)][:MOST], now))
        if len(self._met) > 2 * (len(processes) + MOST):
            alive = {(each.pid, each.started) for each in processes}
            self._met = {key: met for key, met in self._met.items() if key in alive}
        return list(_agreed(found))

    def _is_due(self, process: Process, now: float) -> bool:
        met = self._met.get((process.pid, process.started))
        return met is None or met[1] < EARLY or now - met[0] >= AGAIN_S

    def _of(self, processes: Iterable[Process], now: float) -> Iterator[Held]:
        for process in processes:
            key = process.pid, process.started
            self._met[key] = now, self._met.get(key, (now, 0))[1] + 1
            if process.owner.job is not None:
                yield from self._files(process.pid, process.comm, process.owner, process.environ)

    def _newcomers(self) -> Iterator[Held]:
        for pid in self._young():
            outputs = self._target(pid, 1), self._target(pid, 2)
            if not any(outputs) and not os.path.exists(f"{self._proc}/{pid}"):
                self._ages.pop(pid, None)  # it is gone: on a node that starts many programs most are, by the first look
            elif any(map(_may_be_file, outputs)):
                owner = self._owners.of_pid(pid) if self._is_process(pid) else None
                if owner is not None and owner.job is not None:
                    comm = readable(f"{self._proc}/{pid}/comm").decode("utf-8", "replace").strip()
                    yield from self._files(pid, comm, owner, None)

    def _young(self) -> list[int]:
        """Processes that began lately: each is looked at some times, as it may open its output a moment later."""
        self._ages = {pid: age + 1 for pid, age in self._ages.items() if age < LOOKS[-1]}
        try:
            newest = int(readable(f"{self._proc}/loadavg").split()[-1])
        except (ValueError, IndexError):
            return []
        first, self._newest = self._newest + 1, newest
        if 1 < first <= newest:  # not the first time, and they did not begin anew
            self._ages |= dict.fromkeys(range(max(first, newest - MOST), newest + 1), 0)
        return [pid for pid, age in self._ages.items() if age in LOOKS]

    def _is_process(self, pid: int) -> bool:
        """Whether it is none of a process's other threads, whose numbers are of one row with those of processes."""
        return b"\nTgid:\t%d\n" % pid in readable(f"{self._proc}/{pid}/status", 512)

    def _files(self, pid: int, comm: str, owner: Owner, environ: Mapping[str, str] | None) -> Iterator[Held]:
        if comm == STEP_DAEMON and owner.step != "batch":
            return  # it holds one of its tasks' files
        stdout: Key | None = None
        for descriptor in (1, 2, *(self._others(pid) if comm == "srun" else ())):
            held = self._held(pid, descriptor, comm, owner, environ)
            if held is None or (descriptor > 1 and held.key == stdout):
                continue
            stdout = held.key if descriptor == 1 else stdout
            yield held
        if comm.startswith(("torchrun", "python", "pt_main", "accelerate")):
            self._launcher(pid, owner)

    def _others(self, pid: int) -> list[int]:
        try:
            with os.scandir(f"{self._proc}/{pid}/fd") as entries:
                numbers = [int(entry.name) for entry in islice(entries, MOST_DESCRIPTORS)]
        except OSError:
            return []
        return sorted(number for number in numbers if number > 2)

    def _target(self, pid: int, descriptor: int) -> str:
        try:
            return os.readlink(f"{self._proc}/{pid}/fd/{descriptor}")
        except OSError:
            return ""

    def _held(
        self, pid: int, descriptor: int, comm: str, owner: Owner, environ: Mapping[str, str] | None
    ) -> Held | None:
        link = f"{self._proc}/{pid}/fd/{descriptor}"
        try:
            path = os.readlink(link)
            if not _may_be_file(path):
                return None
            status = os.stat(link)
            user = user_of(self._proc, pid)
        except PermissionError:
            self.refused.add(str(owner.job))
            return None
        except OSError:  # it ended meanwhile
            return None
        if user is None or not stat.S_ISREG(status.st_mode) or not self._written(pid, descriptor):
            return None
        path = path.removesuffix(" (deleted)")
        if not self._sharing.is_ours(path, status.st_dev, self._node, environ or environ_of(self._proc, pid)):
            return None
        rank = None if owner.step in _SHELLS or comm == "srun" else owner.rank
        is_error = descriptor == 2 and (comm != STEP_DAEMON or _ERROR.search(path) is not None)
        stream: Literal["stdout", "stderr"] = "stderr" if is_error else "stdout"
        root = f"{self._proc}/{pid}/root"
        return Held((status.st_dev, status.st_ino), path, link, stream, str(owner.job), rank, root, user)

    def _written(self, pid: int, descriptor: int) -> bool:
        """Whether the descriptor was opened for writing."""
        told = _FLAGS.search(readable(f"{self._proc}/{pid}/fdinfo/{descriptor}", 512))
        return told is not None and int(told[1], 8) & os.O_ACCMODE != os.O_RDONLY

    def _launcher(self, pid: int, owner: Owner) -> None:
        """Remember where a torchrun lets its workers write, who may be too short-lived to be seen."""
        told = _LOG_FOLDER.search(readable(f"{self._proc}/{pid}/cmdline", 64 << 10).decode("utf-8", "replace"))
        if told is None or owner.job is None:
            return
        try:
            folder = os.path.normpath(os.path.join(os.readlink(f"{self._proc}/{pid}/cwd"), told[1]))
        except OSError:
            return
        if (user := user_of(self._proc, pid)) is not None:
            self.logged.pop(folder, None)  # those of launchers that live are told again and again
            self.logged[folder] = owner.job, f"{self._proc}/{pid}/root", replace(user, own_only=True)
            if len(self.logged) > MOST_LOGGED:
                del self.logged[next(iter(self.logged))]


def _may_be_file(path: str) -> bool:
    return path.startswith("/") and not path.startswith(_ELSEWHERE)


def _agreed(found: Iterable[Held]) -> Iterator[Held]:
    """Each file once; without a rank where processes of several ranks, or of none, hold it."""
    by_key: dict[Key, list[Held]] = {}
    for held in found:
        by_key.setdefault(held.key, []).append(held)
    for several in by_key.values():
        ranks = {held.rank for held in several}
        first = next((held for held in several if held.stream == "stdout"), several[0])
        yield replace(first, rank=ranks.pop() if len(ranks) == 1 else None)
