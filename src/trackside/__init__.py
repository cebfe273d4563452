"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose(["run/"])            # doctest: +SKIP
>>> verdict.primary.family, verdict.confidence        # doctest: +SKIP
('B1', 0.96)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trackside.errors import UsageError

if TYPE_CHECKING:  # numpy comes with it: `trackside --help` and the agent need none of it
    from trackside.finding import Verdict

__all__ = ["Verdict", "diagnose"]


def __getattr__(name: str) -> object:
    if name == "Verdict":
        from trackside.finding import Verdict

        return Verdict
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def diagnose(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    *,
    job: str | int | None = None,
    store: str | os.PathLike[str] | None = None,
    as_of: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Read what a run left behind and say what went wrong.

    ``paths``: files, folders, archives or a bundle. ``store``: an embedded store that holds the job; the paths add to
    it. Give paths, a store or both; no site is queried. ``job``: the job to diagnose if there are several. ``as_of``:
    the time to take as the present for a run that has not ended, POSIX seconds. ``on_progress``: called with the number
    of bytes just read, for a progress bar.

    Raises FileNotFoundError for a missing path and, all in :mod:`trackside.errors`: UsageError, NothingReadable,
    SeveralRuns, NoSuchRun and StoreError.
    """
    # All that diagnoses is imported here, numpy too: `trackside --help` and the agent need none of it.
    from trackside.session import open_session, request_of

    paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not paths and store is None:
        raise UsageError("give paths or store; diagnose queries no site, so job alone names nothing to read")
    if not isinstance(as_of, (int, float, type(None))):
        raise UsageError(f"as_of is {as_of!r}; give POSIX seconds")
    job = None if job is None else str(job)
    with open_session(request_of(paths, job, as_of, store=store, on_progress=on_progress)) as session:
        return session.verdict()
