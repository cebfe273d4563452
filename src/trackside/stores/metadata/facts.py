"""What the archive keeps of a verdict beside its document: columns from a :class:`trackside.model.Verdict`.

What comes from logs and schedulers is foreign text: it is cut to a length, and freed of what a database won't hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from trackside.catalog.job_states import goes_on
from trackside.finding import Verdict
from trackside.stores.metadata.errors import ArchiveError

LONGEST_TEXT = 500
"""Characters of a name; the document holds all of it."""
MOST_NODES = 20_000
MOST_NUMBER = 2**31 - 1
Row = dict[str, Any]


def run_facts(verdict: Verdict, job: str | None) -> Row:
    """Columns of ``runs`` that the verdict tells; None or empty where it doesn't. Raises ArchiveError without an id."""
    run = verdict.run
    id_ = text(run.id) or text(job)
    if not id_:
        raise ArchiveError(
            "refused", "the verdict names no job, so there is nothing to keep it under: give the job's id"
        )
    starts = [start for attempt in run.attempts if (start := moment(attempt.start)) is not None]
    submitted, started = moment(run.submit), moment(run.start)
    return {
        "cluster": text(run.cluster) or "",
        "job": id_,
        "began": submitted or min(starts, default=None) or started or 0.0,
        "name": text(run.name),
        "username": text(run.user),
        "state": text(run.disposition),
        "submitted": submitted,
        "started": started,
        "ended": None if goes_on(run.disposition) else moment(run.end),
        "attempts": max(1, len(run.attempts)),
        "nodes": texts(run.nodes),
        "gpus": texts(run.gpus),
        "n_gpus": run.n_gpus if run.n_gpus is not None and 0 <= run.n_gpus <= MOST_NUMBER else None,
        "framework": text(run.framework),
    }


def verdict_facts(verdict: Verdict) -> Row:
    """Columns that ``verdicts`` has, and ``runs`` of the latest one, but for when and which."""
    primary = verdict.primary
    return {
        "family": primary.family,
        "variant": text(primary.variant),
        "culprit": primary.culprit,
        "certainty": None if primary.certainty is None else primary.certainty.value,
        "confidence": moment(primary.confidence),
    }


def parent_facts(verdict: Verdict) -> tuple[str, str] | None:
    """(job id of the run that it continues, how that was found)."""
    parent = text(verdict.run.parent)
    return None if not parent else (parent, text(verdict.run.parent_by) or "unknown")


def text(value: str | None) -> str | None:
    """One that a database holds: without NUL, of bounded length; None for nothing."""
    if value is None:
        return None
    # Surrogates stand for bytes that were no UTF-8.
    clean = value[:LONGEST_TEXT].replace("\0", "").encode("utf-8", "replace").decode("utf-8")
    return clean or None


def texts(values: Iterable[str]) -> list[str]:
    """The distinct ones, in order."""
    found = dict.fromkeys(clean for value in values if (clean := text(value)))
    return list(found)[:MOST_NODES]


def moment(value: float | None) -> float | None:
    """A finite number or none."""
    return float(value) if value is not None and math.isfinite(value) else None
