"""NCCL's collectives of processes: begun, known to be done, in flight; by probes in their own libraries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.agent.source import Collector, Context, Reading, Source

if TYPE_CHECKING:
    from trackside.agent.trace.collectives import Collectives, Communicator, Tally
    from trackside.agent.trace.tracer import Labels

STARTED, COMPLETED, IN_FLIGHT, OLDEST, ENQUEUE, SECONDS, COMMUNICATORS = (
    "trackside_nccl_collectives_started_total",
    "trackside_nccl_collectives_completed_total",
    "trackside_nccl_collectives_in_flight",
    "trackside_nccl_oldest_in_flight_seconds",
    "trackside_nccl_enqueue_seconds_total",
    "trackside_nccl_collective_seconds_total",
    "trackside_nccl_communicators",
)
MOST_COMMUNICATORS = 256
"""Of one process whose curves are given; those made first."""


@dataclass(frozen=True, slots=True)
class NcclOptions:
    """``jobs``: these alone are traced. ``everything``: processes of no job too. ``libraries``: probed from the start
    on, so that not even the first process's first calls are missed."""

    jobs: tuple[str, ...] = ()
    everything: bool = False
    libraries: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """Calls of one operation on one communicator, of all the ranks that a process has in it."""

    begun: int = 0
    left: int = 0
    enqueue_ns: int = 0
    device_ns: int = 0
    measured: int = 0
    watched: bool = True

    def add(self, process: Collectives, key: tuple[int, int], tally: Tally) -> None:
        """One rank's."""
        self.begun += tally.calls - tally.failed
        self.left += process.in_flight[key]
        self.enqueue_ns += tally.enqueue_ns
        self.device_ns += tally.device_ns
        self.measured += tally.measured
        self.watched &= key not in process.unwatched


class _Nccl(Collector):
    def __init__(self, context: Context) -> None:
        from trackside.agent.trace import collectives, functions  # nothing of tracing is loaded before it is asked for
        from trackside.agent.trace.tracer import Tracer

        self._read = collectives.read
        self._functions = functions.nccl()
        self.tracer = Tracer("nccl", self._functions, context)
        table, handle = self.tracer.probes.loaded.table, collectives.HANDLE.size
        self._tallies = table("tallies", collectives.TALLY_KEY.size, collectives.TALLY.size)
        self._communicators = table("communicators", handle, collectives.COMMUNICATOR.size)
        self._lanes = table("lanes", handle, collectives.LANE_BYTES)
        self._settled = table("settled", 4, 8)
        self._marks = table("marks", handle, 16)
        self._under_way = (table("calls", 16, 40), table("joining", 16, collectives.COMMUNICATOR.size))
        self._known: dict[int, dict[int, Communicator]] = {}

    def collect(self, reading: Reading) -> None:
        tallies, communicators = self._tallies.rows(), self._communicators.rows()
        settled = {_number(key): _number(value) for key, value in self._settled.rows()}
        found = self._read(tallies, communicators, self._lanes.rows(), settled, self._known)
        self._known = {pid: each.communicators for pid, each in found.items()}
        now = time.monotonic_ns()
        for pid, each in sorted(found.items()):
            if (labels := self.tracer.labels(pid)) is not None:
                self._give(reading, pid, labels, each, now)
        for process in self.tracer.quiet(found):
            if (labels := self.tracer.labels(process.process.pid)) is not None:
                reading.sample(COMMUNICATORS, 0, **labels)
        self.tracer.report(reading, found)
        tables = (self._tallies, self._communicators, self._lanes, self._settled, self._marks)
        self.tracer.clear(tables, self._under_way, found)

    def _give(self, reading: Reading, pid: int, labels: Labels, process: Collectives, now: int) -> None:
        rising = self.tracer.rising
        reading.sample(COMMUNICATORS, process.live, **labels)
        names = {serial: process.label(serial) for serial in sorted(process.communicators)[:MOST_COMMUNICATORS]}
        groups: dict[tuple[str, str], _Group] = {}
        for (number, serial), tally in sorted(process.tallies.items()):
            comm, op = names.get(serial, ""), self._functions[number].api if serial else "Group"
            if comm or not serial:
                groups.setdefault((op, comm), _Group()).add(process, (number, serial), tally)
        for (op, comm), group in groups.items():
            given = {"op": op, "comm": comm, **labels}
            reading.sample(ENQUEUE, rising(pid, ENQUEUE, op, comm, group.enqueue_ns * 1e-9), **given)
            if not comm:
                continue
            started = rising(pid, STARTED, op, comm, group.begun)
            reading.sample(STARTED, started, **given)
            if group.watched:
                completed = rising(pid, COMPLETED, op, comm, max(0, group.begun - group.left))
                reading.sample(COMPLETED, completed, **given)
                reading.sample(IN_FLIGHT, max(0.0, started - completed), **given)
            if group.measured:
                reading.sample(SECONDS, rising(pid, SECONDS, op, comm, group.device_ns * 1e-9), **given)
        _give_ages(reading, labels, process, names, now)

    def close(self) -> None:
        self.tracer.close()


def _give_ages(reading: Reading, labels: Labels, process: Collectives, names: dict[int, str], now: int) -> None:
    """How long the oldest collective of each live communicator has been in flight."""
    unwatched = {serial for _, serial in process.unwatched}
    ages: dict[str, float] = {}
    for serial, known in process.communicators.items():
        comm = names.get(serial, "")
        if comm and not known.ended and serial not in unwatched:
            age = max(0, now - process.oldest.get(serial, now)) * 1e-9
            ages[comm] = max(age, ages.get(comm, 0.0))
    for comm, age in ages.items():
        reading.sample(OLDEST, age, comm=comm, **labels)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


SOURCE = Source(
    id="nccl",
    title="NCCL communicators and collectives of processes, by BPF",
    open=_Nccl,
    metrics=(
        STARTED,
        COMPLETED,
        IN_FLIGHT,
        OLDEST,
        ENQUEUE,
        SECONDS,
        COMMUNICATORS,
        "trackside_tracer_attached",
        "trackside_tracer_lost_events_total",
    ),
    interval_s=5.0,
    on=False,
    needs="CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root",
    options=NcclOptions,
)
