"""The columns that the archive keeps of a verdict besides its document, from a :class:`trackside.finding.Verdict`.

Texts from logs and schedulers are untrusted: they are cut to a length and cleaned of what a database rejects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from trackside.catalog.job_states import is_active
from trackside.finding import Verdict
from trackside.stores.metadata.errors import ArchiveError

MAX_TEXT_CHARS = 500
"""Longest name in characters; the document holds it in full."""
MAX_NAMES = 20_000
"""Maximum number of nodes or GPUs in a column."""
MAX_INTEGER = 2**31 - 1
ColumnValues = dict[str, Any]


def run_columns(verdict: Verdict, job: str | None) -> ColumnValues:
    """Columns of ``runs`` from a verdict; None or empty where the verdict has no value. Raises ArchiveError without an
    id."""
    run = verdict.run
    id_ = text(run.id) or text(job)
    if not id_:
        raise ArchiveError("refused", "the verdict names no job, so it cannot be recorded: give the job's id")
    starts = [start for attempt in run.attempts if (start := finite_or_none(attempt.start)) is not None]
    submitted, started = finite_or_none(run.submit), finite_or_none(run.start)
    return {
        "cluster": text(run.cluster) or "",
        "job": id_,
        "began": submitted or min(starts, default=None) or started or 0.0,
        "name": text(run.name),
        "username": text(run.user),
        "state": text(run.disposition),
        "submitted": submitted,
        "started": started,
        "ended": None if is_active(run.disposition) else finite_or_none(run.end),
        "attempts": max(1, len(run.attempts)),
        "nodes": texts(run.nodes),
        "gpus": texts(run.gpus),
        "n_gpus": run.n_gpus if run.n_gpus is not None and 0 <= run.n_gpus <= MAX_INTEGER else None,
        "framework": text(run.framework),
    }


def verdict_columns(verdict: Verdict) -> ColumnValues:
    """The columns of a verdict, without time and id; the table ``runs`` has the same ones for the latest verdict of a
    run."""
    primary = verdict.primary
    return {
        "family": primary.family,
        "variant": text(primary.variant),
        "culprit": primary.culprit,
        "certainty": None if primary.certainty is None else primary.certainty.value,
        "confidence": finite_or_none(primary.confidence),
    }


def parent_of(verdict: Verdict) -> tuple[str, str] | None:
    """(job id of the run that this one continues, how that was found), or None."""
    parent = text(verdict.run.parent)
    return None if not parent else (parent, text(verdict.run.parent_by) or "unknown")


def text(value: str | None) -> str | None:
    """Text that a database accepts: without NUL, of bounded length; None if empty."""
    if value is None:
        return None
    # Surrogates stand for bytes that were not UTF-8.
    clean = value[:MAX_TEXT_CHARS].replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return clean or None


def texts(values: Iterable[str]) -> list[str]:
    """The distinct texts, in order."""
    distinct = dict.fromkeys(clean for value in values if (clean := text(value)))
    return list(distinct)[:MAX_NAMES]


def finite_or_none(value: float | None) -> float | None:
    """A finite number, else None."""
    return float(value) if value is not None and math.isfinite(value) else None
