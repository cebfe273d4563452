"""The exit codes, and errors as one line on stderr.

| code | meaning |
|---|---|
| 0 | done; with ``--exit-code`` healthy, or no difference |
| 1 | output, a server or a check failed |
| 2 | wrong usage: a path, an option, a setting, or a job that the given paths or store do not hold |
| 3 | nothing readable, or no live source has the job |
| 10 | with ``--exit-code``: a fault was found, or the runs differ |
| 11 | with ``--exit-code``: undecided, or only possible (healthy or a fault) |
| 130 | stopped by Ctrl-C |

The page for users, with examples that a test runs: docs/exit-codes.md.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import NoReturn

import click

from trackside.errors import NothingReadable, SeveralRuns, TracksideError, UsageError
from trackside.show.sanitize import replace_unsafe

EXIT_OUTPUT, EXIT_USAGE, EXIT_NOTHING = TracksideError.exit_code, UsageError.exit_code, NothingReadable.exit_code
OUT_OF_RANGE = re.compile(r"(\S+) is not in the range x>=([\d.]+\d|\d)")
"""Click's message for a number below a minimum."""
EXIT_HEALTHY, EXIT_FAULT, EXIT_UNDECIDED = 0, 10, 11
EXIT_INTERRUPTED = 130
"""As shells report a process that SIGINT ended: 128 and the signal's number."""
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
  11  undecided: the verdict, healthy or a fault, is only possible, or no
      cause was found"""
"""The help epilog of ``trackside diagnose``; click keeps the line ends of a paragraph that begins with ``\\b``."""


@contextmanager
def errors() -> Iterator[None]:
    """Turn expected errors into one line on stderr and the documented exit code."""
    try:
        yield
    except SeveralRuns as error:
        fail(f"{error.summary}; choose one with --job ID", error.exit_code)
    except TracksideError as error:
        fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError:
        raise  # click prints the help
    except click.UsageError as error:
        fail(usage_line(error))
    except FileNotFoundError as error:
        fail(str(error))
    except (NotADirectoryError, PermissionError) as error:
        fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        fail("stopped by Ctrl-C", EXIT_INTERRUPTED)


def usage_line(error: click.UsageError) -> str:
    """A usage error in one line: what is wrong, and where the right use is shown."""
    path = "" if error.ctx is None else error.ctx.command_path
    command = path.rpartition(" ")[2]
    match error:
        case click.NoSuchOption(possibilities=names):
            text = f"{command} has no option {error.option_name}"
            near = {name.lstrip("-"): name for name in names or ()}
            if nearest := get_close_matches(error.option_name.lstrip("-"), near, 1):  # dashes make any two alike
                return f"{text}; did you mean {near[nearest[0]]}?"
        case click.MissingParameter(param=click.Option() as option, ctx=click.Context() as context):
            text = f"{command} needs {option.opts[-1]} {option.make_metavar(context)}"
        case click.MissingParameter(param=click.Argument() as argument):
            text = f"{command} needs {str(argument.name).upper()}"
        case click.BadParameter(param=click.Parameter() as parameter):
            name = parameter.opts[-1] if isinstance(parameter, click.Option) else str(parameter.name).upper()
            unit = f" of {parameter.metavar.lower()}" if parameter.metavar in ("DAYS", "SECONDS") else ""
            text = f"{name}: {error.message}".replace("a valid float range", f"a number{unit}")
            text = text.replace("a valid integer range", "a whole number")
            text = OUT_OF_RANGE.sub(r"\1 is less than the minimum of \2", text)
        case _:
            message = error.message.removeprefix("Got ")
            text = message[:1].lower() + message[1:]
    text = text.rstrip(".")
    return f"{text}; '{path} --help' shows how to use it" if path and not text.endswith("?") else text


def fail(message: str, status: int = EXIT_USAGE) -> NoReturn:
    """Print one line on stderr and exit with ``status``."""
    click.echo(f"trackside: {replace_unsafe(message)}", err=True)
    sys.exit(status)
