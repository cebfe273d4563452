"""``nvidia-smi -q -x``: XML of any schema (v11 to v13), one document or many behind each other, whole or cut off.

Documents are parsed as they come, and what isn't asked for is not kept. A document that declares entities is refused:
nvidia-smi declares none, and an entity is what an expansion attack is made of.
"""

from __future__ import annotations

import re
from xml.parsers import expat

from trackside.read.gpu_readings import Line
from trackside.read.nvidia_smi import Smi, layout
from trackside.read.nvidia_smi_state import MOST_CARDS, MOST_PROCESSES, State

_BEGIN = re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE nvidia_smi_log\b|<nvidia_smi_log\b)")
_ROOT = "nvidia_smi_log"
_END = f"</{_ROOT}>"
MOST_TEXT = 4096
"""Characters of one element that are kept."""
DEPTH = 64

_GPU, _MIG = (_ROOT, "gpu"), ("mig_devices", "mig_device")
_PROCESSES, _PROCESS = ("processes",), ("processes", "process_info")
_GARBLED = "{} documents are cut off or garbled: their whole GPUs were read"
_SKIPPED = frozenset({"supported_clocks", "accounted_processes", "vgpus"})


class _Refused(ValueError):
    """A document that is not read on purpose."""


class Xml:
    """The documents of a file."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._state = State(smi)
        self._parser: expat.XMLParserType | None = None
        self._ruined = False
        """Whether lines are the rest of a document that was given up."""
        self._line = Line(0, 0, "")
        self._reset()

    def _reset(self) -> None:
        self._path: list[str] = []
        self._text = ""
        self._skipping = 0
        self._done = False
        self._state.discard()

    def take(self, line: Line) -> bool:
        self._line = line
        begins = _BEGIN.match(line.text) is not None
        first = begins and not line.text.lstrip().startswith(f"<{_ROOT}")  # what no document has in its midst
        if (first and self._path) or (begins and self._parser is None and (first or not self._ruined)):
            self.end()
            self._start()
            self._ruined = False
        if self._parser is None:
            ruined, self._ruined = self._ruined, self._ruined and _END not in line.text
            return ruined
        try:
            self._parser.Parse(line.text.encode("utf-8", "replace") + b"\n")
        except expat.ExpatError:
            self._give_up(_GARBLED)
        except _Refused as refused:
            self._give_up(f"{{}} documents were refused: {refused}")
        if self._done:
            self._parser = None
            self._state.capture.end()
            self._reset()
        return True

    def _start(self) -> None:
        self._reset()
        parser = self._parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._open
        parser.EndElementHandler = self._close
        parser.CharacterDataHandler = self._characters

    def _refuse(self, *_: object) -> None:
        raise _Refused("entities are declared in them")

    def _give_up(self, note: str) -> None:
        self.smi.note(note)
        self._parser, self._ruined = None, _END not in self._line.text
        self._state.capture.end()
        self._reset()

    # -- elements

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= DEPTH:
            raise _Refused("they are nested too deeply")
        self._path.append(tag)
        self._text = ""
        if not self._skipping and tag in _SKIPPED:
            self._skipping = len(self._path)
        state, within = self._state, self._within()
        if within == ():
            if state.capture.full:
                raise _Refused(f"they list more than {MOST_CARDS:,} GPUs")
            state.begin(self._line, attributes.get("id", ""))
        elif within == _MIG:
            if len(state.migs) >= MOST_CARDS:
                raise _Refused(f"they list more than {MOST_CARDS:,} instances of a GPU")
            state.migs.append({})
        elif within == _PROCESSES:
            state.processes = []
        elif within == _PROCESS and state.processes is not None and not state.begin_process():
            raise _Refused(f"they list more than {MOST_PROCESSES:,} processes on a GPU")

    def _characters(self, text: str) -> None:
        if not self._skipping and len(self._text) < MOST_TEXT:
            self._text += text[:MOST_TEXT]

    def _close(self, tag: str) -> None:
        if not self._skipping:
            self._leaf(self._text.strip())
        self._text = ""
        if len(self._path) == self._skipping:
            self._skipping = 0
        self._path.pop()
        self._done = not self._path

    def _within(self) -> tuple[str, ...] | None:
        """The path below <gpu>; None outside of one."""
        return tuple(self._path[2:]) if tuple(self._path[:2]) == _GPU else None

    def _leaf(self, text: str) -> None:
        state, within = self._state, self._within()
        if within is None:
            if self._path == [_ROOT, "timestamp"]:
                state.capture.time = self.smi.time(text)
            elif self._path == [_ROOT, "attached_gpus"]:
                state.capture.says(text)
        elif not within:
            state.close()
        elif within[:2] == _PROCESS:
            state.keep_of_process("/".join(within[2:]), text)
        elif within[:2] == _MIG and within != _MIG:
            state.keep_of_mig(within[2:], text)
        else:
            state.keep(within, text)

    def end(self) -> None:
        if self._parser is not None:
            self._give_up(_GARBLED)


FORMAT = layout(
    "nvidia-smi-xml",
    "GPU state in full, as XML (nvidia-smi -q -x)",
    b"<nvidia_smi_log",
    Xml,
    "what nvidia-smi -q -x prints",
    "no GPU in it",
)
