"""``dcgmi dmon``: one line per GPU every second, under DCGM's short names of the requested fields.

It prints no times. Times that a pipe puts before each line (``ts``) or a script before each sample (``date``) are used.
"""

from __future__ import annotations

import re

from trackside.catalog.dialect import translate
from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.gpu_readings import GpuIdentity, Readings, RowClock, TextLine, head_lines

_HEADING = re.compile(r"(?P<when>.{0,40}?)# ?Entity\s+(?P<names>\S.*)")
_UNITS = re.compile(r".{0,40}?\bI[dD]\b[\s\w/%.]*")
_ROW = re.compile(
    r"(?P<when>.{0,40}?)\b(?P<kind>GPU|GPU-I|GPU-CI|vGPU|Switch|CPU|CPU Core|Link) (?P<id>\d{1,6})\s+(?P<cells>\S.*)"
)
_NUMBER = re.compile(r"[-+]?\d{1,30}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?")
_REMEDY = "dcgmi prints none: pipe it through ts"


class Dcgmi:
    """Parses the samples of a file line by line."""

    def __init__(self, readings: Readings) -> None:
        self.readings = readings
        self.rows = 0
        self._clock = RowClock(readings, _REMEDY)
        self._names: list[str] = []

    def take(self, line: TextLine) -> bool:
        """Parse a line; whether it is from dcgmi, or a time."""
        text = line.text.strip()
        if match := _HEADING.fullmatch(text):
            self._names = match["names"].split()
            return True
        if match := _ROW.fullmatch(text):
            return self._row(line, match)
        if self._names and _UNITS.fullmatch(text):
            return True
        if len(text) >= 60 or (time := self.readings.time(text)) is None:
            return False
        self._clock.settle()
        self.readings.now = time
        self._clock = RowClock(self.readings, _REMEDY)
        return True

    def _row(self, line: TextLine, match: re.Match[str]) -> bool:
        cells = match["cells"].split()
        if not self._names:
            return False
        if len(cells) != len(self._names):
            self.readings.lost_lines += 1
            return True
        if match["kind"] != "GPU":
            self.readings.note("{} lines of GPU parts, switches or CPUs, which name no parent GPU or node: skipped")
            return True
        self.rows += 1
        time = self.readings.time(match["when"]) if match["when"].strip() else None
        when = self._clock.now({}, match["id"]) if time is None else (time, True)
        if when is not None:
            values = (
                (name, float(cell), "")
                for name, cell in zip(self._names, cells, strict=True)
                if _NUMBER.fullmatch(cell)
            )
            self._clock.add(when, self.readings.pairs(line, GpuIdentity(number=match["id"]), values))
        return True

    def end(self) -> None:
        """Place the rows without a time."""
        self._clock.settle()


def _sniff(source: InputSource) -> Match | None:
    match = re.search(rb"^.{0,40}?# ?Entity\s+(\S[^\n]{0,4000})", source.head, re.MULTILINE)
    if match is None or not any(translate(name, {}) for name in match[1].decode("utf-8", "replace").split()):
        return None
    section = Dcgmi(Readings.for_sniffing(source))
    lines = list(head_lines(source))
    own_lines = sum(map(section.take, lines))
    return Match(0.9, "samples of dcgmi dmon") if own_lines >= 0.9 * len(lines) - 1 else None


def _read(source: InputSource, sink: Sink) -> Result:
    readings = Readings(source, sink)
    section = Dcgmi(readings)
    for number, offset, text in source.lines():
        if text.strip() and not section.take(TextLine(number, offset, text)):
            readings.note("{} lines are not from dcgmi")
    section.end()
    return readings.result("no samples")


FORMAT = Format("dcgmi-dmon", "GPU samples (dcgmi dmon)", "metric", _sniff, _read)
