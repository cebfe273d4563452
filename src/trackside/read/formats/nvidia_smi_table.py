"""The table that ``nvidia-smi`` prints without arguments, in its layouts since driver 418: once or in a loop."""

from __future__ import annotations

import re

from trackside.read.gpu_readings import Gpu, Line
from trackside.read.nvidia_smi import Smi, gpu_of, layout
from trackside.read.nvidia_smi_state import MOST_PROCESSES, Capture, Card, Process

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


class Table:
    """The tables of a file. Each GPU has two or three lines; the processes of all follow in a table of their own."""

    def __init__(self, smi: Smi) -> None:
        self.smi = smi
        self._capture = Capture(smi)
        self._first: tuple[Line, Gpu, dict[str, str]] | None = None
        self._listing = False
        self._migs = False

    def take(self, line: Line) -> bool:
        text = line.text.strip()
        if _DATE.fullmatch(text):
            self.end()
            self._capture.time = self.smi.time(text)
            return True
        if _RULE.fullmatch(text):
            return True
        if not (text.startswith("|") and text.endswith("|") and len(text) < 200):
            return False
        if "| NVIDIA-SMI " in text and self._capture.cards:
            self.end()
        self._row(line, text[1:-1])
        return True

    def _row(self, line: Line, text: str) -> None:
        bare = text.strip()
        if bare.startswith("Processes:"):
            self._listing = True
            for card in self._capture.cards:
                if card.processes is not None:
                    card.processes.clear()
        elif bare == "MIG devices:":
            self._migs = True
        elif self._listing:
            self._process(text)
        elif found := _FIRST.fullmatch(text):
            gpu = gpu_of(index=found["index"], pci=found["pci"], model=found["model"])
            self._first = line, gpu, {"ecc.errors.uncorrected.volatile.total": found["ecc"]}
        elif self._first is not None and (found := _SECOND.fullmatch(text)):
            first, gpu, fields = self._first
            self._first = None
            given = {_FIELDS[name]: cell for name, cell in found.groupdict().items()}
            self._capture.add(Card(first, gpu, fields | given, []))
        elif self._migs and (found := _MIG.fullmatch(text)):
            self._mig(line, found)

    def _mig(self, line: Line, found: re.Match[str]) -> None:
        owner = next((card.gpu for card in self._capture.cards if card.gpu.number == found["index"]), None)
        if owner is not None:
            fields = {_FIELDS[name]: found[name] for name in ("used", "total", "ecc")}
            self._capture.add(Card(line, owner._replace(mig=found["instance"]), fields, None))

    def _process(self, text: str) -> None:
        found = _PROCESS.fullmatch(text)
        if found is None:
            return
        for card in self._capture.cards:
            if card.gpu.number != found["index"] or card.processes is None:
                continue
            if len(card.processes) < MOST_PROCESSES:
                card.processes.append(Process(found["pid"], found["kind"], found["memory"]))

    def end(self) -> None:
        if not self._listing:  # cut off before its processes: nothing is known of them
            self._capture.cards = [card._replace(processes=None) for card in self._capture.cards]
        self._capture.end(placed=True)
        self._first, self._listing, self._migs = None, False, False


FORMAT = layout(
    "nvidia-smi-table", "GPU table (nvidia-smi)", b"| NVIDIA-SMI ", Table, "nvidia-smi's table", "no GPU in it"
)
