"""The map of this node's processes: whose each is, and by them whose a GPU is.

A process is read once, when it is new: its identity is its number in /proc together with the inode that /proc gives it,
which the listing tells, and its start time where that has changed. Young ones are looked at once more, as they may
not have come to their cgroup or their program yet; a few of the others each time, as a shell may have become another.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from trackside.agent.jobs.cgroup_path import Membership, membership
from trackside.agent.jobs.environment import (
    is_elsewhere,
    is_ranked,
    job_id,
    job_number,
    owner_of,
    slurm_gpus,
    sure_gpus,
    variables,
    visible,
)
from trackside.agent.node import Node
from trackside.agent.owners import Owner, Owners, Process
from trackside.agent.pseudo_files import once, uptime_s
from trackside.agent.user import user_of

MOST = 1 << 16
"""Processes of the node that are looked at."""
MOST_NEW = 1000
"""Of one renewal but the first: when more begin at once, the rest is read at the next, or when it is asked for."""
MOST_ENVIRON = 512 << 10
"""Bytes of one environment."""
MOST_KEPT = 16 << 20
"""Characters of all environments: beyond it, new ones are not kept, and what they tell of a process is."""
YOUNG_TICKS = 200
"""Kernel ticks, two seconds: what began since is looked at again."""
TURNS = 12
"""In so many renewals each process of a job is looked at again."""
_KERNEL = 0x00200000
"""PF_KTHREAD among a process' flags: it is nobody's."""
_Key = tuple[str | None, str | None, int | None]
"""Job, step and task."""


@dataclass(slots=True)
class _Stat:
    """What ``/proc/PID/stat`` tells. ``program`` changes with the program that a process runs."""

    started: int
    parent: int
    comm: str
    flags: int
    program: bytes


@dataclass(slots=True)
class _Seen:
    """A process as it was read last; ``process`` None: nobody's. ``number``: Slurm's of its job. ``claims``: only its
    environment says so, and ``uid`` is its user."""

    inode: int
    stat: _Stat
    process: Process | None
    number: str | None = None
    again: bool = False
    claims: bool = False
    uid: int | None = None


class ProcessMap(Owners):
    """One thread renews it, every few seconds: the source ``processes``."""

    def __init__(self, node: Node) -> None:
        self._node, self._proc = node.name, os.fspath(node.proc)
        self._seen: dict[int, _Seen] = {}
        self._job_ids: dict[str, str] = {}
        """Slurm's number -> the id as users write it, by those environments that could be read."""
        self._proven: dict[str, frozenset[int]] = {}
        """Number -> users whose processes are in the job's cgroup."""
        self._claimed: dict[str, int | None] = {}
        """Number -> the user whose environment said it first, of jobs without cgroups."""
        self._environs: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}
        self._kept = 0
        """Characters of them."""
        self._turn, self._renewed = 0, False
        self._view: Mapping[int, Process] = {}
        self._gpus: Mapping[str, Owner] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._lock = threading.Lock()

    # -- asking

    def processes(self) -> Sequence[Process]:
        return tuple(self._view.values())

    def of_pid(self, pid: int) -> Owner | None:
        seen, known = self._seen.get(pid), self._view.get(pid)
        try:
            inode = os.stat(f"{self._proc}/{pid}").st_ino
        except OSError:
            return None if known is None else known.owner  # it ended just now
        if seen is not None and seen.inode == inode and not seen.again:
            return None if known is None else known.owner
        fresh = self._read(pid, inode)
        if fresh is None or fresh.process is None or not self._is_believed(fresh):
            return None
        return _unranked([fresh.process, *self._view.values()])[0].owner

    def of_gpu(self, gpu: str) -> Owner | None:
        owners = [owner for pid in self._held.get(gpu, ()) if (owner := self.of_pid(pid)) is not None]
        return _common(owners) if owners else self._gpus.get(gpu)

    def hold(self, gpu: str, pids: Sequence[int]) -> None:
        self._held[gpu] = tuple(pids[:4096])

    # -- renewing

    def renew(self) -> None:
        with self._lock:
            now = int(uptime_s(self._proc) * os.sysconf("SC_CLK_TCK"))
            self._turn = (self._turn + 1) % TURNS
            listed = self._listed()
            changed, new = False, 0
            for pid in self._seen.keys() - listed.keys():
                changed |= self._seen.pop(pid).process is not None
            for pid, inode in listed.items():
                seen = self._seen.get(pid)
                if seen is not None and not self._is_due(pid, inode, seen):
                    continue
                new += seen is None
                if seen is None and new > MOST_NEW and self._renewed:
                    continue
                fresh = self._read(pid, inode) if seen is None else self._reread(pid, inode, seen)
                changed |= fresh is not seen
                if fresh is None:
                    self._seen.pop(pid, None)
                    continue
                fresh.again = now > 0 and now - fresh.stat.started < YOUNG_TICKS
                self._seen[pid] = fresh
            self._renewed = True
            if changed:
                self._publish()
            for gpu, pids in list(self._held.items()):
                self._held[gpu] = tuple(pid for pid in pids if pid in listed)

    def _listed(self) -> dict[int, int]:
        """The processes there are, with their inodes."""
        found: dict[int, int] = {}
        with os.scandir(self._proc) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    found[int(entry.name)] = entry.inode()
                    if len(found) >= MOST:
                        break
        return found

    def _is_due(self, pid: int, inode: int, seen: _Seen) -> bool:
        return seen.again or seen.inode != inode or (seen.process is not None and pid % TURNS == self._turn)

    def _reread(self, pid: int, inode: int, seen: _Seen) -> _Seen | None:
        """A process that was seen before: unless it is another now, what was read of it stays."""
        stat = self._stat(pid)
        if stat is None:
            return None
        same = stat.started == seen.stat.started and stat.program == seen.stat.program and stat.comm == seen.stat.comm
        if not same or (seen.process is None and seen.again):
            return self._read(pid, inode, stat)
        seen.inode = inode
        if seen.process is not None and stat.parent != seen.process.parent:
            return replace(seen, stat=stat, process=replace(seen.process, parent=stat.parent))
        return seen

    def _read(self, pid: int, inode: int, stat: _Stat | None = None) -> _Seen | None:
        """All of a process; None where it is gone."""
        stat = stat or self._stat(pid)
        if stat is None:
            return None
        nobody = _Seen(inode, stat, None)
        if stat.flags & _KERNEL:
            return nobody
        try:
            member = membership(once(f"{self._proc}/{pid}/cgroup", 1 << 16))
        except OSError:
            return nobody
        environ = self._environ(pid)
        number = job_number(member, environ or {})
        if (number is None and not member.container and not member.pod) or is_elsewhere(
            member, environ or {}, self._node
        ):
            return nobody
        seen = _Seen(inode, stat, None, number)
        if number is not None:
            self._prove(seen, pid, member)
        return self._owned(seen, pid, member, environ)

    def _prove(self, seen: _Seen, pid: int, member: Membership) -> None:
        """Note whether a process is surely of the job that is told, and whose it is."""
        proven = self._proven.get(str(seen.number), frozenset())
        if member.job is not None and proven - {0}:
            return
        user = user_of(self._proc, pid)
        seen.uid = None if user is None else user.uid
        if member.job is None:
            # Who may start a container as root may do anything; in a pod, everybody may.
            seen.claims = not member.container or member.pod is not None or seen.uid != 0
        elif seen.uid is not None:
            self._proven[str(seen.number)] = proven | {seen.uid}  # Slurm's own processes are root's

    def _is_believed(self, seen: _Seen) -> bool:
        """Anybody may write any job into an environment: it counts for processes of the same user as those that are
        surely the job's, or else as the first that said so."""
        number = str(seen.number)
        proven = self._proven.get(number)
        return not seen.claims or (seen.uid in proven if proven else self._claimed.get(number, seen.uid) == seen.uid)

    def _owned(self, seen: _Seen, pid: int, member: Membership, environ: Mapping[str, str] | None) -> _Seen:
        told = environ or {}
        number = seen.number
        job = None if number is None else job_id(number, told)
        if number is not None and job is not None and job != number and self._is_believed(seen):
            if any(known == job and other != number for other, known in list(self._job_ids.items())):
                job = number  # that name is another's
            else:
                self._job_ids[number] = job
        job = job or (None if number is None else self._job_ids.get(number, number))
        owner = owner_of(member, told, number, job)
        kept = environ if self._kept <= MOST_KEPT else None
        seen.process = Process(pid, seen.stat.started, seen.stat.parent, seen.stat.comm, owner, visible(told), kept)
        return seen

    def _publish(self) -> None:
        view: dict[int, Process] = {}
        numbers: set[str] = set()
        for seen in sorted((each for each in self._seen.values() if each.claims), key=lambda each: each.stat.started):
            self._claimed.setdefault(str(seen.number), seen.uid)
        for pid, seen in self._seen.items():
            if seen.process is None or not self._is_believed(seen):
                continue
            if seen.number is not None:
                numbers.add(seen.number)
                job = self._job_ids.get(seen.number)
                if job is not None and seen.process.owner.job != job:  # it was read before its job's id was known
                    seen.process = replace(seen.process, owner=replace(seen.process.owner, job=job))
            view[pid] = seen.process
        self._view = {each.pid: each for each in _unranked(list(view.values()))}
        self._gpus = _claims(self._view.values())
        self._job_ids = {number: job for number, job in dict(self._job_ids).items() if number in numbers}
        self._proven = {number: uids for number, uids in self._proven.copy().items() if number in numbers}
        self._claimed = {number: uid for number, uid in self._claimed.copy().items() if number in numbers}
        if len(self._environs) > 2 * len(view) + 64 or self._kept > MOST_KEPT:
            self._environs = {tuple(each.environ.items()): each.environ for each in view.values() if each.environ}
            self._kept = sum(len(name) + len(value) for items in self._environs for name, value in items)
        self.unread = sum(each.environ is None for each in view.values())

    # -- one process

    def _stat(self, pid: int) -> _Stat | None:
        try:
            data = once(f"{self._proc}/{pid}/stat", 4096)
        except OSError:
            return None
        begin, end = data.find(b"("), data.rfind(b")")
        fields = data[end + 2 :].split()
        if begin < 0 or end < 0 or len(fields) < 20:
            return None
        try:
            # The first of its stack: every program that it runs gets another.
            program = fields[25] if len(fields) > 25 else b""
            comm = data[begin + 1 : end].decode("utf-8", "replace")
            return _Stat(int(fields[19]), int(fields[1]), comm, int(fields[6]), program)
        except ValueError:
            return None

    def _environ(self, pid: int) -> Mapping[str, str] | None:
        try:
            found = variables(once(f"{self._proc}/{pid}/environ", MOST_ENVIRON))
        except OSError:
            return None
        items = tuple(found.items())
        known = self._environs.get(items)  # a rank's processes have the same
        if known is None and self._kept <= MOST_KEPT:
            self._kept += sum(len(name) + len(value) for name, value in items)
            known = self._environs[items] = found
        return found if known is None else known


def _unranked(processes: Sequence[Process]) -> list[Process]:
    """The processes, the launchers among them without the rank of the task that they are: what they started has its
    own."""
    launched: set[_Key] = {_key(each) for each in processes if each.environ and is_ranked(each.environ)}
    if not launched:
        return list(processes)
    return [_launcher(each) if _key(each) in launched else each for each in processes]


def _launcher(process: Process) -> Process:
    if process.owner.rank is None or (process.environ and is_ranked(process.environ)):
        return process
    return replace(process, owner=replace(process.owner, rank=None, local_rank=None, world_size=None))


def _key(process: Process) -> _Key:
    return process.owner.job, process.owner.step, process.owner.task


def _common(owners: Sequence[Owner]) -> Owner | None:
    """What several owners have in common; None where nothing is."""
    first = owners[0]
    if all(each == first for each in owners[1:]):
        return first
    same = {
        name: value
        for name in Owner.__slots__
        if (value := getattr(first, name)) is not None and all(getattr(each, name) == value for each in owners)
    }
    if "job" not in same:
        same = {name: value for name, value in same.items() if name in ("user", "container", "pod")}
    return Owner(**same) if same else None


def _claims(processes: Iterable[Process]) -> dict[str, Owner]:
    """GPU -> whose it is by the environments of those who may use it: the job's, and a rank's where it is its alone."""
    sure: dict[str, list[Owner]] = {}
    given: dict[str, list[Owner]] = {}
    for each in processes:
        environ = each.environ
        if not environ or each.owner.step == "extern":
            continue
        for gpu in slurm_gpus(environ):
            given.setdefault(gpu, []).append(each.owner)
        if each.owner.rank is None:
            continue  # a launcher sees what its ranks share out
        for gpu in sure_gpus(environ, each.visible_gpus):
            sure.setdefault(gpu, []).append(each.owner)
    found: dict[str, Owner] = {}
    for gpu in given.keys() | sure.keys():
        everyone = _common(given.get(gpu) or sure[gpu])
        if everyone is None:
            continue
        one = _common(sure[gpu]) if gpu in sure else None
        found[gpu] = one or replace(everyone, step=None, task=None, rank=None, local_rank=None)
    return found
