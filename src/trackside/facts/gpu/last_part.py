"""What a run did in its last part, by its log and its GPUs together, and whether something else than its pace ended it.

Where metrics can't tell waiting from work, they do beside a log that went silent. A run that reached its time limit may
well have needed more time because it was slow.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.evidence import Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.gpu.stall import GpuStall
from trackside.facts.gpu.stall_claims import Stall
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.exceptions import Exceptions, last_words
from trackside.facts.logs.silence import Silence
from trackside.finding import Claim
from trackside.model import Event, Role

AT_LIMIT = ("TIMEOUT", "DEADLINE")
"""States of runs that reached their time limit."""


@dataclass(frozen=True, eq=False)
class LastPart:
    """The end of the run's log, and what its GPUs did by then."""

    points: tuple[Event, ...]
    """The training points."""
    reaped: bool
    """Whether the run did not end by itself."""
    raised: bool
    """Whether an error of the run's own, printed by itself, was its last word."""
    silence: Silence
    stall: GpuStall | None

    @cached_property
    def quiet(self) -> tuple[Value, bool] | None:
        """The silence of several ranks that had trained and were ended from outside, and whether it is stamped."""
        several = self.reaped and self.points and self.silence.several_ranks
        return self.silence.stall if several else None

    def find_stall(self, *, beside: bool = True, stopped: float | None = None) -> Stall | None:
        """That of the GPUs; ``beside``: other evidence says that the run was stuck; ``stopped``: when it did, by it."""
        if self.stall is None:
            return None
        still = self.stall.at_end_corroborated if beside else self.stall.at_end
        return self.stall.within(stopped) if still is None and stopped is not None else still

    @cached_property
    def final_stall(self) -> Stall | None:
        """The GPUs' standstill, beside the log's silence if there is one."""
        return self.find_stall(beside=self.quiet is not None, stopped=self.points[-1].time if self.quiet else None)

    @cached_property
    def working(self) -> Claim | None:
        """That the GPUs worked to the end instead."""
        return None if self.stall is None or self.final_stall is not None else self.stall.worked_on

    @property
    def hung(self) -> bool:
        """Whether the GPUs stood still to the end, and the run did not complete."""
        return self.stall is not None and self.stall.hung is not None

    @property
    def not_by_pace(self) -> bool:
        """Whether something else than its pace ended the run: a failure, or a standstill that lasts to its end."""
        ending = self.silence.ending
        limited = ending.state is not None and ending.state.value in AT_LIMIT
        return self.hung or (ending.abnormal is not None and not limited)


@fact()
def last_part(ending: Ending, silence: Silence, exceptions: Exceptions, stall: Maybe[GpuStall]) -> LastPart:
    """Of what was given; it may be nothing."""
    points = silence.points
    own = [row for row in exceptions.frame.events if row.role is Role.ROOT and not row.get("logged")]
    measured = None if isinstance(stall, Missing) else stall
    return LastPart(points, ending.reaped and not ending.ends, bool(last_words(own, points)), silence, measured)
