"""What was accepted and is not in what is judged: no absence may be made of that."""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import CancelledError
from dataclasses import dataclass

from trackside.model import Plane
from trackside.stores.embedded.layout import StoreError
from trackside.stores.memory import MemoryStore
from trackside.stores.receiver.flush import NotRead
from trackside.stores.receiver.intake import Busy, Intake, NotKept

SOURCE = "received"
LINES: tuple[Plane, ...] = ("log", "kernel")
"""What lines are of."""
_JOB = re.compile(r"(?:part-\d+/)?job-([^/]+)/")


@dataclass(frozen=True, slots=True)
class Lag:
    """Something that was accepted and can't be judged yet, on which planes, and why. ``files``: those of received
    lines that this is about; None: whatever came."""

    planes: tuple[Plane, ...]
    reason: str
    files: tuple[str, ...] | None = None

    def of(self, jobs: Collection[str]) -> Lag | None:
        """What of it concerns a run that goes by these ids: files of theirs, and those of no job."""
        if self.files is None:
            return self
        files = tuple(name for name in self.files if (job := _JOB.match(name)) is None or job[1] in jobs)
        return unread(files) if files else None

    def note(self, rows: MemoryStore) -> None:
        """Note it as what did not answer."""
        for plane in self.planes:
            rows.unanswered(plane, SOURCE, self.reason)


def unread(files: tuple[str, ...]) -> Lag:
    """Files of received lines that there was no time to read."""
    return Lag(LINES, f"{len(files):,} files of received lines are not read yet: ask again", files)


def lags(intake: Intake, within_s: float) -> tuple[Lag, ...]:
    """Have all that was accepted written and read, as far as the time goes; what is left."""
    try:
        left = intake.flush().result(within_s)
    except NotRead as error:
        return (Lag(LINES, f"lines that were received can't be read into the store: {error}"),)
    except (Busy, NotKept, StoreError, OSError, CancelledError) as error:  # a timeout is an OSError without words
        why = str(error) or f"not done within {within_s:g} s, ask again"
        return (Lag((*LINES, "metric"), f"what was received last is not in the store yet: {why}"),)
    return (unread(tuple(left)),) if left else ()
