"""The node's tracer of CUDA and NCCL calls: counters a process, gauges a GPU."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.act import Act, Place
from trackside.sim.exposition import Array, Sink, Style
from trackside.sim.stage import Stage
from trackside.sim.timeline import STATES, State
from trackside.sim.watch import restarts, scrapes, tenants

LAUNCH_S = 1e-5
"""Host time of a launch, tracing included."""
COPIES = 24.0
"""Asynchronous copies a step."""
POLLS = 10.0
"""Event queries a second of NCCL's watchdog."""
QUERY_S = 3e-6


@dataclass(slots=True)
class Process:
    """One rank's process as the tracer sees it: integrals at the scrapes it was alive at."""

    labels: Mapping[str, str]
    rows: NDArray[np.intp]
    spent: Array
    """(rows, states and counts)"""
    alive: Array
    """Seconds since its context was made."""
    batch_bytes: float
    comm: str
    watchdog: bool
    reset: NDArray[np.bool_]
    """Whether the tracer has begun anew by each row; one column a restart."""

    @property
    def launches(self) -> Array:
        early = 30 * self.spent[:, State.LOAD] + 20 * self.spent[:, State.COMPILE]
        return np.floor(self.spent[:, STATES] + early)

    @property
    def collectives(self) -> Array:
        return np.floor(self.spent[:, STATES + 1])


Series = tuple[dict[str, str], Array]
Make = Callable[[Process], Iterator[Series]]


@dataclass(frozen=True, slots=True)
class Counter:
    """A metric that every process has."""

    name: str
    help: str
    style: Style
    make: Make


def _launches(process: Process) -> Iterator[Series]:
    yield {}, process.launches


def _api_seconds(process: Process) -> Iterator[Series]:
    spent = process.spent
    yield {"api": "cudaLaunchKernel"}, process.launches * LAUNCH_S + spent[:, STATES + 3]
    waited = spent[:, STATES + 5] + 0.02 * spent[:, State.SAVE] + 0.01 * spent[:, State.LOAD]
    yield {"api": "cudaStreamSynchronize"}, waited + 1e-4 * np.floor(spent[:, STATES + 2])
    yield {"api": "cudaMemcpyAsync"}, 4e-6 * COPIES * spent[:, STATES + 2] + 0.3 * spent[:, State.LOAD]
    if process.watchdog:
        yield {"api": "cudaEventQuery"}, QUERY_S * np.floor(POLLS * process.alive)


def _api_calls(process: Process) -> Iterator[Series]:
    spent = process.spent
    yield {"api": "cudaLaunchKernel"}, process.launches
    yield {"api": "cudaStreamSynchronize"}, np.floor(4 * spent[:, STATES + 2] + 2 * spent[:, State.LOAD])
    yield {"api": "cudaMemcpyAsync"}, np.floor(COPIES * spent[:, STATES + 2] + 12 * spent[:, State.LOAD])
    if process.watchdog:
        yield {"api": "cudaEventQuery"}, np.floor(POLLS * process.alive)


def _copies(process: Process) -> Iterator[Series]:
    spent = process.spent
    batches = np.floor(spent[:, STATES + 2]) * process.batch_bytes
    yield {"direction": "h2d"}, np.floor(4.5e9 * spent[:, State.LOAD] + batches)
    yield {"direction": "d2h"}, np.floor(2.1e9 * spent[:, State.SAVE] + 4096 * np.floor(spent[:, STATES + 2]))


def _op(process: Process) -> dict[str, str]:
    return {"op": "AllReduce", "comm": process.comm}


def _started(process: Process) -> Iterator[Series]:
    if process.comm:
        yield _op(process), process.collectives + process.spent[:, STATES + 4]


def _completed(process: Process) -> Iterator[Series]:
    if process.comm:
        yield _op(process), process.collectives


def _seconds(process: Process) -> Iterator[Series]:
    if process.comm:
        spent = process.spent
        overlapped = 0.2 * spent[:, State.COMPUTE]
        yield _op(process), overlapped + spent[:, State.COLLECTIVE] + spent[:, State.WAIT]


def _lost(process: Process) -> Iterator[Series]:
    yield {}, np.zeros(len(process.rows))


COUNTERS = (
    Counter("trackside_cuda_kernel_launches_total", "Kernel launches since the process started.", "whole", _launches),
    Counter("trackside_cuda_api_seconds_total", "Time in CUDA API calls.", "decimal", _api_seconds),
    Counter("trackside_cuda_api_calls_total", "CUDA API calls.", "whole", _api_calls),
    Counter("trackside_cuda_memcpy_bytes_total", "Bytes copied.", "whole", _copies),
    Counter("trackside_nccl_collectives_started_total", "Collectives begun.", "whole", _started),
    Counter("trackside_nccl_collectives_completed_total", "Collectives done.", "whole", _completed),
    Counter("trackside_nccl_collective_seconds_total", "Time in collectives.", "decimal", _seconds),
    Counter("trackside_tracer_lost_events_total", "Events the tracer could not keep.", "whole", _lost),
)


def write(stage: Stage, node: str, sink: Sink) -> None:
    """Everything that a node's tracer served."""
    times, answered = scrapes(stage, node, "tracer")
    if not len(times):
        return
    times_ms = np.rint(times * 1000).astype(np.int64)
    running = [(act, place) for act in stage.acts for place in act.places if place.node == node]
    again = restarts(stage, node, "tracer")
    processes = _processes(stage, running, times, answered, again)
    for counter in COUNTERS:
        made = [(process, labels, values) for process in processes for labels, values in counter.make(process)]
        if not made:
            continue
        sink.family(counter.name, "counter", counter.help)
        for process, labels, values in made:
            sink.curve(
                {**process.labels, **labels}, times_ms[process.rows], _since_restart(process, values), counter.style
            )
    _gauges(stage, node, sink, times, times_ms, answered, running, processes)


def _since_restart(process: Process, values: Array) -> Array:
    for column in process.reset.T:
        if column.any():
            values = values - np.where(column, values[int(np.argmax(column))], 0.0)
    return values


def _processes(
    stage: Stage, running: list[tuple[Act, Place]], times: Array, answered: NDArray[np.bool_], again: list[float]
) -> list[Process]:
    """All processes that held a context on this node; ranks on one track share its integrals."""
    telemetry, job, known = stage.scenario.telemetry, stage.scenario.job, {}
    found = []
    for act, place in running:
        track = act.track(place.rank)
        if id(track) not in known:
            known[id(track)] = track.frozen().at(times)
        for begin, end in track.processes:
            rows = np.flatnonzero(answered & (times >= begin) & (times < end))
            if not len(rows):
                continue
            labels = {"node": place.node, "gpu": str(place.gpu), "pid": str(stage.pid(act, place.rank))}
            if job.tracer_ranks:
                labels["rank"] = str(place.rank)
            if telemetry.job_label:
                labels["job"] = act.job
            many = len(act.places) > 1
            comm = f"0x{zlib.crc32(f'{act.job}/{act.restarts}'.encode()):08x}" if many else ""
            reset = (
                np.stack([times[rows] >= at for at in again], axis=1) if again else np.zeros((len(rows), 0), dtype=bool)
            )
            found.append(
                Process(
                    labels,
                    rows,
                    known[id(track)][rows],
                    times[rows] - begin,
                    8.0 * job.tokens_per_step / len(act.places),
                    comm,
                    many and job.watchdog_s > 0,
                    reset,
                )
            )
    return found


def _gauges(
    stage: Stage,
    node: str,
    sink: Sink,
    times: Array,
    times_ms: NDArray[np.int64],
    answered: NDArray[np.bool_],
    running: list[tuple[Act, Place]],
    processes: list[Process],
) -> None:
    if any(process.comm for process in processes):
        sink.family("trackside_nccl_communicators", "gauge", "Live communicators.")
        for process in processes:
            if process.comm:
                made = process.spent[:, STATES + 2] > 0
                sink.curve(process.labels, times_ms[process.rows], made.astype(float), "whole")
    sink.family("trackside_gpu_process_attached", "gauge", "1 while a process holds a CUDA context.")
    for gpu in range(stage.scenario.cluster.gpus_per_node):
        for tenant in tenants(stage, node, gpu):
            rows = np.flatnonzero(answered & (times >= tenant.start) & (times < tenant.end))
            held = np.ones(len(rows))
            if tenant.act >= 0:
                spans = stage.acts[tenant.act].track(tenant.rank).processes
                held = np.zeros(len(rows))
                for begin, end in spans:
                    held[(times[rows] >= begin) & (times[rows] < end)] = 1.0
            labels = {"node": node, "gpu": str(gpu)}
            if tenant.job and stage.scenario.telemetry.job_label:
                labels["job"] = tenant.job
            sink.curve(labels, times_ms[rows], held, "whole")
    sink.family("trackside_tracer_attached", "gauge", "Whether tracing sees this process.")
    for act, place in running:
        began = act.phases.get("import", (act.end, act.end))[0] + 1
        rows = np.flatnonzero(answered & (times >= began) & (times < act.end))
        labels = {"node": node, "pid": str(stage.pid(act, place.rank))}
        sink.curve(labels, times_ms[rows], np.ones(len(rows)), "whole")
    rows = np.flatnonzero(answered)
    rng = stage.rng(f"collectors/{node}")
    for name, help_text in (("success", "Whether a collector worked."), ("seconds", "Time a collector took.")):
        sink.family(f"trackside_collector_{name}", "gauge", help_text)
        for collector in ("cuda", "nccl", "nvml"):
            values = np.ones(len(rows)) if name == "success" else 0.002 + 0.001 * rng.random(len(rows))
            sink.curve(
                {"node": node, "collector": collector},
                times_ms[rows],
                values,
                "decimal" if name == "seconds" else "whole",
            )
