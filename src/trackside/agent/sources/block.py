"""Disks: /proc/diskstats of whole devices, those of several disks too (md, dm)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from trackside.agent.host.pseudo_files import PseudoFile, lines_of, names_in, number, required
from trackside.agent.source import Collector, Context, Reading, Source

SECTOR = 512
"""Bytes; /proc/diskstats counts in these whatever a disk's own sectors are."""
MOST_DISKS = 256
_NOT_DISKS = ("loop", "ram", "zram", "sr", "fd")


class Disk(NamedTuple):
    """One line of /proc/diskstats; times in milliseconds."""

    name: str
    reads: int
    read_sectors: int
    read_ms: int
    writes: int
    written_sectors: int
    write_ms: int
    in_flight: int
    busy_ms: int


def parse_diskstats(data: bytes) -> Iterator[Disk]:
    """Devices and partitions; lines that are no such are passed over."""
    for fields in lines_of(data):
        if len(fields) < 14:
            continue
        counts = [number(field) for field in fields[3:13]]
        reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, in_flight, busy_ms = counts
        told = (reads, read_sectors, read_ms, writes, written_sectors, write_ms, in_flight, busy_ms)
        known = [count for count in told if count is not None]
        if len(known) == len(told):
            yield Disk(fields[2].decode("utf-8", "replace"), *known)


class _Block:
    def __init__(self, context: Context) -> None:
        self._stats, self._folder = PseudoFile(context.node.proc / "diskstats"), context.node.sys / "block"
        required(self._stats)

    def collect(self, reading: Reading) -> None:
        whole = set(names_in(self._folder, 4 * MOST_DISKS))
        disks = [disk for disk in parse_diskstats(required(self._stats)) if _counts(disk, whole)]
        for disk in disks[:MOST_DISKS]:
            name = disk.name
            reading.sample("host_disk_busy_seconds_total", disk.busy_ms / 1e3, device=name)
            reading.sample("host_disk_read_bytes_total", disk.read_sectors * SECTOR, device=name)
            reading.sample("host_disk_written_bytes_total", disk.written_sectors * SECTOR, device=name)
            reading.sample("host_disk_requests", disk.in_flight, device=name)
            for op, count, ms in (("read", disk.reads, disk.read_ms), ("write", disk.writes, disk.write_ms)):
                reading.sample("host_disk_operations_total", count, device=name, op=op)
                reading.sample("host_disk_operation_seconds_total", ms / 1e3, device=name, op=op)

    def close(self) -> None:
        self._stats.close()


def _counts(disk: Disk, whole: set[str]) -> bool:
    """Whether it is a disk, no partition (where /sys tells), and one that was ever used."""
    name = disk.name.replace("/", "!")  # cciss/c0d0
    if disk.name.startswith(_NOT_DISKS) and disk.name.rstrip("0123456789") in _NOT_DISKS:
        return False
    return (name in whole or not whole) and bool(disk.reads or disk.writes)


def _open(context: Context) -> Collector:
    return _Block(context)


SOURCE = Source(
    id="block",
    title="disks: bytes, operations and their time, requests under way",
    open=_open,
    metrics=(
        "host_disk_busy_seconds_total",
        "host_disk_operation_seconds_total",
        "host_disk_operations_total",
        "host_disk_read_bytes_total",
        "host_disk_requests",
        "host_disk_written_bytes_total",
    ),
)
