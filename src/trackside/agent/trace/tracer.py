"""One BPF object attached to the libraries of the followed processes; shared by all tracing sources."""

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
from trackside.agent.trace.following import FollowedProcess, LibraryTracker
from trackside.agent.trace.functions import Function
from trackside.agent.trace.libbpf import BpfMap
from trackside.agent.trace.probes import CallProbe, Probes

FOLLOW_S = 1.0
MAX_WARNINGS = 16
ATTACHED, LOST = "trackside_tracer_attached", "trackside_tracer_lost_events_total"


_DEVICE_FILE = re.compile(r"nvidia(\d{1,3})\Z")
DEVICES_S = 10.0
"""Interval at which it is determined which ranks use which GPUs."""
ProcessLabels = dict[str, str | int | None]


@dataclass(slots=True)
class MonotonicCounters:
    """Makes counters that are read in several parts monotonic: a value is never lower than the last one."""

    _maxima: dict[tuple[int, str, str, str], float] = field(default_factory=dict)

    def __call__(self, pid: int, metric: str, first_label: str, second_label: str, value: float) -> float:
        key = (pid, metric, first_label, second_label)
        value = max(value, self._maxima.get(key, 0.0))
        self._maxima[key] = value
        return value

    def forget(self, pid: int) -> None:
        """Drop the counters of a process that has ended."""
        self._maxima = {key: value for key, value in self._maxima.items() if key[0] != pid}


class ProcessGpus:
    """The GPUs of processes: as reported by the driver (:meth:`Owners.of_gpu`), else the device that the process
    chose."""

    def __init__(self, dev: Path, owners: Owners) -> None:
        self._dev, self._owners = dev, owners
        self._updated_at = -DEVICES_S
        self._by_owner: dict[tuple[str, int], str] = {}

    def of(self, owner: Owner | None, visible: tuple[str, ...] | None, chosen: int) -> tuple[str | None, str | None]:
        """(index, UUID) of a process's GPU; None if unknown or if there are several.

        ``visible``: CUDA_VISIBLE_DEVICES. ``chosen``: bit mask of the devices that it chose among these.
        """
        if owner is not None and owner.job is not None and owner.rank is not None:
            index = self._gpu_by_rank().get((owner.job, owner.rank))
            if index is not None:
                return index or None, None
        numbers = [number for number in range(64) if chosen >> number & 1]
        local_rank = owner.local_rank if owner is not None else None
        if len(numbers) > 1 and local_rank in numbers:
            numbers = [local_rank]
        if len(numbers) != 1:
            return None, None
        if visible is None:
            return str(numbers[0]), None
        if numbers[0] >= len(visible):
            return None, None
        name = visible[numbers[0]].strip()
        if name.startswith("GPU-"):
            return None, name
        # Within a job's device cgroup the numbers start at 0 for any GPUs; only a full list is unambiguous.
        return (name, None) if name.isdecimal() and len(visible) == len(self._gpu_indices()) else (None, None)

    def _gpu_by_rank(self) -> dict[tuple[str, int], str]:
        """(job, rank) -> index of the only GPU that it uses; empty if it uses several."""
        now = time.monotonic()
        if now - self._updated_at >= DEVICES_S:
            self._updated_at = now
            by_owner: dict[tuple[str, int], str] = {}
            for index in self._gpu_indices():
                owner = self._owners.of_gpu(str(index))
                if owner is not None and owner.job is not None and owner.rank is not None:
                    key = (owner.job, owner.rank)
                    by_owner[key] = "" if key in by_owner else str(index)
            self._by_owner = by_owner
        return self._by_owner

    def _gpu_indices(self) -> list[int]:
        try:
            return sorted(int(match[1]) for name in os.listdir(self._dev) if (match := _DEVICE_FILE.match(name)))
        except OSError:
            return []


class Tracer:
    """Loads the probes and follows processes in its own thread, so that new ones are found within a second."""

    def __init__(self, name: str, functions: Mapping[int, Function], context: Context) -> None:
        """``name``: of the BPF object and of the source, whose options select the processes to trace. Raises
        AgentSourceUnavailable."""
        options = context.options
        self._functions: dict[str, list[Function]] = {}
        for function in functions.values():
            self._functions.setdefault(function.library, []).append(function)
        self.probes = Probes(name)
        self._collector, self._proc, self._owners = name, Path(context.node.proc), context.owners
        self._devices = ProcessGpus(context.node.dev, context.owners)
        self.tracker = LibraryTracker(
            self._proc, context.owners, frozenset(self._functions), self._attach, _detach,
            frozenset(options.jobs), options.everything,
        )  # fmt: skip
        self._lock, self._end = threading.Lock(), threading.Event()
        self.monotonic = MonotonicCounters()
        self._labels_by_pid: dict[int, ProcessLabels] = {}
        self._chosen_devices: dict[int, int] = {}
        self._lost = 0
        self._error = ""
        for path in options.libraries:
            try:
                self.tracker.add(path)
            except OSError as error:
                context.say(f"{name}: {path} cannot be probed: {error.strerror}")
        self.update()
        self._thread = threading.Thread(target=self._main, name=f"follow-{name}", daemon=True)
        self._thread.start()

    def _attach(self, kind: str, path: str, fd: int) -> list[int]:
        functions = {function.name: function for function in self._functions[kind]}
        offsets = elf.offsets(fd, functions)
        # Of several names for one address only one is probed; otherwise calls would be counted twice.
        probes = {
            offset: CallProbe(offset, functions[name].cookie, functions[name].returns)
            for name, offset in sorted(offsets.items())
        }
        if not probes:
            raise ValueError(f"{path} has none of the traced functions")
        return self.probes.attach(fd, list(probes.values()))

    def update(self) -> None:
        """Examine new processes now."""
        with self._lock:
            self.tracker.step()

    def _main(self) -> None:
        while not self._end.wait(FOLLOW_S):
            try:
                self.update()
                self._error = ""
            except Exception as error:  # noqa: BLE001  reported by the next reading; the next update may succeed
                self._error = f"processes cannot be followed: {type(error).__name__}: {error}"

    def labels(self, pid: int, devices: int = 0) -> ProcessLabels | None:
        """The labels of a process's samples; None if the process is not traced. ``devices``: bit mask of the devices
        that it chose."""
        with self._lock:
            devices = self._chosen_devices[pid] = devices | self._chosen_devices.get(pid, 0)
            labels = self._labels_by_pid.get(pid)
            process = self.tracker.process_of(pid)
            owner = process.process.owner if process is not None else None
            if process is None and labels is None:
                owner = self._owners.of_pid(pid)
                if not self.tracker.is_traced(owner):
                    del self._chosen_devices[pid]
                    return None
            if labels is None or process is not None:
                labels = self._labels_by_pid[pid] = self._make_labels(pid, owner, process, devices)
            return labels

    def _make_labels(
        self, pid: int, owner: Owner | None, process: FollowedProcess | None, devices: int
    ) -> ProcessLabels:
        gpu, uuid = self._devices.of(owner, process.process.visible_gpus if process is not None else None, devices)
        owner = owner or Owner()
        return {"pid": pid, "job": owner.job, "rank": owner.rank, "gpu": gpu, "gpu_uuid": uuid}

    def without_calls(self, active: Container[int]) -> list[FollowedProcess]:
        """Probed processes without counts, except workers that only inherited the libraries."""
        with self._lock:
            followed = {pid: process for pid, process in self.tracker.processes.items() if process.file_keys}
            return [
                process for pid, process in followed.items()
                if pid not in active and not _has_parent_libraries(process, followed)
                and all(library.probe is not None for library in self.tracker.libraries_of(process))
            ]  # fmt: skip

    def report(self, reading: Reading, active: Container[int]) -> None:
        """Add metrics of the tracing itself. ``active``: processes that have counts."""
        with self._lock:
            followed = {pid: process for pid, process in self.tracker.processes.items() if process.file_keys}
            is_attached = {
                pid: all(library.probe is not None for library in self.tracker.libraries_of(process))
                for pid, process in followed.items()
                if pid in active or not _has_parent_libraries(process, followed)
            }
            for library in list(self.tracker.libraries.values())[:MAX_WARNINGS]:
                if library.error:
                    reading.warnings.append(f"{library.path} cannot be probed: {library.error}")
        for pid, attached in is_attached.items():
            if (labels := self.labels(pid)) is not None:
                reading.sample(ATTACHED, float(attached), collector=self._collector, **labels)
        lost = self.probes.loaded.lost()
        reading.sample(LOST, lost, collector=self._collector)
        if lost > self._lost:
            reading.lost["events"] = lost - self._lost
        self._lost = lost
        if self._error:
            reading.warnings.append(self._error)

    def clear(self, tables: Sequence[BpfMap], threads: Sequence[BpfMap], pids: Iterable[int]) -> None:
        """Remove ended processes from the kernel's tables once their last counts were reported. ``tables``: keys start
        with a pid. ``threads``: keys start with a thread id, whose upper half is the pid."""
        ended = {pid for pid in {*pids, *self._labels_by_pid} if not os.path.exists(self._proc / str(pid))}
        if not ended:
            return
        for start, group in ((0, tables), (4, threads)):
            for table in group:
                for key, _ in table.rows():
                    if int.from_bytes(key[start : start + 4], "little") in ended:
                        table.drop(key)
        for pid in ended:
            self.monotonic.forget(pid)
            self._forget(pid)

    def _forget(self, pid: int) -> None:
        with self._lock:
            self._labels_by_pid.pop(pid, None)
            self._chosen_devices.pop(pid, None)
            self.tracker.processes.pop(pid, None)

    def close(self) -> None:
        """Detach everything."""
        self._end.set()
        self._thread.join(5.0)
        with self._lock:
            self.tracker.close()
        self.probes.close()


def _has_parent_libraries(process: FollowedProcess, followed: Mapping[int, FollowedProcess]) -> bool:
    """Whether its parent belongs to the same rank and has the same libraries."""
    parent = followed.get(process.process.parent)
    return (
        parent is not None and parent.process.owner == process.process.owner and parent.file_keys >= process.file_keys
    )


def _detach(links: list[int]) -> None:
    for link in links:
        os.close(link)
