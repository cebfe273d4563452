"""Runs appended to one file: where each begins. The last one is the run; what the others printed is not about it.

Output is often appended to one file: attempts after a failure, jobs of an array, `nohup` twice. A run begins

- after a batch system's report of a job's end, or where the lines name another job;
- at a launcher's banner, once the program before it had printed anything that shows it at work or its end;
- at a line that programs print when they start, if the run so far has printed it too and has ended since, or if its
  steps start over after it;
- where steps start over after the end of a program;
- behind the last step, if a program then fails in an import at its top.

One program that restarts its workers is one run, however often they print their first lines; so is a job that its
scheduler starts again. Whatever a process prints
late from its buffer is not a beginning: a sign that came after a run's end counts no more in that file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from trackside.catalog.events import OUTCOMES, last_line_of
from trackside.logs.job_report import REPORT
from trackside.logs.program_starts import BANNER, FIRST_LINES, SUPERVISOR
from trackside.logs.scan import MAX_PER_KIND
from trackside.model import Event, FileRun, Position
from trackside.runs.jobs import plain_id

ENDS = frozenset(
    (
        "exception", "python_fatal", "cuda_oom", "launcher_failure", "process_exit", "signal_received",
        "user_interrupt", "training_end", "scheduler_notice",
    )
)  # fmt: skip
"""Kinds of events that may say how a program ended."""
_OF_A_JOB = frozenset({"training_start", "training_plan", "training_end", "exception", "launcher_failure", "cuda_oom"})
"""Kinds of events after the last report that show that another job was appended, which has no report."""
MAX_TRAILING_LINES = 40
"""More lines than this after the last report are another job's output; fewer may be notes of the batch system."""
MIN_LINES_AT_WORK = 100
"""A run that prints so many lines is at work, even if none of them is read."""
_GOES_ON = frozenset({"preemption", "requeue", "node_failure"})
"""Reasons of a scheduler's notice after which the same job starts again."""
_APPENDING = frozenset({"lsf", "pbs"})
"""Sources of reports that the batch system itself adds to the output: what is above them is over."""
_MAIN = (" in <module>", " in _run_module_as_main", " in _run_code")
"""Outermost frames of an exception that ended its program."""

LoggedPart = tuple[int, int]
"""Line of a logged step, and the number of its run part: it grows where steps start over."""


class LoggedSteps(Protocol):
    """The logged steps of the files."""

    def start_over(self, path: str) -> bool:
        """Whether the steps of a file start over."""

    def parts(self, path: str) -> Sequence[LoggedPart]:
        """The logged steps of a file, in order."""


@dataclass(frozen=True, slots=True)
class FileRuns:
    """The runs in one file, in order, at least one. ``report``: of the last one's end; None if it has none.
    ``job_first``: the first line of the last job, which may have started several programs. ``started``: where another
    run starts of which nothing is known; its lines are counted with the one before. ``more``: whether there are more
    than these, because the scan keeps only some of the lines where programs start."""

    runs: tuple[FileRun, ...]
    report: Event | None = None
    job_first: int = 1
    started: int | None = None
    more: bool = False

    @property
    def first(self) -> int:
        """The first line of the last run."""
        return self.runs[-1].first


def runs_by_file(events: Iterable[Event], steps: LoggedSteps) -> dict[str, FileRuns]:
    """The runs of each file that holds several, or a report of a job. ``events``: those of the job logs."""
    by_file: dict[str, list[Event]] = {}
    last_lines: dict[str, int] = {}
    for event in events:
        if event.kind == "log_activity":
            last_lines[event.at.path] = max(last_lines.get(event.at.path, 0), event.at.line)
        elif event.kind in _SIGNS:
            by_file.setdefault(event.at.path, []).append(event)
    files = {}
    for path, signs in by_file.items():
        in_order = sorted(signs, key=_place)
        points = steps.parts(path) if _are_needed(signs, steps.start_over(path)) else ()
        runs = _split(in_order, points, last_lines.get(path, 0))
        if len(runs.runs) > 1 or runs.report is not None:
            files[path] = runs
    return files


def is_of_last_run(position: Position, files: Mapping[str, FileRuns]) -> bool:
    """Whether a line is not from an earlier run of its file."""
    runs = files.get(position.path)
    return runs is None or position.line == 0 or position.line >= runs.first


def is_of_last_job(position: Position, files: Mapping[str, FileRuns]) -> bool:
    """Whether a line is not from an earlier job of its file."""
    runs = files.get(position.path)
    return runs is None or position.line == 0 or position.line >= runs.job_first


def _place(event: Event) -> tuple[int, int]:
    return event.at.line, event.at.offset


def _job(event: Event) -> str | None:
    job = event.get("job") if event.kind in ("scheduler_notice", "host") else None
    return None if job is None else plain_id(str(job))


def _is_end(event: Event) -> bool:
    """Whether the program did not go on after it, as far as the event itself shows."""
    if event.kind != "exception":
        return event.kind in ENDS
    frames = str(event.get("frames") or event.get("frame") or "")
    outermost = frames.partition(";")[0]
    return not event.get("logged") and (not frames or outermost.endswith(_MAIN))


def _failed_at_import(event: Event) -> bool:
    """Whether an import failed outside any function: then the program had not begun its work."""
    frames = str(event.get("frames") or "")
    is_import = event.kind == "exception" and event.get("type") in ("ImportError", "ModuleNotFoundError")
    return is_import and bool(frames) and all(frame.endswith(" in <module>") for frame in frames.split(";"))


@dataclass(slots=True)
class _Splitter:
    """Goes through the signs of one file in order, and collects where its runs begin."""

    under_launcher: bool
    firsts: list[int] = field(default_factory=lambda: [1])
    job_first: int = 1
    end: int | None = None
    """Line of the last sign of an end since the last logged step."""
    part: int | None = None
    """Part of the last logged step of the run so far."""
    point: int = 0
    """Its line."""
    reported: bool = False
    """Whether the launcher has reported the end since the last logged step."""
    restart: int = 0
    """Line at which a launcher restarted its workers, or a scheduler the job."""
    is_supervised: bool = False
    """Whether the run so far is a sweep's agent with its trials."""
    printed: set[str] = field(default_factory=lambda: {FIRST_LINES})
    """Signs that the run so far has printed."""
    late: set[str] = field(default_factory=set)
    """Signs that came after a run's end, and steps."""
    repeated: set[str] = field(default_factory=set)
    """Signs that a program printed again while it trained."""
    pending: tuple[str, int] | None = None
    """A sign after logged steps, and its line: what follows decides."""
    job: tuple[str, int, bool] | None = None
    """The last job named, the line, and whether that line ended the job."""

    @property
    def is_known(self) -> bool:
        """Whether anything shows the run so far at work, or its end."""
        return self.end is not None or self.part is not None

    @property
    def _is_vague(self) -> bool:
        """Whether steps that start over after an end may be the same program's: a trial, or printed from a buffer."""
        return self.is_supervised or bool(self.late)

    def begin(self, line: int, *, job: bool = False) -> None:
        """A run begins at this line."""
        if line > self.firsts[-1]:
            self.firsts.append(line)
        self.job_first = line if job else self.job_first
        self.part = self.part if self.point >= line else None
        self.end = self.end if self.end is not None and self.end >= line else None
        self.reported, self.is_supervised, self.printed, self.pending = False, False, set(), None

    def mark(self, sign: str, line: int) -> None:
        """A launcher or a program prints what it prints at its start."""
        if sign == SUPERVISOR:
            self.is_supervised = True
        elif sign == BANNER:
            if self.is_known:
                self.begin(line)
        elif self.is_supervised or self.restart > self.point:
            return
        elif not self.is_known:
            self.printed.add(sign)
        elif sign not in self.printed:
            self.late.add(sign)
        elif sign in self.late:
            return
        elif self.end is None:
            self.pending = self.pending or (sign, line)
        elif self.reported or not self.under_launcher:
            self.begin(line)
            self.printed.add(sign)

    def logged(self, line: int, part: int) -> None:
        """A step was logged."""
        starts_over = self.part is not None and part > self.part
        if self.pending is not None:
            sign, first = self.pending
            if starts_over:
                self.begin(first)
                self.printed.add(sign)
            else:
                self.repeated.add(sign)
            self.pending = None
        elif self.end is not None and self.part is None:
            self.late.add("steps")
        elif starts_over and self.end is not None and self.restart <= self.point and not self._is_vague:
            self.begin(self.end + 1)
        self.part, self.point, self.end, self.reported = part, line, None, False

    def ended(self, event: Event) -> None:
        """A program may have ended."""
        if self.part is not None and _failed_at_import(event):
            self.begin(self.point + 1)
        if self.pending is not None:
            sign, first = self.pending
            if sign not in self.repeated:
                self.begin(first)
                self.printed.add(sign)
            self.pending = None
        self.end = event.at.line
        self.reported = self.reported or event.kind == "launcher_failure"

    def named(self, job: str, event: Event) -> None:
        """A line names its job."""
        is_notice = event.kind == "scheduler_notice"
        if self.job is not None and self.job[0] != job:
            _, line, had_ended = self.job
            first = line + 1 if had_ended else event.at.line
            if self.is_known and max(self.point, self.end or 0) > line:
                self.begin(first, job=True)
            elif self.firsts[-1] > line:  # the run so far began below the other job's lines: it is this job's
                self.job_first = self.firsts[-1]
        self.job = (job, event.at.line, is_notice)


_SIGNS = OUTCOMES | _OF_A_JOB | {"program_start", "launcher_restart", "host", REPORT}


def _are_needed(signs: Sequence[Event], start_over: bool) -> bool:
    """Whether a file may hold several runs, by what is not a logged step: to read those takes time."""
    counts = Counter(event.kind for event in signs)
    jobs = {job for event in signs if (job := _job(event)) is not None}
    several = counts["program_start"] > 1 or len(jobs) > 1 or (start_over and any(counts[kind] for kind in ENDS))
    return several or any(map(_failed_at_import, signs))


def _split(signs: Sequence[Event], points: Sequence[LoggedPart], last_line: int) -> FileRuns:
    """The runs of one file. ``signs``, ``points``: in order; ``last_line``: number of the file's last line."""
    reports = [event for event in signs if event.kind == REPORT]
    is_followed = bool(reports) and _is_followed(reports[-1], signs, last_line)
    splitter = _Splitter(any(event.kind == "launcher_failure" for event in signs))
    steps = iter(points)
    step = next(steps, None)
    for event in signs:
        line = event.at.line
        while step is not None and step[0] <= line:
            splitter.logged(*step)
            step = next(steps, None)
        if (job := _job(event)) is not None:
            splitter.named(job, event)
        if event.kind == "program_start":
            splitter.mark(str(event.get("sign")), line)
        elif event.kind == "launcher_restart" or event.get("reason") in _GOES_ON:
            splitter.restart = line
        elif event.kind == REPORT:
            _pass_report(splitter, event, event is not reports[-1] or is_followed)
        elif _is_end(event):
            splitter.ended(event)
    while step is not None:
        splitter.logged(*step)
        step = next(steps, None)
    firsts, started = splitter.firsts, None
    if len(firsts) > 1 and splitter.job_first != firsts[-1] and not _shows_anything(splitter, signs, last_line):
        started = firsts.pop()
    lasts = [*(first - 1 for first in firsts[1:]), max(last_line, firsts[-1])]
    runs = tuple(
        FileRun(first, last, _report_of(reports, first, last)) for first, last in zip(firsts, lasts, strict=True)
    )
    last = runs[-1].report
    if last is not None and last.get("above") is True and is_followed:
        last = None
    more = sum(event.kind == "program_start" for event in signs) >= MAX_PER_KIND
    return FileRuns(runs, last, min(splitter.job_first, firsts[-1]), started, more)


def _shows_anything(splitter: _Splitter, signs: Sequence[Event], last_line: int) -> bool:
    """Whether the last run shows more than that it started."""
    first = splitter.firsts[-1]
    failed = any(event.kind in OUTCOMES and event.at.line >= first for event in reversed(signs))
    return splitter.is_known or failed or last_line - first >= MIN_LINES_AT_WORK


def _report_of(reports: Sequence[Event], first: int, last: int) -> Event | None:
    """The last report within these lines; ``reports``: in order."""
    index = bisect_right(reports, last, key=lambda report: report.at.line)
    return reports[index - 1] if index and reports[index - 1].at.line >= first else None


def _is_followed(report: Event, signs: Sequence[Event], last_line: int) -> bool:
    """Whether another job's output follows a report."""
    end = last_line_of(report)
    return last_line - MAX_TRAILING_LINES > end or any(
        event.kind in _OF_A_JOB and event.at.line > end for event in signs
    )


def _pass_report(splitter: _Splitter, report: Event, is_followed: bool) -> None:
    """A batch system reports a job's end: the job's output stands above the report, or below. ``is_followed``: whether
    another job's output follows."""
    if report.get("above") is not True:
        splitter.begin(report.at.line, job=True)
    elif report.get("source") in _APPENDING and is_followed:
        splitter.begin(last_line_of(report) + 1, job=True)
