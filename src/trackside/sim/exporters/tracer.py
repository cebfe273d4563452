"""The node's tracer of CUDA and NCCL calls: counters per process, gauges per GPU."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.attempt import JobAttempt, Placement
from trackside.sim.exposition import Array, MetricSink, Style
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import STATE_COUNT, RankState
from trackside.sim.watch import restarts, scrapes, tenants

LAUNCH_S = 1e-5
"""Host time of a kernel launch, tracing included."""
COPIES_PER_STEP = 24.0
"""Asynchronous copies per step."""
POLLS_PER_S = 10.0
"""Event queries per second by NCCL's watchdog."""
QUERY_S = 3e-6


@dataclass(slots=True)
class TracedProcess:
    """One rank's process as the tracer sees it: integrals at the scrapes during its life."""

    labels: Mapping[str, str]
    rows: NDArray[np.intp]
    integrals: Array
    """(rows, states and counts)"""
    alive: Array
    """Seconds since its context was created."""
    batch_bytes: float
    comm: str
    watchdog: bool
    after_restart: NDArray[np.bool_]
    """Whether the tracer has restarted by each row; one column per restart."""

    @property
    def launches(self) -> Array:
        startup_launches = 30 * self.integrals[:, RankState.LOAD] + 20 * self.integrals[:, RankState.COMPILE]
        return np.floor(self.integrals[:, STATE_COUNT] + startup_launches)

    @property
    def collectives(self) -> Array:
        return np.floor(self.integrals[:, STATE_COUNT + 1])


LabeledValues = tuple[dict[str, str], Array]
SeriesFunction = Callable[[TracedProcess], Iterator[LabeledValues]]


@dataclass(frozen=True, slots=True)
class TracerCounter:
    """A metric that every process has."""

    name: str
    help: str
    style: Style
    make: SeriesFunction


def _launches(process: TracedProcess) -> Iterator[LabeledValues]:
    yield {}, process.launches


def _api_seconds(process: TracedProcess) -> Iterator[LabeledValues]:
    integrals = process.integrals
    yield {"api": "cudaLaunchKernel"}, process.launches * LAUNCH_S + integrals[:, STATE_COUNT + 3]
    waited = integrals[:, STATE_COUNT + 5] + 0.02 * integrals[:, RankState.SAVE] + 0.01 * integrals[:, RankState.LOAD]
    yield {"api": "cudaStreamSynchronize"}, waited + 1e-4 * np.floor(integrals[:, STATE_COUNT + 2])
    yield (
        {"api": "cudaMemcpyAsync"},
        4e-6 * COPIES_PER_STEP * integrals[:, STATE_COUNT + 2] + 0.3 * integrals[:, RankState.LOAD],
    )
    if process.watchdog:
        yield {"api": "cudaEventQuery"}, QUERY_S * np.floor(POLLS_PER_S * process.alive)


def _api_calls(process: TracedProcess) -> Iterator[LabeledValues]:
    integrals = process.integrals
    yield {"api": "cudaLaunchKernel"}, process.launches
    yield (
        {"api": "cudaStreamSynchronize"},
        np.floor(4 * integrals[:, STATE_COUNT + 2] + 2 * integrals[:, RankState.LOAD]),
    )
    yield (
        {"api": "cudaMemcpyAsync"},
        np.floor(COPIES_PER_STEP * integrals[:, STATE_COUNT + 2] + 12 * integrals[:, RankState.LOAD]),
    )
    if process.watchdog:
        yield {"api": "cudaEventQuery"}, np.floor(POLLS_PER_S * process.alive)


def _copies(process: TracedProcess) -> Iterator[LabeledValues]:
    integrals = process.integrals
    batches = np.floor(integrals[:, STATE_COUNT + 2]) * process.batch_bytes
    yield {"direction": "h2d"}, np.floor(4.5e9 * integrals[:, RankState.LOAD] + batches)
    yield (
        {"direction": "d2h"},
        np.floor(2.1e9 * integrals[:, RankState.SAVE] + 4096 * np.floor(integrals[:, STATE_COUNT + 2])),
    )


def _op(process: TracedProcess) -> dict[str, str]:
    return {"op": "AllReduce", "comm": process.comm}


def _collectives_started(process: TracedProcess) -> Iterator[LabeledValues]:
    if process.comm:
        yield _op(process), process.collectives + process.integrals[:, STATE_COUNT + 4]


def _collectives_completed(process: TracedProcess) -> Iterator[LabeledValues]:
    if process.comm:
        yield _op(process), process.collectives


def _collective_seconds(process: TracedProcess) -> Iterator[LabeledValues]:
    if process.comm:
        integrals = process.integrals
        overlapped = 0.2 * integrals[:, RankState.COMPUTE]
        yield _op(process), overlapped + integrals[:, RankState.COLLECTIVE] + integrals[:, RankState.WAIT]


def _lost_events(process: TracedProcess) -> Iterator[LabeledValues]:
    yield {}, np.zeros(len(process.rows))


COUNTERS = (
    TracerCounter(
        "trackside_cuda_kernel_launches_total", "Kernel launches since the process started.", "whole", _launches
    ),
    TracerCounter("trackside_cuda_api_seconds_total", "Time in CUDA API calls.", "decimal", _api_seconds),
    TracerCounter("trackside_cuda_api_calls_total", "CUDA API calls.", "whole", _api_calls),
    TracerCounter("trackside_cuda_memcpy_bytes_total", "Bytes copied.", "whole", _copies),
    TracerCounter("trackside_nccl_collectives_started_total", "Collectives begun.", "whole", _collectives_started),
    TracerCounter("trackside_nccl_collectives_completed_total", "Collectives done.", "whole", _collectives_completed),
    TracerCounter("trackside_nccl_collective_seconds_total", "Time in collectives.", "decimal", _collective_seconds),
    TracerCounter("trackside_tracer_lost_events_total", "Events the tracer could not keep.", "whole", _lost_events),
)


def write(sim: Simulation, node: str, sink: MetricSink) -> None:
    """Write everything that a node's tracer served."""
    times, is_answered = scrapes(sim, node, "tracer")
    if not len(times):
        return
    times_ms = np.rint(times * 1000).astype(np.int64)
    running = [
        (attempt, placement) for attempt in sim.attempts for placement in attempt.placements if placement.node == node
    ]
    restart_times = restarts(sim, node, "tracer")
    processes = _processes(sim, running, times, is_answered, restart_times)
    for counter in COUNTERS:
        all_series = [(process, labels, values) for process in processes for labels, values in counter.make(process)]
        if not all_series:
            continue
        sink.begin_metric(counter.name, "counter", counter.help)
        for process, labels, values in all_series:
            sink.series(
                {**process.labels, **labels}, times_ms[process.rows], _since_restart(process, values), counter.style
            )
    _gauges(sim, node, sink, times, times_ms, is_answered, running, processes)


def _since_restart(process: TracedProcess, values: Array) -> Array:
    """The values counted from the tracer's last restart."""
    for column in process.after_restart.T:
        if column.any():
            values = values - np.where(column, values[int(np.argmax(column))], 0.0)
    return values


def _processes(
    sim: Simulation,
    running: list[tuple[JobAttempt, Placement]],
    times: Array,
    is_answered: NDArray[np.bool_],
    restart_times: list[float],
) -> list[TracedProcess]:
    """All processes that had a context on this node; ranks on one track share its integrals."""
    telemetry, job, integrals_of = sim.scenario.telemetry, sim.scenario.job, {}
    processes = []
    for attempt, placement in running:
        track = attempt.track(placement.rank)
        if id(track) not in integrals_of:
            integrals_of[id(track)] = track.integral().at(times)
        for begin, end in track.processes:
            rows = np.flatnonzero(is_answered & (times >= begin) & (times < end))
            if not len(rows):
                continue
            labels = {"node": placement.node, "gpu": str(placement.gpu), "pid": str(sim.pid(attempt, placement.rank))}
            if job.tracer_ranks:
                labels["rank"] = str(placement.rank)
            if telemetry.job_label:
                labels["job"] = attempt.job
            has_peers = len(attempt.placements) > 1
            comm = f"0x{zlib.crc32(f'{attempt.job}/{attempt.restarts}'.encode()):08x}" if has_peers else ""
            after_restart = (
                np.stack([times[rows] >= restart_time for restart_time in restart_times], axis=1)
                if restart_times
                else np.zeros((len(rows), 0), dtype=bool)
            )
            processes.append(
                TracedProcess(
                    labels,
                    rows,
                    integrals_of[id(track)][rows],
                    times[rows] - begin,
                    8.0 * job.tokens_per_step / len(attempt.placements),
                    comm,
                    has_peers and job.watchdog_s > 0,
                    after_restart,
                )
            )
    return processes


def _gauges(
    sim: Simulation,
    node: str,
    sink: MetricSink,
    times: Array,
    times_ms: NDArray[np.int64],
    is_answered: NDArray[np.bool_],
    running: list[tuple[JobAttempt, Placement]],
    processes: list[TracedProcess],
) -> None:
    if any(process.comm for process in processes):
        sink.begin_metric("trackside_nccl_communicators", "gauge", "Live communicators.")
        for process in processes:
            if process.comm:
                has_communicator = process.integrals[:, STATE_COUNT + 2] > 0
                sink.series(process.labels, times_ms[process.rows], has_communicator.astype(float), "whole")
    sink.begin_metric("trackside_gpu_process_attached", "gauge", "1 while a process holds a CUDA context.")
    for gpu in range(sim.scenario.cluster.gpus_per_node):
        for tenant in tenants(sim, node, gpu):
            rows = np.flatnonzero(is_answered & (times >= tenant.start) & (times < tenant.end))
            attached = np.ones(len(rows))
            if tenant.attempt >= 0:
                spans = sim.attempts[tenant.attempt].track(tenant.rank).processes
                attached = np.zeros(len(rows))
                for begin, end in spans:
                    attached[(times[rows] >= begin) & (times[rows] < end)] = 1.0
            labels = {"node": node, "gpu": str(gpu)}
            if tenant.job and sim.scenario.telemetry.job_label:
                labels["job"] = tenant.job
            sink.series(labels, times_ms[rows], attached, "whole")
    sink.begin_metric("trackside_tracer_attached", "gauge", "Whether tracing sees this process.")
    for attempt, placement in running:
        began = attempt.phases.get("import", (attempt.end, attempt.end))[0] + 1
        rows = np.flatnonzero(is_answered & (times >= began) & (times < attempt.end))
        labels = {"node": node, "pid": str(sim.pid(attempt, placement.rank))}
        sink.series(labels, times_ms[rows], np.ones(len(rows)), "whole")
    rows = np.flatnonzero(is_answered)
    rng = sim.rng(f"collectors/{node}")
    for name, help_text in (("success", "Whether a collector worked."), ("seconds", "Time a collector took.")):
        sink.begin_metric(f"trackside_collector_{name}", "gauge", help_text)
        for collector in ("cuda", "nccl", "nvml"):
            values = np.ones(len(rows)) if name == "success" else 0.002 + 0.001 * rng.random(len(rows))
            sink.series(
                {"node": node, "collector": collector},
                times_ms[rows],
                values,
                "decimal" if name == "seconds" else "whole",
            )
