"""``nvidia-smi --query-gpu=... --format=csv``, once or in a loop, with or without units; also ``--query-compute-apps``.

The heading names the columns. Without a heading (``noheader``), the columns are known only if a shell echoed the
command (``set -x``). Rows without a GPU are assigned by the order in which nvidia-smi lists GPUs, if their times show
which rows belong to one sample.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trackside.read.format import Format, InputSource, Match, Result, Sink, csv_cells
from trackside.read.gpu_readings import GpuIdentity, TextLine
from trackside.read.nvidia_smi import COUNT, SmiReadings, gpu_of, read_lines, sniff_layout, used_fields, value_of

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
"""Fields that identify a GPU or its configuration, not measurements."""
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
_REASON = "columns of nvidia-smi --query"
MAX_GPUS = 1 << 16
"""Maximum number of GPUs, and most rows without a time, of one file."""
MAX_BUFFERED_ROWS = 2048
"""Rows buffered to find which belong to one sample."""
_MAX_ROW_PAUSE_S = 0.03
"""Longest time between rows for a file with only one sample, seconds."""
_MIN_PAUSE_RATIO = 4.0
"""Minimum ratio of the pause between samples to the pause between rows of one sample."""


@dataclass(frozen=True, slots=True)
class Heading:
    """The columns: names in nvidia-smi's newest spelling, and the units in the heading."""

    names: tuple[str, ...]
    units: tuple[str, ...]
    index_by_name: Mapping[str, int]
    """name -> index of its first column"""
    kind: Literal["gpu", "apps", "other"]
    """gpu: measurements of GPUs. apps: processes on GPUs. other: lists without measurements."""
    identity_columns: tuple[int | None, ...]
    """Column indices of index, uuid, bus id and name."""

    @classmethod
    def of(cls, names: Sequence[str], units: Sequence[str] = ()) -> Heading:
        """The heading for these columns."""
        index_by_name = {name: index for index, name in reversed(list(enumerate(names)))}
        kind: Literal["gpu", "apps", "other"] = "apps" if "pid" in index_by_name else "gpu"
        if index_by_name.keys() & {"max_memory_usage", "retired_pages.address", "retired_pages.cause"}:
            kind = "other"
        identity_columns = tuple(index_by_name.get(name) for name in ("index", "uuid", "pci.bus_id", "name"))
        return cls(tuple(names), tuple(units or [""] * len(names)), index_by_name, kind, identity_columns)

    def cell(self, cells: Sequence[str], name: str) -> str:
        """The cell of a column; empty if there is no such column."""
        index = self.index_by_name.get(name)
        return "" if index is None else cells[index]


def field_of(name: str) -> str:
    """The newest name of a field."""
    name = _ALIASES.get(name, name)
    return name.replace("clocks_throttle_reasons.", "clocks_event_reasons.", 1)


def heading_of(cells: Sequence[str]) -> Heading | None:
    """The heading in a line; None if it isn't a heading."""
    matches = [_HEADING.fullmatch(cell) for cell in cells]
    if not cells or any(match is None for match in matches):
        return None
    names = [field_of(match[1]) for match in matches if match is not None]
    has_measurement = any(_FAMILIES.fullmatch(name) or name in ("pstate", "pid") for name in names)
    is_single_word = len(names) == 1 and not (matches[0] and matches[0][2])  # a word that happens to be a field's name
    if is_single_word or not has_measurement or sum(map(_is_field, names)) < 0.5 * len(names):
        return None
    return Heading.of(names, [match[2] or "" for match in matches if match is not None])


def _is_field(name: str) -> bool:
    return name in _SIMPLE or _FAMILIES.fullmatch(name) is not None


def cells_of(text: str) -> list[str]:
    """The cells of a line, stripped; supports quotes."""
    cells = csv_cells(text, skipinitialspace=True) if '"' in text else text.split(",")
    return [cell.strip() for cell in cells]


class Csv:
    """Reads the queries of a file one after another."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self._echoed_fields: tuple[str, ...] = ()
        self._heading: Heading | None = None
        self._heading_text = ""
        self._columns_counted = True
        """Whether the unknown columns of the heading were counted."""
        self._gpus: dict[tuple[str, ...], GpuIdentity] = {}
        self._untimed_rows: dict[tuple[str, ...], tuple[TextLine, GpuIdentity, list[str]]] = {}
        self._untimed = 0
        self._unassigned_rows: list[tuple[TextLine, float, list[str]]] = []
        self._grouper: _SampleGrouper | None = None
        self.headless = 0

    def take(self, line: TextLine) -> bool:
        text = line.text.strip()
        if text == self._heading_text:
            return True
        if "--query-" in text and (match := _COMMAND.search(text)):
            self._echoed_fields = tuple(field_of(name) for name in match[1].split(","))
            return True
        cells = cells_of(text)
        if cells and _is_field(field_of(cells[0].partition(" [")[0])) and (heading := heading_of(cells)) is not None:
            self.end()
            self._heading, self._heading_text, self._columns_counted = heading, text, False
            return True
        if (
            self._heading is None
            and len(self._echoed_fields) == len(cells) > 0
            and heading_of(self._echoed_fields) is not None
        ):
            self._heading = Heading.of(self._echoed_fields)
        if self._heading is None:
            is_headless_row = _UNIT.search(text) is not None or _SMI_TIME.match(text) is not None
            self.headless += is_headless_row
            return is_headless_row
        if len(cells) != len(self._heading.names):
            self.smi.lost_lines += len(cells) > 1
            return len(cells) > 1 and abs(len(cells) - len(self._heading.names)) <= 1
        self._row(line, self._heading, cells)
        return True

    def _row(self, line: TextLine, heading: Heading, cells: list[str]) -> None:
        self.smi.rows += 1
        if heading.kind == "other":
            return
        gpu = self._gpu(heading, cells)
        if gpu is None:
            self.smi.lost_lines += 1
            return
        stamp = heading.cell(cells, "timestamp")
        time = self.smi.time(stamp) if stamp else None
        if "GPU is lost" in line.text:
            self.smi.lost_gpu(line, gpu.pci)
        if "timestamp" not in heading.index_by_name:
            self._untimed += 1
            if len(self._untimed_rows) < MAX_GPUS:
                self._untimed_rows.setdefault((*gpu, *cells) if heading.kind == "apps" else gpu, (line, gpu, cells))
            return
        if time is None:
            self.smi.lost_lines += 1
        elif any(gpu[:3]):
            self._add(line, heading, time, gpu, cells)
        elif heading.kind == "gpu":
            self._add_unidentified(line, heading, time, cells)

    def _gpu(self, heading: Heading, cells: list[str]) -> GpuIdentity | None:
        """The GPU of a row; None if its index is not a number."""
        key = tuple("" if index is None else cells[index] for index in heading.identity_columns)
        gpu = self._gpus.get(key)
        if gpu is None:
            if key[0] and not key[0].isdecimal():
                return None
            gpu = gpu_of(*key)
            self.smi.learn(gpu)
            gpu = self.smi.with_index(gpu)
            if len(self._gpus) < MAX_GPUS:
                self._gpus[key] = gpu
        return gpu

    def _add(self, line: TextLine, heading: Heading, time: float, gpu: GpuIdentity, cells: list[str]) -> None:
        if heading.kind == "gpu":
            self._count_unknown_columns(heading, cells)
            self.smi.add(time, self.smi.row(line, gpu, heading.names, cells, heading.units))
            return
        pid, memory = heading.cell(cells, "pid"), heading.cell(cells, "used_gpu_memory")
        if any(gpu[:3]) and value_of(pid) is not None:
            attachment = self.smi.attachment(line, gpu, is_attached=True)
            self.smi.add(time, attachment + self.smi.memory(line, gpu, pid, memory))

    def _count_unknown_columns(self, heading: Heading, cells: list[str]) -> None:
        """Count the unknown columns with figures, once per heading."""
        if self._columns_counted:
            return
        self._columns_counted = True
        used_names = used_fields(heading.names) | _SETTINGS
        for name, unit, cell in zip(heading.names, heading.units, cells, strict=True):
            if name not in used_names and (value_of(cell) is not None or unit):
                self.smi.add_unknown(name)

    # -- rows without a GPU

    def _add_unidentified(self, line: TextLine, heading: Heading, time: float, cells: list[str]) -> None:
        if self._grouper is not None:
            self._add_sample(heading, self._grouper.next(line, time, cells))
            return
        self._unassigned_rows.append((line, time, cells))
        if len(self._unassigned_rows) >= MAX_BUFFERED_ROWS:
            self._group_buffered(heading)

    def _group_buffered(self, heading: Heading) -> None:
        rows, self._unassigned_rows = self._unassigned_rows, []
        self._grouper = _SampleGrouper(*_sample_rhythm([time for _, time, _ in rows]))
        for row in rows:
            self._add_sample(heading, self._grouper.next(*row))

    def _add_sample(self, heading: Heading, sample: list[tuple[TextLine, float, list[str]]]) -> None:
        """Add the rows of one complete sample."""
        for position, (line, time, cells) in enumerate(sample):
            index = str(position) if self._grouper is not None and self._grouper.size > 1 else ""
            gpu = gpu_of(index=index, model=heading.cell(cells, "name"))
            self._add(line, heading, time, gpu, cells)

    # -- the end

    def end(self) -> None:
        if self._heading is not None:
            if self._unassigned_rows:
                self._group_buffered(self._heading)
            if self._grouper is not None:
                self._add_sample(self._heading, self._grouper.end_sample())
                if self._grouper.size > 1:
                    self.smi.note("rows without a GPU: assigned in nvidia-smi's order", lost=False)
                if self._grouper.incomplete_rows:
                    self.smi.note(
                        "{} rows of incomplete samples: their GPUs are unknown", self._grouper.incomplete_rows
                    )
            self._place_untimed(self._heading)
        self._heading, self._heading_text, self._grouper = None, "", None
        self._untimed_rows, self._untimed, self._unassigned_rows = {}, 0, []

    def _place_untimed(self, heading: Heading) -> None:
        """Place rows without a time, which is possible only if they are one sample: every GPU once."""
        if not self._untimed:
            return
        time = self.smi.now if self.smi.now is not None else self.smi.modified
        if self._untimed > len(self._untimed_rows) or time is None:
            self.smi.note("{} rows without a time (add timestamp,index to the query): skipped", self._untimed)
            return
        if self.smi.now is None:
            self.smi.note("no time: assumed to be when the file was last written", lost=False)
        for line, gpu, cells in self._untimed_rows.values():
            self._add(line, heading, time, gpu, cells)


def _sample_rhythm(times: Sequence[float]) -> tuple[float, int]:
    """(pause that begins a new sample, seconds; rows of a sample), from the pauses between rows.

    Rows of one sample are milliseconds apart, samples about a second, so the pauses form two groups. Otherwise every
    row is a sample of the only GPU.
    """
    pauses = [max(0.0, later - earlier) for earlier, later in itertools.pairwise(times)]
    if pauses and max(pauses) <= _MAX_ROW_PAUSE_S:
        return _MAX_ROW_PAUSE_S * _MIN_PAUSE_RATIO, len(times)
    ordered = sorted(pauses)
    ratios = [(high / max(low, 1e-3), low, high) for low, high in itertools.pairwise(ordered) if high > 2e-3]
    ratio, low, high = max(ratios, default=(0.0, 0.0, 0.0))
    if ratio < _MIN_PAUSE_RATIO or sum(pause <= low for pause in pauses) < 0.5 * len(pauses):
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


class _SampleGrouper:
    """Groups rows into samples; only a complete sample shows which row belongs to which GPU."""

    def __init__(self, pause: float, size: int) -> None:
        self.size = size
        self.incomplete_rows = 0
        """Rows of samples with too few or too many rows."""
        self._pause = pause
        self._sample: list[tuple[TextLine, float, list[str]]] = []

    def next(self, line: TextLine, time: float, cells: list[str]) -> list[tuple[TextLine, float, list[str]]]:
        """Add a row; returns the sample that ended before it, if complete, else empty."""
        ended: list[tuple[TextLine, float, list[str]]] = []
        if self._sample and time - self._sample[-1][1] > self._pause:
            ended = self.end_sample()
        if len(self._sample) <= self.size:
            self._sample.append((line, time, cells))
        else:
            self.incomplete_rows += 1
        return ended

    def end_sample(self) -> list[tuple[TextLine, float, list[str]]]:
        """End the current sample; returns its rows if complete, else empty."""
        sample, self._sample = self._sample, []
        if len(sample) == self.size:
            return sample
        self.incomplete_rows += len(sample)
        return []


def _sniff(source: InputSource) -> Match | None:
    match = sniff_layout(source, _MARK, Csv, _REASON)
    if match is None and _SMI_TIME.match(source.text) is None and _UNIT.search(source.text[:500]) is None:
        return None
    return match or sniff_layout(source, b",", Csv, _REASON)


def _read(source: InputSource, sink: Sink) -> Result:
    section = Csv(SmiReadings(source, sink))
    result = read_lines(source, section, "a heading without rows")
    if section.headless and not result.rows:
        return Result(
            0,
            "unrecognised",
            "nvidia-smi rows without a heading, so the columns are unknown: run it without noheader",
        )
    return result


FORMAT = Format("nvidia-smi-csv", "GPU samples (nvidia-smi --query-gpu, CSV)", "metric", _sniff, _read)
