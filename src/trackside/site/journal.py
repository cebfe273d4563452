"""The systemd journal of this machine, or of those whose journals a folder of it holds, read while it is asked.

``journalctl`` finds the entries of the window and of the run's nodes; what it prints is read as a file of it would be.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from trackside.catalog.streams import short
from trackside.command import Command, CommandStopped
from trackside.model import Input
from trackside.read.format import HEAD_BYTES, Source
from trackside.read.pieces import PieceStream
from trackside.read.walk import WalkItem
from trackside.stores.log_store import LogRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """``command``: journalctl, by its path where it isn't on PATH. ``directory``: of journals; empty: this machine's.
    ``margin_s``: looked at before and after the run. ``timeout_s``: after which it is ended; ``most_bytes``: of output.
    """

    command: str = "journalctl"
    directory: str = ""
    margin_s: float = 300.0
    timeout_s: float = 120.0
    most_bytes: int = 4 << 30


def journal(options: JournalOptions, wanted: LogRequest) -> Iterator[WalkItem]:
    """The entries of the run's nodes while it was there, if the journal holds any of these nodes.

    Not being able to look is a row that says so. Read the source before going on: its process ends with it.
    """
    name = f"journalctl {options.directory}".strip()
    base = [options.command, *([f"--directory={options.directory}"] if options.directory else [])]
    told = _command([*base, "--field=_HOSTNAME"], options)
    try:
        listed = b"".join(told.output())
    except CommandStopped:
        yield Input(name, None, "unreadable", f"unable to check: no answer in {options.timeout_s:g} s")
        return
    except OSError as error:
        yield Input(name, None, "unreadable", f"unable to check: {options.command}: {error.strerror}; set its path")
        return
    if told.status:
        yield Input(name, None, "unreadable", f"unable to check: {_said(told.errors) or f'exit code {told.status}'}")
        return
    hosts = listed.decode("utf-8", "replace").split()
    nodes = {short(node).lower() for node in wanted.nodes}
    theirs = sorted(host for host in hosts if short(host).lower() in nodes)
    if not theirs:
        yield Input(name, None, "empty", f"holds no entries of the run's {len(wanted.nodes)} nodes")
        return
    bounds = [] if wanted.start is None else [f"--since=@{int(wanted.start - options.margin_s)}"]
    bounds += [] if wanted.end is None else [f"--until=@{int(wanted.end + options.margin_s) + 1}"]
    quiet = ["--output=json", "--no-pager", "--quiet"]
    entries = _Entries([*base, *quiet, *bounds, *(f"_HOSTNAME={host}" for host in theirs)], options)
    with closing(entries.pieces):
        stream = io.BufferedReader(entries, HEAD_BYTES)
        source = Source(name, stream.peek(HEAD_BYTES)[:HEAD_BYTES], stream, faults=entries.faults)
        if source.head or entries.faults:
            yield source
        else:
            yield Input(name, None, "empty", "holds no entries of the run's nodes then")


class _Entries(PieceStream):
    """What the command prints; that it failed, or was ended for its time or size, stands in ``faults``."""

    def __init__(self, arguments: Sequence[str], options: JournalOptions) -> None:
        self.faults: list[str] = []
        self._command, self._options = _command(arguments, options), options
        self.pieces = self._command.output()

    def next_piece(self, limit: int) -> bytes:
        try:
            if piece := next(self.pieces, b""):
                return piece
            status = self._command.status
            fault = (_said(self._command.errors) or f"exit code {status}") if status else ""
        except CommandStopped as stop:
            late = _said(self._command.errors) or f"ended after {self._options.timeout_s:g} s"
            fault = late if stop.reason == "timeout" else f"stopped at {self._options.most_bytes:,} bytes"
        if fault and not self.faults:
            self.faults.append(f"journalctl: {fault}")
        return b""


def _command(arguments: Sequence[str], options: JournalOptions) -> Command:
    return Command(arguments, timeout_s=options.timeout_s, max_bytes=options.most_bytes)


def _said(text: bytearray) -> str:
    shown = text.decode("utf-8", "replace").strip().splitlines()
    return shown[0][:300] if shown else ""
