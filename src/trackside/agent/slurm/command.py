"""Slurm's commands: run without a shell, in plain English and POSIX seconds, for a limited time and output."""

from __future__ import annotations

import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from trackside.errors import TracksideError

MOST_BYTES = 512 << 20
"""Of one command's output: it is taken line by line."""
MOST_LINE = 64 << 10
"""Bytes of one line that are kept."""
_MOST_SAID = 2000
_PIECE = 1 << 16
_POLL_S = 0.2
_THEIRS = re.compile(r"(?:SACCT|SQUEUE|SCONTROL|SINFO|SDIAG)_")
"""Variables that change what the commands print."""


class CommandFailed(TracksideError):
    """A command that could not be run, ended with an error, took too long or wrote too much: a line that says which."""


class Commands:
    """Where they are: in ``folder``, or on PATH; ``conf``: of the cluster's slurm.conf, empty for the usual one."""

    def __init__(
        self, folder: str = "", conf: str = "", timeout_s: float = 60.0, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._path, self._timeout_s = folder or environ.get("PATH", os.defpath), timeout_s
        kept = {name: value for name, value in environ.items() if not _THEIRS.match(name)}
        self._env = {**kept, "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "4096"}
        if conf:
            self._env["SLURM_CONF"] = conf

    def has(self, name: str) -> bool:
        """Whether a command is there."""
        return shutil.which(name, path=self._path) is not None

    def lines(self, name: str, *arguments: str) -> Iterator[str]:
        """The lines that it writes, without their ends, as they come. Raises CommandFailed, maybe after some lines."""
        program = shutil.which(name, path=self._path)
        if program is None:
            raise CommandFailed(f"{name} is not on the PATH {self._path}")
        try:
            child = subprocess.Popen(
                [program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self._env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise CommandFailed(f"{program} can't be run: {error.strerror or error}") from None
        try:
            said = bytearray()
            rest, cut = b"", False
            for piece in _output(child, said, time.monotonic() + self._timeout_s, name):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    if not cut:
                        yield line[:MOST_LINE].decode("utf-8", "replace")
                    cut = False
                if len(rest) > MOST_LINE:
                    if not cut:
                        yield rest[:MOST_LINE].decode("utf-8", "replace")
                    rest, cut = b"", True
            if rest and not cut:
                yield rest.decode("utf-8", "replace")
            status = child.wait(5.0)
            if status:
                words = " ".join(said.decode("utf-8", "replace").split())[:300]
                raise CommandFailed(f"{name} ended with {status}: {words or 'it says nothing'}")
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"{name} closed its output and did not end") from None
        finally:
            # Not yet reaped where it still runs, so that its number, and its group's, can't be another's.
            if child.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()


def _output(child: subprocess.Popen[bytes], said: bytearray, until: float, name: str) -> Iterator[bytes]:
    """What it writes, as it comes; what it says on stderr goes to ``said``."""
    assert child.stdout is not None
    assert child.stderr is not None
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ, True)
        selector.register(child.stderr, selectors.EVENT_READ, False)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                raise CommandFailed(f"{name} did not end in time, and was stopped")
            for key, _ in selector.select(min(left, _POLL_S)):
                piece = os.read(key.fd, _PIECE)
                if not piece:
                    selector.unregister(key.fileobj)
                elif not key.data:
                    said += piece[: max(0, _MOST_SAID - len(said))]
                else:
                    size += len(piece)
                    if size > MOST_BYTES:
                        raise CommandFailed(f"{name} wrote more than {MOST_BYTES:,} bytes, and was stopped")
                    yield piece


def blocks(lines: Iterator[str], begin: str, most: int = 400) -> Iterator[Sequence[str]]:
    """The blocks of ``scontrol show``: each begins with ``begin=`` at a line's start. Of one with more than ``most``
    lines the first are kept. A line break inside a name is a blank here, as a tab is."""
    block: list[str] = []
    for line in lines:
        line = line.replace("\t", " ").rstrip()
        if line.startswith(f"{begin}="):
            if block:
                yield block
            block = [line]
        elif not block or not line:
            continue
        elif not line.startswith("   "):
            block[-1] += f" {line}"
        elif len(block) < most:
            block.append(line)
    if block:
        yield block
