"""Disks, from /proc/diskstats: whole devices, including md and dm."""

from __future__ import annotations

from collections.abc import Iterator

from trackside.agent.pseudo_files import PseudoFile, names_in, number, read_required, split_lines
from trackside.agent.source import AgentSource, Collector, Context, Reading

MAX_DISKS = 256
_SECTOR, _MS = 1 / 512, 1e3
"""Sectors per byte and milliseconds per second; /proc/diskstats always counts in sectors of 512 bytes."""
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
"""Column -> metric, kind of operation, and counts per unit of the metric."""
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")


def parse_diskstats(data: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """(name, count by column) of devices and partitions; other lines are skipped."""
    for fields in split_lines(data):
        if len(fields) < 14:
            continue
        counts = {column: count for column in COLUMNS if (count := number(fields[column])) is not None}
        if len(counts) == len(COLUMNS):
            yield fields[2].decode("utf-8", "replace"), counts


class _Block(Collector):
    def __init__(self, context: Context) -> None:
        self._stats, self._folder = PseudoFile(context.node.proc / "diskstats"), context.node.sys / "block"
        read_required(self._stats)

    def collect(self, reading: Reading) -> None:
        whole_disks = set(names_in(self._folder, 4 * MAX_DISKS))
        disks = [disk for disk in parse_diskstats(read_required(self._stats)) if _is_used_disk(*disk, whole_disks)]
        for name, counts in disks[:MAX_DISKS]:
            for column, (metric, op, unit) in COLUMNS.items():
                reading.sample(metric, counts[column] / unit, device=name, op=op)

    def close(self) -> None:
        self._stats.close()


def _is_used_disk(name: str, counts: dict[int, int], whole_disks: set[str]) -> bool:
    """Whether it is a disk that was ever used, not a partition (if /sys shows that)."""
    if name.startswith(_NOT_DISKS) and name.rstrip("0123456789") in _NOT_DISKS:
        return False
    is_whole = name.replace("/", "!") in whole_disks or not whole_disks  # cciss/c0d0
    return is_whole and bool(counts[_READS] or counts[_WRITES])


SOURCE = AgentSource(
    id="block",
    title="disks: bytes, operations and their duration, requests in flight",
    open=_Block,
    metrics=tuple(dict.fromkeys(metric for metric, _, _ in COLUMNS.values())),
)
