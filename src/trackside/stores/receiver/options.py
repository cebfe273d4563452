"""What a receiver is told: where it listens, whom it lets in, and how much it takes. Imports nothing of the web."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field

DEFAULT_LISTEN = "127.0.0.1:9480"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is taken at once, so that no sender can exhaust memory or disk."""

    body_bytes: int = 32 << 20
    """One body as it comes over the wire."""
    decoded_bytes: int = 128 << 20
    """One body once it is decompressed."""
    bodies: int = 64
    """Bodies that are read, decoded or synced at the same time; more are told to come again (429)."""
    bodies_bytes: int = 256 << 20
    """Bytes of these together, as they come over the wire."""
    body_s: float = 60.0
    """How long a sender may take over one body."""
    labels: int = 64
    """Labels of one series."""
    label_name_bytes: int = 1024
    label_value_bytes: int = 4096
    series: int = 1 << 19
    """Distinct series in a day (UTC): 4,096 GPUs with 100 metrics each and their hosts."""
    pending_samples: int = 8_000_000
    """Samples that wait for their segment, at 20 bytes each; beyond it senders are told to come again (429)."""
    pending_line_bytes: int = 128 << 20
    """Text of log lines that wait for their files."""
    line_bytes: int = 1 << 20
    """One log line; what is beyond is cut."""
    streams: int = 20_000
    """Distinct streams of log lines in a day (UTC)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How often what came is written, and how long it is kept; None keeps it for good."""

    flush_s: float = 10.0
    """How long samples wait for their segment, at most."""
    flush_samples: int = 2_000_000
    """So many are not waited with."""
    raw_days: float | None = None
    """Samples older than this are kept as minutes."""
    minute_days: float | None = None
    log_days: float | None = 30.0
    """Files of received log lines, by their newest line. What was read from them stays in the store."""
    log_bytes: int = 50 << 30
    """All files of received log lines together. Beyond it the oldest go; where none can, no more lines are taken."""
    free_bytes: int = 2 << 30
    """So much stays free where the store is: below it nothing is taken."""
    verdict_days: float | None = None
    """Verdicts that did not come out again for so long, but the latest of each run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """All that ``trackside serve`` is told. Token files hold one token a line."""

    store: str
    listen: str = DEFAULT_LISTEN
    write_token_files: tuple[str, ...] = ()
    """Whoever shows one of these may send."""
    read_token_files: tuple[str, ...] = ()
    """Whoever shows one of these may ask."""
    allow_open: bool = False
    """Listen to other machines though no token is asked for."""
    certificate: str = ""
    """PEM file; with ``key``, only TLS is spoken."""
    key: str = ""
    metadata: str = ""
    """URL of the database of runs and verdicts; empty: SQLite beside the store."""
    limits: Limits = field(default_factory=Limits)
    keeping: Keeping = field(default_factory=Keeping)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port. Raises ValueError."""
        host, colon, port = self.listen.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"listen: {self.listen!r} is no HOST:PORT; give {DEFAULT_LISTEN}, or [::1]:9480")
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
