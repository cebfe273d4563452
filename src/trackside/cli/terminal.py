"""What all commands share: common arguments, the progress bar, standard output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.segment import Segment

from trackside.cli.encoding import use_ascii_fallback
from trackside.cli.exit_codes import EXIT_OUTPUT, fail
from trackside.show.sanitize import replace_unsafe

MIN_BAR_BYTES = 64 << 20
"""Bytes of input from which a progress bar is shown."""

PATHS = click.argument("paths", nargs=-1, required=True, type=click.Path(readable=False))
STORE = click.option("--store", required=True, metavar="DIR", type=click.Path(), help="Folder of the store.")


def job_flag(verb: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--job``. ``verb``: what the command does with the job."""
    text = f"Job to {verb}, such as 42, 60_3 or 73+0. Alone: query the site for it."
    return click.option("--job", metavar="ID", help=text)


@contextmanager
def output() -> Iterator[None]:
    """Write to standard output, and flush it. An error such as a full disk prints one line on stderr and exits; a
    closed pipe ends the command silently."""
    use_ascii_fallback()
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise  # click ends quietly
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python fails again on exit
        fail(f"cannot write to standard output: {error.strerror}", EXIT_OUTPUT)


def console() -> Console:
    """A console on standard output. Width: ``COLUMNS`` if set, otherwise that of the terminal, otherwise 120 columns.
    With ``NO_COLOR`` it writes no escape sequences."""

    class SanitizedConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else segment._replace(text=replace_unsafe(segment.text))

    columns = re.fullmatch(r"[1-9][0-9]{1,4}", os.environ.get("COLUMNS", ""))
    width = int(columns[0]) if columns else None if sys.stdout.isatty() else 120
    # rich's own handling of NO_COLOR keeps bold and dim
    color_system: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    return SanitizedConsole(width=width, highlight=False, soft_wrap=False, color_system=color_system)


@contextmanager
def bar(paths: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr for long reads of files and folders; see :func:`bar_of`."""
    with bar_of(sum(_size_bytes(path) for path in paths) if sys.stderr.isatty() else 0) as on_progress:
        yield on_progress


@contextmanager
def bar_of(total: int) -> Iterator[Callable[[int], None] | None]:
    """A progress bar on stderr for ``total`` bytes, if they are many and stderr is a terminal. Yields a callback that
    takes the number of bytes just read; None if no bar is shown."""
    if not sys.stderr.isatty() or total < MIN_BAR_BYTES:
        yield None
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("reading", *columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading", total=total)
        yield lambda read: progress.advance(task, read)


def _size_bytes(path: str) -> int:
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        return sum(os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(path) for name in names)
    except OSError:
        return 0
