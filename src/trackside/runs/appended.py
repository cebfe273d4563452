"""Finds where the runs appended to one file begin. The last one is the run; the others' lines are not about it.

Output is often appended to one file: attempts after a failure, jobs of an array, `nohup` twice. A run begins

- after a batch system's report of a job's end, or where the lines name another job;
- at a launcher's banner, or at a shell's prompt with a command, once the program before it had printed anything that
  shows it at work or its end;
- at a line that one process of a program prints once, when it starts, if the run so far has printed it or was at work;
- at a line that programs print when they start, if the run so far has printed it too and has ended since, or if its
  steps start over after it;
- where steps start over after the end of a program;
- behind the last step, if a program then fails in an import at its top, or rejects its arguments;
- behind an interrupt, if a program then rejects its arguments;
- below the line that Python could not open its script, if an exception or a step follows;
- behind an error that ended a program, if the same program then ends with another one: of one process, only one error
  is the last. In a log that several processes write, each of them may have its own;
- at the line that the file begins with, if it announces a start and the next line was an error;
- at the two lines that the file begins with, if a traceback was printed since, and no step behind it;
- behind a program's own line that its training failed, if it says so again, for another reason and minutes later.

One program that restarts its workers is one run, however often they print their first lines; so is a job that its
scheduler starts again. What a process prints late, from its buffer, is not a beginning: a sign that came after a run's
end no longer counts in that file.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trackside.catalog.command_line import COMMAND_LINE_ERRORS
from trackside.catalog.events import MAX_PER_KIND, OUTCOMES, last_line_of
from trackside.logs.job_report import REPORT
from trackside.logs.program_starts import BANNER, FIRST_LINE, FIRST_LINES, ONCE, PROMPT, SUPERVISOR
from trackside.model import Event, EventRole, FileRun, Position
from trackside.runs.jobs import plain_id

ENDS = frozenset(
    (
        "exception", "python_fatal", "cuda_oom", "launcher_failure", "process_exit", "signal_received",
        "user_interrupt", "training_end", "scheduler_notice",
    )
)  # fmt: skip
"""Kinds of events that may say how a program ended."""
_DEATHS = frozenset({"python_fatal", "process_exit", "signal_received"})
"""Kinds of events that may be printed after the error of a program that ends."""
_WORK_KINDS = frozenset(
    {"training_start", "training_plan", "training_end", "exception", "launcher_failure", "cuda_oom"}
)
"""Kinds of events that, after the last report, show that another job without a report was appended."""
MAX_TRAILING_LINES = 40
"""More lines than this after the last report are another job's output; fewer may be notes of the batch system."""
MIN_LINES_AT_WORK = 100
"""A run that prints this many lines is at work, even if no parser reads any of them."""
_RESTART_REASONS = frozenset({"preemption", "requeue", "node_failure"})
"""Reasons of a scheduler's notice after which the same job starts again."""
_APPENDING_SOURCES = frozenset({"lsf", "pbs"})
"""Sources of reports that the batch system itself adds to the output: what is above them is over."""
_MAIN_FRAMES = (" in <module>", " in _run_module_as_main", " in _run_code")
"""Outermost frames of an exception that ended its program."""

MIN_SECONDS_BETWEEN_FAILURES = 60.0
"""Less time than this between two lines that the training failed may be two parts of one program's work."""
_OF_SEVERAL_PROCESSES = frozenset(
    {
        "collective_timeout", "collective_state", "peer_lost", "heartbeat_lost", "collective_mismatch", "nccl_error",
        "rendezvous_failure", "launcher_failure", "launcher_restart",
    }
)  # fmt: skip
"""Kinds of events that only a program of several processes prints."""
_REJECTIONS = (*COMMAND_LINE_ERRORS, "hydra.errors.ConfigCompositionException")
"""Types of errors, without a traceback, by which a program rejects its command line."""
_RUNPY = re.compile(r"(?:^|[\\/<])(?:frozen )?runpy\b")
_USAGE_ERROR = re.compile(r"([^\s:]{1,120}): error: ")
_FIGURES = re.compile(r"0x[0-9a-f]+|\d+")
_FILE = re.compile(r":\d+ in .*$")

LoggedPart = tuple[int, int]
"""(line, part): a logged step, and the number of the part of the log that it is in; the number rises where steps start
over."""


class LoggedSteps(Protocol):
    """The logged steps of the files."""

    def steps_start_over(self, path: str) -> bool:
        """Whether the steps of a file start over."""

    def parts(self, path: str) -> Sequence[LoggedPart]:
        """The logged steps of a file, in order."""


@dataclass(frozen=True, slots=True)
class FileRuns:
    """The runs in one file."""

    runs: tuple[FileRun, ...]
    """In order, at least one."""
    report: Event | None = None
    """The batch system's report of the last run's end."""
    job_first: int = 1
    """First line of the last job, which may have started several programs."""
    unknown_start: int | None = None
    """Line at which another run starts of which nothing else is known; its lines count as those of the one before."""
    has_more: bool = False
    """Whether there are more runs than these: the scan keeps only some of the lines where programs start."""

    @property
    def first(self) -> int:
        """The first line of the last run."""
        return self.runs[-1].first


def runs_by_file(events: Iterable[Event], steps: LoggedSteps) -> dict[str, FileRuns]:
    """Path -> its runs, for each file that holds several, or a report of a job. ``events``: those of the job logs."""
    by_file: dict[str, list[Event]] = {}
    last_lines: dict[str, int] = {}
    for event in events:
        if event.kind == "log_activity":
            last_lines[event.at.path] = max(last_lines.get(event.at.path, 0), event.at.line)
        elif event.kind in _SIGN_KINDS:
            by_file.setdefault(event.at.path, []).append(event)
    files = {}
    for path, signs in by_file.items():
        in_order = sorted(signs, key=_position_key)
        points = steps.parts(path) if _may_hold_several_runs(signs, steps.steps_start_over(path)) else ()
        runs = _split_runs(in_order, points, last_lines.get(path, 0))
        if len(runs.runs) > 1 or runs.report is not None:
            files[path] = runs
    return files


def is_in_last_run(position: Position, files: Mapping[str, FileRuns]) -> bool:
    """Whether a line is in the last run of its file; true for a file with one run."""
    runs = files.get(position.path)
    return runs is None or position.line == 0 or position.line >= runs.first


def is_in_last_job(position: Position, files: Mapping[str, FileRuns]) -> bool:
    """Whether a line is in the last job of its file; true for a file with one job."""
    runs = files.get(position.path)
    return runs is None or position.line == 0 or position.line >= runs.job_first


def _position_key(event: Event) -> tuple[int, int]:
    """Sort key: the position in the file."""
    return event.at.line, event.at.offset


def _named_job(event: Event) -> str | None:
    """The id of the job that an event names, without its step; None if it names none."""
    job = event.get("job") if event.kind in ("scheduler_notice", "host") else None
    return None if job is None else plain_id(str(job))


def _is_end(event: Event) -> bool:
    """Whether an event ended its program, as far as the event itself shows."""
    if event.kind != "exception":
        return event.kind in ENDS and not event.get("evaluation")
    frames = str(event.get("frames") or event.get("frame") or "")
    outermost = frames.partition(";")[0]
    return not event.get("logged") and (not frames or outermost.endswith(_MAIN_FRAMES))


def _failed_at_once(event: Event) -> bool:
    """Whether a program failed before its work: an import outside any function, or its command-line arguments."""
    if event.kind != "exception":
        return False
    if event.get("type") == "argparse.ArgumentError":
        return True
    frames = str(event.get("frames") or "")
    is_import = event.get("type") in ("ImportError", "ModuleNotFoundError")
    return is_import and bool(frames) and all(frame.endswith(" in <module>") for frame in frames.split(";"))


def _rejects_arguments(event: Event) -> bool:
    """Whether a program rejected its command-line arguments."""
    return event.kind == "exception" and not event.get("frames") and str(event.get("type")).endswith(_REJECTIONS)


def _never_ran(event: Event) -> bool:
    """Whether Python could not open its script."""
    return event.kind == "exception" and str(event.get("message")).startswith(
        ("can't open file", "can't find '__main__'")
    )


def _is_failure_line(event: Event) -> bool:
    """Whether a program says in its own words that its training failed."""
    return event.kind == "exception" and event.get("type") == "Error" and not event.get("frames")


def _is_crash(event: Event) -> bool:
    """Whether an exception of the program's own ended it: one of its main module, or a rejected command line."""
    if event.role is not EventRole.ROOT or event.get("wrapper") or event.get("in_summary") or not _is_end(event):
        return False
    return _program(event) is not None


def _program(event: Event) -> str | None:
    """The script that raised an exception, without its folder; empty if only a rejected command line names it, by
    another name; None if unknown."""
    if _rejects_arguments(event):
        match = _USAGE_ERROR.match(str(event.get("message")))
        return match[1] if match is not None and match[1].endswith(".py") else ""
    frames = (frame for frame in str(event.get("frames") or "").split(";") if _RUNPY.search(frame) is None)
    main = next(frames, "")
    return re.split(r"[\\/]", _FILE.sub("", main))[-1] if main.endswith(" in <module>") else None


def _is_of_other_start(earlier: Event, later: Event) -> bool:
    """Whether two crashes must be of two starts of one program: they differ in more than a message, and the later one
    does not answer the earlier one."""
    programs = {_program(earlier), _program(later)} - {""}
    if len(programs) > 1 or earlier.get("type") in str(later.get("chain") or "").split(";"):
        return False
    if later.get("about") == "interrupt" and not str(later.get("user_frame")).endswith(" in <module>"):
        return False  # one of several processes that hung after the earlier error
    return _distinction(earlier) != _distinction(later)


def _distinction(event: Event) -> tuple[object, ...]:
    """What distinguishes an error from those that other processes, or a loop over examples, print for one cause."""
    if not event.get("user_frame"):
        return event.get("type"), _FIGURES.sub("#", str(event.get("message")))
    return event.get("type"), event.get("user_frame"), event.get("user_code")


@dataclass(slots=True)
class _Splitter:
    """Goes through the signs of one file in order, and collects where its runs begin."""

    has_launcher: bool
    has_several_processes: bool
    """Whether several processes of one program write the file."""
    first_lines: list[int] = field(default_factory=lambda: [1])
    job_first: int = 1
    end_line: int | None = None
    """Line of the last event since the last logged step that may be an end."""
    last_part: int | None = None
    """Part of the last logged step of the run so far."""
    step_line: int = 0
    """Line of the last logged step; 0 if there is none."""
    is_end_reported: bool = False
    """Whether the launcher has reported the end since the last logged step."""
    restart_line: int = 0
    """Line at which a launcher restarted its workers, or a scheduler the job."""
    is_supervised: bool = False
    """Whether the run so far is a sweep's agent with its trials."""
    printed_signs: set[str] = field(default_factory=lambda: {FIRST_LINES})
    """Signs that the run so far has printed."""
    late_signs: set[str] = field(default_factory=set)
    """Signs that came after a run's end, and steps."""
    repeated_signs: set[str] = field(default_factory=set)
    """Signs that a program printed again while it trained."""
    pending_sign: tuple[str, int] | None = None
    """A sign after logged steps, and its line: what follows decides."""
    unopened_line: int | None = None
    """Line of the last event, if it says that Python could not open its script."""
    interrupt_line: int | None = None
    """Line of the last event, if it is an interrupt."""
    last_job: tuple[str, int, bool] | None = None
    """The last job named, the line, and whether that line ended the job."""
    crash: Event | None = None
    """The last error of the run so far that ended its program, unless its steps went on."""
    lines_of_ends: list[int] = field(default_factory=list)
    """Lines of the events after that error that may still be about its program's end."""
    lines_of_signs: dict[str, int] = field(default_factory=dict)
    """Sign -> where it was last printed."""
    failure: Event | None = None
    """The last line of the program that its training failed."""
    error_line: int = 0
    """Line of the last error of any kind."""
    traceback_line: int = 0
    """Line of the last exception that may have been caught: its traceback does not begin in the main module."""

    @property
    def shows_work(self) -> bool:
        """Whether anything shows the run so far at work, or its end."""
        return self.end_line is not None or self.last_part is not None

    @property
    def _is_restart_unclear(self) -> bool:
        """Whether steps that start over after an end may be the same program's: a trial, or printed from a buffer."""
        return self.is_supervised or bool(self.late_signs)

    @property
    def _ends_in_traceback(self) -> bool:
        """Whether the last that the run so far shows is such a traceback: the program may have ended with it."""
        shown = max(self.first_lines[-1], self.step_line, self.end_line or 0)
        return self.traceback_line > shown and not self.has_several_processes

    def begin(self, line: int, *, job: bool = False) -> None:
        """Begin a run at this line; ``job``: whether another job begins with it."""
        if line > self.first_lines[-1]:
            self.first_lines.append(line)
        self.job_first = line if job else self.job_first
        self.last_part = self.last_part if self.step_line >= line else None
        self.end_line = self.end_line if self.end_line is not None and self.end_line >= line else None
        self.is_end_reported, self.is_supervised, self.printed_signs, self.pending_sign = False, False, set(), None
        self.crash, self.failure = None, None

    def begin_again(self, line: int) -> None:
        """Begin a run at an earlier line: what was printed since is this run's, not late output of the one before."""
        last_part = self.last_part
        self.begin(line)
        self.last_part = last_part  # steps that start over after it are another run's
        self.printed_signs = {sign for sign, at in self.lines_of_signs.items() if at >= line}
        self.late_signs -= self.printed_signs
        if self.step_line >= line:
            self.late_signs.discard("steps")

    def add_sign(self, sign: str, line: int) -> None:
        """Take a sign that a launcher or a program prints when it starts."""
        is_next_line = line == self.lines_of_signs.get(sign, 1) + 1
        self.lines_of_signs[sign] = line
        if sign == SUPERVISOR:
            self.is_supervised = True
        elif sign == FIRST_LINE:
            first = self.first_lines[-1]
            if self.error_line > max(first, self.step_line) or (self.step_line < first and not is_next_line):
                self.begin(line)
        elif sign in (BANNER, PROMPT):
            if self.shows_work:
                self.begin(line)
        elif sign == ONCE:
            if (self.shows_work or sign in self.printed_signs) and not self.is_supervised:
                self.begin(line)
            self.printed_signs.add(sign)
        elif self.is_supervised or self.restart_line > self.step_line:
            return
        elif sign == FIRST_LINES and self._ends_in_traceback:
            self.begin(line)
            self.printed_signs.add(sign)
        elif not self.shows_work:
            self.printed_signs.add(sign)
        elif sign not in self.printed_signs:
            self.late_signs.add(sign)
        elif sign in self.late_signs:
            return
        elif self.end_line is None:
            self.pending_sign = self.pending_sign or (sign, line)
        elif self.is_end_reported or not self.has_launcher:
            self.begin(line)
            self.printed_signs.add(sign)

    def add_step(self, line: int, part: int) -> None:
        """Take a logged step; ``part``: its run part."""
        if self.unopened_line is not None:
            self.begin(self.unopened_line + 1)
            self.unopened_line = None
        starts_over = self.last_part is not None and part > self.last_part
        if self.pending_sign is not None:
            sign, first = self.pending_sign
            if starts_over:
                self.begin(first)
                self.printed_signs.add(sign)
            else:
                self.repeated_signs.add(sign)
            self.pending_sign = None
        elif self.end_line is not None and self.last_part is None:
            self.late_signs.add("steps")
        elif (
            starts_over
            and self.end_line is not None
            and self.restart_line <= self.step_line
            and not self._is_restart_unclear
        ):
            self.begin(self.end_line + 1)
        if self.last_part == part and self.end_line is not None and self.step_line >= self.first_lines[-1]:
            self.crash = None  # the steps go on: the error was caught
        self.last_part, self.step_line, self.end_line, self.is_end_reported = part, line, None, False
        self.failure = None

    def add_end(self, event: Event) -> None:
        """Take an event after which a program may have ended."""
        if self.last_part is not None and self.step_line >= self.first_lines[-1] and _failed_at_once(event):
            self.begin(self.step_line + 1)
        is_crash = _is_crash(event) and not self.has_several_processes and not self.is_supervised
        if is_crash and self.crash is not None and _is_of_other_start(self.crash, event):
            header = event.at.line - 2 * len(str(event.get("frames") or "").split(";"))
            self.begin_again(max([self.crash.at.line, *(line for line in self.lines_of_ends if line < header)]) + 1)
        if (
            self.unopened_line is not None
            and event.kind == "exception"
            and not (_never_ran(event) or event.get("wrapper"))
        ):
            self.begin(self.unopened_line + 1)
        if self.interrupt_line is not None and _rejects_arguments(event):
            self.begin(self.interrupt_line + 1)
        self.unopened_line = event.at.line if _never_ran(event) else None
        self.interrupt_line = event.at.line if event.get("about") == "interrupt" else None
        if self.pending_sign is not None:
            sign, first = self.pending_sign
            if sign not in self.repeated_signs:
                self.begin(first)
                self.printed_signs.add(sign)
            self.pending_sign = None
        if is_crash:
            self.crash, self.lines_of_ends = event, []
        elif event.kind in _DEATHS or (event.kind == "exception" and event.role is not EventRole.ROOT):
            self.lines_of_ends.append(event.at.line)
        self.end_line = event.at.line
        self.is_end_reported = self.is_end_reported or event.kind == "launcher_failure"

    def add_failure(self, event: Event) -> None:
        """Take a program's own line that its training failed."""
        earlier, self.failure = self.failure, event
        if earlier is None or earlier.time is None or event.time is None or self.has_several_processes:
            return
        is_later = event.time - earlier.time >= MIN_SECONDS_BETWEEN_FAILURES
        if is_later and not self.is_supervised and _distinction(earlier) != _distinction(event):
            self.begin(event.at.line)
            self.failure = event

    def add_interrupt(self, line: int) -> None:
        """Take an interrupt of another process of a program, such as a worker's: it ends with the program."""
        self.lines_of_ends.append(line)
        if self.interrupt_line is not None:
            self.interrupt_line = line

    def add_job(self, job: str, event: Event) -> None:
        """Take a line that names its job."""
        is_notice = event.kind == "scheduler_notice"
        if self.last_job is not None and self.last_job[0] != job:
            _, line, had_ended = self.last_job
            first = line + 1 if had_ended else event.at.line
            if self.shows_work and max(self.step_line, self.end_line or 0) > line:
                self.begin(first, job=True)
            elif self.first_lines[-1] > line:  # the run so far began below the other job's lines: it is this job's
                self.job_first = self.first_lines[-1]
        self.last_job = (job, event.at.line, is_notice)


_SIGN_KINDS = OUTCOMES | _WORK_KINDS | {"program_start", "launcher_restart", "host", REPORT}
_ERRORS = OUTCOMES & {"unread_error", "exception", "cuda_oom", "dataloader_death"}


def _may_hold_several_runs(signs: Sequence[Event], steps_start_over: bool) -> bool:
    """Whether a file may hold several runs, by what is not a logged step: to read those takes time."""
    counts = Counter(event.kind for event in signs)
    jobs = {job for event in signs if (job := _named_job(event)) is not None}
    several = counts["program_start"] > 1 or len(jobs) > 1 or (steps_start_over and any(counts[kind] for kind in ENDS))
    crashes = sum(_is_crash(event) for event in signs)
    return several or crashes > 1 or any(_failed_at_once(event) or _never_ran(event) for event in signs)


def _split_runs(signs: Sequence[Event], points: Sequence[LoggedPart], last_line: int) -> FileRuns:
    """The runs of one file. ``signs``, ``points``: in order; ``last_line``: number of the file's last line."""
    reports = [event for event in signs if event.kind == REPORT]
    is_followed = bool(reports) and _is_followed(reports[-1], signs, last_line)
    splitter = _Splitter(
        any(event.kind == "launcher_failure" for event in signs),
        any(_is_of_several(event) for event in signs),
    )
    steps = iter(points)
    step = next(steps, None)
    for event in signs:
        line = event.at.line
        while step is not None and step[0] <= line:
            splitter.add_step(*step)
            step = next(steps, None)
        if (job := _named_job(event)) is not None:
            splitter.add_job(job, event)
        if event.kind == "program_start":
            splitter.add_sign(str(event.get("sign")), line)
        elif event.kind == "launcher_restart" or event.get("reason") in _RESTART_REASONS:
            splitter.restart_line = line
        elif event.kind == REPORT:
            _add_report(splitter, event, event is not reports[-1] or is_followed)
        elif _is_end(event):
            splitter.add_end(event)
        elif _is_failure_line(event):
            splitter.add_failure(event)
        elif event.kind == "exception" and event.get("about") == "interrupt":
            splitter.add_interrupt(line)
        if event.kind in _ERRORS:
            splitter.error_line = line
        if event.kind == "exception" and not _is_end(event):
            splitter.traceback_line = line
    while step is not None:
        splitter.add_step(*step)
        step = next(steps, None)
    first_lines, unknown_start = splitter.first_lines, None
    if len(first_lines) > 1 and splitter.job_first != first_lines[-1] and not _shows_work(splitter, signs, last_line):
        first = first_lines.pop()
        # a command after the run, such as one that saves what the terminal showed, is no run
        unknown_start = None if splitter.lines_of_signs.get(PROMPT, 0) >= first else first
    last_lines_of_runs = [*(first - 1 for first in first_lines[1:]), max(last_line, first_lines[-1])]
    runs = tuple(
        FileRun(first, last, _report_of(reports, first, last))
        for first, last in zip(first_lines, last_lines_of_runs, strict=True)
    )
    last = runs[-1].report
    if last is not None and last.get("above") is True and is_followed:
        last = None
    has_more = sum(event.kind == "program_start" for event in signs) >= MAX_PER_KIND
    return FileRuns(runs, last, min(splitter.job_first, first_lines[-1]), unknown_start, has_more)


def _is_of_several(event: Event) -> bool:
    """Whether an event is about one of several processes."""
    if event.kind == "process_exit":
        return event.get("task") is not None or event.rank is not None
    is_of_rank = event.kind == "exception" and (event.rank is not None or event.get("wrapper") is True)
    return is_of_rank or event.kind in _OF_SEVERAL_PROCESSES


def _shows_work(splitter: _Splitter, signs: Sequence[Event], last_line: int) -> bool:
    """Whether the last run shows more than that it started."""
    first = splitter.first_lines[-1]
    failed = any(event.kind in OUTCOMES and event.at.line >= first for event in reversed(signs))
    return splitter.shows_work or failed or last_line - first >= MIN_LINES_AT_WORK


def _report_of(reports: Sequence[Event], first: int, last: int) -> Event | None:
    """The last report within these lines; ``reports``: in order."""
    index = bisect_right(reports, last, key=lambda report: report.at.line)
    return reports[index - 1] if index and reports[index - 1].at.line >= first else None


def _is_followed(report: Event, signs: Sequence[Event], last_line: int) -> bool:
    """Whether another job's output follows a report."""
    end = last_line_of(report)
    return last_line - MAX_TRAILING_LINES > end or any(
        event.kind in _WORK_KINDS and event.at.line > end for event in signs
    )


def _add_report(splitter: _Splitter, report: Event, is_followed: bool) -> None:
    """Take a batch system's report of a job's end; the job's output is above the report or below it. ``is_followed``:
    whether another job's output follows."""
    if report.get("above") is not True:
        splitter.begin(report.at.line, job=True)
    elif report.get("source") in _APPENDING_SOURCES and is_followed:
        splitter.begin(last_line_of(report) + 1, job=True)
