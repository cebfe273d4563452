"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose(["run/"])            # doctest: +SKIP
>>> verdict.primary.family, verdict.confidence        # doctest: +SKIP
('B1', 0.97)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy comes with it: `trackside --help` and the agent need none of it
    from trackside.finding import Verdict

__all__ = ["diagnose"]


def diagnose(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str] = (),
    *,
    job: str | None = None,
    store: str | os.PathLike[str] | None = None,
    as_of: float | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Verdict:
    """Read what a run left behind and say what went wrong.

    ``paths``: files, folders, archives or a bundle. ``job``: which one, where they hold several. ``store``: an embedded
    store that holds the job; the paths add to it. ``as_of``: POSIX seconds taken as the present for a run still going.
    ``on_progress``: called with the bytes just read, for a progress bar.

    Raises FileNotFoundError and :mod:`trackside.errors`: NothingReadable, SeveralRuns, NoSuchRun, StoreError.
    """
    # All that diagnoses is imported here, numpy too: `trackside --help` and the agent need none of it.
    from trackside.session import open_session, request_of

    paths = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    with open_session(request_of(paths, job, as_of, store=store, on_progress=on_progress)) as session:
        return session.verdict()
