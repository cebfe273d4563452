"""What a run did in its last part, by its log and its GPUs together, and whether something other than its pace ended
it.

Metrics that do not distinguish waiting from work are conclusive together with a log that went silent. A run that
reached its time limit may simply have been slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpu.stall_claims import Stall
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions, final_events
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim
from trackside.model import Event, EventRole

AT_LIMIT = ("TIMEOUT", "DEADLINE")
"""States of runs that reached their time limit."""


@dataclass(frozen=True, eq=False)
class LastPart:
    """The end of the run's log, and what its GPUs did then."""

    points: tuple[Event, ...]
    """The logged steps."""
    ended_from_outside: bool
    """Whether the run was ended from outside."""
    has_exception: bool
    """Whether an error of the run's own is the last thing that it printed."""
    silence: Silence
    stall: GpuStall | None

    @cached_property
    def quiet(self) -> tuple[Value, bool] | None:
        """(the silence, whether timestamps prove it), of several ranks that had trained and were ended from
        outside."""
        several = self.ended_from_outside and self.points and self.silence.several_ranks
        return self.silence.stall if several else None

    def find_stall(self, *, corroborated: bool = True, stopped_at: float | None = None) -> Stall | None:
        """The stall of the GPUs.

        ``corroborated``: other evidence shows that the run was stuck. ``stopped_at``: when that evidence says it
        stopped (POSIX seconds).
        """
        if self.stall is None:
            return None
        stall = self.stall.at_end_corroborated if corroborated else self.stall.at_end
        return self.stall.within(stopped_at) if stall is None and stopped_at is not None else stall

    @cached_property
    def final_stall(self) -> Stall | None:
        """The stall of the GPUs, corroborated by the log's silence if there is one."""
        return self.find_stall(
            corroborated=self.quiet is not None, stopped_at=self.points[-1].time if self.quiet else None
        )

    @cached_property
    def working(self) -> Claim | None:
        """The claim that the GPUs worked to the end instead."""
        return None if self.stall is None or self.final_stall is not None else self.stall.worked_on

    @property
    def hung(self) -> bool:
        """Whether the GPUs were stalled to the end and the run did not complete."""
        return self.stall is not None and self.stall.hung is not None

    @property
    def not_by_pace(self) -> bool:
        """Whether something other than its pace ended the run: a failure, or a stall that lasts to its end."""
        ending = self.silence.ending
        limited = ending.state is not None and ending.state.value in AT_LIMIT
        return self.hung or (ending.abnormal is not None and not limited)


@fact()
def last_part(ending: Ending, silence: Silence, exceptions: Exceptions, stall: Maybe[GpuStall]) -> LastPart:
    """Needs no particular input; what was not given is no claim."""
    points = silence.points
    own_errors = [row for row in exceptions.frame.events if row.role is EventRole.ROOT and not row.get("logged")]
    measured = None if isinstance(stall, Missing) else stall
    return LastPart(
        points, ending.ended_from_outside and not ending.ends, bool(final_events(own_errors, points)), silence, measured
    )
