"""The state of all GPUs at one time: a capture, of which the layouts of nvidia-smi that print one give a GPU each.

The full state (``nvidia-smi -q``) is printed as text or as XML: entries, known by their paths. Both layouts spell paths
almost alike, so one list serves for both: words are joined by ``_``, in lower case, and what only one layout says after
a name (``_util``, ``_clock``) or before it (the heading again) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from trackside.catalog.throttle import REASONS
from trackside.read.gpu_readings import Gpu, Line
from trackside.read.nvidia_smi import COUNT, Smi, gpu_of, value_of

PROCESSES = "gpu_processes"
IDLE_SHARE = 0.0025
"""Share of a GPU's memory below which no process can hold a context. With more in use and no process listed, the list
is hidden, as it is within a container, and says nothing."""
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
"""Path of an entry below its GPU, see :func:`plain_path` -> field of ``--query-gpu``."""
MIG_FIELDS: Mapping[str, str] = {
    "gpu_instance_id": "instance",
    **{f"{kind}fb_memory_usage/{name}": f"memory.{name}"
       for kind in ("", "shared_") for name in ("total", "used", "free")},
    "ecc_errors/volatile/sram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
    "ecc_error_count/volatile_count/sram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
}  # fmt: skip
"""The same of a MIG device, below it."""
_PROCESS_FIELDS = {
    "process_id": "pid",
    "pid": "pid",
    "type": "kind",
    "used_gpu_memory": "memory",
    "used_memory": "memory",
}


def plain_path(names: tuple[str, ...]) -> str:
    """A path as both layouts are told by: ``("Max Clocks", "SM")`` and ``("max_clocks", "sm_clock")`` are one."""
    *headings, name = (name.lower().replace(" ", "_").replace("-", "") for name in names)
    if headings:
        name = name.removeprefix(f"{headings[-1]}_").removeprefix(f"{headings[-1].removesuffix('s')}_")
    return "/".join((*headings, name.removesuffix("_util").removesuffix("_clock")))


@dataclass(slots=True)
class Process:
    """A process that nvidia-smi lists: its type (C, G, C+G, M), and its memory as printed."""

    pid: str = ""
    kind: str = ""
    memory: str = ""


class Card(NamedTuple):
    """What a capture says of one GPU: where, which, and its fields with their cells."""

    line: Line
    gpu: Gpu
    fields: dict[str, str]
    processes: list[Process] | None
    """Those listed; None where the capture has no list."""


MOST_CARDS = 4096
"""GPUs and instances that are kept of one capture: many times what any node has."""
MOST_PROCESSES = 16_384
"""Processes that are kept of one GPU."""


class Capture:
    """The GPUs of one capture (one run of nvidia-smi), kept until it ends: only then is known which they are."""

    def __init__(self, smi: Smi) -> None:
        self._smi = smi
        self.time: float | None = None
        self.said = 0
        """GPUs that the node has, where the capture says it."""
        self.cards: list[Card] = []

    def says(self, count: str) -> None:
        """Take how many GPUs there are, as printed; what is no such number says nothing."""
        count = count.strip()
        self.said = int(count) if len(count) < 6 and count.isdecimal() else 0

    @property
    def full(self) -> bool:
        """Whether it holds as many GPUs as are kept."""
        return len(self.cards) >= MOST_CARDS

    def add(self, card: Card) -> None:
        """Keep a GPU, if there is room."""
        if self.full:
            self._smi.note(f"a capture with more than {MOST_CARDS:,} GPUs: {{}} not kept")
        else:
            self.cards.append(card)

    def end(self, placed: bool = False) -> None:
        """Hand everything on. ``placed``: the layout prints indices. Otherwise GPUs are listed in the order of their
        indices, which holds only where all of them are there."""
        smi = self._smi
        whole = [card for card in self.cards if not card.gpu.mig]
        if not placed and self.said == len(whole):
            order = {card.gpu: str(place) for place, card in enumerate(whole)}
            self.cards = [self._numbered(card, order) for card in self.cards]
        time = self._time() if self.cards else None
        if time is not None and self.said:
            smi.add(time, smi.pairs(self.cards[0].line, Gpu(), [(COUNT, float(self.said), "")]))
        for card in self.cards:
            smi.learn(card.gpu)
            smi.rows += 1
            if time is not None:
                self._give(time, card._replace(gpu=smi.named(card.gpu)))
        self.cards, self.time, self.said = [], None, 0

    def _time(self) -> float | None:
        """When it was taken: as it says, as output before it says, or as the file's date does for a lone one."""
        smi = self._smi
        if self.time is None and smi.now is None:
            smi.now = smi.written
            if smi.written is not None:
                smi.note("it gives no time: taken as of when the file was last written", lost=False)
        elif self.time is None and smi.now == smi.written:
            smi.note("{} more captures give no time: not placed")
            return None
        return self.time if self.time is not None else smi.now

    def _numbered(self, card: Card, order: dict[Gpu, str]) -> Card:
        index = order.get(card.gpu._replace(mig=""), "")
        return card._replace(gpu=card.gpu._replace(number=index))

    def _give(self, time: float, card: Card) -> None:
        line, gpu, fields, processes = card
        pairs = self._smi.row(line, gpu, tuple(fields), tuple(fields.values()))
        if processes is not None and not gpu.mig and (processes or _empty(fields)):
            held = any("C" in process.kind for process in processes)
            pairs += self._smi.attachment(line, gpu, held)
            pairs += self._smi.pairs(line, gpu, [(PROCESSES, float(len(processes)), "")])
            for process in processes:
                pairs += self._smi.memory(line, gpu, process.pid, process.memory)
        self._smi.add(time, pairs)


def _empty(fields: dict[str, str]) -> bool:
    used, total = (value_of(fields.get(f"memory.{name}", "")) for name in ("used", "total"))
    return used is not None and total is not None and used.number <= IDLE_SHARE * total.number


class State:
    """The captures of a file: a GPU's entries, until its block is closed."""

    def __init__(self, smi: Smi) -> None:
        self.smi, self.capture = smi, Capture(smi)
        self.line: Line | None = None
        """Where the GPU's block begins; None between blocks."""
        self.migs: list[dict[str, str]] = []
        self.processes: list[Process] | None = None
        """Those listed so far; None before their heading."""
        self._fields: dict[str, str] = {}

    def begin(self, line: Line, pci: str) -> None:
        """A GPU's block begins."""
        self.discard()
        self.line, self._fields["pci.bus_id"] = line, pci

    def discard(self) -> None:
        """Let go of a block that isn't closed."""
        self.line, self.migs, self.processes, self._fields = None, [], None, {}

    def keep(self, names: tuple[str, ...], cell: str) -> None:
        """Keep a GPU's entry, if it is asked for."""
        if (field := FIELDS.get(plain_path(names))) is not None:
            self._fields[field] = cell.strip()

    def keep_of_mig(self, names: tuple[str, ...], cell: str) -> None:
        """Keep an entry of the MIG device that began last."""
        if self.migs and (field := MIG_FIELDS.get(plain_path(names))) is not None:
            self.migs[-1][field] = cell.strip()

    def begin_process(self) -> bool:
        """A process begins in the list; whether there is room for it."""
        if self.processes is not None and len(self.processes) < MOST_PROCESSES:
            self.processes.append(Process())
            return True
        return False

    def keep_of_process(self, name: str, cell: str) -> None:
        """Keep an entry of the process that began last."""
        if self.processes and (field := _PROCESS_FIELDS.get(plain_path((name,)))) is not None:
            setattr(self.processes[-1], field, cell.strip())

    def close(self) -> None:
        """The GPU's block is whole."""
        if self.line is None:
            return
        fields = self._fields
        gpu = gpu_of(uuid=fields.pop("uuid", ""), pci=fields.pop("pci.bus_id"), model=fields.pop("name", ""))
        self.capture.add(Card(self.line, gpu, fields, self.processes))
        for mig in self.migs:
            instance = mig.pop("instance", "")
            if instance.isdecimal():
                self.capture.add(Card(self.line, gpu._replace(mig=instance), mig, None))
        self.discard()
