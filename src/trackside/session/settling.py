"""Whether more evidence about a run may still come, so that a verdict on it is not final."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from trackside.catalog.job_states import Stage
from trackside.finding import PendingEvidence
from trackside.read.walk import ExplicitFile, list_files
from trackside.wording import moment

SETTLE_S = 91.0
"""From the end of a job, or its last data, until its evidence is complete: metric servers hide the newest samples
(:data:`trackside.stores.metric_server.HIDDEN_S`), samples of the last moments arrive up to a minute later, and logs
arrive late."""
PATIENCE_S = 180.0
"""Maximum wait after the end for accounting to record it, or for a failing source to answer again."""


def by_stage(stage: Stage, end: float | None, now: float) -> PendingEvidence | None:
    """What Slurm says. ``end``: the recorded end of the job, POSIX seconds."""
    if stage == "going":
        return PendingEvidence("the job is not over")
    if stage == "unknown" or end is None:
        return None
    until = end + (PATIENCE_S if stage == "ended" else SETTLE_S)
    if now >= until:
        return None
    if stage == "ended":
        return PendingEvidence("accounting does not show yet how the job ended", until)
    return PendingEvidence(f"the job ended at {moment(end)}, and its last lines and metrics may follow", until)


def by_arrival(last: float | None, now: float) -> PendingEvidence | None:
    """What was received. ``last``: when the last data of the job arrived, POSIX seconds."""
    if last is None or now >= last + SETTLE_S:
        return None
    last = min(last, now)  # the sender's clock may be ahead
    return PendingEvidence(f"the last data of the job arrived at {moment(last)}, and more may follow", last + SETTLE_S)


def by_growth(paths: Iterable[str | os.PathLike[str]], logs: Collection[str], began: float) -> PendingEvidence | None:
    """What the files show: that one of the run's logs was written to since they were read. ``began``: when reading
    began, POSIX seconds."""
    for path, label in list_files(list(paths)):
        if label not in logs or not isinstance(path, str | ExplicitFile):
            continue
        try:
            modified = os.stat(path).st_mtime
        except OSError:
            continue
        if modified > began:
            return PendingEvidence(f"{label} is still being written", modified + SETTLE_S)
    return None
