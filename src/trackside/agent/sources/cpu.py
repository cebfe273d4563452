"""CPU time of each core by mode, load, blocked tasks: /proc/stat and /proc/loadavg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from trackside.agent.pseudo_files import PseudoFile, number, required
from trackside.agent.source import Collector, Context, Labels, Reading, Sample, Source, Unavailable

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""As the columns of /proc/stat; time of guests, which follows, is counted in user and nice already."""
IDLE = frozenset({"idle", "iowait"})
MOST_CORES = 4096
Ticks = tuple[int, ...]
"""Kernel ticks by mode; fewer than :data:`MODES` where a kernel has fewer."""


@dataclass(slots=True)
class Stat:
    """What /proc/stat says. ``total``: of all cores together."""

    total: Ticks = ()
    cores: list[tuple[int, Ticks]] = field(default_factory=list)
    boot: int | None = None
    blocked: int | None = None


def parse_stat(data: bytes) -> Stat:
    """Read /proc/stat; lines that are none of its are passed over."""
    found = Stat()
    for line in data.split(b"\n"):
        if line.startswith(b"cpu"):
            _take_cores(line, found)
        elif line.startswith(b"btime "):
            found.boot = number(line[6:].strip())
        elif line.startswith(b"procs_blocked "):
            found.blocked = number(line[14:].strip())
    return found


def _take_cores(line: bytes, found: Stat) -> None:
    name, *fields = line.split(None, len(MODES) + 1)
    core = name[3:]
    try:
        ticks = tuple(map(int, fields[: len(MODES)]))
    except ValueError:
        return
    if not ticks or min(ticks) < 0 or max(ticks) >= 1 << 64:
        return
    if not core:
        found.total = ticks
    elif core.isdigit() and len(core) < 6 and len(found.cores) < MOST_CORES:
        found.cores.append((int(core), ticks))


def parse_load(data: bytes) -> float | None:
    """The 1-minute average of /proc/loadavg."""
    try:
        load = float(data.split(None, 1)[0])
    except (ValueError, IndexError):
        return None
    return load if 0.0 <= load < 1e9 else None


class _Cpu(Collector):
    def __init__(self, context: Context) -> None:
        self._stat = PseudoFile(context.node.proc / "stat")
        self._load = PseudoFile(context.node.proc / "loadavg")
        self._hertz = os.sysconf("SC_CLK_TCK")
        self._before: Ticks = ()
        self._labels: dict[int, tuple[Labels, ...]] = {}
        required(self._stat)

    def collect(self, reading: Reading) -> None:
        stat = parse_stat(required(self._stat))
        if not stat.cores:
            raise Unavailable(f"{self._stat.path} has no line of a core")
        self._add_cores(reading, stat)
        self._add_busy(reading, stat.total)
        reading.sample("host_cpus", len(stat.cores))
        if stat.blocked is not None:
            reading.sample("host_tasks_blocked", stat.blocked)
        if stat.boot is not None:
            reading.sample("host_boot_time_seconds", stat.boot)
        load = parse_load(self._load.if_any(reading))
        if load is not None:
            reading.sample("host_load1", load)

    def _add_cores(self, reading: Reading, stat: Stat) -> None:
        """Cores by mode. A mode in which no core of this host has ever been is left out: two hundred cores would say
        nothing in two hundred curves."""
        used = [place for place, ticks in enumerate(stat.total) if ticks] or range(len(MODES))
        samples, hertz = reading.samples, self._hertz
        for core, ticks in stat.cores:
            labels = self._labels.get(core)
            if labels is None:
                labels = self._labels[core] = tuple((("cpu", str(core)), ("mode", mode)) for mode in MODES)
            for place in used:
                if place < len(ticks):
                    samples.append(Sample("host_cpu_seconds_total", labels[place], ticks[place] / hertz))

    def _add_busy(self, reading: Reading, total: Sequence[int]) -> None:
        """The share of time not idle since the last reading."""
        before, self._before = self._before, tuple(total)
        spent = [now - then for now, then in zip(total, before, strict=False)]
        if not spent or sum(spent) <= 0 or len(total) != len(before):
            return
        # idle and iowait may fall a little: the kernel reads them from clocks of several cores
        idle = sum(max(0, ticks) for mode, ticks in zip(MODES, spent, strict=False) if mode in IDLE)
        reading.sample("host_cpu_busy_ratio", max(0.0, 1.0 - idle / sum(spent)))

    def close(self) -> None:
        self._stat.close()
        self._load.close()


SOURCE = Source(
    id="cpu",
    title="CPU time of each core, load, blocked tasks, boot time",
    open=_Cpu,
    metrics=(
        "host_boot_time_seconds",
        "host_cpu_busy_ratio",
        "host_cpu_seconds_total",
        "host_cpus",
        "host_load1",
        "host_tasks_blocked",
    ),
)
