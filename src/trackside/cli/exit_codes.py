"""The exit codes, and errors as one line on stderr.

| code | meaning |
|---|---|
| 0 | done; with ``--exit-code`` healthy, or no difference |
| 1 | output, a server or a check failed |
| 2 | wrong usage: a path, an option, a setting, or a job that the given paths or store do not hold |
| 3 | nothing readable, or no live source has the job |
| 10 | with ``--exit-code``: a fault was found, or the runs differ |
| 11 | with ``--exit-code``: undecided |
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from trackside.errors import NothingReadable, TracksideError, UsageError
from trackside.show.sanitize import replace_unsafe

EXIT_OUTPUT, EXIT_USAGE, EXIT_NOTHING = TracksideError.exit_code, UsageError.exit_code, NothingReadable.exit_code
EXIT_HEALTHY, EXIT_FAULT, EXIT_UNDECIDED = 0, 10, 11
EXIT_CODES_HELP = """\b
Exit codes:
  0   done (a fault found also exits 0, unless --exit-code is given)
  1   output, server or I/O error
  2   wrong usage: an unknown path, option or setting, or a job that the
      given paths or store do not hold
  3   nothing readable in the inputs, or no server and no Slurm has the job
With --exit-code:
  0   healthy
  10  a fault was found
  11  undecided: only a possible cause, or none"""
"""The help epilog of ``trackside diagnose``; click keeps the line ends of a paragraph that begins with ``\\b``."""


@contextmanager
def errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and the documented exit code."""
    try:
        yield
    except TracksideError as error:
        fail(str(error), error.exit_code)
    except FileNotFoundError as error:
        fail(str(error))
    except (NotADirectoryError, PermissionError) as error:
        fail(f"{error.filename}: {error.strerror}")


def fail(message: str, status: int = EXIT_USAGE) -> NoReturn:
    """Print one line on stderr and exit with ``status``."""
    click.echo(f"trackside: {replace_unsafe(message)}", err=True)
    sys.exit(status)
