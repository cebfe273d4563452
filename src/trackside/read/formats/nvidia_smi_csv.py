"""``nvidia-smi --query-gpu=... --format=csv``, once or in a loop, with and without units; ``--query-compute-apps`` too.

The heading tells what a column is. Where it was left out (``noheader``), only the command itself can tell, if a shell
echoed it (``set -x``); numbers alone can't. Rows that name no GPU are told apart by the order in which nvidia-smi lists
GPUs, if their times show which rows were taken together.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trackside.read.format import Format, Match, Result, Sink, Source, csv_cells
from trackside.read.gpu_readings import Gpu, Line
from trackside.read.nvidia_smi import COUNT, Smi, asked, gpu_of, read_lines, sniffed, value_of

_ALIASES = {
    "count": COUNT,
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_serial": "serial",
    "gpu_bus_id": "pci.bus_id",
    "clocks.gr": "clocks.current.graphics",
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
    "used_memory": "used_gpu_memory",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count",
}
_SINGLE = """
timestamp index name serial uuid pstate driver_version vbios_version display_mode display_active persistence_mode
compute_mode compute_cap fan.speed pid process_name used_gpu_memory gpu_recovery_action c2c.mode
"""
_SIMPLE = frozenset(_SINGLE.split()) | {COUNT}
_SETTINGS = _SIMPLE | {"pci.bus_id", "pci.domain", "pci.bus", "pci.device", "pci.device_id", "pci.sub_device_id"}
"""What tells which GPU it is and how it is set up, and measures nothing."""
_FAMILIES = re.compile(
    r"(?:utilization|memory|temperature|power|enforced|module|clocks|clocks_throttle_reasons|clocks_event_reasons"
    r"|clocks_event_reasons_counters|ecc|pcie|pci|remapped_rows|retired_pages|encoder|fabric|gom|gsp|inforom|mig"
    r"|accounting|driver_model|protected_memory|platform|power_smoothing|dramEncryption|vgpu_\w+)\.[A-Za-z][\w.]*"
)
_HEADING = re.compile(r"([A-Za-z][\w.]{0,80})(?:\s*\[([^\]]{1,8})\])?")
_COMMAND = re.compile(r"--query-(?:gpu|compute-apps)[= ]([\w.,]+)")
_UNIT = re.compile(r"(?:^|, ?)(?:\d+(?:\.\d+)? (?:MiB|%|W|MHz)|GPU-[0-9a-f]{8}-[0-9a-f-]{27}|P\d{1,2})(?:,|$)")
_SMI_TIME = re.compile(r"20\d\d/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}(?:,|$)")
_MARK = re.compile(
    rb"utilization\.gpu|memory\.(?:used|free|total)|power\.draw|temperature\.gpu|clocks\.|remapped_rows\.|ecc\.errors\."
    rb"|--query-|pstate, |, pstate|process_name|used_(?:gpu_)?memory"
)
_WHY = "columns of nvidia-smi --query"
MOST_GPUS = 1 << 16
"""GPUs, and rows without a time, that are remembered of one file."""
LOOK = 2048
"""Rows looked at to see which were taken together."""
_TOGETHER_S = 0.03
"""Most time between rows of one sample where the file holds no more than one."""
_APART = 4.0
"""How much longer the pause between samples must be than that between rows of one."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The columns: names by nvidia-smi's newest spelling, and the units that stand in the heading."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    at: Mapping[str, int]
    """name -> where it stands first"""
    kind: Literal["gpu", "apps", "other"]
    """gpu: what was measured of GPUs. apps: the processes on them now. other: lists that measure nothing."""
    who: tuple[int | None, ...]
    """Where index, uuid, bus id and name stand."""

    @classmethod
    def of(cls, names: Sequence[str], units: Sequence[str] = ()) -> Heading:
        """Of these columns."""
        at = {name: place for place, name in reversed(list(enumerate(names)))}
        kind: Literal["gpu", "apps", "other"] = "apps" if "pid" in at else "gpu"
        if at.keys() & {"max_memory_usage", "retired_pages.address", "retired_pages.cause"}:
            kind = "other"
        who = tuple(at.get(name) for name in ("index", "uuid", "pci.bus_id", "name"))
        return cls(tuple(names), tuple(units or [""] * len(names)), at, kind, who)

    def cell(self, cells: Sequence[str], name: str) -> str:
        """The cell of a column; empty where there is none of that name."""
        place = self.at.get(name)
        return "" if place is None else cells[place]


def field_of(name: str) -> str:
    """A field by its newest name."""
    name = _ALIASES.get(name, name)
    return name.replace("clocks_throttle_reasons.", "clocks_event_reasons.", 1)


def heading_of(cells: Sequence[str]) -> Heading | None:
    """The heading that a line is; None if it isn't one."""
    found = [_HEADING.fullmatch(cell) for cell in cells]
    if not cells or any(each is None for each in found):
        return None
    names = [field_of(each[1]) for each in found if each is not None]
    measured = any(_FAMILIES.fullmatch(name) or name in ("pstate", "pid") for name in names)
    alone = len(names) == 1 and not (found[0] and found[0][2])  # a word that is a field's name by chance
    if alone or not measured or sum(map(_is_field, names)) < 0.5 * len(names):
        return None
    return Heading.of(names, [each[2] or "" for each in found if each is not None])


def _is_field(name: str) -> bool:
    return name in _SIMPLE or _FAMILIES.fullmatch(name) is not None


def cells_of(text: str) -> list[str]:
    """The cells of a line, stripped; quotes are honoured where there are some."""
    cells = csv_cells(text, skipinitialspace=True) if '"' in text else text.split(",")
    return [cell.strip() for cell in cells]


class Csv:
    """The queries of a file, one behind the other."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._promised: tuple[str, ...] = ()
        self._heading: Heading | None = None
        self._heading_text = ""
        self._told = True
        """Whether it was said which of the heading's columns nothing asks for."""
        self._gpus: dict[tuple[str, ...], Gpu] = {}
        self._once: dict[tuple[str, ...], tuple[Line, Gpu, list[str]]] = {}
        self._untimed = 0
        self._held: list[tuple[Line, float, list[str]]] = []
        self._order: _Order | None = None
        self.headless = 0

    def take(self, line: Line) -> bool:
        text = line.text.strip()
        if text == self._heading_text:
            return True
        if "--query-" in text and (found := _COMMAND.search(text)):
            self._promised = tuple(field_of(name) for name in found[1].split(","))
            return True
        cells = cells_of(text)
        if cells and _is_field(field_of(cells[0].partition(" [")[0])) and (heading := heading_of(cells)) is not None:
            self.end()
            self._heading, self._heading_text, self._told = heading, text, False
            return True
        if self._heading is None and len(self._promised) == len(cells) > 0 and heading_of(self._promised) is not None:
            self._heading = Heading.of(self._promised)
        if self._heading is None:
            looks = _UNIT.search(text) is not None or _SMI_TIME.match(text) is not None
            self.headless += looks
            return looks
        if len(cells) != len(self._heading.names):
            self.smi.lost += len(cells) > 1
            return len(cells) > 1 and abs(len(cells) - len(self._heading.names)) <= 1
        self._row(line, self._heading, cells)
        return True

    def _row(self, line: Line, heading: Heading, cells: list[str]) -> None:
        self.smi.rows += 1
        if heading.kind == "other":
            return
        gpu = self._gpu(heading, cells)
        if gpu is None:
            self.smi.lost += 1
            return
        when = heading.cell(cells, "timestamp")
        time = self.smi.time(when) if when else None
        if "GPU is lost" in line.text:
            self.smi.lost_gpu(line, gpu.pci)
        if "timestamp" not in heading.at:
            self._untimed += 1
            if len(self._once) < MOST_GPUS:
                self._once.setdefault((*gpu, *cells) if heading.kind == "apps" else gpu, (line, gpu, cells))
            return
        if time is None:
            self.smi.lost += 1
        elif any(gpu[:3]):
            self._give(line, heading, time, gpu, cells)
        elif heading.kind == "gpu":
            self._unnamed(line, heading, time, cells)

    def _gpu(self, heading: Heading, cells: list[str]) -> Gpu | None:
        """The GPU that a row names; None where its index is none."""
        key = tuple("" if place is None else cells[place] for place in heading.who)
        found = self._gpus.get(key)
        if found is None:
            if key[0] and not key[0].isdecimal():
                return None
            found = gpu_of(*key)
            self.smi.learn(found)
            found = self.smi.named(found)
            if len(self._gpus) < MOST_GPUS:
                self._gpus[key] = found
        return found

    def _give(self, line: Line, heading: Heading, time: float, gpu: Gpu, cells: list[str]) -> None:
        if heading.kind == "gpu":
            self._tell(heading, cells)
            self.smi.add(time, self.smi.row(line, gpu, heading.names, cells, heading.units))
            return
        pid, memory = heading.cell(cells, "pid"), heading.cell(cells, "used_gpu_memory")
        if any(gpu[:3]) and value_of(pid) is not None:
            attachment = self.smi.attachment(line, gpu, held=True)
            self.smi.add(time, attachment + self.smi.memory(line, gpu, pid, memory))

    def _tell(self, heading: Heading, cells: list[str]) -> None:
        """Name the columns of figures that nothing asks for, once for each heading."""
        if self._told:
            return
        self._told = True
        known = asked(heading.names) | _SETTINGS
        for name, unit, cell in zip(heading.names, heading.units, cells, strict=True):
            if name not in known and (value_of(cell) is not None or unit):
                self.smi.unasked(name)

    # -- rows without a GPU

    def _unnamed(self, line: Line, heading: Heading, time: float, cells: list[str]) -> None:
        if self._order is not None:
            self._ordered(heading, self._order.next(line, time, cells))
            return
        self._held.append((line, time, cells))
        if len(self._held) >= LOOK:
            self._decide(heading)

    def _decide(self, heading: Heading) -> None:
        held, self._held = self._held, []
        self._order = _Order(*_together([time for _, time, _ in held]))
        for row in held:
            self._ordered(heading, self._order.next(*row))

    def _ordered(self, heading: Heading, sample: list[tuple[Line, float, list[str]]]) -> None:
        """Take the rows of one whole sample."""
        for place, (line, time, cells) in enumerate(sample):
            index = str(place) if self._order is not None and self._order.size > 1 else ""
            gpu = gpu_of(index=index, model=heading.cell(cells, "name"))
            self._give(line, heading, time, gpu, cells)

    # -- the end

    def end(self) -> None:
        if self._heading is not None:
            if self._held:
                self._decide(self._heading)
            if self._order is not None:
                self._ordered(self._heading, self._order.rest())
                if self._order.size > 1:
                    self.smi.note("its rows name no GPU: taken in nvidia-smi's order", lost=False)
                if self._order.broken:
                    self.smi.note("{} rows of samples that are not whole: their GPUs can't be told", self._order.broken)
            self._place_untimed(self._heading)
        self._heading, self._heading_text, self._order = None, "", None
        self._once, self._untimed, self._held = {}, 0, []

    def _place_untimed(self, heading: Heading) -> None:
        """Rows without a time can be placed only if they are of one moment: every GPU once."""
        if not self._untimed:
            return
        time = self.smi.now if self.smi.now is not None else self.smi.written
        if self._untimed > len(self._once) or time is None:
            self.smi.note("{} rows give no time (add timestamp,index to the query): not placed", self._untimed)
            return
        if self.smi.now is None:
            self.smi.note("it gives no time: taken as of when the file was last written", lost=False)
        for line, gpu, cells in self._once.values():
            self._give(line, heading, time, gpu, cells)


def _together(times: Sequence[float]) -> tuple[float, int]:
    """(pause that begins a new sample, seconds; rows of a sample), from the pauses between rows.

    Rows of one sample follow each other within milliseconds, samples after a second or so: the pauses fall in two
    groups. Where they don't, every row is a sample of the only GPU.
    """
    pauses = [max(0.0, later - earlier) for earlier, later in itertools.pairwise(times)]
    if pauses and max(pauses) <= _TOGETHER_S:
        return _TOGETHER_S * _APART, len(times)
    ordered = sorted(pauses)
    steps = [(high / max(low, 1e-3), low, high) for low, high in itertools.pairwise(ordered) if high > 2e-3]
    ratio, low, high = max(steps, default=(0.0, 0.0, 0.0))
    if ratio < _APART or sum(pause <= low for pause in pauses) < 0.5 * len(pauses):
        return -1.0, 1
    limit = (max(low, 1e-3) * high) ** 0.5
    sizes: Counter[int] = Counter()
    size = 1
    for pause in pauses:
        if pause > limit:
            sizes[size] += 1
            size = 0
        size += 1
    return limit, max(sizes, key=sizes.__getitem__, default=len(times))


class _Order:
    """Puts rows into samples; only whole ones tell which row is which GPU's."""

    def __init__(self, pause: float, size: int) -> None:
        self.size = size
        self.broken = 0
        """Rows of samples that have too few or too many."""
        self._pause = pause
        self._sample: list[tuple[Line, float, list[str]]] = []

    def next(self, line: Line, time: float, cells: list[str]) -> list[tuple[Line, float, list[str]]]:
        """Take a row; gives the sample that ended before it, if that was whole."""
        ended: list[tuple[Line, float, list[str]]] = []
        if self._sample and time - self._sample[-1][1] > self._pause:
            ended = self.rest()
        if len(self._sample) <= self.size:
            self._sample.append((line, time, cells))
        else:
            self.broken += 1
        return ended

    def rest(self) -> list[tuple[Line, float, list[str]]]:
        """The sample so far, if it is whole."""
        sample, self._sample = self._sample, []
        if len(sample) == self.size:
            return sample
        self.broken += len(sample)
        return []


def _sniff(source: Source) -> Match | None:
    match = sniffed(source, _MARK, Csv, _WHY)
    if match is None and _SMI_TIME.match(source.text) is None and _UNIT.search(source.text[:500]) is None:
        return None
    return match or sniffed(source, b",", Csv, _WHY)


def _read(source: Source, sink: Sink) -> Result:
    section = Csv(Smi(source, sink))
    result = read_lines(source, section, "a heading and no rows")
    if section.headless and not result.rows:
        return Result(
            0,
            "unrecognised",
            "rows of nvidia-smi without their heading: numbers alone don't tell what they are; leave out noheader",
        )
    return result


FORMAT = Format("nvidia-smi-csv", "GPU samples (nvidia-smi --query-gpu, CSV)", "metric", _sniff, _read)
