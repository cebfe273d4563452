"""Interprets the counts of CUDA calls per process (tables ``cells`` and ``processes`` of programs/cuda.bpf.c)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trackside.agent.trace.functions import DIRECTIONS, Function

CELL_KEY, CELL = struct.Struct("<IHH"), struct.Struct("<QQQ")
PROCESS_KEY, PROCESS = struct.Struct("<I"), struct.Struct("<QQ")


@dataclass(slots=True)
class CallTotals:
    """Number and total time of calls of one kind."""

    calls: int = 0
    ns: int = 0


@dataclass(slots=True)
class Calls:
    """The CUDA calls of one process."""

    cells: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """(function, direction) -> calls, nanoseconds, bytes"""
    has_context: bool = False
    devices: int = 0

    def launches(self, functions: Mapping[int, Function]) -> int | None:
        """Kernel and graph launches; None without any. The runtime passes its launches on to the driver, where the
        probe may or may not see them; so the larger of the two counts is used, and none is counted twice."""
        by_level: defaultdict[str, int] = defaultdict(int)
        for (number, _), (calls, _, _) in self.cells.items():
            if functions[number].group == "launch":
                by_level[functions[number].library] += calls
        return max(by_level.values(), default=None)

    def totals(self, functions: Mapping[int, Function]) -> dict[str, CallTotals]:
        """Call totals by function. Driver calls count only beyond those of the runtime, which calls the driver."""
        by_level: defaultdict[tuple[str, str], dict[str, CallTotals]] = defaultdict(dict)
        for (number, _), (calls, ns, _) in self.cells.items():
            function = functions[number]
            entry = by_level[function.group, function.library].setdefault(function.api, CallTotals())
            entry.calls += calls
            entry.ns += ns
        totals: dict[str, CallTotals] = {}
        for (group, library), by_api in by_level.items():
            above = by_level.get((group, "cudart"), {}) if library == "cuda" else {}
            totals.update(_exclusive_totals(by_api, above))
        return totals

    def bytes_copied(self, functions: Mapping[int, Function]) -> dict[str, int]:
        """Copied bytes by direction, at the level (runtime or driver) that saw more of them."""
        by_level: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (number, direction), (_, _, size) in self.cells.items():
            name = DIRECTIONS[direction] if direction < len(DIRECTIONS) else ""
            if functions[number].group == "copy" and name and size:
                by_level[functions[number].library][name] += size
        return dict(max(by_level.values(), key=lambda level: sum(level.values()), default={}))


def _exclusive_totals(
    by_api: Mapping[str, CallTotals], above: Mapping[str, CallTotals]
) -> Iterator[tuple[str, CallTotals]]:
    """Totals of a group after subtracting those of the level above, distributed in proportion."""
    calls, ns = (sum(getattr(totals, name) for totals in by_api.values()) for name in ("calls", "ns"))
    more_calls = max(0, calls - sum(totals.calls for totals in above.values()))
    more_ns = max(0, ns - sum(totals.ns for totals in above.values()))
    if not above:
        more_calls, more_ns = calls, ns
    for api, totals in by_api.items():
        share = CallTotals(
            totals.calls * more_calls // max(calls, 1), totals.ns * more_ns // max(ns, 1) if more_calls else 0
        )
        if share.calls:
            yield api, share


def read(cells: Iterable[tuple[bytes, bytes]], processes: Iterable[tuple[bytes, bytes]]) -> dict[int, Calls]:
    """Process id -> its calls."""
    calls_by_pid: defaultdict[int, Calls] = defaultdict(Calls)
    for key, value in cells:
        pid, number, direction = CELL_KEY.unpack(key)
        calls_by_pid[pid].cells[number, direction] = CELL.unpack(value)
    for key, value in processes:
        calls = calls_by_pid[PROCESS_KEY.unpack(key)[0]]
        calls.has_context, calls.devices = True, PROCESS.unpack(value)[1]
    return dict(calls_by_pid)
