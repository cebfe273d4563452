"""Disks: /proc/diskstats of whole devices, those of several disks too (md, dm)."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.agent.pseudo_files import PseudoFile, lines_of, names_in, number, required
from trackside.agent.source import Collector, Context, Reading, Source

MOST_DISKS = 256
_SECTOR, _MS = 1 / 512, 1e3
"""Of a byte, and in a second: /proc/diskstats counts in sectors of 512 bytes whatever a disk's own are."""
_READS, _WRITES = 3, 7
COLUMNS: dict[int, tuple[str, str | None, float]] = {
    _READS: ("host_disk_operations_total", "read", 1),
    5: ("host_disk_read_bytes_total", None, _SECTOR),
    6: ("host_disk_operation_seconds_total", "read", _MS),
    _WRITES: ("host_disk_operations_total", "write", 1),
    9: ("host_disk_written_bytes_total", None, _SECTOR),
    10: ("host_disk_operation_seconds_total", "write", _MS),
    11: ("host_disk_requests", None, 1),
    12: ("host_disk_busy_seconds_total", None, _MS),
}
"""Column -> metric, kind of operation, and how many of what is counted are one of the metric's unit."""
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")


def parse_diskstats(data: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """(name, count by column) of devices and partitions; lines that are no such are passed over."""
    for fields in lines_of(data):
        if len(fields) < 14:
            continue
        counts = {place: count for place in COLUMNS if (count := number(fields[place])) is not None}
        if len(counts) == len(COLUMNS):
            yield fields[2].decode("utf-8", "replace"), counts


class _Block(Collector):
    def __init__(self, context: Context) -> None:
        self._stats, self._folder = PseudoFile(context.node.proc / "diskstats"), context.node.sys / "block"
        required(self._stats)

    def collect(self, reading: Reading) -> None:
        whole = set(names_in(self._folder, 4 * MOST_DISKS))
        disks = [disk for disk in parse_diskstats(required(self._stats)) if _is_used_disk(*disk, whole)]
        for name, counts in disks[:MOST_DISKS]:
            for place, (metric, op, unit) in COLUMNS.items():
                reading.sample(metric, counts[place] / unit, device=name, op=op)

    def close(self) -> None:
        self._stats.close()


def _is_used_disk(name: str, counts: dict[int, int], whole: set[str]) -> bool:
    """Whether it is a disk, no partition (where /sys tells), and one that was ever used."""
    if name.startswith(_NOT_DISKS) and name.rstrip("0123456789") in _NOT_DISKS:
        return False
    there = name.replace("/", "!") in whole or not whole  # cciss/c0d0
    return there and bool(counts[_READS] or counts[_WRITES])


SOURCE = Source(
    id="block",
    title="disks: bytes, operations and their time, requests under way",
    open=_Block,
    metrics=tuple(dict.fromkeys(metric for metric, _, _ in COLUMNS.values())),
)
