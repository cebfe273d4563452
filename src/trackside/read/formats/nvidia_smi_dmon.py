"""``nvidia-smi dmon`` and ``pmon``: one line per second for each GPU, or for each of its processes.

Headings are repeated every few lines. Lines have dates and times (``-o DT``), times alone, or neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.dialect import translate
from trackside.read.gpu_readings import GpuIdentity, RowClock, SeriesValues, TextLine
from trackside.read.nvidia_smi import SmiReadings, layout, value_of

_IGNORED_UNITS = frozenset({"-", "#", "C/G", "name", "Idx", "bool", "errs", "YYYYMMDD", "HH:MM:SS"})
_REMEDY = "use -o DT"
_IDENTITY_COLUMNS = frozenset({"date", "time", "gpu", "pid", "type", "command"})
"""Columns that identify a row."""
_HEADING = re.compile(rb"^# ?(?:Date,? +)?(?:Time,? +)?gpu\b", re.MULTILINE | re.IGNORECASE)


class Dmon:
    """Reads device samples."""

    tool = "dmon"

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self._clock = RowClock(smi, _REMEDY)
        self._names: list[str] = []
        self._fields: tuple[str, ...] = ()
        self._units: list[str] = []
        self._columns_counted = True
        """Whether the unknown columns of the heading were counted."""

    def take(self, line: TextLine) -> bool:
        text = line.text.strip().replace(",", " ")
        if text.startswith("#"):
            return self._heading(text[1:].split())
        words = self._cells(text) if self._names else []
        if not words or len(words) != len(self._names):
            is_broken_row = bool(self._names) and text[:1].isdigit()
            self.smi.lost_lines += is_broken_row
            return is_broken_row
        return self._row(line, dict(zip(self._names, words, strict=True)))

    def _cells(self, text: str) -> list[str]:
        return text.split()

    def _heading(self, words: list[str]) -> bool:
        names = [word.lower() for word in words]
        if self._is_heading(names) and len(names) == len(set(names)):  # a damaged heading repeats names
            self._names, self._columns_counted = names, False
            self._fields = tuple(f"{self.tool}.{name}" for name in names)
            self._units = []
            return True
        if self._names and len(words) == len(self._names) and "Idx" in words:
            units = [word.removeprefix("GPM:") for word in words]
            self._units = ["" if unit in _IGNORED_UNITS else unit for unit in units]
            return True
        return False

    def _is_heading(self, names: list[str]) -> bool:
        has_metric = any(translate(f"{self.tool}.{name}", {}) is not None for name in names)
        return has_metric and "gpu" in names and "pid" not in names

    def _row(self, line: TextLine, cells: Mapping[str, str]) -> bool:
        row_id = self._row_id(cells)
        if row_id is None:
            return False
        when = self._clock.now(cells, row_id)
        if when is None:
            self.smi.lost_lines += 1
            return True
        self.smi.rows += 1
        self._clock.add(when, self._pairs(line, cells))
        return True

    def _row_id(self, cells: Mapping[str, str]) -> str | None:
        """Identifies a row within a sample; None for a line that is not a sample."""
        return cells["gpu"] if cells["gpu"].isdecimal() else None

    def _pairs(self, line: TextLine, cells: Mapping[str, str]) -> SeriesValues:
        if not self._columns_counted:  # counted at the first row
            self._columns_counted = True
            for name, field in zip(self._names, self._fields, strict=True):
                if name not in _IDENTITY_COLUMNS and translate(field, {}) is None:
                    self.smi.add_unknown(field)
        gpu = GpuIdentity(cells["gpu"], pid=cells.get("pid", ""))
        return self.smi.row(line, gpu, self._fields, tuple(cells.values()), self._units)

    def end(self) -> None:
        self._clock.settle()
        self._clock = RowClock(self.smi, _REMEDY)
        self._names = []


class Pmon(Dmon):
    """Reads process samples: whether a GPU had a process with a compute context.

    A line of dashes (no process) counts only after a process has been listed, because in a container all are hidden.
    """

    tool = "pmon"

    def __init__(self, smi: SmiReadings) -> None:
        super().__init__(smi)
        self._process_seen = False

    def _cells(self, text: str) -> list[str]:
        return text.split(None, len(self._names) - 1)

    def _is_heading(self, names: list[str]) -> bool:
        return {"gpu", "pid", "type", "command"} <= set(names)

    def _row_id(self, cells: Mapping[str, str]) -> str | None:
        gpu, pid = cells["gpu"], cells["pid"]
        return f"{gpu} {pid}" if gpu.isdecimal() and (pid == "-" or value_of(pid) is not None) else None

    def _pairs(self, line: TextLine, cells: Mapping[str, str]) -> SeriesValues:
        is_attached, is_process = "C" in cells["type"], cells["pid"] != "-"
        self._process_seen = self._process_seen or is_process
        pairs = []
        if is_attached or (self._process_seen and not is_process):
            pairs += self.smi.attachment(line, GpuIdentity(cells["gpu"]), is_attached)
        return pairs + super()._pairs(line, cells) if is_process else pairs


FORMATS = (
    layout(
        "nvidia-smi-dmon",
        "GPU samples (nvidia-smi dmon)",
        _HEADING,
        Dmon,
        "samples of nvidia-smi dmon",
        "no samples",
    ),
    layout(
        "nvidia-smi-pmon",
        "GPU processes (nvidia-smi pmon)",
        _HEADING,
        Pmon,
        "samples of nvidia-smi pmon",
        "no processes were running, or a container hid them",
    ),
)
