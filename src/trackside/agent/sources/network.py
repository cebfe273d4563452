"""Network devices of hardware, and TCP's retransmissions: /proc/net/dev, /proc/net/snmp, /sys/class/net."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trackside.agent.host.pseudo_files import PseudoFile, first_of, lines_of, number, required
from trackside.agent.source import Collector, Context, Reading, Source

MOST_DEVICES = 256


class Device(NamedTuple):
    """One line of /proc/net/dev."""

    name: str
    rx_bytes: int
    rx_errors: int
    rx_dropped: int
    tx_bytes: int
    tx_errors: int
    tx_dropped: int


def parse_devices(data: bytes) -> Iterator[Device]:
    """Devices; the two lines of headings and what is no device are passed over."""
    for line in data.split(b"\n"):
        name, colon, rest = line.rpartition(b":")  # an alias has one in its name
        fields = rest.split()
        if not colon or len(fields) < 16:
            continue
        counts = [number(fields[place]) for place in (0, 2, 3, 8, 10, 11)]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            yield Device(name.strip().decode("utf-8", "replace"), *known)


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


class _Network:
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
        for gone in self._states.keys() - {device.name for device in devices}:
            self._forget(gone)
        for device in [each for each in devices if self._is_hardware(each.name)][:MOST_DEVICES]:
            name = device.name
            reading.sample("host_network_tx_bytes_total", device.tx_bytes, device=name)
            reading.sample("host_network_rx_bytes_total", device.rx_bytes, device=name)
            for kind in ("tx_errors", "rx_errors", "tx_dropped", "rx_dropped"):
                reading.sample("host_network_errors_total", getattr(device, kind), device=name, kind=kind)
            self._add_link(reading, name)
        try:
            again = parse_retransmissions(self._tcp.read())
        except OSError as error:
            reading.warnings.append(f"{self._tcp.path}: {error.strerror}")
        else:
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
    file = PseudoFile(path)
    try:
        megabits = number(file.read(64).strip())
    except OSError:
        return None
    finally:
        file.close()
    return None if not megabits or megabits >= 0xFFFFFFFF else megabits * 1e6 / 8


def _open(context: Context) -> Collector:
    return _Network(context)


SOURCE = Source(
    id="network",
    title="network devices and TCP retransmissions",
    open=_open,
    metrics=(
        "host_network_errors_total",
        "host_network_rx_bytes_total",
        "host_network_speed_bytes_per_second",
        "host_network_tx_bytes_total",
        "host_network_up",
        "host_tcp_retransmissions_total",
    ),
)
