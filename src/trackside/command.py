"""Runs a command as a child process: never through a shell, with limited time and output.

Its whole process group is killed afterwards in any case.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal

MAX_ERROR_BYTES = 16 << 10
"""Bytes of stderr that are kept."""
_PIECE_BYTES = 1 << 16
_POLL_S = 0.2
"""Interval of checks whether a command has ended while a process it started keeps its output open."""


class CommandStopped(Exception):
    """A command that was stopped, because it took too long or wrote too much."""

    def __init__(self, reason: Literal["timeout", "too_large"]) -> None:
        super().__init__(reason)
        self.reason: Literal["timeout", "too_large"] = reason


class Command:
    """One command. ``status`` and ``errors`` (the beginning of stderr) are valid once its output is read to the end."""

    def __init__(
        self, arguments: Sequence[str], *, timeout_s: float, max_bytes: int, env: Mapping[str, str] | None = None
    ) -> None:
        self._arguments, self._timeout_s, self._max_bytes, self._env = arguments, timeout_s, max_bytes, env
        self.status = 0
        self.errors = bytearray()

    def output(self) -> Generator[bytes, None, None]:
        """Run it; yields its output as it arrives. Raises OSError if it cannot be run, and CommandStopped."""
        until = time.monotonic() + self._timeout_s
        child = subprocess.Popen(
            self._arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self._env,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield from self._pieces(child, until)
            while not _has_ended(child.pid):
                if time.monotonic() > until:
                    raise CommandStopped("timeout")
                time.sleep(0.005)
        finally:
            # Not reaped yet, so its process id and group cannot belong to another process.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            self.status = child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()

    def _pieces(self, child: subprocess.Popen[bytes], until: float) -> Iterator[bytes]:
        assert child.stdout is not None
        assert child.stderr is not None
        size = 0
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            selector.register(child.stderr, selectors.EVENT_READ)
            while selector.get_map():
                left = until - time.monotonic()
                if left <= 0:
                    raise CommandStopped("timeout")
                ready = selector.select(min(left, _POLL_S))
                for key, _ in ready:
                    piece = os.read(key.fd, _PIECE_BYTES)
                    if not piece:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is child.stderr:
                        self.errors += piece[: MAX_ERROR_BYTES - len(self.errors)]
                    else:
                        size += len(piece)
                        if size > self._max_bytes:
                            raise CommandStopped("too_large")
                        yield piece
                if not ready and _has_ended(child.pid):
                    break


def _has_ended(pid: int) -> bool:
    """Whether the child has ended; it is left to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
