"""The NFS client, by mount and kind of operation: /proc/self/mountstats and /proc/net/rpc/nfs.

Both answer while a server is dead, which asking the mount itself does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from trackside.agent.pseudo_files import PseudoFile, first_of, mount_point, number, required
from trackside.agent.source import Collector, Context, Reading, Source

MOST_MOUNTS = 64
_NAMES = """
READ WRITE COMMIT OPEN CLOSE GETATTR SETATTR LOOKUP ACCESS CREATE MKDIR REMOVE RMDIR RENAME READDIR READDIRPLUS FSSTAT
STATFS LOCK LAYOUTGET LAYOUTRETURN LAYOUTCOMMIT RENEW SEQUENCE
"""
_SAME = {"OPEN_NOATTR": "open", "OPEN_CONFIRM": "open", "READDIRPLUS": "readdir", "STATFS": "fsstat"}
OPS = {name: name.lower() for name in _NAMES.split()} | _SAME
"""The kernel's name -> ours; all others are ``other`` together."""
ALWAYS = frozenset({"read", "write"})
"""Told before the first, too: what begins late is seen to rise only from its second reading on."""


class Operations(NamedTuple):
    """Of one kind on one mount, since it was mounted. ``total_ms``: from queue to answer, ``wire_ms``: of that, between
    sending and answer. ``timeouts``: major ones, after all retries."""

    calls: int = 0
    sent: int = 0
    timeouts: int = 0
    wire_ms: int = 0
    total_ms: int = 0


@dataclass(slots=True)
class Mount:
    """One NFS mount. ``backlog``: requests that waited for a slot, summed over all requests sent."""

    device: str
    path: str
    age: int = 0
    read_bytes: int | None = None
    written_bytes: int | None = None
    backlog: int | None = None
    ops: dict[str, Operations] = field(default_factory=dict)


def parse_mountstats(data: bytes) -> list[Mount]:
    """NFS mounts. One that is seen at several places (bind mounts) is there once: its counters are the same."""
    found: dict[tuple[str, int, str], Mount] = {}
    mount: Mount | None = None
    mounts: list[Mount] = []
    for line in data.split(b"\n"):
        if line.startswith(b"device "):
            mount = _mount(line) if len(mounts) < 8 * MOST_MOUNTS else None
            if mount is not None:
                mounts.append(mount)
        elif mount is not None:
            _take(line.strip(), mount)
    for mount in mounts:
        same = mount.device, mount.age, repr((mount.read_bytes, mount.written_bytes, mount.ops.get("read")))
        if mount.ops:
            known = found.get(same)
            if known is None or (len(mount.path), mount.path) < (len(known.path), known.path):
                found[same] = mount
    return sorted(found.values(), key=lambda mount: mount.path)[:MOST_MOUNTS]


def _mount(line: bytes) -> Mount | None:
    fields = line.split()  # device D mounted on P with fstype nfs4 statvers=1.1
    if len(fields) < 8 or fields[2:4] != [b"mounted", b"on"] or fields[7] not in (b"nfs", b"nfs4"):
        return None
    return Mount(mount_point(fields[1]), mount_point(fields[4]))


def _take(line: bytes, mount: Mount) -> None:
    key, _, rest = line.partition(b":")
    fields = rest.split()
    if key == b"age" and fields:
        mount.age = number(fields[0]) or 0
    elif key == b"bytes" and len(fields) >= 6:
        # from and to the server: what the page cache answered is no NFS
        mount.read_bytes, mount.written_bytes = number(fields[4]), number(fields[5])
    elif key == b"xprt":
        waited = _backlog(fields)
        if waited is not None:
            mount.backlog = (mount.backlog or 0) + waited  # one a connection, with nconnect
    elif len(fields) >= 8 and key.replace(b"_", b"").isalnum() and key.isupper():
        _take_operations(key, fields, mount)


def _backlog(fields: list[bytes]) -> int | None:
    """``bklog_u`` of a transport's counters: behind them stand those that only newer kernels have."""
    places = {b"tcp": 10, b"rdma": 10, b"local": 9, b"udp": 7}
    place = places.get(fields[0]) if fields else None
    return number(fields[place]) if place is not None and len(fields) > place else None


def _take_operations(key: bytes, fields: list[bytes], mount: Mount) -> None:
    counts = [number(each) for each in fields[:8]]
    name = OPS.get(key.decode(), "other")
    if None in counts or not (counts[0] or name in ALWAYS):
        return
    count, sent, timeouts, _, _, _, wire_ms, total_ms = (each or 0 for each in counts)
    more = Operations(count, sent, timeouts, wire_ms, total_ms)
    mount.ops[name] = Operations(*map(add, mount.ops.get(name, Operations()), more))


def parse_rpc(data: bytes) -> tuple[int, int] | None:
    """(calls, calls sent again) of all mounts: the line ``rpc`` of /proc/net/rpc/nfs."""
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) >= 3 and fields[0] == b"rpc":
            calls, again = number(fields[1]), number(fields[2])
            return None if calls is None or again is None else (calls, again)
    return None


class _Nfs(Collector):
    def __init__(self, context: Context) -> None:
        # Of the first process where it may be read: a container's own mounts are others than the host's.
        proc = context.node.proc
        self._mounts = PseudoFile(first_of(proc / "1/mountstats", proc / "self/mountstats"))
        self._rpc = PseudoFile(first_of(proc / "1/net/rpc/nfs", proc / "net/rpc/nfs"))
        required(self._mounts)

    def collect(self, reading: Reading) -> None:
        mounts = parse_mountstats(required(self._mounts))
        try:
            rpc = parse_rpc(self._rpc.read(4096))
        except OSError:  # the NFS client's module isn't loaded
            rpc = None
        if rpc is not None:
            reading.sample("host_nfs_calls_total", rpc[0])
            reading.sample("host_nfs_retransmissions_total", rpc[1])
        for mount in {each.path: each for each in reversed(mounts)}.values():  # of several at one place, the first
            _add(reading, mount)

    def close(self) -> None:
        self._mounts.close()
        self._rpc.close()


def _add(reading: Reading, mount: Mount) -> None:
    path = mount.path
    for metric, value in (
        ("host_nfs_read_bytes_total", mount.read_bytes),
        ("host_nfs_written_bytes_total", mount.written_bytes),
        ("host_nfs_backlog_total", mount.backlog),
        ("host_nfs_resent_total", sum(max(0, each.sent - each.calls) for each in mount.ops.values())),
        ("host_nfs_timeouts_total", sum(each.timeouts for each in mount.ops.values())),
    ):
        if value is not None:
            reading.sample(metric, value, mountpoint=path)
    for op, counts in mount.ops.items():
        reading.sample("host_nfs_operations_total", counts.calls, mountpoint=path, op=op)
        reading.sample("host_nfs_operation_seconds_total", counts.total_ms / 1e3, mountpoint=path, op=op)
        reading.sample("host_nfs_round_trip_seconds_total", counts.wire_ms / 1e3, mountpoint=path, op=op)


SOURCE = Source(
    id="nfs",
    title="the NFS client: operations and their time, bytes, requests sent again, timeouts",
    open=_Nfs,
    metrics=(
        "host_nfs_backlog_total",
        "host_nfs_calls_total",
        "host_nfs_operation_seconds_total",
        "host_nfs_operations_total",
        "host_nfs_read_bytes_total",
        "host_nfs_resent_total",
        "host_nfs_retransmissions_total",
        "host_nfs_round_trip_seconds_total",
        "host_nfs_timeouts_total",
        "host_nfs_written_bytes_total",
    ),
)
