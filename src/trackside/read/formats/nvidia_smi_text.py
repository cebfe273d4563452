"""``nvidia-smi -q`` as text, in full or by section (``-d``): one capture or many, one GPU or all, of any driver."""

from __future__ import annotations

import re

from trackside.read.gpu_readings import TextLine
from trackside.read.nvidia_smi import SmiReadings, layout
from trackside.read.nvidia_smi_state import MAX_GPUS_PER_CAPTURE, CaptureBuilder

_BANNER = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_ENTRY = re.compile(r"( *)([A-Za-z][\w .,()/'-]{0,80}?) *(?:: ?(.*))?")
_MARK = re.compile(rb"=NVSMI LOG=|^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$", re.MULTILINE)
MAX_LINE_CHARS = 2000
"""Longest line that nvidia-smi prints, characters."""
INDENT_CHARS = 4
"""Blanks per level."""


class TextCaptures:
    """Reads the captures of a file. A GPU's block begins with its bus id; indentation gives the nesting."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self._builder = CaptureBuilder(smi)
        self._path: list[str] = []

    def take(self, line: TextLine) -> bool:
        text = line.text.rstrip()
        if _BANNER.fullmatch(text.strip()):
            self.end()
            return True
        if match := _GPU.fullmatch(text):
            self._builder.close()
            self._builder.begin(line, match[1])
            self._path = []
            return True
        match = _ENTRY.fullmatch(text) if len(line.text) < MAX_LINE_CHARS else None
        if match is None or len(match[1]) % INDENT_CHARS:
            return False
        level, name, cell = len(match[1]) // INDENT_CHARS, match[2].lower(), match[3]
        if level == 0:
            return self._head(name, cell)
        if self._builder.line is None or level > len(self._path) + 1:
            return False
        self._path[level - 1 :] = [name]
        self._entry(name, cell)
        return True

    def _head(self, name: str, cell: str | None) -> bool:
        """Read a line at the top level of a capture: its time or the number of GPUs. Whether the line is known."""
        if cell is None:
            return False
        if name == "timestamp":
            self._builder.close()
            if self._builder.capture.gpus:
                self._builder.capture.end()
            self._builder.capture.time = self.smi.time(cell)
            return True
        if name == "attached gpus":
            self._builder.capture.set_gpu_count(cell)
            return True
        return name in ("driver version", "cuda version", "hic info", "attached units")

    def _entry(self, name: str, cell: str | None) -> None:
        builder, path = self._builder, self._path
        if path[0] == "processes":
            self._process(name, cell)
        elif path == ["mig device"] and cell is None:
            if len(builder.migs) < MAX_GPUS_PER_CAPTURE:
                builder.migs.append({})
        elif cell is not None and path[0] == "mig device" and builder.migs:
            builder.set_mig_field(tuple(path[1:]), cell)
        elif cell is not None:
            builder.set_field(tuple(path), cell)

    def _process(self, name: str, cell: str | None) -> None:
        builder = self._builder
        if builder.processes is None and (cell is None or cell.strip() == "None"):
            builder.processes = []
        if cell is not None and (name != "process id" or builder.begin_process()):
            builder.set_process_field(name, cell)

    def end(self) -> None:
        self._builder.close()
        self._builder.capture.end()


FORMAT = layout(
    "nvidia-smi-q", "GPU state in full (nvidia-smi -q)", _MARK, TextCaptures, "output of nvidia-smi -q", "no GPUs"
)
