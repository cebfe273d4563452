"""File-system errors in the log, in kernel messages and in exceptions.

Shared memory (/dev/shm) is memory, not a file system.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Value
from trackside.facts.fact import fact
from trackside.facts.logs.exceptions import Exceptions
from trackside.facts.logs.order import first, last_after
from trackside.facts.training.learning import Trajectory
from trackside.model import Event
from trackside.query import events

REASONS = (
    ("full", r"No space left|ENOSPC|Errno 28|disk (?:is )?full|not enough (?:free )?(?:disk )?space"),
    ("quota", r"quota|EDQUOT|Errno 122"),
    ("read_only", r"Read-only file system|EROFS|Errno 30"),
    ("stale", r"Stale (?:NFS )?file handle|ESTALE|Errno 116"),
    ("io_error", r"Input/output error|Errno 5\b|\bEIO\b|Remote I/O|Errno 121"),
    ("unreachable", r"Transport endpoint|Errno 107|Host is down|Errno 112|not responding|Communication error on send"),
    ("full", r"inline_container|PytorchStreamWriter|unexpected pos|failed writing|write failed|short write"),
)
"""Patterns for the reason in an exception's text; a checkpoint writer that aborts mostly hit a full disk."""
SHARED_MEMORY = re.compile(r"/dev/shm|shared memory|\bshm\b", re.IGNORECASE)


MAX_LINES_BELOW = 3
"""Lines below the one that a log ends with: what a program prints when it gives up."""


@dataclass(frozen=True, eq=False)
class StorageFaults:
    """File-system errors, in log order."""

    frame: Frame
    unhandled: tuple[Event, ...]
    """Unhandled exceptions about storage."""
    lines: tuple[Event, ...]
    """Lines about a file-system error."""
    last: tuple[Event, ...]
    """Those of ``lines`` without a later logged step."""
    ends_log: bool = False
    """Whether a log ends with one of ``last``."""

    @property
    def cause(self) -> Event | None:
        """The exception, else the first line, that may have ended the run."""
        return self.unhandled[0] if self.unhandled else first(self.last)

    @cached_property
    def reason(self) -> str:
        """The reason: one of :data:`REASONS`."""
        named = reason_of(self.cause) if self.cause is not None else None
        return named or next((str(row.get("reason")) for row in self.last if row.get("reason")), "io_error")

    @property
    def inferred(self) -> bool:
        """Whether the reason is only inferred: a checkpoint writer aborted, or a write failed, without naming one."""
        pattern = next(pattern for reason, pattern in REASONS if reason == self.reason)
        rows = [*self.last, *([] if self.cause is None else [self.cause])]
        texts = [f"{row.text} {row.get('message')} {row.get('root_message')}" for row in rows]
        return not any(re.search(pattern, text, re.IGNORECASE) for text in texts)

    def line(self, row: Event) -> Value:
        """The text of one of ``lines``."""
        return self.frame.value(row, "text")


def about_storage(exception: Event) -> bool:
    """Whether an exception is about a file-system error."""
    text = f"{exception.get('type')}: {exception.get('message')}"
    if SHARED_MEMORY.search(text):
        return False
    if exception.get("about") == "storage":
        return True
    return exception.get("about") == "checkpoint" and re.search(REASONS[-1][1], text) is not None


def reason_of(row: Event) -> str | None:
    """The reason that an exception or a line names."""
    if row.get("reason"):
        return str(row.get("reason"))
    text = f"{row.get('type')}: {row.get('message')} {row.get('root_message')}"
    return next((reason for reason, pattern in REASONS if re.search(pattern, text, re.IGNORECASE)), None)


@fact({"faults": events("storage_fault"), "activity": events("log_activity")})
def storage_faults(evidence: Evidence, exceptions: Exceptions, trajectory: Trajectory) -> StorageFaults:
    """Needs a job log; otherwise missing."""
    lines = [row for row in evidence["faults"].events if not SHARED_MEMORY.search(f"{row.get('path')} {row.text}")]
    last = [row for row in lines if last_after(row, trajectory.progress.events) is None]
    unhandled = [row for row in exceptions.unhandled if about_storage(row)]
    n_lines = {row.at.path: row.at.line for row in evidence["activity"].events}
    ends_log = any(n_lines.get(row.at.path, math.inf) - row.at.line <= MAX_LINES_BELOW for row in last)
    return StorageFaults(evidence["faults"], tuple(unhandled), tuple(lines), tuple(last), ends_log)
