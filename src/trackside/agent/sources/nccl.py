"""NCCL collectives of processes: started, completed, in flight; by probes in the processes' libraries."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.agent.source import AgentSource, Collector, Context, Reading

if TYPE_CHECKING:
    from trackside.agent.trace.collectives import Collectives, Communicator, Tally
    from trackside.agent.trace.tracer import ProcessLabels

STARTED, COMPLETED, IN_FLIGHT, OLDEST, ENQUEUE, SECONDS, COMMUNICATORS = (
    "trackside_nccl_collectives_started_total",
    "trackside_nccl_collectives_completed_total",
    "trackside_nccl_collectives_in_flight",
    "trackside_nccl_oldest_in_flight_seconds",
    "trackside_nccl_enqueue_seconds_total",
    "trackside_nccl_collective_seconds_total",
    "trackside_nccl_communicators",
)
MAX_COMMUNICATORS = 256
"""Maximum communicators reported per process, oldest first."""


@dataclass(frozen=True, slots=True)
class NcclOptions:
    """``jobs``: trace only these. ``everything``: also trace processes without a job. ``libraries``: probe these from
    the start, so that not even the first calls are missed."""

    jobs: tuple[str, ...] = ()
    everything: bool = False
    libraries: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """Calls of one operation on one communicator, summed over all ranks in a process."""

    started: int = 0
    in_flight: int = 0
    enqueue_ns: int = 0
    device_ns: int = 0
    timed: int = 0
    is_observed: bool = True

    def add(self, process: Collectives, key: tuple[int, int], tally: Tally) -> None:
        """Add the calls of one rank."""
        self.started += tally.calls - tally.failed
        self.in_flight += process.in_flight[key]
        self.enqueue_ns += tally.enqueue_ns
        self.device_ns += tally.device_ns
        self.timed += tally.timed
        self.is_observed &= key not in process.unobserved


class _Nccl(Collector):
    def __init__(self, context: Context) -> None:
        from trackside.agent.trace import collectives, functions  # tracing code is loaded only when it is used
        from trackside.agent.trace.tracer import Tracer

        self._read = collectives.read_collectives
        self._functions = functions.nccl()
        self.tracer = Tracer("nccl", self._functions, context)
        table, handle = self.tracer.probes.loaded.table, collectives.HANDLE.size
        self._tallies = table("tallies", collectives.TALLY_KEY.size, collectives.TALLY.size)
        self._communicators = table("communicators", handle, collectives.COMMUNICATOR.size)
        self._lanes = table("lanes", handle, collectives.LANE_BYTES)
        self._settled = table("settled", 4, 8)
        self._marks = table("marks", handle, 16)
        self._under_way = (table("calls", 16, 40), table("joining", 16, collectives.COMMUNICATOR.size))
        self._last_communicators: dict[int, dict[int, Communicator]] = {}

    def collect(self, reading: Reading) -> None:
        tallies, communicators = self._tallies.rows(), self._communicators.rows()
        settled = {_number(key): _number(value) for key, value in self._settled.rows()}
        collectives_by_pid = self._read(tallies, communicators, self._lanes.rows(), settled, self._last_communicators)
        self._last_communicators = {pid: collectives.communicators for pid, collectives in collectives_by_pid.items()}
        now = time.monotonic_ns()
        for pid, collectives in sorted(collectives_by_pid.items()):
            if (labels := self.tracer.labels(pid)) is not None:
                self._add(reading, pid, labels, collectives, now)
        for process in self.tracer.without_calls(collectives_by_pid):
            if (labels := self.tracer.labels(process.process.pid)) is not None:
                reading.sample(COMMUNICATORS, 0, **labels)
        self.tracer.report(reading, collectives_by_pid)
        tables = (self._tallies, self._communicators, self._lanes, self._settled, self._marks)
        self.tracer.clear(tables, self._under_way, collectives_by_pid)

    def _add(self, reading: Reading, pid: int, labels: ProcessLabels, process: Collectives, now: int) -> None:
        monotonic = self.tracer.monotonic
        reading.sample(COMMUNICATORS, process.live, **labels)
        names = {serial: process.label(serial) for serial in sorted(process.communicators)[:MAX_COMMUNICATORS]}
        groups: dict[tuple[str, str], _Group] = {}
        for (number, serial), tally in sorted(process.tallies.items()):
            comm, op = names.get(serial, ""), self._functions[number].api if serial else "Group"
            if comm or not serial:
                groups.setdefault((op, comm), _Group()).add(process, (number, serial), tally)
        for (op, comm), group in groups.items():
            series_labels = {"op": op, "comm": comm, **labels}
            reading.sample(ENQUEUE, monotonic(pid, ENQUEUE, op, comm, group.enqueue_ns * 1e-9), **series_labels)
            if not comm:
                continue
            started = monotonic(pid, STARTED, op, comm, group.started)
            reading.sample(STARTED, started, **series_labels)
            if group.is_observed:
                completed = monotonic(pid, COMPLETED, op, comm, max(0, group.started - group.in_flight))
                reading.sample(COMPLETED, completed, **series_labels)
                reading.sample(IN_FLIGHT, max(0.0, started - completed), **series_labels)
            if group.timed:
                reading.sample(SECONDS, monotonic(pid, SECONDS, op, comm, group.device_ns * 1e-9), **series_labels)
        _add_ages(reading, labels, process, names, now)

    def close(self) -> None:
        self.tracer.close()


def _add_ages(reading: Reading, labels: ProcessLabels, process: Collectives, names: dict[int, str], now: int) -> None:
    """Add how long the oldest collective of each live communicator has been in flight."""
    unobserved = {serial for _, serial in process.unobserved}
    ages: dict[str, float] = {}
    for serial, communicator in process.communicators.items():
        comm = names.get(serial, "")
        if comm and not communicator.has_ended and serial not in unobserved:
            age = max(0, now - process.oldest.get(serial, now)) * 1e-9
            ages[comm] = max(age, ages.get(comm, 0.0))
    for comm, age in ages.items():
        reading.sample(OLDEST, age, comm=comm, **labels)


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


SOURCE = AgentSource(
    id="nccl",
    title="NCCL communicators and collectives of processes, traced by eBPF",
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
