"""What all commands share: arguments, a progress bar, where output goes."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.segment import Segment

from trackside.cli.exits import EXIT_OUTPUT, fail
from trackside.show.inert import shown

BAR_FROM = 64 << 20
"""Bytes of input from which a progress bar is worth showing."""

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(readable=False))
STORE = click.option("--store", required=True, metavar="DIR", type=click.Path(), help="The store's folder.")
JOB = click.option("--job", metavar="ID", help="Which job, where the inputs hold several (42, 60_3, 73+0).")


@contextmanager
def output() -> Iterator[None]:
    """Write what standard output can show; a full disk behind it is one line on stderr, a closed pipe is none."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal or locale without the characters
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails once more at its end
        fail(f"standard output can't be written: {error.strerror}", EXIT_OUTPUT)


def console() -> Console:
    """Where text for people goes: as wide as COLUMNS says, else as the terminal is, else 120 columns."""

    class Plain(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for each in super().render(renderable, options):
                yield each if each.control else each._replace(text=shown(each.text))

    told = re.fullmatch(r"[1-9][0-9]{1,4}", os.environ.get("COLUMNS", ""))
    width = int(told[0]) if told else None if sys.stdout.isatty() else 120
    return Plain(width=width, highlight=False, soft_wrap=False)


@contextmanager
def bar(paths: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr for long reads, on a terminal; yields what takes the bytes just read."""
    total = sum(_bytes(path) for path in paths) if sys.stderr.isatty() else 0
    if total < BAR_FROM:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("reading", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda read: progress.advance(task, read)


def _bytes(path: str) -> int:
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)
    except OSError:
        return 0
