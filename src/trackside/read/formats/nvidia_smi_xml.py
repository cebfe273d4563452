"""``nvidia-smi -q -x``: XML of any schema (v11 to v13), one or more concatenated documents, complete or truncated.

Documents are parsed as a stream, and unknown elements are dropped. A document that declares entities is refused:
nvidia-smi declares none, and expansion attacks need them.
"""

from __future__ import annotations

import re
from xml.parsers import expat

from trackside.read.gpu_readings import TextLine
from trackside.read.nvidia_smi import SmiReadings, layout
from trackside.read.nvidia_smi_state import MAX_GPUS_PER_CAPTURE, MAX_PROCESSES, CaptureBuilder

_BEGIN = re.compile(r"\s*(?:<\?xml\b|<!DOCTYPE nvidia_smi_log\b|<nvidia_smi_log\b)")
_ROOT = "nvidia_smi_log"
_END = f"</{_ROOT}>"
MAX_ELEMENT_CHARS = 4096
"""Maximum number of characters of one element; the rest is dropped."""
MAX_DEPTH = 64

_GPU, _MIG = (_ROOT, "gpu"), ("mig_devices", "mig_device")
_PROCESSES, _PROCESS = ("processes",), ("processes", "process_info")
_MALFORMED_NOTE = "{} documents are truncated or malformed: only their complete GPUs were read"
_SKIPPED = frozenset({"supported_clocks", "accounted_processes", "vgpus"})


class _DisallowedDocument(ValueError):
    """The document is not allowed."""


class Xml:
    """Reads the documents of a file."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self._builder = CaptureBuilder(smi)
        self._parser: expat.XMLParserType | None = None
        self._is_rejected = False
        """Whether the current lines are the rest of a rejected document."""
        self._line = TextLine(0, 0, "")
        self._reset()

    def _reset(self) -> None:
        self._path: list[str] = []
        self._text = ""
        self._skipping = 0
        self._done = False
        self._builder.discard()

    def take(self, line: TextLine) -> bool:
        self._line = line
        is_beginning = _BEGIN.match(line.text) is not None
        first = is_beginning and not line.text.lstrip().startswith(f"<{_ROOT}")  # never occurs inside a document
        if (first and self._path) or (is_beginning and self._parser is None and (first or not self._is_rejected)):
            self.end()
            self._start()
            self._is_rejected = False
        if self._parser is None:
            was_rejected, self._is_rejected = self._is_rejected, self._is_rejected and _END not in line.text
            return was_rejected
        try:
            self._parser.Parse(line.text.encode("utf-8", "replace") + b"\n")
        except expat.ExpatError:
            self._reject(_MALFORMED_NOTE)
        except _DisallowedDocument as error:
            self._reject(f"{{}} documents were refused: {error}")
        if self._done:
            self._parser = None
            self._builder.capture.end()
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
        raise _DisallowedDocument("entities are declared in them")

    def _reject(self, note: str) -> None:
        self.smi.note(note)
        self._parser, self._is_rejected = None, _END not in self._line.text
        self._builder.capture.end()
        self._reset()

    # -- elements

    def _open(self, tag: str, attributes: dict[str, str]) -> None:
        if len(self._path) >= MAX_DEPTH:
            raise _DisallowedDocument("they are nested too deeply")
        self._path.append(tag)
        self._text = ""
        if not self._skipping and tag in _SKIPPED:
            self._skipping = len(self._path)
        builder, within = self._builder, self._within()
        if within == ():
            if builder.capture.full:
                raise _DisallowedDocument(f"they list more than {MAX_GPUS_PER_CAPTURE:,} GPUs")
            builder.begin(self._line, attributes.get("id", ""))
        elif within == _MIG:
            if len(builder.migs) >= MAX_GPUS_PER_CAPTURE:
                raise _DisallowedDocument(f"they list more than {MAX_GPUS_PER_CAPTURE:,} instances of a GPU")
            builder.migs.append({})
        elif within == _PROCESSES:
            builder.processes = []
        elif within == _PROCESS and builder.processes is not None and not builder.begin_process():
            raise _DisallowedDocument(f"they list more than {MAX_PROCESSES:,} processes on a GPU")

    def _characters(self, text: str) -> None:
        if not self._skipping and len(self._text) < MAX_ELEMENT_CHARS:
            self._text += text[:MAX_ELEMENT_CHARS]

    def _close(self, tag: str) -> None:
        if not self._skipping:
            self._leaf(self._text.strip())
        self._text = ""
        if len(self._path) == self._skipping:
            self._skipping = 0
        self._path.pop()
        self._done = not self._path

    def _within(self) -> tuple[str, ...] | None:
        """The path below <gpu>; None outside of <gpu>."""
        return tuple(self._path[2:]) if tuple(self._path[:2]) == _GPU else None

    def _leaf(self, text: str) -> None:
        builder, within = self._builder, self._within()
        if within is None:
            if self._path == [_ROOT, "timestamp"]:
                builder.capture.time = self.smi.time(text)
            elif self._path == [_ROOT, "attached_gpus"]:
                builder.capture.set_gpu_count(text)
        elif not within:
            builder.close()
        elif within[:2] == _PROCESS:
            builder.set_process_field("/".join(within[2:]), text)
        elif within[:2] == _MIG and within != _MIG:
            builder.set_mig_field(within[2:], text)
        else:
            builder.set_field(within, text)

    def end(self) -> None:
        if self._parser is not None:
            self._reject(_MALFORMED_NOTE)


FORMAT = layout(
    "nvidia-smi-xml",
    "GPU state in full, as XML (nvidia-smi -q -x)",
    b"<nvidia_smi_log",
    Xml,
    "output of nvidia-smi -q -x",
    "no GPUs",
)
