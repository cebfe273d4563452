"""When a node is looked at, and what is on its GPUs at any time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.kernel_lines import XID_TEXT
from trackside.sim.scenario import Neighbour
from trackside.sim.stage import Stage
from trackside.sim.timeline import Array, State, Track


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who held a GPU from when to when: a rank of one of the job's starts, or a neighbour."""

    start: float
    end: float
    job: str
    act: int = -1
    rank: int = -1


def scrapes(stage: Stage, node: str, plane: str) -> tuple[Array, NDArray[np.bool_]]:
    """(times, which of them were answered) of a node and a plane: gpu, host or tracer.

    A target is asked at a fixed offset within the interval, a few milliseconds early or late.
    """
    telemetry = stage.scenario.telemetry
    interval = telemetry.interval_s
    if plane == "host" and telemetry.host_interval_s:
        interval = telemetry.host_interval_s
    rng = stage.rng(f"scrapes/{plane}/{node}")
    first, last = stage.horizon()
    begin = math.floor(first / interval) * interval + float(rng.random()) * interval
    times = np.arange(begin, last, interval)
    times = times + np.clip(rng.normal(0, telemetry.jitter_ms / 1000, len(times)), -0.4 * interval, 0.4 * interval)
    times = np.rint(times * 1000) / 1000
    answered = np.ones(len(times), dtype=bool)
    if node in stage.down:
        start, end = stage.down[node]
        answered &= (times < start) | (times >= end)
    for number, gap in enumerate(telemetry.gaps):
        if gap.plane in ("*", plane) and gap.node in ("*", node):
            start = stage.when(gap.at, f"telemetry.gaps[{number}].at")
            answered &= (times < start) | (times >= start + gap.length_s)
    for start in restarts(stage, node, plane):
        answered &= (times < start) | (times >= start + 20.0)
    return times, answered


def restarts(stage: Stage, node: str, plane: str) -> list[float]:
    """When a node's exporter began anew."""
    found = [
        stage.when(one.at, f"telemetry.restarts[{number}].at")
        for number, one in enumerate(stage.scenario.telemetry.restarts)
        if one.plane in ("*", plane) and one.node in ("*", node)
    ]
    if node in stage.down and math.isfinite(stage.down[node][1]):
        found.append(stage.down[node][1] - 20.0)
    return sorted(found)


def tenants(stage: Stage, node: str, gpu: int) -> list[Tenant]:
    """Who held a GPU, in order of time."""
    found = []
    for number, act in enumerate(stage.acts):
        found += [
            Tenant(act.start, act.end, act.job, number, place.rank)
            for place in act.places
            if place.node == node and place.gpu == gpu
        ]
    first, last = stage.horizon()
    if not found:
        found += [
            Tenant(first - 60, last + 60, one.job) for one in stage.scenario.neighbours if lives(stage, one, node, gpu)
        ]
    return sorted(found, key=lambda tenant: tenant.start)


def lives(stage: Stage, neighbour: Neighbour, node: str, gpu: int) -> bool:
    """Whether a neighbour is on this GPU."""
    here = neighbour.node == "*" or stage.node_name(neighbour.node, "neighbours.node") == node
    return here and gpu in neighbour.gpus


def track_of(stage: Stage, node: str, gpu: int, holders: list[Tenant]) -> Track:
    """Everything that happens on a GPU, over all its tenants."""
    ranks = [tenant for tenant in holders if tenant.act >= 0]
    if len(ranks) == 1:
        return stage.acts[ranks[0].act].track(ranks[0].rank)
    whole = Track()
    for tenant in ranks:
        one = stage.acts[tenant.act].track(tenant.rank)
        whole.spells += one.spells
        whole.memory += one.memory
        whole.processes += one.processes
        whole.resident += one.resident
    if not ranks:
        for neighbour in stage.scenario.neighbours:
            if lives(stage, neighbour, node, gpu):
                return _neighbour_track(stage, neighbour)
    return whole


def befall_neighbours(stage: Stage) -> None:
    """What goes wrong on other people's GPUs: the driver's lines, and counters."""
    for number, one in enumerate(stage.scenario.neighbours):
        if not (one.xid or one.ecc):
            continue
        at = stage.when(one.xid_at, f"neighbours[{number}].xid_at")
        for node in stage.nodes:
            for gpu in range(stage.scenario.cluster.gpus_per_node):
                if not lives(stage, one, node, gpu):
                    continue
                if one.ecc:
                    stage.change(node, gpu, at, "ecc_uncorrectable", float(one.ecc))
                if one.xid:
                    pci = stage.pci(gpu)[4:-2].lower()
                    text = f"NVRM: Xid (PCI:{pci}): {one.xid}, pid=21877, name=python3, {XID_TEXT.get(one.xid, '')}"
                    stage.log_kernel(at, node, text)
                    stage.change(node, gpu, at + 0.5, "xid", to=float(one.xid))


def _neighbour_track(stage: Stage, neighbour: Neighbour) -> Track:
    first, last = stage.horizon()
    first, last = first - 3600, last + 3600
    track = Track()
    step = {State.DATA: 0.05, State.COMPUTE: 1.4, State.COLLECTIVE: 0.2}
    if neighbour.activity == "busy":
        track.add(first, last, step, launches=900.0, collectives=20.0, steps=1.0)
    else:
        states = {"idle": State.IDLE, "spin": State.SPIN, "leftover": State.OFF}
        track.add(first, last, states[neighbour.activity])
    memory = neighbour.memory_share * stage.model.memory_mib
    track.memory += [(first, memory), (last, memory)]
    if neighbour.activity != "leftover":
        track.processes.append((first, last))
    track.resident += [(first, 8.0), (last, 8.0)]
    return track
