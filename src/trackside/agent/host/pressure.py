"""Pressure stall information, as the kernel writes it for the whole host and for each cgroup."""

from __future__ import annotations

RESOURCES = ("cpu", "io", "irq", "memory")
LEVELS = frozenset({b"some", b"full"})


def parse_pressure(data: bytes) -> dict[str, float]:
    """Seconds that tasks were stalled, by level: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`` a line, in
    microseconds."""
    found: dict[str, float] = {}
    for line in data.split(b"\n"):
        level, _, rest = line.partition(b" ")
        if level not in LEVELS:
            continue
        total = rest.rpartition(b"total=")[2].strip()
        if total.isdigit() and len(total) <= 20:
            found[level.decode()] = int(total) / 1e6
    return found
