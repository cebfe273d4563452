r"""Exceptions in a run's logs, and which of them can be its cause: three ordering rules.

1. The rank that reports an error is rarely the rank at fault: cascades are dropped by role.

2. The last error printed is often teardown; the first may have been handled: later progress clears it.

3. A launcher's summary names the first exit, not the first cause: wrappers are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import follows, last_after, latest
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole
from trackside.query import events

JOB_RAISED = Sentence("the job raised {type}: {message}")

MAX_HEADLINE_CHARS = 100
"""Characters of an error in a headline; the claim below has all of it."""
_SOURCE_CODE = re.compile(r"#\s*(?:if|ifdef|ifndef|define|include|pragma)\b|//|/\*")
_COMPILER_ERROR = re.compile(r"\berror: ")
_PREAMBLE = re.compile(r"child \d+ failed with error code|Exception encountered when calling ")
"""First lines that only announce the error: of pyxis, of Keras."""
_FOLDERS = re.compile(r"(?<=['\"\s(])/?(?:[^\s'\"/:]{1,100}/){2,20}(?=[^\s'\"/])")
_LOGGER = re.compile(r"^(?:slurmstepd|srun): error: ")
MAX_WORD_CHARS = 16
"""Characters up to which a word is left out rather than cut."""
OTHER_TOPICS = ("wrapper", "signal", "collective", "interrupt")


def unhandled_exceptions(raised: Iterable[Event], progress: Iterable[Event], *, crashed: bool = False) -> list[Event]:
    r"""The job's own exceptions without a later logged step, earliest first.

    Wrappers, cascades and teardown are dropped. Copies of a traceback in a launcher's summary count only if the rank
    printed none itself. ``crashed``: see :func:`final_events`.
    """
    own_exceptions = [
        event for event in raised if event.role is EventRole.ROOT and event.get("about") not in OTHER_TOPICS
    ]
    final = final_events(own_exceptions, list(progress), crashed=crashed)
    direct = [event for event in final if not event.get("in_summary")]
    return earliest_first(direct or final)


def final_events(events: Iterable[Event], progress: Sequence[Event], *, crashed: bool = False) -> list[Event]:
    r"""The events without a later logged step.

    ``crashed``: a process is known to have died with an error. Then Python's buffered output is written after the
    traceback, so that later unstamped points in the same file do not clear the last event.
    """
    rows, ends = list(events), latest(progress)
    final = [event for event in rows if last_after(event, ends) is None]
    if final or not crashed or not rows:
        return final
    last = earliest_first(rows)[-1]
    after = [point for point in progress if follows(point, last)]
    buffered = all(point.at.path == last.at.path and point.time is None for point in after)
    return [last] if buffered else []


def earliest_first(events: Iterable[Event]) -> list[Event]:
    """Stable order by time if both have one, else by position in the file, else as given."""
    ordered: list[Event] = []
    for event in events:
        index = len(ordered)
        while index and follows(ordered[index - 1], event):
            index -= 1
        ordered.insert(index, event)
    return ordered


def type_and_message(frame: Frame, row: Event) -> dict[str, Value]:
    """Type and message of an exception, as the values of a claim."""
    return {"type": frame.value(row, "type"), "message": frame.value(row, "message")}


@dataclass(frozen=True, eq=False)
class Exceptions:
    """The exceptions in the log."""

    frame: Frame
    unhandled: tuple[Event, ...]
    """The job's own exceptions without a later logged step, earliest first."""

    def values(self, row: Event) -> dict[str, Value]:
        """Type and message of an exception, as the values of a claim."""
        return type_and_message(self.frame, row)

    def raised(self, row: Event) -> Claim:
        """The claim that the job raised it."""
        return JOB_RAISED(**self.values(row))


@fact({"exceptions": events("exception")})
def exceptions(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> Exceptions:
    """Needs nothing; empty if no traceback was read."""
    frame, points = evidence["exceptions"], () if isinstance(trajectory, Missing) else trajectory.progress.events
    return Exceptions(frame, tuple(unhandled_exceptions(frame.events, points, crashed=ending.abnormal is not None)))


def error_in_brief(frame: Frame, row: Event) -> Value:
    """Type and message of an exception as a headline has them: ``KeyError: 'input_ids'``."""
    values = type_and_message(frame, row)
    name, message = (str(row.get(field) or "").strip() for field in ("type", "message"))
    first_line = _informative_line(message)
    text = f"{name.rpartition('.')[2]}: {first_line}" if first_line else name.rpartition(".")[2]
    if len(text) > MAX_HEADLINE_CHARS:
        text = _FOLDERS.sub("\N{HORIZONTAL ELLIPSIS}/", text)  # a file's name is more informative than its folders
    if len(text) > MAX_HEADLINE_CHARS:
        words, _, last = text[: MAX_HEADLINE_CHARS - 1].rpartition(" ")
        text = (words if len(last) < MAX_WORD_CHARS else f"{words} {last}") + "\N{HORIZONTAL ELLIPSIS}"
    return derived(text, *values.values())


def _informative_line(message: str) -> str:
    """The first line of a message that says what failed, with the next one if it only announces it; empty if the
    message is a listing of source code."""
    lines = [" ".join(_LOGGER.sub("", line.strip()).split()) for line in message.splitlines() if line.strip()]
    if lines and _SOURCE_CODE.match(lines[0]):
        lines = [line for line in lines if _COMPILER_ERROR.search(line)]
    lines = [line for line in lines if not _PREAMBLE.match(line)] or lines
    if not lines:
        return ""
    announced = lines[0].endswith(":") and lines[1:] and not lines[1].startswith("-")  # not a list of advice
    return (f"{lines[0]} {lines[1]}" if announced else lines[0]).rstrip(":")


def source_line(frame: Frame, row: Event) -> Value | None:
    """The line of the job's own code where an exception was raised, without its folder: ``train.py:61``."""
    if row.get("user_frame") is None:
        return None
    value = frame.value(row, "user_frame")
    return derived(str(value.value).partition(" in ")[0].rpartition("/")[2], value)


def named_exception(row: Event) -> tuple[str, str]:
    """Type and message of an exception, as a finding contains it."""
    return str(row.get("type")), str(row.get("message") or "")[:500]
