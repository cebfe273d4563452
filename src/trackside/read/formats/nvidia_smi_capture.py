"""Several nvidia-smi commands' output in one file: tables, queries, full state, XML, samples, one behind the other.

Each part is handed to the reader of its layout. Parts that measure nothing (topology, help) are passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trackside.read.format import Format, Match, Result, Sink, Source
from trackside.read.formats.nvidia_smi_csv import Csv, cells_of, heading_of
from trackside.read.formats.nvidia_smi_dmon import Dmon, Pmon
from trackside.read.formats.nvidia_smi_table import Table
from trackside.read.formats.nvidia_smi_text import Text
from trackside.read.formats.nvidia_smi_xml import Xml
from trackside.read.gpu_readings import Line, head_lines
from trackside.read.nvidia_smi import FOREIGN_SHARE, Section, Smi, gpu_of, is_between

_COMMAND = re.compile(r"(?:# )?\S{0,80}?[$#>%+]\s*(?:/\S*/)?nvidia-smi\b.*")
_BANNER = re.compile(r"[#=*-]{8,}")
_LISTED = re.compile(r"GPU (\d{1,3}): (.{1,80}?) \(UUID: (GPU-[0-9a-f-]{36})\)")
_BEGINNINGS: tuple[tuple[re.Pattern[str], Callable[[Smi], Section]], ...] = (
    (re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d\s*"), Table),
    (re.compile(r"\|\s*NVIDIA-SMI .*"), Table),
    (re.compile(r"=+NVSMI LOG=+"), Text),
    (re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE nvidia_smi_log\b|<nvidia_smi_log\b).*"), Xml),
    (re.compile(r"#\s*(?:Date\s+)?(?:Time\s+)?gpu\s+pid\s+type\s.*"), Pmon),
    (re.compile(r"#\s*(?:Date\s+)?(?:Time\s+)?gpu\s.*"), Dmon),
    (re.compile(r".{0,120}nvidia-smi\b.{0,200}--query-(?:gpu|compute-apps).*"), Csv),
)


class Parts:
    """The parts of a file."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self.kinds: set[type] = set()
        self.commands = 0
        self._now: Section | None = None

    def take(self, line: Line) -> bool:
        """Whether a line is of any part, or stands between two."""
        text = line.text.strip()
        if _COMMAND.fullmatch(text):
            self.commands += 1
            self.end()
            if "--query-" in text:
                self._begin(Csv, line)
            return True
        if self._now is not None and self._now.take(line):
            return True
        if _BANNER.fullmatch(text):
            self.end()
            return True
        if found := _LISTED.fullmatch(text):
            self.smi.learn(gpu_of(index=found[1], uuid=found[3]))
            return True
        make = next((make for pattern, make in _BEGINNINGS if pattern.fullmatch(line.text)), None)
        if make is None and heading_of(cells_of(text)) is not None:
            make = Csv
        if make is None:
            return False
        self.end()
        return self._begin(make, line)

    def _begin(self, make: Callable[[Smi], Section], line: Line) -> bool:
        self._now = make(self.smi)
        taken = self._now.take(line)
        if isinstance(make, type):
            self.kinds.add(make)
        return taken

    def end(self) -> None:
        """A part is at its end, or the file."""
        if self._now is not None:
            self._now.end()
        self._now = None


def _sniff(source: Source) -> Match | None:
    if b"nvidia-smi" not in source.head and b"NVIDIA-SMI" not in source.head:
        return None
    lines = list(head_lines(source))
    parts = Parts(Smi.discarded(source))
    own = sum(parts.take(line) or is_between(line.text) for line in lines)
    parts.end()
    if sum(line.text.startswith("# $ nvidia-smi") for line in lines) >= 2:
        return Match(0.95, "several nvidia-smi commands, each under its heading")
    if len(parts.kinds) < 2 or len(lines) - own > FOREIGN_SHARE * len(lines):
        return None
    return Match(0.95, f"output of {len(parts.kinds)} nvidia-smi commands")


def _read(source: Source, sink: Sink) -> Result:
    parts = Parts(Smi(source, sink))
    for number, offset, text in source.lines():
        if text.strip():
            line = Line(number, offset, text)
            if not parts.take(line):
                parts.smi.complaint(line)
    parts.end()
    return parts.smi.result("nothing measured in it")


FORMAT = Format("nvidia-smi-capture", "output of several nvidia-smi commands", "metric", _sniff, _read)
