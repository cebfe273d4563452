"""Ports of InfiniBand, RoCE and EFA adapters: /sys/class/infiniband."""

from __future__ import annotations

import re
from pathlib import Path

from trackside.agent.pseudo_files import PseudoFile, names_in, number
from trackside.agent.source import (
    AgentSource,
    AgentSourceUnavailable,
    Collector,
    Context,
    Labels,
    Reading,
    Sample,
    pairs,
)

MAX_PORTS = 128
RESCAN_READINGS = 20
"""Number of readings after which adapters are searched for again."""
WORD_BYTES = 4
"""Unit of port_xmit_data and port_rcv_data."""
_RATE = re.compile(rb"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec")

COUNTERS = {
    "counters/port_xmit_data": ("host_infiniband_tx_bytes_total", WORD_BYTES),
    "counters/port_rcv_data": ("host_infiniband_rx_bytes_total", WORD_BYTES),
    "counters/link_downed": ("host_infiniband_link_downs_total", 1),
    "counters/port_xmit_wait": ("host_infiniband_waits_total", 1),
    "hw_counters/tx_bytes": ("host_infiniband_tx_bytes_total", 1),
    "hw_counters/rx_bytes": ("host_infiniband_rx_bytes_total", 1),
}
"""File -> metric, and the factor to its unit. EFA has its byte counters in hw_counters."""
ERRORS = {
    "counters/symbol_error": "symbol",
    "counters/link_error_recovery": "link_recovery",
    "counters/local_link_integrity_errors": "local_integrity",
    "counters/excessive_buffer_overrun_errors": "buffer_overrun",
    "counters/port_rcv_errors": "receive",
    "counters/port_rcv_remote_physical_errors": "receive_remote",
    "counters/port_rcv_switch_relay_errors": "receive_relay",
    "counters/port_rcv_constraint_errors": "receive_constraint",
    "counters/port_xmit_constraint_errors": "transmit_constraint",
    "counters/port_xmit_discards": "discards",
    "counters/VL15_dropped": "management_dropped",
    "hw_counters/rx_drops": "discards_received",
    "hw_counters/packet_seq_err": "sequence",
    "hw_counters/out_of_sequence": "out_of_sequence",
    "hw_counters/local_ack_timeout_err": "ack_timeout",
    "hw_counters/rnr_nak_retry_err": "not_ready_retry",
}
"""File -> kind of error. With RoCE, those in hw_counters indicate lost packets."""


class _Port:
    def __init__(self, folder: Path, device: str, port: str) -> None:
        self._labels = pairs({"device": device, "port": port})
        self._state, self._rate = PseudoFile(folder / "state"), PseudoFile(folder / "rate")
        files = {f"{part}/{name}" for part in ("counters", "hw_counters") for name in names_in(folder / part, 1000)}
        self._counters: list[tuple[PseudoFile, str, Labels, int]] = []
        """(file, metric, labels, factor)"""
        for name, (metric, factor) in COUNTERS.items():
            if name in files and all(metric != added_metric for _, added_metric, _, _ in self._counters):
                self._counters.append((PseudoFile(folder / name), metric, self._labels, factor))
        for name, kind in ERRORS.items():
            if name in files:
                labels = pairs({**dict(self._labels), "kind": kind})
                self._counters.append((PseudoFile(folder / name), "host_infiniband_errors_total", labels, 1))

    def add(self, reading: Reading) -> None:
        samples = reading.samples
        try:
            state, rate = self._state.read(64), self._rate.read(64)
        except OSError:
            return  # the adapter is being reset or was removed
        code = number(state.partition(b":")[0].strip())
        if code is not None:
            samples.append(Sample("host_infiniband_state", self._labels, float(code)))
        if match := _RATE.match(rate):
            samples.append(Sample("host_infiniband_rate_bytes_per_second", self._labels, float(match[1]) * 1e9 / 8))
        for file, metric, labels, factor in self._counters:
            if (value := file.count()) is not None:  # the file can exist although the adapter lacks the counter
                samples.append(Sample(metric, labels, float(value * factor)))

    def close(self) -> None:
        for file in (self._state, self._rate, *(file for file, *_ in self._counters)):
            file.close()


class _Infiniband(Collector):
    def __init__(self, context: Context) -> None:
        self._folder = context.node.sys / "class/infiniband"
        self._ports: dict[tuple[str, str], _Port] = {}
        self._readings = 0
        self._scan()

    def _scan(self) -> None:
        ports = [
            (device, port)
            for device in names_in(self._folder, MAX_PORTS)
            for port in names_in(self._folder / device / "ports", MAX_PORTS)
        ][:MAX_PORTS]
        for key in self._ports.keys() - set(ports):
            self._ports.pop(key).close()
        for device, port in ports:
            if (device, port) not in self._ports:
                self._ports[device, port] = _Port(self._folder / device / "ports" / port, device, port)
        if not self._ports:
            raise AgentSourceUnavailable(f"{self._folder} has no adapters")

    def collect(self, reading: Reading) -> None:
        self._readings += 1
        if self._readings % RESCAN_READINGS == 0:
            self._scan()
        for port in self._ports.values():
            port.add(reading)

    def close(self) -> None:
        for port in self._ports.values():
            port.close()


SOURCE = AgentSource(
    id="infiniband",
    title="ports of InfiniBand, RoCE and EFA adapters",
    open=_Infiniband,
    metrics=(
        *dict.fromkeys(metric for metric, _ in COUNTERS.values()),
        "host_infiniband_errors_total",
        "host_infiniband_rate_bytes_per_second",
        "host_infiniband_state",
    ),
)
