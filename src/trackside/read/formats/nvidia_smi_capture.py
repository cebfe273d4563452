"""Output of several nvidia-smi commands in one file: tables, queries, full state, XML, samples.

Each part is read by the reader of its layout. Parts without measurements (topology, help) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trackside.read.format import Format, InputSource, Match, Result, Sink
from trackside.read.formats.nvidia_smi_csv import Csv, cells_of, heading_of
from trackside.read.formats.nvidia_smi_dmon import Dmon, Pmon
from trackside.read.formats.nvidia_smi_table import SmiTable
from trackside.read.formats.nvidia_smi_text import TextCaptures
from trackside.read.formats.nvidia_smi_xml import Xml
from trackside.read.gpu_readings import TextLine, head_lines
from trackside.read.nvidia_smi import FOREIGN_SHARE, SmiReadings, SmiSection, gpu_of, is_separator

_COMMAND = re.compile(r"(?:# )?\S{0,80}?[$#>%+]\s*(?:/\S*/)?nvidia-smi\b.*")
_BANNER = re.compile(r"[#=*-]{8,}")
_LISTED = re.compile(r"GPU (\d{1,3}): (.{1,80}?) \(UUID: (GPU-[0-9a-f-]{36})\)")
_BEGINNINGS: tuple[tuple[re.Pattern[str], Callable[[SmiReadings], SmiSection]], ...] = (
    (re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d\s*"), SmiTable),
    (re.compile(r"\|\s*NVIDIA-SMI .*"), SmiTable),
    (re.compile(r"=+NVSMI LOG=+"), TextCaptures),
    (re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE nvidia_smi_log\b|<nvidia_smi_log\b).*"), Xml),
    (re.compile(r"#\s*(?:Date\s+)?(?:Time\s+)?gpu\s+pid\s+type\s.*"), Pmon),
    (re.compile(r"#\s*(?:Date\s+)?(?:Time\s+)?gpu\s.*"), Dmon),
    (re.compile(r".{0,120}nvidia-smi\b.{0,200}--query-(?:gpu|compute-apps).*"), Csv),
)


class Parts:
    """Splits a file into parts, each with its layout."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self.kinds: set[type] = set()
        self.commands = 0
        self._section: SmiSection | None = None

    def take(self, line: TextLine) -> bool:
        """Read a line; whether it belongs to a part or separates two."""
        text = line.text.strip()
        if _COMMAND.fullmatch(text):
            self.commands += 1
            self.end()
            if "--query-" in text:
                self._begin(Csv, line)
            return True
        if self._section is not None and self._section.take(line):
            return True
        if _BANNER.fullmatch(text):
            self.end()
            return True
        if match := _LISTED.fullmatch(text):
            self.smi.learn(gpu_of(index=match[1], uuid=match[3]))
            return True
        make_section = next(
            (make_section for pattern, make_section in _BEGINNINGS if pattern.fullmatch(line.text)), None
        )
        if make_section is None and heading_of(cells_of(text)) is not None:
            make_section = Csv
        if make_section is None:
            return False
        self.end()
        return self._begin(make_section, line)

    def _begin(self, make_section: Callable[[SmiReadings], SmiSection], line: TextLine) -> bool:
        self._section = make_section(self.smi)
        is_taken = self._section.take(line)
        if isinstance(make_section, type):
            self.kinds.add(make_section)
        return is_taken

    def end(self) -> None:
        """End the current part."""
        if self._section is not None:
            self._section.end()
        self._section = None


def _sniff(source: InputSource) -> Match | None:
    if b"nvidia-smi" not in source.head and b"NVIDIA-SMI" not in source.head:
        return None
    lines = list(head_lines(source))
    parts = Parts(SmiReadings.for_sniffing(source))
    own_lines = sum(parts.take(line) or is_separator(line.text) for line in lines)
    parts.end()
    if sum(line.text.startswith("# $ nvidia-smi") for line in lines) >= 2:
        return Match(0.95, "several nvidia-smi commands with headings")
    if len(parts.kinds) < 2 or len(lines) - own_lines > FOREIGN_SHARE * len(lines):
        return None
    return Match(0.95, f"output of {len(parts.kinds)} nvidia-smi commands")


def _read(source: InputSource, sink: Sink) -> Result:
    parts = Parts(SmiReadings(source, sink))
    for number, offset, text in source.lines():
        if text.strip():
            line = TextLine(number, offset, text)
            if not parts.take(line):
                parts.smi.is_error_message(line)
    parts.end()
    return parts.smi.result("no measurements")


FORMAT = Format("nvidia-smi-capture", "output of several nvidia-smi commands", "metric", _sniff, _read)
