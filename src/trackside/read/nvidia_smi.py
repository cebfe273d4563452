"""Code that the layouts of nvidia-smi share: field names, value formats, and recognizing its output among other text.

Each layout has its own module, which turns the output into rows: fields under their ``--query-gpu`` names, and cells as
printed. From there on all layouts are handled alike, by :meth:`SmiReadings.row`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple, Protocol

from trackside.catalog.dialect import translate
from trackside.catalog.labels import pci_address
from trackside.catalog.throttle import REASONS
from trackside.model import Event, EventRole, Position
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.gpu_readings import GpuIdentity, GpuReading, Readings, SeriesValues, TextLine, head_lines

_REASON = "clocks_event_reasons."
ACTIVE = f"{_REASON}active"
ATTACHED = "trackside_gpu_process_attached"
COUNT = "gpu_visible_gpus"
"""Number of GPUs of the node; belongs to no single GPU."""
PROCESS_MEMORY = "used_gpu_memory"
_PREFERENCE = {"power.limit": 1, "power.draw.average": 1, "power.draw.instant": 2, "clocks.current.graphics": 1}
"""Among fields that map to the same metric, the one with the lowest number that the GPU supports is used (default
0)."""
_SUMS = {
    f"ecc.errors.{kind}.{span}.total": tuple(f"ecc.errors.{kind}.{span}.{part}" for part in parts)
    for kind, parts in {
        "corrected": ("sram", "dram"),
        "uncorrected": ("sram", "sram.parity", "sram.secded", "dram"),
    }.items()
    for span in ("volatile", "aggregate")
}
"""Totals that newer layouts print only in parts. SRAM errors are one number, or parity and SEC-DED."""
_BOOLEANS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0}
_RECOVERY = {
    "none": 0.0,
    "reset": 1.0,
    "gpu reset": 1.0,
    "reboot": 2.0,
    "node reboot": 2.0,
    "drain p2p": 3.0,
    "drain and reset": 4.0,
}
_FABRIC = {"not supported": 0.0, "not started": 1.0, "in progress": 2.0, "completed": 3.0}
_CODES = {"gpu_recovery_action": _RECOVERY, "fabric.state": _FABRIC}
"""Fields with words instead of numbers: nvmlDeviceGpuRecoveryAction_t, nvmlGpuFabricState_t."""
_ERROR_MESSAGE = re.compile(
    r".{0,120}(?:Unable to determine the device handle for (?:GPU|gpu)|GPU is lost|No devices were found"
    r"|couldn't communicate with the NVIDIA driver|Failed to initialize NVML).*"
)
_LOST_GPU = re.compile(r"Unable to determine the device handle for (?:GPU|gpu)|GPU is lost")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")
_FIGURE = re.compile(r"([-+]?\d{1,30}(?:\.\d{1,20})?)\s{0,3}([A-Za-z%°µ/]{0,8})(?:\(s\))?")
_COUNTED = frozenset({"x", "bank"})
"""Suffixes of a number that are not units."""
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_PSTATE = re.compile(r"P(\d{1,2})")


class SmiValue(NamedTuple):
    """A parsed cell: its number and the unit as printed."""

    number: float
    unit: str = ""


@lru_cache(maxsize=1 << 15)
def value_of(cell: str) -> SmiValue | None:
    """The value of a cell; None if it has none (``[N/A]``, ``ERR!``, ``None`` ...)."""
    text = cell.strip()
    if match := _FIGURE.fullmatch(text):
        return SmiValue(float(match[1]), "" if match[2] in _COUNTED else match[2])
    if (word := _BOOLEANS.get(text.lower())) is not None:
        return SmiValue(word)
    if match := _PSTATE.fullmatch(text):
        return SmiValue(float(match[1]))
    return SmiValue(float(int(text, 16))) if _HEX.fullmatch(text) else None


# -- rows


class _Column(NamedTuple):
    """How a field is read from a row: the first of its cells that has a value, or ``combine`` of all its cells."""

    name: str
    indices: tuple[int, ...]
    combine: Callable[[list[str]], SmiValue | None] | None = None


@lru_cache(maxsize=256)
def _plan(fields: tuple[str, ...]) -> tuple[tuple[_Column, ...], int | None]:
    """The columns to read from rows with these fields, and the index of the GPU count, if any."""
    index_by_name = {name: index for index, name in reversed(list(enumerate(fields)))}
    names_by_metric: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for name in index_by_name:
        if name != COUNT and (translation := translate(name, {})) is not None:
            names_by_metric.setdefault((translation.metric, translation.labels), []).append(name)
    columns = []
    for names in names_by_metric.values():
        names.sort(key=lambda name: (_PREFERENCE.get(name, 0), index_by_name[name]))
        combine = partial(_code, _CODES[names[0]]) if names[0] in _CODES else None
        columns.append(_Column(names[0], tuple(index_by_name[name] for name in names), combine))
    bits = {
        index_by_name[f"{_REASON}{name}"]: reason.bit
        for name, reason in REASONS.items()
        if f"{_REASON}{name}" in index_by_name
    }
    if bits and ACTIVE not in index_by_name:
        columns.append(_Column(ACTIVE, tuple(bits), partial(_mask, tuple(bits.values()))))
    for total, parts in _SUMS.items():
        split_parts = (".sram.parity", ".sram.secded")
        has_sram_total = parts[0] in index_by_name
        indices = tuple(
            index_by_name[part]
            for part in parts
            if part in index_by_name and not (has_sram_total and part.endswith(split_parts))
        )
        if indices and total not in index_by_name:
            columns.append(_Column(total, indices, _sum))
    return tuple(columns), index_by_name.get(COUNT)


def used_fields(fields: tuple[str, ...]) -> frozenset[str]:
    """The fields that are read into metrics."""
    return frozenset(fields[index] for column in _plan(fields)[0] for index in column.indices)


def _readings(columns: Sequence[_Column], cells: Sequence[str], units: Sequence[str]) -> Iterator[GpuReading]:
    """Yield the readings of one row."""
    for name, indices, combine in columns:
        index = indices[0]
        value = value_of(cells[index]) if combine is None else combine([cells[index] for index in indices])
        if value is None and combine is None and len(indices) > 1:
            value = next((parsed for index in indices if (parsed := value_of(cells[index])) is not None), None)
        if value is not None:
            yield name, value[0], value[1] or (units[index] if units else "")


def _code(codes: Mapping[str, float], cells: list[str]) -> SmiValue | None:
    code = codes.get(cells[0].strip().lower())
    return None if code is None else SmiValue(code)


def _sum(cells: list[str]) -> SmiValue | None:
    numbers = [value.number for cell in cells if (value := value_of(cell)) is not None]
    return SmiValue(sum(numbers)) if numbers else None


def _mask(bits: Sequence[int], cells: list[str]) -> SmiValue | None:
    states = [(value, bit) for cell, bit in zip(cells, bits, strict=True) if (value := value_of(cell)) is not None]
    return SmiValue(float(sum(bit for value, bit in states if value.number))) if states else None


class SmiReadings(Readings):
    """Collects rows of any nvidia-smi layout into the readings of a file."""

    def __init__(self, source: InputSource, sink: Sink) -> None:
        super().__init__(source, sink)
        self.rows = 0
        self.foreign_lines = 0
        """Number of lines that are not from nvidia-smi."""
        self._lost_gpus: set[str] = set()

    def row(
        self, line: TextLine, gpu: GpuIdentity, fields: tuple[str, ...], cells: Sequence[str], units: Sequence[str] = ()
    ) -> SeriesValues:
        """The values of one row. ``units``: unit of each column, for cells printed without one."""
        columns, count_index = _plan(fields)
        pairs = self.pairs(line, gpu, _readings(columns, cells, units))
        if count_index is not None and (count := value_of(cells[count_index])) is not None:
            pairs += self.pairs(line, GpuIdentity(), [(COUNT, count.number, "")])
        return pairs

    def is_error_message(self, line: TextLine) -> bool:
        """Whether a line is an nvidia-smi error message: no driver, no GPU, or a lost GPU. Adds it to the notes."""
        text = line.text.strip()
        if len(text) > 500 or _ERROR_MESSAGE.fullmatch(text) is None:
            return False
        self.note(f"nvidia-smi says: {text[:120]}".replace("{", "").replace("}", ""), lost=False)
        if _LOST_GPU.search(text):
            bus = _BUS.search(text)
            self.lost_gpu(line, bus[0] if bus else "")
        return True

    def lost_gpu(self, line: TextLine, pci: str) -> None:
        """Emit an event, once per GPU, that a GPU can no longer be reached."""
        if pci in self._lost_gpus:
            return
        self._lost_gpus.add(pci)
        position = Position(self.path, line.number, line.offset, len(line.text))
        text = line.text.strip()[:300]
        fields = {"detail": text} | ({"pci": pci} if pci else {})
        event = Event("gpu_lost", position, "metric", text, self.now, role=EventRole.CONFIRMATION, parser="nvidia-smi")
        self.event(replace(event, fields=fields))

    def attachment(self, line: TextLine, gpu: GpuIdentity, is_attached: bool) -> SeriesValues:
        """The value of whether a process holds a compute context on a GPU."""
        return self.pairs(line, gpu._replace(mig=""), [(ATTACHED, float(is_attached), "")])

    def memory(self, line: TextLine, gpu: GpuIdentity, pid: str, cell: str) -> SeriesValues:
        """The value of the device memory of one process."""
        value = value_of(cell)
        if value is None or not pid.isdecimal():
            return []
        return self.pairs(line, gpu._replace(pid=pid), [(PROCESS_MEMORY, *value)])


def gpu_of(index: str = "", uuid: str = "", pci: str = "", model: str = "", mig: str = "") -> GpuIdentity:
    """The GPU that nvidia-smi prints; meaningless parts (``[N/A]``, a truncated name) are dropped."""
    return GpuIdentity(
        index if index.isdecimal() else "",
        uuid if uuid.startswith(("GPU-", "MIG-")) else "",
        pci_address(pci),
        "" if model.endswith("...") or not re.search(r"[A-Za-z]{2}", model) or "N/A" in model else model,
        mig if mig.isdecimal() else "",
    )


# -- layouts


class SmiSection(Protocol):
    """Reads one layout line by line. ``take`` returns whether the line belongs to the layout; never called for blank
    lines."""

    smi: SmiReadings

    def take(self, line: TextLine) -> bool: ...
    def end(self) -> None: ...


_SEPARATOR = re.compile(
    r"[A-Z][a-z]{2},? [\w ,:]{8,40} 20\d\d(?: [\d:]{8}.{0,12})?|20\d\d-\d\d-\d\d[T ][\d:.,]{8,16}.{0,12}"  # date
    r"|(?=\S*\d)[a-z][\w.-]{1,62}"  # hostname
    r"|\S{0,80}?[$#>%+]\s*(?:(?:/\S*/)?nvidia-smi|date|hostname|sleep)\b.{0,400}"  # set -x, or a shell's prompt
    r"|[-=*_#~+ ]{3,200}"
)
FOREIGN_SHARE = 0.02
"""Largest share of foreign lines. A file with more is not the tool's output but contains it, such as a job's log."""
MAX_FOREIGN_LINES = 100
"""Detection stops after this many foreign lines in the head."""


def is_separator(text: str) -> bool:
    """Whether a line is what scripts print between commands (dates, host names, prompts, rules)."""
    return len(text) < 500 and _SEPARATOR.fullmatch(text.strip()) is not None


def sniff_layout(
    source: InputSource, mark: bytes | re.Pattern[bytes], make: Callable[[SmiReadings], SmiSection], reason: str
) -> Match | None:
    """The match if the head of a file is all of one layout: reads the head and counts the lines that don't belong."""
    if (mark not in source.head) if isinstance(mark, bytes) else (mark.search(source.head) is None):
        return None
    section = make(SmiReadings.for_sniffing(source))
    own_lines = foreign_lines = 0
    for line in head_lines(source):
        if section.take(line) or section.smi.is_error_message(line):
            own_lines += 1
        elif not is_separator(line.text):
            foreign_lines += 1
            if foreign_lines > MAX_FOREIGN_LINES:
                return None
    section.end()
    if not own_lines or foreign_lines > FOREIGN_SHARE * (own_lines + foreign_lines):
        return None
    return Match(0.9 if section.smi.rows else 0.6, reason)


def read_lines(source: InputSource, section: SmiSection, empty: str) -> Result:
    """Read a file that is all of one layout. ``empty``: the note for an intact file without readings."""
    smi = section.smi
    for number, offset, text in source.lines():
        line = TextLine(number, offset, text)
        if text.strip() and not section.take(line) and not smi.is_error_message(line):
            smi.foreign_lines += not is_separator(text)
    section.end()
    if smi.foreign_lines:
        smi.note("{} lines are not from nvidia-smi", smi.foreign_lines)
    return smi.result(empty)


def layout(
    id_: str,
    title: str,
    mark: bytes | re.Pattern[bytes],
    make: Callable[[SmiReadings], SmiSection],
    reason: str,
    empty: str,
) -> Format:
    """The format of files that are all of one layout. ``mark``: text that every such file contains."""
    return Format(
        id_,
        title,
        "metric",
        lambda source: sniff_layout(source, mark, make, reason),
        lambda source, sink: read_lines(source, make(SmiReadings(source, sink)), empty),
    )
