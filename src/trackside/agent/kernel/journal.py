"""The kernel's messages from systemd's journal, by a child process: ``journalctl -k -f -o json``.

For agents that may read the journal (group ``systemd-journal``) but not the kernel's ring buffer. ``dmesg`` is no
alternative: it reads the same ring and needs the same permission.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from pathlib import Path

import msgspec

from trackside.agent.source import AgentSourceUnavailable, Reading

_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 256 << 10
_TIMEOUT_S = 10.0


class KernelPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the kernel's messages were read, saved across restarts of the agent. For the journal: its cursor. For the
    ring: the boot, the number of the last record and the clock."""

    cursor: str = ""
    boot: str = ""
    sequence: int = -1
    base_ns: int | None = None
    drift_ns: int = 0


def load_position(path: Path) -> KernelPosition:
    """The saved position; an empty one if it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes()[:4096], type=KernelPosition)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return KernelPosition()


class Journal:
    """The journal's kernel messages as (POSIX nanoseconds, text)."""

    def __init__(self, program: str, position: KernelPosition, look_back_s: float) -> None:
        """Raises AgentSourceUnavailable."""
        _check_access(program)
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
        """Lines since the last call. Raises AgentSourceUnavailable once journalctl has exited."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise AgentSourceUnavailable(f"journalctl exited with status {self._child.wait(_TIMEOUT_S)}")
        *lines, self._tail = (self._tail + data).split(b"\n")
        if len(self._tail) > _MAX_LINE_BYTES:
            self._tail = b""
            reading.lost["lines"] += 1
        timed_lines: list[tuple[int, str]] = []
        for line in lines:
            entry = parse_entry(line)
            if entry is not None:
                time_ns, text, self._cursor = entry[0], entry[1], entry[2] or self._cursor
                timed_lines += [(time_ns, part.rstrip()) for part in text.split("\n") if part.strip()]
        return timed_lines

    def position(self) -> KernelPosition:
        """The position to resume from."""
        return KernelPosition(cursor=self._cursor)

    def close(self) -> None:
        """Stop the child process."""
        self._child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(2.0)
        if self._child.returncode is None:
            self._child.kill()
            self._child.wait(_TIMEOUT_S)
        if self._child.stdout is not None:
            self._child.stdout.close()


def parse_entry(line: bytes) -> tuple[int, str, str] | None:
    """(POSIX nanoseconds, text, cursor) of an entry; None if it is not one."""
    try:
        entry = json.loads(line)
        time_us, message = int(entry["__REALTIME_TIMESTAMP"]), entry["MESSAGE"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(message, list):  # bytes that are not UTF-8
        if not all(isinstance(byte, int) and 0 <= byte < 256 for byte in message):
            return None
        message = bytes(message).decode("utf-8", "replace")
    if not isinstance(message, str) or not 0 <= time_us < 1 << 53:
        return None
    return time_us * 1000, message.replace("\0", ""), str(entry.get("__CURSOR", ""))


def _check_access(program: str) -> None:
    """Check that this process sees kernel messages in the journal. Raises AgentSourceUnavailable."""
    try:
        result = subprocess.run(
            [program, "-k", "-q", "-n", "1", "--no-pager", "-o", "cat"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentSourceUnavailable(f"{program} cannot be run: {error}") from None
    if result.returncode or not result.stdout.strip():
        reason = result.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise AgentSourceUnavailable(f"{program} shows no kernel messages{f' ({reason})' if reason else ''}")
