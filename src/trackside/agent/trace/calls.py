"""What the counts of CUDA calls say of a process (tables ``cells`` and ``processes`` of programs/cuda.bpf.c)."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from trackside.agent.trace.functions import DIRECTIONS, Function

CELL_KEY, CELL = struct.Struct("<IHH"), struct.Struct("<QQQ")
PROCESS_KEY, PROCESS = struct.Struct("<I"), struct.Struct("<QQ")


@dataclass(slots=True)
class Spent:
    """Calls of one kind."""

    calls: int = 0
    ns: int = 0


@dataclass(slots=True)
class Calls:
    """What one process did."""

    cells: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """(function, direction) -> calls, nanoseconds, bytes"""
    has_context: bool = False
    devices: int = 0

    def launches(self, functions: Mapping[int, Function]) -> int | None:
        """Kernel and graph launches; None where there was none. The runtime hands each of its own to the driver, where
        the probe may or may not see it: so the larger of the two is what there was, and never counted twice."""
        by_level: defaultdict[str, int] = defaultdict(int)
        for (number, _), (calls, _, _) in self.cells.items():
            if functions[number].group == "launch":
                by_level[functions[number].library] += calls
        return max(by_level.values(), default=None)

    def spent(self, functions: Mapping[int, Function]) -> dict[str, Spent]:
        """By function as the program calls it: of the driver's, only what goes beyond the runtime's, which calls it."""
        by_level: defaultdict[tuple[str, str], dict[str, Spent]] = defaultdict(dict)
        for (number, _), (calls, ns, _) in self.cells.items():
            function = functions[number]
            spent = by_level[function.group, function.library].setdefault(function.api, Spent())
            spent.calls += calls
            spent.ns += ns
        found: dict[str, Spent] = {}
        for (group, library), by_api in by_level.items():
            above = by_level.get((group, "cudart"), {}) if library == "cuda" else {}
            found.update(_beyond(by_api, above))
        return found

    def copied(self, functions: Mapping[int, Function]) -> dict[str, int]:
        """Bytes by direction, at that level which saw more of them."""
        by_level: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (number, direction), (_, _, size) in self.cells.items():
            name = DIRECTIONS[direction] if direction < len(DIRECTIONS) else ""
            if functions[number].group == "copy" and name and size:
                by_level[functions[number].library][name] += size
        return dict(max(by_level.values(), key=lambda level: sum(level.values()), default={}))


def _beyond(by_api: Mapping[str, Spent], above: Mapping[str, Spent]) -> Iterator[tuple[str, Spent]]:
    """What is left of a group's calls when those of the level above are taken off, each its share."""
    calls, ns = (sum(getattr(each, name) for each in by_api.values()) for name in ("calls", "ns"))
    more_calls = max(0, calls - sum(each.calls for each in above.values()))
    more_ns = max(0, ns - sum(each.ns for each in above.values()))
    if not above:
        more_calls, more_ns = calls, ns
    for api, spent in by_api.items():
        left = Spent(spent.calls * more_calls // max(calls, 1), spent.ns * more_ns // max(ns, 1) if more_calls else 0)
        if left.calls:
            yield api, left


def read(cells: Iterable[tuple[bytes, bytes]], processes: Iterable[tuple[bytes, bytes]]) -> dict[int, Calls]:
    """By process."""
    found: defaultdict[int, Calls] = defaultdict(Calls)
    for key, value in cells:
        pid, number, direction = CELL_KEY.unpack(key)
        found[pid].cells[number, direction] = CELL.unpack(value)
    for key, value in processes:
        calls = found[PROCESS_KEY.unpack(key)[0]]
        calls.has_context, calls.devices = True, PROCESS.unpack(value)[1]
    return dict(found)
