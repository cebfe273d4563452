"""From what ranks do to what their GPUs show: activity, memory, power, clocks and heat depend on each other.

All arrays are (GPUs of the node, scrapes). Activity is the mean since the previous scrape; utilization, power and
clocks are means of the last second, as the driver reports them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trackside.sim.hardware import INLET_CELSIUS
from trackside.sim.simulation import Simulation
from trackside.sim.timeline import STATE_COUNT, Array, RankState, Track

ENGINE, SM, OCCUPANCY, TENSOR, DRAM, NVLINK, PCIE_TX, PCIE_RX = range(8)
SHORT_S = 1.0
"""The driver averages utilization and power over about a second."""
IDLE_BIT, POWER_CAP_BIT = 0x1, 0x4
THERMAL_BITS, POWER_BITS = 0x20 | 0x40, 0x4 | 0x80


@dataclass(frozen=True, slots=True)
class GpuSignals:
    """What the GPUs of a node show."""

    activity: NDArray[np.float64]
    """(8, GPUs, scrapes): engine, SM, occupancy, tensor, DRAM as ratios; NVLink, PCIe out and in as bytes per
    second."""
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
    throttled_ns: NDArray[np.int64]
    """(2, GPUs, scrapes) nanoseconds throttled for power and for heat."""
    attached: NDArray[np.bool_]


def rates(sim: Simulation) -> Array:
    """(states, 8): what a GPU shows while it is in a state."""
    job, model = sim.scenario.job, sim.model
    sm, tensor = job.sm_active, job.tensor_active
    spin = min(1.0, job.nccl_channels / model.sms)
    nodes = len({placement.node for placement in sim.placements})
    link = 0.35 if nodes == 1 else 0.22
    table = np.zeros((STATE_COUNT, 8))
    table[RankState.LOAD] = 0.03, 0.01, 0.005, 0.0, 0.02, 0.0, 0.002, 0.09
    table[RankState.COMPILE] = 0.12, 0.05, 0.02, 0.01, 0.03, 0.0, 0.001, 0.004
    table[RankState.DATA] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0004, 0.002
    table[RankState.COMPUTE] = 0.995, sm, 0.42 * sm, tensor, 0.5 * sm, 0.25 * link, 0.004, 0.012
    table[RankState.EVAL] = 0.97, 0.85 * sm, 0.36 * sm, 0.8 * tensor, 0.48 * sm, 0.02, 0.003, 0.010
    table[RankState.COLLECTIVE] = 1.0, spin + 0.015, spin * 0.3, 0.0, 0.11, link, 0.010, 0.010
    table[RankState.WAIT] = 1.0, spin, spin * 0.3, 0.0, 0.002, 0.0, 0.0001, 0.0001
    table[RankState.SPIN] = 1.0, spin, spin * 0.3, 0.0, 0.0015, 0.0, 0.00005, 0.00005
    table[RankState.SAVE] = 0.02, 0.006, 0.003, 0.0, 0.01, 0.0, 0.04, 0.001
    table[:, NVLINK] *= model.nvlink if len(sim.placements) > 1 else 0.0
    table[:, PCIE_TX : PCIE_RX + 1] *= model.pcie
    return table


def mean_activity(tracks: list[Track], table: Array, begins: Array, ends: Array, seconds: Array | float) -> Array:
    """(8, tracks, times): means of what GPUs show from ``begins`` to ``ends``, which are ``seconds`` apart.

    A track that several GPUs share is computed once.
    """
    by_track: dict[int, Array] = {}
    for track in tracks:
        if id(track) not in by_track:
            integral = track.integral()
            seconds_in_state = integral.at(ends)[:, :STATE_COUNT] - integral.at(begins)[:, :STATE_COUNT]
            by_track[id(track)] = (seconds_in_state / np.reshape(seconds, (-1, 1)) @ table).T
    return np.stack([by_track[id(track)] for track in tracks], axis=1) if tracks else np.zeros((8, 0, len(ends)))


def gpu_signals(sim: Simulation, node: str, tracks: list[Track], times: Array, previous_time: float) -> GpuSignals:
    """All signals of one node; ``previous_time``: of the scrape before the first."""
    rng, model, table = sim.rng(f"gpu/{node}"), sim.model, rates(sim)
    count, begins = len(tracks), np.concatenate([[previous_time], times[:-1]])
    window = np.maximum(times - begins, 1e-3)
    shape = (count, len(times))
    activity = _add_noise(rng, mean_activity(tracks, table, begins, times, window), shape)
    short = mean_activity(tracks, table, times - SHORT_S, times, SHORT_S)
    attached = np.stack([_is_attached(track, times) for track in tracks]) if tracks else np.zeros(shape, dtype=bool)
    factor, reasons, resistance, max_celsius, throttled_s = _throttle_effects(sim, node, times, previous_time, attached)
    floor = np.where(attached, model.context_idle, model.idle) * (1 + 0.02 * rng.standard_normal((count, 1)))
    span = sim.model.tdp - model.context_idle
    busy = span * factor**2
    noise = 1 + 0.045 * rng.standard_normal(shape)
    demand = floor + busy * _load(short) * noise + 0.7 * rng.standard_normal(shape)
    capped = demand > sim.power_limit
    power = np.minimum(demand, sim.power_limit * (1 - 0.01 * rng.random(shape)))
    average = np.minimum(floor + busy * _load(activity), sim.power_limit)
    idle = (short[ENGINE] < 0.02) & (reasons == 0)
    reasons = reasons | np.where(capped, POWER_CAP_BIT, 0) | np.where(idle, IDLE_BIT, 0)
    clock = model.clock_max * factor * np.where(capped, np.sqrt(sim.power_limit / np.maximum(demand, 1.0)), 1.0)
    clock = np.where(attached | (short[ENGINE] > 0), np.rint(clock / 15) * 15, model.clock_idle)
    temperature = _heat(sim, rng, average, window, resistance, max_celsius)
    energy = 3.1e7 * (1 + rng.random((count, 1))) + np.cumsum(average * window, axis=1)
    throttled_s[0] += np.cumsum(np.where(capped, 0.3 * window, 0.0), axis=1)
    is_up = attached | (short[ENGINE] > 0)
    return GpuSignals(
        activity,
        utilization=np.rint(100 * np.clip(short[ENGINE], 0, 1)),
        copy_utilization=np.rint(100 * np.clip(short[DRAM] * 0.8, 0, 1)),
        memory=_memory(sim, rng, tracks, times),
        power=power,
        energy=energy,
        temperature=np.rint(temperature),
        memory_temperature=np.rint(temperature + 6 + 8 * activity[DRAM]),
        clock=clock,
        memory_clock=np.where(is_up, model.memory_clock, model.memory_clock_idle).astype(float),
        reasons=reasons,
        pstate=np.where(is_up | (model.memory_clock == model.memory_clock_idle), 0.0, 8.0),
        throttled_ns=(throttled_s * 1e9).astype(np.int64),
        attached=attached,
    )


def _load(activity: Array) -> Array:
    """The share of the dynamic power."""
    share: Array = 0.05 * activity[ENGINE] + 0.5 * activity[SM] + 0.58 * activity[TENSOR] + 0.5 * activity[DRAM]
    return share


def _add_noise(rng: np.random.Generator, activity: Array, shape: tuple[int, int]) -> Array:
    """Add noise: GPUs differ slightly from each other, and each sample from the previous one."""
    count = shape[0]
    gpu_factor = 1 + 0.008 * rng.standard_normal((8, count, 1))
    noisy = np.clip(activity * gpu_factor * (1 + 0.012 * rng.standard_normal((8, *shape))), 0, None)
    noisy[:NVLINK] = np.minimum(noisy[:NVLINK], 1.0)
    engine = 1 + 0.002 * rng.standard_normal(shape)
    noisy[ENGINE] = np.clip(activity[ENGINE] * engine, 0, 1)
    noisy[DRAM] += 1e-5 * rng.random(shape)
    noisy[PCIE_TX : PCIE_RX + 1] += 2e4 * (1 + 9 * rng.random((2, *shape)))
    return noisy


def _is_attached(track: Track, times: Array) -> NDArray[np.bool_]:
    attached = np.zeros(len(times), dtype=bool)
    for start, end in track.processes:
        attached |= (times >= start) & (times < end)
    return attached


def _throttle_effects(
    sim: Simulation, node: str, times: Array, previous_time: float, attached: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.int64], Array, Array, Array]:
    """(clock factor, reason bits, cooling resistance, maximum core temperature, seconds throttled for power and
    heat)."""
    shape = attached.shape
    factor, reasons = np.ones(shape), np.zeros(shape, dtype=np.int64)
    resistance, max_celsius, throttled_s = np.ones(shape), np.full(shape, np.inf), np.zeros((2, *shape))
    window = np.diff(np.concatenate([[previous_time], times]))
    for period in sim.throttles:
        if period.node != node or period.gpu >= shape[0]:
            continue
        during = (times >= period.start) & (times < period.end)
        if period.reasons & THERMAL_BITS:
            during &= attached[period.gpu]  # nothing heats an idle GPU
        factor[period.gpu, during] = np.minimum(factor[period.gpu, during], period.factor)
        reasons[period.gpu, during] |= period.reasons
        resistance[period.gpu, during] = period.resistance
        if period.thermal:
            max_celsius[period.gpu, during] = period.thermal
        for row, bits in enumerate((POWER_BITS, THERMAL_BITS)):
            if period.reasons & bits:
                throttled_s[row, period.gpu] += np.cumsum(np.where(during, window, 0.0))
    return factor, reasons, resistance, max_celsius, throttled_s


def _heat(
    sim: Simulation, rng: np.random.Generator, power: Array, window: Array, resistance: Array, max_celsius: Array
) -> Array:
    """Core temperatures: a first-order lag toward what power and cooling give."""
    model = sim.model
    count, length = power.shape
    inlet = sim.scenario.cluster.inlet_celsius + rng.normal(0, 1.2, (count, 1))
    goal = inlet + (model.temperature_full - INLET_CELSIUS) / model.tdp * resistance * power
    decay = np.exp(-window / model.lag_s)
    temperatures = np.empty((count, length))
    now = goal[:, 0] if length else np.zeros(count)
    for i in range(length):
        now = np.minimum(goal[:, i] + (now - goal[:, i]) * decay[i], max_celsius[:, i])
        temperatures[:, i] = now
    return temperatures + 0.5 * rng.standard_normal((count, length))


def _memory(sim: Simulation, rng: np.random.Generator, tracks: list[Track], times: Array) -> Array:
    """MiB in use; ranks differ by a few tens of MiB."""
    if not tracks:
        return np.zeros((0, len(times)))
    memory = np.stack([track.memory_at(times) for track in tracks])
    rank_factor = 1 + 0.004 * rng.standard_normal((len(tracks), 1))
    usable_mib = sim.model.memory_mib - sim.model.reserved_mib
    return np.rint(np.clip(memory * rank_factor, 0, usable_mib))
