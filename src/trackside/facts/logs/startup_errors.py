"""The job's own exceptions that were not handled as far as known.

No logged step, checkpoint or evaluation came after them. Exceptions with a family of their own are excluded, and so
is the parent's message about a data-loader worker that a signal killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Evidence, Frame, Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import (
    Exceptions,
    announced_error,
    error_type,
    is_raised,
    message_of,
    raised_claim,
    type_and_message,
    unhandled_exceptions,
)
from trackside.facts.ranks import cited_ranks, ranks_in_summary
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole
from trackside.query import events, record

RAISED_ON = Sentence("{ranks} raised {type}: {message}")
CAUSED_BY = Sentence("caused by {type}: {message}")
LAST_OWN_LINE = Sentence("last line of the job's own code in the traceback: {frame}")

STARTUP_TOPICS = (None, "application", "cuda", "dataloader", "host_memory")
"""Topics of the job's own startup exceptions; the other topics have families of their own."""
WORKER_KILL_SIGNALS = (4, 6, 8, 9, 11)
"""Signals of a data-loader worker that make it a signal kill; a bus error at startup means that /dev/shm is too
small."""


@dataclass(frozen=True, eq=False)
class StartupErrors:
    """The job's own exceptions that may have ended it at startup."""

    frame: Frame
    missing_log: Missing | None
    """Why no log was read; None if one was."""
    unhandled: tuple[Event, ...]
    """Exceptions that may have ended the run, earliest first."""
    other_cause: bool
    """Whether another exception or GPU memory error was printed that may be a cause."""
    ending: Ending

    @property
    def cause(self) -> Event | None:
        """The earliest exception."""
        return self.unhandled[0] if self.unhandled else None

    @property
    def copies(self) -> list[Event]:
        """Exceptions of the same type as the earliest: usually every rank raises the same one."""
        return [row for row in self.unhandled if row.get("type") == self.unhandled[0].get("type")]

    @cached_property
    def ranks(self) -> Value | None:
        """The ranks that raised it, by their labels or by the launcher's summary."""
        return cited_ranks(self.frame, self.copies) or ranks_in_summary(self.copies, self.ending.launchers)

    @cached_property
    def rank_numbers(self) -> tuple[int, ...]:
        """The ranks as integers; empty if they are unknown."""
        ranks = () if self.ranks is None else self.ranks.value
        return tuple(int(str(rank)) for rank in ranks) if isinstance(ranks, tuple) else ()

    @property
    def type(self) -> Value:
        """The type of the earliest exception."""
        return error_type(self.frame, self.unhandled[0])

    @property
    def announced(self) -> Event | None:
        """The error that the earliest exception only announces."""
        return announced_error(self.frame, self.unhandled[0])

    @cached_property
    def claims(self) -> Sequence[Claim]:
        """The exception and its ranks, the root exception, and the location in the job's own code."""
        frame, cause = self.frame, self.unhandled[0]
        by_ranks = self.ranks is not None and is_raised(cause)
        claims = [
            RAISED_ON(**type_and_message(frame, cause), ranks=self.ranks)
            if by_ranks and self.ranks is not None
            else raised_claim(frame, cause)
        ]
        source = self.announced or cause
        if source is not cause and source.get("root_type") in (None, source.get("type")):
            claims.append(CAUSED_BY(**type_and_message(frame, source)))
        elif source.get("root_type") not in (None, cause.get("type")):
            claims.append(
                CAUSED_BY(type=frame.value(source, "root_type"), message=message_of(frame, source, "root_message"))
            )
        if cause.get("user_frame") is not None:
            claims.append(LAST_OWN_LINE(frame=frame.value(cause, "user_frame")))
        return claims


@fact(
    {
        "exceptions": events("exception"),
        "jobs": record("job"),
        "workers": events("dataloader_death"),
        "memory": events("cuda_oom"),
    },
    needs=(("exceptions", "jobs"),),
)
def startup_errors(
    evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending, exceptions: Exceptions
) -> StartupErrors:
    """Needs a job log or a job record; otherwise missing."""
    frame, workers = evidence["exceptions"], evidence["workers"]
    killed = {row.at.path for row in workers.events if row.get("signal") in WORKER_KILL_SIGNALS}
    rows = [
        row for row in frame.events
        if row.get("about") in STARTUP_TOPICS and not (row.get("about") == "dataloader" and row.at.path in killed)
        and row.at.path not in exceptions.went_on
    ]  # fmt: skip
    done = () if isinstance(trajectory, Missing) else (*trajectory.points, *trajectory.milestones)
    other = bool(evidence["memory"]) or any(row.role is EventRole.ROOT for row in frame.events)
    own = unhandled_exceptions(rows, done, exceptions.stops)
    return StartupErrors(frame, evidence.missing("exceptions"), tuple(own), other, ending)
