"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose("run/")              # doctest: +SKIP
>>> verdict.family, verdict.confidence                # doctest: +SKIP
('B1', 0.96)
>>> print(verdict.headline)                           # doctest: +SKIP
Out of GPU memory in the forward pass
>>> print(trackside.to_text(verdict))                 # doctest: +SKIP
>>> trackside.to_dict(verdict)["run"]["nodes"]        # doctest: +SKIP
['gpu001', 'gpu002']
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from trackside.errors import UsageError

if TYPE_CHECKING:  # numpy comes with it: `trackside --help` and the agent need none of it
    from trackside.finding import Verdict

    __version__: str

__all__ = ["Verdict", "diagnose", "to_dict", "to_json", "to_text"]

TEXT_COLUMNS = 120
"""Width of the text of a verdict."""


def __getattr__(name: str) -> object:
    if name == "Verdict":
        from trackside.finding import Verdict

        return Verdict
    if name == "__version__":
        from trackside.version import package_version

        return package_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__doc__", "__file__", "__name__", "__path__", "__version__", "errors", *__all__]


def diagnose(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    *,
    job: str | int | None = None,
    store: str | os.PathLike[str] | None = None,
    as_of: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Read what a run left behind and say what went wrong.

    Returns the verdict. Its ``headline`` is a sentence; the ``shows`` (the evidence) and ``actions`` of its ``primary``
    print as sentences about a run that has ended. :func:`to_text`, :func:`to_json` and :func:`to_dict` give the whole.

    ``paths``: files, folders, archives or a bundle. ``store``: an embedded store that holds the job; the paths add to
    it. Give paths, a store or both; no site is queried. ``job``: the job to diagnose if there are several. ``as_of``:
    the time to take as the present for a run that has not ended, POSIX seconds. ``on_progress``: called with the number
    of bytes just read, for a progress bar.

    Raises FileNotFoundError for a missing path and, all in :mod:`trackside.errors`: UsageError, NothingReadable,
    SeveralRuns, NoSuchRun and StoreError.
    """
    # All that diagnoses is imported here, numpy too: `trackside --help` and the agent need none of it.
    from dataclasses import replace

    from trackside.session import open_session, request_of

    if paths is None or isinstance(paths, bytes) or paths == "":
        raise UsageError(f"paths is {paths!r}; give the name of a file or folder, or a list of names")
    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not paths and store is None:
        raise UsageError("give paths or store; diagnose queries no site, so job alone names nothing to read")
    if as_of is not None and (isinstance(as_of, bool) or not isinstance(as_of, (int, float)) or not isfinite(as_of)):
        raise UsageError(f"as_of is {as_of!r}; give POSIX seconds")
    job = None if job is None else str(job)
    with open_session(request_of(paths, job, as_of, store=store, on_progress=on_progress)) as session:
        verdict = session.verdict()
    inputs = [*([] if store is None else [store]), *paths]
    return replace(verdict, paths=tuple(map(os.fsdecode, inputs)))


def to_dict(verdict: Verdict) -> dict[str, Any]:
    """The published document of a verdict, as ``trackside diagnose --json`` prints it (``trackside schema``), without
    the price of a GPU-hour that a site may set."""
    import msgspec

    from trackside.show.document import document

    published: dict[str, Any] = msgspec.to_builtins(document(verdict, verdict.paths))
    return published


def to_json(verdict: Verdict) -> str:
    """The document of :func:`to_dict` as JSON; ``trackside verify`` checks it."""
    from trackside.show.document import document, encode

    return encode(document(verdict, verdict.paths)).decode()


def to_text(verdict: Verdict, *, verbose: bool = False) -> str:
    """A verdict as ``trackside diagnose`` prints it, without color; ``verbose``: with everything and its citations."""
    from io import StringIO

    from rich.console import Console

    from trackside.show import brief, text
    from trackside.show.document import document
    from trackside.show.sanitize import replace_unsafe

    output = StringIO()
    (text if verbose else brief).render(document(verdict), Console(file=output, width=TEXT_COLUMNS, highlight=False))
    return replace_unsafe(output.getvalue())
