"""Pressure stall information (PSI) of the host: time that tasks waited for CPU, memory, storage or interrupts."""

from __future__ import annotations

import errno

from trackside.agent.pseudo_files import PseudoFile, parse_pressure
from trackside.agent.source import AgentSource, AgentSourceUnavailable, Collector, Context, Reading

RESOURCES = ("cpu", "io", "irq", "memory")
_REMEDY = "use a kernel with CONFIG_PSI, and boot it with psi=1 if PSI is off by default"


class _Pressure(Collector):
    def __init__(self, context: Context) -> None:
        folder = context.node.proc / "pressure"
        self._files = [(resource, PseudoFile(folder / resource)) for resource in RESOURCES]
        self.collect(Reading())

    def collect(self, reading: Reading) -> None:
        read = 0
        for resource, file in self._files:
            try:
                data = file.read(512)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EOPNOTSUPP):
                    reading.warnings.append(f"{file.path}: {error.strerror}")
                continue
            read += 1
            for level, seconds in parse_pressure(data).items():
                reading.sample("host_pressure_seconds_total", seconds, resource=resource, level=level)
        if not read:
            raise AgentSourceUnavailable("this kernel has no pressure stall information", _REMEDY)

    def close(self) -> None:
        for _, file in self._files:
            file.close()


SOURCE = AgentSource(
    id="pressure",
    title="pressure stall information (PSI): time waiting for CPU, memory, storage",
    open=_Pressure,
    metrics=("host_pressure_seconds_total",),
)
