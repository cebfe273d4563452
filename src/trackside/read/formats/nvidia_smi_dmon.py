"""``nvidia-smi dmon`` and ``pmon``: every second a line for each GPU, or for each of its processes.

Headings come again every few lines. Lines carry dates and times (``-o DT``), times alone, or neither.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from trackside.catalog.dialect import translate
from trackside.read.gpu_readings import Clock, Gpu, Line, Pairs
from trackside.read.nvidia_smi import Smi, layout, value_of

_IGNORED_UNITS = frozenset({"-", "#", "C/G", "name", "Idx", "bool", "errs", "YYYYMMDD", "HH:MM:SS"})
_REMEDY = "-o DT gives them"
_WHICH = frozenset({"date", "time", "gpu", "pid", "type", "command"})
"""Columns that tell what a row is of."""
_HEADING = re.compile(rb"^# ?(?:Date,? +)?(?:Time,? +)?gpu\b", re.MULTILINE | re.IGNORECASE)


class Dmon:
    """Device samples."""

    tool = "dmon"

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._clock = Clock(smi, _REMEDY)
        self._names: list[str] = []
        self._fields: tuple[str, ...] = ()
        self._units: list[str] = []
        self._is_named = True
        """Whether it was said which of the heading's columns nothing asks for."""

    def take(self, line: Line) -> bool:
        text = line.text.strip().replace(",", " ")
        if text.startswith("#"):
            return self._heading(text[1:].split())
        words = self._cells(text) if self._names else []
        if not words or len(words) != len(self._names):
            torn = bool(self._names) and text[:1].isdigit()
            self.smi.lost += torn
            return torn
        return self._row(line, dict(zip(self._names, words, strict=True)))

    def _cells(self, text: str) -> list[str]:
        return text.split()

    def _heading(self, words: list[str]) -> bool:
        names = [word.lower() for word in words]
        if self._is_heading(names):
            self._names, self._is_named = names, False
            self._fields = tuple(f"{self.tool}.{name}" for name in names)
            self._units = []
            return True
        if self._names and len(words) == len(self._names) and "Idx" in words:
            units = [word.removeprefix("GPM:") for word in words]
            self._units = ["" if unit in _IGNORED_UNITS else unit for unit in units]
            return True
        return False

    def _is_heading(self, names: list[str]) -> bool:
        known = any(translate(f"{self.tool}.{name}", {}) is not None for name in names)
        return known and "gpu" in names and "pid" not in names

    def _row(self, line: Line, cells: Mapping[str, str]) -> bool:
        who = self._who(cells)
        if who is None:
            return False
        when = self._clock.now(cells, who)
        if when is None:
            self.smi.lost += 1
            return True
        self.smi.rows += 1
        self._clock.add(when, self._pairs(line, cells))
        return True

    def _who(self, cells: Mapping[str, str]) -> str | None:
        """What a row is of, among those of one sample; None for one that is no sample."""
        return cells["gpu"] if cells["gpu"].isdecimal() else None

    def _pairs(self, line: Line, cells: Mapping[str, str]) -> Pairs:
        if not self._is_named:  # now that there is a row of them
            self._is_named = True
            for name, field in zip(self._names, self._fields, strict=True):
                if name not in _WHICH and translate(field, {}) is None:
                    self.smi.unasked(field)
        gpu = Gpu(cells["gpu"], pid=cells.get("pid", ""))
        return self.smi.row(line, gpu, self._fields, tuple(cells.values()), self._units)

    def end(self) -> None:
        self._clock.settle()
        self._clock = Clock(self.smi, _REMEDY)
        self._names = []


class Pmon(Dmon):
    """Process samples: whether a GPU had a process with a compute context.

    A line of dashes (no process) counts only once a process has been listed: within a container all are hidden.
    """

    tool = "pmon"

    def __init__(self, smi: Smi) -> None:
        super().__init__(smi)
        self._any = False

    def _cells(self, text: str) -> list[str]:
        return text.split(None, len(self._names) - 1)

    def _is_heading(self, names: list[str]) -> bool:
        return {"gpu", "pid", "type", "command"} <= set(names)

    def _who(self, cells: Mapping[str, str]) -> str | None:
        gpu, pid = cells["gpu"], cells["pid"]
        return f"{gpu} {pid}" if gpu.isdecimal() and (pid == "-" or value_of(pid) is not None) else None

    def _pairs(self, line: Line, cells: Mapping[str, str]) -> Pairs:
        held, is_process = "C" in cells["type"], cells["pid"] != "-"
        self._any = self._any or is_process
        pairs = []
        if held or (self._any and not is_process):
            pairs += self.smi.attachment(line, Gpu(cells["gpu"]), held)
        return pairs + super()._pairs(line, cells) if is_process else pairs


FORMATS = (
    layout(
        "nvidia-smi-dmon",
        "GPU samples (nvidia-smi dmon)",
        _HEADING,
        Dmon,
        "samples of nvidia-smi dmon",
        "no sample in it",
    ),
    layout(
        "nvidia-smi-pmon",
        "GPU processes (nvidia-smi pmon)",
        _HEADING,
        Pmon,
        "samples of nvidia-smi pmon",
        "no process was there while it was taken, or a container hid them",
    ),
)
