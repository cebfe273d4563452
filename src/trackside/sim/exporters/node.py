"""node_exporter: CPU, memory, load, disks, network, InfiniBand, pressure and clocks of a machine.

CPU time is summed over CPUs, as clusters with many cores do when they scrape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trackside.sim.exposition import Array, MetricSink
from trackside.sim.simulation import HostEffect, Simulation
from trackside.sim.timeline import STATE_COUNT, RankState, Track
from trackside.sim.watch import scrapes, tenants, track_of

GIB = float(1 << 30)
CPU, NFS_IN, NFS_OUT, FABRIC = range(4)


def _rates(sim: Simulation) -> Array:
    """(states, 4): busy cores; bytes per second from and to file servers, and over the fabric, of one rank."""
    workers = sim.scenario.job.loader_workers
    table = np.zeros((STATE_COUNT, 4))
    table[RankState.IDLE, CPU] = 0.3
    table[RankState.LOAD] = 1.2, 4.0e8, 0, 0
    table[RankState.COMPILE, CPU] = 4.0
    table[RankState.DATA] = 0.3 + 0.9 * workers, 6e6, 0, 0
    table[RankState.GAP, CPU] = 1.0 + 0.2 * workers
    table[RankState.COMPUTE] = 0.95 + 0.22 * workers, 2e6, 0, 6e9
    table[RankState.EVAL] = 0.95 + 0.2 * workers, 2e6, 0, 1e8
    table[RankState.WAIT, CPU] = 1.0
    table[RankState.COLLECTIVE] = 1.0, 0, 0, 2.2e10
    table[RankState.SPIN, CPU] = 1.0
    table[RankState.SAVE] = 0.8, 0, 2.5e8, 0
    if len({placement.node for placement in sim.placements}) == 1:
        table[:, FABRIC] = 0
    elif sim.transport == "Socket":
        table[:, FABRIC] *= 0.02
    return table


@dataclass(slots=True)
class HostSignals:
    """A machine's signals at its scrapes."""

    sim: Simulation
    name: str
    times: Array
    window: Array
    tracks: list[Track]
    amounts: Array
    """(scrapes, 4): integrals of :func:`_rates` over all ranks."""
    effects: list[HostEffect]

    def effect_integral(self, attribute: str) -> Array:
        """The integral over time of one attribute of the effects."""
        total = np.zeros(len(self.times))
        for effect in self.effects:
            rate = getattr(effect, attribute)
            if rate:
                total += rate * np.clip(self.times - effect.start, 0, effect.end - effect.start)
        return total

    def effect_rate(self, attribute: str) -> Array:
        """The sum of one attribute of the effects at each scrape."""
        total = np.zeros(len(self.times))
        for effect in self.effects:
            active = (self.times >= effect.start) & (self.times < effect.end)
            total += np.where(active, getattr(effect, attribute), 0.0)
        return total

    def effect_memory(self) -> Array:
        """Bytes of memory that effects use."""
        total = np.zeros(len(self.times))
        for effect in self.effects:
            if effect.memory_gib:
                share = np.clip((self.times - effect.start) / max(effect.end - effect.start, 1e-3), 0, 1)
                total += np.where(self.times < effect.end, share * effect.memory_gib * GIB, 0.0)
        return total


def write(sim: Simulation, node: str, sink: MetricSink) -> None:
    """Write everything that a machine's exporter served."""
    times, is_answered = scrapes(sim, node, "host")
    if not len(times):
        return
    host = _host_signals(sim, node, times)
    rows = np.flatnonzero(is_answered)
    times_ms = np.rint(times * 1000).astype(np.int64)[rows]
    instance = {"instance": f"{node}:9100", "job": "node"}
    for name, kind, help_text, all_series in _families(host):
        sink.begin_metric(name, kind, help_text)
        for labels, values in all_series:
            if kind == "counter":
                values = _reset_at_boot(host, values)
            is_integer = kind == "counter" and not name.endswith("seconds_total")
            sink.series({**labels, **instance}, times_ms, values[rows], "whole" if is_integer else "short")


def _host_signals(sim: Simulation, node: str, times: Array) -> HostSignals:
    gpus = range(sim.scenario.cluster.gpus_per_node)
    tracks = [track_of(sim, node, gpu, tenants(sim, node, gpu)) for gpu in gpus]
    amounts = np.zeros((len(times), 4))
    table, integrals_of = _rates(sim), {}
    for track in tracks:
        if id(track) not in integrals_of:
            integrals_of[id(track)] = track.integral().at(times)[:, :STATE_COUNT] @ table
        amounts += integrals_of[id(track)]
    effects = [effect for effect in sim.host_effects if effect.node == node]
    window = np.diff(np.concatenate([[times[0] - sim.scenario.telemetry.interval_s], times]))
    return HostSignals(sim, node, times, window, tracks, amounts, effects)


def _reset_at_boot(host: HostSignals, values: Array) -> Array:
    """A kernel counter that restarts at 0 when the machine reboots."""
    back = host.sim.down_nodes.get(host.name, (math.inf, math.inf))[1]
    after = host.times >= back
    if not after.any():
        return values
    return np.where(after, values - values[int(np.argmax(after))], values)


MetricFamily = tuple[str, str, str, list[tuple[dict[str, str], Array]]]
"""(name, kind, help, series with their labels)"""


def _counter(name: str, text: str, values: Array, labels: dict[str, str] | None = None) -> MetricFamily:
    return name, "counter", text, [(labels or {}, values)]


def _gauge(name: str, text: str, values: Array, labels: dict[str, str] | None = None) -> MetricFamily:
    return name, "gauge", text, [(labels or {}, values)]


def _families(host: HostSignals) -> list[MetricFamily]:
    return [*_cpu(host), *_memory(host), *_disks(host), *_network(host), *_pressure(host), *_clock(host)]


def _initial_value(host: HostSignals, purpose: str, maximum: float) -> float:
    """A counter's value when observation began."""
    return float(host.sim.rng(f"host/{host.name}/{purpose}").random()) * maximum


def _cpu(host: HostSignals) -> list[MetricFamily]:
    cores = host.sim.scenario.cluster.cores
    rng = host.sim.rng(f"host/{host.name}/cpu")
    base = np.cumsum(host.window * (0.6 + 0.4 * rng.random(len(host.times))))
    capacity = np.cumsum(host.window) * cores
    usage = np.diff(host.amounts[:, CPU] + host.effect_integral("cores") + base, prepend=0.0)
    busy = np.cumsum(np.minimum(usage, 0.998 * host.window * cores))
    waiting = np.minimum(host.effect_integral("blocked_tasks"), np.maximum(capacity - busy, 0))
    waiting = np.maximum.accumulate(waiting)
    uptime = _initial_value(host, "up", 2e6) * cores
    modes = {
        "idle": uptime + np.maximum.accumulate(np.maximum(capacity - busy - waiting, 0)),
        "iowait": 1e-4 * uptime + waiting,
        "system": 0.01 * uptime + 0.14 * busy,
        "user": 0.05 * uptime + 0.86 * busy,
    }
    running = np.diff(np.concatenate([[0.0], busy])) / host.window + host.effect_rate("blocked_tasks")
    decay = np.exp(-host.window / 60.0)
    load_average, now = np.empty(len(running)), running[0]
    for i, goal in enumerate(running):
        now = goal + (now - goal) * decay[i]
        load_average[i] = now
    return [
        (
            "node_cpu_seconds_total",
            "counter",
            "Seconds the CPUs spent in each mode.",
            [({"mode": mode}, values) for mode, values in modes.items()],
        ),
        _gauge("node_load1", "1m load average.", np.round(load_average, 2)),
    ]


def _memory(host: HostSignals) -> list[MetricFamily]:
    cluster = host.sim.scenario.cluster
    total = np.full(len(host.times), cluster.memory_gib * GIB * 0.984)
    used = np.full(len(host.times), 18 * GIB) + host.effect_memory()
    for track in host.tracks:
        used += track.resident_at(host.times) * GIB
    rng = host.sim.rng(f"host/{host.name}/memory")
    used *= 1 + 0.002 * rng.standard_normal(len(used))
    available = np.maximum(total - used, 0.002 * total)
    free = np.minimum(available, np.maximum(available * 0.45, 0.0015 * total))
    kills = np.zeros(len(host.times))
    for time, node in host.sim.oom_kills:
        if node == host.name:
            kills += host.times >= time
    page = 4096.0
    fields = {"MemTotal": total, "MemAvailable": available, "MemFree": free}
    return [
        *(
            _gauge(
                f"node_memory_{name}_bytes", f"Memory information field {name}_bytes.", np.rint(values / page) * page
            )
            for name, values in fields.items()
        ),
        _counter("node_vmstat_oom_kill", "/proc/vmstat information field oom_kill.", kills),
    ]


def _disks(host: HostSignals) -> list[MetricFamily]:
    rng = host.sim.rng(f"host/{host.name}/disk")
    written = np.cumsum(host.window * 4e5 * (0.5 + rng.random(len(host.times)))) + host.effect_integral("disk")
    read = np.cumsum(host.window * 2e4 * rng.random(len(host.times)))
    busy = np.minimum((written + read) / 1.4e9, np.cumsum(host.window))
    start = _initial_value(host, "disk", 4e12)
    device = {"device": "nvme0n1"}
    root = {"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": "/"}
    size = np.full(len(host.times), 3.4e12)
    return [
        _counter("node_disk_io_time_seconds_total", "Total seconds spent doing I/Os.", start / 1e9 + busy, device),
        _counter("node_disk_read_bytes_total", "The total number of bytes read successfully.", start + read, device),
        _counter(
            "node_disk_written_bytes_total", "The total number of bytes written successfully.", start + written, device
        ),
        _gauge(
            "node_filesystem_avail_bytes",
            "Filesystem space available to non-root users in bytes.",
            size * 0.71 - written,
            root,
        ),
        _gauge("node_filesystem_size_bytes", "Filesystem size in bytes.", size, root),
    ]


def _network(host: HostSignals) -> list[MetricFamily]:
    rng = host.sim.rng(f"host/{host.name}/network")
    chatter = np.cumsum(host.window * 9e4 * (0.5 + rng.random(len(host.times))))
    fabric, start = host.amounts[:, FABRIC], _initial_value(host, "network", 9e13)
    over_ethernet = host.sim.transport == "Socket"
    lan = chatter + host.effect_integral("network") + (fabric if over_ethernet else 0.0)
    families = []
    for direction, served in (("receive", NFS_IN), ("transmit", NFS_OUT)):
        name, text = f"node_network_{direction}_bytes_total", f"Network device statistic {direction}_bytes."
        families.append(_counter(name, text, start + lan + host.amounts[:, served], {"device": "eth0"}))
    if host.sim.scenario.cluster.fabric == "infiniband":
        ports = host.sim.scenario.cluster.gpus_per_node
        share = (0.0 if over_ethernet else fabric) / ports + 200.0 * np.cumsum(host.window)
        curves = [({"device": f"mlx5_{i}", "port": "1"}, start * 3 + share) for i in range(ports)]
        for direction in ("received", "transmitted"):
            name = f"node_infiniband_port_data_{direction}_bytes_total"
            families.append((name, "counter", f"Number of data octets {direction} on all links", curves))
    return families


def _pressure(host: HostSignals) -> list[MetricFamily]:
    start = _initial_value(host, "pressure", 900.0)
    cores = host.sim.scenario.cluster.cores
    contended = host.effect_integral("stalled_cpu") + 0.001 * host.amounts[:, CPU] / cores
    io, memory = host.effect_integral("stalled_io"), host.effect_integral("stalled_memory")
    table = {
        "cpu_waiting": ("Total time in seconds that processes have waited for CPU time", contended),
        "io_waiting": ("Total time in seconds that processes have waited due to IO congestion", io),
        "io_stalled": ("Total time in seconds no process could make progress due to IO congestion", 0.7 * io),
        "memory_waiting": ("Total time in seconds that processes have waited for memory", memory),
        "memory_stalled": (
            "Total time in seconds no process could make progress due to memory congestion",
            0.6 * memory,
        ),
    }
    return [
        _counter(f"node_pressure_{name}_seconds_total", text, np.round(start + values, 6))
        for name, (text, values) in table.items()
    ]


def _clock(host: HostSignals) -> list[MetricFamily]:
    booted = math.floor(host.times[0] - 3600 - _initial_value(host, "boot", 4e6))
    boot = np.full(len(host.times), float(booted))
    back = host.sim.down_nodes.get(host.name, (math.inf, math.inf))[1]
    boot[host.times >= back] = back - 45 if math.isfinite(back) else 0.0
    ahead = host.sim.clock_skew(host.name)
    return [
        _gauge("node_boot_time_seconds", "Node boot time, in unixtime.", np.floor(boot + ahead)),
        _gauge("node_time_seconds", "System time in seconds since epoch (1970).", np.round(host.times + ahead, 3)),
    ]
