"""The option that writes a verdict as a page, and its file."""

from __future__ import annotations

import contextlib
import os
import tempfile

import click

from trackside.cli.exits import EXIT_OUTPUT, fail
from trackside.read.excerpts import excerpts
from trackside.session import Session
from trackside.show.document import VerdictDoc
from trackside.stores.embedded.layout import Directory

HTML = click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the verdict as a page as well: one file, with charts.",
)


class Page:
    """Writes the page of each verdict, in place of the one before; does nothing where no file is given.

    Ends the command at once where the page could not be made in the end.
    """

    def __init__(self, file: str | None) -> None:
        self._file = file
        if file is None:
            return
        try:
            import jinja2  # noqa: F401
            import vl_convert  # noqa: F401
        except ModuleNotFoundError as error:
            fail(f"{error.name} is not installed: pip install 'trackside[report]'")
        folder = os.path.dirname(os.path.abspath(file))
        if not os.path.isdir(folder):
            fail(f"--html {file}: there is no folder {folder}")

    def __call__(self, doc: VerdictDoc, session: Session) -> None:
        """The lines around a citation are looked up in the session's files."""
        if self._file is None:
            return
        from trackside.show.report.page import page, places  # the extra "report"

        files = [path for path in session.files if not Directory(path).exists]
        data = page(doc, session.verdict(), session.store, excerpts(files, places(doc).values()))
        try:
            _replace(self._file, data)
        except OSError as error:
            fail(f"--html {self._file} can't be written: {error.strerror or error}", EXIT_OUTPUT)


def _replace(file: str, data: bytes) -> None:
    """The whole file or none, readable as any file that its owner makes."""
    target = os.path.realpath(file)
    if os.path.exists(target) and not os.path.isfile(target):  # a device or a pipe
        with open(target, "wb") as out:
            out.write(data)
        return
    made = None
    try:
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(target), prefix=".trackside-", delete=False) as out:
            made = out.name
            out.write(data)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made, 0o666 & ~mask)
        os.replace(made, target)
    except OSError:
        if made is not None:
            with contextlib.suppress(OSError):
                os.unlink(made)
        raise
