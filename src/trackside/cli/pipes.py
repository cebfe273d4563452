"""Standard input and pipes as inputs: ``srun train.sh | trackside diagnose -``, ``trackside diagnose <(zcat log.gz)``.

They are copied into files first, because an input is read more than once.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

import click

from trackside.cli.exit_codes import fail

STANDARD_INPUT = "-"
GIVEN_PATHS = "trackside.paths"
"""Key in the metadata of the click context: the paths as the user gave them."""


def read_pipes(context: click.Context, _: click.Parameter, paths: Sequence[str]) -> list[str]:
    """Callback of the argument PATHS: the paths, with a file for each pipe among them. The files exist until the
    command ends."""
    context.meta[GIVEN_PATHS] = list(paths)
    return context.with_resource(_as_files(paths))


@contextmanager
def _as_files(paths: Sequence[str]) -> Iterator[list[str]]:
    if not any(map(_is_pipe, paths)):
        yield list(paths)
        return
    if sum(path == STANDARD_INPUT for path in paths) > 1:
        fail("'-' is standard input, which can be read only once")
    with tempfile.TemporaryDirectory(prefix="trackside-") as folder:
        yield [
            _copy(path, os.path.join(folder, str(index))) if _is_pipe(path) else path
            for index, path in enumerate(paths)
        ]


def _is_pipe(path: str) -> bool:
    if path == STANDARD_INPUT:
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _copy(path: str, folder: str) -> str:
    """Copy a pipe to its end, into a file of this folder; returns the file's path."""
    os.mkdir(folder)
    name = "stdin" if path == STANDARD_INPUT else os.path.basename(path)
    target = os.path.join(folder, name if not name.isdecimal() else f"pipe-{name}")
    try:
        if path != STANDARD_INPUT:
            with open(path, "rb") as pipe:
                _write(pipe, target)
        elif sys.stdin.isatty():
            fail("'-' reads standard input, which is a terminal here: pipe a log into the command, or give a file")
        else:
            _write(sys.stdin.buffer, target)
    except OSError as error:
        fail(f"cannot copy {'standard input' if path == STANDARD_INPUT else path}: {error.strerror}")
    return target


def _write(pipe: BinaryIO, target: str) -> None:
    with open(target, "wb") as file:
        shutil.copyfileobj(pipe, file)
