"""Lines that look like an error, that no parser read, and after which the run is not known to have continued.

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
from trackside.finding import Certainty, Claim, Finding, Sentence, action, present
from trackside.model import Event
from trackside.query import events

UNREAD_LINE = Sentence("a line that looks like an error, of a kind that Trackside does not know: {line}")
UNREAD_QUESTION = Sentence("what this line means, of a kind that Trackside does not know: {line}")
ENDS_WITH = Sentence("the log ends with this error: {line}")
LOOK_UP = Sentence("look up that message in the documentation of the program that printed it")


@dataclass(frozen=True, eq=False)
class UnreadErrors:
    """The error-like lines that the verdict does not account for."""

    frame: Frame
    rows: tuple[Event, ...]
    """Lines after which neither progress nor a good end is known, in order."""
    logs: Frame
    """What is known of each log, such as its last line."""

    @cached_property
    def last(self) -> Value | None:
        """The last such line."""
        return self.frame.value(self.rows[-1], "text") if self.rows else None

    def ends(self, log: Event) -> bool:
        """Whether the last such line is the last line of a log."""
        last = self.rows[-1].at if self.rows else None
        return last is not None and (last.path, last.line) == (log.at.path, log.get("last_line_number"))

    @cached_property
    def final(self) -> Value | None:
        """The last such line if it is of level error or fatal and a log ends with it: then the run ended there."""
        at_end = bool(self.rows) and any(self.ends(log) for log in self.logs.events)
        return self.last if at_end and self.rows[-1].get("severe") else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The last such line, as something that the log shows."""
        return () if self.last is None else (UNREAD_LINE(line=self.last),)

    @property
    def open_questions(self) -> tuple[Claim, ...]:
        """The same, as something that cannot be decided."""
        return () if self.last is None else (UNREAD_QUESTION(line=self.last),)


@fact({"lines": events("unread_error"), "reports": events("job_report"), "logs": events("log_activity")})
def unread_errors(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> UnreadErrors:
    """Needs nothing; empty if the scheduler recorded a good end: nothing that is printed matters then."""
    frame, logs = evidence["lines"], evidence["logs"]
    if ending.state is not None and ending.completed is not None:
        return UnreadErrors(frame, (), logs)
    done = [] if isinstance(trajectory, Missing) else latest((*trajectory.points, *trajectory.milestones))
    done += latest([row for row in ending.ends.events if row.get("status") != "aborted"])
    reports = evidence["reports"].events
    rows = (row for row in frame.events if not any(_is_inside(row, report) for report in reports))
    return UnreadErrors(frame, tuple(row for row in rows if last_after(row, done) is None), logs)


def _is_inside(row: Event, report: Event) -> bool:
    """Whether a line belongs to a batch system's report, which is read as a whole."""
    return row.at.path == report.at.path and report.at.line <= row.at.line <= last_line_of(report)


def unread_finding(unread: UnreadErrors, headline: Sentence) -> Finding:
    """That the run ended with an error line that no parser read. ``headline``: with its {error}."""
    row, line = unread.rows[-1], unread.final
    if line is None:
        raise ValueError("the log does not end with an error line")
    return present(
        Certainty.POSSIBLE,
        "unknown",
        [ENDS_WITH(line=line)],
        headline=headline(error=line),
        cannot_decide=unread.open_questions,
        actions=[action(LOOK_UP)],
        since=row.time,
        at=row.at,
        ranks=() if row.rank is None else (row.rank,),
    )
