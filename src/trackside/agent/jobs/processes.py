"""The map of this node's processes: the owner of each process, and from them the owners of GPUs.

A process is read once, when it is new. It is identified by its pid together with the inode of its /proc folder, which
listing /proc returns, and by its start time if the inode changed. Young processes are read again, as they may not have
reached their cgroup or program yet; a share of the others each time, as a shell may have replaced itself by another
program.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trackside.agent.jobs.cgroup_path import Membership, membership
from trackside.agent.jobs.environment import (
    certain_gpus,
    is_elsewhere,
    is_ranked,
    job_id,
    job_number,
    process_job,
    slurm_gpus,
    variables,
    visible_gpus,
)
from trackside.agent.node import LocalNode
from trackside.agent.owners import JobProcess, Owner, Owners
from trackside.agent.pseudo_files import read_file, read_or_empty, uptime_s
from trackside.agent.user import user_of

MAX_PROCESSES = 1 << 16
"""Maximum number of processes."""
MAX_NEW = 1000
"""New processes read per renewal, except the first; further ones are read at the next renewal or on request."""
MAX_ENVIRON_BYTES = 512 << 10
"""Limit of one environment."""
MAX_ENVIRON_CHARS = 16 << 20
"""Limit of all environments together: beyond it, new ones are used for the owner but not kept."""
YOUNG_TICKS = 200
"""Age in kernel ticks (two seconds) below which a process is read again."""
RECHECK_RENEWALS = 12
"""Number of renewals in which each process of a job is checked again once."""
MAX_PARENTS = 64
"""Parents of a process that are searched for the daemon of a step."""
STEP_DAEMON = "slurmstepd"
_STEP_DAEMON_TITLE = re.compile(rb"slurmstepd: \[(\d{1,10})(?:[.+]|\])")
"""The daemon's command line: ``slurmstepd: [4242.batch]``."""
_KERNEL = 0x00200000
"""PF_KTHREAD in a process's flags: kernel threads have no owner."""
_Key = tuple[str | None, str | None, int | None]
"""Job, step and task."""


@dataclass(slots=True)
class _Stat:
    """Fields of ``/proc/PID/stat``. ``program``: changes when the process executes another program."""

    started: int
    parent: int
    comm: str
    flags: int
    program: bytes


@dataclass(slots=True)
class _ProcessEntry:
    """A process as last read. ``process``: None if it belongs to no job or container. ``number``: numeric id of its
    job. ``is_claim``: whether only its environment names the job, and Slurm did not start it for that job; then ``uid``
    is its user."""

    inode: int
    stat: _Stat
    process: JobProcess | None
    number: str | None = None
    is_young: bool = False
    is_claim: bool = False
    uid: int | None = None


class ProcessMap(Owners):
    """Owners by /proc. The source ``processes`` renews it every few seconds, in one thread."""

    def __init__(self, node: LocalNode) -> None:
        self._node, self._proc = node.name, os.fspath(node.proc)
        self._entries: dict[int, _ProcessEntry] = {}
        self._job_ids: dict[str, str] = {}
        """Numeric job id -> id as users write it, from readable environments."""
        self._proven_users: dict[str, frozenset[int]] = {}
        """Numeric job id -> uids with processes that Slurm started for the job."""
        self._environs: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._environ_chars = 0
        """Characters in all kept environments."""
        self._renewal, self._is_renewed = 0, False
        self._view: Mapping[int, JobProcess] = {}
        self._gpus: Mapping[str, Owner] = {}
        self._gpu_pids: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    # -- queries

    def processes(self) -> Sequence[JobProcess]:
        return tuple(self._view.values())

    def of_pid(self, pid: int) -> Owner | None:
        entry, process = self._entries.get(pid), self._view.get(pid)
        try:
            inode = os.stat(f"{self._proc}/{pid}").st_ino
        except OSError:
            return None if process is None else process.owner  # it has just ended
        if entry is not None and entry.inode == inode and not entry.is_young:
            return None if process is None else process.owner
        new_entry = self._read(pid, inode)
        if new_entry is None or new_entry.process is None or not self._is_trusted(new_entry):
            return None
        return _without_launcher_ranks([new_entry.process, *self._view.values()])[0].owner

    def of_gpu(self, gpu: str) -> Owner | None:
        owners = [owner for pid in self._gpu_pids.get(gpu, ()) if (owner := self.of_pid(pid)) is not None]
        return _common_owner(owners) if owners else self._gpus.get(gpu)

    def set_gpu_pids(self, gpu: str, pids: Sequence[int]) -> None:
        self._gpu_pids[gpu] = tuple(pids[:4096])

    # -- renewal

    def renew(self) -> None:
        with self._lock:
            now = int(uptime_s(self._proc) * os.sysconf("SC_CLK_TCK"))
            self._renewal = (self._renewal + 1) % RECHECK_RENEWALS
            inodes = self._list_processes()
            changed, new = False, 0
            for pid in self._entries.keys() - inodes.keys():
                changed |= self._entries.pop(pid).process is not None
            for pid, inode in inodes.items():
                entry = self._entries.get(pid)
                if entry is not None and not self._is_due(pid, inode, entry):
                    continue
                new += entry is None
                if entry is None and new > MAX_NEW and self._is_renewed:
                    continue
                new_entry = self._read(pid, inode) if entry is None else self._reread(pid, inode, entry)
                changed |= new_entry is not entry
                if new_entry is None:
                    self._entries.pop(pid, None)
                    continue
                new_entry.is_young = now > 0 and now - new_entry.stat.started < YOUNG_TICKS
                self._entries[pid] = new_entry
            self._is_renewed = True
            if changed:
                self._publish()
            for gpu, pids in list(self._gpu_pids.items()):
                self._gpu_pids[gpu] = tuple(pid for pid in pids if pid in inodes)

    def _list_processes(self) -> dict[int, int]:
        """pid -> inode of all processes."""
        inodes: dict[int, int] = {}
        with os.scandir(self._proc) as entries:
            for dir_entry in entries:
                if dir_entry.name.isdecimal():
                    inodes[int(dir_entry.name)] = dir_entry.inode()
                    if len(inodes) >= MAX_PROCESSES:
                        break
        return inodes

    def _is_due(self, pid: int, inode: int, entry: _ProcessEntry) -> bool:
        return (
            entry.is_young
            or entry.inode != inode
            or (entry.process is not None and pid % RECHECK_RENEWALS == self._renewal)
        )

    def _reread(self, pid: int, inode: int, entry: _ProcessEntry) -> _ProcessEntry | None:
        """The entry of a known process: unchanged, unless the process changed."""
        stat = self._stat(pid)
        if stat is None:
            return None
        is_same = (
            stat.started == entry.stat.started and stat.program == entry.stat.program and stat.comm == entry.stat.comm
        )
        if not is_same or (entry.process is None and entry.is_young):
            return self._read(pid, inode, stat)
        entry.inode = inode
        if entry.process is not None and stat.parent != entry.process.parent:
            return replace(entry, stat=stat, process=replace(entry.process, parent=stat.parent))
        return entry

    def _read(self, pid: int, inode: int, stat: _Stat | None = None) -> _ProcessEntry | None:
        """Read a process; None if it has ended."""
        stat = stat or self._stat(pid)
        if stat is None:
            return None
        without_owner = _ProcessEntry(inode, stat, None)
        if stat.flags & _KERNEL:
            return without_owner
        try:
            member = membership(read_file(f"{self._proc}/{pid}/cgroup", 1 << 16))
        except OSError:
            return without_owner
        environ = self._environ(pid)
        number = job_number(member, environ or {})
        if (number is None and not member.container and not member.pod) or is_elsewhere(
            member, environ or {}, self._node
        ):
            return without_owner
        entry = _ProcessEntry(inode, stat, None, number)
        if number is not None:
            self._check_claim(entry, pid, member)
        return self._with_owner(entry, pid, member, environ)

    def _check_claim(self, entry: _ProcessEntry, pid: int, member: Membership) -> None:
        """Note whether the process certainly belongs to its job, and the uid."""
        proven = self._proven_users.get(str(entry.number), frozenset())
        if member.job is not None and proven - {0}:
            return
        user = user_of(self._proc, pid)
        entry.uid = None if user is None else user.uid
        is_started_by_slurm = member.job is not None or self._step_daemon_job(entry.stat.parent) == entry.number
        if is_started_by_slurm and entry.uid is not None:
            self._proven_users[str(entry.number)] = proven | {entry.uid}  # Slurm's own processes run as root
        # Whoever may start a container as root may do anything; in a pod, everyone can be root.
        is_trusted_container = member.container is not None and member.pod is None and entry.uid == 0
        entry.is_claim = not is_started_by_slurm and not is_trusted_container

    def _step_daemon_job(self, pid: int) -> str | None:
        """The job whose step daemon started a process, by its parents: where Slurm uses no cgroups. Only root's
        processes count, as every user can give a process any name."""
        for _ in range(MAX_PARENTS):
            stat = self._stat(pid) if pid > 1 else None
            if stat is None:
                return None
            if stat.comm == STEP_DAEMON and (user := user_of(self._proc, pid)) is not None and user.uid == 0:
                title = _STEP_DAEMON_TITLE.match(read_or_empty(f"{self._proc}/{pid}/cmdline", 256))
                return None if title is None else title[1].decode()
            pid = stat.parent
        return None

    def _is_trusted(self, entry: _ProcessEntry) -> bool:
        """Whether the job of an entry is trusted. Anyone can write any job into an environment: it counts for processes
        of a user who certainly has processes in the job."""
        return not entry.is_claim or entry.uid in self._proven_users.get(str(entry.number), frozenset())

    def _with_owner(
        self, entry: _ProcessEntry, pid: int, member: Membership, environ: Mapping[str, str] | None
    ) -> _ProcessEntry:
        variables_or_empty = environ or {}
        number = entry.number
        job = None if number is None else job_id(number, variables_or_empty)
        if number is not None and job is not None and job != number and self._is_trusted(entry):
            if any(job_id_ == job and other_number != number for other_number, job_id_ in list(self._job_ids.items())):
                job = number  # the name belongs to another job
            else:
                self._job_ids[number] = job
        job = job or (None if number is None else self._job_ids.get(number, number))
        owner = process_job(member, variables_or_empty, number, job)
        cached_environ = environ if self._environ_chars <= MAX_ENVIRON_CHARS else None
        entry.process = JobProcess(
            pid,
            entry.stat.started,
            entry.stat.parent,
            entry.stat.comm,
            owner,
            visible_gpus(variables_or_empty),
            cached_environ,
        )
        return entry

    def _publish(self) -> None:
        view: dict[int, JobProcess] = {}
        numbers: set[str] = set()
        for pid, entry in self._entries.items():
            if entry.process is None or not self._is_trusted(entry):
                continue
            if entry.number is not None:
                numbers.add(entry.number)
                job = self._job_ids.get(entry.number)
                if job is not None and entry.process.owner.job != job:  # it was read before its job's id was known
                    entry.process = replace(entry.process, owner=replace(entry.process.owner, job=job))
            view[pid] = entry.process
        self._view = {process.pid: process for process in _without_launcher_ranks(list(view.values()))}
        self._gpus = _owners_by_environment(self._view.values())
        self._job_ids = {number: job for number, job in dict(self._job_ids).items() if number in numbers}
        self._proven_users = {number: uids for number, uids in self._proven_users.copy().items() if number in numbers}
        if len(self._environs) > 2 * len(view) + 64 or self._environ_chars > MAX_ENVIRON_CHARS:
            self._environs = {
                tuple(process.environ.items()): process.environ for process in view.values() if process.environ
            }
            self._environ_chars = sum(len(name) + len(value) for items in self._environs for name, value in items)
        self.unread = sum(process.environ is None for process in view.values())

    # -- one process

    def _stat(self, pid: int) -> _Stat | None:
        try:
            data = read_file(f"{self._proc}/{pid}/stat", 4096)
        except OSError:
            return None
        begin, end = data.find(b"("), data.rfind(b")")
        fields = data[end + 2 :].split()
        if begin < 0 or end < 0 or len(fields) < 20:
            return None
        try:
            # The stack's start address, which changes with each program that is executed.
            program = fields[25] if len(fields) > 25 else b""
            comm = data[begin + 1 : end].decode("utf-8", "replace")
            return _Stat(int(fields[19]), int(fields[1]), comm, int(fields[6]), program)
        except ValueError:
            return None

    def _environ(self, pid: int) -> Mapping[str, str] | None:
        try:
            values = variables(read_file(f"{self._proc}/{pid}/environ", MAX_ENVIRON_BYTES))
        except OSError:
            return None
        items = tuple(values.items())
        shared = self._environs.get(items)  # processes of a rank have equal environments
        if shared is None and self._environ_chars <= MAX_ENVIRON_CHARS:
            self._environ_chars += sum(len(name) + len(value) for name, value in items)
            shared = self._environs[items] = values
        return values if shared is None else shared


def _without_launcher_ranks(processes: Sequence[JobProcess]) -> list[JobProcess]:
    """The processes, with the rank removed from launchers: the processes that they started have their own."""
    keys_with_ranks: set[_Key] = {
        _key(process) for process in processes if process.environ and is_ranked(process.environ)
    }
    if not keys_with_ranks:
        return list(processes)
    return [_without_rank(process) if _key(process) in keys_with_ranks else process for process in processes]


def _without_rank(process: JobProcess) -> JobProcess:
    if process.owner.rank is None or (process.environ and is_ranked(process.environ)):
        return process
    return replace(process, owner=replace(process.owner, rank=None, local_rank=None, world_size=None))


def _key(process: JobProcess) -> _Key:
    return process.owner.job, process.owner.step, process.owner.task


def _common_owner(owners: Sequence[Owner]) -> Owner | None:
    """The fields that several owners have in common; None if there are none."""
    first = owners[0]
    if all(owner == first for owner in owners[1:]):
        return first
    common = {
        name: value
        for name in Owner.__slots__
        if (value := getattr(first, name)) is not None and all(getattr(owner, name) == value for owner in owners)
    }
    if "job" not in common:
        common = {name: value for name, value in common.items() if name in ("user", "container", "pod")}
    return Owner(**common) if common else None


def _owners_by_environment(processes: Iterable[JobProcess]) -> dict[str, Owner]:
    """GPU -> owner, by the environments of the processes that may use it: the job, and the rank if it alone may use the
    GPU."""
    certain: dict[str, list[Owner]] = {}
    allocated: dict[str, list[Owner]] = {}
    for process in processes:
        environ = process.environ
        if not environ or process.owner.step == "extern":
            continue
        for gpu in slurm_gpus(environ):
            allocated.setdefault(gpu, []).append(process.owner)
        if process.owner.rank is None:
            continue  # a launcher sees the GPUs of all its ranks
        for gpu in certain_gpus(environ, process.visible_gpus):
            certain.setdefault(gpu, []).append(process.owner)
    owners: dict[str, Owner] = {}
    for gpu in allocated.keys() | certain.keys():
        common = _common_owner(allocated.get(gpu) or certain[gpu])
        if common is None:
            continue
        rank_owner = _common_owner(certain[gpu]) if gpu in certain else None
        owners[gpu] = rank_owner or replace(common, step=None, task=None, rank=None, local_rank=None)
    return owners
