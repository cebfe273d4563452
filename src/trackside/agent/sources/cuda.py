"""CUDA calls of processes: kernel launches, calls with their duration, copies; by probes in the processes'
libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.agent.source import AgentSource, Collector, Context, Reading

if TYPE_CHECKING:
    from trackside.agent.trace.calls import Calls
    from trackside.agent.trace.tracer import ProcessLabels

LAUNCHES, SECONDS, CALLS, BYTES, HAS_CONTEXT = (
    "trackside_cuda_kernel_launches_total",
    "trackside_cuda_api_seconds_total",
    "trackside_cuda_api_calls_total",
    "trackside_cuda_memcpy_bytes_total",
    "trackside_gpu_process_attached",
)


MAX_TIMED_ONE_IN = 1024


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """``jobs``: trace only these. ``everything``: also trace processes without a job. ``libraries``: probe these from
    the start, so that not even the first calls are missed. ``timed_one_in``: one of this many launches is timed: a
    power of two up to 1,024, or 0 for none; of queries as many, but at least 1 in 16.

    Raises ValueError for invalid values.
    """

    jobs: tuple[str, ...] = ()
    everything: bool = False
    libraries: tuple[str, ...] = ()
    timed_one_in: int = 16

    def __post_init__(self) -> None:
        one_in = self.timed_one_in
        if not 0 <= one_in <= MAX_TIMED_ONE_IN or one_in & (one_in - 1):
            raise ValueError(f"timed_one_in is {one_in}; it must be 0, or a power of two up to {MAX_TIMED_ONE_IN}")


class _Cuda(Collector):
    def __init__(self, context: Context) -> None:
        from trackside.agent.trace import calls, functions  # tracing code is loaded only when it is used
        from trackside.agent.trace.tracer import Tracer

        self._read = calls.read
        self._functions = functions.cuda(context.options.timed_one_in)
        self.tracer = Tracer("cuda", self._functions, context)
        loaded = self.tracer.probes.loaded
        self._cells = loaded.table("cells", calls.CELL_KEY.size, calls.CELL.size)
        self._processes = loaded.table("processes", calls.PROCESS_KEY.size, calls.PROCESS.size)
        self.unfinished_calls = loaded.table("underway", 16, 16)

    def collect(self, reading: Reading) -> None:
        calls_by_pid = self._read(self._cells.rows(), self._processes.rows())
        for pid, calls in sorted(calls_by_pid.items()):
            if (labels := self.tracer.labels(pid, calls.devices)) is not None:
                self._add(reading, pid, labels, calls)
        self._add_idle(reading, calls_by_pid)
        self.tracer.report(reading, calls_by_pid)
        self.tracer.clear((self._cells, self._processes), (self.unfinished_calls,), calls_by_pid)

    def _add(self, reading: Reading, pid: int, labels: ProcessLabels, calls: Calls) -> None:
        monotonic = self.tracer.monotonic
        launches = calls.launches(self._functions)
        reading.sample(LAUNCHES, monotonic(pid, LAUNCHES, "", "", launches or 0), **labels)
        for api, totals in calls.totals(self._functions).items():
            reading.sample(CALLS, monotonic(pid, CALLS, api, "", totals.calls), api=api, **labels)
            if totals.ns:
                reading.sample(SECONDS, monotonic(pid, SECONDS, api, "", totals.ns * 1e-9), api=api, **labels)
        for direction, size in calls.bytes_copied(self._functions).items():
            reading.sample(BYTES, monotonic(pid, BYTES, direction, "", size), direction=direction, **labels)
        process = self.tracer.tracker.process_of(pid)
        has_context = calls.has_context or (process is not None and process.has_device)
        reading.sample(HAS_CONTEXT, float(has_context), **labels)

    def _add_idle(self, reading: Reading, calls_by_pid: dict[int, Calls]) -> None:
        """Add probed processes that never made a call: an idle hang looks like that."""
        for process in self.tracer.without_calls(calls_by_pid):
            if (labels := self.tracer.labels(process.process.pid)) is not None:
                reading.sample(LAUNCHES, 0, **labels)
                reading.sample(HAS_CONTEXT, float(process.has_device), **labels)

    def close(self) -> None:
        self.tracer.close()


SOURCE = AgentSource(
    id="cuda",
    title="CUDA runtime and driver calls of processes, traced by eBPF",
    open=_Cuda,
    metrics=(
        LAUNCHES,
        SECONDS,
        CALLS,
        BYTES,
        HAS_CONTEXT,
        "trackside_tracer_attached",
        "trackside_tracer_lost_events_total",
    ),
    interval_s=5.0,
    on=False,
    needs="CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE, or root",
    options=CudaOptions,
)
