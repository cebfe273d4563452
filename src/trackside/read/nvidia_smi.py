"""What nvidia-smi's layouts share: the names of its fields, how it writes values, and how its output is told from text.

Each layout has a file of its own that turns what it prints into rows: fields by the names that ``--query-gpu`` knows
them by, and their cells as printed. From there on all are the same: :meth:`Smi.row`.
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
from trackside.model import Event, Position, Role
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.gpu_readings import Gpu, Line, Pairs, Reading, Readings, head_lines

_REASON = "clocks_event_reasons."
ACTIVE = f"{_REASON}active"
ATTACHED = "trackside_gpu_process_attached"
COUNT = "gpu_visible_gpus"
"""How many GPUs the node has: of no GPU in particular."""
PROCESS_MEMORY = "used_gpu_memory"
_PREFERENCE = {"power.limit": 1, "power.draw.average": 1, "power.draw.instant": 2, "clocks.current.graphics": 1}
"""Of fields that say the same, the one with the least number that a GPU gives holds."""
_SUMS = {
    f"ecc.errors.{kind}.{span}.total": tuple(f"ecc.errors.{kind}.{span}.{part}" for part in parts)
    for kind, parts in {
        "corrected": ("sram", "dram"),
        "uncorrected": ("sram", "sram.parity", "sram.secded", "dram"),
    }.items()
    for span in ("volatile", "aggregate")
}
"""Totals that newer layouts print only in parts. SRAM is either one number or parity and SEC-DED."""
_WORDS = {"active": 1.0, "not active": 0.0, "yes": 1.0, "no": 0.0}
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
"""Fields whose words stand for numbers: nvmlDeviceGpuRecoveryAction_t, nvmlGpuFabricState_t."""
_COMPLAINT = re.compile(
    r".{0,120}(?:Unable to determine the device handle for (?:GPU|gpu)|GPU is lost|No devices were found"
    r"|couldn't communicate with the NVIDIA driver|Failed to initialize NVML).*"
)
_LOST = re.compile(r"Unable to determine the device handle for (?:GPU|gpu)|GPU is lost")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")
_FIGURE = re.compile(r"([-+]?\d{1,30}(?:\.\d{1,20})?)\s{0,3}([A-Za-z%°µ/]{0,8})(?:\(s\))?")
_COUNTED = frozenset({"x", "bank"})
"""What stands behind a number without being a unit."""
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_PSTATE = re.compile(r"P(\d{1,2})")


class Value(NamedTuple):
    """A cell read: its number and the unit as written."""

    number: float
    unit: str = ""


@lru_cache(maxsize=1 << 15)
def value_of(cell: str) -> Value | None:
    """The number that a cell holds; None for one that says there is none (``[N/A]``, ``ERR!``, ``None`` ...)."""
    text = cell.strip()
    if found := _FIGURE.fullmatch(text):
        return Value(float(found[1]), "" if found[2] in _COUNTED else found[2])
    if (word := _WORDS.get(text.lower())) is not None:
        return Value(word)
    if found := _PSTATE.fullmatch(text):
        return Value(float(found[1]))
    return Value(float(int(text, 16))) if _HEX.fullmatch(text) else None


# -- rows


class _Column(NamedTuple):
    """How one field of ours comes out of a row: of the first of the cells that holds a value, or of all as ``made``."""

    name: str
    places: tuple[int, ...]
    made: Callable[[list[str]], Value | None] | None = None


@lru_cache(maxsize=256)
def _plan(fields: tuple[str, ...]) -> tuple[tuple[_Column, ...], int | None]:
    """The columns of ours that a row of these fields gives of its GPU, and where the count of all GPUs stands."""
    at = {name: place for place, name in reversed(list(enumerate(fields)))}
    same: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = {}
    for name in at:
        if name != COUNT and (known := translate(name, {})) is not None:
            same.setdefault((known.metric, known.labels), []).append(name)
    columns = []
    for names in same.values():
        names.sort(key=lambda name: (_PREFERENCE.get(name, 0), at[name]))
        made = partial(_code, _CODES[names[0]]) if names[0] in _CODES else None
        columns.append(_Column(names[0], tuple(at[name] for name in names), made))
    bits = {at[f"{_REASON}{name}"]: reason.bit for name, reason in REASONS.items() if f"{_REASON}{name}" in at}
    if bits and ACTIVE not in at:
        columns.append(_Column(ACTIVE, tuple(bits), partial(_mask, tuple(bits.values()))))
    for total, parts in _SUMS.items():
        split = (".sram.parity", ".sram.secded")
        whole = parts[0] in at
        places = tuple(at[part] for part in parts if part in at and not (whole and part.endswith(split)))
        if places and total not in at:
            columns.append(_Column(total, places, _sum))
    return tuple(columns), at.get(COUNT)


def asked(fields: tuple[str, ...]) -> frozenset[str]:
    """Those of a row's fields that something of ours is made of."""
    return frozenset(fields[place] for column in _plan(fields)[0] for place in column.places)


def _readings(columns: Sequence[_Column], cells: Sequence[str], units: Sequence[str]) -> Iterator[Reading]:
    """The fields of one GPU that a row gives."""
    for name, places, made in columns:
        at = places[0]
        value = value_of(cells[at]) if made is None else made([cells[place] for place in places])
        if value is None and made is None and len(places) > 1:
            value = next((found for place in places if (found := value_of(cells[place])) is not None), None)
        if value is not None:
            yield name, value[0], value[1] or (units[at] if units else "")


def _code(codes: Mapping[str, float], cells: list[str]) -> Value | None:
    code = codes.get(cells[0].strip().lower())
    return None if code is None else Value(code)


def _sum(cells: list[str]) -> Value | None:
    known = [value.number for cell in cells if (value := value_of(cell)) is not None]
    return Value(sum(known)) if known else None


def _mask(bits: Sequence[int], cells: list[str]) -> Value | None:
    given = [(value, bit) for cell, bit in zip(cells, bits, strict=True) if (value := value_of(cell)) is not None]
    return Value(float(sum(bit for value, bit in given if value.number))) if given else None


class Smi(Readings):
    """Rows of nvidia-smi, of whatever layout, on their way into the readings of a file."""

    def __init__(self, source: Source, sink: Sink) -> None:
        super().__init__(source, sink)
        self.rows = 0
        self.foreign = 0
        """Lines that nvidia-smi did not print."""
        self._lost_gpus: set[str] = set()

    def row(
        self, line: Line, gpu: Gpu, fields: tuple[str, ...], cells: Sequence[str], units: Sequence[str] = ()
    ) -> Pairs:
        """The values of one row. ``units``: of columns whose cells may stand without one."""
        columns, at = _plan(fields)
        pairs = self.pairs(line, gpu, _readings(columns, cells, units))
        if at is not None and (count := value_of(cells[at])) is not None:
            pairs += self.pairs(line, Gpu(), [(COUNT, count.number, "")])
        return pairs

    def complaint(self, line: Line) -> bool:
        """Whether a line is what nvidia-smi says instead of an answer: no driver, no GPU, or one that is lost."""
        text = line.text.strip()
        if len(text) > 500 or _COMPLAINT.fullmatch(text) is None:
            return False
        self.note(f"nvidia-smi says: {text[:120]}".replace("{", "").replace("}", ""), lost=False)
        if _LOST.search(text):
            bus = _BUS.search(text)
            self.lost_gpu(line, bus[0] if bus else "")
        return True

    def lost_gpu(self, line: Line, pci: str) -> None:
        """A GPU can't be reached any more; said once for each."""
        if pci in self._lost_gpus:
            return
        self._lost_gpus.add(pci)
        at = Position(self.path, line.number, line.offset, len(line.text))
        text = line.text.strip()[:300]
        fields = {"detail": text} | ({"pci": pci} if pci else {})
        event = Event("gpu_lost", at, "metric", text, self.now, role=Role.CONFIRMATION, parser="nvidia-smi")
        self.event(replace(event, fields=fields))

    def attachment(self, line: Line, gpu: Gpu, held: bool) -> Pairs:
        """Whether a process holds a compute context on a GPU, as a value."""
        return self.pairs(line, gpu._replace(mig=""), [(ATTACHED, float(held), "")])

    def memory(self, line: Line, gpu: Gpu, pid: str, cell: str) -> Pairs:
        """The device memory of one process, as a value."""
        value = value_of(cell)
        if value is None or not pid.isdecimal():
            return []
        return self.pairs(line, gpu._replace(pid=pid), [(PROCESS_MEMORY, *value)])


def gpu_of(index: str = "", uuid: str = "", pci: str = "", model: str = "", mig: str = "") -> Gpu:
    """A GPU as nvidia-smi names it; what says nothing (``[N/A]``, a name cut off) is left out."""
    return Gpu(
        index if index.isdecimal() else "",
        uuid if uuid.startswith(("GPU-", "MIG-")) else "",
        pci_address(pci),
        "" if model.endswith("...") or not re.search(r"[A-Za-z]{2}", model) or "N/A" in model else model,
        mig if mig.isdecimal() else "",
    )


# -- layouts


class Section(Protocol):
    """One layout, read line by line: ``take`` says whether a line is its own. Blank lines are everybody's."""

    smi: Smi

    def take(self, line: Line) -> bool: ...
    def end(self) -> None: ...


_BETWEEN = re.compile(
    r"[A-Z][a-z]{2},? [\w ,:]{8,40} 20\d\d(?: [\d:]{8}.{0,12})?|20\d\d-\d\d-\d\d[T ][\d:.,]{8,16}.{0,12}"  # date
    r"|(?=\S*\d)[a-z][\w.-]{1,62}"  # hostname
    r"|\S{0,80}?[$#>%+]\s*(?:(?:/\S*/)?nvidia-smi|date|hostname|sleep)\b.{0,400}"  # set -x, or a shell's prompt
    r"|[-=*_#~+ ]{3,200}"
)
FOREIGN_SHARE = 0.02
"""A file with more other lines than that is not the tool's output but something that holds it, such as a job's log."""
MOST_FOREIGN = 100
"""With so many other lines in its beginning alone, none looks further."""


def is_between(text: str) -> bool:
    """Whether a line is what scripts put between the output of commands: nobody's, and no job's log either."""
    return len(text) < 500 and _BETWEEN.fullmatch(text.strip()) is not None


def sniffed(source: Source, mark: bytes | re.Pattern[bytes], make: Callable[[Smi], Section], why: str) -> Match | None:
    """How surely the head of a file is all of one layout: it is read, and what the layout doesn't know is counted."""
    if (mark not in source.head) if isinstance(mark, bytes) else (mark.search(source.head) is None):
        return None
    section = make(Smi.discarded(source))
    own = foreign = 0
    for line in head_lines(source):
        if section.take(line) or section.smi.complaint(line):
            own += 1
        elif not is_between(line.text):
            foreign += 1
            if foreign > MOST_FOREIGN:
                return None
    section.end()
    if not own or foreign > FOREIGN_SHARE * (own + foreign):
        return None
    return Match(0.9 if section.smi.rows else 0.6, why)


def read_lines(source: Source, section: Section, empty: str) -> Result:
    """Read a file that is all of one layout. ``empty``: what to say of one that is whole and holds no reading."""
    smi = section.smi
    for number, offset, text in source.lines():
        line = Line(number, offset, text)
        if text.strip() and not section.take(line) and not smi.complaint(line):
            smi.foreign += not is_between(text)
    section.end()
    if smi.foreign:
        smi.note("{} lines that are not nvidia-smi's", smi.foreign)
    return smi.result(empty)


def layout(
    id_: str, title: str, mark: bytes | re.Pattern[bytes], make: Callable[[Smi], Section], why: str, empty: str
) -> Format:
    """The format of files that are all of one layout. ``mark``: what any of them holds."""
    return Format(
        id_,
        title,
        "metric",
        lambda source: sniffed(source, mark, make, why),
        lambda source, sink: read_lines(source, make(Smi(source, sink)), empty),
    )
