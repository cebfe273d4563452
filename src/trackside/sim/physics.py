"""From what ranks do to what their GPUs show: activity, memory, power, clocks and heat hang together.

All arrays are (GPUs of the node, scrapes). Activity fields are means of the time since the scrape before; utilisation,
power and clocks are of the last second, as the driver gives them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.hardware import INLET
from trackside.sim.stage import Stage
from trackside.sim.timeline import STATES, Array, State, Track

ENGINE, SM, OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE_TX, PCIE_RX = range(8)
SHORT_S = 1.0
"""The driver averages utilisation and power over about a second."""
IDLE_BIT, POWER_CAP_BIT = 0x1, 0x4
THERMAL_BITS, POWER_BITS = 0x20 | 0x40, 0x4 | 0x80


@dataclass(frozen=True, slots=True)
class GpuSignals:
    """What the GPUs of a node show."""

    activity: NDArray[np.float64]
    """(8, GPUs, scrapes): engine, SM, occupancy, tensor, DRAM as ratios; NVLink, PCIe out and in as bytes a second."""
    utilization: Array
    copy_utilization: Array
    memory: Array
    """MiB"""
    power: Array
    energy: Array
    """Joules since the driver was loaded."""
    temperature: Array
    memory_temperature: Array
    clock: Array
    memory_clock: Array
    reasons: NDArray[np.int64]
    pstate: Array
    held: NDArray[np.int64]
    """(2, GPUs, scrapes) nanoseconds held down for power and for heat."""
    attached: NDArray[np.bool_]


def rates(stage: Stage) -> Array:
    """(states, 8): what a GPU shows while it is in a state."""
    job, model = stage.scenario.job, stage.model
    sm, tensor = job.sm_active, job.tensor_active
    spin = min(1.0, job.nccl_channels / model.sms)
    nodes = len({place.node for place in stage.places})
    link = 0.35 if nodes == 1 else 0.22
    table = np.zeros((STATES, 8))
    table[State.LOAD] = 0.03, 0.01, 0.005, 0.0, 0.02, 0.0, 0.002, 0.09
    table[State.COMPILE] = 0.12, 0.05, 0.02, 0.01, 0.03, 0.0, 0.001, 0.004
    table[State.DATA] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0004, 0.002
    table[State.COMPUTE] = 0.995, sm, 0.42 * sm, tensor, 0.5 * sm, 0.25 * link, 0.004, 0.012
    table[State.EVAL] = 0.97, 0.85 * sm, 0.36 * sm, 0.8 * tensor, 0.48 * sm, 0.02, 0.003, 0.010
    table[State.COLLECTIVE] = 1.0, spin + 0.015, spin * 0.3, 0.0, 0.11, link, 0.010, 0.010
    table[State.WAIT] = 1.0, spin, spin * 0.3, 0.0, 0.002, 0.0, 0.0001, 0.0001
    table[State.SPIN] = 1.0, spin, spin * 0.3, 0.0, 0.0015, 0.0, 0.00005, 0.00005
    table[State.SAVE] = 0.02, 0.006, 0.003, 0.0, 0.01, 0.0, 0.04, 0.001
    table[:, NVLINK] *= model.nvlink if len(stage.places) > 1 else 0.0
    table[:, PCIE_TX : PCIE_RX + 1] *= model.pcie
    return table


def shown(tracks: list[Track], table: Array, begins: Array, ends: Array, seconds: Array | float) -> Array:
    """(8, tracks, times): means of what GPUs show from ``begins`` to ``ends``, some ``seconds`` apart.

    A track that several GPUs share is worked out once.
    """
    known: dict[int, Array] = {}
    for track in tracks:
        if id(track) not in known:
            integral = track.frozen()
            spent = integral.at(ends)[:, :STATES] - integral.at(begins)[:, :STATES]
            known[id(track)] = (spent / np.reshape(seconds, (-1, 1)) @ table).T
    return np.stack([known[id(track)] for track in tracks], axis=1) if tracks else np.zeros((8, 0, len(ends)))


def gpu_signals(stage: Stage, node: str, tracks: list[Track], times: Array, before: float) -> GpuSignals:
    """Everything of one node; ``before``: when the scrape before the first was."""
    rng, model, table = stage.rng(f"gpu/{node}"), stage.model, rates(stage)
    count, begins = len(tracks), np.concatenate([[before], times[:-1]])
    window = np.maximum(times - begins, 1e-3)
    shape = (count, len(times))
    activity = _noisy(rng, shown(tracks, table, begins, times, window), shape)
    short = shown(tracks, table, times - SHORT_S, times, SHORT_S)
    attached = np.stack([_attached(track, times) for track in tracks]) if tracks else np.zeros(shape, dtype=bool)
    factor, reasons, resistance, hold, held = _throttled(stage, node, times, before, attached)
    floor = np.where(attached, model.context_idle, model.idle) * (1 + 0.02 * rng.standard_normal((count, 1)))
    span = stage.model.tdp - model.context_idle
    busy = span * factor**2
    noise = 1 + 0.045 * rng.standard_normal(shape)
    wanted = floor + busy * _load(short) * noise + 0.7 * rng.standard_normal(shape)
    capped = wanted > stage.power_limit
    power = np.minimum(wanted, stage.power_limit * (1 - 0.01 * rng.random(shape)))
    average = np.minimum(floor + busy * _load(activity), stage.power_limit)
    idle = (short[ENGINE] < 0.02) & (reasons == 0)
    reasons = reasons | np.where(capped, POWER_CAP_BIT, 0) | np.where(idle, IDLE_BIT, 0)
    clock = model.clock_max * factor * np.where(capped, np.sqrt(stage.power_limit / np.maximum(wanted, 1.0)), 1.0)
    clock = np.where(attached | (short[ENGINE] > 0), np.rint(clock / 15) * 15, model.clock_idle)
    temperature = _heat(stage, rng, average, window, resistance, hold)
    energy = 3.1e7 * (1 + rng.random((count, 1))) + np.cumsum(average * window, axis=1)
    held[0] += np.cumsum(np.where(capped, 0.3 * window, 0.0), axis=1)
    up = attached | (short[ENGINE] > 0)
    return GpuSignals(
        activity,
        utilization=np.rint(100 * np.clip(short[ENGINE], 0, 1)),
        copy_utilization=np.rint(100 * np.clip(short[DRAM] * 0.8, 0, 1)),
        memory=_memory(stage, rng, tracks, times),
        power=power,
        energy=energy,
        temperature=np.rint(temperature),
        memory_temperature=np.rint(temperature + 6 + 8 * activity[DRAM]),
        clock=clock,
        memory_clock=np.where(up, model.memory_clock, model.memory_clock_idle).astype(float),
        reasons=reasons,
        pstate=np.where(up | (model.memory_clock == model.memory_clock_idle), 0.0, 8.0),
        held=(held * 1e9).astype(np.int64),
        attached=attached,
    )


def _load(activity: Array) -> Array:
    """Share of the dynamic power."""
    found: Array = 0.05 * activity[ENGINE] + 0.5 * activity[SM] + 0.58 * activity[TENSOR] + 0.5 * activity[DRAM]
    return found


def _noisy(rng: np.random.Generator, activity: Array, shape: tuple[int, int]) -> Array:
    """A GPU differs from its like by a little, and each sample from the one before."""
    count = shape[0]
    own = 1 + 0.008 * rng.standard_normal((8, count, 1))
    found = np.clip(activity * own * (1 + 0.012 * rng.standard_normal((8, *shape))), 0, None)
    found[:NVLINK] = np.minimum(found[:NVLINK], 1.0)
    engine = 1 + 0.002 * rng.standard_normal(shape)
    found[ENGINE] = np.clip(activity[ENGINE] * engine, 0, 1)
    found[DRAM] += 1e-5 * rng.random(shape)
    found[PCIE_TX : PCIE_RX + 1] += 2e4 * (1 + 9 * rng.random((2, *shape)))
    return found


def _attached(track: Track, times: Array) -> NDArray[np.bool_]:
    found = np.zeros(len(times), dtype=bool)
    for start, end in track.processes:
        found |= (times >= start) & (times < end)
    return found


def _throttled(
    stage: Stage, node: str, times: Array, before: float, attached: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.int64], Array, Array, Array]:
    """(clock factor, reason bits, cooling resistance, temperature held, seconds held for power and heat)."""
    shape = attached.shape
    factor, reasons = np.ones(shape), np.zeros(shape, dtype=np.int64)
    resistance, hold, held = np.ones(shape), np.full(shape, np.inf), np.zeros((2, *shape))
    window = np.diff(np.concatenate([[before], times]))
    for one in stage.throttles:
        if one.node != node or one.gpu >= shape[0]:
            continue
        inside = (times >= one.start) & (times < one.end)
        if one.reasons & THERMAL_BITS:
            inside &= attached[one.gpu]  # nothing heats an idle GPU
        factor[one.gpu, inside] = np.minimum(factor[one.gpu, inside], one.factor)
        reasons[one.gpu, inside] |= one.reasons
        resistance[one.gpu, inside] = one.resistance
        if one.thermal:
            hold[one.gpu, inside] = one.thermal
        for row, bits in enumerate((POWER_BITS, THERMAL_BITS)):
            if one.reasons & bits:
                held[row, one.gpu] += np.cumsum(np.where(inside, window, 0.0))
    return factor, reasons, resistance, hold, held


def _heat(stage: Stage, rng: np.random.Generator, power: Array, window: Array, resistance: Array, hold: Array) -> Array:
    """A first-order lag towards what power and cooling give."""
    model = stage.model
    count, length = power.shape
    inlet = stage.scenario.cluster.inlet_celsius + rng.normal(0, 1.2, (count, 1))
    goal = inlet + (model.temperature_full - INLET) / model.tdp * resistance * power
    keep = np.exp(-window / model.lag_s)
    found = np.empty((count, length))
    now = goal[:, 0] if length else np.zeros(count)
    for i in range(length):
        now = np.minimum(goal[:, i] + (now - goal[:, i]) * keep[i], hold[:, i])
        found[:, i] = now
    return found + 0.5 * rng.standard_normal((count, length))


def _memory(stage: Stage, rng: np.random.Generator, tracks: list[Track], times: Array) -> Array:
    """MiB in use; ranks differ by some tens of MiB."""
    if not tracks:
        return np.zeros((0, len(times)))
    used = np.stack([track.memory_at(times) for track in tracks])
    own = 1 + 0.004 * rng.standard_normal((len(tracks), 1))
    most = stage.model.memory_mib - stage.model.reserved_mib
    return np.rint(np.clip(used * own, 0, most))
