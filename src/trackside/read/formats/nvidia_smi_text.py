"""``nvidia-smi -q`` as text, whole or by sections (``-d``): one capture or many, one GPU or all, of any driver."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping

from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.gpu_readings import Line
from trackside.read.nvidia_smi import (
    MOST_CARDS,
    MOST_PROCESSES,
    Capture,
    Card,
    Process,
    Smi,
    gpu_of,
    read_lines,
    sniffed,
)

_BANNER = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_ENTRY = re.compile(r"( *)([A-Za-z][\w .,()/'-]{0,80}?) *(?:: ?(.*))?")
LONGEST = 2000
"""Characters of a line; nvidia-smi's are no longer."""
INDENT = 4
"""Blanks a level."""

_ECC = {
    f"ecc errors/{span}/{memory} {kind}able{extra}": f"ecc.errors.{kind}ed.{span}.{memory}{part}"
    for span in ("volatile", "aggregate")
    for memory in ("sram", "dram")
    for kind in ("correct", "uncorrect")
    for extra, part in (("", ""), (" parity", ".parity"), (" sec-ded", ".secded"))
}
_OLD_ECC = {
    f"ecc errors/{span}/{bits} bit/total": f"ecc.errors.{kind}.{span}.total"
    for span in ("volatile", "aggregate")
    for bits, kind in (("single", "corrected"), ("double", "uncorrected"))
}
_REASONS = {
    "idle": "gpu_idle",
    "applications clocks setting": "applications_clocks_setting",
    "sw power cap": "sw_power_cap",
    "hw slowdown": "hw_slowdown",
    "hw slowdown/hw thermal slowdown": "hw_thermal_slowdown",
    "hw slowdown/hw power brake slowdown": "hw_power_brake_slowdown",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "display clock setting": "display_clock_setting",
}
_COUNTERS = {
    "sw power capping": "sw_power_cap",
    "sync boost": "sync_boost",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power braking": "hw_power_brake_slowdown",
}
FIELDS: Mapping[str, str] = {
    "performance state": "pstate",
    "utilization/gpu": "utilization.gpu",
    "utilization/memory": "utilization.memory",
    "utilization/encoder": "utilization.encoder",
    "utilization/decoder": "utilization.decoder",
    "utilization/jpeg": "utilization.jpeg",
    "utilization/ofa": "utilization.ofa",
    "fan speed": "fan.speed",
    "bar1 memory usage/total": "bar1.total",
    "bar1 memory usage/used": "bar1.used",
    "bar1 memory usage/free": "bar1.free",
    "fb memory usage/total": "memory.total",
    "fb memory usage/reserved": "memory.reserved",
    "fb memory usage/used": "memory.used",
    "fb memory usage/free": "memory.free",
    "temperature/gpu": "temperature.gpu",
    "temperature/gpu current temp": "temperature.gpu",
    "temperature/gpu t.limit temp": "temperature.gpu.tlimit",
    "temperature/memory current temp": "temperature.memory",
    "power readings/power draw": "power.draw",
    "power readings/power limit": "power.limit",
    "power readings/enforced power limit": "enforced.power.limit",
    "gpu power readings/power draw": "power.draw",
    "gpu power readings/average power draw": "power.draw.average",
    "gpu power readings/instantaneous power draw": "power.draw.instant",
    "gpu power readings/current power limit": "enforced.power.limit",
    **{f"{heading}power readings/{level} power limit": f"power.{level}_limit"
       for heading in ("", "gpu ") for level in ("default", "min", "max")},
    "clocks/sm": "clocks.current.sm",
    "clocks/graphics": "clocks.current.graphics",
    "clocks/memory": "clocks.current.memory",
    "clocks/video": "clocks.current.video",
    "applications clocks/graphics": "clocks.applications.graphics",
    "max clocks/sm": "clocks.max.sm",
    "max clocks/memory": "clocks.max.memory",
    "pci/replays since reset": "pci.replay_counter",
    "pci/tx throughput": "pci.tx_util",
    "pci/rx throughput": "pci.rx_util",
    "pci/gpu link info/pcie generation/current": "pcie.link.gen.current",
    "pci/gpu link info/pcie generation/max": "pcie.link.gen.max",
    "pci/gpu link info/link width/current": "pcie.link.width.current",
    "pci/gpu link info/link width/max": "pcie.link.width.max",
    "ecc errors/aggregate/sram threshold exceeded": "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "retired pages/single bit ecc": "retired_pages.single_bit_ecc.count",
    "retired pages/double bit ecc": "retired_pages.double_bit.count",
    "retired pages/pending": "retired_pages.pending",
    "retired pages/pending page blacklist": "retired_pages.pending",
    "remapped rows/correctable error": "remapped_rows.correctable",
    "remapped rows/uncorrectable error": "remapped_rows.uncorrectable",
    "remapped rows/pending": "remapped_rows.pending",
    "remapped rows/remapping failure occurred": "remapped_rows.failure",
    **{f"remapped rows/bank remap availability histogram/{level}": f"remapped_rows.histogram.{level}"
       for level in ("max", "high", "partial", "low", "none")},
    "gpu recovery action": "gpu_recovery_action",
    "fabric/state": "fabric.state",
    **{f"clocks {word} reasons/{name}": f"clocks_event_reasons.{field}"
       for word in ("throttle", "event") for name, field in _REASONS.items()},
    **{f"clocks event reasons counters/{name}": f"clocks_event_reasons_counters.{field}"
       for name, field in _COUNTERS.items()},
    **_ECC,
    **_OLD_ECC,
}  # fmt: skip
"""Headings and entry, joined and in lower case -> field."""
_MIG_FIELDS: Mapping[str, str] = {
    **{f"{kind}fb memory usage/{name}": f"memory.{name}"
       for kind in ("", "shared ") for name in ("total", "used", "free")},
    "ecc errors/volatile/sram uncorrectable": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
"""The same of a MIG device."""
_MIG = "mig device"
_KEPT = FIELDS.keys() | {"gpu uuid", "pci/bus id", "product name"}
_MIG_KEPT = _MIG_FIELDS.keys() | {"gpu instance id"}
"""What is kept of a block."""


class Text:
    """The captures of a file. A GPU's block begins with its bus id; indentation says what belongs under what."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._capture = Capture(smi)
        self._path: list[str] = []
        self._block: dict[str, str] = {}
        self._migs: list[dict[str, str]] = []
        self._processes: list[Process] | None = None
        self._line: Line | None = None

    def take(self, line: Line) -> bool:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        if _BANNER.fullmatch(line.text.strip()):
            self.end()
            return True
        if found := _GPU.fullmatch(line.text.rstrip()):
            self._close()
            self._line, self._block["pci/bus id"] = line, found[1]
            return True
        found = _ENTRY.fullmatch(line.text.rstrip()) if len(line.text) < LONGEST else None
        if found is None or len(found[1]) % INDENT:
            return False
        level, name, cell = len(found[1]) // INDENT, found[2].lower(), found[3]
        if level == 0:
            return self._head(name, cell)
        if self._line is None or level > len(self._path) + 1:
            return False
        self._entry(level, name, cell)
        return True

    def _head(self, name: str, cell: str | None) -> bool:
        """A line of the capture's own: when it was taken, and how many GPUs there are."""
        if cell is None:
            return False
        if name == "timestamp":
            self._close()
            if self._capture.cards:
                self._capture.end()
            self._capture.time = self.smi.readings.time(cell)
            return True
        if name == "attached gpus":
            self._capture.says(cell)
            return True
        return name in ("driver version", "cuda version", "hic info", "attached units")

    def _entry(self, level: int, name: str, cell: str | None) -> None:
        del self._path[level - 1 :]
        self._path.append(name)
        if self._path == [_MIG] and cell is None:
            if len(self._migs) < MOST_CARDS:
                self._migs.append({})
        elif self._path[0] == "processes":
            self._process(name, cell)
        elif cell is not None and self._path[0] == _MIG and self._migs:
            self._keep(self._migs[-1], "/".join(self._path[1:]), _MIG_KEPT, cell)
        elif cell is not None:
            self._keep(self._block, "/".join(self._path), _KEPT, cell)

    @staticmethod
    def _keep(block: dict[str, str], name: str, kept: Container[str], cell: str) -> None:
        if name in kept:
            block[name] = cell.strip()

    def _process(self, name: str, cell: str | None) -> None:
        if self._processes is None and (cell is None or cell.strip() == "None"):
            self._processes = []
        if self._processes is None or cell is None:
            return
        if name == "process id" and len(self._processes) < MOST_PROCESSES:
            self._processes.append(Process(cell.strip(), "", ""))
        elif self._processes and name == "type":
            self._processes[-1] = self._processes[-1]._replace(kind=cell.strip())
        elif self._processes and name == "used gpu memory":
            self._processes[-1] = self._processes[-1]._replace(memory=cell.strip())

    def _close(self) -> None:
        """The GPU's block is whole."""
        if self._line is None:
            return
        block = self._block
        gpu = gpu_of(
            uuid=block.get("gpu uuid", ""), pci=block.get("pci/bus id", ""), model=block.get("product name", "")
        )
        fields = {FIELDS[name]: cell for name, cell in block.items() if name in FIELDS}
        self._capture.add(Card(self._line, gpu, fields, self._processes))
        for mig in self._migs:
            named = {_MIG_FIELDS[name]: cell for name, cell in mig.items() if name in _MIG_FIELDS}
            instance = mig.get("gpu instance id", "")
            if instance.isdecimal():
                self._capture.add(Card(self._line, gpu._replace(mig=instance), named, None))
        self._line, self._block, self._migs, self._processes, self._path = None, {}, [], None, []

    def end(self) -> None:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        self._close()
        self._capture.end()


def _sniff(source: Source) -> Match | None:
    return sniffed(source, _MARK, Text, "what nvidia-smi -q prints")


def _read(source: Source, sink: Sink) -> Result:
    return read_lines(source, sink, Text, "no GPU in it")


_MARK = re.compile(rb"=NVSMI LOG=|^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$", re.MULTILINE)
FORMAT = Format("nvidia-smi-q", "GPU state in full (nvidia-smi -q)", "metric", _sniff, _read)
