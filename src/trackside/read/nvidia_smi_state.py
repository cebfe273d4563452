"""Captures: the state of all GPUs at one time, built GPU by GPU by the layouts that print full states.

The full state (``nvidia-smi -q``) is printed as text or as XML: entries with paths. Both layouts spell paths almost
alike, so one table serves both: words are joined by ``_`` in lower case; suffixes (``_util``, ``_clock``) and prefixes
(the heading repeated) that only one layout has are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trackside.catalog.throttle import REASONS
from trackside.read.gpu_readings import GpuIdentity, TextLine
from trackside.read.nvidia_smi import COUNT, SmiReadings, gpu_of, value_of

PROCESSES = "gpu_processes"
IDLE_SHARE = 0.0025
"""Share of a GPU's memory below which no process can hold a context. If more is in use and no process is listed, the
list is hidden, as in a container."""
_REASONS = {
    **{name: name for name, reason in REASONS.items() if reason.bit},
    "idle": "gpu_idle",
    "display_clocks_setting": "display_clock_setting",
    "hw_slowdown/hw_thermal_slowdown": "hw_thermal_slowdown",
    "hw_slowdown/hw_power_brake_slowdown": "hw_power_brake_slowdown",
}
_COUNTERS = {
    "sw_power_cap": ("sw_power_cap", "sw_power_capping"),
    "sync_boost": ("sync_boost",),
    "sw_thermal_slowdown": ("sw_therm_slowdown", "sw_thermal_slowdown"),
    "hw_thermal_slowdown": ("hw_therm_slowdown", "hw_thermal_slowdown"),
    "hw_power_brake_slowdown": ("hw_power_brake", "hw_power_braking"),
}
_POWER = {
    "power_draw": "power.draw",
    "average_power_draw": "power.draw.average",
    "instant_power_draw": "power.draw.instant",
    "instantaneous_power_draw": "power.draw.instant",
    "power_limit": "power.limit",
    "current_power_limit": "enforced.power.limit",
    "enforced_power_limit": "enforced.power.limit",
    "default_power_limit": "power.default_limit",
    "min_power_limit": "power.min_limit",
    "max_power_limit": "power.max_limit",
}
FIELDS: Mapping[str, str] = {
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "pci/bus_id": "pci.bus_id",
    "product_name": "name",
    "performance_state": "pstate",
    **{f"utilization/{part}": f"utilization.{part}" for part in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa")},
    "fan_speed": "fan.speed",
    **{f"bar1_memory_usage/{part}": f"bar1.{part}" for part in ("total", "used", "free")},
    **{f"fb_memory_usage/{part}": f"memory.{part}" for part in ("total", "reserved", "used", "free")},
    "temperature/gpu": "temperature.gpu",
    "temperature/gpu_temp": "temperature.gpu",
    "temperature/gpu_current_temp": "temperature.gpu",
    "temperature/gpu_temp_tlimit": "temperature.gpu.tlimit",
    "temperature/gpu_t.limit_temp": "temperature.gpu.tlimit",
    "temperature/memory_temp": "temperature.memory",
    "temperature/memory_current_temp": "temperature.memory",
    **{f"{readings}/{entry}": field for readings in ("power_readings", "gpu_power_readings")
       for entry, field in _POWER.items()},
    "clocks/sm": "clocks.current.sm",
    "clocks/graphics": "clocks.current.graphics",
    "clocks/mem": "clocks.current.memory",
    "clocks/memory": "clocks.current.memory",
    "clocks/video": "clocks.current.video",
    "applications_clocks/graphics": "clocks.applications.graphics",
    "max_clocks/sm": "clocks.max.sm",
    "max_clocks/mem": "clocks.max.memory",
    "max_clocks/memory": "clocks.max.memory",
    "pci/replay_counter": "pci.replay_counter",
    "pci/replays_since_reset": "pci.replay_counter",
    **{f"pci/{way}{end}": f"pci.{way}_util" for way in ("tx", "rx") for end in ("", "_throughput")},
    **{f"pci/{heading}/{which}{end}": f"pcie.link.{short}.{which}" for which in ("current", "max")
       for heading, end, short in (
           ("pci_gpu_link_info/pcie_gen", "_link_gen", "gen"),
           ("pci_gpu_link_info/link_widths", "_link_width", "width"),
           ("gpu_link_info/pcie_generation", "", "gen"), ("gpu_link_info/link_width", "", "width"))},
    **{f"ecc_errors/{span}/{memory}_{kind}able{end}": f"ecc.errors.{kind}ed.{span}.{memory}{part}"
       for span in ("volatile", "aggregate") for memory in ("sram", "dram") for kind in ("correct", "uncorrect")
       for end, part in (("", ""), ("_parity", ".parity"), ("_secded", ".secded"))},
    **{f"ecc_errors/{span}/{bits}_bit/total": f"ecc.errors.{kind}.{span}.total"
       for span in ("volatile", "aggregate") for bits, kind in (("single", "corrected"), ("double", "uncorrected"))},
    "ecc_errors/aggregate/sram_threshold_exceeded": "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "retired_pages/single_bit_ecc": "retired_pages.single_bit_ecc.count",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages.single_bit_ecc.count",
    "retired_pages/double_bit_ecc": "retired_pages.double_bit.count",
    "retired_pages/double_bit_retirement/retired_count": "retired_pages.double_bit.count",
    **{f"retired_pages/{entry}": "retired_pages.pending"
       for entry in ("pending", "pending_page_blacklist", "pending_retirement")},
    **{f"remapped_rows/{entry}": f"remapped_rows.{field}" for field, entries in {
        "correctable": ("correctable_error", "corr"),
        "uncorrectable": ("uncorrectable_error", "unc"),
        "pending": ("pending",),
        "failure": ("remapping_failure_occurred", "failure"),
    }.items() for entry in entries},
    **{f"remapped_rows/{heading}/{level}": f"remapped_rows.histogram.{level}"
       for level in ("max", "high", "partial", "low", "none")
       for heading in ("bank_remap_availability_histogram", "row_remapper_histogram")},
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric/state": "fabric.state",
    **{f"clocks_{word}_reasons/{entry}": f"clocks_event_reasons.{field}"
       for word in ("throttle", "event") for entry, field in _REASONS.items()},
    **{f"clocks_event_reasons_counters/{entry}": f"clocks_event_reasons_counters.{field}"
       for field, entries in _COUNTERS.items() for entry in entries},
}  # fmt: skip
"""Path of an entry below its GPU (see :func:`plain_path`) -> field of ``--query-gpu``."""
MIG_FIELDS: Mapping[str, str] = {
    "gpu_instance_id": "instance",
    **{f"{kind}fb_memory_usage/{name}": f"memory.{name}"
       for kind in ("", "shared_") for name in ("total", "used", "free")},
    "ecc_errors/volatile/sram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
    "ecc_error_count/volatile_count/sram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
"""Path -> field, for entries below a MIG device."""
_PROCESS_FIELDS = {
    "process_id": "pid",
    "pid": "pid",
    "type": "kind",
    "used_gpu_memory": "memory",
    "used_memory": "memory",
}


def plain_path(names: tuple[str, ...]) -> str:
    """A path in the form common to both layouts: ``("Max Clocks", "SM")`` and ``("max_clocks", "sm_clock")`` are
    equal."""
    *headings, name = (name.lower().replace(" ", "_").replace("-", "") for name in names)
    if headings:
        name = name.removeprefix(f"{headings[-1]}_").removeprefix(f"{headings[-1].removesuffix('s')}_")
    return "/".join((*headings, name.removesuffix("_util").removesuffix("_clock")))


@dataclass(slots=True)
class Process:
    """A process in nvidia-smi's list: type (C, G, C+G, M), and memory as printed."""

    pid: str = ""
    kind: str = ""
    memory: str = ""


class GpuState(NamedTuple):
    """One GPU of a capture: the line, the GPU, and its fields with their cells."""

    line: TextLine
    gpu: GpuIdentity
    fields: dict[str, str]
    processes: list[Process] | None
    """Listed processes; None if the capture has no list."""


MAX_GPUS_PER_CAPTURE = 4096
"""Maximum number of GPUs and instances of one capture: many times what any node has."""
MAX_PROCESSES = 16_384
"""Maximum number of processes of one GPU."""


class Capture:
    """The GPUs of one capture (one run of nvidia-smi), buffered until it ends because their indices are known only
    then."""

    def __init__(self, smi: SmiReadings) -> None:
        self._smi = smi
        self.time: float | None = None
        self.gpu_count = 0
        """Number of GPUs of the node as printed; 0 if unknown."""
        self.gpus: list[GpuState] = []

    def set_gpu_count(self, count: str) -> None:
        """Set the number of GPUs from its printed form; anything but a number means unknown."""
        count = count.strip()
        self.gpu_count = int(count) if len(count) < 6 and count.isdecimal() else 0

    @property
    def full(self) -> bool:
        """Whether it holds the maximum number of GPUs."""
        return len(self.gpus) >= MAX_GPUS_PER_CAPTURE

    def add(self, gpu_state: GpuState) -> None:
        """Add a GPU, unless the capture is full."""
        if self.full:
            self._smi.note(f"a capture with more than {MAX_GPUS_PER_CAPTURE:,} GPUs: {{}} dropped")
        else:
            self.gpus.append(gpu_state)

    def end(self, has_indices: bool = False) -> None:
        """Hand on all GPUs. ``has_indices``: the layout prints indices. Otherwise the position in the list is the
        index, provided that all GPUs of the node are listed."""
        smi = self._smi
        full_gpus = [gpu_state for gpu_state in self.gpus if not gpu_state.gpu.mig]
        if not has_indices and self.gpu_count == len(full_gpus):
            index_by_gpu = {gpu_state.gpu: str(index) for index, gpu_state in enumerate(full_gpus)}
            self.gpus = [self._with_index(gpu_state, index_by_gpu) for gpu_state in self.gpus]
        time = self._time() if self.gpus else None
        if time is not None and self.gpu_count:
            smi.add(time, smi.pairs(self.gpus[0].line, GpuIdentity(), [(COUNT, float(self.gpu_count), "")]))
        for gpu_state in self.gpus:
            smi.learn(gpu_state.gpu)
            smi.rows += 1
            if time is not None:
                self._add_state(time, gpu_state._replace(gpu=smi.with_index(gpu_state.gpu)))
        self.gpus, self.time, self.gpu_count = [], None, 0

    def _time(self) -> float | None:
        """When the capture was taken: its own time, else the last time before it, else the file's mtime for a single
        capture."""
        smi = self._smi
        if self.time is None and smi.now is None:
            smi.now = smi.modified
            if smi.modified is not None:
                smi.note("no time: assumed to be when the file was last written", lost=False)
        elif self.time is None and smi.now == smi.modified:
            smi.note("{} more captures without a time: skipped")
            return None
        return self.time if self.time is not None else smi.now

    def _with_index(self, gpu_state: GpuState, index_by_gpu: dict[GpuIdentity, str]) -> GpuState:
        index = index_by_gpu.get(gpu_state.gpu._replace(mig=""), "")
        return gpu_state._replace(gpu=gpu_state.gpu._replace(number=index))

    def _add_state(self, time: float, gpu_state: GpuState) -> None:
        line, gpu, fields, processes = gpu_state
        pairs = self._smi.row(line, gpu, tuple(fields), tuple(fields.values()))
        if processes is not None and not gpu.mig and (processes or _is_idle(fields)):
            is_attached = any("C" in process.kind for process in processes)
            pairs += self._smi.attachment(line, gpu, is_attached)
            pairs += self._smi.pairs(line, gpu, [(PROCESSES, float(len(processes)), "")])
            for process in processes:
                pairs += self._smi.memory(line, gpu, process.pid, process.memory)
        self._smi.add(time, pairs)


def _is_idle(fields: dict[str, str]) -> bool:
    used, total = (value_of(fields.get(f"memory.{name}", "")) for name in ("used", "total"))
    return used is not None and total is not None and used.number <= IDLE_SHARE * total.number


class CaptureBuilder:
    """Builds the captures of a file: collects a GPU's entries until its block ends."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi, self.capture = smi, Capture(smi)
        self.line: TextLine | None = None
        """First line of the GPU's block; None between blocks."""
        self.migs: list[dict[str, str]] = []
        self.processes: list[Process] | None = None
        """Processes listed so far; None before their heading."""
        self._fields: dict[str, str] = {}

    def begin(self, line: TextLine, pci: str) -> None:
        """Begin a GPU's block."""
        self.discard()
        self.line, self._fields["pci.bus_id"] = line, pci

    def discard(self) -> None:
        """Drop an unfinished block."""
        self.line, self.migs, self.processes, self._fields = None, [], None, {}

    def set_field(self, names: tuple[str, ...], cell: str) -> None:
        """Store a GPU's entry if it is a known field."""
        if (field := FIELDS.get(plain_path(names))) is not None:
            self._fields[field] = cell.strip()

    def set_mig_field(self, names: tuple[str, ...], cell: str) -> None:
        """Store an entry of the last MIG device."""
        if self.migs and (field := MIG_FIELDS.get(plain_path(names))) is not None:
            self.migs[-1][field] = cell.strip()

    def begin_process(self) -> bool:
        """Begin a process in the list; False if there are too many."""
        if self.processes is not None and len(self.processes) < MAX_PROCESSES:
            self.processes.append(Process())
            return True
        return False

    def set_process_field(self, name: str, cell: str) -> None:
        """Store an entry of the last process."""
        if self.processes and (field := _PROCESS_FIELDS.get(plain_path((name,)))) is not None:
            setattr(self.processes[-1], field, cell.strip())

    def close(self) -> None:
        """Finish the GPU's block."""
        if self.line is None:
            return
        fields = self._fields
        gpu = gpu_of(uuid=fields.pop("uuid", ""), pci=fields.pop("pci.bus_id"), model=fields.pop("name", ""))
        self.capture.add(GpuState(self.line, gpu, fields, self.processes))
        for mig in self.migs:
            instance = mig.pop("instance", "")
            if instance.isdecimal():
                self.capture.add(GpuState(self.line, gpu._replace(mig=instance), mig, None))
        self.discard()
