r"""Lines that look like an error, that no parser read, and after which the run is not known to have continued.

They are evidence of no family. They mean that the log says something that the verdict does not account for: then
nothing is ruled out because no line reported it, and apparent health is only possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.events import last_line_of
from trackside.evidence import Evidence, Frame, Missing, Value
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import last_after, latest
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event
from trackside.query import events

UNREAD_LINE = Sentence("a line that looks like an error, of a kind that Trackside does not know: {line}")
UNREAD_QUESTION = Sentence("what this line means, of a kind that Trackside does not know: {line}")


@dataclass(frozen=True, eq=False)
class UnreadErrors:
    """The error-like lines that the verdict does not account for."""

    frame: Frame
    rows: tuple[Event, ...]
    """Lines after which neither progress nor a good end is known, in order."""

    @cached_property
    def last(self) -> Value | None:
        """The last such line."""
        return self.frame.value(self.rows[-1], "text") if self.rows else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The last such line, as something that the log shows."""
        return () if self.last is None else (UNREAD_LINE(line=self.last),)

    @property
    def open_questions(self) -> tuple[Claim, ...]:
        """The same, as something that cannot be decided."""
        return () if self.last is None else (UNREAD_QUESTION(line=self.last),)


@fact({"lines": events("unread_error"), "reports": events("job_report")})
def unread_errors(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> UnreadErrors:
    """Needs nothing; empty if the scheduler recorded a good end: nothing that is printed matters then."""
    frame = evidence["lines"]
    if ending.state is not None and ending.completed is not None:
        return UnreadErrors(frame, ())
    done = (
        []
        if isinstance(trajectory, Missing)
        else latest((*trajectory.points, *trajectory.milestones, *trajectory.scores.events))
    )
    done += latest([row for row in ending.ends.events if row.get("status") != "aborted"])
    reports = evidence["reports"].events
    rows = (row for row in frame.events if not any(_is_inside(row, report) for report in reports))
    return UnreadErrors(frame, tuple(row for row in rows if last_after(row, done) is None))


def _is_inside(row: Event, report: Event) -> bool:
    """Whether a line belongs to a batch system's report, which is read as a whole."""
    return row.at.path == report.at.path and report.at.line <= row.at.line <= last_line_of(report)
