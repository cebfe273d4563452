"""``nvidia-smi -q -x``: XML of any schema (v11 to v13), one document or many behind each other, whole or cut off.

Documents are parsed as they come, and what isn't asked for is not kept. A document that declares entities is refused:
nvidia-smi declares none, and an entity is what an expansion attack is made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.parsers import expat

from trackside.catalog.throttle import REASONS
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

_BEGIN = re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE nvidia_smi_log\b|<nvidia_smi_log\b)")
_ROOT = "nvidia_smi_log"
_END = f"</{_ROOT}>"
MOST_TEXT = 4096
"""Characters of one element that are kept."""
DEPTH = 64

_OLD_ECC = {
    f"ecc_errors/{span}/{bits}_bit/total": f"ecc.errors.{kind}.{span}.total"
    for span in ("volatile", "aggregate")
    for bits, kind in (("single", "corrected"), ("double", "uncorrected"))
}
_ECC = {
    f"ecc_errors/{span}/{memory}_{kind}able{extra}": f"ecc.errors.{kind}ed.{span}.{memory}{part}"
    for span in ("volatile", "aggregate")
    for memory in ("sram", "dram")
    for kind in ("correct", "uncorrect")
    for extra, part in (("", ""), ("_parity", ".parity"), ("_secded", ".secded"))
}
_POWER = {
    "power_draw": "power.draw",
    "average_power_draw": "power.draw.average",
    "instant_power_draw": "power.draw.instant",
    "power_limit": "power.limit",
    "current_power_limit": "enforced.power.limit",
    "enforced_power_limit": "enforced.power.limit",
    "default_power_limit": "power.default_limit",
    "min_power_limit": "power.min_limit",
    "max_power_limit": "power.max_limit",
}
_COUNTERS = {
    "sw_power_cap": "sw_power_cap",
    "sync_boost": "sync_boost",
    "sw_therm_slowdown": "sw_thermal_slowdown",
    "hw_therm_slowdown": "hw_thermal_slowdown",
    "hw_power_brake": "hw_power_brake_slowdown",
}
_REASON_TAGS = {name: name for name, reason in REASONS.items() if reason.bit} | {
    "display_clocks_setting": "display_clock_setting"
}
FIELDS: Mapping[str, str] = {
    "performance_state": "pstate",
    "utilization/gpu_util": "utilization.gpu",
    "utilization/memory_util": "utilization.memory",
    "utilization/encoder_util": "utilization.encoder",
    "utilization/decoder_util": "utilization.decoder",
    "utilization/jpeg_util": "utilization.jpeg",
    "utilization/ofa_util": "utilization.ofa",
    "fan_speed": "fan.speed",
    "bar1_memory_usage/total": "bar1.total",
    "bar1_memory_usage/used": "bar1.used",
    "bar1_memory_usage/free": "bar1.free",
    "fb_memory_usage/total": "memory.total",
    "fb_memory_usage/reserved": "memory.reserved",
    "fb_memory_usage/used": "memory.used",
    "fb_memory_usage/free": "memory.free",
    "temperature/gpu_temp": "temperature.gpu",
    "temperature/gpu_temp_tlimit": "temperature.gpu.tlimit",
    "temperature/memory_temp": "temperature.memory",
    "clocks/sm_clock": "clocks.current.sm",
    "clocks/graphics_clock": "clocks.current.graphics",
    "clocks/mem_clock": "clocks.current.memory",
    "clocks/video_clock": "clocks.current.video",
    "applications_clocks/graphics_clock": "clocks.applications.graphics",
    "max_clocks/sm_clock": "clocks.max.sm",
    "max_clocks/mem_clock": "clocks.max.memory",
    "pci/replay_counter": "pci.replay_counter",
    "pci/tx_util": "pci.tx_util",
    "pci/rx_util": "pci.rx_util",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": "pcie.link.gen.current",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": "pcie.link.gen.max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": "pcie.link.width.current",
    "pci/pci_gpu_link_info/link_widths/max_link_width": "pcie.link.width.max",
    "ecc_errors/aggregate/sram_threshold_exceeded": "ecc.errors.uncorrected.aggregate.sram.thresholdExceeded",
    "retired_pages/multiple_single_bit_retirement/retired_count": "retired_pages.single_bit_ecc.count",
    "retired_pages/double_bit_retirement/retired_count": "retired_pages.double_bit.count",
    "retired_pages/pending_retirement": "retired_pages.pending",
    "remapped_rows/remapped_row_corr": "remapped_rows.correctable",
    "remapped_rows/remapped_row_unc": "remapped_rows.uncorrectable",
    "remapped_rows/remapped_row_pending": "remapped_rows.pending",
    "remapped_rows/remapped_row_failure": "remapped_rows.failure",
    **{f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{level}": f"remapped_rows.histogram.{level}"
       for level in ("max", "high", "partial", "low", "none")},
    "gpu_recovery_action": "gpu_recovery_action",
    "fabric/state": "fabric.state",
    **{f"{readings}/{tag}": field for readings in ("power_readings", "gpu_power_readings")
       for tag, field in _POWER.items()},
    **{f"clocks_{word}_reasons/clocks_{word}_reason_{tag}": f"clocks_event_reasons.{field}"
       for word in ("throttle", "event") for tag, field in _REASON_TAGS.items()},
    **{f"clocks_event_reasons_counters/clocks_event_reasons_counters_{tag}": f"clocks_event_reasons_counters.{field}"
       for tag, field in _COUNTERS.items()},
    **_ECC,
    **_OLD_ECC,
}  # fmt: skip
"""Path below <gpu> -> field."""
_IDENTITY = frozenset({"uuid", "product_name", "pci/pci_bus_id"})
_PROCESS = "processes/process_info/"
_MIG = "mig_devices/mig_device"
_MIG_FIELDS: Mapping[str, str] = {
    "fb_memory_usage/total": "memory.total",
    "fb_memory_usage/used": "memory.used",
    "fb_memory_usage/free": "memory.free",
    "ecc_error_count/volatile_count/sram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
}
_SKIPPED = frozenset({"supported_clocks", "accounted_processes", "vgpus"})


class _Refused(ValueError):
    """A document that is not read on purpose."""


class Xml:
    """The documents of a file."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._capture = Capture(smi)
        self._parser: expat.XMLParserType | None = None
        self._ruined = False
        """Whether lines are the rest of a document that was given up."""
        self._line = Line(0, 0, "")
        self._reset()

    def _reset(self) -> None:
        self._path: list[str] = []
        self._text = ""
        self._skipping = 0
        self._begin: Line | None = None
        self._gpu: dict[str, str] = {}
        self._migs: list[dict[str, str]] = []
        self._processes: list[Process] | None = None
        self._done = False

    def take(self, line: Line) -> bool:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        self._line = line
        begins = _BEGIN.match(line.text) is not None
        first = begins and not line.text.lstrip().startswith(f"<{_ROOT}")  # what no document has in its midst
        if (first and self._path) or (begins and self._parser is None and (first or not self._ruined)):
            self._cut_off()
            self._start()
            self._ruined = False
        if self._parser is None:
            ruined, self._ruined = self._ruined, self._ruined and _END not in line.text
            return ruined
        try:
            self._parser.Parse(line.text.encode("utf-8", "replace") + b"\n")
        except expat.ExpatError:
            self._give_up("{} documents are cut off or garbled: their whole GPUs were read")
        except _Refused as refused:
            self._give_up(f"{{}} documents were refused: {refused}")
        if self._done:
            self._parser = None
            self._capture.end()
            self._reset()
        return True

    def _start(self) -> None:
        self._reset()
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._open
        parser.EndElementHandler = self._close
        parser.CharacterDataHandler = self._characters

    def _refuse(self, *_: object) -> None:
        raise _Refused("entities are declared in them")

    def _give_up(self, note: str) -> None:
        self.smi.readings.note(note)
        self._parser, self._ruined = None, _END not in self._line.text
        self._capture.end()
        self._reset()

    def _cut_off(self) -> None:
        if self._parser is not None:
            self._give_up("{} documents are cut off or garbled: their whole GPUs were read")

    # -- elements

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= DEPTH:
            raise _Refused("they are nested too deeply")
        self._path.append(tag)
        self._text = ""
        if not self._skipping and tag in _SKIPPED:
            self._skipping = len(self._path)
        if self._path == [_ROOT, "gpu"]:
            if self._capture.full:
                raise _Refused(f"they list more than {MOST_CARDS:,} GPUs")
            self._begin, self._gpu = self._line, {"pci/pci_bus_id": attributes.get("id", "")}
            self._migs, self._processes = [], None
        elif self._within() == _MIG:
            if len(self._migs) >= MOST_CARDS:
                raise _Refused(f"they list more than {MOST_CARDS:,} instances of a GPU")
            self._migs.append({})
        elif self._within() == "processes":
            self._processes = []
        elif self._within() == "processes/process_info" and self._processes is not None:
            if len(self._processes) >= MOST_PROCESSES:
                raise _Refused(f"they list more than {MOST_PROCESSES:,} processes on a GPU")
            self._processes.append(Process("", "", ""))

    def _characters(self, text: str) -> None:
        if not self._skipping and len(self._text) < MOST_TEXT:
            self._text += text[:MOST_TEXT]

    def _close(self, tag: str) -> None:
        if not self._skipping:
            self._leaf(self._text.strip())
        self._text = ""
        if len(self._path) == self._skipping:
            self._skipping = 0
        self._path.pop()
        self._done = not self._path

    def _within(self) -> str:
        """The path below <gpu>; empty outside of one."""
        return "/".join(self._path[2:]) if self._path[:2] == [_ROOT, "gpu"] else ""

    def _leaf(self, text: str) -> None:
        path = self._within()
        if self._path == [_ROOT, "timestamp"]:
            self._capture.time = self.smi.readings.time(text)
        elif self._path == [_ROOT, "attached_gpus"]:
            self._capture.says(text)
        elif self._path == [_ROOT, "gpu"]:
            self._whole()
        elif path in FIELDS or path in _IDENTITY:
            self._gpu[path] = text
        elif path.startswith(_PROCESS) and self._processes:
            self._process(path.removeprefix(_PROCESS), text)
        elif path.startswith(_MIG + "/") and self._migs:
            name = path.removeprefix(_MIG + "/")
            if name in _MIG_FIELDS or name == "gpu_instance_id":
                self._migs[-1][name] = text

    def _process(self, tag: str, text: str) -> None:
        if self._processes and (name := {"pid": "pid", "type": "kind", "used_memory": "memory"}.get(tag)):
            self._processes[-1] = self._processes[-1]._replace(**{name: text})

    def _whole(self) -> None:
        """A GPU's element is closed."""
        found, line = self._gpu, self._begin or self._line
        gpu = gpu_of(uuid=found.get("uuid", ""), pci=found["pci/pci_bus_id"], model=found.get("product_name", ""))
        fields = {FIELDS[path]: text for path, text in found.items() if path in FIELDS}
        self._capture.add(Card(line, gpu, fields, self._processes))
        for mig in self._migs:
            instance = mig.get("gpu_instance_id", "")
            named = {_MIG_FIELDS[path]: text for path, text in mig.items() if path in _MIG_FIELDS}
            if instance.isdecimal():
                self._capture.add(Card(line, gpu._replace(mig=instance), named, None))

    def end(self) -> None:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        self._cut_off()


def _sniff(source: Source) -> Match | None:
    return sniffed(source, b"<nvidia_smi_log", Xml, "what nvidia-smi -q -x prints")


def _read(source: Source, sink: Sink) -> Result:
    return read_lines(source, sink, Xml, "no GPU in it")


FORMAT = Format("nvidia-smi-xml", "GPU state in full, as XML (nvidia-smi -q -x)", "metric", _sniff, _read)
