"""Options of the receiver: where it listens, whom it authorizes, and how much it accepts. Imports no web framework."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

DEFAULT_LISTEN = "127.0.0.1:9480"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverLimits:
    """Limits on what is accepted at once, so that no sender can exhaust memory or disk."""

    body_bytes: int = 32 << 20
    """Bytes of one body on the wire."""
    decoded_bytes: int = 128 << 20
    """Bytes of one body after decompression."""
    bodies_bytes: int = 256 << 20
    """Bytes of all bodies that are read, decoded or synced at the same time, on the wire; further ones get 429. One
    sender (an address) may have half of them."""
    body_s: float = 60.0
    """Seconds that a sender may take to send one body."""
    body_bytes_per_s: int = 4096
    """Mean rate at which a body must come, after its first 5 s; a slower one gets 503."""
    labels: int = 64
    """Labels of one series."""
    label_name_bytes: int = 1024
    label_value_bytes: int = 4096
    series: int = 1 << 19
    """Distinct series with samples within an hour: enough for 4,096 GPUs with 100 metrics each and their hosts. One
    sender (an address) or job may use three quarters."""
    pending_samples: int = 8_000_000
    """Samples that wait for their segment, at 20 bytes each; beyond that senders get 429."""
    pending_line_bytes: int = 128 << 20
    """Bytes of log lines that wait for their files."""
    line_bytes: int = 1 << 20
    """Bytes of one log line; longer lines are cut."""
    streams: int = 20_000
    """Distinct streams with log lines within an hour. One sender or job may use three quarters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """How often received data is written, and how long it is kept; None keeps it for good."""

    flush_s: float = 10.0
    """Longest wait of samples for their segment, in seconds."""
    flush_samples: int = 2_000_000
    """This many samples are written at once."""
    raw_days: float | None = None
    """Samples older than this are kept as per-minute aggregates."""
    minute_days: float | None = None
    log_days: float | None = 30.0
    """Files of received log lines, by the age of their newest line. What was read from them stays in the store."""
    log_bytes: int = 50 << 30
    """All files of received log lines together. Beyond that the oldest files of the job that has most are deleted;
    if none can be, no more lines are accepted."""
    free_bytes: int = 2 << 30
    """Bytes that stay free on the store's disk: with less, nothing is accepted."""
    verdict_days: float | None = None
    """Verdicts not confirmed for so many days are deleted, except the latest of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of ``trackside serve``. Token files hold one token per line."""

    store: str
    listen: str = DEFAULT_LISTEN
    hosts: tuple[str, ...] = ()
    """Names by which clients reach it, besides its addresses, ``localhost`` and the machine's own name. A request for
    another name is refused, unless tokens are required for reading and writing: a web page could have sent it."""
    write_token_files: tuple[str, ...] = ()
    """Clients with one of these tokens may push data."""
    read_token_files: tuple[str, ...] = ()
    """Clients with one of these tokens may query."""
    allow_open: bool = False
    """Whether to listen to other machines although no token is required."""
    certificate: str = ""
    """PEM file; with ``key``, only TLS is spoken."""
    key: str = ""
    metadata: str = ""
    """URL of the database of runs and verdicts; empty: SQLite next to the store."""
    limits: ReceiverLimits = field(default_factory=ReceiverLimits)
    keeping: RetentionOptions = field(default_factory=RetentionOptions)

    def __post_init__(self) -> None:
        _, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"listen: {self.listen!r} is not HOST:PORT; give {DEFAULT_LISTEN}, or [::1]:9480")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        host, _ = self.address
        if host == "localhost":
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False
