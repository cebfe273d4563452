"""Hardware network devices, and TCP retransmissions: /proc/net/dev, /proc/net/snmp, /sys/class/net."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trackside.agent.pseudo_files import PseudoFile, first_of, number, read_or_empty, read_required, split_lines
from trackside.agent.source import AgentSource, Collector, Context, Reading

MAX_DEVICES = 256


COLUMNS = {
    8: ("host_network_tx_bytes_total", None),
    0: ("host_network_rx_bytes_total", None),
    10: ("host_network_errors_total", "tx_errors"),
    2: ("host_network_errors_total", "rx_errors"),
    11: ("host_network_errors_total", "tx_dropped"),
    3: ("host_network_errors_total", "rx_dropped"),
}
"""Column of /proc/net/dev -> metric and kind of error."""


def parse_devices(data: bytes) -> Iterator[tuple[str, dict[int, int]]]:
    """(name, count by column) of devices; the two heading lines and other lines are skipped."""
    for line in data.split(b"\n"):
        name, colon, values = line.rpartition(b":")  # alias names contain a colon
        fields = values.split()
        if not colon or len(fields) < 16:
            continue
        counts = {column: count for column in COLUMNS if (count := number(fields[column])) is not None}
        if len(counts) == len(COLUMNS):
            yield name.strip().decode("utf-8", "replace"), counts


def parse_retransmissions(data: bytes) -> int | None:
    """``RetransSegs`` in /proc/net/snmp, where a line of values follows each line of names."""
    names: list[bytes] = []
    for fields in split_lines(data):
        if not fields or fields[0] != b"Tcp:":
            continue
        if not names:
            names = fields
        elif b"RetransSegs" in names[: len(fields)]:
            return number(fields[names.index(b"RetransSegs")])
    return None


class _Network(Collector):
    def __init__(self, context: Context) -> None:
        # Process 1's: a container's own /proc/net is that of its own network namespace.
        proc, self._class = context.node.proc, context.node.sys / "class/net"
        self._devices = PseudoFile(first_of(proc / "1/net/dev", proc / "net/dev"))
        self._tcp = PseudoFile(first_of(proc / "1/net/snmp", proc / "net/snmp"))
        self._states: dict[str, PseudoFile | None] = {}
        self._speeds: dict[str, tuple[bytes, float | None]] = {}
        read_required(self._devices)

    def collect(self, reading: Reading) -> None:
        devices = list(parse_devices(read_required(self._devices)))
        for removed in self._states.keys() - {name for name, _ in devices}:
            self._forget(removed)
        hardware = [device for device in devices if self._is_hardware(device[0])]
        for name, counts in hardware[:MAX_DEVICES]:
            for column, (metric, kind) in COLUMNS.items():
                reading.sample(metric, counts[column], device=name, kind=kind)
            self._add_link(reading, name)
        retransmissions = parse_retransmissions(self._tcp.read_or_warn(reading))
        if retransmissions is not None:
            reading.sample("host_tcp_retransmissions_total", retransmissions)

    def _is_hardware(self, name: str) -> bool:
        """Whether a device carries the node's own traffic: an adapter, or a bond of several. Virtual devices of
        containers count the same bytes again. If /sys is missing, all devices count except the loopback."""
        if name not in self._states:
            is_candidate = name.isprintable() and "/" not in name and name != "lo"
            folder = self._class / name if is_candidate else self._class
            is_hardware = is_candidate and (
                not self._class.is_dir() or (folder / "device").exists() or (folder / "bonding").is_dir()
            )
            self._states[name] = PseudoFile(folder / "operstate") if is_hardware else None
        return self._states[name] is not None

    def _add_link(self, reading: Reading, name: str) -> None:
        file = self._states[name]
        try:
            state = file.read(64).strip() if file is not None else b""
        except OSError:
            return
        # InfiniBand devices report unknown with some drivers.
        if state in (b"up", b"down", b"lowerlayerdown", b"notpresent"):
            reading.sample("host_network_up", state == b"up", device=name)
        cached = self._speeds.get(name)
        if cached is None or cached[0] != state:  # drivers may take milliseconds to report the speed
            cached = self._speeds[name] = state, _speed(self._class / name / "speed")
        if cached[1] is not None:
            reading.sample("host_network_speed_bytes_per_second", cached[1], device=name)

    def _forget(self, name: str) -> None:
        file = self._states.pop(name)
        self._speeds.pop(name, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        self._devices.close()
        self._tcp.close()
        for name in list(self._states):
            self._forget(name)


def _speed(path: Path) -> float | None:
    """Link speed in bytes per second; None if the link is down or the speed is unknown (-1)."""
    megabits = number(read_or_empty(path, 64).strip())
    return None if not megabits or megabits >= 0xFFFFFFFF else megabits * 1e6 / 8


SOURCE = AgentSource(
    id="network",
    title="network devices and TCP retransmissions",
    open=_Network,
    metrics=(
        *dict.fromkeys(metric for metric, _ in COLUMNS.values()),
        "host_network_speed_bytes_per_second",
        "host_network_up",
        "host_tcp_retransmissions_total",
    ),
)
