"""``dstat --output FILE``: host telemetry as CSV, and that of its successors dool and pcp-dstat.

Rows carry a time only where it was asked for (``-t``, ``-T``); else they are reckoned from the start and the delay that
the heading tells. Rates become counters that begin at 0; the first row after a heading is left out, as it holds
averages since the machine was booted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trackside.catalog.dialect import Translated
from trackside.model import Position
from trackside.read.format import Format, Match, Result, Sink, Source, csv_cells
from trackside.read.measurements import Measurements

_HEADING = re.compile(r'"?(?:pcp-)?(?:[Dd]stat|[Dd]ool)\b[^"\n]{0,40} CSV output"?')
_RATES = {
    ("dsk", "read"): "host_disk_read_bytes_total",
    ("dsk", "writ"): "host_disk_written_bytes_total",
    ("net", "recv"): "host_network_rx_bytes_total",
    ("net", "send"): "host_network_tx_bytes_total",
}
_LEVELS = frozenset({"total cpu usage", "total usage", "memory usage", "epoch"})
"""Groups whose columns are read together, and the time."""
_WITH_VALUE = frozenset({"--output", "-C", "-D", "-I", "-N", "-S", "-M"})
"""Options that a value follows."""
_DAY = re.compile(r"(\d{1,2})-(\d{1,2}) (\d\d):(\d\d):(\d\d)")

Row = Mapping[tuple[str, str], float]
"""A row's figures by (group, name)."""


def _sniff(source: Source) -> Match | None:
    return Match(0.95, "dstat's CSV") if _HEADING.match(source.text[:200]) else None


def started(text: str) -> datetime | None:
    """The date of the heading, ``23 Apr 2020 20:57:24 UTC``; in another zone it is read as UTC all the same."""
    try:
        return datetime.strptime(" ".join(text.split()[:4]), "%d %b %Y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def delay_of(command: str) -> float:
    """Seconds between rows: the first bare number of the command line, 1 by default."""
    before = ""
    for word in command.split()[1:]:
        if before not in _WITH_VALUE and re.fullmatch(r"\d{1,5}", word):
            return float(word) or 1.0
        before = word
    return 1.0


def measured(row: Row) -> dict[tuple[str, str], float]:
    """Levels of a row by (our metric, device)."""
    found: dict[tuple[str, str], float] = {}
    for cpu in ("total cpu usage", "total usage"):
        if (cpu, "idl") in row:
            found["host_cpu_busy_ratio", ""] = 1 - (row[cpu, "idl"] + row.get((cpu, "wai"), 0.0)) / 100
    memory = [row.get(("memory usage", name)) for name in ("used", "buff", "cach", "free")]
    used, *rest = (each or 0.0 for each in memory)
    if None not in memory:
        found["host_memory_total_bytes", ""] = used + sum(rest)
        found["host_memory_available_bytes", ""] = row.get(("memory usage", "avai"), sum(rest))
    if ("load avg", "1m") in row:
        found["host_load1", ""] = row["load avg", "1m"]
    return found


def _asked(group: str, name: str) -> bool:
    """Whether anything of ours is made of a column."""
    rate = (group.partition("/")[0], name) in _RATES
    return rate or group in _LEVELS or name == "time" or (group, name) == ("load avg", "1m")


class _Reading:
    """One file on its way through; it may hold several headings, as dstat appends."""

    def __init__(self, path: str, found: Measurements) -> None:
        self._path, self._found = path, found
        self._node = ""
        self._start: datetime | None = None
        self._delay = 1.0
        self._groups: list[str] = []
        self._names: list[tuple[str, str]] = []
        self._row = 0
        self._counters: dict[tuple[str, str], float] = {}
        self._last: float | None = None
        self._numbers: dict[tuple[str, str, str], int] = {}
        self.broken = self.first_broken = self.untimed = 0
        self.reckoned = False

    def line(self, at: Position, cells: Sequence[str]) -> None:
        match cells:
            case []:
                self.broken += 1
            case [heading, *_] if _HEADING.match(heading) or heading == "Author:":
                self._groups, self._names, self._row = [], [], 0
            case ["Host:", host, *_]:
                self._node = host
            case ["Cmdline:", command, *rest]:
                self._delay = delay_of(command)
                self._start = started(rest[rest.index("Date:") + 1]) if "Date:" in rest[:-1] else None
            case _ if not self._groups:
                for cell in cells:
                    self._groups.append(cell or (self._groups[-1] if self._groups else ""))
            case _ if not self._names:
                self._names = list(zip(self._groups, cells, strict=False))
                for group, name in self._names:
                    if not _asked(group, name):
                        self._found.unasked(f"{group} {name}")
            case _:
                self._figures(at, cells)

    def _figures(self, at: Position, cells: Sequence[str]) -> None:
        try:
            row = {name: float(cell) for name, cell in zip(self._names, cells, strict=True) if name[1] != "time"}
        except ValueError:
            row = {}
        if not row or not all(map(math.isfinite, row.values())):  # a rate of nan would stay in its counter
            self.broken += 1
            self.first_broken = self.first_broken or at.line
            return
        time = self._time(row, dict(zip(self._names, cells, strict=True)))
        self._row += 1
        if time is None:
            self.untimed += 1
        elif self._row > 1:
            since, self._last = time - (self._last or time - self._delay), time
            for (metric, device), value in {**measured(row), **self._counted(row, since)}.items():
                self._give(metric, device, time, value, at)
        else:
            self._last = time

    def _time(self, row: Row, cells: Mapping[tuple[str, str], str]) -> float | None:
        """The row's own time, or that reckoned from the start."""
        if ("epoch", "epoch") in row:
            return row["epoch", "epoch"]
        if self._start is None:
            return None
        text = next((cell for (_, name), cell in cells.items() if name == "time"), "")
        if found := _DAY.fullmatch(text.strip()):
            day, month, hour, minute, second = map(int, found.groups())
            year = self._start.year + (month < self._start.month)
            try:
                return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
            except ValueError:
                return None
        self.reckoned = True
        return self._start.timestamp() + self._row * self._delay

    def _counted(self, row: Row, seconds: float) -> dict[tuple[str, str], float]:
        """Rates added up over time."""
        for (group, name), value in row.items():
            kind, _, device = group.partition("/")
            if metric := _RATES.get((kind, name)):
                key = metric, "" if device == "total" else device
                self._counters[key] = self._counters.get(key, 0.0) + value * max(0.0, seconds)
        return self._counters

    def _give(self, metric: str, device: str, time: float, value: float, at: Position) -> None:
        key = self._node, metric, device
        if key not in self._numbers:
            labels = {"node": self._node, "device": device}
            known = Translated(metric, tuple(sorted((n, v) for n, v in labels.items() if v)), 1.0)
            self._numbers[key] = self._found.enter(metric, known, at)
        self._found.value(self._numbers[key], time, value)


def _read(source: Source, sink: Sink) -> Result:
    found = Measurements(source.path, sink)
    reading = _Reading(source.path, found)
    holes = 0
    for line, offset, text in source.lines():
        clean = text.strip("\0")
        holes += len(text) - len(clean)
        if not clean.strip():
            continue
        at = Position(source.path, line, offset, len(text.encode()))
        reading.line(at, csv_cells(clean))
    broken = f"{reading.broken:,} rows are broken or cut off (first: line {reading.first_broken:,})"
    notes = [
        "its times are reckoned from its start and delay" if reading.reckoned else "",
        broken if reading.broken else "",
        f"{reading.untimed:,} rows have no time, and the heading none: not kept" if reading.untimed else "",
        f"{holes:,} NUL bytes (a block that was never written)" if holes else "",
    ]
    return found.result(notes, lost=bool(reading.broken or reading.untimed))


FORMAT = Format("dstat-csv", "host measurements (dstat or dool --output, CSV)", "metric", _sniff, _read)
