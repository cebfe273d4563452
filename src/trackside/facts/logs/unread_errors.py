"""Lines that look like an error, that no parser read, and after which the run is not known to have continued.

They are evidence of no family. They mean that the log says something that the verdict does not account for: then
nothing is ruled out because no line reported it, and apparent health is only possible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from trackside.catalog.events import MAX_PER_KIND, last_line_of
from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import last_after, latest
from trackside.facts.training.learning import Trajectory
from trackside.finding import Certainty, Claim, Finding, Sentence, action, present
from trackside.model import Event
from trackside.query import events

ENDS_WITH = Sentence('the log ends with this error: "{line}"')
ENDS_IN_TRACEBACK = Sentence('the log ends inside a traceback, before the name of the exception: "{line}"')
WHAT_WAS_RAISED = Sentence("which exception was raised: the log ends inside its traceback")
FIND_REST = Sentence(
    "look for the end of the traceback in the job's other output, such as the scheduler's file for its stderr"
)
LOOK_UP = Sentence(
    "follow the error message; if it names no remedy, look it up in the documentation of the program that printed it"
)
UNREAD_LINE = Sentence('the log has an error line that Trackside does not recognize: "{line}"')
UNREAD_LINES = Sentence('the log has {count} error lines that Trackside does not recognize, such as: "{line}"')
UNREAD_MANY_LINES = Sentence(
    'the log has at least {count} error lines that Trackside does not recognize, such as: "{line}"'
)
UNREAD_QUESTION = Sentence('what this error line means (Trackside does not recognize it): "{line}"')
QUOTED_LINE_UNREAD = Sentence("what the error line means (Trackside does not recognize it)")
"""The same where the evidence quotes the line."""
_TIME = re.compile(r"\d\d:\d\d:")
_LEVEL = r"(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL|SEVERE|EXCEPTION):?[ -]{1,3}"
LOGGER_PREFIX = re.compile(
    rf"(?:{_LEVEL})?"
    r"(?:[\[(]?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\s\]]{0,12}[\])]?[ -]{0,3})?(?:\[[^\]]{1,80}\][ -]{0,3}){0,3}"
    rf"(?:[\w.]{{1,60}}:\d{{1,6}}\] )?(?:{_LEVEL})?"
)
"""What some loggers print before a message: a time, their name and level."""
MAX_LINES_APART = 3
"""Lines between two error lines of one block, at most."""


@dataclass(frozen=True, eq=False)
class UnreadErrors:
    """The error-like lines that the verdict does not account for."""

    frame: Frame
    rows: tuple[Event, ...]
    """Lines after which neither progress nor a good end is known, in order."""
    logs: Frame
    """What is known of each log, such as its last line."""

    @cached_property
    def first_of_last_block(self) -> Value | None:
        """The first line of the last block of such lines: what follows it is usually the path back up the stack."""
        row = self._first_row_of_last_block
        return None if row is None else self.frame.value(row, "text")

    @property
    def place(self) -> Value | None:
        """Where that line stands: ``line 18 of train.log``."""
        row, line = self._first_row_of_last_block, self.first_of_last_block
        return None if row is None or line is None else derived(f"line {row.at.line} of {row.at.path}", line)

    @property
    def _first_row_of_last_block(self) -> Event | None:
        if not self.rows:
            return None
        first = self.rows[-1]
        for row in reversed(self.rows[:-1]):
            if row.at.path != first.at.path or not 0 <= first.at.line - row.at.line <= MAX_LINES_APART:
                break
            first = row
        return first

    @property
    def reason(self) -> str:
        """Why nothing is ruled out because no line reported it; there is at least one such line."""
        last, count = self.rows[-1].at, len(self.rows)
        lines = "an error line" if count == 1 else f"{self._at_least}{count:,} error lines"
        position = f"{last.path}:{last.line}"
        where = position if count == 1 else f"the last: {position}"
        return f"the log has {lines} that Trackside does not recognize ({where}), and no progress follows"

    @property
    def _at_least(self) -> str:
        """What a count of them begins with if a log may have more than were kept."""
        return "at least " if len(self.frame.events) >= MAX_PER_KIND else ""

    def ends(self, log: Event) -> bool:
        """Whether the last such line is the last of a log that says more than that the program exits."""
        if not self.rows:
            return False
        last, parting_lines = self.rows[-1], self.rows[-1].get("parting_lines")
        below = parting_lines if isinstance(parting_lines, int) else 0
        return (last.at.path, last.at.line + below) == (log.at.path, log.get("last_line_number"))

    @cached_property
    def final(self) -> Value | None:
        """The last such line if a log ends with it, and its level or its words say that it is an error: then the run
        ended there."""
        at_end = bool(self.rows) and any(self.ends(log) for log in self.logs.events)
        return self.frame.value(self.rows[-1], "text") if at_end and self.rows[-1].get("severe") else None

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Such a line, as something that the log shows."""
        line = self.first_of_last_block
        if line is None:
            return ()
        text = without_prefix(str(line.value))
        if _TIME.search(str(line.value).removesuffix(text)):
            line = derived(text, line)
        if len(self.rows) == 1:
            return (UNREAD_LINE(line=line),)
        sentence = UNREAD_MANY_LINES if self._at_least else UNREAD_LINES
        return (sentence(line=line, count=derived(len(self.rows), self.frame.value(self.rows[-1], "text"))),)

    @property
    def open_questions(self) -> tuple[Claim, ...]:
        """The same, as something that cannot be decided: the line that ends the log, else the one that claims quote."""
        line = self.final or self.first_of_last_block
        return () if line is None else (UNREAD_QUESTION(line=line),)


@fact({"lines": events("unread_error"), "reports": events("job_report"), "logs": events("log_activity")})
def unread_errors(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> UnreadErrors:
    """Needs no particular input; empty if the scheduler recorded a good end: nothing that is printed matters then."""
    frame, logs = evidence["lines"], evidence["logs"]
    if ending.state is not None and ending.completed is not None:
        return UnreadErrors(frame, (), logs)
    done = (
        []
        if isinstance(trajectory, Missing)
        else latest((*trajectory.points, *trajectory.milestones, *trajectory.scores.events))
    )
    done += latest([row for row in ending.ends.events if row.get("status") != "aborted"])
    reports = evidence["reports"].events
    rows = (row for row in frame.events if not any(_is_inside(row, report) for report in reports))
    return UnreadErrors(frame, tuple(row for row in rows if last_after(row, done) is None), logs)


def _is_inside(row: Event, report: Event) -> bool:
    """Whether a line belongs to a batch system's report, which is read as a whole."""
    return row.at.path == report.at.path and report.at.line <= row.at.line <= last_line_of(report)


def without_prefix(line: str) -> str:
    """A log line without the time, logger and level that some loggers print before the message."""
    match = LOGGER_PREFIX.match(line)
    is_logged = match is not None and re.search(rf"{_TIME.pattern}|{_LEVEL}", match[0]) is not None
    return line[match.end() :] if match is not None and is_logged and match.end() < len(line) else line


def unread_finding(unread: UnreadErrors, headline: Sentence) -> Finding | None:
    """That the run ended with an error line that no parser read; None if it did not. ``headline``: with its {error}."""
    if (line := unread.final) is None:
        return None
    row = unread.rows[-1]
    if is_cut := row.get("in_traceback") is not None:
        file = re.split(r"[/\\]", str(row.get("frame") or "").partition(" in ")[0])[-1]
        error = f"an exception in {file}, whose name the log cuts off" if file else "an exception that the log cuts off"
    else:
        error = without_prefix(str(line.value))
    return present(
        Certainty.POSSIBLE,
        "unknown",
        [ENDS_IN_TRACEBACK(line=line) if is_cut else ENDS_WITH(line=line)],
        headline=headline(error=derived(error, line)),
        cannot_decide=[WHAT_WAS_RAISED() if is_cut else QUOTED_LINE_UNREAD()],
        actions=[action(FIND_REST if is_cut else LOOK_UP)],
        since=row.time,
        at=row.at,
        ranks=() if row.rank is None else (row.rank,),
    )
