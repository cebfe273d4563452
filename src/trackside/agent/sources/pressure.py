"""Pressure stall information of the host: time that tasks waited for CPU, memory, storage or interrupts."""

from __future__ import annotations

import errno

from trackside.agent.pseudo_files import PseudoFile, parse_pressure
from trackside.agent.source import Collector, Context, Reading, Source, Unavailable

RESOURCES = ("cpu", "io", "irq", "memory")
_REMEDY = "the kernel must be built with CONFIG_PSI, and started with psi=1 where its default is off"


class _Pressure(Collector):
    def __init__(self, context: Context) -> None:
        folder = context.node.proc / "pressure"
        self._files = [(each, PseudoFile(folder / each)) for each in RESOURCES]
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
            raise Unavailable("this kernel gives no pressure stall information", _REMEDY)

    def close(self) -> None:
        for _, file in self._files:
            file.close()


SOURCE = Source(
    id="pressure",
    title="pressure stall information: waiting for CPU, memory, storage",
    open=_Pressure,
    metrics=("host_pressure_seconds_total",),
)
