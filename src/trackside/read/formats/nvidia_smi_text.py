"""``nvidia-smi -q`` as text, whole or by sections (``-d``): one capture or many, one GPU or all, of any driver."""

from __future__ import annotations

import re

from trackside.read.gpu_readings import Line
from trackside.read.nvidia_smi import Smi, layout
from trackside.read.nvidia_smi_state import MOST_CARDS, State

_BANNER = re.compile(r"=+NVSMI LOG=+")
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)")
_ENTRY = re.compile(r"( *)([A-Za-z][\w .,()/'-]{0,80}?) *(?:: ?(.*))?")
_MARK = re.compile(rb"=NVSMI LOG=|^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d$", re.MULTILINE)
LONGEST = 2000
"""Characters of a line; nvidia-smi's are no longer."""
INDENT = 4
"""Blanks a level."""


class Text:
    """The captures of a file. A GPU's block begins with its bus id; indentation says what belongs under what."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._state = State(smi)
        self._path: list[str] = []

    def take(self, line: Line) -> bool:
        text = line.text.rstrip()
        if _BANNER.fullmatch(text.strip()):
            self.end()
            return True
        if found := _GPU.fullmatch(text):
            self._state.close()
            self._state.begin(line, found[1])
            self._path = []
            return True
        found = _ENTRY.fullmatch(text) if len(line.text) < LONGEST else None
        if found is None or len(found[1]) % INDENT:
            return False
        level, name, cell = len(found[1]) // INDENT, found[2].lower(), found[3]
        if level == 0:
            return self._head(name, cell)
        if self._state.line is None or level > len(self._path) + 1:
            return False
        self._path[level - 1 :] = [name]
        self._entry(name, cell)
        return True

    def _head(self, name: str, cell: str | None) -> bool:
        """A line of the capture's own: when it was taken, and how many GPUs there are."""
        if cell is None:
            return False
        if name == "timestamp":
            self._state.close()
            if self._state.capture.cards:
                self._state.capture.end()
            self._state.capture.time = self.smi.time(cell)
            return True
        if name == "attached gpus":
            self._state.capture.says(cell)
            return True
        return name in ("driver version", "cuda version", "hic info", "attached units")

    def _entry(self, name: str, cell: str | None) -> None:
        state, path = self._state, self._path
        if path[0] == "processes":
            self._process(name, cell)
        elif path == ["mig device"] and cell is None:
            if len(state.migs) < MOST_CARDS:
                state.migs.append({})
        elif cell is not None and path[0] == "mig device" and state.migs:
            state.keep_of_mig(tuple(path[1:]), cell)
        elif cell is not None:
            state.keep(tuple(path), cell)

    def _process(self, name: str, cell: str | None) -> None:
        state = self._state
        if state.processes is None and (cell is None or cell.strip() == "None"):
            state.processes = []
        if cell is not None and (name != "process id" or state.begin_process()):
            state.keep_of_process(name, cell)

    def end(self) -> None:
        self._state.close()
        self._state.capture.end()


FORMAT = layout(
    "nvidia-smi-q", "GPU state in full (nvidia-smi -q)", _MARK, Text, "what nvidia-smi -q prints", "no GPU in it"
)
