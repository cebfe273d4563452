"""The kernel's messages from systemd's journal, by a child process: ``journalctl -k -f -o json``.

For agents that may read the journal (group ``systemd-journal``) and not the kernel's ring. ``dmesg`` is no such way: it
reads the same ring and needs the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import msgspec

from trackside.agent.source import Reading, Unavailable

_READ = 1 << 20
_MOST_TAIL = 256 << 10
_TRY_S = 10.0


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the kernel's messages were read, kept over restarts of the agent: of the journal its cursor, of the ring
    the boot, the last record's number in it and its clock."""

    cursor: str = ""
    boot: str = ""
    sequence: int = -1
    base_ns: int | None = None
    drift_ns: int = 0


def recall(path: Path) -> Position:
    """What was written down last; nothing where that can't be read."""
    try:
        return msgspec.json.decode(path.read_bytes()[:4096], type=Position)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Position()


class Journal:
    """Lines that the journal has of the kernel, as (POSIX nanoseconds, text)."""

    def __init__(self, program: str, position: Position, look_back_s: float) -> None:
        """Raises Unavailable."""
        _ask(program)
        self._cursor = position.cursor
        since = f"--after-cursor={self._cursor}" if self._cursor else f"--since=@{int(time.time() - look_back_s)}"
        fields = "--output-fields=MESSAGE,__CURSOR,__REALTIME_TIMESTAMP"
        self._child = subprocess.Popen(
            [program, "-k", "-f", "-q", "--no-tail", "--no-pager", "-o", "json", fields, since],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._child.stdout is not None
        self._fd = self._child.stdout.fileno()
        os.set_blocking(self._fd, False)
        self._tail = b""

    def read(self, reading: Reading) -> list[tuple[int, str]]:
        """Lines since the last time. Raises Unavailable once the program has ended."""
        try:
            data = os.read(self._fd, _READ)
        except BlockingIOError:
            return []
        if not data:
            raise Unavailable(f"journalctl ended with status {self._child.wait(_TRY_S)}")
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > _MOST_TAIL:
            self._tail = b""
            reading.lost["lines"] += 1
        found: list[tuple[int, str]] = []
        for line in lines:
            entry = parse_entry(line)
            if entry is not None:
                time_ns, text, self._cursor = entry[0], entry[1], entry[2] or self._cursor
                found += [(time_ns, each.rstrip()) for each in text.split("\n") if each.strip()]
        return found

    def position(self) -> Position:
        """Where to go on."""
        return Position(cursor=self._cursor)

    def close(self) -> None:
        """End the child."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(2.0)
        if self._child.returncode is None:
            self._child.kill()
            self._child.wait(_TRY_S)
        if self._child.stdout is not None:
            self._child.stdout.close()


def parse_entry(line: bytes) -> tuple[int, str, str] | None:
    """(POSIX nanoseconds, text, cursor) of an entry; None for what is none."""
    try:
        entry = json.loads(line)
        time_us, message = int(entry["__REALTIME_TIMESTAMP"]), entry["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, list):  # bytes that are no UTF-8
        if not all(isinstance(each, int) and 0 <= each < 256 for each in message):
            return None
        message = bytes(message).decode("utf-8", "replace")
    if not isinstance(message, str) or not 0 <= time_us < 1 << 53:
        return None
    return time_us * 1000, message.replace("\0", ""), str(entry.get("__CURSOR", ""))


def _ask(program: str) -> None:
    """Whether this process sees any of the kernel's messages. Raises Unavailable."""
    try:
        told = subprocess.run(
            [program, "-k", "-q", "-n", "1", "--no-pager", "-o", "cat"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRY_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{program} can't be asked: {error}") from None
    if told.returncode or not told.stdout.strip():
        why = told.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Unavailable(f"{program} shows none of the kernel's messages{f' ({why})' if why else ''}")
