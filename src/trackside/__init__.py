"""Trackside: a cited verdict on why a GPU training run ended as it did.

>>> import trackside
>>> verdict = trackside.diagnose(["run/"])            # doctest: +SKIP
>>> verdict.primary.family, verdict.confidence        # doctest: +SKIP
('B1', 0.97)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from trackside.finding import Verdict

__all__ = ["Verdict", "diagnose"]


def diagnose(
    paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    job: str | None = None,
    now: float | None = None,
    tick: Callable[[int], None] | None = None,
) -> Verdict:
    """Read what a run left behind and say what went wrong: :func:`trackside.api.diagnose`."""
    from trackside import api  # imports all that diagnoses, numpy too: `trackside --help` needs none of it

    return api.diagnose(paths, job=job, now=now, tick=tick)
