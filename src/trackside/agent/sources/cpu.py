"""CPU time of each core by mode, load, blocked tasks: /proc/stat and /proc/loadavg."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from trackside.agent.pseudo_files import PseudoFile, number, read_required
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Labels, Reading, Sample

MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The columns of /proc/stat; guest time, which follows, is already included in user and nice."""
IDLE = frozenset({"idle", "iowait"})
MAX_CORES = 4096
CpuTicks = tuple[int, ...]
"""Kernel ticks by mode; fewer than :data:`MODES` if the kernel has fewer."""


@dataclass(slots=True)
class Stat:
    """Contents of /proc/stat. ``total``: sum of all cores."""

    total: CpuTicks = ()
    cores: list[tuple[int, CpuTicks]] = field(default_factory=list)
    boot: int | None = None
    blocked: int | None = None


def parse_stat(data: bytes) -> Stat:
    """Parse /proc/stat; other lines are skipped."""
    stat = Stat()
    for line in data.split(b"\n"):
        if line.startswith(b"cpu"):
            _parse_cores(line, stat)
        elif line.startswith(b"btime "):
            stat.boot = number(line[6:].strip())
        elif line.startswith(b"procs_blocked "):
            stat.blocked = number(line[14:].strip())
    return stat


def _parse_cores(line: bytes, stat: Stat) -> None:
    name, *fields = line.split(None, len(MODES) + 1)
    core = name[3:]
    try:
        ticks = tuple(map(int, fields[: len(MODES)]))
    except ValueError:
        return
    if not ticks or min(ticks) < 0 or max(ticks) >= 1 << 64:
        return
    if not core:
        stat.total = ticks
    elif core.isdigit() and len(core) < 6 and len(stat.cores) < MAX_CORES:
        stat.cores.append((int(core), ticks))


def parse_load(data: bytes) -> float | None:
    """The 1-minute load average of /proc/loadavg."""
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
        self._last_total: CpuTicks = ()
        self._labels: dict[int, tuple[Labels, ...]] = {}
        read_required(self._stat)

    def collect(self, reading: Reading) -> None:
        stat = parse_stat(read_required(self._stat))
        if not stat.cores:
            raise AgentSourceUnavailable(f"{self._stat.path} has no lines of cores")
        self._add_cores(reading, stat)
        self._add_busy(reading, stat.total)
        reading.sample("host_cpus", len(stat.cores))
        if stat.blocked is not None:
            reading.sample("host_tasks_blocked", stat.blocked)
        if stat.boot is not None:
            reading.sample("host_boot_time_seconds", stat.boot)
        load = parse_load(self._load.read_or_warn(reading))
        if load is not None:
            reading.sample("host_load1", load)

    def _add_cores(self, reading: Reading, stat: Stat) -> None:
        """Add CPU time of each core by mode. Modes in which no core has ever been are left out, to avoid useless series
        on hosts with hundreds of cores."""
        used_modes = [index for index, ticks in enumerate(stat.total) if ticks] or range(len(MODES))
        samples, hertz = reading.samples, self._hertz
        for core, ticks in stat.cores:
            labels = self._labels.get(core)
            if labels is None:
                labels = self._labels[core] = tuple((("cpu", str(core)), ("mode", mode)) for mode in MODES)
            for index in used_modes:
                if index < len(ticks):
                    samples.append(Sample("host_cpu_seconds_total", labels[index], ticks[index] / hertz))

    def _add_busy(self, reading: Reading, total: Sequence[int]) -> None:
        """Add the share of non-idle time since the last reading."""
        last_total, self._last_total = self._last_total, tuple(total)
        elapsed_ticks = [ticks - last for ticks, last in zip(total, last_total, strict=False)]
        if not elapsed_ticks or sum(elapsed_ticks) <= 0 or len(total) != len(last_total):
            return
        # idle and iowait may decrease slightly: the kernel reads them from the clocks of several cores
        idle = sum(max(0, ticks) for mode, ticks in zip(MODES, elapsed_ticks, strict=False) if mode in IDLE)
        reading.sample("host_cpu_busy_ratio", max(0.0, 1.0 - idle / sum(elapsed_ticks)))

    def close(self) -> None:
        self._stat.close()
        self._load.close()


SOURCE = AgentSource(
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
