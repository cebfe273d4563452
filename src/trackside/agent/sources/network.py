"""Network devices of hardware, and TCP's retransmissions: /proc/net/dev, /proc/net/snmp, /sys/class/net."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from trackside.agent.pseudo_files import PseudoFile, first_of, lines_of, number, readable, required
from trackside.agent.source import Collector, Context, Reading, Source

MOST_DEVICES = 256


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
    """(name, count by column) of devices; the two lines of headings and what is no device are passed over."""
    for line in data.split(b"\n"):
        name, colon, rest = line.rpartition(b":")  # an alias has one in its name
        fields = rest.split()
        if not colon or len(fields) < 16:
            continue
        counts = {place: count for place in COLUMNS if (count := number(fields[place])) is not None}
        if len(counts) == len(COLUMNS):
            yield name.strip().decode("utf-8", "replace"), counts


def parse_retransmissions(data: bytes) -> int | None:
    """``RetransSegs`` of /proc/net/snmp, where a line of values follows each of names."""
    names: list[bytes] = []
    for fields in lines_of(data):
        if not fields or fields[0] != b"Tcp:":
            continue
        if not names:
            names = fields
        elif b"RetransSegs" in names[: len(fields)]:
            return number(fields[names.index(b"RetransSegs")])
    return None


class _Network(Collector):
    def __init__(self, context: Context) -> None:
        # Of the first process: a container's own /proc/net is its own network's.
        proc, self._class = context.node.proc, context.node.sys / "class/net"
        self._devices = PseudoFile(first_of(proc / "1/net/dev", proc / "net/dev"))
        self._tcp = PseudoFile(first_of(proc / "1/net/snmp", proc / "net/snmp"))
        self._states: dict[str, PseudoFile | None] = {}
        self._speeds: dict[str, tuple[bytes, float | None]] = {}
        required(self._devices)

    def collect(self, reading: Reading) -> None:
        devices = list(parse_devices(required(self._devices)))
        for gone in self._states.keys() - {name for name, _ in devices}:
            self._forget(gone)
        for name, counts in [each for each in devices if self._is_hardware(each[0])][:MOST_DEVICES]:
            for place, (metric, kind) in COLUMNS.items():
                reading.sample(metric, counts[place], device=name, kind=kind)
            self._add_link(reading, name)
        again = parse_retransmissions(self._tcp.if_any(reading))
        if again is not None:
            reading.sample("host_tcp_retransmissions_total", again)

    def _is_hardware(self, name: str) -> bool:
        """Whether a device moves the node's own traffic: an adapter, or several bonded. The virtual ones of containers
        count the same bytes again. Where /sys can't tell, all do but the loopback."""
        if name not in self._states:
            own = name.isprintable() and "/" not in name and name != "lo"
            folder = self._class / name if own else self._class
            told = own and (not self._class.is_dir() or (folder / "device").exists() or (folder / "bonding").is_dir())
            self._states[name] = PseudoFile(folder / "operstate") if told else None
        return self._states[name] is not None

    def _add_link(self, reading: Reading, name: str) -> None:
        file = self._states[name]
        try:
            state = file.read(64).strip() if file is not None else b""
        except OSError:
            return
        if state in (b"up", b"down", b"lowerlayerdown", b"notpresent"):  # InfiniBand's say unknown on some drivers
            reading.sample("host_network_up", state == b"up", device=name)
        known = self._speeds.get(name)
        if known is None or known[0] != state:  # drivers may take milliseconds to tell a speed
            known = self._speeds[name] = state, _speed(self._class / name / "speed")
        if known[1] is not None:
            reading.sample("host_network_speed_bytes_per_second", known[1], device=name)

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
    """Bytes per second of a link; None while it is down, or not told (-1)."""
    megabits = number(readable(path, 64).strip())
    return None if not megabits or megabits >= 0xFFFFFFFF else megabits * 1e6 / 8


SOURCE = Source(
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
