"""The table of ``nvidia-smi`` without arguments, in its layouts since driver 418, once or in a loop."""

from __future__ import annotations

import re

from trackside.read.gpu_readings import GpuIdentity, TextLine
from trackside.read.nvidia_smi import SmiReadings, gpu_of, layout
from trackside.read.nvidia_smi_state import MAX_PROCESSES, Capture, GpuState, Process

_DATE = re.compile(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d")
_RULE = re.compile(r"[+|][-=+]+[+|]")
_FIRST = re.compile(
    r" +(?P<index>\d{1,3}) +(?P<model>\S.{0,60}?) +(?:On|Off|N/A|TCC|WDDM|MCDM|ERR!) *\|"
    r" +(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d) +\S+ *\| *(?P<ecc>\S+) *"
)
_SECOND = re.compile(
    r" *\S+ +(?P<temperature>-?\d+|N/A|ERR!)C? +(?P<pstate>P\d{1,2}|N/A|ERR!|Unknown Error)"
    r" +(?P<power>\S+) */ *(?P<limit>\S+) *\|"
    r" *(?P<used>\S+) */ *(?P<total>\S+) *\| *(?P<utilization>\S+) +\S.{0,20}? *"
)
_MIG = re.compile(
    r" +(?P<index>\d{1,3}) +(?P<instance>\d{1,3}) +\d{1,3} +\d{1,3} *\|"
    r" *(?P<used>\d+MiB) */ *(?P<total>\d+MiB) *\| *\d+ +(?P<ecc>\S+) *\|.*"
)
_PROCESS = re.compile(
    r" +(?P<index>\d{1,3}) +(?:(?:\d+|N/A) +(?:\d+|N/A) +)?(?P<pid>\d{1,10}) +(?P<kind>C\+G|M\+C|[CGM])"
    r" +\S.*?(?P<memory>\d+MiB|N/A) *"
)
_FIELDS = {
    "temperature": "temperature.gpu",
    "pstate": "pstate",
    "power": "power.draw",
    "limit": "enforced.power.limit",
    "used": "memory.used",
    "total": "memory.total",
    "utilization": "utilization.gpu",
    "ecc": "ecc.errors.uncorrected.volatile.total",
}


class SmiTable:
    """Reads the tables of a file. Each GPU has two or three lines; a separate table lists the processes of all GPUs."""

    def __init__(self, smi: SmiReadings) -> None:
        self.smi = smi
        self._capture = Capture(smi)
        self._first_line: tuple[TextLine, GpuIdentity, dict[str, str]] | None = None
        self._in_processes = False
        self._in_migs = False

    def take(self, line: TextLine) -> bool:
        text = line.text.strip()
        if _DATE.fullmatch(text):
            self.end()
            self._capture.time = self.smi.time(text)
            return True
        if _RULE.fullmatch(text):
            return True
        if not (text.startswith("|") and text.endswith("|") and len(text) < 200):
            return False
        if "| NVIDIA-SMI " in text and self._capture.gpus:
            self.end()
        self._row(line, text[1:-1])
        return True

    def _row(self, line: TextLine, text: str) -> None:
        bare = text.strip()
        if bare.startswith("Processes:"):
            self._in_processes = True
            for gpu_state in self._capture.gpus:
                if gpu_state.processes is not None:
                    gpu_state.processes.clear()
        elif bare == "MIG devices:":
            self._in_migs = True
        elif self._in_processes:
            self._process(text)
        elif match := _FIRST.fullmatch(text):
            gpu = gpu_of(index=match["index"], pci=match["pci"], model=match["model"])
            self._first_line = line, gpu, {"ecc.errors.uncorrected.volatile.total": match["ecc"]}
        elif self._first_line is not None and (match := _SECOND.fullmatch(text)):
            line_of_gpu, gpu, fields = self._first_line
            self._first_line = None
            values = {_FIELDS[name]: cell for name, cell in match.groupdict().items()}
            self._capture.add(GpuState(line_of_gpu, gpu, fields | values, []))
        elif self._in_migs and (match := _MIG.fullmatch(text)):
            self._mig(line, match)

    def _mig(self, line: TextLine, match: re.Match[str]) -> None:
        owner = next(
            (gpu_state.gpu for gpu_state in self._capture.gpus if gpu_state.gpu.number == match["index"]), None
        )
        if owner is not None:
            fields = {_FIELDS[name]: match[name] for name in ("used", "total", "ecc")}
            self._capture.add(GpuState(line, owner._replace(mig=match["instance"]), fields, None))

    def _process(self, text: str) -> None:
        match = _PROCESS.fullmatch(text)
        if match is None:
            return
        for gpu_state in self._capture.gpus:
            if gpu_state.gpu.number != match["index"] or gpu_state.processes is None:
                continue
            if len(gpu_state.processes) < MAX_PROCESSES:
                gpu_state.processes.append(Process(match["pid"], match["kind"], match["memory"]))

    def end(self) -> None:
        if not self._in_processes:  # truncated before the process table: the processes are unknown
            self._capture.gpus = [gpu_state._replace(processes=None) for gpu_state in self._capture.gpus]
        self._capture.end(has_indices=True)
        self._first_line, self._in_processes, self._in_migs = None, False, False


FORMAT = layout("nvidia-smi-table", "GPU table (nvidia-smi)", b"| NVIDIA-SMI ", SmiTable, "nvidia-smi table", "no GPUs")
