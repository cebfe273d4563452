"""One object of programs, in the libraries of the processes that are followed; what every traced source is made of."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trackside.agent.owners import Owner, Owners
from trackside.agent.source import Context, Reading
from trackside.agent.trace import elf
from trackside.agent.trace.following import Followed, Following
from trackside.agent.trace.functions import Function
from trackside.agent.trace.libbpf import Table
from trackside.agent.trace.probes import Probe, Probes

FOLLOW_S = 1.0
MOST_WARNINGS = 16
ATTACHED, LOST = "trackside_tracer_attached", "trackside_tracer_lost_events_total"


_NODE = re.compile(r"nvidia(\d{1,3})\Z")
DEVICES_S = 10.0
"""How often it is asked which ranks hold which GPUs."""
Labels = dict[str, str | int | None]


@dataclass(slots=True)
class Rising:
    """Counters that are read piece by piece while they rise: never less than was given before."""

    _most: dict[tuple[int, str, str, str], float] = field(default_factory=dict)

    def __call__(self, pid: int, metric: str, one: str, other: str, value: float) -> float:
        key = (pid, metric, one, other)
        value = max(value, self._most.get(key, 0.0))
        self._most[key] = value
        return value

    def forget(self, pid: int) -> None:
        """A process has ended."""
        self._most = {key: value for key, value in self._most.items() if key[0] != pid}


class Devices:
    """GPUs by what their driver says (:meth:`Owners.of_gpu`); else by the device that the process chose."""

    def __init__(self, dev: Path, owners: Owners) -> None:
        self._dev, self._owners = dev, owners
        self._at = -DEVICES_S
        self._by_owner: dict[tuple[str, int], str] = {}

    def of(self, owner: Owner | None, visible: tuple[str, ...] | None, chosen: int) -> tuple[str | None, str | None]:
        """(index, UUID) of a process's GPU; None where it isn't known, or there are several.

        ``visible``: CUDA_VISIBLE_DEVICES. ``chosen``: bits of the devices it chose among these.
        """
        if owner is not None and owner.job is not None and owner.rank is not None:
            index = self._held().get((owner.job, owner.rank))
            if index is not None:
                return index or None, None
        numbers = [number for number in range(64) if chosen >> number & 1]
        local = owner.local_rank if owner is not None else None
        if len(numbers) > 1 and local in numbers:
            numbers = [local]
        if len(numbers) != 1:
            return None, None
        if visible is None:
            return str(numbers[0]), None
        if numbers[0] >= len(visible):
            return None, None
        name = visible[numbers[0]].strip()
        if name.startswith("GPU-"):
            return None, name
        # Within a job's devices cgroup these count from 0 whichever they are: only a full list tells.
        return (name, None) if name.isdecimal() and len(visible) == len(self._nodes()) else (None, None)

    def _held(self) -> dict[tuple[str, int], str]:
        """(job, rank) -> index of the one GPU that it holds; empty where it holds several."""
        now = time.monotonic()
        if now - self._at >= DEVICES_S:
            self._at = now
            found: dict[tuple[str, int], str] = {}
            for index in self._nodes():
                owner = self._owners.of_gpu(str(index))
                if owner is not None and owner.job is not None and owner.rank is not None:
                    key = (owner.job, owner.rank)
                    found[key] = "" if key in found else str(index)
            self._by_owner = found
        return self._by_owner

    def _nodes(self) -> list[int]:
        try:
            return sorted(int(found[1]) for name in os.listdir(self._dev) if (found := _NODE.match(name)))
        except OSError:
            return []


class Tracer:
    """Loads, follows in a thread of its own so that a process is found within a second, and says how that went."""

    def __init__(self, name: str, functions: Mapping[int, Function], context: Context) -> None:
        """``name``: of the object and of the source, whose options say which processes are traced. Raises
        Unavailable."""
        options = context.options
        self._functions: dict[str, list[Function]] = {}
        for function in functions.values():
            self._functions.setdefault(function.library, []).append(function)
        self.probes = Probes(name)
        self._collector, self._proc, self._owners = name, Path(context.node.proc), context.owners
        self._devices = Devices(context.node.dev, context.owners)
        self.following = Following(
            self._proc, context.owners, frozenset(self._functions), self._attach, _detach,
            frozenset(options.jobs), options.everything,
        )  # fmt: skip
        self._lock, self._end = threading.Lock(), threading.Event()
        self.rising = Rising()
        self._known: dict[int, Labels] = {}
        self._chosen: dict[int, int] = {}
        self._lost = 0
        self._failed = ""
        for path in options.libraries:
            try:
                self.following.add(path)
            except OSError as error:
                context.say(f"{name}: {path} can't be probed: {error.strerror}")
        self.follow()
        self._thread = threading.Thread(target=self._live, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def _attach(self, kind: str, path: str, fd: int) -> list[int]:
        wanted = {function.name: function for function in self._functions[kind]}
        found = elf.offsets(fd, wanted)
        # Of names for one address, one is probed: it would be counted twice.
        probes = {at: Probe(at, wanted[name].cookie, wanted[name].returns) for name, at in sorted(found.items())}
        if not probes:
            raise ValueError(f"{path} has none of the functions that are traced")
        return self.probes.attach(fd, list(probes.values()))

    def follow(self) -> None:
        """Look at what is new now."""
        with self._lock:
            self.following.step()

    def _live(self) -> None:
        while not self._end.wait(FOLLOW_S):
            try:
                self.follow()
                self._failed = ""
            except Exception as error:  # noqa: BLE001  told by the next reading; a step later all may be well
                self._failed = f"processes can't be followed: {type(error).__name__}: {error}"

    def labels(self, pid: int, devices: int = 0) -> Labels | None:
        """Those of all samples of a process with counts: whose it is; None where it isn't to be traced. ``devices``:
        bits of those it chose."""
        with self._lock:
            devices = self._chosen[pid] = devices | self._chosen.get(pid, 0)
            known = self._known.get(pid)
            process = self.following.of(pid)
            owner = process.process.owner if process is not None else None
            if process is None and known is None:
                owner = self._owners.of_pid(pid)
                if not self.following.wanted(owner):
                    del self._chosen[pid]
                    return None
            if known is None or process is not None:
                known = self._known[pid] = self._labelled(pid, owner, process, devices)
            return known

    def _labelled(self, pid: int, owner: Owner | None, process: Followed | None, devices: int) -> Labels:
        gpu, uuid = self._devices.of(owner, process.process.visible_gpus if process is not None else None, devices)
        owner = owner or Owner()
        return {"pid": pid, "job": owner.job, "rank": owner.rank, "gpu": gpu, "gpu_uuid": uuid}

    def quiet(self, busy: Container[int]) -> list[Followed]:
        """Processes that are probed and have no counts, less the workers that only inherited the libraries."""
        with self._lock:
            seen = {pid: each for pid, each in self.following.processes.items() if each.places}
            return [
                each for pid, each in seen.items()
                if pid not in busy and not _inherited(each, seen)
                and all(library.held is not None for library in self.following.probed(each))
            ]  # fmt: skip

    def report(self, reading: Reading, busy: Container[int]) -> None:
        """How tracing itself goes. ``busy``: the processes that have counts."""
        with self._lock:
            seen = {pid: each for pid, each in self.following.processes.items() if each.places}
            given = {
                pid: all(library.held is not None for library in self.following.probed(each))
                for pid, each in seen.items()
                if pid in busy or not _inherited(each, seen)
            }
            for library in list(self.following.libraries.values())[:MOST_WARNINGS]:
                if library.why:
                    reading.warnings.append(f"{library.path} can't be probed: {library.why}")
        for pid, held in given.items():
            if (labels := self.labels(pid)) is not None:
                reading.sample(ATTACHED, float(held), collector=self._collector, **labels)
        lost = self.probes.loaded.lost()
        reading.sample(LOST, lost, collector=self._collector)
        if lost > self._lost:
            reading.lost["events"] = lost - self._lost
        self._lost = lost
        if self._failed:
            reading.warnings.append(self._failed)

    def clear(self, tables: Sequence[Table], threads: Sequence[Table], pids: Iterable[int]) -> None:
        """Take those that have ended out of the kernel's tables, once their last counts were given: tables whose keys
        begin with a process, and such whose keys begin with a thread's id, of which the process is the upper half."""
        ended = {pid for pid in {*pids, *self._known} if not os.path.exists(self._proc / str(pid))}
        if not ended:
            return
        for begin, group in ((0, tables), (4, threads)):
            for table in group:
                for key, _ in table.rows():
                    if int.from_bytes(key[begin : begin + 4], "little") in ended:
                        table.drop(key)
        for pid in ended:
            self.rising.forget(pid)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        with self._lock:
            self._known.pop(pid, None)
            self._chosen.pop(pid, None)
            self.following.processes.pop(pid, None)

    def close(self) -> None:
        """Detach from all."""
        self._end.set()
        self._thread.join(5.0)
        with self._lock:
            self.following.close()
        self.probes.close()


def _inherited(process: Followed, seen: Mapping[int, Followed]) -> bool:
    """Whether its parent is of the same rank and has the same libraries."""
    parent = seen.get(process.process.parent)
    return parent is not None and parent.process.owner == process.process.owner and parent.places >= process.places


def _detach(links: list[int]) -> None:
    for link in links:
        os.close(link)
