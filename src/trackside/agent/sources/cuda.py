"""What processes ask of CUDA: kernel launches, calls with their time, copies; by probes in their own libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trackside.agent.source import Collector, Context, Reading, Source

if TYPE_CHECKING:
    from trackside.agent.trace.calls import Calls
    from trackside.agent.trace.tracer import Labels

LAUNCHES, SECONDS, CALLS, BYTES, HAS_CONTEXT = (
    "trackside_cuda_kernel_launches_total",
    "trackside_cuda_api_seconds_total",
    "trackside_cuda_api_calls_total",
    "trackside_cuda_memcpy_bytes_total",
    "trackside_gpu_process_attached",
)


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """``jobs``: these alone are traced. ``everything``: processes of no job too. ``libraries``: probed from the start
    on, so that not even the first process's first calls are missed. ``timed_one_in``: launches and queries of which one
    is timed, a power of two; 0: none."""

    jobs: tuple[str, ...] = ()
    everything: bool = False
    libraries: tuple[str, ...] = ()
    timed_one_in: int = 16


class _Cuda(Collector):
    def __init__(self, context: Context) -> None:
        from trackside.agent.trace import calls, functions  # nothing of tracing is loaded before it is asked for
        from trackside.agent.trace.tracer import Tracer

        self._read = calls.read
        self._functions = functions.cuda(context.options.timed_one_in)
        self.tracer = Tracer("cuda", self._functions, context)
        loaded = self.tracer.probes.loaded
        self._cells = loaded.table("cells", calls.CELL_KEY.size, calls.CELL.size)
        self._processes = loaded.table("processes", calls.PROCESS_KEY.size, calls.PROCESS.size)
        self._underway = loaded.table("underway", 16, 16)

    def collect(self, reading: Reading) -> None:
        found = self._read(self._cells.rows(), self._processes.rows())
        for pid, told in sorted(found.items()):
            if (labels := self.tracer.labels(pid, told.devices)) is not None:
                self._give(reading, pid, labels, told)
        self._give_idle(reading, found)
        self.tracer.report(reading, found)
        self.tracer.clear((self._cells, self._processes), (self._underway,), found)

    def _give(self, reading: Reading, pid: int, labels: Labels, told: Calls) -> None:
        rising = self.tracer.rising
        launches = told.launches(self._functions)
        reading.sample(LAUNCHES, rising(pid, LAUNCHES, "", "", launches or 0), **labels)
        for api, spent in told.spent(self._functions).items():
            reading.sample(CALLS, rising(pid, CALLS, api, "", spent.calls), api=api, **labels)
            if spent.ns:
                reading.sample(SECONDS, rising(pid, SECONDS, api, "", spent.ns * 1e-9), api=api, **labels)
        for direction, size in told.copied(self._functions).items():
            reading.sample(BYTES, rising(pid, BYTES, direction, "", size), direction=direction, **labels)
        process = self.tracer.following.of(pid)
        attached = told.has_context or (process is not None and process.has_device)
        reading.sample(HAS_CONTEXT, float(attached), **labels)

    def _give_idle(self, reading: Reading, found: dict[int, Calls]) -> None:
        """Processes that are probed and never called: that is what an idle hang looks like."""
        for process in self.tracer.quiet(found):
            if (labels := self.tracer.labels(process.process.pid)) is not None:
                reading.sample(LAUNCHES, 0, **labels)
                reading.sample(HAS_CONTEXT, float(process.has_device), **labels)

    def close(self) -> None:
        self.tracer.close()


SOURCE = Source(
    id="cuda",
    title="CUDA runtime and driver calls of processes, by BPF",
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
