"""The systemd journal of this machine, or of those whose journals a folder of it holds, read while it is asked.

``journalctl`` finds the entries of the window and of the run's nodes; what it prints is read as a file of it would be.
"""

from __future__ import annotations

import io
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from trackside.catalog.streams import short
from trackside.model import Input
from trackside.read.format import HEAD, Source
from trackside.read.pieces import Pieces
from trackside.read.walk import Found
from trackside.stores.log_store import Wanted

PIECE = 1 << 18
"""Bytes taken from it at once."""


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


def journal(options: JournalOptions, wanted: Wanted) -> Iterator[Found]:
    """The entries of the run's nodes while it was there, if the journal holds any of these nodes.

    Not being able to look is a row that says so. Read the source before going on: its process ends with it.
    """
    name = f"journalctl {options.directory}".strip()
    base = [options.command, *([f"--directory={options.directory}"] if options.directory else [])]
    try:
        told = subprocess.run(
            [*base, "--field=_HOSTNAME"], capture_output=True, stdin=subprocess.DEVNULL, timeout=options.timeout_s
        )
    except subprocess.TimeoutExpired:
        yield Input(name, None, "unreadable", f"unable to check: no answer in {options.timeout_s:g} s")
        return
    except OSError as error:
        yield Input(name, None, "unreadable", f"unable to check: {options.command}: {error.strerror}; set its path")
        return
    if told.returncode:
        yield Input(
            name, None, "unreadable", f"unable to check: {_said(told.stderr) or f'exit code {told.returncode}'}"
        )
        return
    hosts = told.stdout.decode("utf-8", "replace").split()
    nodes = {short(node).lower() for node in wanted.nodes}
    theirs = sorted(host for host in hosts if short(host).lower() in nodes)
    if not theirs:
        yield Input(name, None, "empty", f"holds no entries of the run's {len(wanted.nodes)} nodes")
        return
    bounds = [] if wanted.start is None else [f"--since=@{int(wanted.start - options.margin_s)}"]
    bounds += [] if wanted.end is None else [f"--until=@{int(wanted.end + options.margin_s) + 1}"]
    quiet = ["--output=json", "--no-pager", "--quiet"]
    yield from _entries([*base, *quiet, *bounds, *(f"_HOSTNAME={host}" for host in theirs)], name, options)


def _entries(command: Sequence[str], name: str, options: JournalOptions) -> Iterator[Found]:
    faults: list[str] = []
    with (
        TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        ending = threading.Timer(options.timeout_s, process.kill)
        ending.daemon = True
        ending.start()
        try:
            stream = io.BufferedReader(_Output(process, errors, options, faults), HEAD)
            source = Source(name, stream.peek(HEAD)[:HEAD], stream, faults=faults)
            if source.head or faults:
                yield source
            else:
                yield Input(name, None, "empty", "holds no entries of the run's nodes then")
        finally:
            ending.cancel()
            process.kill()


class _Output(Pieces):
    """What a process prints; that it failed, or was ended for its time or size, stands in ``faults``."""

    def __init__(
        self, process: subprocess.Popen[bytes], errors: IO[bytes], options: JournalOptions, faults: list[str]
    ) -> None:
        self._process, self._errors, self._options, self._faults = process, errors, options, faults
        self._taken = 0
        self._ended = False

    def next_piece(self, limit: int) -> bytes:
        if self._ended or self._process.stdout is None:
            return b""
        piece = self._process.stdout.read(PIECE)
        self._taken += len(piece)
        if self._taken > self._options.most_bytes:
            self._ended = True
            self._process.kill()
            self._faults.append(f"journalctl: stopped at {self._options.most_bytes:,} bytes")
        elif not piece:
            self._ended = True
            if code := self._process.wait():
                self._errors.seek(0)
                late = f"ended after {self._options.timeout_s:g} s" if code == -9 else f"exit code {code}"
                self._faults.append(f"journalctl: {_said(self._errors.read(1000)) or late}")
        return piece


def _said(text: bytes) -> str:
    shown = text.decode("utf-8", "replace").strip().splitlines()
    return shown[0][:300] if shown else ""
