"""The NFS client, by mount and kind of operation: /proc/self/mountstats and /proc/net/rpc/nfs.

Both respond even if a server is dead, unlike the mount itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add
from typing import NamedTuple

from trackside.agent.pseudo_files import PseudoFile, first_of, mount_point, number, read_required
from trackside.agent.source import AgentSource, Collector, Context, Reading

MAX_MOUNTS = 64
_NAMES = """
READ WRITE COMMIT OPEN CLOSE GETATTR SETATTR LOOKUP ACCESS CREATE MKDIR REMOVE RMDIR RENAME READDIR READDIRPLUS FSSTAT
STATFS LOCK LAYOUTGET LAYOUTRETURN LAYOUTCOMMIT RENEW SEQUENCE
"""
_MERGED = {"OPEN_NOATTR": "open", "OPEN_CONFIRM": "open", "READDIRPLUS": "readdir", "STATFS": "fsstat"}
OPS = {name: name.lower() for name in _NAMES.split()} | _MERGED
"""The kernel's name -> ours; all others are counted together as ``other``."""
ALWAYS_REPORTED = frozenset({"read", "write"})
"""Reported even while 0, because an increase of a new series is visible only from its second sample on."""


class Operations(NamedTuple):
    """Operations of one kind on one mount, since it was mounted. ``total_ms``: from queueing to response; ``wire_ms``:
    of that, from sending to response. ``timeouts``: major timeouts, after all retries."""

    calls: int = 0
    transmissions: int = 0
    timeouts: int = 0
    wire_ms: int = 0
    total_ms: int = 0


@dataclass(slots=True)
class NfsMount:
    """One NFS mount. ``backlog``: requests that waited for a slot, summed over all requests sent."""

    device: str
    path: str
    age: int = 0
    read_bytes: int | None = None
    written_bytes: int | None = None
    backlog: int | None = None
    ops: dict[str, Operations] = field(default_factory=dict)


def parse_mountstats(data: bytes) -> list[NfsMount]:
    """NFS mounts. One that is visible at several paths (bind mounts) is included once: its counters are the same."""
    by_identity: dict[tuple[str, int, str], NfsMount] = {}
    mount: NfsMount | None = None
    mounts: list[NfsMount] = []
    for line in data.split(b"\n"):
        if line.startswith(b"device "):
            mount = _mount(line) if len(mounts) < 8 * MAX_MOUNTS else None
            if mount is not None:
                mounts.append(mount)
        elif mount is not None:
            _parse_line(line.strip(), mount)
    for mount in mounts:
        identity = mount.device, mount.age, repr((mount.read_bytes, mount.written_bytes, mount.ops.get("read")))
        if mount.ops:
            listed = by_identity.get(identity)
            if listed is None or (len(mount.path), mount.path) < (len(listed.path), listed.path):
                by_identity[identity] = mount
    return sorted(by_identity.values(), key=lambda mount: mount.path)[:MAX_MOUNTS]


def _mount(line: bytes) -> NfsMount | None:
    fields = line.split()  # device D mounted on P with fstype nfs4 statvers=1.1
    if len(fields) < 8 or fields[2:4] != [b"mounted", b"on"] or fields[7] not in (b"nfs", b"nfs4"):
        return None
    return NfsMount(mount_point(fields[1]), mount_point(fields[4]))


def _parse_line(line: bytes, mount: NfsMount) -> None:
    key, _, value_text = line.partition(b":")
    fields = value_text.split()
    if key == b"age" and fields:
        mount.age = number(fields[0]) or 0
    elif key == b"bytes" and len(fields) >= 6:
        # bytes from and to the server, without those from the page cache
        mount.read_bytes, mount.written_bytes = number(fields[4]), number(fields[5])
    elif key == b"xprt":
        backlog = _backlog(fields)
        if backlog is not None:
            mount.backlog = (mount.backlog or 0) + backlog  # with nconnect, there is one line per connection
    elif len(fields) >= 8 and key.replace(b"_", b"").isalnum() and key.isupper():
        _add_operations(key, fields, mount)


def _backlog(fields: list[bytes]) -> int | None:
    """``bklog_u`` in a transport's counters; newer kernels have further counters after it."""
    columns = {b"tcp": 10, b"rdma": 10, b"local": 9, b"udp": 7}
    column = columns.get(fields[0]) if fields else None
    return number(fields[column]) if column is not None and len(fields) > column else None


def _add_operations(key: bytes, fields: list[bytes], mount: NfsMount) -> None:
    counts = [number(field) for field in fields[:8]]
    name = OPS.get(key.decode(), "other")
    if None in counts or not (counts[0] or name in ALWAYS_REPORTED):
        return
    calls, transmissions, timeouts, _, _, _, wire_ms, total_ms = (count or 0 for count in counts)
    operations = Operations(calls, transmissions, timeouts, wire_ms, total_ms)
    mount.ops[name] = Operations(*map(add, mount.ops.get(name, Operations()), operations))


def parse_rpc(data: bytes) -> tuple[int, int] | None:
    """(calls, retransmitted calls) of all mounts, from the line ``rpc`` of /proc/net/rpc/nfs."""
    for line in data.split(b"\n"):
        fields = line.split()
        if len(fields) >= 3 and fields[0] == b"rpc":
            calls, retransmitted = number(fields[1]), number(fields[2])
            return None if calls is None or retransmitted is None else (calls, retransmitted)
    return None


class _Nfs(Collector):
    def __init__(self, context: Context) -> None:
        # Process 1's if readable: a container has other mounts than the host.
        proc = context.node.proc
        self._mounts = PseudoFile(first_of(proc / "1/mountstats", proc / "self/mountstats"))
        self._rpc = PseudoFile(first_of(proc / "1/net/rpc/nfs", proc / "net/rpc/nfs"))
        read_required(self._mounts)

    def collect(self, reading: Reading) -> None:
        mounts = parse_mountstats(read_required(self._mounts))
        try:
            rpc = parse_rpc(self._rpc.read(4096))
        except OSError:  # the NFS client module is not loaded
            rpc = None
        if rpc is not None:
            reading.sample("host_nfs_calls_total", rpc[0])
            reading.sample("host_nfs_retransmissions_total", rpc[1])
        for mount in {
            mount.path: mount for mount in reversed(mounts)
        }.values():  # the first of several mounts at one path
            _add(reading, mount)

    def close(self) -> None:
        self._mounts.close()
        self._rpc.close()


def _add(reading: Reading, mount: NfsMount) -> None:
    path = mount.path
    for metric, value in (
        ("host_nfs_read_bytes_total", mount.read_bytes),
        ("host_nfs_written_bytes_total", mount.written_bytes),
        ("host_nfs_backlog_total", mount.backlog),
        ("host_nfs_resent_total", sum(max(0, counts.transmissions - counts.calls) for counts in mount.ops.values())),
        ("host_nfs_timeouts_total", sum(counts.timeouts for counts in mount.ops.values())),
    ):
        if value is not None:
            reading.sample(metric, value, mountpoint=path)
    for op, counts in mount.ops.items():
        reading.sample("host_nfs_operations_total", counts.calls, mountpoint=path, op=op)
        reading.sample("host_nfs_operation_seconds_total", counts.total_ms / 1e3, mountpoint=path, op=op)
        reading.sample("host_nfs_round_trip_seconds_total", counts.wire_ms / 1e3, mountpoint=path, op=op)


SOURCE = AgentSource(
    id="nfs",
    title="NFS client: operations and their duration, bytes, retransmissions, timeouts",
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
