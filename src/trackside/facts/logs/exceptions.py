"""Exceptions in a run's logs, and which of them can be its cause: four ordering rules.

1. The rank that reports an error is rarely the rank at fault: cascades are dropped by role.

2. The last error printed is often teardown; the first may have been handled: later progress clears it.

3. A launcher's summary names the first exit, not the first cause: wrappers are dropped.

4. What is raised right after the run was asked to stop is teardown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from trackside.catalog.command_line import COMMAND_LINE_ERRORS
from trackside.catalog.excerpt import ELLIPSIS, cut, excerpt
from trackside.evidence import Evidence, Frame, Missing, Value, derived
from trackside.facts.fact import Maybe, fact
from trackside.facts.logs import state_dict_errors
from trackside.facts.logs.ending import Ending
from trackside.facts.logs.order import follows, last_after, latest, logs_that_went_on
from trackside.facts.logs.repository_remedies import GATED, REFUSED
from trackside.facts.training.learning import Trajectory
from trackside.finding import Claim, Sentence
from trackside.model import Event, EventRole
from trackside.query import events

JOB_RAISED = Sentence("the job raised {type}: {message}")
JOB_RAISED_WITHOUT_MESSAGE = Sentence("the job raised {type}")
SCRIPT_FAILED = Sentence("Python could not open its script: {message}")
REJECTED_COMMAND_LINE = ("a rejected command line", Sentence("the program rejected its command line: {message}"))
NOT_RAISED: Mapping[str, tuple[str, Sentence]] = {
    "ShellError": (
        "a failed command", Sentence("a command or script was not found or could not be run: {message}")
    ),
    "ContainerError": ("a container error", Sentence("the container could not be started: {message}")),
    **dict.fromkeys(COMMAND_LINE_ERRORS, REJECTED_COMMAND_LINE),
    "DisplayError": ("a lost display", Sentence("the connection to the X display was lost: {message}")),
    "Error": ("an error in the program's own words", Sentence("the program reported an error: {message}")),
    "SharedLibraryError": ("a missing library", Sentence("a shared library could not be loaded: {message}")),
}  # fmt: skip
"""Types of errors that no program raised as an exception -> their name in a sentence, and what happened."""

NO_EXCEPTION = Sentence("no exception in the log")
ONLY_INTERRUPT = Sentence("the exception in the log belongs to an interrupt: {type}")
OTHER_TOPIC = Sentence("the exception in the log is about {topic}, which another family covers: {type}")
NOT_FATAL = Sentence(
    "the exception in the log was raised in a thread, a destructor or a handler, or was a warning; that alone "
    "ends no process: {type}"
)
COMMAND_FAILED = Sentence("the error in the log is of a shell command, and a shell goes on after such a line: {line}")
OF_SHELL_COMMANDS = ("ShellError", "CommandNotFoundError")
"""Types of errors of one command in a script; the second is conda's."""
ONLY_REPORTS = Sentence("the exceptions in the log only report another failure, or the end of the run: {type}")
NONE_ENDED = Sentence("no exception of the job's own in the log is known to have ended the run")
TOPICS: Mapping[str, str] = {
    "oom": "GPU memory",
    "collective": "a collective",
    "rendezvous": "connecting the ranks",
    "checkpoint": "a checkpoint",
    "storage": "a file system",
    "interrupt": "an interrupt",
    "host_memory": "host memory",
}
"""Topic of an exception that has a family of its own -> what the exception is about."""

MAX_HEADLINE_CHARS, MAX_END_CHARS = 120, 40
"""Characters of an error in a headline, and of its end if it is longer: the reason often stands there."""
_SOURCE_CODE = re.compile(r"#\s*(?:if|ifdef|ifndef|define|include|pragma)\b|//|/\*")
_COMPILER_ERROR = re.compile(r"\berror: ")
_PREAMBLE = re.compile(
    r"child \d+ failed with error code|\d{1,3} root error\(s\) found|Exception encountered when calling "
)
"""First lines that only announce the error: of pyxis, of TensorFlow, of Keras."""
_FIRST_ROOT = re.compile(r"^\(0\) (?:[A-Z][\w ]{2,40}: )?")
"""What TensorFlow prints before the first of several errors."""
_COMMAND = re.compile(r"\bCommand ['\"\[]")
"""What became of a command stands behind its arguments."""
_REASON = re.compile(r"\b(?:but|not|only|must|cannot|instead|got)\b[^()]*$")
_RECEIVED = re.compile(r"[.;] (?:Received|Got|Found)\b:? ?[^.\s][^()]{0,60}$", re.IGNORECASE)
"""The value that an error is about, after what was expected."""
_ALTERNATIVE = re.compile(r"\(?1[.)] .*[,;]$")
"""The first of several alternatives, a line each."""
_LOADER_REASON = re.compile(r"\b(lib[\w.+-]{1,80}\.so[.\d]{0,20}: cannot open shared object file)")
"""What the loader says inside the message of a library."""
_LAST_NOTE = re.compile(r" \((?:when|while|https?:|Error in call)[^()]{1,200}\)\.?$")
"""Where it failed, or where to read on, in parentheses at the end of a message."""
_FOLDERS = re.compile(r"(?<=['\"\s(])/?(?:[^\s'\"/:(]{1,100}/){2,20}(?=[^\s'\"/])")
_IMPORTED_FROM = re.compile(r"(?<=') \((?:[~/.\\]|[A-Z]:)[^()]{1,400}(?:\)|$)")
"""The file of a module, behind its name in an ImportError."""
_ANNOUNCES = re.compile(r"(?:[:,(\[{\\]|\bfound)\s*$")
_CONTINUES = re.compile(r"[ \t)\]}(]|$|- \S|\d{1,3}[.)] |nccl\w{1,60}: |Last error:")
_LIBRARY_PARAGRAPHS = re.compile(
    r"child \d+ failed with error code|Exception encountered when calling |generating the dataset|gated repo|Request ID"
    r"|^Could not override "
)
"""Messages of libraries whose further lines are their own and say more than the first."""
_USAGE_ERROR = re.compile(r"^(?!srun|sbatch|salloc|slurm)([^\s:][^:]{0,120}): error: ")
"""What argparse prints before what is wrong."""
BAD_INTERPRETER = re.compile(
    r"(?:slurmstepd-([\w.-]{1,63}): .{0,20})?execve\(\): bad interpreter\(([^)]{1,200})\): No such file"
)
"""slurmstepd's words for a program in a script's first line that does not exist: the node, and the program."""
_ASSERT = re.compile(r"assert (\S.{0,200}?)(?:, (?:f?[\"'(]|[\w.]+\().*)?$")
"""An assertion in one line: its condition."""
MIN_WORDS = 3
"""Fewer words are the beginning of a sentence."""
MIN_WRAPPED_LINES = 4
"""Lines of a paragraph that show that a console wrapped it."""
_SENTENCE_END = re.compile(r"(?<=[a-z0-9'\")\]])\. (?=[A-Z])")
_ADVICE = re.compile(
    r"(?<=[a-z0-9'\")\]`])(?:"
    r"[.:;] (?=(?:Please|If|Try|Make sure|Ensure|Consider|See|You|To|Set|Use|Run|Check|For|Did) )"
    r"|, (?=please ))"
)
"""The end of what failed, if an advice follows."""
_LOGGER = re.compile(r"^(?:slurmstepd|srun): error: ")
STOPS = (1, 2, 15)
"""Signals that ask a process to end."""
ENDED_BY_SCHEDULER = ("time_limit", "preemption", "requeue", "deadline", "node_failure", "drain", "unkillable")
"""Reasons of notices that a run is ended; a canceled step may have failed before, a canceled job has not."""
MAX_LINES_AFTER_STOP = 30
"""Lines between the request to stop, or the last exception that followed it, and a traceback."""
MAX_LINES_OF_ANNOUNCED_TRACEBACK = 60
"""Lines up to the error that a message announces, with the traceback between them."""
MAX_LINES_OF_STACK = 300
"""Lines of the native and Python stacks that Paddle prints between the name of an error and the error."""
OTHER_TOPICS = ("wrapper", "signal", "collective", "interrupt")
TOPICS_THAT_EXPLAIN_OTHERS = ("oom", "checkpoint", "storage")
"""Topics with a family of their own that explains the job's other exceptions."""
SCRIPT_NOT_OPENED = re.compile(r"can't open file '([^']{1,300})'")
"""What Python prints if it cannot open its script: no program ran and nothing was raised."""


def unhandled_exceptions(
    exceptions: Iterable[Event], progress: Iterable[Event], stops: Sequence[Event] = (), *, crashed: bool = False
) -> list[Event]:
    """The job's own exceptions without a later logged step, earliest first.

    Wrappers, cascades and teardown are dropped. Copies of a traceback in a launcher's summary count only if the rank
    printed none itself. ``stops``: see :func:`before_stop`; ``crashed``: see :func:`final_events`.
    """
    own = [event for event in exceptions if event.role is EventRole.ROOT and event.get("about") not in OTHER_TOPICS]
    recursions = [event for event in own if str(event.get("type")).rpartition(".")[2] == "RecursionError"]
    own = [event for event in own if not any(_ended_in(event, recursion) for recursion in recursions)]
    points = list(progress)
    final = before_stop(final_events(own, points, crashed=crashed), stops, points)
    direct = [event for event in final if not event.get("in_summary")]
    return earliest_first(direct or final)


def _ended_in(event: Event, recursion: Event) -> bool:
    """Whether an exception was handled by the call that raised the RecursionError: its traceback is a part of that
    one's chain, which may be longer than what is read at once."""
    is_above = event.at.path == recursion.at.path and event.at.line < recursion.at.line
    return is_above and event.get("type") in str(recursion.get("chain")).split(";")


def final_events(events: Iterable[Event], progress: Sequence[Event], *, crashed: bool = False) -> list[Event]:
    """The events without a later logged step.

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


def before_stop(rows: Sequence[Event], stops: Sequence[Event], progress: Sequence[Event]) -> list[Event]:
    """The exceptions that were not raised right after a request to stop in the same file: a process that ends fails in
    its own way. A stop after which training continued was no end."""
    ends = latest(progress) if stops and rows else []
    lines: dict[str, list[int]] = {}
    for stop in stops:
        if last_after(stop, ends) is None:
            lines.setdefault(stop.at.path, []).append(stop.at.line)
    left = []
    for row in sorted(rows, key=lambda row: (row.at.path, row.at.line)) if lines else rows:
        header = row.at.line - 2 * (str(row.get("frames") or "").count(";") + 1)
        before = [line for line in lines.get(row.at.path, ()) if line < row.at.line]
        if before and header - max(before) <= MAX_LINES_AFTER_STOP:
            lines[row.at.path].append(row.at.line)
        else:
            left.append(row)
    return left


def _is_stop(row: Event) -> bool:
    """Whether a received signal or a scheduler's notice is about the end of the whole run."""
    if row.kind == "signal_received":
        sent = row.get("pid") is not None and row.get("by") != "job"  # by a launcher, to its workers
        return row.get("signal") in STOPS and not sent
    return row.role is EventRole.ROOT and (row.get("reason") in ENDED_BY_SCHEDULER or "*** JOB" in row.text)


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
    message = frame.value(row, "message")
    brief = state_dict_errors.in_brief(str(message.value), _lines(row))
    if (statement := _assertion(frame, row)) is not None:
        return {"type": error_type(frame, row), "message": statement}
    if brief is None:
        return {"type": error_type(frame, row), "message": message_of(frame, row)}
    sources = [frame.value(row, "lines")] if _lines(row) is not None else []
    in_words = state_dict_errors.with_heading(str(message.value), brief)
    return {"type": error_type(frame, row), "message": derived(in_words, message, *sources)}


def asserted(frame: Frame, row: Event) -> Value | None:
    """The condition of the job's own code that an AssertionError found violated; None if the log does not show it."""
    match = _ASSERT.match(str(row.get("user_code") or ""))
    is_assertion = str(row.get("type")) == "AssertionError"
    return derived(match[1], frame.value(row, "user_code")) if is_assertion and match is not None else None


def _assertion(frame: Frame, row: Event) -> Value | None:
    """The statement that raised an AssertionError without a message."""
    if str(row.get("message") or "").strip() or asserted(frame, row) is None:
        return None
    return frame.value(row, "user_code")


def is_raised(row: Event) -> bool:
    """Whether a program raised it: the other errors have no frames."""
    return row.get("type") not in NOT_RAISED or bool(row.get("frames"))


def is_raised_in_import(row: Event) -> bool:
    """Whether an import of the main module raised it: its program had done nothing yet, whatever ran before it."""
    frames = [frame for frame in str(row.get("frames") or "").split(";") if "runpy" not in frame]
    if len(frames) > 1 and frames[0].endswith(" in <module>") and "importlib" in frames[1]:
        return True
    own = str(row.get("user_frame"))
    above_own = frames[: frames.index(own)] if own in frames else []
    return own.endswith(" in <module>") and any("importlib" in frame for frame in above_own)


def _lines(row: Event) -> int | None:
    lines = row.get("lines")
    return lines if isinstance(lines, int) else None


def message_of(frame: Frame, row: Event, field: str = "message") -> Value:
    """The message of an exception without lines that may be other output: what is printed right below a traceback looks
    like its continuation. A line is kept if it is indented or an entry of a list, or if what is above announces it."""
    value = frame.value(row, field)
    message = _own_message(row, field)
    return value if message == str(value.value) else derived(message, value)


def _own_message(row: Event, field: str) -> str:
    message = str(row.get(field) or "")
    if (paragraph := _unwrapped(str(row.get(field.replace("message", "type"))), message)) is not None:
        return paragraph
    lines = message.splitlines()
    if len(lines) < 2 or _LIBRARY_PARAGRAPHS.search(message) is not None:
        return message
    ends = (
        index
        for index, line in enumerate(lines)
        if index and not _CONTINUES.match(line) and _is_complete("\n".join(lines[:index]))
    )
    end = next(ends, len(lines))
    return message if end == len(lines) else "\n".join(lines[:end]).strip()


def _unwrapped(name: str, message: str) -> str | None:
    """The first paragraph of a message in one line, if a console wrapped it at words, as PowerShell does: no line has
    room for the first word of the next one. None if it was not wrapped. ``name``: the type, which stands before it."""
    first, *others = [line.rstrip() for line in message.partition("\n\n")[0].splitlines()] or [""]
    if len(others) + 1 < MIN_WRAPPED_LINES or first.endswith(":") or any(_CONTINUES.match(line) for line in others):
        return None
    lines = [f"{name}: {first}", *others]
    width = max(map(len, others))
    has_no_room = (len(line) + 1 + len(after.split(maxsplit=1)[0]) > width for line, after in pairwise(lines))
    return " ".join((first, *others)) if all(has_no_room) else None


def _is_complete(message: str) -> bool:
    """Whether the lines of a message up to here say something, and announce nothing."""
    return len(message.split()) >= MIN_WORDS and _ANNOUNCES.search(message) is None


def error_type(frame: Frame, row: Event) -> Value:
    """The type of an exception, or what to call an error that is none."""
    value = frame.value(row, "type")
    return value if is_raised(row) else derived(NOT_RAISED[str(value.value)][0], value)


def announced_error(frame: Frame, row: Event) -> Event | None:
    """The error that a message only announces: it ends in a colon, and the next traceback of its file follows at once.
    None if the message itself says what failed."""
    message = str(row.get("message") or "").rstrip()
    is_stack = not message and str(row.get("type")).endswith("EnforceNotMet")  # of Paddle, above its error
    if not is_stack and (not message.endswith(":") or "\n" in message):
        return None
    after = (event for event in frame.events if event.at.path == row.at.path and event.at.line > row.at.line)
    nearest = min(after, key=lambda event: event.at.line, default=None)
    near = nearest is not None and nearest.at.line - row.at.line <= (
        MAX_LINES_OF_STACK if is_stack else MAX_LINES_OF_ANNOUNCED_TRACEBACK
    )
    return nearest if near else None


def unopened_script(frame: Frame, row: Event) -> Value | None:
    """The file that Python took for its script and could not open; None if the error is another."""
    match = SCRIPT_NOT_OPENED.match(str(row.get("message") or ""))
    return None if match is None else derived(match[1], frame.value(row, "message"))


def raised_claim(frame: Frame, row: Event) -> Claim:
    """The claim that the job raised an exception, or that an error occurred that is none."""
    if unopened_script(frame, row) is not None:
        return SCRIPT_FAILED(message=frame.value(row, "message"))
    if not str(row.get("message") or "").strip() and is_raised(row) and _assertion(frame, row) is None:
        return JOB_RAISED_WITHOUT_MESSAGE(type=error_type(frame, row))
    sentence = JOB_RAISED if is_raised(row) else NOT_RAISED[str(row.get("type"))][1]
    return sentence(**type_and_message(frame, row))


@dataclass(frozen=True, eq=False)
class Exceptions:
    """The exceptions in the log."""

    frame: Frame
    unhandled: tuple[Event, ...]
    """The job's own exceptions without a later logged step, earliest first."""
    stops: tuple[Event, ...] = ()
    """Requests to stop that the run received."""
    went_on: frozenset[str] = frozenset()
    """Paths of logs that go on for long after their last error: none of their errors ended the run."""

    @property
    def final(self) -> Event | None:
        """The one of ``unhandled`` that explains the end, so that every family names the same one: the earliest that
        explains others by its topic, else the earliest."""
        explains = (row for row in self.unhandled if row.get("about") in TOPICS_THAT_EXPLAIN_OTHERS)
        return next(explains, next(iter(self.unhandled), None))

    def values(self, row: Event) -> dict[str, Value]:
        """Type and message of an exception, as the values of a claim."""
        return type_and_message(self.frame, row)

    def raised_claim(self, row: Event) -> Claim:
        """The claim that the job raised it."""
        return raised_claim(self.frame, row)

    def is_other_topic(self, row: Event | None) -> TypeGuard[Event]:
        """Whether an exception may be a cause, and another family judges it by its topic."""
        return row is not None and row.role is EventRole.ROOT and row.get("about") in TOPICS

    def other_topic(self, row: Event) -> Claim:
        """The claim that an exception belongs to another family."""
        kind = error_type(self.frame, row)
        if row.get("about") == "interrupt":
            return ONLY_INTERRUPT(type=kind)
        return OTHER_TOPIC(type=kind, topic=derived(TOPICS[str(row.get("about"))], kind))

    @property
    def none_of_job(self) -> Claim:
        """Why no exception in the log is one of the job's own that ended the run."""
        rows = self.frame.events
        if not rows:
            return NO_EXCEPTION(count=self.frame.reduce("count"))
        about_other = (row for row in (self.final, *rows) if self.is_other_topic(row))
        if (row := next(about_other, None)) is not None:
            return self.other_topic(row)
        if any(row.role is EventRole.ROOT for row in rows):
            return NONE_ENDED(count=self.frame.reduce("count"))
        not_fatal = next((row for row in rows if row.role is EventRole.CONFIRMATION), None)
        if not_fatal is None:
            return ONLY_REPORTS(type=error_type(self.frame, rows[0]))
        if not_fatal.get("type") in OF_SHELL_COMMANDS:
            return COMMAND_FAILED(line=self.frame.value(not_fatal, "text"))
        return NOT_FATAL(type=error_type(self.frame, not_fatal))


@fact({"exceptions": events("exception"), "signals": events("signal_received"), "logs": events("log_activity")})
def exceptions(evidence: Evidence, trajectory: Maybe[Trajectory], ending: Ending) -> Exceptions:
    """Needs no particular input; empty if no traceback was read."""
    frame, points = evidence["exceptions"], () if isinstance(trajectory, Missing) else trajectory.progress.events
    requests = (*evidence["signals"].events, *ending.notices.events)
    stops = tuple(row for row in requests if _is_stop(row))
    crashed = ending.abnormal is not None
    went_on = frozenset[str]() if crashed else logs_that_went_on(evidence["logs"].events)
    rows = [row for row in frame.events if row.at.path not in went_on]
    own = unhandled_exceptions(rows, points, stops, crashed=crashed)
    return Exceptions(frame, tuple(own), stops, went_on)


def error_in_brief(frame: Frame, row: Event) -> Value:
    """Type and message of an exception as a headline has them: ``KeyError: 'input_ids'``."""
    announced = announced_error(frame, row)
    row = announced or row
    fields = ("root_type", "root_message") if announced is not None and row.get("root_type") else ("type", "message")
    values = {field: frame.value(row, field) for field in fields}
    name, message = (str(row.get(field) or "").strip() for field in fields)
    parameters = state_dict_errors.in_brief(message, _lines(row), MAX_HEADLINE_CHARS)
    first_line = parameters or _informative_line(name, message)
    if announced is None and (statement := _assertion(frame, row)) is not None:
        first_line, values["message"] = str(statement.value), statement
    if (gated := GATED.search(message)) is not None:
        code = REFUSED.search(message)
        first_line = f"no access to the gated repository {gated[1]}" + (
            f" (HTTP {code[1]})" if code is not None else ""
        )
    if (script := unopened_script(frame, row)) is not None:
        text = f"Python could not open its script '{script.value}'"
    elif (match := BAD_INTERPRETER.search(message)) is not None:
        text = f"the job script's interpreter {match[2]} does not exist" + (f" on {match[1]}" if match[1] else "")
    elif not is_raised(row) and first_line:
        text = _USAGE_ERROR.sub(r"\1 rejected its command line: ", first_line)
    else:
        text = f"{name.rpartition('.')[2]}: {first_line}" if first_line else name.rpartition(".")[2]
    if parameters is not None:
        return derived(f"{name.rpartition('.')[2]} in load_state_dict: {parameters}", *values.values())
    if len(text) > MAX_HEADLINE_CHARS and "cannot import name" in text:
        text = _IMPORTED_FROM.sub("", text)
    if len(text) > MAX_HEADLINE_CHARS:
        text = _FOLDERS.sub(f"{ELLIPSIS}/", text)  # a file's name is more informative than its folders
    if (reason := _LOADER_REASON.search(first_line)) is not None and len(text) > MAX_HEADLINE_CHARS:
        text = f"{name.rpartition('.')[2]}: {reason[1]}"
    return derived(_shortened(_LAST_NOTE.sub("", text) if len(text) > MAX_HEADLINE_CHARS else text), *values.values())


def _shortened(text: str) -> str:
    """An error as far as a headline has room for it: with the end of its only sentence if the reason stands there."""
    if len(text) <= MAX_HEADLINE_CHARS:
        return text
    if (sentence := _first_sentences(text)) is not None:
        return sentence
    has_reason_at_end = _REASON.search(text, MAX_HEADLINE_CHARS) is not None and _SENTENCE_END.search(text) is None
    if _COMMAND.search(text) is not None or has_reason_at_end or _RECEIVED.search(text) is not None:
        return excerpt(text, MAX_HEADLINE_CHARS - MAX_END_CHARS, MAX_END_CHARS)
    return cut(text, MAX_HEADLINE_CHARS).removesuffix(ELLIPSIS).rstrip(" ([{,:;.") + ELLIPSIS


def _first_sentences(text: str) -> str | None:
    """The sentences of an error that a headline has room for, if they fill half of it."""
    ends = [match.start() for match in _ADVICE.finditer(text) if match.start() <= MAX_HEADLINE_CHARS]
    return text[: ends[-1]] if ends and ends[-1] >= MAX_HEADLINE_CHARS // 2 else None


def _informative_line(name: str, message: str) -> str:
    """The first line of a message that says what failed, with the next one if it only announces it; the first sentence
    if the message is wrapped; empty if the message is a listing of source code."""
    if (paragraph := _unwrapped(name, message)) is not None:
        return _SENTENCE_END.split(paragraph, maxsplit=1)[0].rstrip(".:")
    lines = [" ".join(_LOGGER.sub("", line.strip()).split()) for line in message.splitlines() if line.strip()]
    if lines and _SOURCE_CODE.match(lines[0]):
        lines = [line for line in lines if _COMPILER_ERROR.search(line)]
    lines = [line for line in lines if not _PREAMBLE.match(line)] or lines
    if not lines:
        return ""
    if lines[0].endswith(":") and lines[1:] and _ALTERNATIVE.match(lines[1]):
        return f"{lines[0].rstrip(':')} {ELLIPSIS}"
    announced = lines[0].endswith(":") and lines[1:] and not lines[1].startswith("-")  # not a list of advice
    return _FIRST_ROOT.sub("", f"{lines[0]} {lines[1]}" if announced else lines[0]).rstrip(":")


def source_line(frame: Frame, row: Event) -> Value | None:
    """The line of the job's own code where an exception was raised, without its folder: ``train.py:61``."""
    if row.get("user_frame") is None:
        return None
    value = frame.value(row, "user_frame")
    return derived(re.split(r"[/\\]", str(value.value).partition(" in ")[0])[-1], value)


def named_exception(row: Event) -> tuple[str, str]:
    """Type and message of an exception, as a finding contains it."""
    return str(row.get("type")), _own_message(row, "message")[:500]
