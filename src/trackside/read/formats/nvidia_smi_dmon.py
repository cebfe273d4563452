"""``nvidia-smi dmon`` and ``pmon``: every second a line for each GPU, or for each of its processes.

Headings come again every few lines. Lines carry dates and times (``-o DT``), times alone, or neither.
"""

from __future__ import annotations

import re

from trackside.catalog.dialect import translate
from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.gpu_readings import Clock, Gpu, Line
from trackside.read.nvidia_smi import Smi, gpu_of, read_lines, sniffed, value_of

_IGNORED_UNITS = frozenset({"-", "#", "C/G", "name", "Idx", "bool", "errs", "YYYYMMDD", "HH:MM:SS"})
_REMEDY = "-o DT gives them"
_WHICH = frozenset({"date", "time", "gpu", "pid", "type", "command"})
"""Columns that tell what a row is of."""
_HEADING = re.compile(rb"^# ?(?:Date,? +)?(?:Time,? +)?gpu\b", re.MULTILINE | re.IGNORECASE)


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def tell(smi: Smi, tool: str, columns: list[str]) -> list[str]:
    """Name the columns that nothing asks for, when there is a row of them; gives those still to be told: none."""
    for name in columns:
        if name not in _WHICH and translate(f"{tool}.{name}", {}) is None:
            smi.readings.unasked(f"{tool}.{name}")
    return []


class Dmon:
    """Device samples."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._clock = Clock(smi.readings, _REMEDY)
        self._names: list[str] = []
        self._untold: list[str] = []
        self._fields: tuple[str, ...] = ()
        self._columns: list[int] = []
        self._units: list[str] = []
        self._gpus: dict[str, Gpu] = {}

    def take(self, line: Line) -> bool:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        text = line.text.strip()
        words = _words(text.removeprefix("#"))
        if text.startswith("#"):
            return self._heading([word.lower() for word in words], words)
        if not self._names:
            return False
        if len(words) != len(self._names):
            torn = text[:1].isdigit()
            self.smi.readings.lost += torn
            return torn
        return self._row(line, words)

    def _heading(self, names: list[str], words: list[str]) -> bool:
        fields = [f"dmon.{name}" for name in names]
        known = [place for place, field in enumerate(fields) if translate(field, {}) is not None]
        if known and "gpu" in names and "pid" not in names:
            self._names = self._untold = names
            self._columns, self._fields = known, tuple(fields[place] for place in known)
            self._units = [""] * len(self._columns)
            return True
        if self._names and len(words) == len(self._names) and "Idx" in words:
            units = [words[place].removeprefix("GPM:") for place in self._columns]
            self._units = ["" if unit in _IGNORED_UNITS else unit for unit in units]
            return True
        return False

    def _row(self, line: Line, words: list[str]) -> bool:
        cells = dict(zip(self._names, words, strict=True))
        index = cells["gpu"]
        if not index.isdecimal():
            return False
        when = self._clock.now(cells, index)
        if when is None:
            self.smi.readings.lost += 1
            return True
        self.smi.rows += 1
        self._untold = tell(self.smi, "dmon", self._untold)
        gpu = self._gpus.setdefault(index, Gpu(index))
        given = [words[place] for place in self._columns]
        self._clock.add(*when, self.smi.pairs(line, gpu, self._fields, given, self._units))
        return True

    def end(self) -> None:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        self._clock.settle()
        self._clock = Clock(self.smi.readings, _REMEDY)
        self._names = []


class Pmon:
    """Process samples: whether a GPU had a process with a compute context.

    A line of dashes (no process) counts only once a process has been seen: within a container all are hidden.
    """

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._clock = Clock(smi.readings, _REMEDY)
        self._names: list[str] = []
        self._untold: list[str] = []
        self._seen = False

    def take(self, line: Line) -> bool:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        text = line.text.strip()
        if text.startswith("#"):
            names = [word.lower() for word in _words(text[1:])]
            if {"gpu", "pid", "type", "command"} <= set(names):
                self._names = self._untold = names
                return True
            return bool(self._names) and "idx" in names
        words = text.replace(",", " ").split(None, len(self._names) - 1) if self._names else []
        if not words or len(words) != len(self._names):
            self.smi.readings.lost += bool(self._names) and text[:1].isdigit()
            return bool(self._names) and text[:1].isdigit()
        return self._row(line, dict(zip(self._names, words, strict=True)))

    def _row(self, line: Line, cells: dict[str, str]) -> bool:
        if not cells["gpu"].isdecimal() or (value_of(cells["pid"]) is None and cells["pid"] != "-"):
            return False
        when = self._clock.now(cells, f"{cells['gpu']} {cells['pid']}")
        if when is None:
            self.smi.readings.lost += 1
            return True
        self.smi.rows += 1
        held = "C" in cells["type"]
        self._seen = self._seen or cells["pid"] != "-"
        gpu = gpu_of(index=cells["gpu"])
        if held or (self._seen and cells["pid"] == "-"):
            pair = self.smi.attachment(line, gpu, held)
            self._clock.add(*when, [] if pair is None else [pair])
        if cells["pid"] != "-":
            self._untold = tell(self.smi, "pmon", self._untold)
            fields = tuple(f"pmon.{name}" for name in cells)
            pairs = self.smi.pairs(line, gpu._replace(pid=cells["pid"]), fields, tuple(cells.values()))
            self._clock.add(*when, pairs)
        return True

    def end(self) -> None:
        """See :class:`trackside.read.nvidia_smi.Section`."""
        self._clock.settle()
        self._clock = Clock(self.smi.readings, _REMEDY)
        self._names = []


def _sniff_dmon(source: Source) -> Match | None:
    return sniffed(source, _HEADING, Dmon, "samples of nvidia-smi dmon")


def _read_dmon(source: Source, sink: Sink) -> Result:
    return read_lines(source, sink, Dmon, "no sample in it")


def _sniff_pmon(source: Source) -> Match | None:
    return sniffed(source, _HEADING, Pmon, "samples of nvidia-smi pmon")


def _read_pmon(source: Source, sink: Sink) -> Result:
    return read_lines(source, sink, Pmon, "no process was there while it was taken, or a container hid them")


FORMATS = (
    Format("nvidia-smi-dmon", "GPU samples (nvidia-smi dmon)", "metric", _sniff_dmon, _read_dmon),
    Format("nvidia-smi-pmon", "GPU processes (nvidia-smi pmon)", "metric", _sniff_pmon, _read_pmon),
)
