"""Exit codes, and every error that a person can act upon in one line on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from trackside.errors import NothingReadable, TracksideError, UsageError
from trackside.show.inert import shown

EXIT_OUTPUT, EXIT_USAGE, EXIT_NOTHING = TracksideError.exit_code, UsageError.exit_code, NothingReadable.exit_code


@contextmanager
def errors() -> Iterator[None]:
    """Turn what a person can act upon into one line on stderr and the documented exit code."""
    try:
        yield
    except TracksideError as error:
        fail(str(error), error.exit_code)
    except FileNotFoundError as error:
        fail(str(error))
    except (NotADirectoryError, PermissionError) as error:
        fail(f"{error.filename}: {error.strerror}")


def fail(message: str, status: int = EXIT_USAGE) -> NoReturn:
    """One line on stderr, and the end."""
    click.echo(f"trackside: {shown(message)}", err=True)
    sys.exit(status)
