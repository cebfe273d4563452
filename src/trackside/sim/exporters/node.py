"""node_exporter: CPU, memory, load, disks, network, InfiniBand, pressure and clocks of a machine.

CPU time is summed over CPUs, as clusters that watch many cores do when they scrape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from trackside.sim.exposition import Array, Sink
from trackside.sim.stage import HostEffect, Stage
from trackside.sim.timeline import STATES, State, Track
from trackside.sim.watch import scrapes, tenants, track_of

GIB = float(1 << 30)
CPU, NFS_IN, NFS_OUT, FABRIC = range(4)


def _rates(stage: Stage) -> Array:
    """(states, 4): cores busy; bytes a second from and to file servers, and over the fabric, of one rank."""
    workers = stage.scenario.job.loader_workers
    table = np.zeros((STATES, 4))
    table[State.IDLE, CPU] = 0.3
    table[State.LOAD] = 1.2, 4.0e8, 0, 0
    table[State.COMPILE, CPU] = 4.0
    table[State.DATA] = 0.3 + 0.9 * workers, 6e6, 0, 0
    table[State.GAP, CPU] = 1.0 + 0.2 * workers
    table[State.COMPUTE] = 0.95 + 0.22 * workers, 2e6, 0, 6e9
    table[State.EVAL] = 0.95 + 0.2 * workers, 2e6, 0, 1e8
    table[State.WAIT, CPU] = 1.0
    table[State.COLLECTIVE] = 1.0, 0, 0, 2.2e10
    table[State.SPIN, CPU] = 1.0
    table[State.SAVE] = 0.8, 0, 2.5e8, 0
    if len({place.node for place in stage.places}) == 1:
        table[:, FABRIC] = 0
    elif stage.transport == "Socket":
        table[:, FABRIC] *= 0.02
    return table


@dataclass(slots=True)
class Host:
    """A machine at its scrapes."""

    stage: Stage
    name: str
    times: Array
    window: Array
    tracks: list[Track]
    amounts: Array
    """(scrapes, 4): integrals of :func:`_rates` over all ranks."""
    effects: list[HostEffect]

    def lasting(self, pick: str) -> Array:
        """The integral of a rate of the effects."""
        out = np.zeros(len(self.times))
        for effect in self.effects:
            rate = getattr(effect, pick)
            if rate:
                out += rate * np.clip(self.times - effect.start, 0, effect.end - effect.start)
        return out

    def level(self, pick: str) -> Array:
        """The sum of a rate of the effects now."""
        out = np.zeros(len(self.times))
        for effect in self.effects:
            inside = (self.times >= effect.start) & (self.times < effect.end)
            out += np.where(inside, getattr(effect, pick), 0.0)
        return out

    def taken(self) -> Array:
        """Bytes of memory that effects hold."""
        out = np.zeros(len(self.times))
        for effect in self.effects:
            if effect.memory_gib:
                share = np.clip((self.times - effect.start) / max(effect.end - effect.start, 1e-3), 0, 1)
                out += np.where(self.times < effect.end, share * effect.memory_gib * GIB, 0.0)
        return out


def write(stage: Stage, node: str, sink: Sink) -> None:
    """Everything that a machine's exporter served."""
    times, answered = scrapes(stage, node, "host")
    if not len(times):
        return
    host = _host(stage, node, times)
    rows = np.flatnonzero(answered)
    times_ms = np.rint(times * 1000).astype(np.int64)[rows]
    instance = {"instance": f"{node}:9100", "job": "node"}
    for name, kind, help_text, curves in _families(host):
        sink.family(name, kind, help_text)
        for labels, values in curves:
            if kind == "counter":
                values = _booted(host, values)
            whole = kind == "counter" and not name.endswith("seconds_total")
            sink.curve({**labels, **instance}, times_ms, values[rows], "whole" if whole else "short")


def _host(stage: Stage, node: str, times: Array) -> Host:
    gpus = range(stage.scenario.cluster.gpus_per_node)
    tracks = [track_of(stage, node, gpu, tenants(stage, node, gpu)) for gpu in gpus]
    amounts = np.zeros((len(times), 4))
    table, known = _rates(stage), {}
    for track in tracks:
        if id(track) not in known:
            known[id(track)] = track.frozen().at(times)[:, :STATES] @ table
        amounts += known[id(track)]
    effects = [effect for effect in stage.host_effects if effect.node == node]
    window = np.diff(np.concatenate([[times[0] - stage.scenario.telemetry.interval_s], times]))
    return Host(stage, node, times, window, tracks, amounts, effects)


def _booted(host: Host, values: Array) -> Array:
    """Counters of the kernel begin anew when the machine does."""
    back = host.stage.down.get(host.name, (math.inf, math.inf))[1]
    after = host.times >= back
    if not after.any():
        return values
    return np.where(after, values - values[int(np.argmax(after))], values)


Family = tuple[str, str, str, list[tuple[dict[str, str], Array]]]
"""(name, kind, help, curves with their labels)"""


def _counter(name: str, text: str, values: Array, labels: dict[str, str] | None = None) -> Family:
    return name, "counter", text, [(labels or {}, values)]


def _gauge(name: str, text: str, values: Array, labels: dict[str, str] | None = None) -> Family:
    return name, "gauge", text, [(labels or {}, values)]


def _families(host: Host) -> list[Family]:
    return [*_cpu(host), *_memory(host), *_disks(host), *_network(host), *_pressure(host), *_clock(host)]


def _offset(host: Host, purpose: str, most: float) -> float:
    """What a counter stood at when watching began."""
    return float(host.stage.rng(f"host/{host.name}/{purpose}").random()) * most


def _cpu(host: Host) -> list[Family]:
    cores = host.stage.scenario.cluster.cores
    rng = host.stage.rng(f"host/{host.name}/cpu")
    base = np.cumsum(host.window * (0.6 + 0.4 * rng.random(len(host.times))))
    most = np.cumsum(host.window) * cores
    each = np.diff(host.amounts[:, CPU] + host.lasting("cores") + base, prepend=0.0)
    busy = np.cumsum(np.minimum(each, 0.998 * host.window * cores))
    waiting = np.minimum(host.lasting("blocked_tasks"), np.maximum(most - busy, 0))
    waiting = np.maximum.accumulate(waiting)
    up = _offset(host, "up", 2e6) * cores
    modes = {
        "idle": up + np.maximum.accumulate(np.maximum(most - busy - waiting, 0)),
        "iowait": 1e-4 * up + waiting,
        "system": 0.01 * up + 0.14 * busy,
        "user": 0.05 * up + 0.86 * busy,
    }
    running = np.diff(np.concatenate([[0.0], busy])) / host.window + host.level("blocked_tasks")
    keep = np.exp(-host.window / 60.0)
    load, now = np.empty(len(running)), running[0]
    for i, goal in enumerate(running):
        now = goal + (now - goal) * keep[i]
        load[i] = now
    return [
        (
            "node_cpu_seconds_total",
            "counter",
            "Seconds the CPUs spent in each mode.",
            [({"mode": mode}, values) for mode, values in modes.items()],
        ),
        _gauge("node_load1", "1m load average.", np.round(load, 2)),
    ]


def _memory(host: Host) -> list[Family]:
    cluster = host.stage.scenario.cluster
    total = np.full(len(host.times), cluster.memory_gib * GIB * 0.984)
    used = np.full(len(host.times), 18 * GIB) + host.taken()
    for track in host.tracks:
        used += track.resident_at(host.times) * GIB
    rng = host.stage.rng(f"host/{host.name}/memory")
    used *= 1 + 0.002 * rng.standard_normal(len(used))
    available = np.maximum(total - used, 0.002 * total)
    free = np.minimum(available, np.maximum(available * 0.45, 0.0015 * total))
    kills = np.zeros(len(host.times))
    for time, node in host.stage.oom_kills:
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


def _disks(host: Host) -> list[Family]:
    rng = host.stage.rng(f"host/{host.name}/disk")
    written = np.cumsum(host.window * 4e5 * (0.5 + rng.random(len(host.times)))) + host.lasting("disk")
    read = np.cumsum(host.window * 2e4 * rng.random(len(host.times)))
    busy = np.minimum((written + read) / 1.4e9, np.cumsum(host.window))
    start = _offset(host, "disk", 4e12)
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


def _network(host: Host) -> list[Family]:
    rng = host.stage.rng(f"host/{host.name}/network")
    chatter = np.cumsum(host.window * 9e4 * (0.5 + rng.random(len(host.times))))
    fabric, start = host.amounts[:, FABRIC], _offset(host, "network", 9e13)
    over_ethernet = host.stage.transport == "Socket"
    lan = chatter + host.lasting("network") + (fabric if over_ethernet else 0.0)
    found = []
    for way, served in (("receive", NFS_IN), ("transmit", NFS_OUT)):
        name, text = f"node_network_{way}_bytes_total", f"Network device statistic {way}_bytes."
        found.append(_counter(name, text, start + lan + host.amounts[:, served], {"device": "eth0"}))
    if host.stage.scenario.cluster.fabric == "infiniband":
        ports = host.stage.scenario.cluster.gpus_per_node
        share = (0.0 if over_ethernet else fabric) / ports + 200.0 * np.cumsum(host.window)
        curves = [({"device": f"mlx5_{i}", "port": "1"}, start * 3 + share) for i in range(ports)]
        for way in ("received", "transmitted"):
            name = f"node_infiniband_port_data_{way}_bytes_total"
            found.append((name, "counter", f"Number of data octets {way} on all links", curves))
    return found


def _pressure(host: Host) -> list[Family]:
    start = _offset(host, "pressure", 900.0)
    cores = host.stage.scenario.cluster.cores
    contended = host.lasting("stalled_cpu") + 0.001 * host.amounts[:, CPU] / cores
    io, memory = host.lasting("stalled_io"), host.lasting("stalled_memory")
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


def _clock(host: Host) -> list[Family]:
    booted = math.floor(host.times[0] - 3600 - _offset(host, "boot", 4e6))
    boot = np.full(len(host.times), float(booted))
    back = host.stage.down.get(host.name, (math.inf, math.inf))[1]
    boot[host.times >= back] = back - 45 if math.isfinite(back) else 0.0
    ahead = host.stage.node_clock(host.name)
    return [
        _gauge("node_boot_time_seconds", "Node boot time, in unixtime.", np.floor(boot + ahead)),
        _gauge("node_time_seconds", "System time in seconds since epoch (1970).", np.round(host.times + ahead, 3)),
    ]
