"""The systemd journal of this machine, or of the machines whose journals are in a folder, read while it is queried.

``journalctl`` selects the entries of the time range and of the run's nodes; its output is read like a file of it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from trackside.catalog.streams import short
from trackside.command import Command, CommandStopped
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, InputSource
from trackside.read.pieces import PieceStream
from trackside.read.walk import WalkItem
from trackside.settings.bounds import check_at_least, check_positive
from trackside.stores.log_store import LogRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """``command``: journalctl; its path if it is not on PATH. ``directory``: folder of journals; empty: this machine's.
    ``margin_s``: seconds included before and after the run. ``timeout_s``: limit of one call; ``max_bytes``: limit of
    its output.

    Raises ValueError for invalid values.
    """

    command: str = "journalctl"
    directory: str = ""
    margin_s: float = 300.0
    timeout_s: float = 120.0
    max_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        check_at_least(0, self, "margin_s")
        check_positive(self, "timeout_s")
        check_at_least(1, self, "max_bytes")


def journal(options: JournalOptions, query: LogRequest) -> Iterator[WalkItem]:
    """The entries of the run's nodes during the run, if the journal contains any of these nodes.

    If the journal cannot be queried, a row says so. Read the source before continuing: its process ends with it.
    """
    name = f"journalctl {options.directory}".strip()
    base = [options.command, *([f"--directory={options.directory}"] if options.directory else [])]
    hosts_command = _command([*base, "--field=_HOSTNAME"], options)
    try:
        output = b"".join(hosts_command.output())
    except CommandStopped:
        yield Input(name, None, "unreadable", f"unable to check: no answer in {options.timeout_s:g} s")
        return
    except OSError as error:
        yield Input(name, None, "unreadable", f"unable to check: {options.command}: {error.strerror}; set its path")
        return
    if hosts_command.status:
        yield Input(
            name,
            None,
            "unreadable",
            f"unable to check: {_first_line(hosts_command.errors) or f'exit code {hosts_command.status}'}",
        )
        return
    hosts = output.decode("utf-8", "replace").split()
    nodes = {short(node).lower() for node in query.nodes}
    matching_hosts = sorted(host for host in hosts if short(host).lower() in nodes)
    if not matching_hosts:
        yield Input(name, None, "empty", f"has no entries of the run's {len(query.nodes)} nodes")
        return
    bounds = [] if query.start is None else [f"--since=@{int(query.start - options.margin_s)}"]
    bounds += [] if query.end is None else [f"--until=@{int(query.end + options.margin_s) + 1}"]
    format_options = ["--output=json", "--no-pager", "--quiet"]
    entries = _Entries([*base, *format_options, *bounds, *(f"_HOSTNAME={host}" for host in matching_hosts)], options)
    with closing(entries.pieces):
        stream = io.BufferedReader(entries, HEAD_BYTES)
        source = InputSource(name, stream.peek(HEAD_BYTES)[:HEAD_BYTES], stream, faults=entries.faults)
        if source.head or entries.faults:
            yield source
        else:
            yield Input(name, None, "empty", "has no entries of the run's nodes in this time range")


class _Entries(PieceStream):
    """The output of the command; a failure, or a stop because of its time or size, is in ``faults``."""

    def __init__(self, arguments: Sequence[str], options: JournalOptions) -> None:
        self.faults: list[str] = []
        self._command, self._options = _command(arguments, options), options
        self.pieces = self._command.output()

    def next_piece(self, limit: int) -> bytes:
        try:
            if piece := next(self.pieces, b""):
                return piece
            status = self._command.status
            fault = (_first_line(self._command.errors) or f"exit code {status}") if status else ""
        except CommandStopped as stop:
            timeout_fault = _first_line(self._command.errors) or f"ended after {self._options.timeout_s:g} s"
            fault = timeout_fault if stop.reason == "timeout" else f"stopped at {self._options.max_bytes:,} bytes"
        if fault and not self.faults:
            self.faults.append(f"journalctl: {fault}")
        return b""


def _command(arguments: Sequence[str], options: JournalOptions) -> Command:
    return Command(arguments, timeout_s=options.timeout_s, max_bytes=options.max_bytes)


def _first_line(text: bytearray) -> str:
    lines = text.decode("utf-8", "replace").strip().splitlines()
    return lines[0][:300] if lines else ""
