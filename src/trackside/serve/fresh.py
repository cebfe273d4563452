"""What was accepted and is not in what is judged: no absence may be made of that."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass

from trackside.model import Plane
from trackside.stores.embedded.layout import StoreError
from trackside.stores.memory import MemoryStore
from trackside.stores.receiver.intake import Busy, Intake, NotKept, NotRead

SOURCE = "received"
LINES: tuple[Plane, ...] = ("log", "kernel")
"""What lines are of."""


@dataclass(frozen=True, slots=True)
class Lag:
    """Something that was accepted and can't be judged yet, on which planes, and why."""

    planes: tuple[Plane, ...]
    reason: str

    def note(self, rows: MemoryStore) -> None:
        """Note it as what did not answer."""
        for plane in self.planes:
            rows.unanswered(plane, SOURCE, self.reason)


def lags(intake: Intake, within_s: float) -> tuple[Lag, ...]:
    """Have all that was accepted written and read, as far as the time goes; what is left."""
    try:
        left = intake.flush().result(within_s)
    except NotRead as error:
        return (Lag(LINES, f"lines that were received can't be read into the store: {error}"),)
    except (Busy, NotKept, StoreError, OSError, CancelledError) as error:  # a timeout is an OSError without words
        why = str(error) or f"not done within {within_s:g} s, ask again"
        return (Lag((*LINES, "metric"), f"what was received last is not in the store yet: {why}"),)
    if left:
        return (Lag(LINES, f"{left:,} files of received lines are not read yet: ask again"),)
    return ()
