"""Runs Slurm's commands without a shell, with English output and POSIX times, limited in time and output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from trackside.catalog.slurm import commands
from trackside.command import Command, CommandStopped
from trackside.errors import TracksideError

MAX_OUTPUT_BYTES = 512 << 20
"""Limit of a command's output, which is processed line by line."""
MAX_LINE_BYTES = 64 << 10
"""Bytes kept of each line."""


class CommandFailed(TracksideError):
    """A command could not be run, failed, took too long or wrote too much; the message says which."""


class Commands:
    """Finds and runs Slurm's commands in ``folder``, or on PATH. ``conf``: path of slurm.conf, empty for the
    default."""

    def __init__(
        self, folder: str = "", conf: str = "", timeout_s: float = 60.0, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._path, self._timeout_s = folder or environ.get("PATH", os.defpath), timeout_s
        self._env = commands.environment(environ)
        if conf:
            self._env["SLURM_CONF"] = conf

    def has(self, name: str) -> bool:
        """Whether a command exists."""
        return shutil.which(name, path=self._path) is not None

    def lines(self, name: str, *arguments: str) -> Iterator[str]:
        """The output lines, without line breaks, as they arrive. Raises CommandFailed, possibly after some lines."""
        program = shutil.which(name, path=self._path)
        if program is None:
            raise CommandFailed(f"{name} is not on the PATH {self._path}")
        command = Command([program, *arguments], timeout_s=self._timeout_s, max_bytes=MAX_OUTPUT_BYTES, env=self._env)
        try:
            with closing(command.output()) as pieces:
                yield from _lines(pieces)
        except OSError as error:
            raise CommandFailed(f"{program} cannot be run: {error.strerror or error}") from None
        except CommandStopped as stop:
            limit = "did not end in time" if stop.reason == "timeout" else f"wrote more than {MAX_OUTPUT_BYTES:,} bytes"
            raise CommandFailed(f"{name} {limit}, and was stopped") from None
        if command.status:
            message = " ".join(command.errors.decode("utf-8", "replace").split())[:300]
            raise CommandFailed(f"{name} exited with status {command.status}: {message or 'no message'}")


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream, each cut to its first bytes."""
    remaining, is_cut = b"", False
    for piece in pieces:
        *lines, remaining = (remaining + piece).split(b"\n")
        for line in lines:
            if not is_cut:
                yield line[:MAX_LINE_BYTES].decode("utf-8", "replace")
            is_cut = False
        if len(remaining) > MAX_LINE_BYTES:
            if not is_cut:
                yield remaining[:MAX_LINE_BYTES].decode("utf-8", "replace")
            remaining, is_cut = b"", True
    if remaining and not is_cut:
        yield remaining.decode("utf-8", "replace")


def blocks(lines: Iterator[str], begin: str, max_lines: int = 400) -> Iterator[Sequence[str]]:
    """The blocks of ``scontrol show``; each starts with ``begin=`` at the start of a line. At most ``max_lines`` lines
    of a block are kept. Line breaks within names, and tabs, become spaces."""
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
        elif len(block) < max_lines:
            block.append(line)
    if block:
        yield block
