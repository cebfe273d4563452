"""When a node is scraped, and who uses its GPUs at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.kernel_lines import XID_TEXT
from trackside.sim.scenario import NeighborJob
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import Array, RankState, Track


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who used a GPU from when to when: a rank of one of the job's attempts, or a neighbor."""

    start: float
    end: float
    job: str
    attempt: int = -1
    rank: int = -1


def scrapes(sim: Simulation, node: str, plane: str) -> tuple[Array, NDArray[np.bool_]]:
    """(times, whether each was answered) of a node and a plane: gpu, host or tracer.

    A target is scraped at a fixed offset within the interval, a few milliseconds early or late.
    """
    telemetry = sim.scenario.telemetry
    interval = telemetry.interval_s
    if plane == "host" and telemetry.host_interval_s:
        interval = telemetry.host_interval_s
    rng = sim.rng(f"scrapes/{plane}/{node}")
    first, last = sim.observed_span()
    begin = math.floor(first / interval) * interval + float(rng.random()) * interval
    times = np.arange(begin, last, interval)
    times = times + np.clip(rng.normal(0, telemetry.jitter_ms / 1000, len(times)), -0.4 * interval, 0.4 * interval)
    times = np.rint(times * 1000) / 1000
    is_answered = np.ones(len(times), dtype=bool)
    if node in sim.down_nodes:
        start, end = sim.down_nodes[node]
        is_answered &= (times < start) | (times >= end)
    for number, gap in enumerate(telemetry.gaps):
        if gap.plane in ("*", plane) and gap.node in ("*", node):
            start = sim.time_of(gap.at, f"telemetry.gaps[{number}].at")
            is_answered &= (times < start) | (times >= start + gap.length_s)
    for start in restarts(sim, node, plane):
        is_answered &= (times < start) | (times >= start + 20.0)
    return times, is_answered


def restarts(sim: Simulation, node: str, plane: str) -> list[float]:
    """When a node's exporter restarted."""
    times = [
        sim.time_of(restart.at, f"telemetry.restarts[{number}].at")
        for number, restart in enumerate(sim.scenario.telemetry.restarts)
        if restart.plane in ("*", plane) and restart.node in ("*", node)
    ]
    if node in sim.down_nodes and math.isfinite(sim.down_nodes[node][1]):
        times.append(sim.down_nodes[node][1] - 20.0)
    return sorted(times)


def tenants(sim: Simulation, node: str, gpu: int) -> list[Tenant]:
    """The tenants of a GPU, in order of time."""
    tenants_of_gpu = []
    for number, attempt in enumerate(sim.attempts):
        tenants_of_gpu += [
            Tenant(attempt.start, attempt.end, attempt.job, number, placement.rank)
            for placement in attempt.placements
            if placement.node == node and placement.gpu == gpu
        ]
    first, last = sim.observed_span()
    if not tenants_of_gpu:
        tenants_of_gpu += [
            Tenant(first - 60, last + 60, neighbor.job)
            for neighbor in sim.scenario.neighbors
            if runs_on(sim, neighbor, node, gpu)
        ]
    return sorted(tenants_of_gpu, key=lambda tenant: tenant.start)


def runs_on(sim: Simulation, neighbor: NeighborJob, node: str, gpu: int) -> bool:
    """Whether a neighbor is on this GPU."""
    on_node = neighbor.node == "*" or sim.node_name(neighbor.node, "neighbors.node") == node
    return on_node and gpu in neighbor.gpus


def track_of(sim: Simulation, node: str, gpu: int, gpu_tenants: list[Tenant]) -> Track:
    """Everything that happens on a GPU, over all its tenants."""
    ranks = [tenant for tenant in gpu_tenants if tenant.attempt >= 0]
    if len(ranks) == 1:
        return sim.attempts[ranks[0].attempt].track(ranks[0].rank)
    merged = Track()
    for tenant in ranks:
        track = sim.attempts[tenant.attempt].track(tenant.rank)
        merged.spans += track.spans
        merged.memory += track.memory
        merged.processes += track.processes
        merged.resident += track.resident
    if not ranks:
        for neighbor in sim.scenario.neighbors:
            if runs_on(sim, neighbor, node, gpu):
                return _neighbor_track(sim, neighbor)
    return merged


def apply_neighbor_faults(sim: Simulation) -> None:
    """Add what goes wrong on other users' GPUs: the driver's lines, and counters."""
    for number, neighbor in enumerate(sim.scenario.neighbors):
        if not (neighbor.xid or neighbor.ecc):
            continue
        time = sim.time_of(neighbor.xid_at, f"neighbors[{number}].xid_at")
        for node in sim.nodes:
            for gpu in range(sim.scenario.cluster.gpus_per_node):
                if not runs_on(sim, neighbor, node, gpu):
                    continue
                if neighbor.ecc:
                    sim.change(node, gpu, time, "ecc_uncorrectable", float(neighbor.ecc))
                if neighbor.xid:
                    pci = sim.pci(gpu)[4:-2].lower()
                    detail = f"pid=21877, name=python3, {XID_TEXT.get(neighbor.xid, '')}"
                    sim.log_kernel(time, node, f"NVRM: Xid (PCI:{pci}): {neighbor.xid}, {detail}")
                    sim.change(node, gpu, time + 0.5, "xid", to=float(neighbor.xid))


def _neighbor_track(sim: Simulation, neighbor: NeighborJob) -> Track:
    first, last = sim.observed_span()
    first, last = first - 3600, last + 3600
    track = Track()
    step = {RankState.DATA: 0.05, RankState.COMPUTE: 1.4, RankState.COLLECTIVE: 0.2}
    if neighbor.activity == "busy":
        track.add(first, last, step, launches=900.0, collectives=20.0, steps=1.0)
    else:
        states = {"idle": RankState.IDLE, "spin": RankState.SPIN, "leftover": RankState.OFF}
        track.add(first, last, states[neighbor.activity])
    memory = neighbor.memory_share * sim.model.memory_mib
    track.memory += [(first, memory), (last, memory)]
    if neighbor.activity != "leftover":
        track.processes.append((first, last))
    track.resident += [(first, 8.0), (last, 8.0)]
    return track
