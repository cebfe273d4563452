"""Host memory, swap, major faults, out-of-memory kills, memory errors: /proc/meminfo, /proc/vmstat, EDAC."""

from __future__ import annotations

from pathlib import Path

from trackside.agent.kernel.neighbors import shares_machine
from trackside.agent.pseudo_files import PseudoFile, key_values, names_in, read_required
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading

MEMINFO = {
    b"MemTotal": "host_memory_total_bytes",
    b"MemAvailable": "host_memory_available_bytes",
    b"MemFree": "host_memory_free_bytes",
    b"SwapTotal": "host_swap_total_bytes",
    b"SwapFree": "host_swap_free_bytes",
    b"Shmem": "host_shm_bytes",
}
VMSTAT = {b"pgmajfault": "host_major_faults_total", b"oom_kill": "host_oom_kills_total"}
EDAC = {"ce_count": "correctable", "ue_count": "uncorrectable"}
MAX_CONTROLLERS = 64


class _Memory(Collector):
    def __init__(self, context: Context) -> None:
        proc, edac = context.node.proc, context.node.sys / "devices/system/edac/mc"
        self._meminfo, self._vmstat = PseudoFile(proc / "meminfo"), PseudoFile(proc / "vmstat")
        self._errors = [
            (PseudoFile(Path(edac, name, file)), name, kind)
            for name in names_in(edac, MAX_CONTROLLERS)
            if name.startswith("mc")
            for file, kind in EDAC.items()
        ]
        self._sys, self._node = context.node.sys, context.node.name
        read_required(self._meminfo)

    def collect(self, reading: Reading) -> None:
        values = key_values(read_required(self._meminfo), MEMINFO)
        if b"MemTotal" not in values:
            raise AgentSourceUnavailable(f"{self._meminfo.path} has no MemTotal")
        for key, value in values.items():
            reading.sample(MEMINFO[key], value)
        counts = key_values(self._vmstat.read_or_warn(reading), VMSTAT)
        if shares_machine(self._sys, self._node):
            counts.pop(b"oom_kill", None)  # the kernel counts those of all nodes; each node's own are in its kernel log
        for key, value in counts.items():
            reading.sample(VMSTAT[key], value)
        for file, controller, kind in self._errors:
            if (errors := file.count()) is not None:
                reading.sample("host_memory_errors_total", errors, device=controller, kind=kind)

    def close(self) -> None:
        for file in (self._meminfo, self._vmstat, *(file for file, _, _ in self._errors)):
            file.close()


SOURCE = AgentSource(
    id="memory",
    title="host memory, swap, major faults, out-of-memory kills, memory errors",
    open=_Memory,
    metrics=(*MEMINFO.values(), *VMSTAT.values(), "host_memory_errors_total"),
)
