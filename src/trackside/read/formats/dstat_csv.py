"""``dstat --output FILE``: host telemetry as CSV, also from its successors dool and pcp-dstat.

Rows have a time only with ``-t`` or ``-T``; otherwise it is computed from the start and the delay in the heading. Rates
become counters that begin at 0. The first row after a heading is skipped because it holds averages since boot.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from trackside.catalog.dialect import Translation
from trackside.model import Position
from trackside.read.format import Format, InputSource, Match, Result, Sink, csv_cells
from trackside.read.measurements import Measurements

_HEADING = re.compile(r'"?(?:pcp-)?(?:[Dd]stat|[Dd]ool)\b[^"\n]{0,40} CSV output"?')
_RATES = {
    ("dsk", "read"): "host_disk_read_bytes_total",
    ("dsk", "writ"): "host_disk_written_bytes_total",
    ("net", "recv"): "host_network_rx_bytes_total",
    ("net", "send"): "host_network_tx_bytes_total",
}
_LEVELS = frozenset({"total cpu usage", "total usage", "memory usage", "epoch"})
"""Groups of which all columns are used, and the time."""
_WITH_VALUE = frozenset({"--output", "-C", "-D", "-I", "-N", "-S", "-M"})
"""Options that take a value."""
_DAY = re.compile(r"(\d{1,2})-(\d{1,2}) (\d\d):(\d\d):(\d\d)")

DstatRow = Mapping[tuple[str, str], float]
"""The figures of a row by (group, name)."""


def _sniff(source: InputSource) -> Match | None:
    return Match(0.95, "dstat CSV") if _HEADING.match(source.text[:200]) else None


def start_date(text: str) -> datetime | None:
    """The date of the heading, ``23 Apr 2020 20:57:24 UTC``; any other zone is read as UTC too."""
    try:
        return datetime.strptime(" ".join(text.split()[:4]), "%d %b %Y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def delay_of(command: str) -> float:
    """Seconds between rows: the first bare number of the command line (default 1)."""
    before = ""
    for word in command.split()[1:]:
        if before not in _WITH_VALUE and re.fullmatch(r"\d{1,5}", word):
            return float(word) or 1.0
        before = word
    return 1.0


def gauges(row: DstatRow) -> dict[tuple[str, str], float]:
    """The gauges of a row by (metric, device)."""
    values: dict[tuple[str, str], float] = {}
    for cpu in ("total cpu usage", "total usage"):
        if (cpu, "idl") in row:
            values["host_cpu_busy_ratio", ""] = 1 - (row[cpu, "idl"] + row.get((cpu, "wai"), 0.0)) / 100
    memory = [row.get(("memory usage", name)) for name in ("used", "buff", "cach", "free")]
    used, *others = (figure or 0.0 for figure in memory)
    if None not in memory:
        values["host_memory_total_bytes", ""] = used + sum(others)
        values["host_memory_available_bytes", ""] = row.get(("memory usage", "avai"), sum(others))
    if ("load avg", "1m") in row:
        values["host_load1", ""] = row["load avg", "1m"]
    return values


def _is_used(group: str, name: str) -> bool:
    """Whether a column is used for any metric."""
    rate = (group.partition("/")[0], name) in _RATES
    return rate or group in _LEVELS or name == "time" or (group, name) == ("load avg", "1m")


class _Parser:
    """Parses one file; it may have several headings because dstat appends."""

    def __init__(self, path: str, measurements: Measurements) -> None:
        self._path, self._measurements = path, measurements
        self._node = ""
        self._start: datetime | None = None
        self._delay = 1.0
        self._groups: list[str] = []
        self._names: list[tuple[str, str]] = []
        self._row = 0
        self._counters: dict[tuple[str, str], float] = {}
        self._last: float | None = None
        self._numbers: dict[tuple[str, str, str], int] = {}
        self.broken_rows = self.first_broken = self.untimed_rows = 0
        self.has_computed_times = False

    def add_line(self, position: Position, cells: Sequence[str]) -> None:
        match cells:
            case []:
                self.broken_rows += 1
            case [heading, *_] if _HEADING.match(heading) or heading == "Author:":
                self._groups, self._names, self._row = [], [], 0
            case ["Host:", host, *_]:
                self._node = host
            case ["Cmdline:", command, *other_cells]:
                self._delay = delay_of(command)
                self._start = (
                    start_date(other_cells[other_cells.index("Date:") + 1]) if "Date:" in other_cells[:-1] else None
                )
            case _ if not self._groups:
                for cell in cells:
                    self._groups.append(cell or (self._groups[-1] if self._groups else ""))
            case _ if not self._names:
                self._names = list(zip(self._groups, cells, strict=False))
                for group, name in self._names:
                    if not _is_used(group, name):
                        self._measurements.add_unknown(f"{group} {name}")
            case _:
                self._figures(position, cells)

    def _figures(self, position: Position, cells: Sequence[str]) -> None:
        try:
            row = {name: float(cell) for name, cell in zip(self._names, cells, strict=True) if name[1] != "time"}
        except ValueError:
            row = {}
        if not row or not all(map(math.isfinite, row.values())):  # a rate of NaN would poison its counter
            self.broken_rows += 1
            self.first_broken = self.first_broken or position.line
            return
        time = self._time(row, dict(zip(self._names, cells, strict=True)))
        self._row += 1
        if time is None:
            self.untimed_rows += 1
        elif self._row > 1:
            elapsed_s, self._last = time - (self._last or time - self._delay), time
            for (metric, device), value in {**gauges(row), **self._counters_after(row, elapsed_s)}.items():
                self._add(metric, device, time, value, position)
        else:
            self._last = time

    def _time(self, row: DstatRow, cells: Mapping[tuple[str, str], str]) -> float | None:
        """The row's own time, or the time computed from the start; None without either."""
        if ("epoch", "epoch") in row:
            return row["epoch", "epoch"]
        if self._start is None:
            return None
        text = next((cell for (_, name), cell in cells.items() if name == "time"), "")
        if matchrements := _DAY.fullmatch(text.strip()):
            day, month, hour, minute, second = map(int, matchrements.groups())
            year = self._start.year + (month < self._start.month)
            try:
                return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
            except ValueError:
                return None
        self.has_computed_times = True
        return self._start.timestamp() + self._row * self._delay

    def _counters_after(self, row: DstatRow, seconds: float) -> dict[tuple[str, str], float]:
        """The counters: rates integrated over time."""
        for (group, name), value in row.items():
            kind, _, device = group.partition("/")
            if metric := _RATES.get((kind, name)):
                key = metric, "" if device == "total" else device
                self._counters[key] = self._counters.get(key, 0.0) + value * max(0.0, seconds)
        return self._counters

    def _add(self, metric: str, device: str, time: float, value: float, position: Position) -> None:
        key = self._node, metric, device
        if key not in self._numbers:
            labels = {"node": self._node, "device": device}
            translation = Translation(metric, tuple(sorted((n, v) for n, v in labels.items() if v)), 1.0)
            self._numbers[key] = self._measurements.add_translated(metric, translation, position)
        self._measurements.value(self._numbers[key], time, value)


def _read(source: InputSource, sink: Sink) -> Result:
    measurements = Measurements(source.path, sink)
    parser = _Parser(source.path, measurements)
    nuls = 0
    for line, offset, text in source.lines():
        clean = text.strip("\0")
        nuls += len(text) - len(clean)
        if not clean.strip():
            continue
        position = Position(source.path, line, offset, len(text.encode()))
        parser.add_line(position, csv_cells(clean))
    broken = f"{parser.broken_rows:,} rows are malformed or truncated (first: line {parser.first_broken:,})"
    notes = [
        "times computed from start and delay" if parser.has_computed_times else "",
        broken if parser.broken_rows else "",
        f"{parser.untimed_rows:,} rows without a time, and the heading has none: dropped"
        if parser.untimed_rows
        else "",
        f"{nuls:,} NUL bytes (a block that was never written)" if nuls else "",
    ]
    return measurements.result(notes, lost=bool(parser.broken_rows or parser.untimed_rows))


FORMAT = Format("dstat-csv", "host measurements (dstat or dool --output, CSV)", "metric", _sniff, _read)
