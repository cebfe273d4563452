"""Slurm's commands: run without a shell, in plain English and POSIX seconds, for a limited time and output."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from trackside.catalog.slurm import commands
from trackside.command import Command, CommandStopped

MOST_BYTES = 512 << 20
"""Of one command's output: it is taken line by line."""
MOST_LINE = 64 << 10
"""Bytes of one line that are kept."""


class CommandFailed(Exception):
    """A command that could not be run, ended with an error, took too long or wrote too much: a line that says which."""


class Commands:
    """Where they are: in ``folder``, or on PATH; ``conf``: of the cluster's slurm.conf, empty for the usual one."""

    def __init__(
        self, folder: str = "", conf: str = "", timeout_s: float = 60.0, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._path, self._timeout_s = folder or environ.get("PATH", os.defpath), timeout_s
        self._env = commands.environment(environ)
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
        command = Command([program, *arguments], timeout_s=self._timeout_s, max_bytes=MOST_BYTES, env=self._env)
        try:
            with closing(command.output()) as pieces:
                yield from _lines(pieces)
        except OSError as error:
            raise CommandFailed(f"{program} can't be run: {error.strerror or error}") from None
        except CommandStopped as stop:
            limit = "did not end in time" if stop.reason == "timeout" else f"wrote more than {MOST_BYTES:,} bytes"
            raise CommandFailed(f"{name} {limit}, and was stopped") from None
        if command.status:
            words = " ".join(command.errors.decode("utf-8", "replace").split())[:300]
            raise CommandFailed(f"{name} ended with {command.status}: {words or 'it says nothing'}")


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    """The lines in a stream, of each the first bytes."""
    rest, cut = b"", False
    for piece in pieces:
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
