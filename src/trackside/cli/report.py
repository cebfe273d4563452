"""The option ``--html``, and writing its file."""

from __future__ import annotations

import contextlib
import os
import tempfile

import click

from trackside.cli.exit_codes import EXIT_OUTPUT, fail
from trackside.extras import install_command
from trackside.read.excerpts import excerpts
from trackside.session import Session
from trackside.show.document import VerdictDoc
from trackside.stores.embedded.layout import Directory

HTML = click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Also write the verdict as a self-contained HTML page with charts.",
)


class PageWriter:
    """Writes the page of a verdict, and overwrites that of the previous one; does nothing without a file.

    The constructor exits if a dependency or the target folder is missing, before any work is done.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        if file is None:
            return
        try:
            import jinja2  # noqa: F401
            import vl_convert  # noqa: F401
        except ModuleNotFoundError as error:
            fail(f"--html needs {error.name}: {install_command('report')}")
        folder = os.path.dirname(os.path.abspath(file))
        if not os.path.isdir(folder):
            fail(f"--html {file}: folder {folder} does not exist")

    def __call__(self, doc: VerdictDoc, session: Session) -> None:
        """Write the page. The lines around each citation are read from the session's files."""
        if self._file is None:
            return
        from trackside.show.report.page import cited_positions, page  # the extra "report"

        files = [path for path in session.files if not Directory(path).exists]
        data = page(doc, session.verdict(), session.store, excerpts(files, cited_positions(doc).values()))
        try:
            _replace(self._file, data)
        except OSError as error:
            fail(f"--html: cannot write {self._file}: {error.strerror or error}", EXIT_OUTPUT)


def _replace(file: str, data: bytes) -> None:
    """Replace the file atomically; its mode follows the umask."""
    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):  # a device or a pipe
        with open(target, "wb") as out:
            out.write(data)
        return
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(target), prefix=".trackside-", delete=False) as out:
            temporary = out.name
            out.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except OSError:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise
