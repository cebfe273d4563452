"""Which processes of jobs have which files open as their output.

What Slurm does (22.05 to 24.11): a batch script and all it starts write directly to ``slurm-%j.out``; ``srun`` has the
same file open and writes what its tasks sent it through pipes; with ``--output`` naming task or node (``%t``, ``%N``)
each task writes to its own file; with any other ``--output``, ``srun`` opens that file and writes for all tasks. So
descriptors 1 and 2 of all processes suffice, plus all descriptors of ``srun`` that are open for writing.
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

from trackside.agent.output.sharing import FileOwnership
from trackside.agent.owners import JobProcess, Owner, Owners
from trackside.agent.pseudo_files import environ_of, read_or_empty
from trackside.agent.user import User, user_of

Key = tuple[int, int]
"""Device and inode."""
RECHECK_S = 30.0
"""Interval at which a process is checked again for a changed output."""
MAX_PROCESSES = 4096
"""Maximum number of processes checked at once."""
YOUNG_CHECKS = (0, 1, 2, 4, 8)
"""Ages, counted in calls of :meth:`Holders.newest`, at which a young process is checked."""
EARLY_CHECKS = 3
"""Number of consecutive checks of a process that is new in the map."""
MAX_DESCRIPTORS = 256
"""Descriptors checked per ``srun``."""
MAX_LOG_FOLDERS = 256
"""Maximum number of launchers' log folders."""
STEP_DAEMON = "slurmstepd"
"""The one of a batch script has the script's error file open, a little longer than the script."""
_ERROR = re.compile(r"\.e(?:rr)?\d*\Z|err", re.IGNORECASE)
_NOT_FILES = ("/dev/", "/proc/", "/sys/")
_SHELLS = ("batch", "extern", "interactive")
"""Steps whose processes are not ranks, whatever their environment says."""
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_LOG_FOLDER = re.compile(r"--log[-_]dir[=\0]([^\0]+)")


@dataclass(frozen=True, slots=True)
class OpenOutput:
    """A file that a process writes its output to. ``link``: opens it across mount namespaces and after it was unlinked.
    ``folder``: root of the process's mount namespace, as seen from here."""

    key: Key
    path: str
    link: str
    stream: Literal["stdout", "stderr"]
    job: str
    rank: int | None = None
    folder: str = ""
    user: User | None = None
    """The user with whose permissions it is read; None: the agent's own."""


class Holders:
    """Finds output files by the open descriptors of processes."""

    def __init__(self, proc: Path, node: str, owners: Owners, sharing: FileOwnership) -> None:
        self._proc, self._node, self._owners, self._sharing = str(proc), node, owners, sharing
        self._checks: dict[tuple[int, int], tuple[float, int]] = {}
        """(pid, start) -> (time of the last check, number of checks)."""
        self._newest_pid = 0
        self._ages: dict[int, int] = {}
        self.refused: set[str] = set()
        """Jobs whose processes' descriptors may not be read."""
        self.log_folders: dict[str, tuple[str, str, User]] = {}
        """Folders that launchers write their workers' output to -> (job, root to read them under, user)."""

    def newest(self) -> list[OpenOutput]:
        """The files of processes started since the last call. This finds scripts that fail at once, before the map of
        processes is renewed. The newest pid in /proc/loadavg makes a scan of all processes unnecessary."""
        return list(_merge_by_file(self._outputs_of_young_processes()))

    def check(self, now: float) -> list[OpenOutput]:
        """The files of processes that are new or were not checked for a while. ``now``: monotonic seconds."""
        processes = self._owners.processes()
        outputs = list(
            self._outputs_of([process for process in processes if self._is_due(process, now)][:MAX_PROCESSES], now)
        )
        if len(self._checks) > 2 * (len(processes) + MAX_PROCESSES):
            alive = {(process.pid, process.started) for process in processes}
            self._checks = {key: check for key, check in self._checks.items() if key in alive}
        return list(_merge_by_file(outputs))

    def _is_due(self, process: JobProcess, now: float) -> bool:
        last_check = self._checks.get((process.pid, process.started))
        return last_check is None or last_check[1] < EARLY_CHECKS or now - last_check[0] >= RECHECK_S

    def _outputs_of(self, processes: Iterable[JobProcess], now: float) -> Iterator[OpenOutput]:
        for process in processes:
            key = process.pid, process.started
            self._checks[key] = now, self._checks.get(key, (now, 0))[1] + 1
            if process.owner.job is not None:
                yield from self._files(process.pid, process.comm, process.owner, process.environ)

    def _outputs_of_young_processes(self) -> Iterator[OpenOutput]:
        for pid in self._young_pids():
            outputs = self._target(pid, 1), self._target(pid, 2)
            if not any(outputs) and not os.path.exists(f"{self._proc}/{pid}"):
                # The process has ended; on a node that starts many programs, most have by the first check.
                self._ages.pop(pid, None)
            elif any(map(_may_be_file, outputs)):
                owner = self._owners.of_pid(pid) if self._is_process(pid) else None
                if owner is not None and owner.job is not None:
                    comm = read_or_empty(f"{self._proc}/{pid}/comm").decode("utf-8", "replace").strip()
                    yield from self._files(pid, comm, owner, None)

    def _young_pids(self) -> list[int]:
        """Recently started processes; each is checked several times because it may open its output a little later."""
        self._ages = {pid: age + 1 for pid, age in self._ages.items() if age < YOUNG_CHECKS[-1]}
        try:
            newest = int(read_or_empty(f"{self._proc}/loadavg").split()[-1])
        except (ValueError, IndexError):
            return []
        first, self._newest_pid = self._newest_pid + 1, newest
        if 1 < first <= newest:  # not the first call, and pids did not wrap around
            self._ages |= dict.fromkeys(range(max(first, newest - MAX_PROCESSES), newest + 1), 0)
        return [pid for pid, age in self._ages.items() if age in YOUNG_CHECKS]

    def _is_process(self, pid: int) -> bool:
        """Whether the id is a process, not another thread; both share one number range."""
        return b"\nTgid:\t%d\n" % pid in read_or_empty(f"{self._proc}/{pid}/status", 512)

    def _files(self, pid: int, comm: str, owner: Owner, environ: Mapping[str, str] | None) -> Iterator[OpenOutput]:
        if comm == STEP_DAEMON and owner.step != "batch":
            return  # the daemon has files of its tasks open
        stdout: Key | None = None
        for descriptor in (1, 2, *(self._high_descriptors(pid) if comm == "srun" else ())):
            output = self._output(pid, descriptor, comm, owner, environ)
            if output is None or (descriptor > 1 and output.key == stdout):
                continue
            stdout = output.key if descriptor == 1 else stdout
            yield output
        if comm.startswith(("torchrun", "python", "pt_main", "accelerate")):
            self._note_launcher(pid, owner)

    def _high_descriptors(self, pid: int) -> list[int]:
        try:
            with os.scandir(f"{self._proc}/{pid}/fd") as entries:
                numbers = [int(entry.name) for entry in islice(entries, MAX_DESCRIPTORS)]
        except OSError:
            return []
        return sorted(number for number in numbers if number > 2)

    def _target(self, pid: int, descriptor: int) -> str:
        try:
            return os.readlink(f"{self._proc}/{pid}/fd/{descriptor}")
        except OSError:
            return ""

    def _output(
        self, pid: int, descriptor: int, comm: str, owner: Owner, environ: Mapping[str, str] | None
    ) -> OpenOutput | None:
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
        except OSError:  # the process has just ended
            return None
        if user is None or not stat.S_ISREG(status.st_mode) or not self._is_written(pid, descriptor):
            return None
        path = path.removesuffix(" (deleted)")
        if not self._sharing.is_ours(path, status.st_dev, self._node, environ or environ_of(self._proc, pid)):
            return None
        rank = None if owner.step in _SHELLS or comm == "srun" else owner.rank
        is_error = descriptor == 2 and (comm != STEP_DAEMON or _ERROR.search(path) is not None)
        stream: Literal["stdout", "stderr"] = "stderr" if is_error else "stdout"
        root = f"{self._proc}/{pid}/root"
        return OpenOutput((status.st_dev, status.st_ino), path, link, stream, str(owner.job), rank, root, user)

    def _is_written(self, pid: int, descriptor: int) -> bool:
        """Whether the descriptor was opened for writing."""
        match = _FLAGS.search(read_or_empty(f"{self._proc}/{pid}/fdinfo/{descriptor}", 512))
        return match is not None and int(match[1], 8) & os.O_ACCMODE != os.O_RDONLY

    def _note_launcher(self, pid: int, owner: Owner) -> None:
        """Note where a torchrun makes its workers write; workers may be too short-lived to be seen."""
        match = _LOG_FOLDER.search(read_or_empty(f"{self._proc}/{pid}/cmdline", 64 << 10).decode("utf-8", "replace"))
        if match is None or owner.job is None:
            return
        try:
            folder = os.path.normpath(os.path.join(os.readlink(f"{self._proc}/{pid}/cwd"), match[1]))
        except OSError:
            return
        if (user := user_of(self._proc, pid)) is not None:
            self.log_folders.pop(
                folder, None
            )  # launchers that still run move to the end, so the oldest entry is dropped first
            self.log_folders[folder] = owner.job, f"{self._proc}/{pid}/root", replace(user, own_only=True)
            if len(self.log_folders) > MAX_LOG_FOLDERS:
                del self.log_folders[next(iter(self.log_folders))]


def _may_be_file(path: str) -> bool:
    return path.startswith("/") and not path.startswith(_NOT_FILES)


def _merge_by_file(outputs: Iterable[OpenOutput]) -> Iterator[OpenOutput]:
    """Each file once; without a rank if processes of several ranks, or of none, have it open."""
    by_key: dict[Key, list[OpenOutput]] = {}
    for output in outputs:
        by_key.setdefault(output.key, []).append(output)
    for group in by_key.values():
        ranks = {output.rank for output in group}
        first = next((output for output in group if output.stream == "stdout"), group[0])
        yield replace(first, rank=ranks.pop() if len(ranks) == 1 else None)
