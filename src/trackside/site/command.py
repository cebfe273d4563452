"""A command of the site, run as a child: never through a shell, for a limited time and with limited output.

Whatever happens, its whole process group is gone afterwards.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from trackside.http.unanswered import Unanswered, plain

PIECE = 1 << 16
MOST_SAID = 16 << 10
"""Bytes of what a command says on stderr that are kept."""
POLL_S = 0.2
"""How soon it is noticed that a command has ended while something it started still holds its output open."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended by itself. ``said``: one line, from stderr or, where that is empty, from its output."""

    status: int
    output: bytes
    said: str


def run(
    arguments: Sequence[str], *, timeout_s: float, most_bytes: int, env: Mapping[str, str] | None = None
) -> Finished:
    """Run it and take its output.

    Raises Unanswered: it isn't there, can't be run, takes longer than ``timeout_s`` or writes more than ``most_bytes``.
    """
    shown = arguments[0].rsplit("/", 1)[-1]
    try:
        child = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise Unanswered("unreachable", f"{shown} is not at {arguments[0]}") from None
    except OSError as error:
        raise Unanswered("refused", f"{arguments[0]} can't be run: {error.strerror or error}") from None
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        output, errors = _taken(child, child.stdout, child.stderr, time.monotonic() + timeout_s, most_bytes)
    except _TooLate:
        raise Unanswered("timeout", f"{shown} did not end within {timeout_s:g} s, and was stopped") from None
    except _TooMuch:
        raise Unanswered("too_large", f"{shown} wrote more than {most_bytes:,} bytes, and was stopped") from None
    finally:
        # Not yet reaped, so that its number, and its group's, can't be another's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()
        child.stderr.close()
    return Finished(child.returncode, output, plain((errors.strip() or output[:MOST_SAID]).decode("utf-8", "replace")))


class _TooLate(Exception):
    pass


class _TooMuch(Exception):
    pass


def _taken(
    child: subprocess.Popen[bytes], stdout: IO[bytes], stderr: IO[bytes], until: float, most: int
) -> tuple[bytes, bytes]:
    """What it writes until it has ended: all of its output, the beginning of its errors."""
    output, errors = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ, output)
        selector.register(stderr, selectors.EVENT_READ, errors)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                raise _TooLate
            ready = selector.select(min(left, POLL_S))
            for key, _ in ready:
                piece = os.read(key.fd, PIECE)
                if not piece:
                    selector.unregister(key.fileobj)
                key.data.extend(piece)
                del errors[MOST_SAID:]
                if len(output) > most:
                    raise _TooMuch
            if not ready and _ended(child.pid):
                break
    while not _ended(child.pid):
        if time.monotonic() > until:
            raise _TooLate
        time.sleep(0.005)
    return bytes(output), bytes(errors)


def _ended(pid: int) -> bool:
    """Whether the child has ended; it is left to be reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
